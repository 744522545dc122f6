"""The result of `place`: the node a pod would be scheduled to, why other nodes are rejected, and the nearest fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from webhook.errors import abbreviate_names
from webhook.model.dra.allocator import ChosenDevice
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.pods import Pod, pod_display_name
from webhook.placement.nodes.device_plugin import largest_request
from webhook.placement.nodes.filtering import FilterReason, partial_gpu_text
from webhook.placement.nodes.gpu_links import GpuLinks
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.preemption import PreemptionPlan
from webhook.placement.nodes.ranking import RankedNode
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.topology import TopologyConfidence
from webhook.report.capacity import AGENT_DISAGREES
from webhook.report.node_topology import gpu_list
from webhook.report.tables import Column, Table
from webhook.report.text import Paint, TextStyle, pluralize, sanitize, without_style


class GangPlacement(NamedTuple):
    """Pods that run together, and the domains that have capacity for them.

    Attributes:
        name: Name of the gang; "" for the pods of one workload.
        size: Number of pods; 0 if unknown.
        pending: Those without a node, this pod included, as far as is known.
        label: The node label whose values name domains.
        capacity_by_domain: How many such pods fit into each domain now; "" for nodes without the label.
        placed_by_domain: How many of the others each domain has.
        best_domain: The domain of the chosen node; "" if it has none.
    """

    name: str
    size: int
    pending: int
    label: str
    capacity_by_domain: Mapping[str, int]
    placed_by_domain: Mapping[str, int]
    best_domain: str

    @property
    def best_capacity(self) -> int:
        """Number of such pods that fit into the chosen domain."""
        return self.capacity_by_domain.get(self.best_domain, 0) if self.best_domain else 0


class PlacementResult(msgspec.Struct, frozen=True):
    """The placement of one pod.

    Attributes:
        title: Kind, namespace and name.
        template: The path of its template, if its workload has others; else "".
        denied: Codes for which the webhook would deny it.
        request: What it requests after admission.
        feasible: The nodes that fit, the best first.
        reasons: Why others are rejected, by position of the node.
        nearest: If no node fits, the pods whose end would make it fit.
        replicas: Number of wanted replicas.
        admitted: Number of replicas that policies and quotas admit.
        fits: Number of replicas that fit now.
        fixed_node: The node it names itself; "" if a scheduler chooses.
        gang: The pods it runs together with; None for a pod on its own.
        on_each_node: Whether it is to run on each suitable node, as pods of a DaemonSet.
        unevaluated: Constraints that a scheduler would check, and that were not evaluated.
        keep_reason: The stable word for why it keeps its GPU request; "" if it does not, or requests none.
        devices: The devices that its claims would get, by position of a feasible node.
    """

    title: str
    denied: tuple[str, ...]
    request: PodRequirements
    snapshot: SchedulingSnapshot
    feasible: tuple[RankedNode, ...]
    reasons: dict[int, tuple[FilterReason, ...]]
    nearest: PreemptionPlan | None
    replicas: int = 1
    admitted: int = 1
    fits: int = 1
    fixed_node: str = ""
    gang: GangPlacement | None = None
    on_each_node: bool = False
    unevaluated: tuple[str, ...] = ()
    keep_reason: str = ""
    template: str = ""
    devices: Mapping[int, Sequence[ChosenDevice]] = {}

    def node_name(self, node: int) -> str:
        """Return the name of a node."""
        return self.snapshot.fleet.nodes[node].name


class PlacementRow(NamedTuple):
    """One node: a feasible one with its rank, or a rejected one with reasons."""

    result: PlacementResult
    node: int
    ranked: RankedNode | None = None
    reasons: Sequence[FilterReason] = ()


NODES = Table[PlacementRow](
    (
        Column("node", lambda row: row.result.node_name(row.node), "Node"),
        Column("", lambda row: _free_cell(row), "Free-units"),
        Column("", lambda row: _gpus_cell(row), "GPUs"),
        Column("", lambda row: _links_cell(row.result.request, row.ranked), "Links"),
        Column("", lambda row: _reason_cell(row), "Reason", empty=""),
    )
)


def placement_lines(placed: PlacementResult, paint: Paint = without_style) -> list[str]:
    """Return the answer, then every node, then the nearest fit."""
    rows = [PlacementRow(placed, each.node, each) for each in placed.feasible]
    rows += [PlacementRow(placed, node, reasons=reasons) for node, reasons in placed.reasons.items()]
    template = f" of {sanitize(placed.template)}" if placed.template else ""
    lines = [
        f"{sanitize(placed.title)}{template}   requests {_request_text(placed.request)}",
        f"  {_placement_answer(placed, paint)}",
    ]
    if placed.gang and placed.feasible:
        lines.append(f"  {gang_line(placed.gang)}")
    if placed.unevaluated and placed.feasible:
        lines.append(f"  Not evaluated: {sanitize(', '.join(placed.unevaluated))}. A scheduler may reject this node.")
    if placed.denied:
        lines.append(f"  The webhook would deny it: {', '.join(placed.denied)}. See rightslice check.")
    elif placed.admitted < placed.replicas:
        which = (
            f"{placed.admitted} of {placed.replicas} replicas with this request" if placed.replicas > 1 else "no pod"
        )
        lines.append(f"  Quotas admit {which} now. See rightslice check.")
    lines += ["", *NODES.to_lines(rows, paint)]
    if placed.nearest is not None:
        pods = " and ".join(sanitize(_namespaced_pod_name(pod)) for pod in placed.nearest.pods)
        lines += ["", f"Nearest  {sanitize(placed.node_name(placed.nearest.node))}: would fit if {pods} ended."]
    return lines


def _request_text(request: PodRequirements) -> str:
    parts = [f"{units} {resource}" for resource, units in request.gpu_resources]
    parts += [f"{request.cpu_milli / 1000:g} cores", f"{request.memory / 2**30:.4g} GiB"]
    connected = ", connected by NVLink" if request.nvlink_required else ""
    each = " in each container" if connected and len(request.container_requests) > 1 else ""
    return ", ".join(parts) + connected + each


def _placement_answer(placed: PlacementResult, paint: Paint) -> str:
    if placed.fixed_node and placed.fixed_node not in placed.snapshot.fleet.by_name:
        return paint(f"spec.nodeName is {sanitize(placed.fixed_node)}, which does not exist.", TextStyle.BAD)
    if not placed.feasible:
        return paint("No node fits now.", TextStyle.BAD)
    if placed.on_each_node:
        every = "each of the" if placed.replicas > 1 else "the"
        which = f"{placed.fits} of the" if placed.fits < placed.replicas else every
        return f"Would be placed on {which} {pluralize(placed.replicas, 'node')} of its DaemonSet"
    best = placed.feasible[0]
    equal = sum(each.key == best.key for each in placed.feasible) - 1
    also = f" ({pluralize(equal, 'other node')} as good)" if equal else ""
    name = paint(sanitize(placed.node_name(best.node)), TextStyle.GOOD)
    fixed = " (fixed by spec.nodeName: the scheduler is bypassed)" if placed.fixed_node else ""
    notes = filter(None, (_partial_text(placed, best.node), _unhealthy_gpus_text(best.links)))
    which = f"{_gpu_set_text(best.links)}{_unknown_gpus_text(placed, best)}{''.join(f'; {note}' for note in notes)}"
    if not placed.replicas:
        which += "; it has no replicas"
    elif placed.fits < placed.replicas:
        which += f"; {placed.fits} of {placed.replicas} replicas fit now"
    return f"Would be placed on {name}{also}{fixed}{which}"


def _gpu_set_text(links: GpuLinks | None) -> str:
    if links is None or not links.gpus:
        return ""
    text = f", GPUs {gpu_list(links.gpus)}"
    if links.gpus == links.optimal:
        return text
    return f"{text}: the device plugin's choice; {gpu_list(links.optimal)} would be best"


def _unknown_gpus_text(placed: PlacementResult, best: RankedNode) -> str:
    if best.links is None or best.links.gpus:
        return ""
    if best.confidence is TopologyConfidence.MEASURED:
        if placed.snapshot.devices[best.node].free is not None:
            return ""
        reason = AGENT_DISAGREES
    else:
        error = placed.snapshot.report_errors.get(placed.node_name(best.node), "")
        reason = f"its agent's report cannot be used: {sanitize(error)}" if error else "no agent runs there"
    return f" (it is unknown which GPUs are free: {reason})"


def _unhealthy_gpus_text(links: GpuLinks | None) -> str:
    if links is None or not links.unhealthy:
        return ""
    return f"{'gets' if links.gpus else 'may get'} unhealthy GPUs {gpu_list(links.unhealthy)}"


def _free_cell(row: PlacementRow) -> str:
    resource = row.result.request.resource
    return str(row.result.snapshot.free[row.node].gpus.get(resource, 0)) if resource else ""


def _gpus_cell(row: PlacementRow) -> str:
    """Return the indices of GPUs that the device plugin would choose, and the devices that claims would get."""
    links = row.ranked.links if row.ranked else None
    devices = [each.device.device for each in row.result.devices.get(row.node, ())] if row.ranked else []
    return sanitize(", ".join(filter(None, (gpu_list(links.gpus) if links else "", abbreviate_names(devices)))))


def _links_cell(request: PodRequirements, ranked: RankedNode | None) -> str:
    links = ranked.links if ranked else None
    if links is None or largest_request(request.container_requests) < 2:
        return ""
    at_least = "" if links.gpus else "at least "
    return f"{at_least}{links.quality.slowest / 1000:.0f} GB/s {'NVLink' if links.nvlink_connected else 'PCIe'}"


def _reason_cell(row: PlacementRow) -> str:
    if row.ranked is None:
        return "; ".join(reason.detail for reason in row.reasons)
    gang = row.result.gang
    domain = other_domain_reason(gang, node_domain(row.result.snapshot, row.node, gang.label)) if gang else ""
    partial = _partial_text(row.result, row.node)
    return "; ".join(filter(None, (partial, _unhealthy_gpus_text(row.ranked.links), domain)))


def _partial_text(placed: PlacementResult, node: int) -> str:
    """Return what a request for whole GPUs gets on a node with slices or shares; "" on others."""
    return partial_gpu_text(placed.snapshot, WHOLE_GPU, node) if placed.request.resource == WHOLE_GPU else ""


def node_domain(snapshot: SchedulingSnapshot, node: int, label: str) -> str:
    """Return the domain that a node's label names; "" without the label."""
    return snapshot.fleet.nodes[node].labels.get(label, "")


