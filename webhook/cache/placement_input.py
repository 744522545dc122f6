"""Build the input of placement from the objects of a snapshot: nodes, free resources, GPUs, and the mix of pods."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from functools import reduce
from operator import itemgetter

import msgspec

from webhook.cache.build_view import free_resources_by_node, group_by_namespace
from webhook.cache.snapshot_objects import SnapshotObject, snapshot_groups, snapshot_peers, snapshot_schedulers
from webhook.cache.storage_index import build_storage
from webhook.cache.stored_objects import FINISHED_PHASES, creation_order, object_namespace
from webhook.model.claims import ClaimSpec, ResourceClaimTemplate, claim_templates_by_name
from webhook.model.cluster_view import NAMESPACE_NAME
from webhook.model.dra.device_view import NO_DEVICES, DeviceView
from webhook.model.filters.node_ports import HostPort, host_ports
from webhook.model.filters.node_resources_fit import PODS_RESOURCE, other_requests
from webhook.model.filters.nominated_pods import nominated_node, select_nominated
from webhook.model.filters.pod_ties import NO_CLUSTER_PODS, ClusterPods, index_cluster_pods
from webhook.model.filters.pod_topology_spread import NO_PEERS, PeerSelectors
from webhook.model.filters.volume_rejections import VolumeRejection
from webhook.model.filters.volumes import bind_volumes, filter_volumes
from webhook.model.fleet import Fleet
from webhook.model.free_resources import FreeResources
from webhook.model.gpu_node import GPUNode
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.node_groups import NO_SOURCES, GroupSources
from webhook.model.objects import Namespace, Node
from webhook.model.pod_classes import NO_POD_CLASSES, PodClasses, PriorityClass, RuntimeClass, summarize_pod_classes
from webhook.model.pod_resources import count_gpu_units, effective_requests
from webhook.model.pod_volumes import PodVolumes, pod_volumes
from webhook.model.pods import Pod, pod_key
from webhook.model.quantity import NANO, parse_nano_or_none
from webhook.model.schedulers import NO_SCHEDULERS, Schedulers
from webhook.model.storage_objects import StorageObject
from webhook.model.storage_view import StorageView
from webhook.placement.capacity import PodDemand
from webhook.placement.devices import devices_from_report, find_report_error
from webhook.placement.fragmentation.workload_mix import FLAT_MIX, WorkloadMix, mix_from_demands
from webhook.placement.nodes.device_plugin import PodGpuUnits, current_devices, multi_container_requests
from webhook.placement.nodes.pod_requirements import pod_requirements
from webhook.placement.nodes.snapshot import SchedulingSnapshot


class PlacementInput(msgspec.Struct, frozen=True):
    """A cluster to place pods in.

    Attributes:
        snapshot: The nodes.
        mix: Mix of the pods' requests for GPUs and shares; flat if they request none.
        profiles: Number of requests for each MIG profile.
        pods: The active pods in order of creation.
        others: Free nano-units by node of resources other than CPU, memory and GPUs.
        ports: Host ports in use, by node.
        tied_pods: The pods as affinity and spread between pods see them.
        storage: Claims and volumes, and the pods that use them.
        nominated: Those of the pods that are nominated for one of the nodes.
        classes: RuntimeClasses and PriorityClasses.
        schedulers: The rules of schedulers whose configuration is known.
        peers: What selects the pods that default topology spread counts.
        devices: Devices of ResourceSlices, and the claims that have them.
        claim_templates: Templates of claims, by namespace and name.
        group_sources: What is written about node groups.
    """

    snapshot: SchedulingSnapshot
    mix: WorkloadMix
    profiles: tuple[tuple[str, float], ...]
    pods: tuple[Pod, ...]
    others: Mapping[str, Mapping[str, int]] = {}
    ports: Mapping[str, Set[HostPort]] = {}
    tied_pods: ClusterPods = NO_CLUSTER_PODS
    storage: StorageView | None = None
    nominated: tuple[Pod, ...] = ()
    classes: PodClasses = NO_POD_CLASSES
    schedulers: Schedulers = NO_SCHEDULERS
    peers: PeerSelectors = NO_PEERS
    devices: DeviceView = NO_DEVICES
    claim_templates: Mapping[str, Mapping[str, ClaimSpec]] = {}
    group_sources: GroupSources = NO_SOURCES

    @property
    def served_by_classes(self) -> Set[str]:
        """Return the extended resources that device classes serve, on nodes that offer none of them."""
        return self.devices.class_by_resource.keys()

    def volume_rejections(self, pod: Pod) -> list[VolumeRejection] | None:
        """Return what excludes a pod's volumes from nodes; None if the snapshot has no claims and volumes."""
        uses, storage = pod_volumes(pod), self.storage
        if not uses:
            return []
        if storage is None or storage.objects.missing:
            return None
        return filter_volumes(object_namespace(pod), uses, storage)

    def with_nominated(self, priority: int | None) -> PlacementInput:
        """Return the cluster with the nominated pods bound that a pod of a priority yields to."""
        return reduce(PlacementInput.with_nominated_pod, select_nominated(self.nominated, priority), self)

    def with_nominated_pod(self, pod: Pod) -> PlacementInput:
        """Return the cluster after a nominated pod was bound. Claims that do not exist yet count for nothing."""
        node, storage, namespace = pod.spec.node_name, self.storage, object_namespace(pod)
        uses = [use for use in pod_volumes(pod) if storage is not None and storage.claim_of(namespace, use) is not None]
        bound = self.with_pod_bound(pod, node, tuple(uses))
        ports = {**self.ports, node: {*self.ports.get(node, ()), *host_ports(pod)}}
        return msgspec.structs.replace(bound, snapshot=_bind_in_snapshot(self.snapshot, pod), ports=ports)

    def with_pod_bound(self, pod: Pod, node: str, uses: PodVolumes) -> PlacementInput:
        """Return the cluster after a pod was bound to a node; CPU, memory, GPUs and host ports are left as they are.

        Args:
            uses: Its volume claims.
        """
        storage = self.storage
        return msgspec.structs.replace(
            self,
            others={**self.others, node: subtract_others(self.others.get(node, {}), pod)},
            tied_pods=self.tied_pods.with_pod_added(pod, node, self.snapshot.fleet),
            storage=bind_volumes(object_namespace(pod), uses, node, storage) if storage is not None else None,
        )


