"""What became of a pod: how its containers ended, and what its conditions say. Read only by who asks for that."""

from __future__ import annotations

from datetime import datetime

from webhook.model.read import ApiStruct


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
