"""UsageView: what workloads were seen to use of their GPUs, and how likely they are to need more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import msgspec

RISKS_PPM = tuple(
    unit * digits // 10 for unit in (100_000, 10_000, 1000, 100, 10) for digits in (50, 30, 20, 15, 10, 7)
)
"""The risks that a curve has a size for: from one half in an hour to 7 in a million, about three in four each."""

CERTAIN_PPM = 1_000_000

IDLE_BELOW = 20
"""Thousandths of a card: engine activity, or compute in 95 of 100 samples, below this is no work."""


LATELY_SECONDS = 86_400
"""What was seen before that says nothing about pods of now."""


class ObservedUsage(msgspec.Struct, frozen=True, gc=False):
    """Use of a GPU by one container of a workload over the look-back window.

    Attributes:
        memory_mib: Peak GPU memory in MiB, the worst GPU of the worst pod.
        compute_milli: 95th percentile of compute use, or the largest engine activity where only that is known,
            thousandths of the card it ran on; None if neither is.
        samples: How many past windows stand behind it.
        preallocates: True if the framework takes what it sees (vLLM, JAX, TensorFlow), so that
            `parse_memory_mib` is a setting and not a need.
        sizes_mib: For each of `RISKS_PPM` the least memory at which no more than that share of pod-hours would need
            more; empty where too little was seen to say.
        typical_mib: Mean memory in use.
        card_mib: Memory of the GPU it ran on.
        horizon_hours: The usual length of its runs, for which the risk was learnt.
        pool: Whose windows these are: "workload", "image" or "fleet".
        idle_until: Unix seconds until which no engine of its GPUs was active, for as long as any evidence takes; 0 if
            one was, or that is not known of every pod.
        idle_pods: Names of the pods that this was seen of. An audit's alone: no process that admits pods has them.
        blocked: Why its request may not shrink for now, and until when; "" where nothing is in the way.
    """

    memory_mib: int
    compute_milli: int | None
    samples: int
    preallocates: bool = False
    sizes_mib: tuple[int, ...] = ()
    typical_mib: int = 0
    card_mib: int = 0
    horizon_hours: int = 1
    pool: str = "workload"
    idle_until: int = 0
    idle_pods: tuple[str, ...] = ()
    blocked_reason: str = ""

    def risk_ppm(self, memory_mib: int) -> int:
        """Pod-hours in a million that would need more than a size; never stated too low for want of precision."""
        below = bisect_right(self.sizes_mib, memory_mib)
        return RISKS_PPM[below - 1] if below else CERTAIN_PPM

    def is_idle(self, now: float) -> bool:
        """Was no engine active until lately, by this moment in Unix seconds?"""
        return bool(self.idle_until) and now - self.idle_until <= LATELY_SECONDS

    def size_mib(self, risk_ppm: int) -> int:
        """The least memory whose stated risk is no larger; the card's where the curve does not say."""
        return next(
            (size for size, risk in zip(self.sizes_mib, RISKS_PPM, strict=False) if risk <= risk_ppm), self.card_mib
        )


class UsageView(msgspec.Struct, frozen=True):
    """Observed use by (namespace, workload, container); a workload is "Deployment/serve".

    Attributes:
        prices: For each target of risk (ppm, ascending) the price of running out of memory once, in thousandths of
            an hour of an unused card, at which past limits met it.
    """

    observed: Mapping[tuple[str, str, str], ObservedUsage] = {}
    prices: tuple[tuple[int, int], ...] = ()

    def find(self, namespace: str, workload: str, container: str) -> ObservedUsage | None:
        """What was seen of one container, or None."""
        return self.observed.get((namespace, workload, container))

    def price_milli(self, risk_ppm: int) -> int:
        """The price that met a risk: of the largest target that is no larger, else of the least."""
        met = [price for target, price in self.prices if target <= risk_ppm]
        return met[-1] if met else self.prices[0][1] if self.prices else 0
