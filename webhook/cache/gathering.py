"""From the objects of a snapshot to the view: who holds what on which node, and what quotas have counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from webhook.cache.stored import stored_limit_range, stored_quota
from webhook.model.claims import DeviceClass, ResourceClaimTemplate, classes_of
from webhook.model.cluster import ClusterView, Room
from webhook.model.effective import effective_requests
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.lines import Line, line_of
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pods import DEFAULT_NAMESPACE, Pod, name_of
from webhook.model.quantity import NANO

FINISHED = frozenset({"Succeeded", "Failed"})
"""Phases of pods that hold nothing any more."""


def view_of(
    nodes: Sequence[Node],
    namespaces: Iterable[Namespace],
    limit_ranges: Iterable[LimitRange],
    quotas: Iterable[ResourceQuota],
    pods: Iterable[Pod],
    claim_templates: Iterable[ResourceClaimTemplate] = (),
    device_classes: Iterable[DeviceClass] = (),
) -> ClusterView:
    """The view that these objects make. It may lack namespaces, for files often do."""
    fleet = Fleet(nodes)
    active: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        if pod.status.phase not in FINISHED:
            active[namespace_of(pod)].append(pod)

    by_namespace: defaultdict[str, list[LimitRange]] = defaultdict(list)
    for limit_range in limit_ranges:
        by_namespace[namespace_of(limit_range)].append(stored_limit_range(limit_range))
    counted: defaultdict[str, list[ResourceQuota]] = defaultdict(list)
    for quota in quotas:
        counted[namespace_of(quota)].append(stored_quota(quota, active[namespace_of(quota)]))
    templates: defaultdict[str, list[ResourceClaimTemplate]] = defaultdict(list)
    for template in claim_templates:
        templates[namespace_of(template)].append(template)
    return ClusterView(
        fleet,
        rooms=rooms(fleet.nodes, (pod for some in active.values() for pod in some)),
        namespaces={namespace.metadata.name: namespace for namespace in namespaces},
        limit_ranges={name: tuple(found) for name, found in by_namespace.items()},
        claim_templates=templates,
        device_classes=classes_of(device_classes),
        lines={name: _lines(some) for name, some in active.items()},
        quotas={name: tuple(found) for name, found in counted.items()},
    )


def _lines(pods: Iterable[Pod]) -> dict[str, Line]:
    """What pods of one namespace hold, by name; those that have none yet are told apart by a number."""
    return {pod.metadata.name or f"{name_of(pod)} {i}": line_of(pod) for i, pod in enumerate(pods)}


def namespace_of(item: LimitRange | ResourceQuota | Pod | ResourceClaimTemplate) -> str:
    """The namespace of an object; files leave "default" out."""
    return item.metadata.namespace or DEFAULT_NAMESPACE


def rooms(nodes: Iterable[FleetNode], pods: Iterable[Pod]) -> dict[str, Room]:
    """What is free on each node, by name, after the pods that are bound to it.

    Args:
        nodes: The nodes.
        pods: Pods that hold resources; those bound to no node hold none yet.
    """
    held: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    count: Counter[str] = Counter()
    for pod in pods:
        if pod.spec.node_name:
            count[pod.spec.node_name] += 1
            on_node = held[pod.spec.node_name]
            for resource, amount in effective_requests(pod).items():
                on_node[resource] += amount
    return {node.name: room_of(node, held.get(node.name, {}), count[node.name]) for node in nodes}


def room_of(node: FleetNode, held: Mapping[str, int], pods: int) -> Room:
    """What is left of a node; one that takes no more pods has no GPU to give."""
    if node.pods and pods >= node.pods:
        return Room(cpu_milli=0, memory=0, gpus=dict.fromkeys(node.gpus, 0), full=True)
    return Room(
        cpu_milli=node.cpu_milli - _up(held.get("cpu", 0), NANO // 1000),
        memory=node.memory - _up(held.get("memory", 0), NANO),
        gpus={name: max(0, units - _up(held.get(name, 0), NANO)) for name, units in node.gpus.items()},
    )


def _up(amount: int, unit: int) -> int:
    return -(-amount // unit)
