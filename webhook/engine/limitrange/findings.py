"""Violations of the namespace's LimitRanges by a pod as Rightslice would leave it, and whether they allow a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from webhook.engine.limitrange.fast_path import is_surely_admitted
from webhook.engine.limitrange.validation import (
    InvalidAmount,
    LimitRangeRefusal,
    PredictedAdmission,
    find_invalid_amounts,
    predict_admission,
    predict_limit_range_refusals,
)
from webhook.engine.mutation import PodMutation
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import QuantityError
from webhook.model.apimachinery import canonical_text
from webhook.model.defaulting import apply_defaults, apply_request_defaults
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange
from webhook.model.pod_amounts import PodAmounts, ResourceChanges, container_amounts, read_pod_amounts
from webhook.model.pods import Pod


def final_amounts(mutation: PodMutation, ranges: Sequence[ParsedLimitRange]) -> PodAmounts | None:
    """Return the amounts of a mutated pod after all defaults; None if one is not a quantity."""
    try:
        return apply_defaults(mutation.pod, ranges, mutation.limits, mutation.requests)
    except QuantityError:
        return None


def limit_range_violations(
    mutation: PodMutation, amounts: PodAmounts, ranges: Sequence[ParsedLimitRange]
) -> list[PolicyFinding]:
    """Return every rejection of a mutated pod by its namespace's LimitRanges; `amounts` are its `final_amounts`."""
    return [
        *_invalid_by_defaults(mutation, find_invalid_amounts(amounts)),
        *map(_refusal_finding, predict_limit_range_refusals(amounts, ranges)),
    ]


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


def _refusal_finding(refusal: LimitRangeRefusal) -> PolicyFinding:
    bound = refusal.bound
    fix = f"Set a request of {bound.resource}, and a limit of at most {canonical_text(bound.amount)} times it."
    if bound.kind != "maxLimitRequestRatio":
        words = "at least" if bound.kind == "min" else "at most"
        fix = f"Request {words} {canonical_text(bound.amount)} {bound.resource}, in limits and requests."
    return PolicyFinding("GPU-L201", _refusal_field(refusal), _refusal_sentence(refusal), fix)


def _refusal_sentence(refusal: LimitRangeRefusal) -> str:
    return f"{refusal.message} (LimitRange {refusal.limit_range})"


def _refusal_field(refusal: LimitRangeRefusal) -> FieldPath:
    if refusal.path == ("spec",):
        return refusal.path
    return (*refusal.path, "resources", refusal.side, refusal.bound.resource)


def _invalid_by_defaults(mutation: PodMutation, invalid: list[InvalidAmount]) -> Iterator[PolicyFinding]:
    if not invalid:
        return
    written = apply_request_defaults(read_pod_amounts(mutation.pod, mutation.limits, mutation.requests))
    already_invalid = set(find_invalid_amounts(written))
    for one in invalid:
        if one not in already_invalid:
            message = f"amounts from a LimitRange make it invalid: {one.message}"
            yield PolicyFinding(
                "GPU-L203", one.path, message, f"Set {one.path[-1]} yourself, equal in limits and requests."
            )
