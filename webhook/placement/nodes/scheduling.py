"""What a scheduler asks of a node beside CPU, memory and GPUs: its name, its ports, and every other resource.

Source of the words: the scheduler's plugins NodeName, NodePorts and NodeResourcesFit, and the API server for amounts
below zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from webhook.model.effective import below_zero, effective_requests
from webhook.model.fleet import FleetNode
from webhook.model.pods import Pod
from webhook.model.quantity import NANO, written
from webhook.model.resources import DEVICE_CLASS_PREFIX, gpu_resource
from webhook.placement.nodes.filtering import Reason
from webhook.placement.nodes.hostports import HostPort, clashing, host_ports

PODS = "pods"

Amounts = Mapping[str, int]
"""Nano-units by resource."""


def others_of(pod: Pod) -> dict[str, int]:
    """What a pod asks for that is neither CPU, memory nor a GPU. Device classes are nothing that nodes advertise."""
    return {
        name: amount
        for name, amount in effective_requests(pod).items()
        if name not in ("cpu", "memory") and not gpu_resource(name) and not name.startswith(DEVICE_CLASS_PREFIX)
    }


def misfits(
    pod: Pod, nodes: Sequence[FleetNode], free: Sequence[Amounts], ports: Mapping[str, Collection[HostPort]]
) -> dict[int, tuple[Reason, ...]]:
    """Why a scheduler, or the API server, refuses a pod for what is no matter of GPUs, by position of the node.

    Args:
        pod: The pod.
        nodes: The nodes.
        free: What is free on each of resources that are neither CPU, memory nor GPUs.
        ports: Ports of hosts that are taken, by node.
    """
    asked, taking, everywhere = others_of(pod), host_ports(pod), tuple(map(_debt, below_zero(pod)))
    found = {
        i: (*everywhere, *_misfits(pod, asked, node, free[i]), *_ports(taking, ports.get(node.name, ())))
        for i, node in enumerate(nodes)
    }
    return {node: reasons for node, reasons in found.items() if reasons}


def _debt(name: str) -> Reason:
    return Reason(f"Invalid value: {name} must be greater than or equal to 0", f"it asks for {name} below zero")


def _misfits(pod: Pod, asked: Amounts, node: FleetNode, free: Amounts) -> Iterator[Reason]:
    if pod.spec.node_name not in ("", node.name):
        yield Reason("node(s) didn't match the requested node name", f"spec.nodeName says {pod.spec.node_name}")
    for name, amount in asked.items():
        if amount > max(0, free.get(name, 0)):
            there = f"{written(max(0, free[name]))} free of {written(amount)} {name}" if name in free else ""
            yield Reason(f"Insufficient {name}", there or f"offers no {name}")


def _ports(asked: Collection[HostPort], taken: Collection[HostPort]) -> Iterator[Reason]:
    clashes = clashing(asked, taken)
    if clashes:
        said = ", ".join(f"{one.number}/{one.protocol}" for one in clashes)
        yield Reason("node(s) didn't have free ports for the requested pod ports", f"host port {said} is taken")


def room_for(asked: Amounts, free: Amounts, most: int) -> int:
    """How many pods find so much, at most so many. Places for pods count too, where the node says how many it has."""
    each = {**asked, PODS: NANO} if PODS in free else asked
    return min([most, *(max(0, free.get(name, 0)) // amount for name, amount in each.items() if amount > 0)])
