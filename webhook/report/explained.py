"""`explain -f`: what was asked, what became of it, and why, for one object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from webhook.model.decisions import NEEDS_NODES, Decision, Fit, Keep
from webhook.model.offers import Offer
from webhook.model.resources import gpu_resource
from webhook.report.diff import apply, diff
from webhook.report.recorded import recorded
from webhook.report.results import Checked, Verdict
from webhook.report.table import block, sentence
from webhook.report.words import Paint, Style, count, in_gpus, plain, shown

INDENT = "  "

NOT_KNOWN = ("Outcome   not known: no cluster is given. Give --cluster SNAPSHOT, or --cluster demo",)


def explained(result: Checked, paint: Paint = plain, events: Sequence[str] = ()) -> Iterator[str]:
    """Write the way of one object through the engine.

    Args:
        result: What it came to.
        paint: Colours.
        events: What Events say about it, as lines.

    Yields:
        Lines without their ends.
    """
    yield paint(shown(f"{result.title or 'document'}  {result.place}"), Style.STRONG)
    if result.verdict is Verdict.SKIPPED:
        yield f"{INDENT}Skipped   {shown(result.reason)}"
        return
    decision = result.decision
    for line in history(result, events):
        yield f"{INDENT}{line}"
    yield f"{INDENT}Verdict   {result.verdict}"
    yield f"{INDENT}Asked     {in_gpus(decision.gpu_milli_before)}{asked(result.stored)}"
    yield f"{INDENT}Policies  {shown(', '.join(decision.policies)) or 'none speaks about this object'}"
    if decision.outside:
        yield f"{INDENT}On trial  {shown(', '.join(decision.outside))}: the workload is not in the share of the rollout"
    for line in NOT_KNOWN if result.nodeless and _asks_nodes(decision) else outcome(decision):
        yield f"{INDENT}{line}"
    yield from _sections(result, paint)


def history(result: Checked, events: Sequence[str] = ()) -> Iterator[str]:
    """How a pod came to be what it is; nothing for what is in no cluster yet."""
    if result.node is None:
        return
    where = f"on node {shown(result.node)}" if result.node else "waits for a node"
    yield f"In place  {where}, and stays as it is"
    yield from recorded(_map(_map(result.stored.get("metadata")).get("annotations")))
    yield from events
    yield "Anew      what would become of it if it were created again now:"


def _sections(result: Checked, paint: Paint) -> Iterator[str]:
    changed = diff(result.stored, apply(result.stored, result.decision.patch), paint)
    if changed:
        yield f"{INDENT}Changed"
        yield from (f"{INDENT * 2}{line}" for line in changed)
    if result.findings:
        yield f"{INDENT}Findings"
        yield from (f"{INDENT * 2}{line}" for found in result.findings for line in block(found, result.title, paint))
    if result.decision.exempted:
        yield f"{INDENT}Exempted"
    for taken in result.decision.exempted:
        until = f"by {taken.exemption}, until {taken.expires}"
        yield f"{INDENT * 2}{taken.finding.code}  {sentence(taken.finding)} ({shown(until)})"


def _asks_nodes(decision: Decision) -> bool:
    """Is the outcome one that only the nodes of a cluster can give?"""
    return isinstance(decision.outcome, Keep) and decision.outcome.why in NEEDS_NODES


def outcome(decision: Decision) -> Iterator[str]:
    """What the request for GPUs came to, in words."""
    if not decision.touches_gpus:
        yield "Outcome   it has nothing to do with GPUs"
        return
    fit = decision.outcome
    if not isinstance(fit, Fit):
        yield f"Outcome   stays as it is: {shown(str(fit))}"
        return
    yield f"Needs     {shown(fit.need.words)}"
    verb = "becomes" if decision.applied else "would become"
    saved = decision.gpu_milli_before - decision.gpu_milli_after
    said = f", saves {in_gpus(saved)}" if decision.applied else f" of {in_gpus(fit.gpu_milli)}"
    yield f"Outcome   {verb} {shown(fit.resource)}{said} ({shown(fit.policy)})"
    yield from (f"{'Offer':<10}{offer_words(offer)}" for offer in fit.offers)


def offer_words(offer: Offer) -> str:
    """One form of GPU, for people."""
    memory = f"{offer.memory_mib} MiB" if offer.memory_mib is not None else "memory not known"
    product = offer.product or "product not labelled"
    nodes = count(offer.nodes.bit_count(), "node")
    return shown(f"{offer.resource} on {product}: {memory}, {offer.isolation} isolation, {nodes}")


def asked(data: Any) -> str:
    """The GPU resources that the containers of a pod name, in brackets; "" for other objects."""
    each = [f"{name}: {resource} {amount}" for name, resource, amount in _gpu_requests(data)]
    return f" ({shown(', '.join(each))})" if each else ""


def _gpu_requests(data: Any) -> Iterator[tuple[str, str, object]]:
    spec = _map(_map(data).get("spec"))
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or () if isinstance(spec.get(key), list) else ():
            limits = _map(_map(_map(container).get("resources")).get("limits"))
            for resource, amount in limits.items():
                if gpu_resource(str(resource)) is not None:
                    yield str(_map(container).get("name", "")), str(resource), amount


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