def build_placement_input(fleet: Fleet, objects: Iterable[SnapshotObject], devices: DeviceView) -> PlacementInput:
    """Build the input from a snapshot, whose pods also determine the mix.

    Args:
        fleet: The nodes.
        objects: The objects of the snapshot.
        devices: The devices and claims among them.
    """
    objects = tuple(objects)
    active = (item for item in objects if isinstance(item, Pod) and item.status.phase not in FINISHED_PHASES)
    pods = tuple(sorted(active, key=creation_order))
    reports = {item.metadata.name: item for item in objects if isinstance(item, GPUNode)}
    gpu_pods = GpuPods()
    for pod in pods:
        if pod.spec.node_name in reports:
            gpu_pods.add(pod)
    free: dict[str, FreeResources] = free_resources_by_node(fleet.nodes, pods)
    snapshot = build_scheduling_snapshot(fleet, free, reports.values(), gpu_pods)
    counter = PodMixCounter(snapshot)
    for pod in pods:
        counter.add(pod)
    others = _free_other_resources([item for item in objects if isinstance(item, Node)], pods)
    profiles = _mig_profile_counts(snapshot, pods)
    tied_pods = index_cluster_pods(pods, fleet, _namespace_labels(objects))
    storage = StorageView(fleet, *build_storage((item for item in objects if isinstance(item, StorageObject)), pods))
    ports = _host_ports_by_node(pods)
    runtime_classes = [item for item in objects if isinstance(item, RuntimeClass)]
    classes = summarize_pod_classes(runtime_classes, (item for item in objects if isinstance(item, PriorityClass)))
    nominated = tuple(pod for pod in pods if nominated_node(pod) in fleet.by_name)
    schedulers = snapshot_schedulers(objects)
    return PlacementInput(
        *(snapshot, counter.mix(), profiles, pods, others, ports, tied_pods, storage, nominated, classes, schedulers),
        peers=snapshot_peers(objects),
        devices=devices,
        claim_templates=_claim_templates(objects),
        group_sources=snapshot_groups(objects),
    )


def _claim_templates(objects: Iterable[SnapshotObject]) -> dict[str, Mapping[str, ClaimSpec]]:
    grouped = group_by_namespace(item for item in objects if isinstance(item, ResourceClaimTemplate))
    return {namespace: claim_templates_by_name(some) for namespace, some in grouped.items()}


def _bind_in_snapshot(snapshot: SchedulingSnapshot, pod: Pod) -> SchedulingSnapshot:
    position = snapshot.fleet.by_name[pod.spec.node_name]
    after = snapshot.with_pod(pod_requirements(pod, snapshot.fleet), position)
    free = after.free[position]
    left = free.pods - (snapshot.fleet.nodes[position].pods > 0)
    return after.with_free(position, msgspec.structs.replace(free, pods=left, full=left <= 0))


def subtract_others(free: Mapping[str, int], pod: Pod) -> dict[str, int]:
    """Return the free amounts of a node after a pod took what it requests of them."""
    taken = {**other_requests(pod), PODS_RESOURCE: NANO}
    return {name: amount - taken.get(name, 0) for name, amount in free.items()}


