"""What a new pod takes from nodes as it stands, before it is seen on one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from webhook.engine.asking import asked_by
from webhook.engine.reach import Reach
from webhook.model.cluster import ClusterView
from webhook.model.pods import Pod
from webhook.model.records import DECISION, decision_record


class Taken(NamedTuple):
    """Units of one GPU resource, and the mask of the nodes of which one will give them."""

    resource: str
    nodes: int
    units: int


def takes(pod: Pod, view: ClusterView) -> Iterator[Taken]:
    """What a pod will take that may land now.

    Left out is what no node has free that may take the pod, for it holds nothing while it waits; and what Rightslice
    gave it, by its record: that is assumed since then.
    """
    asked = asked_by(pod).totals
    if not asked:
        return
    record = decision_record(pod.metadata.annotations.get(DECISION, ""))
    given = record.offer if record else ""
    reach = Reach(view, pod, (), markers=False).nodes
    for resource, count in asked.items():
        nodes = view.with_room(resource, count, reach)
        if nodes and resource != given:
            yield Taken(resource, nodes, count)
