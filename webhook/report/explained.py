"""`explain -f`: what was asked, what became of it, and why, for one object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from webhook.model.decisions import NEEDS_NODES, Decision, OfferChoice, KeepRequest
from webhook.model.offers import GpuOffer
from webhook.model.resources import parse_gpu_resource
from webhook.report.diff import apply_json_patch, diff_lines
from webhook.report.recorded import record_lines
from webhook.report.results import CheckResult, CheckVerdict
from webhook.report.table import finding_lines, finding_sentence
from webhook.report.words import Paint, TextStyle, pluralize, format_gpus_with_unit, without_style, sanitize

INDENT = "  "

OUTCOME_UNKNOWN = ("Outcome   not known: no cluster is given. Give --cluster SNAPSHOT, or --cluster demo",)


def explain_lines(result: CheckResult, paint: Paint = without_style, events: Sequence[str] = ()) -> Iterator[str]:
    """Write the way of one object through the engine.

    Args:
        result: What it came to.
        paint: Colours.
        events: What Events say about it, as lines.

    Yields:
        Lines without their ends.
    """
    yield paint(sanitize(f"{result.title or 'document'}  {result.place}"), TextStyle.STRONG)
    if result.verdict is CheckVerdict.SKIPPED:
        yield f"{INDENT}Skipped   {sanitize(result.reason)}"
        return
    decision = result.decision
    for line in pod_history_lines(result, events):
        yield f"{INDENT}{line}"
    yield f"{INDENT}Verdict   {result.verdict}"
    yield f"{INDENT}Asked     {format_gpus_with_unit(decision.gpu_milli_before)}{gpu_requests_text(result.stored)}"
    yield f"{INDENT}Policies  {sanitize(', '.join(decision.policies)) or 'none speaks about this object'}"
    if decision.audit_policies:
        yield f"{INDENT}On trial  {sanitize(', '.join(decision.audit_policies))}: the workload is not in the share of the rollout"
    for line in OUTCOME_UNKNOWN if result.without_nodes and _outcome_needs_nodes(decision) else outcome_lines(decision):
        yield f"{INDENT}{line}"
    yield from _explain_sections(result, paint)


def pod_history_lines(result: CheckResult, events: Sequence[str] = ()) -> Iterator[str]:
    """How a pod came to be what it is; nothing for what is in no cluster yet."""
    if result.node is None:
        return
    where = f"on node {sanitize(result.node)}" if result.node else "waits for a node"
    yield f"In place  {where}, and stays as it is"
    yield from record_lines(_dict_or_empty(_dict_or_empty(result.stored.get("metadata")).get("annotations")))
    yield from events
    yield "Anew      what would become of it if it were created again now:"


def _explain_sections(result: CheckResult, paint: Paint) -> Iterator[str]:
    changed = diff_lines(result.stored, apply_json_patch(result.stored, result.decision.patch), paint)
    if changed:
        yield f"{INDENT}Changed"
        yield from (f"{INDENT * 2}{line}" for line in changed)
    if result.findings:
        yield f"{INDENT}Findings"
        yield from (f"{INDENT * 2}{line}" for found in result.findings for line in finding_lines(found, result.title, paint))
    if result.decision.exempted:
        yield f"{INDENT}Exempted"
    for taken in result.decision.exempted:
        until = f"by {taken.exemption}, until {taken.expires}"
        yield f"{INDENT * 2}{taken.finding.code}  {finding_sentence(taken.finding)} ({sanitize(until)})"


def _outcome_needs_nodes(decision: Decision) -> bool:
    """Is the outcome one that only the nodes of a cluster can give?"""
    return isinstance(decision.outcome, KeepRequest) and decision.outcome.reason in NEEDS_NODES


def outcome_lines(decision: Decision) -> Iterator[str]:
    """What the request for GPUs came to, in words."""
    if not decision.involves_gpus:
        yield "Outcome   it has nothing to do with GPUs"
        return
    fit = decision.outcome
    if not isinstance(fit, OfferChoice):
        yield f"Outcome   stays as it is: {sanitize(str(fit))}"
        return
    yield f"Needs     {sanitize(fit.need.words)}"
    verb = "becomes" if decision.applied else "would become"
    saved = decision.gpu_milli_before - decision.gpu_milli_after
    said = f", saves {format_gpus_with_unit(saved)}" if decision.applied else f" of {format_gpus_with_unit(fit.gpu_milli)}"
    yield f"Outcome   {verb} {sanitize(fit.resource)}{said} ({sanitize(fit.policy)})"
    yield from (f"{'Offer':<10}{offer_text(offer)}" for offer in fit.offers)


def offer_text(offer: GpuOffer) -> str:
    """One form of GPU, for people."""
    memory = f"{offer.memory_mib} MiB" if offer.memory_mib is not None else "memory not known"
    product = offer.product or "product not labelled"
    nodes = pluralize(offer.nodes.bit_count(), "node")
    return sanitize(f"{offer.resource} on {product}: {memory}, {offer.isolation} isolation, {nodes}")


def gpu_requests_text(data: Any) -> str:
    """The GPU resources that the containers of a pod name, in brackets; "" for other objects."""
    each = [f"{name}: {resource} {amount}" for name, resource, amount in _container_gpu_requests(data)]
    return f" ({sanitize(', '.join(each))})" if each else ""


def _container_gpu_requests(data: Any) -> Iterator[tuple[str, str, object]]:
    spec = _dict_or_empty(_dict_or_empty(data).get("spec"))
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or () if isinstance(spec.get(key), list) else ():
            limits = _dict_or_empty(_dict_or_empty(_dict_or_empty(container).get("resources")).get("limits"))
            for resource, amount in limits.items():
                if parse_gpu_resource(str(resource)) is not None:
                    yield str(_dict_or_empty(container).get("name", "")), str(resource), amount


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
