"""Findings about bounds and amounts of a request that exclude devices by little."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from webhook.engine.matched_devices import (
    MAX_TEXT,
    EvaluatedDevice,
    ExcludedDevice,
    RequestSelector,
    claim_warning,
    describe_device,
    on_one_line,
)
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import abbreviate_names
from webhook.model.apimachinery import Quantity, canonical_text, compare_quantities
from webhook.model.cel.values import CelMap
from webhook.model.dra.capacity import NO_AMOUNTS, has_capacity_left
from webhook.model.dra.published_devices import PublishedDevice
from webhook.model.dra.selector_advice import (
    CLOSE_PERCENT,
    CapacityBound,
    SelectorCondition,
    close_bound,
    replace_bounds,
    with_bound,
)
from webhook.model.field_paths import FieldPath
from webhook.model.pods import QuantityText
from webhook.model.quantity import parse_nano, parse_nano_or_none

MAX_BOUNDS = 4
"""Bounds that a device fails and that are lowered together."""

MAX_DEVICES_VERIFIED = 8
"""Devices that match and must match with a lower bound too."""


def amount_findings(
    matching: Sequence[EvaluatedDevice], amounts: Mapping[str, QuantityText], path: FieldPath
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
        about = f"{describe_device(nearest)}, which has {text} of {name}: less than {wanted}"
        message = f"excludes {about}" if large else f"must be at most what a device has; the nearest is {about}"
        fix = f"If {text} is enough, write {text}."
        yield claim_warning("GPU-D103" if large else "GPU-D101", (*path, name), message, fix)
        return
    published = {name for each in devices for name in each.device.capacity}
    for name in sorted(amounts.keys() - published):
        near = get_close_matches(name.rpartition("/")[2], published, n=1)
        fix = f"Write {near[0]}." if near else f"They have {abbreviate_names(sorted(published))}."
        message = f"must be a capacity of the devices that match, found {name}, which none of them has"
        yield claim_warning("GPU-D101", (*path, name), message, fix if published else "Remove it.")
        return
    if not large:
        message = "must be amounts that a device of this cluster has and that its policy allows, found none"
        yield claim_warning("GPU-D101", path, message, "Request less, or another class.")


def _amount_of(published: PublishedDevice, name: str) -> int:
    """Return what a device has of a capacity, nano-units; 0 if it does not publish it."""
    capacity = published.device.capacity.get(name)
    return 0 if capacity is None else parse_nano(capacity.value)


class MissedBound(NamedTuple):
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


def missed_bounds(one: ExcludedDevice, devices: Sequence[CelMap]) -> Iterator[MissedBound]:
    """Yield the bounds of a request that a device fails by little, and that some devices pass if they are lower."""
    for selector, condition in one.failing:
        close = None if selector.class_name else close_bound(condition, one.value)
        literal = None if close is None else with_bound(condition, *close, devices)
        if close is not None and literal is not None:
            yield MissedBound(selector, condition, *close, literal)


def close_bound_findings(
    excluded: Sequence[ExcludedDevice], matching: Sequence[EvaluatedDevice]
) -> Iterator[PolicyFinding]:
    """Yield the bounds of a request that alone exclude a smaller device by little, those of each selector together."""
    best: dict[FieldPath, tuple[ExcludedDevice, list[MissedBound]]] = {}
    tried = set[tuple[tuple[int, Quantity], ...]]()
    for one in excluded:
        close = _bounds_of_smaller(one, matching)
        key = tuple([(id(bound), amount) for bound, amount in close])
        if not close or key in tried:
            continue
        tried.add(key)
        missed = list(missed_bounds(one, [one.value, *[each.value for each in matching[:MAX_DEVICES_VERIFIED]]]))
        for path in dict.fromkeys(each.selector.path for each in missed) if len(missed) == len(close) else ():
            some = [each for each in missed if each.selector.path == path]
            if path not in best or compare_quantities(some[0].amount, best[path][1][0].amount) > 0:
                best[path] = one, some
    yield from (_close_bound_finding(one, missed) for one, missed in best.values())


def _bounds_of_smaller(
    one: ExcludedDevice, matching: Sequence[EvaluatedDevice]
) -> Sequence[tuple[CapacityBound, Quantity]]:
    """Return all that a device fails, if these are bounds that exceed it by little, and all that match are larger."""
    if len(one.failing) > MAX_BOUNDS:
        return ()
    close = [close_bound(condition, one.value) for selector, condition in one.failing if not selector.class_name]
    found = [each for each in close if each is not None and _is_larger(*each, matching)]
    return found if len(found) == len(one.failing) else ()


def _close_bound_finding(one: ExcludedDevice, missed: Sequence[MissedBound]) -> PolicyFinding:
    bound, amount = missed[0].bound, missed[0].amount
    has, wanted = canonical_text(amount), canonical_text(bound.amount)
    order = "less" if compare_quantities(amount, bound.amount) < 0 else "not more"
    message = f"excludes {describe_device(one.published)}, which has {has} of {bound.name}: {order} than {wanted}"
    return claim_warning("GPU-D103", missed[0].selector.path, message, bound_fix(missed))


def _is_larger(bound: CapacityBound, amount: Quantity, matching: Sequence[EvaluatedDevice]) -> bool:
    """Return whether every device that matches has at least half as much again as one that is excluded."""
    found = (each.value.get("capacity").get(bound.domain).find(bound.name) for each in matching)
    amounts = [one.value.quantity for one in found if one.present]
    doubled = amount._replace(unscaled=amount.unscaled * 3)
    return bool(amounts) and all(
        compare_quantities(one._replace(unscaled=one.unscaled * 2), doubled) >= 0 for one in amounts
    )


def bound_fix(missed: Sequence[MissedBound]) -> str:
    """Return what to write in a selector instead of bounds that a device fails."""
    program = missed[0].selector.program
    text = on_one_line(replace_bounds(program, [(each.bound, each.literal) for each in missed]))
    has = " and ".join(canonical_text(each.amount) for each in missed)
    enough = f"If {has} {'is' if len(missed) == 1 else 'are'} enough, write"
    return f"{enough} {text}" if len(text) <= MAX_TEXT else f"{enough} {'it' if len(missed) == 1 else 'them'} as bound."
