"""GPU pods and what becomes of them, for as long as a rollout is watched.

Unlike the view's pods these are all of them, also those that wait for a node or have failed. Of each a line is kept;
of one that is gone, for as long as any rollout may look back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from webhook.cache.gathering import FINISHED
from webhook.kube.watching import Resource
from webhook.model.outcomes import Outcome
from webhook.model.pods import Metadata, PodSpec, Resources
from webhook.model.pods import Pod as WholePod
from webhook.model.podstatus import ContainerStatus, FullStatus
from webhook.model.quantity import whole
from webhook.model.read import Read
from webhook.model.records import DECISION, decision_record
from webhook.model.resources import gpu_resource
from webhook.model.workloads import rolled_out_as

LOOK_BACK_SECONDS = 24 * 3600
MOST_GONE = 50_000
OUT_OF_MEMORY = "OOMKilled"
GATED = "SchedulingGated"


class SlimContainer(Read, frozen=True):
    """What a container asks for."""

    name: str = ""
    resources: Resources = Resources()


class SlimSpec(Read, frozen=True):
    """The containers of a pod."""

    containers: tuple[SlimContainer, ...] = ()
    init_containers: tuple[SlimContainer, ...] = ()


class DatedMetadata(Metadata, frozen=True):
    """Metadata with the moments at which the pod was created and is to be gone."""

    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class Pod(Read, frozen=True):
    """A pod with what became of it."""

    metadata: DatedMetadata
    spec: SlimSpec = SlimSpec()
    status: FullStatus = FullStatus()


PODS = Resource("pods of rollouts", "/api/v1/pods", Pod)


class Outcomes:
    """Written by one watch, read by whoever halts rollouts."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._here: dict[str, Outcome] = {}
        self._coming: dict[str, Outcome] | None = None
        self._gone: dict[str, Outcome] = {}

    def all(self) -> Iterable[Outcome]:
        """Pods that are there and pods that were."""
        yield from self._here.values()
        yield from self._gone.values()

    # What the watch writes.

    def begin(self) -> None:
        """A list begins."""
        self._coming = {}

    def put(self, pod: Pod) -> None:
        """A pod is there."""
        outcome, key = outcome_of(pod), _key(pod)
        if outcome is not None:
            items = self._here if self._coming is None else self._coming
            items[key] = self._after(self._here.get(key), outcome)

    def remove(self, pod: Pod) -> None:
        """A pod is gone. What its last words say of it counts."""
        if self._coming is not None:
            self._coming.pop(_key(pod), None)
            return
        self.put(pod)
        outcome = self._here.pop(_key(pod), None)
        if outcome is not None:
            self._bury(_key(pod), outcome)

    def swap(self) -> None:
        """The list is whole. What was there and is not in it was deleted meanwhile."""
        before, self._here, self._coming = self._here, self._coming or {}, None
        for key, outcome in before.items():
            if key not in self._here:
                self._bury(key, outcome)

    def _after(self, before: Outcome | None, outcome: Outcome) -> Outcome:
        """With what its status no longer tells: it has the last two ends of a container alone."""
        if before is None:
            return outcome
        oom, pending = max(before.oom, outcome.oom), self._waiting(before, outcome)
        return msgspec.structs.replace(outcome, oom=oom, pending=pending)

    def _waiting(self, before: Outcome, outcome: Outcome) -> float:
        """It waits from when it was seen to: the condition of one that was gated keeps an older time."""
        if not outcome.pending:
            return 0
        return max(before.pending or self._clock().timestamp(), outcome.pending)

    def _bury(self, key: str, outcome: Outcome) -> None:
        now = self._clock().timestamp()
        self._gone[key] = msgspec.structs.replace(outcome, gone=now)
        oldest = next(iter(self._gone))
        while len(self._gone) > MOST_GONE or self._gone[oldest].gone < now - LOOK_BACK_SECONDS:
            del self._gone[oldest]
            oldest = next(iter(self._gone))


def outcome_of(pod: Pod) -> Outcome | None:
    """What became of a pod; None for one without GPUs."""
    asking = {one.name for one in (*pod.spec.containers, *pod.spec.init_containers) if _asks(one)}
    if not asking:
        return None
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    record, ended = decision_record(pod.metadata.annotations.get(DECISION, "")), _ended(pod)
    return Outcome(
        namespace=pod.metadata.namespace,
        workload=rolled_out_as(WholePod(pod.metadata, PodSpec())),
        policies=record.acting if record else (),
        oom=max((_out_of_memory(status) for status in statuses if status.name in asking), default=0),
        evicted=_evicted(pod, ended),
        pending=_pending(pod),
        ended=ended,
    )


def _asks(container: SlimContainer) -> bool:
    return any(whole(amount) and gpu_resource(name) for name, amount in container.resources.limits.items())


def _out_of_memory(status: ContainerStatus) -> float:
    """When a container was last ended for its memory."""
    ends = [one.terminated for one in (status.state, status.last_state) if one.terminated is not None]
    return max((_seconds(end.finished_at) for end in ends if end.reason == OUT_OF_MEMORY), default=0)


def _ended(pod: Pod) -> float:
    """When it ended for good, as far as its status tells."""
    if pod.status.phase not in FINISHED:
        return 0
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    ends = [status.state.terminated for status in statuses if status.state.terminated is not None]
    return max((_seconds(end.finished_at) for end in ends), default=0) or _changed(pod)


def _evicted(pod: Pod, ended: float) -> float:
    """When it was: by its kubelet, or through the API's eviction or the scheduler (DisruptionTarget).

    One that had ended by then lost nothing: a drain clears it away with the others.
    """
    targets = [one for one in pod.status.conditions if one.type == "DisruptionTarget" and one.status == "True"]
    if targets:
        moment = _seconds(targets[0].last_transition_time)
        return moment if not ended or moment <= ended else 0
    return _changed(pod) if pod.status.reason == "Evicted" else 0


def _pending(pod: Pod) -> float:
    """Since when no node takes it; one behind a gate, or that is being deleted, is not even looked at."""
    if pod.status.phase != "Pending" or pod.metadata.deletion_timestamp is not None:
        return 0
    unscheduled = (one for one in pod.status.conditions if one.type == "PodScheduled" and one.status == "False")
    waits = (one for one in unscheduled if one.reason != GATED)
    return max((_seconds(one.last_transition_time) for one in waits), default=0)


def _changed(pod: Pod) -> float:
    """When its conditions last changed."""
    return max((_seconds(one.last_transition_time) for one in pod.status.conditions), default=_created(pod))


def _created(pod: Pod) -> float:
    return _seconds(pod.metadata.creation_timestamp)


def _seconds(moment: datetime | None) -> float:
    return moment.timestamp() if moment is not None else 0


def _key(pod: Pod) -> str:
    return pod.metadata.uid or f"{pod.metadata.namespace}/{pod.metadata.name}"
