"""The mix: what pods ask for, and how often. Given by a policy, counted from a list, or learnt from arrivals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from webhook.placement.capacity import GPU_MILLI, PodDemand

HALF_LIFE = 8192
"""Arrivals after which one counts half."""

MAX_DEMANDS = 1024
"""Distinct needs that are remembered; of more, the least asked for are forgotten."""

FIRST_REBUILD = 20
REBUILD_GROWTH = 1.5
"""Rules are built anew after 20 arrivals, and then each time there are half as many more, up to one a half-life."""


class WorkloadMix(msgspec.Struct, frozen=True):
    """How often each shape is asked for.

    Attributes:
        counts: Weights above zero, by need without memory; only their proportions matter.
    """

    counts: Mapping[PodDemand, float]

    def gpu_demand_shares(self) -> dict[PodDemand, float]:
        """The needs with GPUs, their weights adding up to 1. A pod of several shares is as many pods of one."""
        counts: dict[PodDemand, float] = {}
        for need, count in self.counts.items():
            if need.gpus:
                several = need.gpus if need.gpu_milli < GPU_MILLI else 1
                one = PodDemand(-(-need.cpu_milli // several), need.gpus // several, need.gpu_milli, need.models)
                counts[one] = counts.get(one, 0.0) + several * count
        whole = sum(counts.values())
        return {need: count / whole for need, count in counts.items()}

    def with_gpus(self) -> WorkloadMix:
        """The part that asks for whole GPUs or shares of them; `FLAT_MIX` where nobody does."""
        counts = {need: count for need, count in self.counts.items() if need.gpus}
        return WorkloadMix(counts) if counts else FLAT_MIX


def mix_from_demands(needs: Iterable[PodDemand]) -> WorkloadMix:
    """The mix of a list of pods."""
    counts: dict[PodDemand, float] = {}
    for need in needs:
        shape = need.shape
        counts[shape] = counts.get(shape, 0.0) + 1.0
    return WorkloadMix(counts)


FLAT_MIX = WorkloadMix({PodDemand(1000, 1, share): 1.0 for share in range(50, GPU_MILLI + 1, 50)})
"""What is assumed before anything is known: shares of 50 to 1000 thousandths, with one core."""


class MixEstimator:
    """The mix as seen so far: every arrival counts, whether it found a place or not, the older ones less.

    Weights grow instead of shrinking, so that an arrival costs one addition.
    """

    def __init__(self) -> None:
        self._weights: dict[PodDemand, float] = {}
        self._weight = 1.0
        self._seen = 0
        self._next = FIRST_REBUILD

    def record_arrival(self, need: PodDemand) -> bool:
        """Count an arrival. True if so much has been learnt that the rule should be built anew."""
        shape = need.shape
        self._weights[shape] = self._weights.get(shape, 0.0) + self._weight
        self._weight *= 2 ** (1 / HALF_LIFE)
        self._seen += 1
        if len(self._weights) > 2 * MAX_DEMANDS or self._weight > 1e9:
            self._prune_weights()
        if self._seen < self._next:
            return False
        self._next += min(HALF_LIFE, int(self._next * (REBUILD_GROWTH - 1)))
        return True

    def estimated_mix(self) -> WorkloadMix:
        """What has been learnt; the flat mix where no GPU has been asked for yet."""
        return WorkloadMix(dict(self._weights)) if any(need.gpus for need in self._weights) else FLAT_MIX

    def _prune_weights(self) -> None:
        kept = sorted(self._weights.items(), key=lambda item: -item[1])[:MAX_DEMANDS]
        self._weights = {need: weight / self._weight for need, weight in kept}
        self._weight = 1.0


class TurnoverEstimator:
    """How many pods leave for each that comes, as seen so far; the older ones count less, as in the mix."""

    def __init__(self) -> None:
        self._came = self._left = 0.0

    def record_arrival(self) -> None:
        """Count an arrival, placed or not."""
        kept = 2 ** (-1 / HALF_LIFE)
        self._came, self._left = kept * self._came + 1.0, kept * self._left

    def record_departure(self) -> None:
        """Count one who left."""
        self._left += 1.0

    @property
    def ratio(self) -> float:
        """From 0, where whoever has come stays, to 1, where at least as many leave as come."""
        return min(1.0, self._left / self._came) if self._came else 0.0
