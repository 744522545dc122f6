"""What a new pod takes from nodes as it stands, before it is seen on one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from webhook.engine.asking import gpu_requests_of_pod
from webhook.engine.reach import FeasibleNodes
from webhook.model.cluster import ClusterView
from webhook.model.pods import Pod
from webhook.model.records import DECISION_ANNOTATION, parse_decision_record


class AssumedUsage(NamedTuple):
    """Units of one GPU resource, and the mask of the nodes of which one will give them."""

    resource: str
    nodes: int
    units: int


def assumed_usage(pod: Pod, view: ClusterView) -> Iterator[AssumedUsage]:
    """What a pod will take that may land now.

    Left out is what no node has free that may take the pod, for it holds nothing while it waits; and what Rightslice
    gave it, by its record: that is assumed since then.
    """
    asked = gpu_requests_of_pod(pod).totals
    if not asked:
        return
    record = parse_decision_record(pod.metadata.annotations.get(DECISION_ANNOTATION, ""))
    given = record.offer if record else ""
    reach = FeasibleNodes(view, pod, (), markers=False).nodes
    for resource, count in asked.items():
        nodes = view.with_room(resource, count, reach)
        if nodes and resource != given:
            yield AssumedUsage(resource, nodes, count)
