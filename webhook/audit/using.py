"""What pods held of GPUs, and from when to when, as far as pods that are still there tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from webhook.audit.bound import held_milli
from webhook.audit.manifests import Json
from webhook.cache.gathering import FINISHED, namespace_of
from webhook.engine.asking import asked_by
from webhook.errors import ReviewError
from webhook.model.fairness import Use
from webhook.model.fleet import Fleet
from webhook.model.pods import pod_of, without_nulls
from webhook.model.podstatus import FullStatus
from webhook.policy.fairness import NAMESPACE


def uses_of(pods: Iterable[Json], fleet: Fleet, by: str) -> Iterator[Use]:
    """The use of each pod that has a node which is there, and says when it began. Others hold nothing that counts.

    Args:
        pods: Pods as the API has them, those that ended too.
        fleet: The nodes: what slices and shares weigh there.
        by: "namespace", or the label that names a group.
    """
    for data in pods:
        try:
            pod = pod_of(data)
            status = msgspec.convert(without_nulls(data.get("status") or {}), FullStatus)
        except (ReviewError, msgspec.ValidationError):
            continue
        milli = held_milli(asked_by(pod).totals, pod.spec.node_name, fleet)
        if milli and status.start_time is not None and pod.spec.node_name in fleet.by_name:
            group = namespace_of(pod) if by == NAMESPACE else pod.metadata.labels.get(by, "")
            yield Use(group, milli, status.start_time.timestamp(), _end(status))


def _end(status: FullStatus) -> float:
    """When it ended; 0: it has not. One that ended and says not when held nothing for long: its start counts."""
    if status.phase not in FINISHED:
        return 0
    ends = [one.state.terminated.finished_at for one in status.container_statuses if one.state.terminated]
    known = [end.timestamp() for end in ends if end is not None]
    return max(known, default=status.start_time.timestamp() if status.start_time else 0)
