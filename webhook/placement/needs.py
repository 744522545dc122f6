"""What a pod needs of a node, as placement counts it."""

from __future__ import annotations

import msgspec

GPU_MILLI = 1000
"""Thousandths of one GPU."""


class PodDemand(msgspec.Struct, frozen=True, gc=False):
    """What one pod asks of one node.

    Attributes:
        cpu_milli: CPU in millicores.
        gpus: How many GPUs, or shares, of which several may be of one GPU; 0 for a pod without.
        gpu_milli: Each of them in thousandths; 1000 for whole ones, 0 where `gpus` is 0.
        models: GPU models that will do; () for any.
        memory_mib: Memory in MiB.
    """

    cpu_milli: int
    gpus: int = 0
    gpu_milli: int = 0
    models: tuple[str, ...] = ()
    memory_mib: int = 0

    @property
    def total_milli(self) -> int:
        """All that it asks for, in thousandths of a GPU."""
        return self.gpus * self.gpu_milli

    @property
    def shape(self) -> PodDemand:
        """The need without its memory, which only keeps nodes out: pods of one shape are valued alike."""
        return PodDemand(self.cpu_milli, self.gpus, self.gpu_milli, self.models)

    def accepts_model(self, model: str) -> bool:
        """Will a GPU of this model do?"""
        return not self.models or model in self.models
