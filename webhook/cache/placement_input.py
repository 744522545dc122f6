"""From the objects of a snapshot to what placement ranks: nodes, what is free, GPUs, and what pods ask for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set

import msgspec

from webhook.cache.build_view import FINISHED_PHASES, free_resources_by_node
from webhook.cache.snapshot_objects import SnapshotObject, creation_order
from webhook.model.cluster_view import FreeResources
from webhook.model.fleet import Fleet
from webhook.model.gpu_node import GPUNode
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.node_masks import bit_positions
from webhook.model.objects import Node
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import Pod, pod_key
from webhook.model.quantity import NANO, parse_nano_or_none
from webhook.placement.capacity import PodDemand
from webhook.placement.devices import NodeDevices, devices_from_report, find_report_error
from webhook.placement.fragmentation.workload_mix import FLAT_MIX, WorkloadMix, mix_from_demands
from webhook.placement.nodes.device_plugin import PodGpuUnits, current_devices, multi_container_requests
from webhook.placement.nodes.pod_requirements import pod_requirements
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nodes.stock_filters import PODS_RESOURCE, HostPort, host_ports, other_requests


class PlacementInput(msgspec.Struct, frozen=True):
    """A cluster to place pods in.

    Attributes:
        cluster: The nodes.
        mix: What the pods that are there ask for of GPUs and shares; flat where they ask for none.
        profiles: What they ask for of MIG profiles, with counts.
        pods: The pods that hold something, or wait for it, the first to come first.
        others: What is free of resources that are neither CPU, memory nor GPUs, nano-units, by node.
        ports: Ports of hosts that pods have taken, by node.
    """

    cluster: SchedulingSnapshot
    mix: WorkloadMix
    profiles: tuple[tuple[str, float], ...]
    pods: tuple[Pod, ...]
    others: Mapping[str, Mapping[str, int]] = {}
    ports: Mapping[str, Set[HostPort]] = {}


def build_placement_input(fleet: Fleet, kept: Iterable[SnapshotObject]) -> PlacementInput:
    """What the objects of a snapshot come to. Its pods are the arrivals that the mix is learnt from."""
    objects = tuple(kept)
    there = (item for item in objects if isinstance(item, Pod) and item.status.phase not in FINISHED_PHASES)
    pods = tuple(sorted(there, key=creation_order))
    agents = [item for item in objects if isinstance(item, GPUNode)]
    units = {node.name: node.gpus.get(WHOLE_GPU, 0) for node in fleet.nodes}
    devices = _devices_by_node(agents, pods, units)
    free: dict[str, FreeResources] = free_resources_by_node(fleet.nodes, pods)
    cluster = SchedulingSnapshot(
        fleet, free, devices, {node.metadata.name: why for node in agents if (why := find_report_error(node))}
    )
    learning = PodMixCounter(cluster)
    for pod in pods:
        learning.add(pod)
    others = _free_other_resources([item for item in objects if isinstance(item, Node)], pods)
    return PlacementInput(
        cluster, learning.mix(), _mig_profile_counts(cluster, pods), pods, others, _host_ports_by_node(pods)
    )


def _host_ports_by_node(pods: Iterable[Pod]) -> dict[str, set[HostPort]]:
    taken: defaultdict[str, set[HostPort]] = defaultdict(set)
    for pod in pods:
        if ports := host_ports(pod):
            taken[pod.spec.node_name] |= ports
    return dict(taken)


def _devices_by_node(
    agents: Iterable[GPUNode], pods: Iterable[Pod], units: Mapping[str, int]
) -> dict[str, NodeDevices]:
    """The GPUs of each node with a report that can be used, as the pods that are there hold them."""
    reports = {node.metadata.name: (found, node) for node in agents if (found := devices_from_report(node))}
    held: dict[str, dict[str, PodGpuUnits]] = {name: {} for name in reports}
    for pod in pods:
        there = held.get(pod.spec.node_name)
        if there is not None and (asked := _gpu_units_of_pod(pod)):
            there[pod_key(pod)] = PodGpuUnits(asked, multi_container_requests(pod))
    return {
        name: current_devices(devices, node, held[name], units.get(name, 0))
        for name, (devices, node) in reports.items()
    }


def _gpu_units_of_pod(pod: Pod) -> dict[str, int]:
    amounts = effective_requests(pod).items()
    return {name: -(-amount // NANO) for name, amount in amounts if parse_gpu_resource(name)}


def _free_other_resources(nodes: Iterable[Node], pods: Iterable[Pod]) -> dict[str, dict[str, int]]:
    """What is free on each node of all that is neither CPU, memory nor GPUs; places for pods among it."""
    free = {node.metadata.name: _other_allocatable(node) for node in nodes}
    for pod in pods:
        there = free.get(pod.spec.node_name, {})
        for name, amount in {**other_requests(pod), PODS_RESOURCE: NANO}.items():
            if name in there:
                there[name] -= amount
    return free


def _other_allocatable(node: Node) -> dict[str, int]:
    amounts = ((name, parse_nano_or_none(amount) or 0) for name, amount in node.status.allocatable.items())
    return {name: amount for name, amount in amounts if name not in ("cpu", "memory") and not parse_gpu_resource(name)}


class PodMixCounter:
    """Learns a mix from pods as they come by: the need of each, as its own node counts it.

    A pod that is on no node is counted as the first node does that offers what it asks for.
    """

    def __init__(self, cluster: SchedulingSnapshot) -> None:
        self._cluster = cluster
        self._needs: Counter[PodDemand] = Counter()

    def add(self, pod: Pod) -> None:
        """Take one pod in."""
        cluster = self._cluster
        wanted = pod_requirements(pod, cluster.fleet)
        node = cluster.fleet.by_name.get(pod.spec.node_name, -1)
        if node < 0:
            offering = cluster.fleet.nodes_advertising(wanted.resource) if wanted.resource else cluster.fleet.all_nodes
            node = next(bit_positions(offering), -1)
        if node >= 0:
            self._needs[cluster.pod_demand(wanted, node)] += 1

    def mix(self) -> WorkloadMix:
        """What the pods ask for; flat where none asks for GPUs."""
        mix = mix_from_demands(self._needs.elements())
        return mix if any(need.gpus for need in mix.counts) else FLAT_MIX


def _mig_profile_counts(cluster: SchedulingSnapshot, pods: Iterable[Pod]) -> tuple[tuple[str, float], ...]:
    counts: Counter[str] = Counter()
    for pod in pods:
        wanted = pod_requirements(pod, cluster.fleet)
        resource = parse_gpu_resource(wanted.resource)
        if resource is not None and resource.mig:
            counts[resource.profile] += wanted.count
    return tuple(sorted((profile, float(count)) for profile, count in counts.items()))
