"""The result of `explain` for one object: its request, the decision and the reasons; for a running pod its history."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import msgspec

from webhook.model.annotations import (
    DECISION_ANNOTATION,
    KEEP_ANNOTATION,
    ORIGINAL_ANNOTATION,
    DecisionRecord,
    parse_decision_record,
    parse_original_resources,
)
from webhook.model.claims import CLAIM_KINDS, ClaimRequest
from webhook.model.decisions import Decision, KeepReason, OfferChoice, ReplicaCounts
from webhook.model.enums import IsolationLevel
from webhook.model.field_paths import map_at
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX, WHOLE_GPU, parse_gpu_resource
from webhook.model.objects import CoreEvent
from webhook.model.offers import GpuOffer, device_of_class
from webhook.model.pods import ResourceRequirements
from webhook.report.check import ADD_CLUSTER, UNKNOWN_OUTCOME, finding_lines, finding_sentence, offer_with_meaning
from webhook.report.object_diff import apply_json_patch, diff_lines
from webhook.report.results import CheckResult, CheckVerdict
from webhook.report.text import Paint, TextStyle, format_gpus, format_gpus_with_unit, pluralize, sanitize, without_style

EVENT_SOURCE = "rightslice"
MAX_EVENTS = 10
MAX_EVENT_TEXT = 400

KnownUids = Mapping[tuple[str, str], Set[str]]
"""The uids of objects, by kind and name."""

NO_UIDS: KnownUids = MappingProxyType({})

INDENT = "  "

NOTHING_TO_SIZE = frozenset(
    {KeepReason.NO_GPU_REQUEST, KeepReason.CLAIMED, KeepReason.UNKNOWN_CLAIM, KeepReason.ALREADY_SIZED}
)
"""Reasons that are the whole outcome: nothing is kept that could be smaller."""


def explain_lines(result: CheckResult, events: Sequence[str] = (), paint: Paint = without_style) -> Iterator[str]:
    """Yield the lines about one object and the decision on it."""
    yield paint(sanitize(f"{result.title or 'document'}  {result.location}"), TextStyle.STRONG)
    if result.verdict is CheckVerdict.SKIPPED:
        yield f"{INDENT}Skipped   {sanitize(result.reason)}"
        return
    decision = result.decision
    for line in pod_history_lines(result, events):
        yield f"{INDENT}{line}"
    yield f"{INDENT}Verdict   {result.verdict}{', changed' if decision.patch else ''}"
    yield f"{INDENT}Requests  {_requests_text(result)}"
    yield f"{INDENT}Policies  {sanitize(', '.join(decision.policies)) or 'none matches this object'}"
    if decision.audit_policies:
        audit_policies = sanitize(", ".join(decision.audit_policies))
        yield f"{INDENT}Audit     {audit_policies}: the rollout does not include this workload"
    for line in _template_lines(result) if decision.templates else _known_outcome_lines(result, decision):
        yield f"{INDENT}{line}"
    for i, line in enumerate(result.devices):
        yield f"{INDENT}{'' if i else 'Devices':<10}{sanitize(line)}"
    yield from _explain_sections(result, paint)


def pod_history_lines(result: CheckResult, events: Sequence[str] = ()) -> Iterator[str]:
    """Yield the history of a pod that exists in a cluster, or the record on a claim; nothing for other objects."""
    if result.decision.right_sizing_outcome == KeepReason.ALREADY_SIZED:
        yield from claim_record_lines(result.stored)
    if result.node is None:
        return
    state = f"Running   on node {sanitize(result.node)}" if result.node else "Pending   no node yet"
    yield f"{state}; it will not be changed"
    yield from record_lines(map_at(result.stored, "metadata", "annotations"))
    yield from events
    yield "Re-evaluated as if it were created now:"


def _explain_sections(result: CheckResult, paint: Paint) -> Iterator[str]:
    exempted = [
        f"{each.finding.code}  {finding_sentence(each.finding)} "
        f"({sanitize(f'by {each.exemption}, until {each.expires}')})"
        for each in result.decision.exempted
    ]
    sections = {
        "Changed": diff_lines(result.stored, apply_json_patch(result.stored, result.decision.patch), paint),
        "Findings": [line for located in result.findings for line in finding_lines(located, result.title, paint)],
        "Exempted": exempted,
    }
    for title, lines in sections.items():
        if lines:
            yield f"{INDENT}{title}"
            yield from (f"{INDENT * 2}{line}" for line in lines)


def _template_lines(result: CheckResult) -> Iterator[str]:
    """Yield the outcome of each pod template of a workload."""
    for path, replicas, decision in result.decision.templates:
        gpus = format_gpus_with_unit(decision.gpu_milli_before)
        yield f"Template  {sanitize(path)}: {pluralize(replicas, 'pod')} with {gpus} each"
        yield from (f"{INDENT}{line}" for line in _known_outcome_lines(result, decision))


def _known_outcome_lines(result: CheckResult, decision: Decision) -> Iterator[str]:
    """Yield the outcome, or that it depends on a cluster that is not known."""
    unknown = (f"Outcome   {UNKNOWN_OUTCOME}. {ADD_CLUSTER}",)
    if result.is_unknown(decision):
        yield from unknown
        return
    yield from outcome_lines(decision)
    if decision.pods is not None and sum(decision.pods) > 1:
        yield f"Pods      {_replica_counts_text(decision.pods)}"


def _replica_counts_text(pods: ReplicaCounts) -> str:
    words = ("right-sized", "kept as requested", "rejected")
    return ", ".join(f"{number} {word}" for word, number in zip(words, pods, strict=True) if number)


def outcome_lines(decision: Decision) -> Iterator[str]:
    """Yield the outcome for the GPU request."""
    if not decision.may_involve_gpus:
        yield "Outcome   it does not use GPUs"
        return
    choice = decision.outcome
    if not isinstance(choice, OfferChoice):
        prefix = "" if choice.reason in NOTHING_TO_SIZE else "not right-sized: "
        yield f"Outcome   {prefix}{sanitize(str(choice))}"
        return
    yield f"Needs     {sanitize(choice.need.words)}"
    change = f"{'' if decision.applied else 'would be '}right-sized to {sanitize(offer_with_meaning(choice))}"
    if decision.applied and decision.gpu_milli_before:
        change += f", saves {format_gpus_with_unit(decision.gpu_milli_before - decision.gpu_milli_after)}"
    else:  # what a claim saves is known only when it has devices
        change += f" ({format_gpus(choice.gpu_milli)} of a GPU)"
    yield f"Outcome   {change} ({sanitize(choice.policy)})"
    if choice.group:
        yield f"{'':<10}none is free: node group {sanitize(choice.group)} grows by a node that offers it"
    yield from (f"{'Offer':<10}{offer_text(offer)}" for offer in choice.offers)


def offer_text(offer: GpuOffer) -> str:
    """Format one form of GPU."""
    device = device_of_class(offer)
    memory = f"{offer.memory_mib} MiB" if offer.memory_mib is not None else "memory unknown"
    product = offer.product or ("several products" if device else "product not labeled")
    nodes = pluralize(offer.nodes.bit_count(), "node")
    isolation = "no" if offer.isolation is IsolationLevel.NONE else str(offer.isolation)
    name = offer.resource if "/" in offer.resource else f"class {offer.resource}"
    return sanitize(f"{name} on {product}: {device or memory}, {isolation} isolation, {nodes}")


def _requests_text(result: CheckResult) -> str:
    """Return the GPUs of a pod or workload, or the requests of a claim or template."""
    if result.kind not in CLAIM_KINDS:
        claims = map_at(result.stored, "spec").get("resourceClaims")
        names = [str(map_at(one).get("name", "")) for one in claims] if isinstance(claims, list) else []
        milli = result.decision.gpu_milli_before
        gpus = format_gpus_with_unit(milli) + gpu_requests_text(result.stored)
        claimed = [f"{pluralize(len(names), 'claim')}: {sanitize(', '.join(names))}"] if names else []
        by_class = map(sanitize, _container_requests(result.stored, lambda name: name.startswith(DEVICE_CLASS_PREFIX)))
        devices = [*claimed, *by_class]
        return "; ".join([gpus, *devices] if milli or not devices else devices)
    return sanitize("; ".join(map(_claim_request_text, _claim_requests(result.stored)))) or "no devices"


def _claim_requests(data: Any) -> tuple[ClaimRequest, ...]:
    spec = map_at(data, "spec")
    devices = map_at(spec if "devices" in spec else spec.get("spec"), "devices")
    try:
        return msgspec.convert(devices.get("requests") or (), tuple[ClaimRequest, ...])
    except msgspec.ValidationError:
        return ()


def _claim_request_text(request: ClaimRequest) -> str:
    """Return what a request of a claim is for, without its selectors."""
    one = request.exactly
    if one is None:
        return f"{request.name}: the first available of {', '.join(each.name for each in request.first_available)}"
    amount = "all" if one.allocation_mode == "All" else one.count
    return f"{request.name}: {amount} of class {one.device_class_name}"


def gpu_requests_text(data: Any) -> str:
    """Return the GPU resources that the containers of a pod name, in brackets; "" for other objects."""
    requests = ", ".join(_container_requests(data, lambda name: parse_gpu_resource(name) is not None))
    return f" ({sanitize(requests)})" if requests else ""


def _container_requests(data: Any, is_listed: Callable[[str], bool]) -> Iterator[str]:
    """Yield the amounts of some resources, each with its container: a limit, else a request without one."""
    spec = map_at(data, "spec")
    for key in ("initContainers", "containers"):
        for container in spec[key] if isinstance(spec.get(key), list) else ():
            resources = map_at(container, "resources")
            for resource, amount in (map_at(resources, "requests") | map_at(resources, "limits")).items():
                if is_listed(str(resource)):
                    yield f"{map_at(container).get('name', '')}: {resource} {amount}"


def event_lines(events: Iterable[CoreEvent], known: KnownUids = NO_UIDS) -> Iterator[str]:
    """Yield one line per Event, newest first; equal Events of a controller about several pods share a line.

    Args:
        events: About the pod and its controller.
        known: Their uids; Events about an earlier object of the same name are left out.
    """
    groups: defaultdict[tuple[str, ...], list[CoreEvent]] = defaultdict(list)
    relevant = (
        each
        for each in events
        if (each.reporter.startswith(EVENT_SOURCE) or each.type == "Warning")
        and not _is_about_another_object(each, known)
    )
    for each in sorted(relevant, key=lambda each: each.last_seen, reverse=True):
        groups[_event_group_key(each)].append(each)
    lines = list(map(_event_group_line, groups.values()))
    for i, line in enumerate(lines[:MAX_EVENTS]):
        yield f"{'' if i else 'Events':<10}{line}"
    if len(lines) > MAX_EVENTS:
        yield f"{'':<10}and {pluralize(len(lines) - MAX_EVENTS, 'older Event')}"


def _is_about_another_object(event: CoreEvent, known: KnownUids) -> bool:
    about = event.involved_object
    uids = known.get((about.kind, about.name), ())
    return bool(about.uid and uids and about.uid not in uids)


def _event_group_key(event: CoreEvent) -> tuple[str, ...]:
    """Return a key that Events of a controller about several of its pods share: pod names in the message are masked."""
    about = event.involved_object
    pod_name = re.compile(rf"(?<![\w.-]){re.escape(about.name)}-[a-z0-9-]+(?![\w.-])", re.ASCII)
    message = pod_name.sub("*", event.message) if about.kind != "Pod" else event.message
    return about.kind, about.name, event.reporter, event.reason, message


def _event_group_line(group: list[CoreEvent]) -> str:
    event, number = group[0], sum(each.occurrences for each in group)
    about = f"{event.involved_object.kind}/{event.involved_object.name}"
    times = f", {number} times" if number > 1 else ""
    message = " ".join(event.message.split())[:MAX_EVENT_TEXT]
    time = event.last_seen or "unknown time"
    return sanitize(f"{time}  {event.reason} on {about} ({event.reporter}{times}): {message}")


def record_lines(annotations: Mapping[str, Any]) -> Iterator[str]:
    """Yield the record on a pod: what was changed, by which policies, on what evidence, and how to opt out.

    There are none if the annotation is missing or Rightslice cannot have written it.
    """
    record = parse_decision_record(str(annotations.get(DECISION_ANNOTATION, "")))
    if record is None:
        return
    yield from _change_lines(record)
    yield from _resize_lines(record, parse_original_resources(str(annotations.get(ORIGINAL_ANNOTATION, ""))))


def claim_record_lines(claim: Mapping[str, Any]) -> Iterator[str]:
    """Yield the record on a right-sized claim or template: from what, to what, and why."""
    annotations = map_at(claim, "metadata", "annotations")
    record = parse_decision_record(str(annotations.get(DECISION_ANNOTATION, "")))
    if record is None:
        return
    yield from _change_lines(record)
    try:
        before = msgspec.json.decode(str(annotations.get(ORIGINAL_ANNOTATION, "")), type=ClaimRequest)
        yield f"{'Before':<10}{sanitize(_claim_request_text(before))}"
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        yield f"{'Before':<10}unknown: {ORIGINAL_ANNOTATION} is missing or was changed"
    smallest = f"{sanitize(record.resource)}, {format_gpus(record.gpu_milli)} of a GPU"
    yield f"{'Now':<10}{sanitize('; '.join(map(_claim_request_text, _claim_requests(claim))))}"
    yield f"{'Reason':<10}it needs {sanitize(record.need)}; the smallest devices are of class {smallest}"
    yield f'{"Opt out":<10}annotate the claim or template with {KEEP_ANNOTATION}: "true"'


def _change_lines(record: DecisionRecord) -> Iterator[str]:
    """Yield what was changed and by which policies."""
    yield f"Record    Rightslice changed {sanitize(', '.join(record.changed) or 'nothing')} when it was created"
    changes = "; ".join(f"{policy}: {', '.join(changed)}" for policy, changed in record.changed_by.items())
    policies = changes or ", ".join(record.policies) or "unknown policy"
    yield f"{'By':<10}{sanitize(policies)} (policy digest {record.digest})"
    if others := [policy for policy in record.policies if policy not in record.changing_policies]:
        yield f"{'Matched':<10}{sanitize(', '.join(others))}, without changes"


def _resize_lines(record: DecisionRecord, before: Mapping[str, ResourceRequirements] | None) -> Iterator[str]:
    """Yield why it got another form of GPU; nothing if it did not."""
    if before:
        requests = (
            f"{container}: {name} {amount}"
            for container, resources in before.items()
            for name, amount in (resources.requests | resources.limits).items()
            if parse_gpu_resource(name) is not None
        )
        yield f"{'Before':<10}{sanitize(', '.join(requests))}"
    if record.resource == WHOLE_GPU and not before:
        yield f"{'Before':<10}{WHOLE_GPU}, as now: node affinity selects the form"
    if record.resource and record.gpu_milli:
        amount = format_gpus_with_unit(record.gpu_milli)
        yield f"{'Now':<10}{amount} instead of each requested whole GPU, as {sanitize(record.resource)}"
    for container, one in record.memory_fractions.items():
        instead = f"instead of {one.before}" if one.before else "added"
        yield f"{'Fraction':<10}{sanitize(f'{container}: {one.setting} is {one.after}, {instead}')}"
    if record.resource:
        yield f"{'Reason':<10}it needs {sanitize(record.need)}, which {sanitize(record.resource)} covers"
        yield f'{"Opt out":<10}annotate the pod, or the template of its workload, with {KEEP_ANNOTATION}: "true"'
