"""What became of GPU pods after they were admitted: enough of it to compare two groups of them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from webhook.model.api_struct import ApiStruct


class ContainerStateTerminated(ApiStruct, frozen=True):
    """How a container ended."""

    reason: str = ""
    finished_at: datetime | None = None


class ContainerState(ApiStruct, frozen=True):
    """A container's state, as far as it ended."""

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
    """The part of a pod's status that says what became of it."""

    phase: str = ""
    reason: str = ""
    start_time: datetime | None = None
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


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
