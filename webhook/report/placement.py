"""Where a pod would go: the nodes that take it, in order; why not the others; what is nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from webhook.model.pods import Pod, pod_display_name
from webhook.placement.nodes.device_plugin import largest_request
from webhook.placement.nodes.filtering import FilterReason
from webhook.placement.nodes.gpu_links import GpuLinks
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.preemption import PreemptionPlan
from webhook.placement.nodes.ranking import RankedNode
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.topology import TopologyConfidence
from webhook.report.capacity import AGENT_DISAGREES
from webhook.report.text import Paint, TextStyle, align_columns, pluralize, sanitize, without_style


class GangPlacement(NamedTuple):
    """Pods that run together, and the domains where they find room.

    Attributes:
        name: What they have in common; "" for the pods of one workload.
        size: How many they are; 0 where nobody says.
        rest: How many of them need a place, the pod itself too, as far as anybody knows.
        label: The node label whose values name domains.
        rooms: How many such pods the nodes of each domain take now; "" for nodes without the label.
        seated: How many of the others each domain has already.
        best: The domain of the node it goes to; "" where that has none.
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
        """How many such pods the chosen domain takes."""
        return self.capacity_by_domain.get(self.best_domain, 0) if self.best_domain else 0


HEAD = ("NODE", "FREE", "GPUS", "LINKS", "WHY-NOT")


class PlacementResult(msgspec.Struct, frozen=True):
    """What became of one pod.

    Attributes:
        title: Kind, namespace and name.
        denied: Codes for which the webhook would refuse it.
        wanted: What it asks for, as the webhook shapes it.
        cluster: Where it would go.
        ranked: The nodes that take it, the best first.
        reasons: Why not, by position of the node.
        freed: Where none takes it, who would have to end.
        replicas: How many there are to be of it.
        fits: How many of it the nodes take as they are.
        fixed: The node that it names itself; "" where a scheduler chooses.
        together: Those that it runs together with; None for a pod on its own.
        everywhere: True where each node that lets it in is to have one: as many replicas are wanted.
        unseen: What a scheduler asks for it, and was not looked at.
    """

    title: str
    denied: tuple[str, ...]
    request: PodRequirements
    cluster: SchedulingSnapshot
    feasible: tuple[RankedNode, ...]
    reasons: dict[int, tuple[FilterReason, ...]]
    nearest: PreemptionPlan | None
    replicas: int = 1
    fits: int = 1
    fixed_node: str = ""
    gang: GangPlacement | None = None
    on_each_node: bool = False
    unevaluated: tuple[str, ...] = ()


def placement_lines(placed: PlacementResult, paint: Paint = without_style) -> list[str]:
    """The answer first, then every node, then the way out."""
    rows = [_feasible_node_row(placed, each) for each in placed.feasible]
    rows += [_rejected_node_row(placed, node, reasons) for node, reasons in placed.reasons.items()]
    head, *table = align_columns([HEAD, *rows])
    lines = [
        f"{sanitize(placed.title)}   wants {_request_text(placed.request)}",
        f"  {_placement_answer(placed, paint)}",
    ]
    if placed.gang and placed.feasible:
        lines.append(f"  {gang_line(placed.gang)}")
    if placed.unevaluated and placed.feasible:
        lines.append(
            f"  Not looked at: {sanitize(', '.join(placed.unevaluated))}. A scheduler may refuse what fits here."
        )
    if placed.denied:
        lines.append(f"  The webhook would refuse it: {', '.join(placed.denied)}. See rightslice check.")
    return [*lines, "", paint(head, TextStyle.STRONG), *table, *_preemption_lines(placed)]


def _request_text(wanted: PodRequirements) -> str:
    parts = [f"{units} {resource}" for resource, units in wanted.gpu_resources]
    parts += [f"{wanted.cpu_milli / 1000:g} cores", f"{wanted.memory_mib / 1024:.4g} GiB"]
    joined = ", joined by NVLink" if wanted.nvlink_required else ""
    each = " in each container" if joined and len(wanted.container_requests) > 1 else ""
    return ", ".join(parts) + joined + each


