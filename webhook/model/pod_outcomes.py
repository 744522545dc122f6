"""Outcomes of GPU pods after admission, to compare two groups, and the pod status that they are read from."""

from __future__ import annotations

from datetime import datetime

import msgspec

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import PodClaimStatus


class ContainerStateTerminated(ApiStruct, frozen=True):
    """Termination of a container."""

    reason: str = ""
    finished_at: datetime | None = None


class ContainerState(ApiStruct, frozen=True):
    """A container's state; only termination is read."""

    terminated: ContainerStateTerminated | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """A container, now and before its last restart."""

    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(ApiStruct, frozen=True):
    """One condition."""

    type: str = ""
    status: str = ""
    reason: str = ""
    last_transition_time: datetime | None = None


class FullPodStatus(ApiStruct, frozen=True):
    """The part of a pod's status that shows its outcome."""

    phase: str = ""
    reason: str = ""
    start_time: datetime | None = None
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()


class PodOutcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one pod after admission. Times are seconds since 1970; 0: it did not happen.

    Attributes:
        workload: The workload that a rollout counts it for.
        policies: Names of the policies that changed it.
        oom_killed: When the kernel last killed one of its containers for its memory.
        evicted: When it was evicted.
        pending: Since when no node fits.
        ended: When its last container terminated.
        deleted: When it was deleted.
    """

    namespace: str
    workload: str
    policies: tuple[str, ...]
    oom_killed: float = 0
    evicted: float = 0
    pending: float = 0
    ended: float = 0
    deleted: float = 0
