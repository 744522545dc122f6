"""Violations of the namespace's LimitRanges by a pod as Rightslice would leave it, and whether they allow a change.

GPUs that a LimitRange's defaults give to containers that request none: found, removed and reported.

Find the LimitRanges that set amounts by default: one answer for rejections, which name them, and for injected GPUs.

A webhook sees a pod after LimitRanger's first pass. A LimitRange set an amount that equals its default if LimitRanger's
annotation names the amount. The annotation records only the last LimitRange that set anything; whether another one set
an amount is known from the pod's `managedFields`, which list what a client wrote. Without them it counts as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import replace

from webhook.engine.gpu_requests import PodGpuRequests, container_at, init_then_main_containers, sum_gpu_requests
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
from webhook.model.apimachinery import canonical_text, compare_quantities
from webhook.model.defaulting import (
    LIMIT_RANGER_ANNOTATION,
    DefaultRecord,
    apply_defaults,
    read_limit_ranger_annotation,
    read_managed_amounts,
)
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange, parse_api_quantity
from webhook.model.pod_amounts import LIMITS, REQUESTS, PodAmounts, ResourceChanges, container_amounts
from webhook.model.pod_resources import limit_or_request
from webhook.model.pods import Container, Pod, QuantityText, ResourceRequirements
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
        fix = "" if outcome else f'Write {one.resource}: "0" in the limits of the container.'
        yield PolicyFinding("GPU-L202", field, message + outcome, fix, at_most=PolicyMode.WARN)


MAX_NAMED = 3
"""Containers that a message names."""

_AMOUNT_LENGTH = len(("spec", "containers", 0, "resources", LIMITS, "cpu"))


class DefaultSource(NamedTuple):
    """Amounts of one resource that a LimitRange sets: the limits or the requests of some containers."""

    limit_range: str
    side: str
    resource: str
    containers: tuple[str, ...]

    def __str__(self) -> str:
        return f"LimitRange {self.limit_range!r} gives {self.resource} a default {self.side.removesuffix('s')}"

    def named_containers(self) -> str:
        """Return the names of the containers: "container main", "containers main, side and 2 more"."""
        named, more = ", ".join(self.containers[:MAX_NAMED]), len(self.containers) - MAX_NAMED
        return f"container{'s' * (len(self.containers) > 1)} {named}{f' and {more} more' if more > 0 else ''}"


class FirstPass:
    """The defaults that LimitRanger set in a pod before the webhooks. Reads its annotation once."""

    def __init__(self, pod: Pod, ranges: NamespaceLimitRanges, load_object: Callable[[], Any]) -> None:
        self._ranges, self._load_object = ranges, load_object
        recorded = read_limit_ranger_annotation(pod.metadata.annotations.get(LIMIT_RANGER_ANNOTATION, ""))
        possible = [each for each in ranges if all(name in each.defaults(side) for side, name, _ in recorded)]
        self._recorded, self._recorders = recorded, possible if recorded else []

    def find_source(self, container: Container, side: str, name: str) -> str:
        """Return the name of the LimitRange that set an amount of a container; "" for one that a client wrote."""
        amount = container.resources.amounts(side)[name]
        possible = [each for each in self._ranges if _is_default(each, side, name, amount)]
        amount_of = (side, name, container.name)
        if amount_of not in self._recorded:
            possible = [each for each in possible if any(other is not each for other in self._recorders)]
            if possible and (self._written is None or amount_of in self._written):
                return ""
        return possible[0].name if possible else ""

    @cached_property
    def _written(self) -> frozenset[DefaultRecord] | None:
        """The amounts that clients wrote; None if unknown."""
        return read_managed_amounts(self._load_object()["metadata"])


class DefaultSources:
    """The LimitRanges that set amounts of one mutated pod, before or after its change."""

    def __init__(self, mutation: PodMutation, ranges: NamespaceLimitRanges, load_object: Callable[[], Any]) -> None:
        self._mutation, self._ranges = mutation, ranges
        self._first_pass = FirstPass(mutation.pod, ranges, load_object)

    def of_field(self, field: FieldPath) -> str:
        """Return the name of the LimitRange that sets an amount; "" for an amount of the pod itself."""
        if len(field) != _AMOUNT_LENGTH or field[1] not in ("containers", "initContainers"):
            return ""
        path, side, name = field[:3], str(field[4]), str(field[5])
        container, (limits, requests) = container_at(self._mutation.pod, path), self._mutation.resources_at(path)
        amount = (limits if side == LIMITS else requests).get(name)
        if amount is None:
            copied = side == REQUESTS and name in limits
            return "" if copied else next((each.name for each in self._ranges if name in each.defaults(side)), "")
        changed = amount != container.resources.amounts(side).get(name)
        return "" if changed else self._first_pass.find_source(container, side, name)

    def of_fields(self, fields: Iterable[FieldPath]) -> list[DefaultSource]:
        """Return the LimitRanges that set some of these amounts, with the containers."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for field in fields:
            if name := self.of_field(field):
                containers = found.setdefault((name, str(field[4]), str(field[5])), [])
                containers.append(container_at(self._mutation.pod, field[:3]).name)
        return [DefaultSource(*key, tuple(names)) for key, names in found.items()]

    def with_summed_fields(self, fields: Iterable[FieldPath], amounts: PodAmounts) -> Iterator[FieldPath]:
        """Yield fields, and for each of the pod level that the pod does not set the containers' that it sums up."""
        written = self._mutation.pod.spec.resources or ResourceRequirements()
        for field in fields:
            yield field
            if field[:2] == ("spec", "resources") and field[-1] not in written.amounts(str(field[2])):
                yield from amounts.fields_of(str(field[-1]), str(field[2]))

    def of_total(self, amounts: PodAmounts, resource: str, side: str) -> str:
        """Return which LimitRanges set parts of a pod's total, as the end of a message; "" if none does."""
        sources = self.of_fields(amounts.fields_of(resource, side))
        return "".join(f"; LimitRange {one.limit_range!r} sets it in {one.named_containers()}" for one in sources)


def _is_default(limit_range: ParsedLimitRange, side: str, name: str, amount: QuantityText) -> bool:
    default = limit_range.defaults(side).get(name)
    try:
        return default is not None and compare_quantities(default, parse_api_quantity(amount)) == 0
    except QuantityError:
        return False
