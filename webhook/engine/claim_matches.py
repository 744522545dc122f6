"""Which devices of the cluster the selectors of a claim's request match, and why not others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from webhook.engine.claim_bounds import amount_findings, bound_fix, close_bound_findings, missed_bounds
from webhook.engine.matched_devices import (
    MAX_TEXT,
    DeviceGroups,
    EvaluatedDevice,
    ExcludedDevice,
    RequestSelector,
    claim_warning,
    describe_device,
    evaluate_devices,
    explain_exclusion,
    first_obstacle,
    group_devices,
    on_one_line,
)
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import abbreviate_names, shorten_text
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.cel.syntax_tree import ExpressionNode
from webhook.model.cel.values import CelMap
from webhook.model.claims import DeviceClasses
from webhook.model.derived_values import derived_value
from webhook.model.dra.class_offers import matches_all
from webhook.model.dra.device_pools import DevicePools, PoolId
from webhook.model.dra.device_selectors import (
    SelectorRuntimeError,
)
from webhook.model.dra.published_devices import PublishedDevice, PublishedDevices
from webhook.model.dra.resource_slices import DeviceAttribute
from webhook.model.dra.selector_advice import (
    DeviceKey,
    SelectorCondition,
    bound_distance,
    guarded_expression,
    keys_named,
    meant_key,
    meant_text,
    names_beside,
    published_keys,
    selector_conditions,
)
from webhook.model.dra.selector_cache import count_parts
from webhook.model.field_paths import FieldPath
from webhook.model.objects import HARD_EFFECTS
from webhook.model.pods import QuantityText

MAX_DEVICES_EXPLAINED = 256
"""Kinds of devices on which conditions are evaluated one by one."""

MAX_PARTS_EVALUATED = 100_000
"""Parts of selectors times devices: about 50 ms."""

MAX_KEYS_COMPARED = 8
"""Keys of a selector that no device has and that are compared with those of devices."""

MAX_NAMES = 12
"""Names of keys, and values of one, that are listed."""

MAX_CLASSES_TRIED = 64
"""Classes that are tried, to name another one to request."""

MAX_CLASSES = 3
"""Classes that a finding names."""

ANOTHER_CLASS = "another class"

QUOTED_VERSION = re.compile(r"""(['"])\d+\.\d+\.\d+\1""")
TEST_FIRST = "Test whether the key exists first."

CORRECT_TEXT = "Correct the value that causes this error, or exclude such devices before it is read."


class RequestMatch(NamedTuple):
    """The devices that a request may get, one of each kind, and what is wrong with its selectors.

    Attributes:
        is_known: False if its findings may not be all.
    """

    findings: Sequence[PolicyFinding] = ()
    devices: Sequence[PublishedDevice] = ()
    is_known: bool = False


class DevicePlace(NamedTuple):
    """Where the devices are that are compared with a request, in words.

    Attributes:
        name: The place.
        devices: All devices there.
    """

    name: str
    devices: str


NODES_OF_POD = DevicePlace("the nodes that the pod may use", "their devices")


def match_request(
    selectors: Sequence[RequestSelector],
    devices: PublishedDevices,
    place: DevicePlace,
    amounts: Mapping[str, QuantityText],
    path: FieldPath,
    classes: DeviceClasses,
    pools: DevicePools,
) -> RequestMatch:
    """Return which devices a request may get, given those between which its selectors can tell.

    Args:
        selectors: The selectors of its class, and its own.
        devices: The devices.
        place: Where they are.
        amounts: What it requests of the capacity of each device.
        path: Where that stands.
        classes: All classes, to name another one to request.
        pools: The pools of the devices.

    Raises:
        UnmodeledExpressionError: A selector takes too many steps to be evaluated here.
    """
    parts = sum(count_parts(one.program) for one in selectors)
    if parts * len(devices.kinds) > MAX_PARTS_EVALUATED:
        raise UnmodeledExpressionError("it would take too long on all devices")
    groups = group_devices(selectors, list(evaluate_devices(devices.kinds)))
    found = [each.published for each in groups.matching]
    if groups.failing:
        advice = _advise(selectors, groups, classes, pools)
        return RequestMatch([_unguarded_key(selector, some, advice) for selector, some in groups.failing], found, True)
    conditions = [(one, each) for one in selectors for each in selector_conditions(one.program)]
    others = groups.excluded_by_request or groups.excluded_by_class
    excluded = [explain_exclusion(conditions, each) for each in others[:MAX_DEVICES_EXPLAINED]]
    if groups.matching:
        findings = [*close_bound_findings(excluded, groups.matching), *amount_findings(groups.matching, amounts, path)]
        return RequestMatch(findings, found, True)
    if not excluded:
        return RequestMatch(is_known=True)
    unmatched = _no_match(excluded, place, _advise(selectors, groups, classes, pools))
    return RequestMatch([unmatched], is_known=True)


def _unguarded_key(
    selector: RequestSelector, failing: Sequence[EvaluatedDevice], advice: _SelectorAdvice
) -> PolicyFinding:
    reason, fix = _explain_error(selector, failing[0])
    described = describe_device(failing[0].published)
    message = f"must have a value for every device: {described} {reason}, which ends scheduling on all nodes"
    guarded = guarded_expression(selector.program, [each.value for each in advice.groups.read_by(selector)])
    if guarded is not None:
        text = f"Write {on_one_line(guarded)}"
        fix = text if len(text) <= MAX_TEXT else TEST_FIRST
    if selector.class_name:
        message = f"{message} (selector of class {selector.class_name})"
    return claim_warning("GPU-D102", selector.path, message, advice.for_keys(selector, selector.program.tree) or fix)


def _explain_error(selector: RequestSelector, device: EvaluatedDevice) -> tuple[str, str]:
    """Return why a selector fails on a device, and what to do; two "" if it does not."""
    try:
        selector.program.selects_value(device.value)
    except SelectorRuntimeError as error:
        if error.missing_key:
            return f"lacks {error.missing_key}", TEST_FIRST
        fix = _fix_of_types(selector, error.reason) if "overload" in error.reason else CORRECT_TEXT
        return f"gives an error: {error.reason}", fix
    return "", ""


def _fix_of_types(selector: RequestSelector, reason: str) -> str:
    """Return how to compare values of one type; for a version and a text, with the text as a version."""
    text = QUOTED_VERSION.search(selector.program.expression)
    if text is None or not ("Semver" in reason and "string" in reason):
        return "Compare values of one type."
    return f"Write semver({text.group()}) for {text.group()}."


class _SelectorAdvice(NamedTuple):
    """Advice on what to write or to request instead of a selector that matches no device.

    Attributes:
        groups: The devices.
        classes: All classes.
        pools: The pools of the cluster.
        of_class: Some devices of the class, with whether the selectors of the request select them; None if one fails.
        of_others: Some other devices, likewise.
    """

    groups: DeviceGroups
    classes: DeviceClasses
    pools: DevicePools
    of_class: Sequence[tuple[EvaluatedDevice, bool | None]]
    of_others: Sequence[tuple[EvaluatedDevice, bool | None]]

    def for_keys(self, selector: RequestSelector, tree: ExpressionNode) -> str:
        """Return what to write instead of the first key that no device has, in a part of a selector; or "".

        The devices are those on which the selector is evaluated.
        """
        published = {key for each in self.groups.read_by(selector) for key in published_keys(each.value)}
        missing = sorted(keys_named(tree) - published)[:MAX_KEYS_COMPARED]
        class_name = "" if selector.class_name else self.groups.class_name
        return next(filter(None, (self._for_key(key, published, class_name) for key in missing)), "")

    def _for_key(self, key: DeviceKey, published: set[DeviceKey], class_name: str) -> str:
        owner = next((each for each in self.groups.every if key in published_keys(each.value)), None)
        if owner is not None:
            other_class = self.selecting_class() or self._class_of(owner) or ANOTHER_CLASS
            return f"No device of class {class_name} has {key.name}. Request {other_class}."
        if (meant := meant_key(key, published)) is not None:
            is_beside = (meant.group, meant.domain) == (key.group, key.domain)
            found, right = (key.name, meant.name) if is_beside else (key.expression, meant.expression)
            return f"No device has {found}. Write {right}."
        names = names_beside(key, published)
        subject = f"Those of class {class_name}" if class_name else "They"
        return f"No device has {key.name}. {subject} have {abbreviate_names(names, MAX_NAMES)}." if names else ""

    def selecting_class(self) -> str:
        """Return the class of a device that the selectors of the request select; "" without any."""
        found = next((each for each, selected in self.of_others if selected), None)
        return self._class_of(found) if found is not None else ""

    def _class_of(self, device: EvaluatedDevice) -> str:
        """Return the classes that select a device, and in which the selectors of the request fail on none; or ""."""
        names = (name for name in sorted(self.classes)[:MAX_CLASSES_TRIED] if self._has_values_in(name, device))
        found = list(islice(names, MAX_CLASSES))
        return f"class {' or '.join(found)}" if found else ""

    def _has_values_in(self, class_name: str, device: EvaluatedDevice) -> bool:
        expressions = [selector.cel.expression for selector in self.classes[class_name].selectors]
        try:
            return _selects_all(expressions, device) and not any(
                selected is None and _selects_all(expressions, each)
                for each, selected in (*self.of_class, *self.of_others)
            )
        except (SelectorRuntimeError, UnmodeledExpressionError):
            return False


def _advise(
    selectors: Sequence[RequestSelector], groups: DeviceGroups, classes: DeviceClasses, pools: DevicePools
) -> _SelectorAdvice:
    requested = [one for one in selectors if not one.class_name]
    failing = [each for _, some in groups.failing for each in some]
    inside, others = [*groups.matching, *failing, *groups.excluded_by_request], groups.excluded_by_class
    of_class, of_others = (
        [(each, first_obstacle(requested, each)[1]) for each in some[:MAX_DEVICES_EXPLAINED] if requested]
        for some in (inside, others)
    )
    return _SelectorAdvice(groups, classes, pools, of_class, of_others)


def _selects_all(expressions: Sequence[str], device: EvaluatedDevice) -> bool:
    return matches_all(expressions, device.published.pool.driver, device.published.device)


def _no_match(excluded: Sequence[ExcludedDevice], place: DevicePlace, advice: _SelectorAdvice) -> PolicyFinding:
    """Report that no device matches, with the first condition that the nearest device fails.

    Args:
        excluded: The devices.
        place: Where they are.
        advice: What to write instead.
    """
    nearest = min(excluded, key=_distance)
    selector, condition = nearest.failing[0]
    subject = f"class {selector.class_name} excludes all" if selector.class_name else "none"
    verb = "" if selector.class_name else " matches"
    failed = shorten_text(on_one_line(condition.text), MAX_TEXT)
    message = (
        f"must match a device of {place.name}, and {subject} of {place.devices}{verb}; "
        f"the nearest, {describe_device(nearest.published)}, fails {failed}"
    )
    return claim_warning("GPU-D101", selector.path, message, _fix_of_no_match(nearest, excluded, advice))


def _fix_of_no_match(nearest: ExcludedDevice, excluded: Sequence[ExcludedDevice], advice: _SelectorAdvice) -> str:
    selector, condition = nearest.failing[0]
    other_class, (meant, values) = advice.selecting_class(), _published_values(condition, nearest, excluded, advice)
    if selector.class_name:
        return (f"Request {other_class}." if other_class else meant or values) or f"Request {ANOTHER_CLASS}."
    missed = list(missed_bounds(nearest._replace(failing=nearest.failing[:1]), [nearest.value]))
    if missed:
        return bound_fix(missed)
    change = f"Change the condition, or request {other_class or ANOTHER_CLASS}."
    if values:
        change = f"{change} {values}" if other_class else values
    return advice.for_keys(selector, condition.tree) or meant or change


def _published_values(
    condition: SelectorCondition, nearest: ExcludedDevice, excluded: Sequence[ExcludedDevice], advice: _SelectorAdvice
) -> tuple[str, str]:
    """Return what to write in a condition on one attribute: the value that is meant, and those of devices as near.

    Each is "" if there is none. Devices that can be allocated count first.
    """
    near = [each for each in excluded if len(each.failing) == len(nearest.failing)
            and any(one is condition for _, one in each.failing)]  # fmt: skip
    keys = keys_named(condition.tree)
    if len(keys) != 1:
        return "", ""
    [key], incomplete = keys, _incomplete_pools(advice.pools)
    texts = ((each, _value_of(key, each.published)) for each in near)
    found = [(_is_unusable(each.published, incomplete), text, each.value) for each, text in texts if text is not None]
    known = defaultdict[str, list[CelMap]](list)
    for _, text, device in sorted(found, key=itemgetter(0, 1)):
        known[text].append(device)
    meant = meant_text(condition, known)
    values = f"Devices have {key.name} {abbreviate_names(list(known), MAX_NAMES)}." if known else ""
    return f"Write '{meant}'." if meant else "", values


@derived_value()
def _incomplete_pools(pools: DevicePools) -> frozenset[PoolId]:
    return frozenset(pools.incomplete_pools())


def _is_unusable(published: PublishedDevice, incomplete: Collection[PoolId]) -> bool:
    """Return whether a device is in a pool that lacks slices, or has a taint."""
    return published.pool in incomplete or any(taint.effect in HARD_EFFECTS for taint in published.device.taints)


def _value_of(key: DeviceKey, published: PublishedDevice) -> str | None:
    """Return the text or version that a device has as attribute; None if it has none."""
    attributes = published.device.attributes
    names = key.published_names(published.pool.driver) if key.group == "attributes" else ()
    found = next((attributes[name] for name in names if name in attributes), DeviceAttribute())
    return found.string_value or found.version_value


def _distance(one: ExcludedDevice) -> tuple[int, Fraction]:
    """Return how many conditions a device fails, and by how much its capacities miss their bounds."""
    missed = (bound_distance(condition, one.value) for _, condition in one.failing)
    return len(one.failing), sum(missed, Fraction(0))
