"""Which devices of the cluster the selectors of a claim's request match, and why not others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import abbreviate_names, shorten_text
from webhook.model.apimachinery import Quantity, canonical_text, compare_quantities
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.cel.syntax_tree import ExpressionNode
from webhook.model.cel.values import CelMap
from webhook.model.dra.capacity import NO_AMOUNTS, has_capacity_left
from webhook.model.dra.device_selectors import (
    DeviceSelectorProgram,
    SelectorRuntimeError,
    compile_device_selector,
    device_value,
)
from webhook.model.dra.published_devices import PublishedDevice, PublishedDevices
from webhook.model.dra.resource_slices import DeviceAttribute
from webhook.model.dra.selector_advice import (
    CLOSE_PERCENT,
    CapacityBound,
    DeviceKey,
    SelectorCondition,
    bound_distance,
    close_bound,
    failing_conditions,
    guarded_expression,
    keys_named,
    meant_key,
    meant_text,
    names_beside,
    published_keys,
    replace_bounds,
    selector_conditions,
    with_bound,
)
from webhook.model.dra.selector_cache import count_parts
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.pods import QuantityText
from webhook.model.quantity import parse_nano, parse_nano_or_none

MAX_DEVICES_EXPLAINED = 256
"""Kinds of devices on which conditions are evaluated one by one."""


MAX_PARTS_EVALUATED = 100_000
"""Parts of selectors times devices: about 50 ms."""

MAX_KEYS_COMPARED = 8
"""Keys of a selector that no device has and that are compared with those of devices."""

MAX_NAMES = 12
"""Names of keys, and values of one, that are listed."""

MAX_BOUNDS = 4
"""Bounds that a device fails and that are lowered together."""

MAX_DEVICES_VERIFIED = 8
"""Devices that match and must match with a lower bound too."""

MAX_TEXT = 400
"""Longest text of an expression in a finding."""

TEST_FIRST = "Test whether the key exists first."
CORRECT_TEXT = "Correct the value that causes this error, or exclude such devices before it is read."


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
    value: CelMap
    failing: Sequence[tuple[RequestSelector, SelectorCondition]]


class _EvaluatedDevice(NamedTuple):
    published: PublishedDevice
    value: CelMap


def compile_selector(expression: str, path: FieldPath, class_name: str = "") -> RequestSelector:
    """Compile a selector of a request.

    Raises:
        SelectorCompileError: The API server rejects it.
        UnmodeledExpressionError: It is not evaluated here.
    """
    return RequestSelector(compile_device_selector(expression), path, class_name)


class RequestMatch(NamedTuple):
    """The devices that a request may get, one of each kind, and what is wrong with its selectors.

    Attributes:
        is_known: False if its findings may not be all.
    """

    findings: Sequence[PolicyFinding] = ()
    devices: Sequence[PublishedDevice] = ()
    is_known: bool = False


def match_request(
    selectors: Sequence[RequestSelector],
    devices: PublishedDevices,
    amounts: Mapping[str, QuantityText],
    path: FieldPath,
) -> RequestMatch:
    """Return which devices a request may get, given those between which its selectors can tell.

    Args:
        selectors: The selectors of its class, and its own.
        devices: The devices.
        amounts: What it requests of the capacity of each device.
        path: Where that stands.

    Raises:
        UnmodeledExpressionError: A selector takes too many steps to be evaluated here.
    """
    parts = sum(count_parts(one.program) for one in selectors)
    if parts * len(devices.kinds) > MAX_PARTS_EVALUATED:
        raise UnmodeledExpressionError("it would take too long on all devices")
    evaluated = list(_evaluated_devices(devices.kinds))
    errors, matching, others = _match_devices(selectors, evaluated)
    found = [each.published for each in matching]
    if errors:
        return RequestMatch([_unguarded_key(selector, evaluated, some) for selector, some in errors], found, True)
    conditions = [(one, each) for one in selectors for each in selector_conditions(one.program)]
    excluded = [_exclusion(conditions, each) for each in others[:MAX_DEVICES_EXPLAINED]]
    if matching:
        findings = [*_close_bounds(excluded, matching), *_amount_findings(matching, amounts, path)]
        return RequestMatch(findings, found, True)
    unmatched = [_no_match(excluded, [each.value for each in evaluated], devices.total)] if excluded else []
    return RequestMatch(unmatched, is_known=True)


def _evaluated_devices(devices: Iterable[PublishedDevice]) -> Iterator[_EvaluatedDevice]:
    """Yield devices with their values."""
    for each in devices:
        try:
            yield _EvaluatedDevice(each, device_value(each.pool.driver, each.device))
        except SelectorRuntimeError as error:
            raise UnmodeledExpressionError(f"device {each.device.name}: {error}") from None


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
    fix, reason = "", ""
    try:
        selector.program.selects_value(failing[0].value)
    except SelectorRuntimeError as error:
        reason = f"lacks {error.missing_key}" if error.missing_key else f"gives an error: {error.reason}"
        is_mismatch = "overload" in error.reason
        fix = TEST_FIRST if error.missing_key else "Compare values of one type." if is_mismatch else CORRECT_TEXT
    message = f"must have a value for every device: {_describe(published)} {reason}, which ends scheduling on all nodes"
    values = [each.value for each in devices]
    guarded = guarded_expression(selector.program, values)
    if guarded is not None:
        text = f"Write {_on_one_line(guarded)}"
        fix = text if len(text) <= MAX_TEXT else TEST_FIRST
    if selector.class_name:
        message = f"{message} (selector of class {selector.class_name})"
    misspelled = next(_misspelled_keys(selector.program.tree, values), None)
    return _claim_finding("GPU-D102", selector.path, message, misspelled or fix)


def _misspelled_keys(tree: ExpressionNode, values: Sequence[CelMap]) -> Iterator[str]:
    """Yield what to write instead of each key that no device has, or which other keys devices have."""
    published = {key for value in values for key in published_keys(value)}
    for key in sorted(keys_named(tree) - published)[:MAX_KEYS_COMPARED]:
        meant = meant_key(key, published)
        if meant is None and (names := names_beside(key, published)):
            yield f"No device has {key.name}. They have {abbreviate_names(names, MAX_NAMES)}."
        elif meant is not None:
            is_beside = (meant.group, meant.domain) == (key.group, key.domain)
            found, right = (key.name, meant.name) if is_beside else (key.expression, meant.expression)
            yield f"No device has {found}. Write {right}."


def _exclusion(conditions: Sequence[tuple[RequestSelector, SelectorCondition]], each: _EvaluatedDevice) -> _Exclusion:
    failing = [(selector, one) for selector, one in conditions if failing_conditions([one], each.value)]
    return _Exclusion(each.published, each.value, failing)


def _no_match(excluded: Sequence[_Exclusion], values: Sequence[CelMap], count: int) -> PolicyFinding:
    """Report that no device matches, with the first condition that the nearest device fails."""
    nearest = min(excluded, key=_distance)
    selector, condition = nearest.failing[0]
    message = (
        f"must match a device of this cluster, and none of its {count} devices matches; "
        f"the nearest, {_describe(nearest.published)}, fails {shorten_text(_on_one_line(condition.text), MAX_TEXT)}"
    )
    if selector.class_name:
        message = f"{message} (of class {selector.class_name})"
    missed = list(_missed_bounds(nearest._replace(failing=nearest.failing[:1]), [nearest.value]))
    fix = _bound_fix(missed) if missed else None
    misspelled = next(_misspelled_keys(condition.tree, values), None)
    fix = fix or misspelled or _published_values(condition, nearest, excluded)
    return _claim_finding("GPU-D101", selector.path, message, fix)


def _published_values(condition: SelectorCondition, nearest: _Exclusion, excluded: Sequence[_Exclusion]) -> str:
    """Return what to write in a condition on one attribute: the value that is meant, or those of devices as near."""
    near = [each for each in excluded if len(each.failing) == len(nearest.failing)
            and any(one is condition for _, one in each.failing)]  # fmt: skip
    for key in keys_named(condition.tree) if len(keys_named(condition.tree)) == 1 else ():
        values = sorted({text for each in near if (text := _value_of(key, each.published)) is not None})
        if meant := meant_text(condition, values, [each.value for each in near]):
            return f"Write '{meant}'."
        if values:
            return f"Devices have {key.name} {abbreviate_names(values, MAX_NAMES)}."
    return "Change the condition, or request another class."


def _value_of(key: DeviceKey, published: PublishedDevice) -> str | None:
    """Return the text or version that a device has as attribute; None if it has none."""
    attributes = published.device.attributes
    names = key.published_names(published.pool.driver) if key.group == "attributes" else ()
    found = next((attributes[name] for name in names if name in attributes), DeviceAttribute())
    return found.string_value or found.version_value


def _distance(one: _Exclusion) -> tuple[int, Fraction]:
    """Return how many conditions a device fails, and by how much its capacities miss their bounds."""
    missed = (bound_distance(condition, one.value) for _, condition in one.failing)
    return len(one.failing), sum(missed, Fraction(0))


def _amount_findings(
    matching: Sequence[_EvaluatedDevice], amounts: Mapping[str, QuantityText], path: FieldPath
) -> Iterator[PolicyFinding]:
    """Yield the amount of a capacity that no device has, or that excludes a smaller device by little."""
    devices = [each.published for each in matching]
    if not amounts or any(parse_nano_or_none(amount) is None for amount in amounts.values()):
        return
    large = [each for each in devices if has_capacity_left(each.device, amounts, NO_AMOUNTS, NO_AMOUNTS)]
    for name, wanted in amounts.items() if len(large) < len(devices) else ():
        least, has = parse_nano(wanted), [(_amount_of(each, name), each) for each in devices]
        most, nearest = max(has, key=lambda one: one[0] if one[0] < least else -1)
        if not 0 < most < least:
            continue
        is_twice = all(2 * _amount_of(each, name) >= 3 * most for each in large)
        if large and not (most * (100 + CLOSE_PERCENT) >= least * 100 and is_twice):
            continue
        text = str(nearest.device.capacity[name].value)
        about = f"{_describe(nearest)}, which has {text} of {name}: less than {wanted}"
        message = f"excludes {about}" if large else f"must be at most what a device has; the nearest is {about}"
        fix = f"If {text} is enough, write {text}."
        yield _claim_finding("GPU-D103" if large else "GPU-D101", (*path, name), message, fix)
        return
    if not large:
        message = "must be amounts that a device of this cluster has and that its policy allows, found none"
        yield _claim_finding("GPU-D101", path, message, "Request less, or another class.")


def _amount_of(published: PublishedDevice, name: str) -> int:
    """Return what a device has of a capacity, nano-units; 0 if it does not publish it."""
    capacity = published.device.capacity.get(name)
    return 0 if capacity is None else parse_nano(capacity.value)


class _MissedBound(NamedTuple):
    """A bound that a device fails by little.

    Attributes:
        amount: What the device has.
        literal: What to write instead.
    """

    selector: RequestSelector
    condition: SelectorCondition
    bound: CapacityBound
    amount: Quantity
    literal: str


def _missed_bounds(one: _Exclusion, devices: Sequence[CelMap]) -> Iterator[_MissedBound]:
    """Yield the bounds of a request that a device fails by little, and that some devices pass if they are lower."""
    for selector, condition in one.failing:
        close = None if selector.class_name else close_bound(condition, one.value)
        literal = None if close is None else with_bound(condition, *close, devices)
        if close is not None and literal is not None:
            yield _MissedBound(selector, condition, *close, literal)


def _close_bounds(excluded: Sequence[_Exclusion], matching: Sequence[_EvaluatedDevice]) -> Iterator[PolicyFinding]:
    """Yield the bounds of a request that alone exclude a smaller device by little, those of each selector together."""
    best: dict[FieldPath, tuple[_Exclusion, list[_MissedBound]]] = {}
    tried = set[tuple[tuple[int, Quantity], ...]]()
    for one in excluded:
        close = _bounds_of_smaller(one, matching)
        key = tuple([(id(bound), amount) for bound, amount in close])
        if not close or key in tried:
            continue
        tried.add(key)
        missed = list(_missed_bounds(one, [one.value, *[each.value for each in matching[:MAX_DEVICES_VERIFIED]]]))
        for path in dict.fromkeys(each.selector.path for each in missed) if len(missed) == len(close) else ():
            some = [each for each in missed if each.selector.path == path]
            if path not in best or compare_quantities(some[0].amount, best[path][1][0].amount) > 0:
                best[path] = one, some
    yield from (_close_bound_finding(one, missed) for one, missed in best.values())


def _bounds_of_smaller(
    one: _Exclusion, matching: Sequence[_EvaluatedDevice]
) -> Sequence[tuple[CapacityBound, Quantity]]:
    """Return all that a device fails, if these are bounds that exceed it by little, and all that match are larger."""
    if len(one.failing) > MAX_BOUNDS:
        return ()
    close = [close_bound(condition, one.value) for selector, condition in one.failing if not selector.class_name]
    found = [each for each in close if each is not None and _is_larger(*each, matching)]
    return found if len(found) == len(one.failing) else ()


def _close_bound_finding(one: _Exclusion, missed: Sequence[_MissedBound]) -> PolicyFinding:
    bound, amount = missed[0].bound, missed[0].amount
    has, wanted = canonical_text(amount), canonical_text(bound.amount)
    order = "less" if compare_quantities(amount, bound.amount) < 0 else "not more"
    message = f"excludes {_describe(one.published)}, which has {has} of {bound.name}: {order} than {wanted}"
    return _claim_finding("GPU-D103", missed[0].selector.path, message, _bound_fix(missed))


def _is_larger(bound: CapacityBound, amount: Quantity, matching: Sequence[_EvaluatedDevice]) -> bool:
    """Return whether every device that matches has at least half as much again as one that is excluded."""
    found = (each.value.get("capacity").get(bound.domain).find(bound.name) for each in matching)
    amounts = [one.value.quantity for one in found if one.present]
    doubled = amount._replace(unscaled=amount.unscaled * 3)
    return bool(amounts) and all(
        compare_quantities(one._replace(unscaled=one.unscaled * 2), doubled) >= 0 for one in amounts
    )


def _bound_fix(missed: Sequence[_MissedBound]) -> str:
    """Return what to write in a selector instead of bounds that a device fails."""
    program = missed[0].selector.program
    text = _on_one_line(replace_bounds(program, [(each.bound, each.literal) for each in missed]))
    has = " and ".join(canonical_text(each.amount) for each in missed)
    enough = f"If {has} {'is' if len(missed) == 1 else 'are'} enough, write"
    return f"{enough} {text}" if len(text) <= MAX_TEXT else f"{enough} {'it' if len(missed) == 1 else 'them'} as bound."


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
