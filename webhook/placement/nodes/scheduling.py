"""What a scheduler asks of a node beside CPU, memory and GPUs: its name, its ports, and every other resource.

Source of the words: the scheduler's plugins NodeName, NodePorts and NodeResourcesFit, and the API server for amounts
below zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from webhook.model.effective import negative_resources, effective_requests
from webhook.model.fleet import FleetNode
from webhook.model.pods import Pod
from webhook.model.quantity import NANO, format_nano
from webhook.model.resources import DEVICE_CLASS_PREFIX, parse_gpu_resource
from webhook.placement.nodes.filtering import FilterReason
from webhook.placement.nodes.hostports import HostPort, find_port_conflicts, host_ports

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
    asked, taking, everywhere = other_requests(pod), host_ports(pod), tuple(map(_negative_amount_reason, negative_resources(pod)))
    found = {
        i: (*everywhere, *_node_resource_reasons(pod, asked, node, free[i]), *_port_conflict_reasons(taking, ports.get(node.name, ())))
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
