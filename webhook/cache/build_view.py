"""From the objects of a snapshot to the view: who holds what on which node, and what quotas have counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from webhook.cache.stored import with_quota_status
from webhook.model.claims import (
    ClaimContext,
    DeviceClass,
    ResourceClaimTemplate,
    claim_templates_by_name,
    device_classes_by_name,
)
from webhook.model.cluster_view import ClusterView, FreeResources
from webhook.model.defaulting import default_limit_range
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pod_resources import effective_requests
from webhook.model.pod_summary import PodSummary, summarize_pod
from webhook.model.pods import DEFAULT_NAMESPACE, Pod, pod_display_name
from webhook.model.quantity import NANO

Namespaced = TypeVar("Namespaced", LimitRange, ResourceQuota, Pod, ResourceClaimTemplate)

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases of pods that hold nothing any more."""


def build_view(
    nodes: Sequence[Node],
    namespaces: Iterable[Namespace],
    limit_ranges: Iterable[LimitRange],
    quotas: Iterable[ResourceQuota],
    pods: Iterable[Pod],
    claim_templates: Iterable[ResourceClaimTemplate] = (),
    device_classes: Iterable[DeviceClass] = (),
) -> ClusterView:
    """The view that these objects make. It may lack namespaces, for files often do."""
    fleet, classes = Fleet(nodes), device_classes_by_name(device_classes)
    active = group_by_namespace(pod for pod in pods if pod.status.phase not in FINISHED_PHASES)
    templates = group_by_namespace(claim_templates)

    def counted(space: str, quota: ResourceQuota) -> ResourceQuota:
        return with_quota_status(
            quota, active.get(space, ()), ClaimContext(claim_templates_by_name(templates.get(space, ())), classes)
        )

    return ClusterView(
        fleet,
        rooms=free_resources_by_node(fleet.nodes, (pod for some in active.values() for pod in some)),
        namespaces={namespace.metadata.name: namespace for namespace in namespaces},
        limit_ranges={
            name: tuple(map(default_limit_range, some)) for name, some in group_by_namespace(limit_ranges).items()
        },
        claim_templates=templates,
        device_classes=classes,
        lines={name: _summarize_pods(some) for name, some in active.items()},
        quotas={
            name: tuple(counted(name, quota) for quota in some) for name, some in group_by_namespace(quotas).items()
        },
    )


def group_by_namespace(found: Iterable[Namespaced]) -> Mapping[str, list[Namespaced]]:
    """Objects by their namespace."""
    groups: dict[str, list[Namespaced]] = {}
    for each in found:
        groups.setdefault(object_namespace(each), []).append(each)
    return groups


def _summarize_pods(pods: Iterable[Pod]) -> dict[str, PodSummary]:
    """What pods of one namespace hold, by name; those that have none yet are told apart by a number."""
    return {pod.metadata.name or f"{pod_display_name(pod)} {i}": summarize_pod(pod) for i, pod in enumerate(pods)}


def object_namespace(item: LimitRange | ResourceQuota | Pod | ResourceClaimTemplate) -> str:
    """The namespace of an object; files leave "default" out."""
    return item.metadata.namespace or DEFAULT_NAMESPACE


def free_resources_by_node(nodes: Iterable[FleetNode], pods: Iterable[Pod]) -> dict[str, FreeResources]:
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
    return {node.name: free_resources_of_node(node, held.get(node.name, {}), count[node.name]) for node in nodes}


def free_resources_of_node(node: FleetNode, held: Mapping[str, int], pods: int) -> FreeResources:
    """What is left of a node; one that takes no more pods has no GPU to give."""
    gpus = {name: max(0, units - _divide_rounding_up(held.get(name, 0), NANO)) for name, units in node.gpus.items()}
    room = FreeResources(
        cpu_milli=node.cpu_milli - _divide_rounding_up(held.get("cpu", 0), NANO // 1000),
        memory=node.memory - _divide_rounding_up(held.get("memory", 0), NANO),
        gpus=gpus,
    )
    if node.pods and pods >= node.pods:
        return replace(room, gpus=dict.fromkeys(gpus, 0), full=True, stranded=gpus)
    return room


def _divide_rounding_up(amount: int, unit: int) -> int:
    return -(-amount // unit)