def _namespace_labels(objects: Iterable[SnapshotObject]) -> Callable[[str], Mapping[str, str]]:
    """Return the labels of namespaces by name; one that is not in the snapshot has only that of its name."""
    known = {each.metadata.name: each.metadata.labels for each in objects if isinstance(each, Namespace)}
    return lambda name: {**known.get(name, {}), NAMESPACE_NAME: name}


def _host_ports_by_node(pods: Iterable[Pod]) -> dict[str, set[HostPort]]:
    by_node: defaultdict[str, set[HostPort]] = defaultdict(set)
    for pod in pods:
        if ports := host_ports(pod):
            by_node[pod.spec.node_name] |= ports
    return dict(by_node)


class GpuPods:
    """Pods on nodes that hold GPUs of device plugins."""

    def __init__(self) -> None:
        self._found: defaultdict[str, list[tuple[tuple[str, str, str], str, PodGpuUnits]]] = defaultdict(list)

    def add(self, pod: Pod) -> None:
        """Add a pod, if it is on a node and holds GPUs."""
        units = count_gpu_units(effective_requests(pod).items()) if pod.spec.node_name else {}
        if units:
            found = creation_order(pod), pod_key(pod), PodGpuUnits(units, multi_container_requests(pod))
            self._found[pod.spec.node_name].append(found)

    def on_node(self, name: str) -> dict[str, PodGpuUnits]:
        """Return the GPUs that pods of a node hold, by "namespace/name", those of the oldest pod first."""
        return {key: units for _, key, units in sorted(self._found.get(name, ()), key=itemgetter(0))}

    def by_node(self) -> dict[str, dict[str, PodGpuUnits]]:
        """Return them by node."""
        return {name: self.on_node(name) for name in self._found}


def build_scheduling_snapshot(
    fleet: Fleet, free: Mapping[str, FreeResources], reports: Iterable[GPUNode], gpu_pods: GpuPods
) -> SchedulingSnapshot:
    """Return the nodes with their GPUs: by the agents' reports, updated with the pods, and by labels without a report.

    Args:
        free: Free resources by node.
        gpu_pods: The pods on nodes with a report, at least.
    """
    reports = list(reports)
    units = {node.name: node.gpus.get(WHOLE_GPU, 0) for node in fleet.nodes}
    usable = {node.metadata.name: (devices, node) for node in reports if (devices := devices_from_report(node))}
    unusable = {node.metadata.name: error for node in reports if (error := find_report_error(node))}
    devices_by_node = {
        name: current_devices(devices, node, gpu_pods.on_node(name), units.get(name, 0))
        for name, (devices, node) in usable.items()
    }
    return SchedulingSnapshot(fleet, free, devices_by_node, unusable)


def _free_other_resources(nodes: Iterable[Node], pods: Iterable[Pod]) -> dict[str, dict[str, int]]:
    free = {
        node.metadata.name: {
            name: parse_nano_or_none(amount) or 0
            for name, amount in node.status.allocatable.items()
            if name not in ("cpu", "memory") and not parse_gpu_resource(name)
        }
        for node in nodes
    }
    for pod in pods:
        if pod.spec.node_name in free:
            free[pod.spec.node_name] = subtract_others(free[pod.spec.node_name], pod)
    return free


class PodMixCounter:
    """Counts the demands of pods to get their workload mix; `MixEstimator` learns one from arrivals."""

    def __init__(self, snapshot: SchedulingSnapshot) -> None:
        self._snapshot = snapshot
        self._demands: Counter[PodDemand] = Counter()

    def add(self, pod: Pod) -> None:
        """Count one pod."""
        fleet = self._snapshot.fleet
        node = fleet.by_name.get(pod.spec.node_name, -1)
        demand = self._snapshot.pod_demand_anywhere(pod_requirements(pod, fleet), node)
        if demand is not None:
            self._demands[demand] += 1

    def mix(self) -> WorkloadMix:
        """Return the mix so far; flat if no pod requests GPUs."""
        mix = mix_from_demands(self._demands.elements())
        return mix if any(demand.gpus for demand in mix.counts) else FLAT_MIX


def _mig_profile_counts(snapshot: SchedulingSnapshot, pods: Iterable[Pod]) -> tuple[tuple[str, float], ...]:
    counts: Counter[str] = Counter()
    for pod in pods:
        required = pod_requirements(pod, snapshot.fleet)
        resource = parse_gpu_resource(required.resource)
        if resource is not None and resource.mig:
            counts[resource.profile] += required.count
    return tuple(sorted((profile, float(count)) for profile, count in counts.items()))
