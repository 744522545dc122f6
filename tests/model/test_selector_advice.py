"""Advice on selectors: which condition fails, guards for missing keys, and bounds that fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from webhook.model.cel.values import CelMap
from webhook.model.dra.device_selectors import DeviceSelectorProgram, compile_device_selector, device_value
from webhook.model.dra.resource_slices import Device
from webhook.model.dra.selector_advice import (
    CapacityBound,
    close_bound,
    failing_conditions,
    guarded_expression,
    keys_named,
    meant_key,
    published_keys,
    replace_bounds,
    selector_conditions,
    with_bound,
)

DRIVER = "gpu.nvidia.com"
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
MEMORY = "device.capacity['gpu.nvidia.com'].memory"


def published(memory: str = "9850Mi", **attributes: Any) -> CelMap:
    """Return a device with attributes that are texts."""
    device = {
        "attributes": {name: {"string": value} for name, value in attributes.items()},
        "capacity": {"memory": {"value": memory}},
    }
    return device_value(DRIVER, msgspec.convert(device, Device))


def test_the_conditions_of_a_selector_are_evaluated_one_by_one() -> None:
    program = compile_device_selector(
        f"{ATTRIBUTES}.type == 'mig' && ({ATTRIBUTES}.profile == '2g' || false) && {MEMORY}.isLessThan(quantity('1Ti'))"
    )
    failing = failing_conditions(selector_conditions(program), published(type="mig", profile="1g"))
    assert [condition.text for condition in failing] == [f"({ATTRIBUTES}.profile == '2g' || false)"]


def test_a_condition_on_a_missing_key_fails() -> None:
    program = compile_device_selector(f"{ATTRIBUTES}.type == 'mig' && {ATTRIBUTES}.brand == 'x'")
    failing = failing_conditions(selector_conditions(program), published(type="mig"))
    assert [condition.text for condition in failing] == [f"{ATTRIBUTES}.brand == 'x'"]


GUARDED = {
    "one condition": (f"{ATTRIBUTES}.brand == 'x'", f"'brand' in {ATTRIBUTES} && {ATTRIBUTES}.brand == 'x'"),
    "one of several": (
        f"{ATTRIBUTES}.type == 'mig' && {ATTRIBUTES}['brand'] != 'x'",
        f"{ATTRIBUTES}.type == 'mig' && 'brand' in {ATTRIBUTES} && {ATTRIBUTES}['brand'] != 'x'",
    ),
    "an alternative": (
        f"{ATTRIBUTES}.brand == 'x' || {ATTRIBUTES}.type == 'mig'",
        f"('brand' in {ATTRIBUTES} && {ATTRIBUTES}.brand == 'x') || {ATTRIBUTES}.type == 'mig'",
    ),
    "a choice": (
        f"{ATTRIBUTES}.brand == 'x' ? true : false",
        f"'brand' in {ATTRIBUTES} && ({ATTRIBUTES}.brand == 'x' ? true : false)",
    ),
    "a map with a name": (
        f"cel.bind(g, {ATTRIBUTES}, g.brand == 'x')",
        f"cel.bind(g, {ATTRIBUTES}, 'brand' in {ATTRIBUTES} && g.brand == 'x')",
    ),
    "an alternative in the body of a name": (
        f"cel.bind(g, {ATTRIBUTES}, g.type == 'gpu' || g['brand'] == 'x')",
        f"cel.bind(g, {ATTRIBUTES}, g.type == 'gpu' || ('brand' in {ATTRIBUTES} && g['brand'] == 'x'))",
    ),
    "a key with a name": (
        f"{ATTRIBUTES}.type == 'mig' && cel.bind(b, {ATTRIBUTES}.brand, b == 'x' || b == 'y')",
        f"{ATTRIBUTES}.type == 'mig' && 'brand' in {ATTRIBUTES} && "
        f"cel.bind(b, {ATTRIBUTES}.brand, b == 'x' || b == 'y')",
    ),
    "a name of a name": (
        "cel.bind(d, device, cel.bind(g, d.attributes['gpu.nvidia.com'], g.brand == 'x'))",
        f"cel.bind(d, device, cel.bind(g, d.attributes['gpu.nvidia.com'], 'brand' in {ATTRIBUTES} && g.brand == 'x'))",
    ),
    "a name that a loop hides": (
        f"cel.bind(g, {ATTRIBUTES}, ['x'].exists(g, g == 'x') && g.brand == 'x')",
        f"cel.bind(g, {ATTRIBUTES}, ['x'].exists(g, g == 'x') && 'brand' in {ATTRIBUTES} && g.brand == 'x')",
    ),
    "alternatives beside a condition": (
        f"({ATTRIBUTES}.brand == 'x' || {ATTRIBUTES}.brand == 'y') && {ATTRIBUTES}.type == 'mig'",
        f"(('brand' in {ATTRIBUTES} && {ATTRIBUTES}.brand == 'x') || ('brand' in {ATTRIBUTES} && "
        f"{ATTRIBUTES}.brand == 'y')) && {ATTRIBUTES}.type == 'mig'",
    ),
}


@pytest.mark.parametrize(("expression", "guarded"), GUARDED.values(), ids=GUARDED)
def test_missing_keys_are_guarded(expression: str, guarded: str) -> None:
    devices = [published(type="mig"), published(type="mig", brand="x")]
    assert guarded_expression(compile_device_selector(expression), devices) == guarded


def test_an_error_that_is_no_missing_key_has_no_guard() -> None:
    assert guarded_expression(compile_device_selector(f"{ATTRIBUTES}.type > 3"), [published(type="mig")]) is None


TEN = "quantity('10Gi')"
LOWER_BOUNDS = {
    "at least": (f"{MEMORY}.compareTo({TEN}) >= 0", "'9850Mi'"),
    "above": (f"{MEMORY}.isGreaterThan({TEN})", "'9849Mi'"),
    "above what it has": (f"{MEMORY}.compareTo(quantity('9850Mi')) > 0", "'9849Mi'"),
    "not below": (f"!{MEMORY}.isLessThan({TEN})", "'9850Mi'"),
    "not at most": (f"!({MEMORY}.compareTo({TEN}) <= 0)", "'9849Mi'"),
    "operands reversed": (f"{TEN}.compareTo({MEMORY}) <= 0", "'9850Mi'"),
    "operands of a member reversed": (f"{TEN}.isLessThan({MEMORY})", "'9849Mi'"),
    "zero first": (f"0 <= {MEMORY}.compareTo({TEN})", "'9850Mi'"),
    "equal to one": (f"{MEMORY}.compareTo({TEN}) == 1", "'9849Mi'"),
    "not minus one": (f"{MEMORY}.compareTo({TEN}) != -1", "'9850Mi'"),
    "the sign of a difference": (f"sign({MEMORY}.sub({TEN})) >= 0", "'9850Mi'"),
    "an integer": (f"{MEMORY}.asInteger() >= 10737418240", "10328473600"),
    "an integer below": (f"10737418240 <= {MEMORY}.asInteger()", "10328473600"),
    "a float": (f"{MEMORY}.asApproximateFloat() >= 10737418240.0", "10328473600.0"),
    "a name in brackets": (f"device.capacity['gpu.nvidia.com']['memory'].compareTo({TEN}) >= 0", "'9850Mi'"),
    "the variable of a map": (
        f"cel.bind(c, device.capacity['gpu.nvidia.com'], c.memory.compareTo({TEN}) >= 0)",
        "'9850Mi'",
    ),
    "a condition beside others in the body of a variable": (
        f"cel.bind(d, device, d.driver != '' && d.capacity['gpu.nvidia.com'].memory.compareTo({TEN}) >= 0)",
        "'9850Mi'",
    ),
    "an optional capacity": (
        f"device.capacity['gpu.nvidia.com'].?memory.orValue(quantity('1')).compareTo({TEN}) >= 0",
        "'9850Mi'",
    ),
    "a variable": (f"cel.bind(m, {MEMORY}, m.compareTo({TEN}) >= 0)", "'9850Mi'"),
    "beside an upper bound in one term": (
        f"!({MEMORY}.isLessThan({TEN}) || {MEMORY}.isGreaterThan(quantity('1Ti')))",
        "'9850Mi'",
    ),
    "twice as much": (f"{MEMORY}.compareTo(quantity('20Gi')) >= 0", None),
    "an amount that it has": (f"{MEMORY}.compareTo(quantity('9Gi')) >= 0", None),
    "equal": (f"{MEMORY}.compareTo({TEN}) == 0", None),
    "an upper bound": (f"{MEMORY}.isLessThan(quantity('1Gi'))", None),
    "no capacity": ("device.driver == 'a'", None),
}


@pytest.mark.parametrize(("expression", "literal"), LOWER_BOUNDS.values(), ids=LOWER_BOUNDS)
def test_a_bound_just_above_what_a_device_has_is_found_in_any_form(expression: str, literal: str | None) -> None:
    """A larger device must still match with the lower bound."""
    program = compile_device_selector(f"{ATTRIBUTES}.type == 'mig' && {expression}")
    condition = selector_conditions(program)[1]
    small, large = published(type="mig"), published("20Gi", type="mig")
    close = close_bound(condition, small)
    found = None if close is None else with_bound(condition, *close, [small, large])
    assert found == literal
    if close is not None and found is not None:
        fitting = compile_device_selector(replace_bounds(program, [(close[0], found)]))
        assert not failing_conditions(selector_conditions(fitting), small)
        assert len(fitting.expression) == len(program.expression) + len(found) - len(_literal_of(program, close[0]))


def _literal_of(program: DeviceSelectorProgram, bound: CapacityBound) -> str:
    return program.expression[bound.literal.start : bound.literal.end]


MEANT: dict[str, tuple[str, str | None]] = {
    "a misspelled name": (f"{ATTRIBUTES}.typ", f"{ATTRIBUTES}.type"),
    "another case": (f"{ATTRIBUTES}.TYPE", f"{ATTRIBUTES}.type"),
    "a capacity that is read as an attribute": (f"{ATTRIBUTES}.memory", MEMORY),
    "an attribute that is read as a capacity": (MEMORY.replace("memory", "type"), f"{ATTRIBUTES}.type"),
    "a misspelled domain": ("device.attributes['gpu.nvida.com'].type", f"{ATTRIBUTES}.type"),
    "a misspelled domain of a capacity": ("device.capacity['gpu.nvidia'].memory", MEMORY),
    "a misspelled domain of a capacity that is read as an attribute": (
        "device.attributes['nvidia.com'].memory",
        MEMORY,
    ),
    "a name of another domain": (f"{ATTRIBUTES}.pcieRoot", "device.attributes['resource.kubernetes.io'].pcieRoot"),
    "a name that nothing is like": (f"{ATTRIBUTES}.nvlink", None),
    "a long name": (f"{ATTRIBUTES}.{'type' * 1000}", None),
}


@pytest.mark.parametrize(("found", "meant"), MEANT.values(), ids=MEANT)
def test_a_key_that_no_device_has_is_another_one(found: str, meant: str | None) -> None:
    device = published(type="mig", **{"resource.kubernetes.io/pcieRoot": "pci0000:00"})
    [key] = keys_named(compile_device_selector(f"{found} == {found}").tree)
    right = meant_key(key, set(published_keys(device)))
    assert (None if right is None else right.expression) == meant
