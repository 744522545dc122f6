"""Record the outcomes of GPU pods (killed, evicted, unschedulable), to halt rollouts that do harm.

Unlike the cluster view it includes failed pods, and deleted ones for as long as any rollout may look back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from webhook.cache.stored_objects import FINISHED_PHASES
from webhook.kube.reflector import WatchedResource
from webhook.model.annotations import DECISION_ANNOTATION, parse_decision_record
from webhook.model.api_struct import ApiStruct
from webhook.model.gpu_resources import may_take_gpus
from webhook.model.pod_outcomes import ContainerStatus, FullPodStatus, PodOutcome
from webhook.model.pods import ObjectMeta, PodSpec, ResourceRequirements
from webhook.model.pods import Pod as WholePod
from webhook.model.quantity import parse_whole_number
from webhook.model.workloads import rollout_workload

LOOK_BACK_SECONDS = 24 * 3600
MAX_DELETED_PODS = 50_000
OUT_OF_MEMORY = "OOMKilled"
SCHEDULING_GATED = "SchedulingGated"


class SlimContainer(ApiStruct, frozen=True):
    """Requests of a container."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()


class SlimSpec(ApiStruct, frozen=True):
    """The containers of a pod."""

    containers: tuple[SlimContainer, ...] = ()
    init_containers: tuple[SlimContainer, ...] = ()


class DatedMetadata(ObjectMeta, frozen=True):
    """Metadata with the times of creation and deletion."""

    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class OutcomePod(ApiStruct, frozen=True):
    """A pod with its full status."""

    metadata: DatedMetadata
    spec: SlimSpec = SlimSpec()
    status: FullPodStatus = FullPodStatus()


PODS = WatchedResource("rollout-pods", "/api/v1/pods", OutcomePod)


class OutcomeStore:
    """Outcomes by pod; the store of one reflector."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._present: dict[str, PodOutcome] = {}
        self._incoming: dict[str, PodOutcome] | None = None
        self._deleted: dict[str, PodOutcome] = {}

    def all(self) -> Iterable[PodOutcome]:
        """Yield the outcomes of existing and deleted pods."""
        yield from self._present.values()
        yield from self._deleted.values()

    # Written by the reflector.

    def begin(self) -> None:
        """Start a list."""
        self._incoming = {}

    def upsert(self, pod: OutcomePod) -> None:
        """Store a pod."""
        outcome, key = read_outcome(pod), _outcome_key(pod)
        if outcome is not None:
            items = self._present if self._incoming is None else self._incoming
            items[key] = self._with_earlier_events(self._present.get(key), outcome)

    def remove(self, pod: OutcomePod) -> None:
        """Record a deletion, with the pod's last status."""
        if self._incoming is not None:
            self._incoming.pop(_outcome_key(pod), None)
            return
        self.upsert(pod)
        outcome = self._present.pop(_outcome_key(pod), None)
        if outcome is not None:
            self._record_deletion(_outcome_key(pod), outcome)

    def swap(self) -> None:
        """Replace everything by the list; pods that are not in it were deleted meanwhile."""
        before, self._present, self._incoming = self._present, self._incoming or {}, None
        for key, outcome in before.items():
            if key not in self._present:
                self._record_deletion(key, outcome)

    def _with_earlier_events(self, before: PodOutcome | None, outcome: PodOutcome) -> PodOutcome:
        """Keep earlier events: a status has only the last two terminations of a container."""
        if before is None:
            return outcome
        pending = outcome.pending
        if pending:  # since it was first observed: the condition of a pod that was gated keeps an older time
            pending = max(before.pending or self._clock().timestamp(), pending)
        oom_killed = max(before.oom_killed, outcome.oom_killed)
        return msgspec.structs.replace(outcome, oom_killed=oom_killed, pending=pending)

    def _record_deletion(self, key: str, outcome: PodOutcome) -> None:
        now = self._clock().timestamp()
        self._deleted[key] = msgspec.structs.replace(outcome, deleted=now)
        oldest = next(iter(self._deleted))
        while len(self._deleted) > MAX_DELETED_PODS or self._deleted[oldest].deleted < now - LOOK_BACK_SECONDS:
            del self._deleted[oldest]
            oldest = next(iter(self._deleted))


def read_outcome(pod: OutcomePod) -> PodOutcome | None:
    """Return the outcome of a pod; None for a pod without GPUs."""
    limits = [(each.name, each.resources.limits) for each in (*pod.spec.containers, *pod.spec.init_containers)]
    gpu_containers = {
        container
        for container, amounts in limits
        if any(parse_whole_number(amount) and may_take_gpus(name) for name, amount in amounts.items())
    }
    if not gpu_containers:
        return None
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    record, ended = parse_decision_record(pod.metadata.annotations.get(DECISION_ANNOTATION, "")), _finished_at(pod)
    return PodOutcome(
        namespace=pod.metadata.namespace,
        workload=rollout_workload(WholePod(pod.metadata, PodSpec())),
        policies=record.changing_policies if record else (),
        oom_killed=max((_oom_killed_at(status) for status in statuses if status.name in gpu_containers), default=0),
        evicted=_evicted_at(pod, ended),
        pending=_unschedulable_since(pod),
        ended=ended,
    )


def _oom_killed_at(status: ContainerStatus) -> float:
    ends = [one.terminated for one in (status.state, status.last_state) if one.terminated is not None]
    return max((_seconds_or_zero(end.finished_at) for end in ends if end.reason == OUT_OF_MEMORY), default=0)


def _finished_at(pod: OutcomePod) -> float:
    if pod.status.phase not in FINISHED_PHASES:
        return 0
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    ends = [status.state.terminated for status in statuses if status.state.terminated is not None]
    return max((_seconds_or_zero(end.finished_at) for end in ends), default=0) or _last_condition_change(pod)


def _evicted_at(pod: OutcomePod, ended: float) -> float:
    """Return when the pod was evicted: by the kubelet, the eviction API, or the scheduler (DisruptionTarget).

    A pod that had finished before does not count: a drain removes it with the others.
    """
    targets = [one for one in pod.status.conditions if one.type == "DisruptionTarget" and one.status == "True"]
    if targets:
        moment = _seconds_or_zero(targets[0].last_transition_time)
        return moment if not ended or moment <= ended else 0
    return _last_condition_change(pod) if pod.status.reason == "Evicted" else 0


def _unschedulable_since(pod: OutcomePod) -> float:
    """Return since when a pod is unschedulable. Gated pods and pods being deleted are not scheduled at all."""
    if pod.status.phase != "Pending" or pod.metadata.deletion_timestamp is not None:
        return 0
    unscheduled = (one for one in pod.status.conditions if one.type == "PodScheduled" and one.status == "False")
    waits = (one for one in unscheduled if one.reason != SCHEDULING_GATED)
    return max((_seconds_or_zero(one.last_transition_time) for one in waits), default=0)


def _last_condition_change(pod: OutcomePod) -> float:
    changes = [_seconds_or_zero(one.last_transition_time) for one in pod.status.conditions]
    return max(changes, default=_seconds_or_zero(pod.metadata.creation_timestamp))


def _seconds_or_zero(moment: datetime | None) -> float:
    return moment.timestamp() if moment is not None else 0


def _outcome_key(pod: OutcomePod) -> str:
    return pod.metadata.uid or f"{pod.metadata.namespace}/{pod.metadata.name}"