def _namespaced_pod_name(pod: Pod) -> str:
    return f"{pod.metadata.namespace or 'default'}/{pod_display_name(pod)}"


def placement_document(placed: PlacementResult) -> dict[str, Any]:
    """Return the placement as plain data."""
    nearest = placed.nearest
    return {
        "object": placed.title,
        "template": placed.template,
        "denied": placed.denied,
        "resource": placed.request.resource,
        "count": placed.request.count,
        "keepReason": placed.keep_reason,
        "nodes": [_feasible_node_document(placed, each) for each in placed.feasible],
        "rejected": {
            placed.node_name(node): [{"scheduler": each.scheduler_message, "detail": each.detail} for each in reasons]
            for node, reasons in placed.reasons.items()
        },
        "gang": gang_document(placed.gang) if placed.gang else None,
        "unevaluated": placed.unevaluated,
        "eachNode": placed.on_each_node,
        "replicas": placed.replicas,
        "admitted": placed.admitted,
        "fits": min(placed.fits, placed.replicas) if placed.feasible else 0,
        "nearest": nearest
        and {"node": placed.node_name(nearest.node), "pods": list(map(_namespaced_pod_name, nearest.pods))},
    }


def _feasible_node_document(placed: PlacementResult, each: RankedNode) -> dict[str, Any]:
    links = each.links
    document: dict[str, Any] = {
        "node": placed.node_name(each.node),
        "score": each.score,
        "links": each.confidence,
        "partial": _partial_text(placed, each.node),
    }
    if links:
        document |= {"gpus": links.gpus, "optimal": links.optimal, "nvlinkConnected": links.nvlink_connected}
        document |= {"unhealthy": links.unhealthy, "slowestMBs": links.quality.slowest}
    if devices := placed.devices.get(each.node):
        document["devices"] = [{"request": one.request, **one.device._asdict()} for one in devices]
    if placed.gang:
        document["domain"] = node_domain(placed.snapshot, each.node, placed.gang.label)
    return document


