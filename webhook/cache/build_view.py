"""Build a `ClusterView`: from the objects of a snapshot, or from the indexes of a live cluster.

Compute the status of a quota that no controller has counted, as the quota controller's pod evaluator does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from webhook.cache.node_usage import POD_COUNT, NodeUsage
from webhook.cache.storage_index import build_storage
from webhook.cache.stored_objects import FINISHED_PHASES, object_namespace
from webhook.model.claims import (
    NO_CLAIMS,
    ClaimContext,
    DeviceClass,
    DeviceClasses,
    ResourceClaim,
    ResourceClaimTemplate,
    claim_templates_by_name,
    device_classes_by_name,
    is_filled_by_claims,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.daemon_kinds import DaemonKind, is_lasting_pod
from webhook.model.daemon_pods import DaemonPods
from webhook.model.defaulting import default_limit_range
from webhook.model.dra.device_pools import DevicePools
from webhook.model.dra.device_taint_rules import DeviceTaintRule
from webhook.model.dra.device_view import DeviceKind, build_device_view
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.filters.nominated_pods import bind_nominated
from webhook.model.filters.pod_ties import TieKey
from webhook.model.filters.pod_topology_spread import NO_PEERS, PeerSelectors
from webhook.model.fleet import Fleet, FleetNode, counts_names, kubelet_minor
from webhook.model.free_resources import UNLIMITED_PODS, FreeResources
from webhook.model.node_groups import NO_SOURCES, GroupSources
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota, ResourceQuotaStatus
from webhook.model.pod_classes import PriorityClass, RuntimeClass, summarize_pod_classes
from webhook.model.pod_resources import MANY_RESOURCES, effective_amount, effective_requests
from webhook.model.pod_summary import PodSummary, summarize_pod
from webhook.model.pods import Pod, QuantityText, pod_display_name
from webhook.model.quantity import NANO, format_nano
from webhook.model.queues import NO_QUEUES, KueueQueues
from webhook.model.quota_matching import has_scopes, quota_matches_pod, resource_of_quota_key
from webhook.model.quota_usage import PodSummaries, count_by_tie
from webhook.model.schedulers import NO_SCHEDULERS, Schedulers
from webhook.model.storage_objects import StorageObject
from webhook.model.storage_view import StorageObjects, VolumeUsers
from webhook.model.volcano_queues import NO_VOLCANO_QUEUES, VolcanoQueues
from webhook.model.waiting_pods import WaitingKind, waiting_kinds

Namespaced = TypeVar("Namespaced", LimitRange, ResourceQuota, Pod, ResourceClaimTemplate)


def build_view(
    nodes: Sequence[Node],
    namespaces: Iterable[Namespace],
    limit_ranges: Iterable[LimitRange],
    quotas: Iterable[ResourceQuota],
    pods: Iterable[Pod],
    claim_templates: Iterable[ResourceClaimTemplate] = (),
    device_classes: Iterable[DeviceClass] = (),
    runtime_classes: Iterable[RuntimeClass] = (),
    priority_classes: Iterable[PriorityClass] = (),
    storage: Iterable[StorageObject] = (),
    *,
    resource_slices: Iterable[ResourceSlice] = (),
    resource_claims: Iterable[ResourceClaim] = (),
    taint_rules: Sequence[DeviceTaintRule] = (),
    queues: KueueQueues = NO_QUEUES,
    volcano_queues: VolcanoQueues = NO_VOLCANO_QUEUES,
    group_sources: GroupSources = NO_SOURCES,
    schedulers: Schedulers = NO_SCHEDULERS,
    peers: PeerSelectors = NO_PEERS,
) -> ClusterView:
    """Build the view of a snapshot. Namespaces may be missing from it, as they often are from files."""
    fleet, device_classes, claim_templates = Fleet(nodes), tuple(device_classes), tuple(claim_templates)
    resource_claims = tuple(resource_claims)
    classes = device_classes_by_name(device_classes)
    active = group_by_namespace(pod for pod in pods if pod.status.phase not in FINISHED_PHASES)
    templates = group_by_namespace(claim_templates)
    names = counts_names(max(map(kubelet_minor, nodes), default=0))
    quotas_with_status: dict[str, tuple[ResourceQuota, ...]] = {}
    for name, some in group_by_namespace(quotas).items():
        claims = ClaimContext(claim_templates_by_name(templates.get(name, ())), classes, names)
        quotas_with_status[name] = tuple(with_quota_status(quota, active.get(name, ()), claims) for quota in some)
    free = free_resources_by_node(fleet.nodes, (bind_nominated(pod) for some in active.values() for pod in some))
    summaries = {name: _summarize_pods(some) for name, some in active.items()}
    view = ClusterView(
        fleet,
        free=free,
        namespaces={namespace.metadata.name: namespace for namespace in namespaces},
        limit_ranges={
            name: tuple(map(default_limit_range, some)) for name, some in group_by_namespace(limit_ranges).items()
        },
        claim_templates=templates,
        device_classes=classes,
        pods=summaries,
        ties=count_by_tie(pod for some in summaries.values() for pod in some.values()),
        waiting=Counter(kind for some in summaries.values() for pod in some.values() for kind in waiting_kinds(pod)),
        quotas=quotas_with_status,
    )
    view = view.with_storage(*build_storage(storage, (pod for some in active.values() for pod in some)))
    lasting = [pod for some in active.values() for pod in some if is_lasting_pod(pod)]
    hosts = {pod.spec.node_name for pod in lasting}
    view = view.with_lasting(free_resources_by_node((node for node in fleet.nodes if node.name in hosts), lasting))
    view = view.with_pod_classes(summarize_pod_classes(runtime_classes, priority_classes)).with_queues(queues)
    view = view.with_volcano_queues(volcano_queues)
    kinds = {DeviceKind.CLAIM: resource_claims, DeviceKind.TEMPLATE: claim_templates, DeviceKind.CLASS: device_classes}
    unlisted = [kind for kind, some in kinds.items() if not some]
    devices = build_device_view(resource_slices, resource_claims, device_classes, fleet, taint_rules, unlisted)
    view = view.with_devices(
        devices, {i: free[fleet.nodes[i].name] for i in nodes_beside_devices(devices.pools, fleet)}
    )
    view = view.with_daemons(_daemon_pods(summaries)).with_group_sources(group_sources)
    return view.with_schedulers(schedulers).with_peers(peers)


class BuiltView(NamedTuple):
    """A view, and the free resources in it by index of node, without those of nominated pods."""

    view: ClusterView
    free: list[FreeResources]


def build_live_view(
    nodes: Fleet | Sequence[Node],
    usage: NodeUsage,
    namespaces: Mapping[str, Namespace],
    limit_ranges: Mapping[str, Sequence[LimitRange]],
    quotas: Mapping[str, Sequence[ResourceQuota]],
    summaries: PodSummaries,
    claim_templates: Mapping[str, Sequence[ResourceClaimTemplate]],
    device_classes: DeviceClasses,
    ties: Mapping[TieKey, Mapping[str, int]],
    waiting: Mapping[WaitingKind, int],
    storage: tuple[StorageObjects, VolumeUsers],
) -> BuiltView:
    """Build the view of a live cluster.

    It may run in a thread: the only changing data it reads are single numbers in `usage`, and the caller then applies
    the changes on nodes since.

    Args:
        nodes: The nodes, or the fleet if no node changed.
        usage: Requests by node.
        namespaces, device_classes: By name.
        limit_ranges, quotas: By namespace, with the defaults and status of the API server.
        summaries: The active pods.
        claim_templates: By namespace.
        ties: Numbers of pods by what ties them to others and by the name of the node.
        waiting: Numbers of pods without a node.
        storage: The objects about storage, and the pods that use claims.
    """
    fleet = nodes if isinstance(nodes, Fleet) else Fleet(sorted(nodes, key=lambda node: node.metadata.name))
    free = [unreserved_on_node(node, usage) for node in fleet.nodes]
    view = ClusterView(
        fleet,
        free={node.name: resources for node, resources in zip(fleet.nodes, free, strict=True)},
        namespaces=namespaces,
        limit_ranges={name: tuple(found) for name, found in limit_ranges.items()},
        quotas={name: tuple(with_quota_status(quota, ()) for quota in found) for name, found in quotas.items()},
        claim_templates=claim_templates,
        device_classes=device_classes,
        pods=summaries,
        ties=ties,
        waiting=waiting,
        complete=True,
    )
    view = view.with_storage(*storage).with_lasting(
        {node.name: left for node in fleet.nodes if (left := free_beside_lasting(node, usage)) is not None}
    )
    view.storage.precompute()
    return BuiltView(view, free)


def group_by_namespace(objects: Iterable[Namespaced]) -> Mapping[str, list[Namespaced]]:
    """Return the objects of each namespace."""
    groups: dict[str, list[Namespaced]] = {}
    for each in objects:
        groups.setdefault(object_namespace(each), []).append(each)
    return groups


def _summarize_pods(pods: Iterable[Pod]) -> dict[str, PodSummary]:
    """Summarize the pods of one namespace by name; pods without a name get a number."""
    return {pod.metadata.name or f"{pod_display_name(pod)} {i}": summarize_pod(pod) for i, pod in enumerate(pods)}


def _daemon_pods(summaries: PodSummaries) -> DaemonPods:
    """Return the pods that new nodes run too."""
    nodes: dict[DaemonKind, set[str]] = {}
    for pod in (pod for some in summaries.values() for pod in some.values()):
        if pod.daemon is not None:
            nodes.setdefault(pod.daemon, set()).add(pod.node)
    return DaemonPods(nodes)


def free_resources_by_node(nodes: Iterable[FleetNode], pods: Iterable[Pod]) -> dict[str, FreeResources]:
    """Return what the active pods leave free on each node, by name. Pods without a node take nothing."""
    used: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    count: Counter[str] = Counter()
    for pod in pods:
        if pod.spec.node_name:
            count[pod.spec.node_name] += 1
            on_node = used[pod.spec.node_name]
            for resource, amount in effective_requests(pod).items():
                on_node[resource] += amount
    return {node.name: free_resources_of_node(node, used.get(node.name, {}), count[node.name]) for node in nodes}


def nodes_beside_devices(pools: DevicePools, fleet: Fleet) -> list[int]:
    """Return the nodes that publish devices and advertise no GPUs."""
    return [node for node in pools.nodes() if not fleet.nodes[node].gpus]


def free_resources_on_node(node: FleetNode, usage: NodeUsage) -> FreeResources:
    """Return what the pods of an index leave free on a node."""
    used = usage.on_node(node.name)
    return free_resources_of_node(node, used, used.get(POD_COUNT, 0))


def unreserved_on_node(node: FleetNode, usage: NodeUsage) -> FreeResources:
    """Return what the pods of an index leave free on a node, those that are nominated for it included."""
    used = usage.reserved_on_node(node.name)
    return free_resources_of_node(node, used, used.get(POD_COUNT, 0))


def free_beside_lasting(node: FleetNode, usage: NodeUsage) -> FreeResources | None:
    """Return what the pods that a node always has leave free; None if it has none of them."""
    used = usage.lasting_on_node(node.name)
    return free_resources_of_node(node, used, used[POD_COUNT]) if used else None


def free_resources_of_node(node: FleetNode, used: Mapping[str, int], pods: int) -> FreeResources:
    """Return what is left of a node, given the used nano-units; no GPU if it can take no more pods."""
    gpus = {name: max(0, units - _divide_rounding_up(used.get(name, 0), NANO)) for name, units in node.gpus.items()}
    free = FreeResources(
        cpu_milli=node.cpu_milli - _divide_rounding_up(used.get("cpu", 0), NANO // 1000),
        memory=node.memory - _divide_rounding_up(used.get("memory", 0), NANO),
        gpus=gpus,
        others={} if MANY_RESOURCES in used else {name: most - used.get(name, 0) for name, most in node.others.items()},
        pods=node.pods - pods if node.pods else UNLIMITED_PODS,
    )
    if node.pods and pods >= node.pods:
        return replace(free, gpus=dict.fromkeys(gpus, 0), full=True, stranded=gpus)
    return free


def _divide_rounding_up(amount: int, unit: int) -> int:
    return -(-amount // unit)


def with_quota_status(quota: ResourceQuota, pods: Sequence[Pod], claiming: ClaimContext = NO_CLAIMS) -> ResourceQuota:
    """Return the quota with a status; usage that was not counted yet is computed from the pods.

    Args:
        quota: The quota, from a cluster or from a file.
        pods: The active pods of its namespace.
        claiming: The templates and classes of their claims.
    """
    status = quota.status
    hard = status.hard or quota.spec.hard
    if status.used:
        return msgspec.structs.replace(quota, status=ResourceQuotaStatus(hard=hard, used=status.used))
    matching = [pod for pod in pods if quota_matches_pod(quota, pod)]
    claiming_pods = () if has_scopes(quota) else pods
    used: dict[str, QuantityText] = {
        key: format_nano(_used_by_pods(key, matching) + _used_by_claims(key, claiming_pods, claiming))
        for key in hard
        if resource_of_quota_key(key) or is_filled_by_claims(key, claiming.classes)
    }
    return msgspec.structs.replace(quota, status=ResourceQuotaStatus(hard=hard, used=used))


def _used_by_pods(key: str, pods: Sequence[Pod]) -> int:
    what = resource_of_quota_key(key)
    if what is None:
        return 0
    if not what.resource:
        return NANO * len(pods)
    return max(0, sum(effective_amount(pod, what.resource, limits=what.side == "limits") for pod in pods))


def _used_by_claims(key: str, pods: Sequence[Pod], claiming: ClaimContext) -> int:
    names = (claim.resource_claim_template_name for pod in pods for claim in pod.spec.resource_claims)
    found = (claiming.templates[name] for name in names if name in claiming.templates)
    return NANO * sum(claiming.charge(spec).get(key, 0) for spec in found)
