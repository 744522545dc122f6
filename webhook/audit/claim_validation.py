"""Find what the API server rejects in resource claims, and in the claims that pods declare and use.

Access for administration is left to the review, which reports it as a finding: labels of namespaces decide about it.
Source: `pkg/apis/resource/validation/validation.go` and `pkg/apis/core/validation/validation.go` of Kubernetes 1.36.3.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from webhook.engine.linting.objects import ObjectError, invalid_value
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import ClaimRequest, ClaimSpec, DeviceConstraint, DeviceRequest, DeviceSelector
from webhook.model.dra.device_selectors import SelectorCompileError, compile_device_selector
from webhook.model.field_paths import FieldPath, map_at
from webhook.model.quantity import parse_nano_or_none
from webhook.well_known import Json

REQUIRED_VALUE = "Required value"
NAME_A_CLASS = "Write the name of a device class: the request names none"

CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
MAX_ITEMS, MAX_CHOICES = 32, 8
"""Most requests, selectors, constraints and configurations, and most choices of a request."""

MAX_DRIVER_NAME, MAX_PARAMETER_BYTES = 63, 10 * 1024

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_LABEL_NAME = re.compile(_LABEL)
_OBJECT_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_NO_OBJECT_NAME = "must be the name of an object, in lower case"
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
    yield from _set_errors([one.name for one in requests], MAX_ITEMS, (*devices, "requests"))
    for index, request in enumerate(requests):
        plain = written["devices"]["requests"][index]
        yield from _request_errors(request, plain, (*devices, "requests", index))
    names = {one.name for one in requests}
    names |= {f"{one.name}/{choice.name}" for one in requests for choice in one.first_available}
    yield from _size_errors(spec.devices.constraints, MAX_ITEMS, (*devices, "constraints"))
    for index, constraint in enumerate(spec.devices.constraints):
        yield from _constraint_errors(constraint, names, (*devices, "constraints", index))
    configurations = maps_in(map_at(written, "devices").get("config"))
    yield from _size_errors(configurations, MAX_ITEMS, (*devices, "config"))
    for index, configuration in configurations:
        yield from _configuration_errors(configuration, names, (*devices, "config", index))


def find_name_errors(data: Json) -> Iterator[ObjectError]:
    """Yield the error of the name of a claim or template, if it has one."""
    name = map_at(data, "metadata").get("name")
    if name and not _OBJECT_NAME.fullmatch(str(name)):
        yield invalid_value(("metadata", "name"), name, _NO_OBJECT_NAME)


def _size_errors(members: Sequence[Any], most: int, path: FieldPath) -> Iterator[ObjectError]:
    if len(members) > most:
        yield ObjectError(path, f"Too many: {len(members)}: must have at most {most} items")


def _set_errors(names: Sequence[str], most: int, path: FieldPath) -> Iterator[ObjectError]:
    yield from _size_errors(names, most, path)
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
    elif not _OBJECT_NAME.fullmatch(name):
        yield invalid_value((*path, "deviceClassName"), name, _NO_OBJECT_NAME)
    yield from _size_errors(request.selectors, MAX_ITEMS, (*path, "selectors"))
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
    for index, selector in enumerate(selectors[:MAX_ITEMS]):
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
    elif not _LABEL_NAME.fullmatch(name):
        yield invalid_value(path, name, "must be lower-case letters, digits and '-', at most 63")


def _constraint_errors(constraint: DeviceConstraint, names: set[str], path: FieldPath) -> Iterator[ObjectError]:
    yield from _reference_errors(constraint.requests, names, (*path, "requests"))
    key, value = "matchAttribute", constraint.match_attribute
    if value is None:  # the second is checked, and counts, only without the first
        key, value = "distinctAttribute", constraint.distinct_attribute
    if value is None:
        yield ObjectError(path, 'Required value: exactly one of "matchAttribute" or "distinctAttribute" is required')
    elif value.count("/") != 1 or not all(value.split("/")):
        yield invalid_value((*path, key), value, "must be a domain and a name separated by '/'")


def _reference_errors(requests: Sequence[str], names: set[str], path: FieldPath) -> Iterator[ObjectError]:
    yield from _set_errors(requests, MAX_ITEMS, path)
    for place, name in enumerate(requests):
        if name not in names:
            yield invalid_value((*path, place), name, _NOT_A_REQUEST)


def _configuration_errors(configuration: Json, names: set[str], path: FieldPath) -> Iterator[ObjectError]:
    requests = configuration.get("requests")
    yield from _reference_errors(
        list(map(str, requests if isinstance(requests, list) else ())), names, (*path, "requests")
    )
    opaque = configuration.get("opaque")
    if not isinstance(opaque, dict):
        yield ObjectError((*path, "opaque"), REQUIRED_VALUE)
        return
    driver, parameters = str(opaque.get("driver") or ""), opaque.get("parameters")
    yield from _driver_errors(driver, (*path, "opaque", "driver"))
    yield from _parameter_errors(parameters, (*path, "opaque", "parameters"))


def _driver_errors(driver: str, path: FieldPath) -> Iterator[ObjectError]:
    if not driver:
        yield ObjectError(path, REQUIRED_VALUE)
    elif len(driver) > MAX_DRIVER_NAME:
        yield ObjectError(path, f"Too long: may not be more than {MAX_DRIVER_NAME} bytes")
    elif not _OBJECT_NAME.fullmatch(driver.lower()):
        yield invalid_value(path, driver, "must be the name of a driver, such as gpu.nvidia.com")


def _parameter_errors(parameters: Any, path: FieldPath) -> Iterator[ObjectError]:
    if parameters is None:
        yield ObjectError(path, REQUIRED_VALUE)
    elif not isinstance(parameters, dict):
        yield ObjectError(path, "Invalid value: must be a valid JSON object")
    elif len(msgspec.json.encode(parameters)) > MAX_PARAMETER_BYTES:
        yield ObjectError(path, f"Too long: may not be more than {MAX_PARAMETER_BYTES} bytes")


# Claims of pods


def find_pod_claim_errors(data: Any) -> Iterator[ObjectError]:
    """Yield every error of the claims that a pod declares, and of those that its containers use.

    Args:
        data: The plain data of the pod.
    """
    spec = map_at(data, "spec")
    claims = maps_in(spec.get("resourceClaims"))
    names = [str(claim["name"]) for _, claim in claims if claim.get("name")]
    seen = set[str]()
    for index, claim in claims:
        yield from _declared_claim_errors(claim, seen, ("spec", "resourceClaims", index))
        seen.add(str(claim.get("name")))
    if map_at(spec, "resources").get("claims"):
        yield ObjectError(
            ("spec", "resources", "claims"), "Forbidden: claims may not be set for Resources at pod-level"
        )
    for kind in CONTAINER_LISTS:
        for index, container in maps_in(spec.get(kind)):
            used = map_at(container, "resources").get("claims")
            yield from _used_claim_errors(used, names, ("spec", kind, index, "resources", "claims"))


def _declared_claim_errors(claim: Json, seen: set[str], path: FieldPath) -> Iterator[ObjectError]:
    """Yield the errors of a claim of a pod.

    Args:
        seen: The names of those before it.
    """
    name, sources = str(claim.get("name") or ""), ("resourceClaimName", "resourceClaimTemplateName")
    if name in seen:
        yield ObjectError((*path, "name"), f'Duplicate value: "{name}"')
    else:
        yield from _name_errors(name, (*path, "name"))
    stated = [source for source in sources if claim.get(source) is not None]
    if len(stated) > 1:
        message = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        yield ObjectError(path, f"Invalid value: {message}")
    if not stated:
        moved = ", beside name: Kubernetes 1.31 removed source" if "source" in claim else ""
        yield ObjectError(
            path, f"Invalid value: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`{moved}"
        )
    for source in stated:
        if not _OBJECT_NAME.fullmatch(str(claim[source])):
            yield invalid_value((*path, source), claim[source], _NO_OBJECT_NAME)


def _used_claim_errors(used: Any, names: Sequence[str], path: FieldPath) -> Iterator[ObjectError]:
    """Yield the errors of the claims that a container uses; a claim without a request stands for all of its requests.

    Args:
        names: Those that the pod declares.
    """
    seen = set[str]()
    for place, claim in enumerate(used if isinstance(used, list) else ()):
        where = (*path, place)
        if not isinstance(claim, dict):
            yield invalid_value(where, claim, "must be a map with the name of a claim")
            continue
        name, request = str(claim.get("name") or ""), str(claim.get("request") or "")
        key = f"{name}/{request}" if request else name
        if request:
            yield from _name_errors(request, (*where, "request"))
        if not name:
            yield ObjectError(where, REQUIRED_VALUE)
        elif name in seen or key in seen or (not request and any(each.startswith(f"{name}/") for each in seen)):
            yield ObjectError(where, f'Duplicate value: "{name if name in seen else key}"')
        elif name not in names:
            known = f": {', '.join(names)}" if names else " which is empty"
            message = f'Not found: "{name}": must be one of the names in pod.spec.resourceClaims'
            yield ObjectError(where, message + known)
        seen.add(key)


def maps_in(members: Any) -> list[tuple[int, Json]]:
    """Return the maps of a list in plain data, with their indices; none of anything else."""
    found = enumerate(members) if isinstance(members, list) else ()
    return [(index, one) for index, one in found if isinstance(one, dict)]
