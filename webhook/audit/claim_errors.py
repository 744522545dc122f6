"""Find what the API server rejects in resource claims whose fields have the right types.

Selectors and access for administration are left to the review, which reports them as findings.
Source: `pkg/apis/resource/validation/validation.go` of Kubernetes 1.36.3.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from webhook.engine.linting.objects import ObjectError, invalid_value
from webhook.model.claims import ClaimRequest, ClaimSpec, DeviceConstraint, DeviceRequest
from webhook.model.field_paths import FieldPath
from webhook.model.quantity import parse_nano_or_none
from webhook.well_known import Json

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
        yield ObjectError((*path, "deviceClassName"), "Required value")
    elif not _CLASS_NAME.fullmatch(name):
        yield invalid_value((*path, "deviceClassName"), name, "must be the name of an object, in lower case")
    if len(request.selectors) > MAX_SELECTORS:
        yield ObjectError(
            (*path, "selectors"), f"Too many: {len(request.selectors)}: must have at most {MAX_SELECTORS}"
        )
    if request.allocation_mode == "All" and count:
        yield invalid_value((*path, "count"), count, "must not be specified when allocationMode is 'All'")
    elif count < 0:
        yield invalid_value((*path, "count"), count, "must be greater than zero")
    yield from _amount_errors(request.capacity.requests.items(), (*path, "capacity", "requests"))


def _amount_errors(amounts: Iterable[tuple[str, Any]], path: FieldPath) -> Iterator[ObjectError]:
    for name, amount in amounts:
        if parse_nano_or_none(amount) is None:
            yield invalid_value((*path, name), amount, "must be a quantity")


def _name_errors(name: str, path: FieldPath) -> Iterator[ObjectError]:
    if not name:
        yield ObjectError(path, "Required value")
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