def _placement_answer(placed: PlacementResult, paint: Paint) -> str:
    if placed.fixed_node and placed.fixed_node not in placed.cluster.fleet.by_name:
        return paint(f"spec.nodeName says {sanitize(placed.fixed_node)}, and there is no such node.", TextStyle.BAD)
    if not placed.feasible:
        return paint("No node takes it now.", TextStyle.BAD)
    if placed.on_each_node:
        return _each_node_answer(placed)
    best = placed.feasible[0]
    equal = sum(each.key == best.key for each in placed.feasible) - 1
    also = f" ({pluralize(equal, 'other node')} as good)" if equal else ""
    name = paint(sanitize(_placement_node_name(placed, best.node)), TextStyle.GOOD)
    fixed = " (fixed by spec.nodeName: no scheduler is asked)" if placed.fixed_node else ""
    which = f"{_gpu_set_text(best.links)}{_unknown_gpus_text(placed, best)}{_unhealthy_gpus_text(best.links, '; ')}"
    return f"Goes to {name}{also}{fixed}{which}{_replicas_text(placed)}"


def _each_node_answer(placed: PlacementResult) -> str:
    all_ = "each of the" if placed.replicas > 1 else "the"
    few = f"{placed.fits} of the" if placed.fits < placed.replicas else all_
    return f"Goes to {few} {pluralize(placed.replicas, 'node')} that its DaemonSet wants it on"


def _replicas_text(placed: PlacementResult) -> str:
    if not placed.replicas:
        return "; it has no replicas"
    few = placed.fits < placed.replicas
    return f"; {placed.fits} of {placed.replicas} replicas fit now" if few else ""


def _gpu_set_text(links: GpuLinks | None) -> str:
    if links is None or not links.gpus:
        return ""
    text = f", GPUs {_gpu_indexes_text(links.gpus)}"
    if links.gpus == links.optimal:
        return text
    return f"{text}: the device plugin's choice; {_gpu_indexes_text(links.optimal)} would be the best"


def _unknown_gpus_text(placed: PlacementResult, best: RankedNode) -> str:
    if best.links is None or best.links.gpus:
        return ""
    if best.confidence is TopologyConfidence.MEASURED:
        unknown = placed.cluster.devices[best.node].free is None
        return f" (which GPUs are free is not known: {AGENT_DISAGREES})" if unknown else ""
    unusable = placed.cluster.report_errors.get(_placement_node_name(placed, best.node), "")
    why = f"its agent's report cannot be used: {sanitize(unusable)}" if unusable else "no agent runs there"
    return f" (which GPUs are free is not known: {why})"


def _unhealthy_gpus_text(links: GpuLinks | None, before: str = "") -> str:
    """Which ill GPUs a pod gets, or may get."""
    if links is None or not links.unhealthy:
        return ""
    return f"{before}{'gets' if links.gpus else 'may get'} what is ill: GPUs {_gpu_indexes_text(links.unhealthy)}"


def _feasible_node_row(placed: PlacementResult, each: RankedNode) -> tuple[str, ...]:
    links = each.links
    gpus = _gpu_indexes_text(links.gpus) if links and links.gpus else "-"
    return (
        sanitize(_placement_node_name(placed, each.node)),
        _free_gpus_cell(placed, each.node),
        gpus,
        _links_cell(placed.request, links),
        "; ".join(filter(None, (_unhealthy_gpus_text(links), _gang_domain_reason(placed, each)))),
    )


def _gang_domain_reason(placed: PlacementResult, each: RankedNode) -> str:
    """Why its domain comes after the chosen one."""
    return (
        other_domain_reason(placed.gang, node_domain(placed.cluster, each.node, placed.gang.label))
        if placed.gang
        else ""
    )


def node_domain(cluster: SchedulingSnapshot, node: int, label: str) -> str:
    """The domain that a node's label names; "" where it has no such label."""
    return cluster.fleet.nodes[node].labels.get(label, "")


def _links_cell(wanted: PodRequirements, links: GpuLinks | None) -> str:
    if links is None or largest_request(wanted.container_requests) < 2:
        return "-"
    least = "" if links.gpus else "at least "
    kind = "NVLink" if links.joined else "PCIe"
    return f"{least}{links.quality.slowest / 1000:.0f} GB/s {kind}"


def _rejected_node_row(placed: PlacementResult, node: int, reasons: Sequence[FilterReason]) -> tuple[str, ...]:
    why = "; ".join(sanitize(reason.detail) for reason in reasons)
    return (sanitize(_placement_node_name(placed, node)), _free_gpus_cell(placed, node), "-", "-", why)


def _preemption_lines(placed: PlacementResult) -> list[str]:
    if placed.nearest is None:
        return []
    pods = " and ".join(f"{sanitize(_namespaced_pod_name(pod))}" for pod in placed.nearest.pods)
    return [
        "",
        f"Nearest  {sanitize(_placement_node_name(placed, placed.nearest.node))}: if {pods} ended, it would fit.",
    ]


