"""Check objects of files by rules of the API server itself: what it rejects never reaches the cluster.

A pod whose GPU amounts are wrong is left to the finding that policies report for it.

Source: `pkg/apis/core/validation`, and the strict field validation that kubectl asks for, which rejects unknown fields.

Amounts that a file writes as null, which Kubernetes reads unlike all other nulls: as zero.

Nothing else here shows them: the API server stores "0", and so does everything that reads a pod.

Find what the API server rejects in resource claims whose fields have the right types.

Access for administration is left to the review, which reports it as a finding.
Source: `pkg/apis/resource/validation/validation.go` of Kubernetes 1.36.3.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from webhook.audit.object_files import SourceObject
from webhook.engine.limitrange.validation import InvalidAmount, find_invalid_amounts
from webhook.engine.linting.objects import ObjectError, invalid_value
from webhook.engine.templates import MAX_PODS, PodTemplate, invalid_counts
from webhook.errors import ReviewError, quote_text
from webhook.model.api_struct import describe_mismatch
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import (
    CLAIM_KINDS,
    CLAIM_VERSIONS,
    ClaimRequest,
    ClaimSpec,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ResourceClaim,
    with_requests_of_v1,
)
from webhook.model.defaulting import apply_defaults
from webhook.model.dra.device_selectors import SelectorCompileError, compile_device_selector
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path, map_at
from webhook.model.findings import Finding
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.limit_ranges import NO_LIMIT_RANGES, NamespaceLimitRanges
from webhook.model.pod_fields import CLAIM_FIELDS, WrongField, find_wrong_fields
from webhook.model.pod_resources import find_unreadable_amounts
from webhook.model.pods import Pod, without_nulls
from webhook.model.quantity import parse_nano_or_none, suggest_quantity
from webhook.report.results import CheckResult, CheckVerdict, LocatedFinding, decision_verdict
from webhook.well_known import Json

KUBERNETES_GROUPS = ("", "apps", "batch")
"""API groups of workloads that are Kubernetes' own: no cluster has other kinds or fields in them."""

Locate = Callable[[FieldPath], FieldPath]
"""Maps the path of a pod's field to the path in the object that contains the pod."""

_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_RESOURCE_FIELDS = ("limits", "requests", "claims")
_EXACT_FIELDS = CLAIM_FIELDS["ExactDeviceRequest"].keys() - CLAIM_FIELDS["DeviceSubRequest"].keys()
_UNKNOWN_FIELD = "must be a known field: kubectl rejects it, and other clients drop it"


def check_pod(pod: Pod, data: Any, ranges: NamespaceLimitRanges = NO_LIMIT_RANGES, locate: Locate = tuple) -> None:
    """Raise ReviewError for the first field of a pod by which the API server rejects it.

    Args:
        pod: The pod as written.
        data: Its plain data.
        ranges: LimitRanges of its namespace; what one of them completes is not rejected.
        locate: Where the object has a field of the pod.
    """
    for path, amount, error in find_unreadable_amounts(pod):
        if error.is_quantity:  # only our bounds do not read it; a finding says so
            return
        _reject(locate(path), str(error), suggest_quantity(amount).removesuffix("."))
    for path in _misspelled_resource_fields(data):
        _reject(locate(path), _UNKNOWN_FIELD, f"Write {_list_choices(_RESOURCE_FIELDS)}")
    for invalid in _invalid_amounts(pod, ranges):
        _reject(locate(invalid.path), f"the API server rejects it: {invalid.message}")


def check_fields(group: str, data: Any, locate: Locate = tuple) -> None:
    """Raise ReviewError for the first misspelled field of a pod or template, or the first value that it cannot have.

    Args:
        group: API group of the object. Templates of custom resources may have fields of their own.
        data: The plain data of the pod.
        locate: Where the object has a field of the pod.
    """
    if group not in KUBERNETES_GROUPS:
        return
    for wrong in find_wrong_fields(data):
        _reject_wrong_field(wrong, locate)
    for error in _errors_of_pod_claims(data):
        _reject(locate(error.path), f"the API server rejects it: {error.message}")


def _errors_of_pod_claims(data: Any) -> Iterator[ObjectError]:
    """Yield a claim of a pod with two sources, and a claim of a container that the pod does not declare."""
    claims = _maps_in(map_at(data, "spec").get("resourceClaims"))
    for index, claim in claims:
        if claim.get("resourceClaimName") and claim.get("resourceClaimTemplateName"):
            message = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            yield ObjectError(("spec", "resourceClaims", index), f"Invalid value: {message}")
    names = [str(claim.get("name")) for _, claim in claims]
    for kind in _CONTAINER_LISTS:
        for index, container in _maps_in(map_at(data, "spec").get(kind)):
            for place, claim in _maps_in(map_at(container, "resources").get("claims")):
                if claim.get("name") and claim["name"] not in names:
                    path = ("spec", kind, index, "resources", "claims", place)
                    known = f": {', '.join(names)}" if names else " which is empty"
                    message = f'Not found: "{claim["name"]}": must be one of the names in pod.spec.resourceClaims'
                    yield ObjectError(path, message + known)


