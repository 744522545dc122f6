"""Where a pod would go: the nodes that take it, in order; why not the others; what is nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from webhook.model.pods import Pod, name_of
from webhook.placement.nodes.allotting import widest
from webhook.placement.nodes.cluster import Cluster, Wanted
from webhook.placement.nodes.filtering import Reason
from webhook.placement.nodes.freeing import Freed
from webhook.placement.nodes.linking import Links
from webhook.placement.nodes.ranking import Ranked
from webhook.placement.topology import Confidence
from webhook.report.capacities import DISAGREES
from webhook.report.together import Together, together_data, together_line, why_not
from webhook.report.words import Paint, Style, columns, count, plain, shown

HEAD = ("NODE", "FREE", "GPUS", "LINKS", "WHY-NOT")


class Placed(msgspec.Struct, frozen=True):
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
    wanted: Wanted
    cluster: Cluster
    ranked: tuple[Ranked, ...]
    reasons: dict[int, tuple[Reason, ...]]
    freed: Freed | None
    replicas: int = 1
    fits: int = 1
    fixed: str = ""
    together: Together | None = None
    everywhere: bool = False
    unseen: tuple[str, ...] = ()


def placed_lines(placed: Placed, paint: Paint = plain) -> list[str]:
    """The answer first, then every node, then the way out."""
    rows = [_taking(placed, each) for each in placed.ranked]
    rows += [_refusing(placed, node, reasons) for node, reasons in placed.reasons.items()]
    head, *table = columns([HEAD, *rows])
    lines = [f"{shown(placed.title)}   wants {_said(placed.wanted)}", f"  {_answer(placed, paint)}"]
    if placed.together and placed.ranked:
        lines.append(f"  {together_line(placed.together)}")
    if placed.unseen and placed.ranked:
        lines.append(f"  Not looked at: {shown(', '.join(placed.unseen))}. A scheduler may refuse what fits here.")
    if placed.denied:
        lines.append(f"  The webhook would refuse it: {', '.join(placed.denied)}. See rightslice check.")
    return [*lines, "", paint(head, Style.STRONG), *table, *_way_out(placed)]


def _said(wanted: Wanted) -> str:
    parts = [f"{units} {resource}" for resource, units in wanted.gpus]
    parts += [f"{wanted.cpu_milli / 1000:g} cores", f"{wanted.memory_mib / 1024:.4g} GiB"]
    joined = ", joined by NVLink" if wanted.joined else ""
    each = " in each container" if joined and len(wanted.turns) > 1 else ""
    return ", ".join(parts) + joined + each


def _answer(placed: Placed, paint: Paint) -> str:
    if placed.fixed and placed.fixed not in placed.cluster.fleet.by_name:
        return paint(f"spec.nodeName says {shown(placed.fixed)}, and there is no such node.", Style.BAD)
    if not placed.ranked:
        return paint("No node takes it now.", Style.BAD)
    if placed.everywhere:
        return _each_node(placed)
    best = placed.ranked[0]
    equal = sum(each.key == best.key for each in placed.ranked) - 1
    also = f" ({count(equal, 'other node')} as good)" if equal else ""
    name = paint(shown(_name(placed, best.node)), Style.GOOD)
    fixed = " (fixed by spec.nodeName: no scheduler is asked)" if placed.fixed else ""
    which = f"{_set(best.links)}{_unsure(placed, best)}{_sick(best.links, '; ')}"
    return f"Goes to {name}{also}{fixed}{which}{_replicas(placed)}"


def _each_node(placed: Placed) -> str:
    all_ = "each of the" if placed.replicas > 1 else "the"
    few = f"{placed.fits} of the" if placed.fits < placed.replicas else all_
    return f"Goes to {few} {count(placed.replicas, 'node')} that its DaemonSet wants it on"


def _replicas(placed: Placed) -> str:
    if not placed.replicas:
        return "; it has no replicas"
    few = placed.fits < placed.replicas
    return f"; {placed.fits} of {placed.replicas} replicas fit now" if few else ""


def _set(links: Links | None) -> str:
    if links is None or not links.gpus:
        return ""
    text = f", GPUs {_list(links.gpus)}"
    if links.gpus == links.optimal:
        return text
    return f"{text}: the device plugin's choice; {_list(links.optimal)} would be the best"


def _unsure(placed: Placed, best: Ranked) -> str:
    if best.links is None or best.links.gpus:
        return ""
    if best.sure is Confidence.MEASURED:
        unknown = placed.cluster.devices[best.node].free is None
        return f" (which GPUs are free is not known: {DISAGREES})" if unknown else ""
    unusable = placed.cluster.unusable.get(_name(placed, best.node), "")
    why = f"its agent's report cannot be used: {shown(unusable)}" if unusable else "no agent runs there"
    return f" (which GPUs are free is not known: {why})"


def _sick(links: Links | None, before: str = "") -> str:
    """Which ill GPUs a pod gets, or may get."""
    if links is None or not links.ill:
        return ""
    return f"{before}{'gets' if links.gpus else 'may get'} what is ill: GPUs {_list(links.ill)}"


def _taking(placed: Placed, each: Ranked) -> tuple[str, ...]:
    links = each.links
    gpus = _list(links.gpus) if links and links.gpus else "-"
    return (
        shown(_name(placed, each.node)),
        _free(placed, each.node),
        gpus,
        _links(placed.wanted, links),
        "; ".join(filter(None, (_sick(links), _later(placed, each)))),
    )


def _later(placed: Placed, each: Ranked) -> str:
    """Why its domain comes after the chosen one."""
    return (
        why_not(placed.together, domain_of(placed.cluster, each.node, placed.together.label)) if placed.together else ""
    )


def domain_of(cluster: Cluster, node: int, label: str) -> str:
    """The domain that a node's label names; "" where it has no such label."""
    return cluster.fleet.nodes[node].labels.get(label, "")


