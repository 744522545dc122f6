"""What pods held of GPUs, and from when to when, as far as pods that are still there tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from webhook.audit.bound import held_milli
from webhook.audit.manifests import Json
from webhook.cache.gathering import FINISHED, namespace_of
from webhook.engine.asking import asked_by
from webhook.model.fairness import Use
from webhook.model.fleet import Fleet
from webhook.model.pods import Metadata, Pod, PodSpec, PodStatus, without_nulls
from webhook.model.podstatus import FullStatus
from webhook.model.read import Read
from webhook.policy.fairness import NAMESPACE


class HeldPod(Read, frozen=True):
    """A pod with what became of it."""

    metadata: Metadata
    spec: PodSpec
    status: FullStatus = FullStatus()

    @property
    def pod(self) -> Pod:
        """The pod."""
        return Pod(self.metadata, self.spec, PodStatus(self.status.phase))


def uses_of(pods: Iterable[Json], fleet: Fleet, by: str, skip: Callable[[str], None]) -> Iterator[Use]:
    """The use of each pod that has a node which is there, and says when it began. Others hold nothing that counts.

    Args:
        pods: Pods as the API has them, those that ended too.
        fleet: The nodes: what slices and shares weigh there.
        by: "namespace", or the label that names a group.
        skip: Is told why a pod that cannot be read is not counted.
    """
    for data in pods:
        try:
            held = msgspec.convert(without_nulls(data), HeldPod)
        except (msgspec.ValidationError, RecursionError) as error:
            skip(f"pod {_name(data)} is not counted: {error}")
            continue
        if (use := use_of(held, fleet, by)) is not None:
            yield use


def _name(data: Json) -> str:
    metadata = data.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return f"{known.get('namespace', 'default')}/{known.get('name', '(no name)')}"


def use_of(held: HeldPod, fleet: Fleet, by: str) -> Use | None:
    """The same of one pod; None for one that holds nothing that counts."""
    start, node = held.status.start_time, held.spec.node_name
    if start is None or node not in fleet.by_name:
        return None
    milli = held_milli(asked_by(held.pod).totals, node, fleet)
    return Use(group_of(held.pod, by), milli, start.timestamp(), _end(held.status)) if milli else None


def group_of(pod: Pod, by: str) -> str:
    """Whose use a pod's is: its namespace, or the value of a label; "" where it has none."""
    return namespace_of(pod) if by == NAMESPACE else pod.metadata.labels.get(by, "")


def _end(status: FullStatus) -> float:
    """When it ended; 0: it has not. One that ended and says not when held nothing for long: its start counts."""
    if status.phase not in FINISHED:
        return 0
    ends = [one.state.terminated.finished_at for one in status.container_statuses if one.state.terminated]
    known = [end.timestamp() for end in ends if end is not None]
    return max(known, default=status.start_time.timestamp() if status.start_time else 0)
