"""The workload mix: which demands pods have, and how often. Given by a policy, counted from a list, or learned from
arrivals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from webhook.placement.capacity import GPU_MILLI, PodDemand

HALF_LIFE = 8192
"""Arrivals after which the weight of one is halved."""

MAX_DEMANDS = 1024
"""Distinct demands that are kept; of more, the least frequent are dropped."""

FIRST_REBUILD = 20
REBUILD_GROWTH = 1.5
"""A scorer is rebuilt after 20 arrivals, then each time their number has grown by half, by at most one half-life."""


class WorkloadMix(msgspec.Struct, frozen=True):
    """The frequency of each shape.

    Attributes:
        counts: Weights above zero, by demand without memory; only their ratio matters.
    """

    counts: Mapping[PodDemand, float]

    def gpu_demand_shares(self) -> dict[PodDemand, float]:
        """Return the demands with GPUs, their weights adding up to 1. A pod with several shares counts as that many
        pods with one.
        """
        counts: dict[PodDemand, float] = {}
        for demand, count in self.counts.items():
            if demand.gpus:
                share_count = demand.gpus if demand.gpu_milli < GPU_MILLI else 1
                one = PodDemand(
                    -(-demand.cpu_milli // share_count), demand.gpus // share_count, demand.gpu_milli, demand.models
                )
                counts[one] = counts.get(one, 0.0) + share_count * count
        total = sum(counts.values())
        return {demand: count / total for demand, count in counts.items()}

    def with_gpus(self) -> WorkloadMix:
        """Return the part that requests whole GPUs or shares; `FLAT_MIX` if no pod does."""
        counts = {demand: count for demand, count in self.counts.items() if demand.gpus}
        return WorkloadMix(counts) if counts else FLAT_MIX


def mix_from_demands(demands: Iterable[PodDemand]) -> WorkloadMix:
    """Return the mix of a list of pods."""
    return WorkloadMix({shape: float(count) for shape, count in Counter(demand.shape for demand in demands).items()})


FLAT_MIX = WorkloadMix({PodDemand(1000, 1, share): 1.0 for share in range(50, GPU_MILLI + 1, 50)})
"""The assumption before anything is known: shares of 50 to 1000 thousandths, with one core."""


class MixEstimator:
    """Learns the mix from arrivals, placed or not; older ones count less.

    Weights grow instead of shrinking, so that an arrival costs one addition.
    """

    def __init__(self) -> None:
        self._weights: dict[PodDemand, float] = {}
        self._weight = 1.0
        self._arrivals = 0
        self._next = FIRST_REBUILD

    def record_arrival(self, demand: PodDemand) -> bool:
        """Count an arrival. Return True if the scorer should be rebuilt."""
        shape = demand.shape
        self._weights[shape] = self._weights.get(shape, 0.0) + self._weight
        self._weight *= 2 ** (1 / HALF_LIFE)
        self._arrivals += 1
        if len(self._weights) > 2 * MAX_DEMANDS or self._weight > 1e9:
            kept = sorted(self._weights.items(), key=lambda item: -item[1])[:MAX_DEMANDS]
            self._weights = {demand: weight / self._weight for demand, weight in kept}
            self._weight = 1.0
        if self._arrivals < self._next:
            return False
        self._next += min(HALF_LIFE, int(self._next * (REBUILD_GROWTH - 1)))
        return True

    def estimated_mix(self) -> WorkloadMix:
        """Return the learned mix; the flat mix while no GPU has been requested."""
        return WorkloadMix(dict(self._weights)) if any(demand.gpus for demand in self._weights) else FLAT_MIX