def _maps_in(members: Any) -> list[tuple[int, Json]]:
    found = enumerate(members) if isinstance(members, list) else ()
    return [(index, one) for index, one in found if isinstance(one, dict)]


def check_counts(data: Any, template: PodTemplate) -> None:
    """Raise ReviewError for a number of pods that the API server rejects."""
    for path, value in invalid_counts(data, template):
        _reject(path, f"must be a whole number from 0 to {MAX_PODS}, found {quote_text(value)}", "Write a number")


def check_claim(data: Json) -> None:
    """Raise ReviewError for the first field of a resource claim or template by which the API server rejects it."""
    kind, is_template = data["kind"], data["kind"] == "ResourceClaimTemplate"
    path = ("spec", "spec") if is_template else ("spec",)
    if data["apiVersion"] not in CLAIM_VERSIONS:
        found = f"must be {CLAIM_VERSIONS[0]}, found {quote_text(data['apiVersion'])}"
        _reject(("apiVersion",), f"{found}: the API server serves no such version", f"Write {CLAIM_VERSIONS[0]}")
    if is_template and "devices" in map_at(data, "spec"):
        must = "must be in spec.spec: kubectl rejects it here"
        _reject(("spec", "devices"), must, "Write spec: {spec: {devices: ...}}")
    converted = with_requests_of_v1(data)
    _reject_flat_requests(converted, (*path, "devices"))
    for field in find_wrong_fields(converted, kind):
        _reject_wrong_field(field)
    read = without_nulls(converted)
    try:
        claim = msgspec.convert(read, CLAIM_KINDS[kind])
    except msgspec.ValidationError as error:
        mismatch = describe_mismatch(str(error), read)
        raise ReviewError(mismatch.sentence, mismatch.path) from None
    spec = claim.spec if isinstance(claim, ResourceClaim) else claim.spec.spec
    for wrong in find_claim_errors(spec, map_at(read, *path)):
        is_unnamed_class = wrong.path[-1] == "deviceClassName" and wrong.message == REQUIRED_VALUE
        fix = (NAME_A_CLASS,) if is_unnamed_class else ()
        _reject((*path, *wrong.path), f"the API server rejects it: {wrong.message}", *fix)


def _reject_flat_requests(data: Json, path: tuple[str, ...]) -> None:
    """Raise ReviewError for the first field of a request, or of a choice, that only exactly has since v1beta2."""
    requests = map_at(data, *path).get("requests")
    for index, one in enumerate(requests if isinstance(requests, list) else ()):
        for key in map_at(one):
            if key in CLAIM_FIELDS["ExactDeviceRequest"]:
                must = "must be in exactly: kubectl rejects it here"
                _reject((*path, "requests", index, key), must, "Write exactly: {deviceClassName: ...}")
        for place, choice in _maps_in(map_at(one).get("firstAvailable")):
            for key in sorted(_EXACT_FIELDS.intersection(choice)):
                where: FieldPath = (*path, "requests", index, "firstAvailable", place, key)
                _reject(where, _UNKNOWN_FIELD, "Only exactly has it: write the request with exactly, or remove it")


def _reject_wrong_field(wrong: WrongField, locate: Locate = tuple) -> None:
    if wrong.meant:
        _reject(locate(wrong.path), _UNKNOWN_FIELD, f"Write {wrong.meant}")
    must = f"must be {_list_choices(wrong.values)}, found {quote_text(wrong.value)}: the API server rejects it"
    _reject(locate(wrong.path), must, "Write one of them")


