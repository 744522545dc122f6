"""What became of GPU pods after they were admitted: enough of it to compare two groups of them."""

from __future__ import annotations

import msgspec


class PodOutcome(msgspec.Struct, frozen=True, gc=False):
    """One pod. Times are seconds since 1970; 0: it did not happen.

    Attributes:
        workload: The workload that a rollout counts it for.
        policies: Names of the policies that changed it; () where none did.
        oom: When the kernel last ended one of its containers for its memory.
        evicted: When it was evicted.
        pending: Since when no node takes it.
        ended: When its last container ended for good.
        gone: When it was deleted.
    """

    namespace: str
    workload: str
    policies: tuple[str, ...]
    oom_killed: float = 0
    evicted: float = 0
    pending: float = 0
    ended: float = 0
    deleted: float = 0
