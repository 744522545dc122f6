"""What a scheduler asks of a node beside CPU, memory and GPUs: its name, its ports, and every other resource.

Source of the words: the scheduler's plugins NodeName, NodePorts and NodeResourcesFit, and the API server for amounts
below zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.model.fleet import FleetNode
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, DEVICE_CLASS_PREFIX, parse_gpu_resource
from webhook.model.pod_resources import effective_requests, is_sidecar, negative_resources
from webhook.model.pods import Container, Pod, PodSpec
from webhook.model.quantity import NANO, format_nano
from webhook.placement.nodes.filtering import FilterReason

ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - nothing is bound here
"""All interfaces of a host."""


class HostPort(NamedTuple):
    """A port of a host, as a pod takes it."""

    number: int
    protocol: str
    address: str


PODS_RESOURCE = "pods"

Amounts = Mapping[str, int]
"""Nano-units by resource."""


def other_requests(pod: Pod) -> dict[str, int]:
    """What a pod asks for that is neither CPU, memory nor a GPU. Device classes are nothing that nodes advertise."""
    return {
        name: amount
        for name, amount in effective_requests(pod).items()
        if name not in ("cpu", "memory") and not parse_gpu_resource(name) and not name.startswith(DEVICE_CLASS_PREFIX)
    }


def stock_filter_reasons(
    pod: Pod, nodes: Sequence[FleetNode], free: Sequence[Amounts], ports: Mapping[str, Collection[HostPort]]
) -> dict[int, tuple[FilterReason, ...]]:
    """Why a scheduler, or the API server, refuses a pod for what is no matter of GPUs, by position of the node.

    Args:
        pod: The pod.
        nodes: The nodes.
        free: What is free on each of resources that are neither CPU, memory nor GPUs.
        ports: Ports of hosts that are taken, by node.
    """
    asked, taking, everywhere = (
        other_requests(pod),
        host_ports(pod),
        tuple(map(_negative_amount_reason, negative_resources(pod))),
    )
    found = {
        i: (
            *everywhere,
            *_node_resource_reasons(pod, asked, node, free[i]),
            *_port_conflict_reasons(taking, ports.get(node.name, ())),
        )
        for i, node in enumerate(nodes)
    }
    return {node: reasons for node, reasons in found.items() if reasons}


def _negative_amount_reason(name: str) -> FilterReason:
    return FilterReason(f"Invalid value: {name} must be greater than or equal to 0", f"it asks for {name} below zero")


def _node_resource_reasons(pod: Pod, asked: Amounts, node: FleetNode, free: Amounts) -> Iterator[FilterReason]:
    if pod.spec.node_name not in ("", node.name):
        yield FilterReason("node(s) didn't match the requested node name", f"spec.nodeName says {pod.spec.node_name}")
    for name, amount in asked.items():
        if amount > max(0, free.get(name, 0)):
            there = f"{format_nano(max(0, free[name]))} free of {format_nano(amount)} {name}" if name in free else ""
            yield FilterReason(f"Insufficient {name}", there or f"offers no {name}")


def _port_conflict_reasons(asked: Collection[HostPort], taken: Collection[HostPort]) -> Iterator[FilterReason]:
    clashes = find_port_conflicts(asked, taken)
    if clashes:
        said = ", ".join(f"{one.number}/{one.protocol}" for one in clashes)
        yield FilterReason("node(s) didn't have free ports for the requested pod ports", f"host port {said} is taken")


def count_fitting_pods(asked: Amounts, free: Amounts, most: int) -> int:
    """How many pods find so much, at most so many. Places for pods count too, where the node says how many it has."""
    each = {**asked, PODS_RESOURCE: NANO} if PODS_RESOURCE in free else asked
    return min([most, *(max(0, free.get(name, 0)) // amount for name, amount in each.items() if amount > 0)])


def host_ports(pod: Pod) -> frozenset[HostPort]:
    """The ports of its host that a pod takes while it runs: those of main containers and of sidecars."""
    return frozenset(
        HostPort(port.host_port, port.protocol or "TCP", port.host_ip or ALL_INTERFACES)
        for container in _long_running_containers(pod)
        for port in container.ports
        if port.host_port > 0
    )


def _long_running_containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers
    yield from (each for each in pod.spec.init_containers if is_sidecar(each))


def find_port_conflicts(asked: Iterable[HostPort], taken: Iterable[HostPort]) -> list[HostPort]:
    """Those that others have taken, ascending."""
    held = list(taken)
    return sorted(one for one in asked if any(_is_port_conflict(one, other) for other in held))


def _is_port_conflict(one: HostPort, other: HostPort) -> bool:
    alike = one[:2] == other[:2]
    return alike and (one.address == other.address or ALL_INTERFACES in (one.address, other.address))


def unsupported_constraints(pod: Pod) -> tuple[str, ...]:
    """What of a pod nothing here looks at, in words; () for most pods."""
    return tuple(_unsupported_constraints(pod))


def unsimulated_constraints(pod: Pod) -> tuple[str, ...]:
    """The same with what `place` looks at, and a simulation, which knows GPUs, CPU and memory, does not."""
    return (*_unsupported_constraints(pod), *_unsimulated_fields(pod))


def _unsimulated_fields(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    if any(port.host_port for each in (*spec.containers, *spec.init_containers) for port in each.ports):
        yield "host ports"
    if spec.node_name:
        yield "spec.nodeName"
    yield from (f"resource {name}" for name in other_requests(pod) if name != ACCOUNTING_RESOURCE)


def _unsupported_constraints(pod: Pod) -> Iterator[str]:
    yield from _pod_affinity_constraints(pod.spec)
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints):
        yield "required topology spread"
    if pod.spec.resource_claims or any(name.startswith(DEVICE_CLASS_PREFIX) for name in effective_requests(pod)):
        yield "resource claims"
    if any(each.persistent_volume_claim or each.ephemeral for each in pod.spec.volumes):
        yield "which nodes its volumes reach"
    if pod.spec.scheduling_gates:
        yield "scheduling gates, which keep it from every node until they are gone"


def _pod_affinity_constraints(spec: PodSpec) -> Iterator[str]:
    affinity = spec.affinity
    if affinity and affinity.pod_affinity and affinity.pod_affinity.required:
        yield "required pod affinity"
    if affinity and affinity.pod_anti_affinity and affinity.pod_anti_affinity.required:
        yield "required pod anti-affinity"
