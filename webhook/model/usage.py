"""UsageView: what workloads were seen to use of their GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Observed(msgspec.Struct, frozen=True, gc=False):
    """Use of a GPU by one container of a workload over the look-back window.

    Attributes:
        memory_mib: Peak GPU memory in MiB, the worst GPU of the worst pod.
        compute_milli: 95th percentile of compute use, thousandths of the card it ran on; None if unknown.
        samples: How many samples stand behind it.
        preallocates: True if the framework takes what it sees (vLLM, JAX, TensorFlow), so that
            `memory_mib` is a setting and not a need.
    """

    memory_mib: int
    compute_milli: int | None
    samples: int
    preallocates: bool = False


class UsageView(msgspec.Struct, frozen=True):
    """Observed use by (namespace, workload, container); a workload is "Deployment/serve"."""

    observed: Mapping[tuple[str, str, str], Observed] = {}

    def of(self, namespace: str, workload: str, container: str) -> Observed | None:
        """What was seen of one container, or None."""
        return self.observed.get((namespace, workload, container))
