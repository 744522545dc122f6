"""Where a shape stands with the namespace's LimitRanges: what they will say of it, and what can be taken out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from webhook.engine.containers import ResourceChanges, container_amounts
from webhook.engine.limitrange.defaulting import apply_request_defaults
from webhook.engine.limitrange.fast_path import is_surely_admitted
from webhook.engine.limitrange.injected_gpus import InjectedAmount, InjectedGpus
from webhook.engine.limitrange.pod_amounts import PodAmounts, read_pod_amounts
from webhook.engine.limitrange.validation import (
    InvalidAmount,
    LimitRangeRefusal,
    PredictedAdmission,
    apply_defaults,
    compare_admission,
    find_invalid_amounts,
    predict_admission,
    predict_limit_range_refusals,
)
from webhook.engine.mutation import PodMutation
from webhook.engine.violations import Violation
from webhook.errors import QuantityError
from webhook.model.apimachinery import canonical_text
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange
from webhook.model.pods import Pod, QuantityText

INJECTED_GPUS_CHANGE = "injected GPUs"


def final_amounts(shape: PodMutation, ranges: Sequence[ParsedLimitRange]) -> PodAmounts | None:
    """A shape's amounts with all defaults in; None where one is no quantity, so that no API server reads the pod."""
    try:
        return apply_defaults(shape.pod, ranges, shape.limits, shape.requests)
    except QuantityError:
        return None


def limit_range_violations(
    shape: PodMutation, holders: PodAmounts, ranges: Sequence[ParsedLimitRange]
) -> list[Violation]:
    """Everything that the API server will say of a shape because of its namespace's LimitRanges.

    Args:
        holders: Its `final_amounts`.
    """
    return [
        *_invalid_by_defaults(shape, find_invalid_amounts(holders)),
        *map(_refusal_to_violation, predict_limit_range_refusals(holders, ranges)),
    ]


def rejection_reason(pod: Pod, ranges: NamespaceLimitRanges, limits: ResourceChanges, requests: ResourceChanges) -> str:
    """What would refuse a change, with the LimitRange and the field; "" where nothing would."""
    if is_surely_admitted(pod, container_amounts(pod.spec, limits, requests), ranges):
        return ""
    try:
        return _first_rejection(predict_admission(pod, ranges, limits, requests))
    except QuantityError as error:
        return str(error)


def paths_below_minimum(
    shape: PodMutation, ranges: NamespaceLimitRanges, limits: ResourceChanges, requests: ResourceChanges
) -> set[FieldPath]:
    """Where LimitRanges refuse smaller amounts than a shape's for being so small: containers, or the pod as a whole."""
    pod = shape.pod
    if not ranges or is_surely_admitted(pod, container_amounts(pod.spec, limits, requests), ranges):
        return set()
    try:
        known = set(predict_admission(pod, ranges, shape.limits, shape.requests).refusals)
        said = predict_admission(pod, ranges, limits, requests).refusals
    except QuantityError:
        return set()
    return {one.path for one in said if one.bound.kind != "max" and one not in known}


def _first_rejection(found: PredictedAdmission) -> str:
    for refusal in found.refusals:
        return f"{_refusal_sentence(refusal)} at {format_path(_refusal_field(refusal))}"
    for broken in found.invalid:
        return f"{format_path(broken.path)}: {broken.message}"
    return ""


def _refusal_to_violation(refusal: LimitRangeRefusal) -> Violation:
    return Violation("GPU-L201", _refusal_field(refusal), _refusal_sentence(refusal), _refusal_fix(refusal))


def _refusal_sentence(refusal: LimitRangeRefusal) -> str:
    """The API server's own words, and whose they are."""
    return f"{refusal.message} (LimitRange {refusal.limit_range})"


def _refusal_field(refusal: LimitRangeRefusal) -> FieldPath:
    if refusal.path == ("spec",):
        return refusal.path
    side = "requests" if "request" in refusal.message.rpartition(refusal.bound.type)[2] else "limits"
    return (*refusal.path, "resources", side, refusal.bound.resource)


def _refusal_fix(refusal: LimitRangeRefusal) -> str:
    bound = refusal.bound
    if bound.kind == "maxLimitRequestRatio":
        return f"Write a request of {bound.resource}, and a limit of at most {canonical_text(bound.amount)} times it."
    words = "at least" if bound.kind == "min" else "at most"
    return f"Ask for {words} {canonical_text(bound.amount)} {bound.resource}, in limits and requests."


def _invalid_by_defaults(shape: PodMutation, found: list[InvalidAmount]) -> Iterator[Violation]:
    """Rules of the API that a shape breaks with what LimitRanges give it, and would not break without."""
    if not found:
        return
    own = set(find_invalid_amounts(apply_request_defaults(read_pod_amounts(shape.pod, shape.limits, shape.requests))))
    for broken in found:
        if broken not in own:
            yield _invalid_amount_violation(broken)


def _invalid_amount_violation(broken: InvalidAmount) -> Violation:
    name = broken.path[-1]
    message = f"what a LimitRange gives makes it invalid: {broken.message}"
    return Violation("GPU-L203", broken.path, message, f"Write {name} yourself, the same in limits and requests.")


def injected_gpu_violations(injected: InjectedGpus) -> Iterator[Violation]:
    """That LimitRanger put GPUs in, and whether they are taken out again."""
    after = ", and it is taken out" if injected.removed else ""
    if injected.kept_reason:
        after = f", and it cannot be taken out: {injected.kept_reason}"
    for one in injected.amounts:
        field = (*one.path, "resources", "limits", one.resource)
        message = (
            f"{one.resource} is put in by LimitRange {one.limit_range}, container {one.container} does not ask for it"
        )
        fix = "" if after else f'Write {one.resource}: "0" in its limits.'
        yield Violation("GPU-L202", field, message + after, fix, at_most=PolicyMode.WARN)


def remove_injected_gpus(
    pod: Pod, shape: PodMutation, given: tuple[InjectedAmount, ...], ranges: NamespaceLimitRanges
) -> InjectedGpus:
    """Write "0" over GPUs that LimitRanger put in, in limits and requests: without the pair they would come back.

    Where a LimitRange would refuse the zeros, nothing changes.
    """
    limits: dict[FieldPath, dict[str, QuantityText]] = {}
    requests: dict[FieldPath, dict[str, QuantityText]] = {}
    for one in given:
        resources = _resources_at_path(pod, one.path)
        for side, changes in ((resources[0], limits), (resources[1], requests)):
            changes.setdefault(one.path, dict(side))[one.resource] = "0"
    try:
        original, shaped = compare_admission(pod, limits, requests, ranges)
    except QuantityError as error:
        return InjectedGpus(given, kept_reason=str(error))
    if original.is_accepted and not shaped.is_accepted:
        return InjectedGpus(given, kept_reason=_first_rejection(shaped))
    shape.limits |= limits
    shape.requests |= requests
    shape.record_change(INJECTED_GPUS_CHANGE)
    return InjectedGpus(given, removed=True)


def _resources_at_path(pod: Pod, path: FieldPath) -> tuple[Mapping[str, QuantityText], Mapping[str, QuantityText]]:
    _, kind, index = path
    containers = pod.spec.containers if kind == "containers" else pod.spec.init_containers
    assert isinstance(index, int)
    resources = containers[index].resources
    return resources.limits, resources.requests or resources.limits
