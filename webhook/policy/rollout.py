"""A rollout: which workloads a policy is enforced for while the others are only watched."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import msgspec

from webhook.model.pod_outcomes import PodOutcome

MINUTE = 60
PENDING_GRACE_SECONDS = 300
"""How long a pod may wait for a node before it counts as pending: an autoscaler takes its time."""


class RolloutHalt(NamedTuple):
    """Why a rollout is halted: a word for programs, and a sentence."""

    reason: str
    message: str


class _PodGroup(NamedTuple):
    """Some pods, and how many of them came to harm."""

    harmed: int
    pods: int

    def __str__(self) -> str:
        return f"{self.harmed} of {self.pods}"


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


def find_halt(
    policy: str, rollout: Rollout, outcomes: Iterable[PodOutcome], since: float, now: float
) -> RolloutHalt | None:
    """Why to halt a rollout; None: go on.

    Args:
        policy: Its policy's name.
        outcomes: Of GPU pods, those that are gone too.
        since: What happened before is not counted: the rollout was another one. Seconds since 1970.
        now: The moment, in the same unit.
    """
    on = rollout.halt_thresholds
    if on is None:
        return None
    start = max(since, now - on.window_minutes * MINUTE)
    share: list[PodOutcome] = []
    rest: list[PodOutcome] = []
    for one in outcomes:
        over = one.ended or one.deleted
        if not over or over >= start:
            (share if policy in one.policies and rollout.includes(one.namespace, one.workload) else rest).append(one)
    looked_at = (
        ("OutOfMemory", "were ended for their memory", on.oom, lambda one: one.oom_killed >= start),
        ("Evictions", "were evicted", on.evictions, lambda one: one.evicted >= start),
        ("Pending", "wait for a node", on.pending, lambda one: _is_pending_long(one, since, now)),
    )
    for reason, what, points, harmed in looked_at:
        ours, others = (_PodGroup(sum(map(harmed, group)), len(group)) for group in (share, rest))
        if points is not None and _exceeds_rate(ours, others, points):
            compared = f"{ours} pods in the share {what} within {on.window_minutes} min, {others} of the rest"
            return RolloutHalt(reason, f"{compared}; {points} percentage points more are allowed")
    return None


def _is_pending_long(one: PodOutcome, since: float, now: float) -> bool:
    """Does a pod wait for a node, for long, and since this rollout began?"""
    return bool(one.pending) and not one.deleted and since <= one.pending <= now - PENDING_GRACE_SECONDS


def _exceeds_rate(ours: _PodGroup, others: _PodGroup, points: int) -> bool:
    """By more than so many percentage points? In integers: a/b > c/d + p/100."""
    if not ours.harmed:
        return False
    pods = max(1, others.pods)
    return 100 * ours.harmed * pods > (100 * others.harmed + points * pods) * ours.pods
