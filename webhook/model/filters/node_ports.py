"""NodePorts: the host ports that the pods of a cluster hold, and the nodes on which a new pod may have its own.

Source: the NodePorts plugin of kube-scheduler, and its HostPortInfo: a port of one protocol is in use if the address is
the same, or if either is that of all interfaces. Ports of main containers and of sidecars count.

Ports are bounded: a pod with too many, or one too many in the cluster, counts as if it held every port.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from webhook.model.fleet import Fleet
from webhook.model.node_masks import union_masks
from webhook.model.pod_resources import is_sidecar
from webhook.model.pods import Pod

ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - nothing is bound here

MAX_POD_PORTS = 64
"""Host ports of one pod. Usual pods with any have one to four."""


class HostPort(NamedTuple):
    """A host port of a pod."""

    number: int
    protocol: str
    address: str


EVERY_PORT = HostPort(0, "", "")
"""Stands for all ports of a node."""


def host_ports(pod: Pod) -> frozenset[HostPort]:
    """Return the host ports of a pod's main containers and sidecars."""
    return frozenset(_each_host_port(pod))


def _each_host_port(pod: Pod) -> Iterator[HostPort]:
    for container in (*pod.spec.containers, *filter(is_sidecar, pod.spec.init_containers)):
        for port in container.ports:
            if port.host_port > 0:
                yield HostPort(port.host_port, port.protocol or "TCP", port.host_ip or ALL_INTERFACES)


def held_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Return the host ports that a pod excludes others from, ascending; `EVERY_PORT` if there are too many."""
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if container.ports:
            break
    else:  # most pods with GPUs
        return ()
    ports = list(islice(_each_host_port(pod), MAX_POD_PORTS + 1))
    return tuple(sorted(set(ports))) if len(ports) <= MAX_POD_PORTS else (EVERY_PORT,)


def find_port_conflicts(requested: Iterable[HostPort], taken: Iterable[HostPort]) -> list[HostPort]:
    """Return the requested ports that conflict with allocated ones, ascending."""
    allocated = tuple(taken)
    return sorted(one for one in requested if any(ports_conflict(one, other) for other in allocated))


def ports_conflict(one: HostPort, other: HostPort) -> bool:
    """Return whether two pods with these ports cannot run on one node."""
    if EVERY_PORT in (one, other):
        return True
    return one[:2] == other[:2] and (one.address == other.address or ALL_INTERFACES in (one.address, other.address))


class HostPortIndex:
    """The nodes on which host ports are in use. Immutable; a change copies one reference for each port in use."""

    __slots__ = ("_by_number",)

    def __init__(self, nodes: Mapping[HostPort, int]) -> None:
        self._by_number: dict[tuple[int, str], dict[str, int]] = {}
        self._set_nodes(nodes)

    def __bool__(self) -> bool:
        return bool(self._by_number)

    def _set_nodes(self, nodes: Mapping[HostPort, int]) -> None:
        for port, mask in nodes.items():
            addresses = {**self._by_number.get(port[:2], {}), port.address: mask}
            if in_use := {address: found for address, found in addresses.items() if found}:
                self._by_number[port[:2]] = in_use
            else:
                self._by_number.pop(port[:2], None)

    def with_changes(self, nodes: Mapping[HostPort, int]) -> HostPortIndex:
        """Return the index with the nodes of some ports replaced."""
        if not nodes:
            return self
        changed = HostPortIndex({})
        changed._by_number = self._by_number.copy()
        changed._set_nodes(nodes)
        return changed

    def with_ports_held(self, ports: Iterable[HostPort], nodes: int) -> HostPortIndex:
        """Return the index after pods with these ports were bound to the nodes of a mask."""
        held = {port: self._by_number.get(port[:2], {}).get(port.address, 0) for port in ports}
        return self.with_changes({port: before | nodes for port, before in held.items()})

    def nodes_in_use(self, ports: Collection[HostPort]) -> int:
        """Return the mask of the nodes on which a port that conflicts with one of these is in use."""
        if EVERY_PORT in ports:
            return union_masks(mask for addresses in self._by_number.values() for mask in addresses.values())
        in_use = union_masks(self._by_number.get(EVERY_PORT[:2], {}).values()) if ports else 0
        for port in ports:
            addresses = self._by_number.get(port[:2], {})
            if port.address == ALL_INTERFACES:
                in_use |= union_masks(addresses.values())
            else:
                in_use |= addresses.get(port.address, 0) | addresses.get(ALL_INTERFACES, 0)
        return in_use


def nodes_by_name(names: Collection[str], fleet: Fleet) -> int:
    """Return the mask of the nodes with these names; all for "", the name of a node that is not known yet."""
    if "" in names:
        return fleet.all_nodes
    bits = bytearray(b"0") * (len(fleet.nodes) + 1)
    for node in map(fleet.by_name.get, names):
        if node is not None:
            bits[-1 - node] = ord("1")
    return int(bits, 2)


def index_host_ports(nodes_by_port: Mapping[HostPort, Iterable[str]], fleet: Fleet) -> HostPortIndex:
    """Index the host ports of the pods of a cluster, by port with the names of their nodes."""
    return HostPortIndex({port: nodes_by_name(tuple(on), fleet) for port, on in nodes_by_port.items()})
