"""Violations of the namespace's LimitRanges by a pod as Rightslice would leave it, and whether they allow a change.

GPUs that a LimitRange's defaults give to containers that request none: found, removed and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from webhook.engine.gpu_requests import PodGpuRequests, container_at, init_then_main_containers, sum_gpu_requests
from webhook.engine.limitrange.default_sources import DefaultSources, FirstPass
from webhook.engine.limitrange.fast_path import is_surely_admitted
from webhook.engine.limitrange.validation import (
    InvalidAmount,
    LimitRangeRefusal,
    PredictedAdmission,
    find_invalid_amounts,
    predict_admission,
    predict_limit_range_refusals,
)
from webhook.engine.pod_context import InjectedAmount, InjectedGpus, PodMutation
from webhook.engine.policy_findings import PolicyFinding, SectionFinding
from webhook.errors import QuantityError
from webhook.model.admission import AdmissionRequest
from webhook.model.apimachinery import canonical_text
from webhook.model.defaulting import apply_defaults
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange
from webhook.model.pod_amounts import LIMITS, REQUESTS, PodAmounts, ResourceChanges, container_amounts
from webhook.model.pod_resources import limit_or_request
from webhook.model.pods import Pod, QuantityText
from webhook.model.resource_names import allows_overcommit

_NAMES_LIMIT_RANGE = ("GPU-L202", "GPU-L203")
"""Codes whose messages name the LimitRange that sets the amount."""


def final_amounts(mutation: PodMutation, ranges: NamespaceLimitRanges) -> PodAmounts | None:
    """Return the amounts of a mutated pod after all defaults; None if one is not a quantity."""
    try:
        return apply_defaults(mutation.pod, ranges, mutation.limits, mutation.requests)
    except QuantityError:
        return None


def limit_range_violations(
    amounts: PodAmounts, ranges: Sequence[ParsedLimitRange], sources: DefaultSources
) -> list[PolicyFinding]:
    """Return every rejection of a mutated pod by its namespace's LimitRanges; `amounts` are its `final_amounts`."""
    refusals = predict_limit_range_refusals(amounts, ranges)
    return [
        *_invalid_by_defaults(amounts, sources),
        *(_refusal_finding(one, _sources_of_refusal(one, amounts, sources)) for one in refusals),
    ]


def replace_amount_errors(
    errors: Sequence[PolicyFinding],
    mutation: PodMutation,
    ranges: NamespaceLimitRanges,
    request: AdmissionRequest,
) -> tuple[PolicyFinding, ...]:
    """Return errors of GPU amounts; where a LimitRange sets one of the amounts, what it makes invalid instead."""
    amounts = final_amounts(mutation, ranges) if errors and ranges else None
    if amounts is None:
        return tuple(errors)
    by_amount: dict[FieldPath, list[PolicyFinding]] = {}
    for finding in _invalid_by_defaults(amounts, DefaultSources(mutation, ranges, request.load_object)):
        by_amount.setdefault((*finding.path[:3], finding.path[-1]), []).append(finding)
    return tuple([one for error in errors for one in by_amount.get((*error.path[:3], error.path[-1]), [error])])


def name_default_sources(
    reported: Sequence[SectionFinding], mutation: PodMutation, ranges: NamespaceLimitRanges, request: AdmissionRequest
) -> Sequence[SectionFinding]:
    """Add the LimitRange to the message of each finding about an amount that it sets by default."""
    sources, named = DefaultSources(mutation, ranges, request.load_object), list[SectionFinding]()
    for policy_ref, finding in reported:
        source = "" if finding.code in _NAMES_LIMIT_RANGE else sources.of_field(finding.path)
        if source:
            side = str(finding.path[4]).removesuffix("s")
            finding = replace(finding, message=f"{finding.message}; LimitRange {source!r} sets this {side} by default")
        named.append((policy_ref, finding))
    return named


def rejection_reason(pod: Pod, ranges: NamespaceLimitRanges, limits: ResourceChanges, requests: ResourceChanges) -> str:
    """Return why the API server would reject a change, with LimitRange and field; "" if it would not."""
    if is_surely_admitted(pod, container_amounts(pod.spec, limits, requests), ranges):
        return ""
    try:
        return first_rejection(predict_admission(pod, ranges, limits, requests))
    except QuantityError as error:
        return str(error)


def paths_below_minimum(
    mutation: PodMutation, ranges: NamespaceLimitRanges, limits: ResourceChanges, requests: ResourceChanges
) -> set[FieldPath]:
    """Return the containers, or ("spec",) for the pod, whose new amounts LimitRanges reject, unless for their maximum.

    Rejections of the mutation's own amounts are left out.
    """
    pod = mutation.pod
    if not ranges or is_surely_admitted(pod, container_amounts(pod.spec, limits, requests), ranges):
        return set()
    try:
        before = set(predict_admission(pod, ranges, mutation.limits, mutation.requests).refusals)
        after = predict_admission(pod, ranges, limits, requests).refusals
    except QuantityError:
        return set()
    return {one.path for one in after if one.bound.kind != "max" and one not in before}


def first_rejection(predicted: PredictedAdmission) -> str:
    """Return the first reason of a rejection, with its field; "" if the pod is accepted."""
    for refusal in predicted.refusals:
        return f"{_refusal_sentence(refusal)} at {format_path(_refusal_field(refusal))}"
    for invalid in predicted.invalid:
        return f"{format_path(invalid.path)}: {invalid.message}"
    return ""


