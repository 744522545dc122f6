"""A rollout: which workloads a policy is enforced for while the others are only watched."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

import msgspec


class HaltThresholds(msgspec.Struct, frozen=True):
    """When a rollout stops by itself.

    Attributes:
        oom, evictions, pending: Percentage points by which the share may do worse than the rest; None: not looked at.
        window_minutes: How long what happened counts.
    """

    oom: int | None
    evictions: int | None
    pending: int | None
    window_minutes: int


class Rollout(msgspec.Struct, frozen=True):
    """A share of all workloads.

    Attributes:
        percent: Of the workloads, 0 to 100.
        seed: Another seed chooses other workloads.
        halt_on: None: nobody watches.
    """

    percent: int
    seed: str
    halt_thresholds: HaltThresholds | None = None

    def includes(self, namespace: str, workload: str) -> bool:
        """Is this workload in the share? The same on every replica, for all its pods, and for good: a share that
        grows keeps those that it has.
        """
        return _rollout_bucket(self.seed, namespace, workload) < self.percent


@lru_cache(maxsize=4096)
def _rollout_bucket(seed: str, namespace: str, workload: str) -> int:
    """One of a hundred, all equally likely."""
    return int.from_bytes(sha256(f"{seed}\0{namespace}\0{workload}".encode()).digest()[:8]) % 100