def _list_choices(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _reject(path: FieldPath, *sentences: str) -> None:
    raise ReviewError(f"{format_path(path)}: {'. '.join(sentences)}", path)


def _invalid_amounts(pod: Pod, ranges: NamespaceLimitRanges) -> Iterator[InvalidAmount]:
    """Yield amounts that are invalid with and without the defaults of LimitRanges, but not the GPUs of containers."""
    written = find_invalid_amounts(apply_defaults(pod, ranges.without_ranges()))
    completed = find_invalid_amounts(apply_defaults(pod, ranges)) if written and ranges else written
    for invalid in written:
        of_gpus = invalid.path[1] != "resources" and parse_gpu_resource(str(invalid.path[-1])) is not None
        if invalid in completed and not of_gpus:
            yield invalid


def _misspelled_resource_fields(data: Any) -> Iterator[FieldPath]:
    for kind in _CONTAINER_LISTS:
        containers = map_at(data, "spec").get(kind)
        for index, one in enumerate(containers if isinstance(containers, list) else ()):
            for key in map_at(one, "resources"):
                if key not in _RESOURCE_FIELDS:
                    yield ("spec", kind, index, "resources", key)


NULL_IS_ZERO = "null, which the API server reads as 0"
_LISTS = ("containers", "initContainers")
_SIDES = ("limits", "requests")


def find_null_amounts(spec: Any) -> Iterator[FieldPath]:
    """Yield the path from the pod's root of each null amount in a pod's specification."""
    spec = spec if isinstance(spec, dict) else {}
    holders: list[tuple[FieldPath, Any]] = [(("spec",), spec)]
    for kind in _LISTS:
        members = spec.get(kind)
        holders += [(("spec", kind, i), each) for i, each in enumerate(members if isinstance(members, list) else ())]
    for path, holder in holders:
        for side in _SIDES:
            amounts = _member_of(_member_of(holder, "resources"), side)
            yield from ((*path, "resources", side, name) for name in _null_names(amounts))
    yield from (("spec", "overhead", name) for name in _null_names(spec.get("overhead")))


def _member_of(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, dict) else None


def _null_names(amounts: Any) -> list[str]:
    return [name for name, amount in amounts.items() if amount is None] if isinstance(amounts, dict) else []


def with_null_amounts(result: CheckResult, nulls: Iterable[FieldPath], source: SourceObject) -> CheckResult:
    """Return a result that names the null amounts of its object: in a finding about the amount, else in one of its own.

    Args:
        nulls: Their paths in the object.
    """
    nulls = list(nulls)
    if result.verdict is CheckVerdict.SKIPPED:
        notes = "".join(f"; {format_path(path)} is {NULL_IS_ZERO}" for path in nulls)
        return replace(result, reason=result.reason + notes) if result.invalid else result
    noted = {path for each in result.findings for path in _nulls_beside(each.finding.path, nulls)}
    findings = [_with_note(each, nulls) for each in result.findings]
    findings += [_null_finding(path, source) for path in nulls if path not in noted]
    decision = replace(result.decision, findings=tuple(each.finding for each in findings))
    return replace(result, findings=tuple(findings), decision=decision, verdict=decision_verdict(decision))


def _with_note(located: LocatedFinding, nulls: Iterable[FieldPath]) -> LocatedFinding:
    finding = located.finding
    notes = "".join(f"; {path[-2]} are {NULL_IS_ZERO}" for path in _nulls_beside(finding.path, nulls))
    return replace(located, finding=replace(finding, message=finding.message + notes)) if notes else located


def _nulls_beside(path: FieldPath, nulls: Iterable[FieldPath]) -> list[FieldPath]:
    """Return the null limit and request of the resource at a path."""
    return [each for each in nulls if each[:-2] == path[:-2] and each[-1:] == path[-1:]]


def _null_finding(path: FieldPath, source: SourceObject) -> LocatedFinding:
    fix = 'Write the amount, or "0"; remove the line to leave the amount out.'
    return LocatedFinding(Finding("GPU-L107", PolicyMode.WARN, path, NULL_IS_ZERO, fix), source.locate(path), None)


REQUIRED_VALUE = "Required value"
NAME_A_CLASS = "Write the name of a device class: the request names none"

MAX_REQUESTS, MAX_CHOICES, MAX_SELECTORS = 32, 8, 32

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_REQUEST_NAME = re.compile(_LABEL)
_CLASS_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_NOT_A_REQUEST = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
_ONE_OF = "exactly one of `exactly` or `firstAvailable` is required"


def find_claim_errors(spec: ClaimSpec, written: Json) -> Iterator[ObjectError]:
    """Yield every error of a claim's specification.

    Args:
        spec: The specification.
        written: Its plain data, which says what is written and what is a default.
    """
    devices: FieldPath = ("devices",)
    requests = spec.devices.requests
    yield from _set_errors([one.name for one in requests], MAX_REQUESTS, (*devices, "requests"))
    for index, request in enumerate(requests):
        plain = written["devices"]["requests"][index]
        yield from _request_errors(request, plain, (*devices, "requests", index))
    names = {one.name for one in requests}
    names |= {f"{one.name}/{choice.name}" for one in requests for choice in one.first_available}
    for index, constraint in enumerate(spec.devices.constraints):
        yield from _constraint_errors(constraint, names, (*devices, "constraints", index))


def _set_errors(names: Sequence[str], most: int, path: FieldPath) -> Iterator[ObjectError]:
    if len(names) > most:
        yield ObjectError(path, f"Too many: {len(names)}: must have at most {most} items")
    for name, count in Counter(names).items():
        if count > 1:
            yield ObjectError((*path, len(names) - 1 - names[::-1].index(name)), f'Duplicate value: "{name}"')


def _request_errors(request: ClaimRequest, written: Json, path: FieldPath) -> Iterator[ObjectError]:
    yield from _name_errors(request.name, (*path, "name"))
    if bool(request.first_available) == (request.exactly is not None):
        more = ", but multiple fields are set" if request.exactly is not None else ""
        yield ObjectError(path, f"{'Invalid' if more else 'Required'} value: {_ONE_OF}{more}")
        return
    if request.exactly is not None:
        yield from _device_errors(request.exactly, written["exactly"], (*path, "exactly"))
    yield from _set_errors([one.name for one in request.first_available], MAX_CHOICES, (*path, "firstAvailable"))
    for place, choice in enumerate(request.first_available):
        where = (*path, "firstAvailable", place)
        yield from _name_errors(choice.name, (*where, "name"))
        yield from _device_errors(choice, written["firstAvailable"][place], where)


def _device_errors(request: DeviceRequest, written: Json, path: FieldPath) -> Iterator[ObjectError]:
    name, count = request.device_class_name, written.get("count", 0)
    if not name:
        yield ObjectError((*path, "deviceClassName"), REQUIRED_VALUE)
    elif not _CLASS_NAME.fullmatch(name):
        yield invalid_value((*path, "deviceClassName"), name, "must be the name of an object, in lower case")
    if len(request.selectors) > MAX_SELECTORS:
        yield ObjectError(
            (*path, "selectors"), f"Too many: {len(request.selectors)}: must have at most {MAX_SELECTORS}"
        )
    yield from _selector_errors(request.selectors, (*path, "selectors"))
    for index, toleration in enumerate(request.tolerations):
        if toleration.operator == "Exists" and toleration.value:
            where = (*path, "tolerations", index, "value")
            yield invalid_value(where, toleration.value, "must be empty for operator `Exists`")
    if request.allocation_mode == "All" and count:
        yield invalid_value((*path, "count"), count, "must not be specified when allocationMode is 'All'")
    elif count < 0:
        yield invalid_value((*path, "count"), count, "must be greater than zero")
    yield from _amount_errors(request.capacity.requests.items(), (*path, "capacity", "requests"))


def _selector_errors(selectors: Sequence[DeviceSelector], path: FieldPath) -> Iterator[ObjectError]:
    """Yield the selectors that do not compile; those that are not evaluated here may compile."""
    for index, selector in enumerate(selectors[:MAX_SELECTORS]):
        try:
            compile_device_selector(selector.cel.expression)
        except SelectorCompileError as error:
            place = f"at {error.place_in(selector.cel.expression)}: " if error.offset else ""
            yield ObjectError((*path, index, "cel", "expression"), f"Invalid value: {place}{error.reason}")
        except UnmodeledExpressionError:
            continue


def _amount_errors(amounts: Iterable[tuple[str, Any]], path: FieldPath) -> Iterator[ObjectError]:
    for name, amount in amounts:
        if parse_nano_or_none(amount) is None:
            yield invalid_value((*path, name), amount, "must be a quantity")


def _name_errors(name: str, path: FieldPath) -> Iterator[ObjectError]:
    if not name:
        yield ObjectError(path, REQUIRED_VALUE)
    elif not _REQUEST_NAME.fullmatch(name):
        yield invalid_value(path, name, "must be lower-case letters, digits and '-', at most 63")


def _constraint_errors(constraint: DeviceConstraint, names: set[str], path: FieldPath) -> Iterator[ObjectError]:
    for place, name in enumerate(constraint.requests):
        if name not in names:
            yield invalid_value((*path, "requests", place), name, _NOT_A_REQUEST)
    attributes = {"matchAttribute": constraint.match_attribute, "distinctAttribute": constraint.distinct_attribute}
    found = {key: value for key, value in attributes.items() if value is not None}
    if len(found) != 1:
        yield ObjectError(path, 'Required value: exactly one of "matchAttribute" or "distinctAttribute" is required')
    for key, value in found.items():
        if value.count("/") != 1 or not all(value.split("/")):
            yield invalid_value((*path, key), value, "must be a domain and a name separated by '/'")