def _namespaced_pod_name(pod: Pod) -> str:
    return f"{pod.metadata.namespace or 'default'}/{pod_display_name(pod)}"


def _placement_node_name(placed: PlacementResult, node: int) -> str:
    return placed.cluster.fleet.nodes[node].name


def _free_gpus_cell(placed: PlacementResult, node: int) -> str:
    return str(placed.cluster.free[node].gpus.get(placed.request.resource, 0)) if placed.request.resource else "-"


def _gpu_indexes_text(gpus: Sequence[int]) -> str:
    return ",".join(map(str, gpus))


def placement_document(placed: PlacementResult) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "object": placed.title,
        "denied": placed.denied,
        "resource": placed.request.resource,
        "count": placed.request.count,
        "nodes": [_feasible_node_document(placed, each) for each in placed.feasible],
        "refused": {
            _placement_node_name(placed, node): [
                {"scheduler": each.scheduler_message, "detail": each.detail} for each in reasons
            ]
            for node, reasons in placed.reasons.items()
        },
        "gang": gang_document(placed.gang) if placed.gang else None,
        "unevaluated": placed.unevaluated,
        "eachNode": placed.on_each_node,
        "replicas": placed.replicas,
        "fits": min(placed.fits, placed.replicas) if placed.feasible else 0,
        "nearest": {
            "node": _placement_node_name(placed, placed.nearest.node),
            "pods": [_namespaced_pod_name(pod) for pod in placed.nearest.pods],
        }
        if placed.nearest
        else None,
    }


def _feasible_node_document(placed: PlacementResult, each: RankedNode) -> dict[str, Any]:
    links = each.links
    told = (
        {"gpus": links.gpus, "optimal": links.optimal, "joined": links.joined, "unhealthy": links.unhealthy}
        if links
        else {}
    )
    slowest = {"slowestMBs": links.quality.slowest} if links else {}
    domain = {"domain": node_domain(placed.cluster, each.node, placed.gang.label)} if placed.gang else {}
    return {
        "node": _placement_node_name(placed, each.node),
        "score": each.score,
        "links": each.confidence,
        **told,
        **slowest,
        **domain,
    }


def gang_line(gang: GangPlacement) -> str:
    """Who runs together, and how many of them find a place in the domain that the pod goes to."""
    who = f"Gang {sanitize(gang.name)}" if gang.name else "Its workload"
    size = f" of {pluralize(gang.size, 'pod')}" if gang.size else ", of how many pods nobody says"
    placed = sum(gang.placed_by_domain.values())
    there = f", {placed} of them placed" if placed else ""
    return f"{who}{size}{there}, in one domain by {sanitize(gang.label)}: {_gang_domain_text(gang)}"


def _gang_domain_text(gang: GangPlacement) -> str:
    if not gang.best_domain:
        return "no node that takes it carries that label"
    best = sanitize(gang.best_domain)
    if not gang.size:
        return f"{best} takes {gang.best_capacity} such pods"
    if gang.best_capacity >= gang.pending:
        return f"{best} takes {_gang_members_text(gang.pending)}"
    missing = gang.pending - gang.best_capacity
    return (
        f"no domain takes {_gang_members_text(gang.pending)}. {best} comes nearest, with "
        f"room for {gang.best_capacity}: {missing} too few"
    )


def _gang_members_text(rest: int) -> str:
    return f"it and {pluralize(rest - 1, 'other')}" if rest > 1 else "it"


def other_domain_reason(gang: GangPlacement, domain: str) -> str:
    """Why the domain of another node comes after the chosen one; "" where it is that one, or as good."""
    if not gang.best_domain or domain == gang.best_domain:
        return ""
    if not domain:
        return f"has no label {sanitize(gang.label)}"
    name, best = sanitize(domain), sanitize(gang.best_domain)
    room, there = gang.capacity_by_domain.get(domain, 0), gang.placed_by_domain.get(domain, 0)
    if room < gang.pending <= gang.best_capacity:
        return f"{name} has room for {room} of the {gang.pending} that need a place"
    if there < gang.placed_by_domain.get(gang.best_domain, 0):
        return f"{name} has {there} of the gang, {best} {gang.placed_by_domain[gang.best_domain]}"
    if room < gang.best_capacity and (not gang.size or gang.best_capacity < gang.pending):
        return f"{name} has room for {room}, {best} for {gang.best_capacity}"
    if room > gang.best_capacity >= gang.pending and gang.size:
        return f"{name} has room for {room}: {best} is the smallest that takes all"
    return ""


def gang_document(gang: GangPlacement) -> dict[str, Any]:
    """The same as plain data."""
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
