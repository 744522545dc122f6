"""UsageView: GPU usage of workloads, and the risk that they need more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import msgspec

RISKS_PPM = tuple(
    unit * digits // 10 for unit in (100_000, 10_000, 1000, 100, 10) for digits in (50, 30, 20, 15, 10, 7)
)
"""The risks of a curve: from one half per hour to 7 in a million, each about three quarters of the last."""

CERTAIN_PPM = 1_000_000

IDLE_BELOW = 20
"""Thousandths of a card: engine activity, or compute in 95 of 100 samples, below this is idle."""


MAX_IDLE_AGE_SECONDS = 86_400
"""Older observations say nothing about current pods."""


class ObservedUsage(msgspec.Struct, frozen=True, gc=False):
    """GPU usage of one container of a workload over the look-back window.

    Attributes:
        memory_mib: Peak GPU memory in MiB, the worst GPU of the worst pod.
        compute_milli: 95th percentile of compute use, or the largest engine activity if only that is known, thousandths
            of the card; None if neither is.
        samples: Number of past windows.
        preallocates: True if the framework allocates all visible memory (vLLM, JAX, TensorFlow), so that `memory_mib`
            is a setting and not a need.
        sizes_mib: For each of `RISKS_PPM` the least memory at which no more than that share of pod-hours would need
            more; empty with too few samples.
        typical_mib: Mean memory in use.
        card_mib: Memory of the GPU it ran on.
        horizon_hours: Usual length of its runs, for which the risk was learned.
        pool: Source of the windows: "workload", "image" or "fleet".
        idle_until: Unix seconds until which no engine of its GPUs was active, for the whole required time; 0 if one
            was, or that is unknown for some pod.
        idle_pods: Names of these pods. Only an audit has them, not the admission processes.
        blocked_reason: Why its request may not shrink for now, and until when; "" if it may.
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
        """Return the pod-hours in a million that would need more than a size, rounded up."""
        below = bisect_right(self.sizes_mib, memory_mib)
        return RISKS_PPM[below - 1] if below else CERTAIN_PPM

    def is_idle(self, now: float) -> bool:
        """Return whether no engine was active until recently, at this time in Unix seconds."""
        return bool(self.idle_until) and now - self.idle_until <= MAX_IDLE_AGE_SECONDS

    def size_mib(self, risk_ppm: int) -> int:
        """Return the least memory with at most this risk; the card's if the curve has none."""
        return next(
            (size for size, risk in zip(self.sizes_mib, RISKS_PPM, strict=False) if risk <= risk_ppm), self.card_mib
        )


class UsageView(msgspec.Struct, frozen=True):
    """Usage by (namespace, workload, container); a workload is "Deployment/serve".

    Attributes:
        prices: For each risk target (ppm, ascending) the price of one out-of-memory error, in thousandths of an hour of
            an unused card, at which past limits met it.
    """

    observed: Mapping[tuple[str, str, str], ObservedUsage] = {}
    prices: tuple[tuple[int, int], ...] = ()

    def find(self, namespace: str, workload: str, container: str) -> ObservedUsage | None:
        """Return the usage of one container, or None."""
        return self.observed.get((namespace, workload, container))

    def price_milli(self, risk_ppm: int) -> int:
        """Return the price that met a risk: of the largest target that is no larger, otherwise of the smallest."""
        met = [price for target, price in self.prices if target <= risk_ppm]
        return met[-1] if met else self.prices[0][1] if self.prices else 0
