"""Which devices of the cluster the selectors of a claim's request match, and why not others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from typing import NamedTuple

from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import shorten_text
from webhook.model.apimachinery import Quantity, canonical_text, compare_quantities
from webhook.model.cel.cel_errors import UnmodelledExpressionError
from webhook.model.cel.values import CelMap
from webhook.model.dra.device_selectors import (
    DeviceSelectorProgram,
    SelectorRuntimeError,
    compile_device_selector,
    device_value,
)
from webhook.model.dra.published_devices import PublishedDevice, PublishedDevices
from webhook.model.dra.selector_advice import (
    CapacityBound,
    SelectorCondition,
    bound_distance,
    capacity_bound,
    close_amount,
    failing_conditions,
    guarded_expression,
    keys_read,
    selector_conditions,
    with_bound,
)
from webhook.model.dra.selector_cache import count_parts
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath

MAX_DEVICES_EXPLAINED = 256
"""Kinds of devices on which conditions are evaluated one by one."""


MAX_PARTS_EVALUATED = 100_000
"""Parts of selectors times devices: about 50 ms."""

MAX_TEXT = 400
"""Longest text of an expression in a finding."""


class RequestSelector(NamedTuple):
    """A selector of a request or of its class.

    Attributes:
        path: Where the request has it; the name of the class for a selector of the class.
        class_name: The class; "" for a selector of the request.
    """

    program: DeviceSelectorProgram
    path: FieldPath
    class_name: str


class _Exclusion(NamedTuple):
    """A device that a request does not get, and the conditions that it fails, each with its selector."""

    published: PublishedDevice
    failing: Sequence[tuple[RequestSelector, SelectorCondition]]


class _EvaluatedDevice(NamedTuple):
    published: PublishedDevice
    value: CelMap


def compile_selector(expression: str, path: FieldPath, class_name: str = "") -> RequestSelector:
    """Compile a selector of a request.

    Raises:
        SelectorCompileError: The API server rejects it.
        UnmodelledExpressionError: It is not evaluated here.
    """
    return RequestSelector(compile_device_selector(expression), path, class_name)


def match_findings(selectors: Sequence[RequestSelector], devices: PublishedDevices) -> list[PolicyFinding]:
    """Return what is wrong with the selectors of a request, given the devices between which they can tell.

    Raises:
        UnmodelledExpressionError: A selector takes too many steps to be evaluated here.
    """
    parts = sum(count_parts(one.program) for one in selectors)
    if parts * len(devices.kinds) > MAX_PARTS_EVALUATED:
        raise UnmodelledExpressionError("it would take too long on all devices")
    evaluated = list(_evaluated_devices(devices.kinds))
    errors, matching, others = _match_devices(selectors, evaluated)
    if errors:
        return [_unguarded_key(selector, evaluated, some) for selector, some in errors]
    conditions = [(one, each) for one in selectors for each in selector_conditions(one.program)]
    excluded = [_exclusion(conditions, each) for each in others[:MAX_DEVICES_EXPLAINED]]
    if matching:
        return list(_close_bounds(excluded, others, matching))
    return [_no_match(excluded, others, devices.total)] if excluded else []


def _evaluated_devices(devices: Iterable[PublishedDevice]) -> Iterator[_EvaluatedDevice]:
    """Yield devices with their values."""
    for each in devices:
        try:
            yield _EvaluatedDevice(each, device_value(each.pool.driver, each.device))
        except SelectorRuntimeError as error:
            raise UnmodelledExpressionError(f"device {each.device.name}: {error}") from None


_ErrorsBySelector = list[tuple[RequestSelector, list[_EvaluatedDevice]]]


def _match_devices(
    selectors: Sequence[RequestSelector], devices: Sequence[_EvaluatedDevice]
) -> tuple[_ErrorsBySelector, list[_EvaluatedDevice], list[_EvaluatedDevice]]:
    """Return the devices on which a selector fails, by selector, those that all match, and the others."""
    errors: dict[int, list[_EvaluatedDevice]] = {}
    matching, others = list[_EvaluatedDevice](), list[_EvaluatedDevice]()
    for each in devices:
        index, selected = _first_obstacle(selectors, each)
        if index < 0:
            matching.append(each)
        elif selected is None:
            errors.setdefault(index, []).append(each)
        else:
            others.append(each)
    return [(selectors[index], some) for index, some in sorted(errors.items())], matching, others


def _first_obstacle(selectors: Sequence[RequestSelector], each: _EvaluatedDevice) -> tuple[int, bool | None]:
    """Return the first selector that does not select a device, and False, or None if it fails; -1 if all do."""
    for index, selector in enumerate(selectors):
        try:
            if not selector.program.selects_value(each.value):
                return index, False
        except SelectorRuntimeError:
            return index, None
    return -1, True


def _unguarded_key(
    selector: RequestSelector, devices: Sequence[_EvaluatedDevice], failing: Sequence[_EvaluatedDevice]
) -> PolicyFinding:
    published = failing[0].published
    try:
        selector.program.selects_value(failing[0].value)
        reason = ""
    except SelectorRuntimeError as error:
        reason = f"lacks {error.missing_key}" if error.missing_key else f"gives an error: {error.reason}"
    message = f"must have a value for every device: {_describe(published)} {reason}, which ends scheduling on all nodes"
    values = [each.value for each in devices]
    guarded = guarded_expression(selector.program, values)
    fix = f"Write {_on_one_line(guarded)}" if guarded is not None else "Compare values of one type."
    if len(fix) > MAX_TEXT:
        fix = "Test whether the key exists first."
    if selector.class_name:
        message = f"{message} (selector of class {selector.class_name})"
    misspelt = next(_misspelt_keys(selector, values), None)
    return _claim_finding("GPU-D102", selector.path, message, misspelt or fix)


def _misspelt_keys(selector: RequestSelector, values: Sequence[CelMap]) -> Iterator[str]:
    """Yield what to write instead of each key that no device has, but that is almost the name of another."""
    for key in sorted(keys_read(selector.program.tree)):
        names = {name for value in values for name in key.names_beside(value)}
        folded = {name.casefold(): name for name in names}
        if key.name not in names and (near := get_close_matches(key.name.casefold(), folded, n=1, cutoff=0.8)):
            yield f"No device has {key.name}. Write {folded[near[0]]}."


def _exclusion(conditions: Sequence[tuple[RequestSelector, SelectorCondition]], each: _EvaluatedDevice) -> _Exclusion:
    failing = [(selector, one) for selector, one in conditions if failing_conditions([one], each.value)]
    return _Exclusion(each.published, failing)


def _no_match(excluded: Sequence[_Exclusion], others: Sequence[_EvaluatedDevice], count: int) -> PolicyFinding:
    """Report that no device matches, with the first condition that the nearest device fails."""
    values = {id(each.published): each.value for each in others}
    nearest = min(excluded, key=lambda one: _distance(one, values[id(one.published)]))
    selector, condition = nearest.failing[0]
    message = (
        f"must match a device of this cluster, found none of {count}; "
        f"the nearest, {_describe(nearest.published)}, fails {shorten_text(_on_one_line(condition.text), MAX_TEXT)}"
    )
    if selector.class_name:
        message = f"{message} (of class {selector.class_name})"
    missed = _missed_amount(nearest, values)
    fix = "Change the condition, or request another class." if missed is None else _bound_fix(selector, *missed)
    return _claim_finding("GPU-D101", selector.path, message, fix)


def _distance(one: _Exclusion, value: CelMap) -> tuple[int, Fraction]:
    """Return how many conditions a device fails, and by how much its capacities miss their bounds."""
    missed = (bound_distance(condition, value) for _, condition in one.failing)
    return len(one.failing), sum(missed, Fraction(0))


def _missed_amount(one: _Exclusion, values: Mapping[int, CelMap]) -> tuple[CapacityBound, Quantity] | None:
    """Return the bound of a request that a device fails first, and what it has, if that is almost enough."""
    selector, condition = one.failing[0]
    bound = None if selector.class_name else capacity_bound(condition)
    amount = None if bound is None else close_amount(bound, values[id(one.published)])
    return None if bound is None or amount is None else (bound, amount)


def _close_bounds(
    excluded: Sequence[_Exclusion], others: Sequence[_EvaluatedDevice], matching: Sequence[_EvaluatedDevice]
) -> Iterator[PolicyFinding]:
    """Yield the bounds of a request that alone exclude a smaller device by little, one for each selector."""
    values = {id(each.published): each.value for each in others}
    best: dict[FieldPath, tuple[Quantity, PolicyFinding]] = {}
    for one in excluded:
        missed = _missed_amount(one, values) if len(one.failing) == 1 else None
        if missed is None or not _is_larger(missed[0], matching, missed[1]):
            continue
        selector, (bound, amount) = one.failing[0][0], missed
        known = best.get(selector.path)
        if known is None or compare_quantities(amount, known[0]) > 0:
            has, wanted = canonical_text(amount), canonical_text(bound.amount)
            message = f"excludes {_describe(one.published)}, which has {has} of {bound.name}: less than {wanted}"
            finding = _claim_finding("GPU-D103", selector.path, message, _bound_fix(selector, bound, amount))
            best[selector.path] = amount, finding
    yield from (finding for _, finding in best.values())


def _is_larger(bound: CapacityBound, matching: Sequence[_EvaluatedDevice], amount: Quantity) -> bool:
    """Return whether every device that matches has at least half as much again as one that is excluded."""
    found = (each.value.get("capacity").get(bound.domain).find(bound.name) for each in matching)
    amounts = [one.value.quantity for one in found if one.present]
    doubled = amount._replace(unscaled=amount.unscaled * 3)
    return bool(amounts) and all(
        compare_quantities(one._replace(unscaled=one.unscaled * 2), doubled) >= 0 for one in amounts
    )


def _bound_fix(selector: RequestSelector, bound: CapacityBound, amount: Quantity) -> str:
    text, has = _on_one_line(with_bound(selector.program, bound, amount)), canonical_text(amount)
    return f"If {has} is enough, write {text}" if len(text) <= MAX_TEXT else f"If {has} is enough, write it as bound."


def _on_one_line(expression: str) -> str:
    return " ".join(line.strip() for line in expression.splitlines())


def _describe(published: PublishedDevice) -> str:
    """Return a device for people, with its product or profile if it has one."""
    attributes = published.device.attributes
    kinds = [attributes[name].string_value for name in ("profile", "productName") if name in attributes]
    about = f" ({', '.join(filter(None, kinds))})" if any(kinds) else ""
    return f"{published.device.name} of {published.pool.pool}{about}"


def _claim_finding(code: str, path: FieldPath, message: str, fix: str) -> PolicyFinding:
    return PolicyFinding(code, path, message, fix, at_most=PolicyMode.WARN)
