"""`explain -f`: what was asked, what became of it, and why, for one object."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from webhook.model.annotations import (
    DECISION_ANNOTATION,
    KEEP_ANNOTATION,
    ORIGINAL_ANNOTATION,
    DecisionRecord,
    parse_decision_record,
    parse_original_resources,
)
from webhook.model.decisions import NEEDS_NODES, Decision, KeepRequest, OfferChoice
from webhook.model.events import CoreEvent
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.offers import GpuOffer
from webhook.model.pods import ResourceRequirements
from webhook.report.check import finding_lines, finding_sentence
from webhook.report.object_diff import apply_json_patch, diff_lines
from webhook.report.results import CheckResult, CheckVerdict
from webhook.report.text import Paint, TextStyle, format_gpus_with_unit, pluralize, sanitize, without_style

EVENT_SOURCE = "rightslice"
MAX_EVENTS = 10
MAX_EVENT_TEXT = 400

KnownUids = Mapping[tuple[str, str], Set[str]]
"""Of objects by kind and name, the uids that they go by."""

NO_UIDS: KnownUids = MappingProxyType({})


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
        yield (
            f"{INDENT}On trial  {sanitize(', '.join(decision.audit_policies))}: the "
            f"workload is not in the share of the rollout"
        )
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
        yield from (
            f"{INDENT * 2}{line}" for found in result.findings for line in finding_lines(found, result.title, paint)
        )
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
        yield f"Outcome   not right-sized: {sanitize(str(fit))}"
        return
    yield f"Needs     {sanitize(fit.need.words)}"
    verb = "becomes" if decision.applied else "would become"
    saved = decision.gpu_milli_before - decision.gpu_milli_after
    said = (
        f", saves {format_gpus_with_unit(saved)}" if decision.applied else f" of {format_gpus_with_unit(fit.gpu_milli)}"
    )
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


def event_lines(events: Iterable[CoreEvent], known: KnownUids = NO_UIDS) -> Iterator[str]:
    """One line an Event; one for all that a controller said alike of several of its pods.

    Args:
        events: About the pod, and about its controller.
        known: Their uids: what was said about an earlier object of the same name is left out.

    Yields:
        Lines without their ends; none where nobody said anything.
    """
    groups: defaultdict[tuple[str, ...], list[CoreEvent]] = defaultdict(list)
    told = (each for each in events if _is_relevant_event(each) and not _is_about_another_object(each, known))
    for each in sorted(told, key=lambda each: each.last_seen, reverse=True):
        groups[_event_group_key(each)].append(each)
    lines = list(map(_event_group_line, groups.values()))
    for i, line in enumerate(lines[:MAX_EVENTS]):
        yield f"{'' if i else 'Events':<10}{line}"
    if len(lines) > MAX_EVENTS:
        yield f"{'':<10}and {pluralize(len(lines) - MAX_EVENTS, 'older Event')}"


def _is_relevant_event(event: CoreEvent) -> bool:
    return event.reporter.startswith(EVENT_SOURCE) or event.type == "Warning"


def _is_about_another_object(event: CoreEvent, known: KnownUids) -> bool:
    about = event.involved_object
    uids = known.get((about.kind, about.name), ())
    return bool(about.uid and uids and about.uid not in uids)


def _event_group_key(event: CoreEvent) -> tuple[str, ...]:
    """The same for what is said about several objects that bear the name of the one which made them."""
    about = event.involved_object
    made = re.compile(rf"(?<![\w.-]){re.escape(about.name)}-[a-z0-9-]+(?![\w.-])", re.ASCII)
    message = made.sub("*", event.message) if about.kind != "Pod" else event.message
    return about.kind, about.name, event.reporter, event.reason, message


def _event_group_line(alike: list[CoreEvent]) -> str:
    """The newest of them, and how often it was said in all."""
    event, number = alike[0], sum(each.occurrences for each in alike)
    about = f"{event.involved_object.kind}/{event.involved_object.name}"
    times = f", {number} times" if number > 1 else ""
    words = " ".join(event.message.split())[:MAX_EVENT_TEXT]
    return sanitize(
        f"{event.last_seen or 'at some time'}  {event.reason} on {about} ({event.reporter}{times}): {words}"
    )


def record_lines(annotations: Mapping[str, Any]) -> Iterator[str]:
    """What was changed, by which policies, on what evidence, what it asked before, and the way out.

    Yields:
        Lines without their ends; none where there is no record that Rightslice can have written.
    """
    record = parse_decision_record(str(annotations.get(DECISION_ANNOTATION, "")))
    if record is None:
        return
    yield f"Record    Rightslice changed {sanitize(', '.join(record.changed) or 'nothing')} when it was created"
    yield f"{'By':<10}{sanitize(_record_policies(record))} (digest of all policies then: {record.digest})"
    yield from _unchanging_policies_line(record)
    yield from _resize_lines(record, parse_original_resources(str(annotations.get(ORIGINAL_ANNOTATION, ""))))


def _record_policies(record: DecisionRecord) -> str:
    """Which policy changed what; of a record that does not say, all that spoke."""
    parts = [f"{policy}: {', '.join(changed)}" for policy, changed in record.by.items()]
    return "; ".join(parts) or ", ".join(record.policies) or "no policy named"


def _unchanging_policies_line(record: DecisionRecord) -> Iterator[str]:
    """Those that spoke and changed nothing."""
    others = [policy for policy in record.policies if policy not in record.changing_policies]
    if others:
        yield f"{'Spoke':<10}{sanitize(', '.join(others))}, and changed nothing"


def _resize_lines(record: DecisionRecord, before: Mapping[str, ResourceRequirements] | None) -> Iterator[str]:
    """Why it got another form of GPU; nothing where it did not."""
    if before:
        yield f"{'Before':<10}{sanitize(', '.join(_original_gpu_requests(before)))}"
    if record.offer == WHOLE_GPU and not before:
        yield f"{'Before':<10}it asked for {WHOLE_GPU}, as it does now: the name stayed, node affinity says which"
    if record.offer and record.milli:
        yield (
            f"{'Now':<10}{format_gpus_with_unit(record.milli)} in place of each whole "
            f"GPU asked for, as {sanitize(record.offer)}"
        )
    if record.offer:
        yield f"{'Because':<10}it needs {sanitize(record.need)}, and {sanitize(record.offer)} has that"
        yield f'{"Way out":<10}{KEEP_ANNOTATION}: "true" as an annotation, of the workload\'s template where it has one'


def _original_gpu_requests(before: Mapping[str, ResourceRequirements]) -> Iterator[str]:
    for container, resources in before.items():
        for name, amount in (resources.requests | resources.limits).items():
            if parse_gpu_resource(name) is not None:
                yield f"{container}: {name} {amount}"
