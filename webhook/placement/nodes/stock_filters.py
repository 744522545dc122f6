"""The stock scheduler's other filters: node name, host ports, resources other than CPU, memory and GPUs; and
constraints not modeled.

Source: the scheduler's plugins NodeName, NodePorts and NodeResourcesFit, whose messages are used, and the API server
for negative amounts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from webhook.model.filters.node_ports import HostPort, find_port_conflicts, host_ports
from webhook.model.filters.node_resources_fit import Amounts, find_shortages, other_requests
from webhook.model.fleet import FleetNode
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, DEVICE_CLASS_PREFIX
from webhook.model.pod_resources import effective_requests, negative_resources
from webhook.model.pods import Pod
from webhook.placement.nodes.filtering import FilterReason

PORTS_IN_USE = "node(s) didn't have free ports for the requested pod ports"


def stock_filter_reasons(
    pod: Pod, nodes: Sequence[FleetNode], free: Sequence[Amounts], ports: Mapping[str, Collection[HostPort]]
) -> dict[int, tuple[FilterReason, ...]]:
    """Return why the scheduler or the API server rejects a pod, GPUs aside, by node position.

    `free` has the free amounts of other resources on each node, `ports` the allocated host ports by node name.
    """
    requested, ports_requested = other_requests(pod), host_ports(pod)
    on_every_node = tuple(
        FilterReason(
            f"Invalid value: {name} must be greater than or equal to 0", f"it requests a negative amount of {name}"
        )
        for name in negative_resources(pod)
    )
    found = {
        i: (
            *on_every_node,
            *_node_reasons(pod, requested, node, free[i]),
            *_port_conflict_reasons(ports_requested, ports.get(node.name, ())),
        )
        for i, node in enumerate(nodes)
    }
    return {node: reasons for node, reasons in found.items() if reasons}


def _node_reasons(pod: Pod, requested: Amounts, node: FleetNode, free: Amounts) -> Iterator[FilterReason]:
    if pod.spec.node_name not in ("", node.name):
        yield FilterReason("node(s) didn't match the requested node name", f"spec.nodeName is {pod.spec.node_name}")
    for name, detail in find_shortages(requested, free):
        yield FilterReason(f"Insufficient {name}", detail)


def _port_conflict_reasons(requested: Collection[HostPort], taken: Collection[HostPort]) -> Iterator[FilterReason]:
    conflicts = find_port_conflicts(requested, taken)
    if conflicts:
        text = ", ".join(f"{one.number}/{one.protocol}" for one in conflicts)
        yield FilterReason(PORTS_IN_USE, f"host port {text} is in use")


def unsimulated_constraints(pod: Pod) -> Iterator[str]:
    """Yield the scheduling constraints that nothing here checks, and those that `place` checks but no simulation."""
    yield from unsupported_constraints(pod)
    spec = pod.spec
    if spec.node_name:
        yield "spec.nodeName"
    yield from (f"resource {name}" for name in other_requests(pod) if name != ACCOUNTING_RESOURCE)


def unsupported_constraints(pod: Pod) -> Iterator[str]:
    """Yield the scheduling constraints of a pod that nothing here checks; none for most pods."""
    affinity = pod.spec.affinity
    if affinity and affinity.pod_affinity and affinity.pod_affinity.required:
        yield "required pod affinity"
    if affinity and affinity.pod_anti_affinity and affinity.pod_anti_affinity.required:
        yield "required pod anti-affinity"
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints):
        yield "required topology spread"
    if pod.spec.resource_claims or any(name.startswith(DEVICE_CLASS_PREFIX) for name in effective_requests(pod)):
        yield "resource claims"
    if any(each.persistent_volume_claim or each.ephemeral for each in pod.spec.volumes):
        yield "volume topology"
    if pod.spec.scheduling_gates:
        yield "scheduling gates, which keep it off every node until they are removed"
