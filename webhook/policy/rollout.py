"""Gradual rollout of a policy: the share of workloads that it applies to, and when the rollout halts.

Compared are the pods that the policy changed, of workloads in the share, with all other GPU pods. Halting only costs
savings, so it needs no statistical proof: exceeding the admin's threshold is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

import msgspec

from webhook.model.bounded_cache import request_cache
from webhook.model.pod_outcomes import PodOutcome

MINUTE = 60
PENDING_GRACE_SECONDS = 300
"""Time a pod may wait for a node before it counts as pending, because an autoscaler needs time."""


class RolloutHalt(NamedTuple):
    """The condition reason and the message of a halted rollout."""

    reason: str
    message: str


class _PodGroup(NamedTuple):
    """A number of pods, and how many of them were harmed."""

    harmed: int
    pods: int

    def __str__(self) -> str:
        return f"{self.harmed} of {self.pods}"


class HaltThresholds(msgspec.Struct, frozen=True):
    """Thresholds at which a rollout halts.

    Attributes:
        oom, evictions, pending: Percentage points by which the share may exceed the rest; None: not evaluated.
        window_minutes: How long an event counts.
    """

    oom: int | None
    evictions: int | None
    pending: int | None
    window_minutes: int


class Rollout(msgspec.Struct, frozen=True):
    """The share of workloads that a policy applies to.

    Attributes:
        percent: Percentage of the workloads, 0 to 100.
        seed: Selects a different set of workloads.
        halt_thresholds: None if the rollout never halts.
    """

    percent: int
    seed: str
    halt_thresholds: HaltThresholds | None = None

    def includes(self, namespace: str, workload: str) -> bool:
        """Return whether a workload is in the share: the same on every replica, and kept when the share grows."""
        return _rollout_bucket(self.seed, namespace, workload) < self.percent


@request_cache(4096)
def _rollout_bucket(seed: str, namespace: str, workload: str) -> int:
    """Return the workload's bucket, 0 to 99."""
    return int.from_bytes(sha256(f"{seed}\0{namespace}\0{workload}".encode()).digest()[:8]) % 100


def find_halt(
    policy: str, rollout: Rollout, outcomes: Iterable[PodOutcome], since: float, now: float
) -> RolloutHalt | None:
    """Return why to halt a rollout, or None to continue.

    Args:
        policy: The policy's name.
        outcomes: Outcomes of all GPU pods, including deleted ones.
        since: When this rollout began, in seconds since 1970; earlier events do not count.
        now: The current time, in seconds since 1970.
    """
    thresholds = rollout.halt_thresholds
    if thresholds is None:
        return None
    minutes = thresholds.window_minutes
    start = max(since, now - minutes * MINUTE)
    share: list[PodOutcome] = []
    rest: list[PodOutcome] = []
    for pod in outcomes:
        finished = pod.ended or pod.deleted
        if not finished or finished >= start:
            in_share = policy in pod.policies and rollout.includes(pod.namespace, pod.workload)
            (share if in_share else rest).append(pod)

    def is_pending(pod: PodOutcome) -> bool:
        return bool(pod.pending) and not pod.deleted and since <= pod.pending <= now - PENDING_GRACE_SECONDS

    checks = (
        ("OutOfMemory", "were OOMKilled", thresholds.oom, lambda pod: pod.oom_killed >= start),
        ("Evictions", "were evicted", thresholds.evictions, lambda pod: pod.evicted >= start),
        ("Pending", "are pending", thresholds.pending, is_pending),
    )
    for reason, verb, points, is_harmed in checks:
        share_group, rest_group = (_PodGroup(sum(map(is_harmed, group)), len(group)) for group in (share, rest))
        if points is not None and _exceeds_rate(share_group, rest_group, points):
            counts = f"{share_group} pods in the share {verb} within {minutes} min, and {rest_group} other pods"
            return RolloutHalt(reason, f"{counts}; the allowed difference is {points} percentage points")
    return None


def _exceeds_rate(share_group: _PodGroup, rest_group: _PodGroup, points: int) -> bool:
    """Return whether the rate exceeds the other by more than the points. In integers: a/b > c/d + p/100."""
    if not share_group.harmed:
        return False
    pods = max(1, rest_group.pods)
    return 100 * share_group.harmed * pods > (100 * rest_group.harmed + points * pods) * share_group.pods