def gang_line(gang: GangPlacement) -> str:
    """Return who runs together, and how many of them fit into the domain of the chosen node."""
    name = f"Gang {sanitize(gang.name)}" if gang.name else "Its workload"
    size = f" of {pluralize(gang.size, 'pod')}" if gang.size else ", of unknown size"
    placed = sum(gang.placed_by_domain.values())
    also = f", {placed} of them placed" if placed else ""
    return f"{name}{size}{also}, in one domain of {sanitize(gang.label)}: {_gang_domain_text(gang)}"


def _gang_domain_text(gang: GangPlacement) -> str:
    if not gang.best_domain:
        return "no suitable node has that label"
    best = sanitize(gang.best_domain)
    if not gang.size:
        return f"{best} has capacity for {pluralize(gang.best_capacity, 'such pod')}"
    pods = f"it and {pluralize(gang.pending - 1, 'other')}" if gang.pending > 1 else "it"
    if gang.best_capacity >= gang.pending:
        return f"{best} has capacity for {pods}"
    missing = gang.pending - gang.best_capacity
    return f"no domain has capacity for {pods}; {best} is nearest, with {gang.best_capacity}: {missing} too few"


def other_domain_reason(gang: GangPlacement, domain: str) -> str:
    """Return why another domain ranks after the chosen one; "" if it is the same or as good."""
    if not gang.best_domain or domain == gang.best_domain:
        return ""
    if not domain:
        return f"has no label {sanitize(gang.label)}"
    name, best = sanitize(domain), sanitize(gang.best_domain)
    capacity, placed = gang.capacity_by_domain.get(domain, 0), gang.placed_by_domain.get(domain, 0)
    if capacity < gang.pending <= gang.best_capacity:
        return f"{name} has capacity for {capacity} of the {gang.pending} pending pods"
    if placed < gang.placed_by_domain.get(gang.best_domain, 0):
        return f"{name} has {placed} of the gang, {best} {gang.placed_by_domain[gang.best_domain]}"
    if capacity < gang.best_capacity and (not gang.size or gang.best_capacity < gang.pending):
        return f"{name} has capacity for {capacity}, {best} for {gang.best_capacity}"
    if capacity > gang.best_capacity >= gang.pending and gang.size:
        return f"{name} has capacity for {capacity}: {best} is the smallest that fits all"
    return ""


def gang_document(gang: GangPlacement) -> dict[str, Any]:
    """Return the gang as plain data."""
    return {
        "name": gang.name,
        "size": gang.size,
        "placed": sum(gang.placed_by_domain.values()),
        "label": gang.label,
        "domain": gang.best_domain,
        "pending": gang.pending,
        "capacity": gang.best_capacity,
        "domains": {name: count for name, count in gang.capacity_by_domain.items() if name},
    }
