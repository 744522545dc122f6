"""Check objects of files by rules of the API server itself: what it rejects never reaches the cluster.

A pod whose GPU amounts are wrong is left to the finding that policies report for it. Amounts that a file writes as null
are reported here, because nothing else shows them: the API server reads null as zero, stores "0", and so does
everything that reads a pod.

Source: `pkg/apis/core/validation`, and the strict field validation that kubectl asks for, which rejects unknown fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from webhook.audit.claim_validation import (
    CONTAINER_LISTS,
    NAME_A_CLASS,
    REQUIRED_VALUE,
    find_claim_errors,
    find_name_errors,
    find_pod_claim_errors,
    maps_in,
)
from webhook.audit.object_files import SourceObject
from webhook.engine.limitrange.validation import InvalidAmount, find_invalid_amounts
from webhook.engine.templates import MAX_PODS, PodTemplate, invalid_counts
from webhook.errors import ReviewError, quote_text
from webhook.model.api_struct import describe_mismatch
from webhook.model.claims import (
    CLAIM_KINDS,
    CLAIM_VERSIONS,
    ResourceClaim,
    with_requests_of_v1,
)
from webhook.model.defaulting import apply_defaults
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path, map_at
from webhook.model.findings import Finding
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.limit_ranges import NO_LIMIT_RANGES, NamespaceLimitRanges
from webhook.model.pod_fields import CLAIM_FIELDS, WrongField, find_wrong_fields
from webhook.model.pod_resources import find_unreadable_amounts
from webhook.model.pods import Pod, without_nulls
from webhook.model.quantity import suggest_quantity
from webhook.report.results import CheckResult, CheckVerdict, LocatedFinding, decision_verdict
from webhook.well_known import Json

KUBERNETES_GROUPS = ("", "apps", "batch")
"""API groups of workloads that are Kubernetes' own: no cluster has other kinds or fields in them."""

Locate = Callable[[FieldPath], FieldPath]
"""Maps the path of a pod's field to the path in the object that contains the pod."""

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
    for error in find_pod_claim_errors(data):
        _reject(locate(error.path), f"the API server rejects it: {error.message}")


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
    for wrong in find_name_errors(read):
        _reject(wrong.path, f"the API server rejects it: {wrong.message}")
    spec = claim.spec if isinstance(claim, ResourceClaim) else claim.spec.spec
    for wrong in find_claim_errors(spec, map_at(read, *path)):
        is_unnamed_class = wrong.path[-1] == "deviceClassName" and wrong.message == REQUIRED_VALUE
        fix = (NAME_A_CLASS,) if is_unnamed_class else ()
        _reject((*path, *wrong.path), f"the API server rejects it: {wrong.message}", *fix)


def _reject_flat_requests(data: Json, path: tuple[str, ...]) -> None:
    """Raise ReviewError for the first field of a request, or of a choice, that belongs into another field of it.

    Since v1beta2, only exactly has those of a request. Amounts of capacity are in its requests.
    """
    requests = map_at(data, *path).get("requests")
    for index, one in enumerate(requests if isinstance(requests, list) else ()):
        for key in map_at(one):
            if key in CLAIM_FIELDS["ExactDeviceRequest"]:
                must = "must be in exactly: kubectl rejects it here"
                _reject((*path, "requests", index, key), must, "Write exactly: {deviceClassName: ...}")
        for place, choice in maps_in(map_at(one).get("firstAvailable")):
            for key in sorted(_EXACT_FIELDS.intersection(choice)):
                where: FieldPath = (*path, "requests", index, "firstAvailable", place, key)
                _reject(where, _UNKNOWN_FIELD, "Only exactly has it: write the request with exactly, or remove it")
            _reject_flat_amounts(choice, (*path, "requests", index, "firstAvailable", place))
        _reject_flat_amounts(map_at(one, "exactly"), (*path, "requests", index, "exactly"))


def _reject_flat_amounts(request: Json, path: FieldPath) -> None:
    for key, amount in map_at(request, "capacity").items():
        if key not in CLAIM_FIELDS["CapacityRequirements"] and not isinstance(amount, dict):
            must, fix = (
                "must be in capacity.requests: kubectl rejects it here",
                f"Write capacity: {{requests: {{{key}: {amount}}}}}",
            )
            _reject((*path, "capacity", key), must, fix)


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
    for kind in CONTAINER_LISTS:
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
