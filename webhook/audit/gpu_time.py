"""What pods held of GPUs, and from when to when, as far as pods that are still there tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from webhook.audit.object_files import Json
from webhook.cache.stored_objects import FINISHED_PHASES, object_namespace
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.model.api_struct import ApiStruct
from webhook.model.fairness import PodGpuTime
from webhook.model.fleet import Fleet
from webhook.model.pod_outcomes import FullPodStatus
from webhook.model.pods import ObjectMeta, Pod, PodSpec, PodStatus, without_nulls
from webhook.model.pools import unit_milli
from webhook.policy.fair_share import BY_NAMESPACE

START_CONDITIONS = ("Initialized", "PodReadyToStartContainers")
"""Conditions that turn true before the first container of a pod starts."""


class DeletableMetadata(ObjectMeta, frozen=True):
    """Metadata with what says that a pod is to go."""

    deletion_timestamp: datetime | None = None


class PodLifetime(ApiStruct, frozen=True):
    """A pod with what became of it."""

    metadata: DeletableMetadata
    spec: PodSpec
    status: FullPodStatus = FullPodStatus()

    @property
    def pod(self) -> Pod:
        """The pod."""
        return Pod(self.metadata, self.spec, PodStatus(self.status.phase))


def gpu_time_of_pods(pods: Iterable[Json], fleet: Fleet, by: str, skip: Callable[[str], None]) -> Iterator[PodGpuTime]:
    """The use of each pod that has a node which is there, and says when it began. Others hold nothing that counts.

    Args:
        pods: Pods as the API has them, those that ended too.
        fleet: The nodes: what slices and shares weigh there.
        by: "namespace", or the label that names a group.
        skip: Is told why a pod is not counted: it cannot be read, or does not say when it ended.
    """
    for data in pods:
        try:
            held = msgspec.convert(without_nulls(data), PodLifetime)
        except (msgspec.ValidationError, RecursionError) as error:
            skip(f"pod {_pod_title(data)} is not counted: {error}")
            continue
        if (use := gpu_time_of_pod(held, fleet, by)) is not None:
            if _end_time(held) is None:
                skip(f"pod {_pod_title(data)} counts as having held nothing: it ended, and nothing in it says when")
            yield use


def _pod_title(data: Json) -> str:
    metadata = data.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return f"{known.get('namespace', 'default')}/{known.get('name', '(no name)')}"


def gpu_time_of_pod(held: PodLifetime, fleet: Fleet, by: str) -> PodGpuTime | None:
    """The same of one pod; None for one that holds nothing that counts.

    One that ended and says in no way when held nothing for long: its start counts.
    """
    start, node = held.status.start_time, held.spec.node_name
    if start is None or node not in fleet.by_name:
        return None
    milli = allocated_milli(gpu_requests_of_pod(held.pod).totals, node, fleet)
    end = _end_time(held)
    begin = start.timestamp()
    return PodGpuTime(fair_share_group(held.pod, by), milli, begin, begin if end is None else end) if milli else None


def fair_share_group(pod: Pod, by: str) -> str:
    """Whose use a pod's is: its namespace, or the value of a label; "" where it has none."""
    return object_namespace(pod) if by == BY_NAMESPACE else pod.metadata.labels.get(by, "")


def _end_time(held: PodLifetime) -> float | None:
    """When it ended; 0: it has not. None where nothing tells.

    Where containers do not all say when they ended, as those of an evicted pod or of a lost node, other signs count
    that are later than all that says it ran.
    """
    status = held.status
    if status.phase not in FINISHED_PHASES:
        return 0
    ended = [one.state.terminated for one in status.container_statuses if one.state.terminated]
    known = [one.finished_at.timestamp() for one in ended if one.finished_at is not None]
    if known and len(known) == len(ended):
        return max(known)
    ran = max(known, default=None)
    begun = max(
        [*known, *_timestamps(status.start_time), *_transition_times(status, "True", START_CONDITIONS)], default=0.0
    )
    return next((min(some) for signs in _end_signs(held) if (some := [sign for sign in signs if sign > begun])), ran)


def _end_signs(held: PodLifetime) -> Iterator[list[float]]:
    """What tells that a pod ended, the surest first. One that was never ready, or not for a while, may have run on."""
    status = held.status
    yield [
        *_transition_times(status, "True", ("DisruptionTarget",)),
        *_transition_times(status, "False", ("PodReadyToStartContainers",)),
    ]
    yield [
        *_transition_times(status, "False", ("Ready", "ContainersReady")),
        *_timestamps(held.metadata.deletion_timestamp),
    ]


def _transition_times(status: FullPodStatus, value: str, kinds: Iterable[str]) -> list[float]:
    """Since when conditions have this value."""
    found = (one.last_transition_time for one in status.conditions if one.type in kinds and one.status == value)
    return _timestamps(*found)


def _timestamps(*moments: datetime | None) -> list[float]:
    return [moment.timestamp() for moment in moments if moment is not None]


def bound_node(pod: Mapping[str, Any]) -> str:
    """The name of the node that a pod is bound to; "" for none."""
    spec = pod.get("spec")
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""


def allocated_milli(totals: Mapping[str, int], node: str, fleet: Fleet) -> int:
    """Thousandths of whole cards that a pod holds.

    A name that its node does not advertise, or a node that is not in the fleet, is priced as the name is
    anywhere: `nvidia.com/gpu` is a whole card.

    Args:
        totals: Units that the pod asks for, by resource name.
    """
    return sum(count * _unit_milli_on_node(name, node, fleet) for name, count in totals.items())


def _unit_milli_on_node(name: str, node: str, fleet: Fleet) -> int:
    position = fleet.by_name.get(node)
    if position is None:
        return unit_milli(name, fleet)
    there = [offer.gpu_milli for offer in fleet.by_resource.get(name, ()) if offer.nodes >> position & 1]
    return max(there, default=unit_milli(name, fleet))