def _links(wanted: Wanted, links: Links | None) -> str:
    if links is None or widest(wanted.turns) < 2:
        return "-"
    least = "" if links.gpus else "at least "
    kind = "NVLink" if links.joined else "PCIe"
    return f"{least}{links.quality.slowest / 1000:.0f} GB/s {kind}"


def _refusing(placed: Placed, node: int, reasons: Sequence[Reason]) -> tuple[str, ...]:
    why = "; ".join(shown(reason.detail) for reason in reasons)
    return (shown(_name(placed, node)), _free(placed, node), "-", "-", why)


def _way_out(placed: Placed) -> list[str]:
    if placed.freed is None:
        return []
    pods = " and ".join(f"{shown(_pod(pod))}" for pod in placed.freed.pods)
    return ["", f"Nearest  {shown(_name(placed, placed.freed.node))}: if {pods} ended, it would fit."]


def _pod(pod: Pod) -> str:
    return f"{pod.metadata.namespace or 'default'}/{name_of(pod)}"


def _name(placed: Placed, node: int) -> str:
    return placed.cluster.fleet.nodes[node].name


def _free(placed: Placed, node: int) -> str:
    return str(placed.cluster.free[node].gpus.get(placed.wanted.resource, 0)) if placed.wanted.resource else "-"


def _list(gpus: Sequence[int]) -> str:
    return ",".join(map(str, gpus))


def placed_document(placed: Placed) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "object": placed.title,
        "denied": placed.denied,
        "resource": placed.wanted.resource,
        "count": placed.wanted.count,
        "nodes": [_ranked_data(placed, each) for each in placed.ranked],
        "refused": {
            _name(placed, node): [{"scheduler": each.scheduler, "detail": each.detail} for each in reasons]
            for node, reasons in placed.reasons.items()
        },
        "gang": together_data(placed.together) if placed.together else None,
        "notLookedAt": placed.unseen,
        "eachNode": placed.everywhere,
        "replicas": placed.replicas,
        "fits": min(placed.fits, placed.replicas) if placed.ranked else 0,
        "nearest": {"node": _name(placed, placed.freed.node), "pods": [_pod(pod) for pod in placed.freed.pods]}
        if placed.freed
        else None,
    }


def _ranked_data(placed: Placed, each: Ranked) -> dict[str, Any]:
    links = each.links
    told = {"gpus": links.gpus, "optimal": links.optimal, "joined": links.joined, "ill": links.ill} if links else {}
    slowest = {"slowestMBs": links.quality.slowest} if links else {}
    domain = {"domain": domain_of(placed.cluster, each.node, placed.together.label)} if placed.together else {}
    return {"node": _name(placed, each.node), "score": each.score, "links": each.sure, **told, **slowest, **domain}
