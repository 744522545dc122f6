"""From the objects of a snapshot to what placement ranks: nodes, what is free, GPUs, and what pods ask for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set

import msgspec

from webhook.cache.gathering import FINISHED, rooms
from webhook.cache.objects import Kept, came
from webhook.model.cluster import Room
from webhook.model.effective import effective_requests
from webhook.model.fleet import Fleet
from webhook.model.gpunodes import GPUNode
from webhook.model.masks import bits
from webhook.model.objects import Node
from webhook.model.pods import Pod, key_of
from webhook.model.quantity import NANO, readable
from webhook.model.resources import WHOLE_GPU, gpu_resource
from webhook.placement.devices import Devices, reported
from webhook.placement.fragmentation.mixes import FLAT, Mix, mix_of
from webhook.placement.needs import Need
from webhook.placement.nodes.allotting import several_turns
from webhook.placement.nodes.asking import wanted_of
from webhook.placement.nodes.cluster import Cluster
from webhook.placement.nodes.holding import Held, as_held
from webhook.placement.nodes.hostports import HostPort, host_ports
from webhook.placement.nodes.scheduling import PODS, others_of
from webhook.placement.reports import unusable


class Placing(msgspec.Struct, frozen=True):
    """A cluster to place pods in.

    Attributes:
        cluster: The nodes.
        mix: What the pods that are there ask for of GPUs and shares; flat where they ask for none.
        profiles: What they ask for of MIG profiles, with counts.
        pods: The pods that hold something, or wait for it, the first to come first.
        others: What is free of resources that are neither CPU, memory nor GPUs, nano-units, by node.
        ports: Ports of hosts that pods have taken, by node.
    """

    cluster: Cluster
    mix: Mix
    profiles: tuple[tuple[str, float], ...]
    pods: tuple[Pod, ...]
    others: Mapping[str, Mapping[str, int]] = {}
    ports: Mapping[str, Set[HostPort]] = {}


def placing_of(fleet: Fleet, kept: Iterable[Kept]) -> Placing:
    """What the objects of a snapshot come to. Its pods are the arrivals that the mix is learnt from."""
    objects = tuple(kept)
    there = (item for item in objects if isinstance(item, Pod) and item.status.phase not in FINISHED)
    pods = tuple(sorted(there, key=came))
    agents = [item for item in objects if isinstance(item, GPUNode)]
    units = {node.name: node.gpus.get(WHOLE_GPU, 0) for node in fleet.nodes}
    devices = _devices(agents, pods, units)
    free: dict[str, Room] = rooms(fleet.nodes, pods)
    cluster = Cluster(fleet, free, devices, {node.metadata.name: why for node in agents if (why := unusable(node))})
    learning = Learning(cluster)
    for pod in pods:
        learning.see(pod)
    others = _others([item for item in objects if isinstance(item, Node)], pods)
    return Placing(cluster, learning.mix(), _profiles(cluster, pods), pods, others, _ports(pods))


def _ports(pods: Iterable[Pod]) -> dict[str, set[HostPort]]:
    taken: defaultdict[str, set[HostPort]] = defaultdict(set)
    for pod in pods:
        if ports := host_ports(pod):
            taken[pod.spec.node_name] |= ports
    return dict(taken)


def _devices(agents: Iterable[GPUNode], pods: Iterable[Pod], units: Mapping[str, int]) -> dict[str, Devices]:
    """The GPUs of each node with a report that can be used, as the pods that are there hold them."""
    reports = {node.metadata.name: (found, node) for node in agents if (found := reported(node))}
    held: dict[str, dict[str, Held]] = {name: {} for name in reports}
    for pod in pods:
        there = held.get(pod.spec.node_name)
        if there is not None and (asked := _units(pod)):
            there[key_of(pod)] = Held(asked, several_turns(pod))
    return {name: as_held(devices, node, held[name], units.get(name, 0)) for name, (devices, node) in reports.items()}


def _units(pod: Pod) -> dict[str, int]:
    amounts = effective_requests(pod).items()
    return {name: -(-amount // NANO) for name, amount in amounts if gpu_resource(name)}


def _others(nodes: Iterable[Node], pods: Iterable[Pod]) -> dict[str, dict[str, int]]:
    """What is free on each node of all that is neither CPU, memory nor GPUs; places for pods among it."""
    free = {node.metadata.name: _advertised(node) for node in nodes}
    for pod in pods:
        there = free.get(pod.spec.node_name, {})
        for name, amount in {**others_of(pod), PODS: NANO}.items():
            if name in there:
                there[name] -= amount
    return free


def _advertised(node: Node) -> dict[str, int]:
    amounts = ((name, readable(amount) or 0) for name, amount in node.status.allocatable.items())
    return {name: amount for name, amount in amounts if name not in ("cpu", "memory") and not gpu_resource(name)}


class Learning:
    """Learns a mix from pods as they come by: the need of each, as its own node counts it.

    A pod that is on no node is counted as the first node does that offers what it asks for.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._needs: Counter[Need] = Counter()

    def see(self, pod: Pod) -> None:
        """Take one pod in."""
        cluster = self._cluster
        wanted = wanted_of(pod, cluster.fleet)
        node = cluster.fleet.by_name.get(pod.spec.node_name, -1)
        if node < 0:
            offering = cluster.fleet.advertising(wanted.resource) if wanted.resource else cluster.fleet.everyone
            node = next(bits(offering), -1)
        if node >= 0:
            self._needs[cluster.need(wanted, node)] += 1

    def mix(self) -> Mix:
        """What the pods ask for; flat where none asks for GPUs."""
        mix = mix_of(self._needs.elements())
        return mix if any(need.gpus for need in mix.counts) else FLAT


def _profiles(cluster: Cluster, pods: Iterable[Pod]) -> tuple[tuple[str, float], ...]:
    counts: Counter[str] = Counter()
    for pod in pods:
        wanted = wanted_of(pod, cluster.fleet)
        resource = gpu_resource(wanted.resource)
        if resource is not None and resource.mig:
            counts[resource.profile] += wanted.count
    return tuple(sorted((profile, float(count)) for profile, count in counts.items()))
