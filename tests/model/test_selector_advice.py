"""Advice on selectors: which condition fails, guards for missing keys, and bounds that fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from webhook.model.apimachinery import canonical_text
from webhook.model.cel.values import CelMap
from webhook.model.dra.device_selectors import compile_device_selector, device_value
from webhook.model.dra.devices import Device
from webhook.model.dra.selector_advice import (
    capacity_bound,
    close_amount,
    failing_conditions,
    guarded_expression,
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


BOUNDS = {
    "at least 10Gi": (f"{MEMORY}.compareTo(quantity('10Gi')) >= 0", "9850Mi"),
    "above 10Gi": (f"{MEMORY}.isGreaterThan(quantity('10Gi'))", "9850Mi"),
    "above what it has": (f"{MEMORY}.compareTo(quantity('9850Mi')) > 0", "9850Mi"),
    "twice as much": (f"{MEMORY}.compareTo(quantity('20Gi')) >= 0", None),
    "less than it has": (f"{MEMORY}.compareTo(quantity('9Gi')) >= 0", None),
}


@pytest.mark.parametrize(("expression", "amount"), BOUNDS.values(), ids=BOUNDS)
def test_a_bound_just_above_what_a_device_has_is_found(expression: str, amount: str | None) -> None:
    bound = capacity_bound(selector_conditions(compile_device_selector(expression))[0])
    assert bound is not None
    close = close_amount(bound, published())
    assert (None if close is None else canonical_text(close)) == amount


def test_a_bound_that_fits_selects_the_device() -> None:
    program = compile_device_selector(f"{ATTRIBUTES}.type == 'mig' && {MEMORY}.isGreaterThan(quantity('10Gi'))")
    bound = capacity_bound(selector_conditions(program)[1])
    assert bound is not None
    amount = close_amount(bound, published(type="mig"))
    assert amount is not None
    fitting = compile_device_selector(with_bound(program, bound, amount))
    assert fitting.expression == f"{ATTRIBUTES}.type == 'mig' && {MEMORY}.compareTo(quantity('9850Mi')) >= 0"
    assert not failing_conditions(selector_conditions(fitting), published(type="mig"))


@pytest.mark.parametrize("expression", ["device.driver == 'a'", f"{MEMORY}.isLessThan(quantity('1Gi'))"])
def test_other_conditions_are_no_bound(expression: str) -> None:
    assert capacity_bound(selector_conditions(compile_device_selector(expression))[0]) is None
