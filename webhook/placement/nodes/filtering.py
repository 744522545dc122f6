"""Which nodes cannot take a pod, and every reason why: in the scheduler's own words, and in ours.

Source of the words: the scheduler's plugins NodeUnschedulable, NodeAffinity, TaintToleration and
NodeResourcesFit, as `kubectl describe pod` shows them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.node_labels import PRODUCT_LABEL, STRATEGY_LABEL
from webhook.model.node_masks import bit_positions
from webhook.model.taints import tolerates_all
from webhook.placement.mig import mig_card_value, mig_geometry, plan_repartition
from webhook.placement.nodes.device_plugin import ContainerRequests, allocate_containers, can_join, largest_request
from webhook.placement.nodes.pod_requirements import MIB, PodRequirements
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nvlink import gpu_sets
from webhook.placement.topology import GpuTopology

NOT_JOINED = "node(s) had no free GPUs joined by NVLink"
NEVER_JOINED = "node(s) could not join so many GPUs by NVLink"


class FilterReason(msgspec.Struct, frozen=True):
    """Why a node cannot take a pod.

    Attributes:
        scheduler: As the scheduler says it, or in its manner where only we see it.
        detail: As we say it, with figures and names.
    """

    scheduler_message: str
    detail: str


def filter_reasons(cluster: SchedulingSnapshot, requirements: PodRequirements, node: int) -> list[FilterReason]:
    """Everything that keeps a pod off a node; none where it fits."""
    return [*exclusion_reasons(cluster, requirements, node), *insufficient_resources(cluster, requirements, node)]


def insufficient_resources(
    cluster: SchedulingSnapshot, requirements: PodRequirements, node: int
) -> Iterator[FilterReason]:
    """What a node has too little of for a pod, whether it would be let in or not."""
    if cluster.free[node].full:
        yield FilterReason("Too many pods", f"it takes {cluster.fleet.nodes[node].pods} pods, and has them")
    yield from _insufficient_cpu_memory(cluster, requirements, node)
    yield from _insufficient_gpus(cluster, requirements, node)


def exclusion_reasons(cluster: SchedulingSnapshot, requirements: PodRequirements, node: int) -> Iterator[FilterReason]:
    """Why a node does not let a pod in, however much it has free."""
    bit, known = 1 << node, cluster.fleet.nodes[node]
    if not cluster.fleet.schedulable_nodes(requirements.tolerations) & bit:
        yield FilterReason("node(s) were unschedulable", "cordoned, not ready, or its GPUs are being changed")
    if not requirements.selected_nodes & bit:
        yield FilterReason(
            "node(s) didn't match Pod's node affinity/selector", "ruled out by node selector or affinity"
        )
    for taint in known.taints:
        if not tolerates_all(requirements.tolerations, (taint,)):
            said = f"{taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect}"
            yield FilterReason(f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}", f"taint {said}")


def _insufficient_cpu_memory(
    cluster: SchedulingSnapshot, requirements: PodRequirements, node: int
) -> Iterator[FilterReason]:
    room = cluster.free[node]
    if requirements.cpu_milli > max(0, room.cpu_milli):
        yield FilterReason(
            "Insufficient cpu", f"{_format_cores(room.cpu_milli)} cores free of {_format_cores(requirements.cpu_milli)}"
        )
    if requirements.memory_mib > max(0, room.memory) // MIB:
        free, requested = max(0, room.memory) // MIB, requirements.memory_mib
        yield FilterReason("Insufficient memory", f"{_format_gib(free)} GiB of memory free of {_format_gib(requested)}")


def _format_gib(mib: int) -> str:
    """Exact to the MiB: a node may lack no more than that."""
    return f"{mib / 1024:.3f}".rstrip("0").rstrip(".")


def _format_cores(milli: int) -> str:
    return f"{max(0, milli) / 1000:g}"


def _insufficient_gpus(cluster: SchedulingSnapshot, requirements: PodRequirements, node: int) -> Iterator[FilterReason]:
    room = cluster.free[node]
    short = [(resource, count) for resource, count in requirements.gpu_resources if room.units(resource) < count]
    for resource, count in short:
        yield FilterReason(f"Insufficient {resource}", _insufficient_detail(cluster, resource, count, node))
    if not short and requirements.nvlink_required and not can_join_on_node(cluster, requirements, node):
        yield FilterReason(NOT_JOINED, _not_joined_detail(cluster, requirements, node))


def can_join_on_node(cluster: SchedulingSnapshot, requirements: PodRequirements, node: int) -> bool:
    """Does NVLink join what each container would get on a node?"""
    devices, offer = cluster.devices[node], cluster.offer(node, requirements.resource)
    whole = offer is not None and offer.form is GpuForm.WHOLE
    return whole and can_join(devices.topology, devices.free, requirements.container_requests, devices.free_count)


def _not_joined_detail(cluster: SchedulingSnapshot, requirements: PodRequirements, node: int) -> str:
    offer, devices = cluster.offer(node, requirements.resource), cluster.devices[node]
    free, most = cluster.free[node].units(requirements.resource), largest_request(requirements.container_requests)
    if offer is None or offer.form is not GpuForm.WHOLE:
        return f"{free} free, which are no whole cards: NVLink joins none of them"
    topology, known = devices.topology, devices.free
    if gpu_sets(topology).largest_island((1 << topology.gpu_count) - 1 if known is None else known) < most:
        return f"{free} free, no {most} of them joined by NVLink{_free_gpus_suffix(cluster, node)}"
    if known is None:
        return f"{free} free, it is not known which, and NVLink does not join every choice"
    got = _first_unjoined_set(topology, known, requirements.container_requests)
    if not got:
        return (
            f"{free} free by their number, and {known.bit_count()} by the agent's "
            f"report{_free_gpus_suffix(cluster, node)}"
        )
    whose = f" to the container of {got.bit_count()}" if len(requirements.container_requests) > 1 else ""
    return f"{free} free, and the device plugin gives {_format_gpus(got)}{whose}, which NVLink does not join"


def _first_unjoined_set(topology: GpuTopology, free: int, requests: ContainerRequests) -> int:
    """The first set that a container would get and NVLink does not join; 0 where there are too few."""
    sets = allocate_containers(topology, free, requests) or ()
    return next((each for each in sets if not gpu_sets(topology).is_joined(each)), 0)


def _insufficient_detail(cluster: SchedulingSnapshot, resource: str, count: int, node: int) -> str:
    there, free = cluster.fleet.nodes[node].gpus.get(resource, 0), cluster.free[node].units(resource)
    beyond = cluster.fleet.nodes[node].implausible_gpus.get(resource, 0)
    if beyond:
        return f"says it has {beyond} {resource}, more than any node can have: counts as none"
    if not there:
        said = f"offers no {resource}"
    elif there < count:
        said = f"has {there} of {count}"
    else:
        said = "full" if not free else f"{free} free of {count}"
    plan = _repartition_hint(cluster, resource, node)
    return f"{said}; {plan}" if plan else said


def _repartition_hint(cluster: SchedulingSnapshot, resource: str, node: int) -> str:
    """How a MIG card could be cut anew to make room; "" where that does not help."""
    cards, profile = cluster.devices[node].mig_cards, _mig_profile_of_resource(cluster, resource, node)
    known = mig_geometry(cluster.fleet.nodes[node].labels.get(PRODUCT_LABEL, "")) if cards and profile else None
    plan = plan_repartition(mig_card_value(known), cards, profile) if known else None
    if plan is None:
        return ""
    removed = ", ".join(sorted(f"{one.profile} at {one.start}" for one in plan.remove)) or "nothing"
    return f"GPU {plan.index} could be cut anew: remove {removed}, make {plan.create.profile} at {plan.create.start}"


def _mig_profile_of_resource(cluster: SchedulingSnapshot, resource: str, node: int) -> str:
    """The MIG profile that a name stands for on a node, or would once a card is cut so; "" for none."""
    offer, named = cluster.offer(node, resource), parse_gpu_resource(resource)
    if offer is not None:
        return offer.profile if offer.form is GpuForm.MIG else ""
    alike = cluster.fleet.nodes[node].labels.get(STRATEGY_LABEL) == "single"
    return "" if named is None or alike else named.profile


def _free_gpus_suffix(cluster: SchedulingSnapshot, node: int) -> str:
    free = cluster.devices[node].free
    return f" (GPUs {_format_gpus(free)})" if free else ""


def _format_gpus(gpus: int) -> str:
    return ", ".join(map(str, bit_positions(gpus)))
