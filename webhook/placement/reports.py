"""Whether what an agent reports of a node's GPUs can be: whatever placement counts with is bounded here."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.errors import quoted
from webhook.model.gpunodes import (
    MOST_LINK_RATE,
    MOST_NVLINKS,
    MOST_START,
    GpuDevice,
    GPUNode,
    GPUNodeStatus,
    MigInstance,
)
from webhook.placement.mig import Geometry, geometry
from webhook.placement.topology import MOST_GPUS


def unusable(node: GPUNode) -> str:
    """Why a report cannot be used; "" where it can. One fault makes it unusable: what is wrong of one GPU says nothing
    good of the others."""
    return next(_faults(node.status), "")


def _faults(status: GPUNodeStatus) -> Iterator[str]:
    count, indexes = len(status.gpus), sorted(gpu.index for gpu in status.gpus)
    if not count:
        yield status.message or "it names no GPUs"
    if count > MOST_GPUS:
        yield f"it names {count} GPUs, and at most {MOST_GPUS} are told apart"
    elif indexes != list(range(count)):
        yield f"its GPUs must be numbered 0 to {count - 1}, found {', '.join(map(str, indexes))}"
    if not 0 <= status.nvlink_rate <= MOST_LINK_RATE:
        yield f"nvlinkRate must be 0 to {MOST_LINK_RATE}, found {status.nvlink_rate}"
    known = geometry(status.product)
    for gpu in status.gpus:
        yield from (f"GPU {gpu.index}: {fault}" for fault in _of(gpu, known))


def _of(gpu: GpuDevice, known: Geometry | None) -> Iterator[str]:
    for link in gpu.links:
        if not 0 <= link.nvlinks <= MOST_NVLINKS:
            yield f"nvlinks must be 0 to {MOST_NVLINKS}, found {link.nvlinks}"
    for instance in gpu.instances:
        yield from _placed(instance, known)


def _placed(instance: MigInstance, known: Geometry | None) -> Iterator[str]:
    """Profiles of cards that are not known may be anything, and start anywhere on a card."""
    profile = known.profile(instance.profile) if known else None
    if known and not profile:
        yield f"its card has no MIG profile {quoted(instance.profile)}"
    most = known.units - profile.size if known and profile else MOST_START
    if not 0 <= instance.start <= most:
        yield f"the start of {quoted(instance.profile)} must be 0 to {most}, found {instance.start}"