def _sources_of_refusal(refusal: LimitRangeRefusal, amounts: PodAmounts, sources: DefaultSources) -> str:
    return sources.of_total(amounts, refusal.bound.resource, refusal.side) if refusal.path == ("spec",) else ""


def _refusal_finding(refusal: LimitRangeRefusal, sources: str) -> PolicyFinding:
    bound = refusal.bound
    fix = f"Set a request of {bound.resource}, and a limit of at most {canonical_text(bound.amount)} times it."
    if bound.kind != "maxLimitRequestRatio":
        words = "at least" if bound.kind == "min" else "at most"
        fix = f"Request {words} {canonical_text(bound.amount)} {bound.resource}, in limits and requests."
    return PolicyFinding("GPU-L201", _refusal_field(refusal), _refusal_sentence(refusal) + sources, fix)


def _refusal_sentence(refusal: LimitRangeRefusal) -> str:
    return f"{refusal.message} (LimitRange {refusal.limit_range!r})"


def _refusal_field(refusal: LimitRangeRefusal) -> FieldPath:
    if refusal.path == ("spec",):
        return refusal.path
    return (*refusal.path, "resources", refusal.side, refusal.bound.resource)


def _invalid_by_defaults(amounts: PodAmounts, sources: DefaultSources) -> Iterator[PolicyFinding]:
    """Yield the rules of the API that a pod breaks by an amount that a LimitRange sets."""
    for invalid in find_invalid_amounts(amounts):
        if found := sources.of_fields(sources.with_summed_fields(invalid.fields, amounts)):
            setting = " and ".join(map(str, found))
            message = f"{setting}, and the API server rejects the result: {invalid.message}"
            yield PolicyFinding("GPU-L203", invalid.path, message, _fix_of_default(invalid, found[0].resource))


def _fix_of_default(invalid: InvalidAmount, resource: str) -> str:
    if invalid.path[-1] == "resources":
        return f'Set {resource} to "0" yourself, or request CPU or memory too.'
    if any(field[:2] == ("spec", "resources") for field in invalid.fields):
        return f"Set {resource} of the containers yourself, within the amount of the pod."
    if allows_overcommit(resource):
        return f"Set {resource} yourself, with a request of at most its limit."
    return f"Set {resource} yourself, equal in limits and requests."


def find_injected_gpus(
    pod: Pod, ranges: NamespaceLimitRanges, load_object: Callable[[], Any]
) -> tuple[InjectedAmount, ...]:
    """Return every GPU amount above zero that LimitRanger set in a pod, or will set.

    Args:
        load_object: Returns the pod as plain data.
    """
    found: dict[tuple[FieldPath, str], InjectedAmount] = {}
    first_pass = FirstPass(pod, ranges, load_object)
    for name, limit_range in ranges.gpu_defaults:
        for path, container in init_then_main_containers(pod.spec):
            sides = [side for side in (LIMITS, REQUESTS) if name in container.resources.amounts(side)]
            sources = [first_pass.find_source(container, side, name) for side in sides]
            if not sides or (all(sources) and limit_or_request(container.resources, name)):
                source = sources[0] if sources else limit_range.name
                found.setdefault((path, name), InjectedAmount(path, container.name, name, source, bool(sides)))
    return tuple(found.values())


def remove_injected_gpus(pod: Pod, injected: tuple[InjectedAmount, ...], ranges: NamespaceLimitRanges) -> InjectedGpus:
    """Set injected GPUs to "0", in limits and requests, because LimitRanger would set a missing one again.

    If a LimitRange would reject the zeros, nothing changes.
    """
    limits: dict[FieldPath, dict[str, QuantityText]] = {}
    requests: dict[FieldPath, dict[str, QuantityText]] = {}
    for one in injected:
        resources = container_at(pod, one.path).resources
        limits.setdefault(one.path, dict(resources.limits))[one.resource] = "0"
        requests.setdefault(one.path, dict(resources.requests or resources.limits))[one.resource] = "0"
    try:
        changed = predict_admission(pod, ranges, limits, requests)
        if not changed.is_accepted and predict_admission(pod, ranges).is_accepted:
            return InjectedGpus(injected, kept_reason=first_rejection(changed))
    except QuantityError as error:
        return InjectedGpus(injected, kept_reason=str(error))
    return InjectedGpus(injected, removed=True, limits=limits, requests=requests)


def without_injected_gpus(gpu_requests: PodGpuRequests, injected: InjectedGpus) -> PodGpuRequests:
    """Return the GPU requests of the user, without those that LimitRanges inject."""
    own = tuple([one for one in gpu_requests.requests if not injected.contains(one.path, one.resource.name)])
    if len(own) == len(gpu_requests.requests):
        return gpu_requests
    names = gpu_requests.unknown_resources, gpu_requests.other_resources, gpu_requests.extended_names
    return sum_gpu_requests(own, gpu_requests.errors, *names)


def injected_gpu_violations(injected: InjectedGpus) -> Iterator[PolicyFinding]:
    """Report injected GPUs, and whether they were removed."""
    outcome = "; it is removed" if injected.removed else ""
    if injected.kept_reason:
        outcome = f"; it cannot be removed: {injected.kept_reason}"
    for one in injected.amounts:
        field = (*one.path, "resources", "limits", one.resource)
        message = (
            f"LimitRange {one.limit_range!r} adds {one.resource} to container {one.container}, "
            "which does not request it"
        )
        fix = "" if outcome else f'Write {one.resource}: "0" in its limits.'
        yield PolicyFinding("GPU-L202", field, message + outcome, fix, at_most=PolicyMode.WARN)
