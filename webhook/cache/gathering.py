"""From the objects of a snapshot to the view: who holds what on which node, and what quotas have counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from webhook.cache.stored import stored_limit_range, stored_quota
from webhook.model.claims import Claiming, DeviceClass, ResourceClaimTemplate, classes_of, templates_of
from webhook.model.cluster import ClusterView, Room
from webhook.model.effective import effective_requests
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.lines import Line, line_of
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pods import DEFAULT_NAMESPACE, Pod, name_of
from webhook.model.quantity import NANO

Namespaced = TypeVar("Namespaced", LimitRange, ResourceQuota, Pod, ResourceClaimTemplate)

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
    fleet, classes = Fleet(nodes), classes_of(device_classes)
    active = by_namespace(pod for pod in pods if pod.status.phase not in FINISHED)
    templates = by_namespace(claim_templates)

    def counted(space: str, quota: ResourceQuota) -> ResourceQuota:
        return stored_quota(quota, active.get(space, ()), Claiming(templates_of(templates.get(space, ())), classes))

    return ClusterView(
        fleet,
        rooms=rooms(fleet.nodes, (pod for some in active.values() for pod in some)),
        namespaces={namespace.metadata.name: namespace for namespace in namespaces},
        limit_ranges={name: tuple(map(stored_limit_range, some)) for name, some in by_namespace(limit_ranges).items()},
        claim_templates=templates,
        device_classes=classes,
        lines={name: _lines(some) for name, some in active.items()},
        quotas={name: tuple(counted(name, quota) for quota in some) for name, some in by_namespace(quotas).items()},
    )


def by_namespace(found: Iterable[Namespaced]) -> Mapping[str, list[Namespaced]]:
    """Objects by their namespace."""
    groups: dict[str, list[Namespaced]] = {}
    for each in found:
        groups.setdefault(namespace_of(each), []).append(each)
    return groups


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
    gpus = {name: max(0, units - _up(held.get(name, 0), NANO)) for name, units in node.gpus.items()}
    room = Room(
        cpu_milli=node.cpu_milli - _up(held.get("cpu", 0), NANO // 1000),
        memory=node.memory - _up(held.get("memory", 0), NANO),
        gpus=gpus,
    )
    if node.pods and pods >= node.pods:
        return replace(room, gpus=dict.fromkeys(gpus, 0), full=True, stranded=gpus)
    return room


def _up(amount: int, unit: int) -> int:
    return -(-amount // unit)
