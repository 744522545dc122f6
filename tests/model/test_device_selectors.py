"""Device selectors: which device an expression selects, what the API server rejects, and what ends scheduling."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.dra.device_selectors import (
    SelectorCompileError,
    SelectorRuntimeError,
    compile_device_selector,
)
from webhook.model.dra.resource_slices import Device

DRIVER = "gpu.nvidia.com"
MIG = msgspec.convert(
    {
        "name": "gpu-0-mig-1g10gb-19-0",
        "attributes": {
            "type": {"string": "mig"},
            "profile": {"string": "1g.10gb"},
            "index": {"int": 3},
            "driverVersion": {"version": "570.124.6"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:80"},
        },
        "capacity": {"memory": {"value": "9850Mi"}},
    },
    Device,
)


class SelectorCase(NamedTuple):
    """An expression, and whether it selects the MIG device above."""

    expression: str
    selects: bool


SELECTED = {
    "an attribute of the driver's own domain": SelectorCase("device.attributes['gpu.nvidia.com'].type == 'mig'", True),
    "an attribute of another domain": SelectorCase(
        "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:80'", True
    ),
    "the driver": SelectorCase("device.driver in ['gpu.amd.com', 'gpu.nvidia.com']", True),
    "9,850 MiB are less than 10 GiB": SelectorCase(
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('10Gi')) >= 0", False
    ),
    "9,850 MiB are more than 9,500 MiB": SelectorCase(
        "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('9500Mi'))", True
    ),
    "an unknown domain is an empty map": SelectorCase("'x' in device.attributes['other.com']", False),
    "a guarded key": SelectorCase(
        "'arch' in device.attributes['gpu.nvidia.com'] && device.attributes['gpu.nvidia.com'].arch == 'Hopper'", False
    ),
    "an optional field": SelectorCase("device.attributes['gpu.nvidia.com'].?arch.orValue('none') == 'none'", True),
    "a version": SelectorCase(
        "device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('v570', true))", True
    ),
    "a bound domain": SelectorCase("cel.bind(a, device.attributes['gpu.nvidia.com'], a.index + 1 == 4)", True),
    "an error beside what decides": SelectorCase("device.attributes['gpu.nvidia.com'].x == 1 || true", True),
    "a loop over keys": SelectorCase("device.attributes['gpu.nvidia.com'].exists(k, k.startsWith('prof'))", True),
    "a shared device": SelectorCase("device.allowMultipleAllocations", False),
}


@pytest.mark.parametrize("case", SELECTED.values(), ids=SELECTED)
def test_a_selector_selects_a_device(case: SelectorCase) -> None:
    assert compile_device_selector(case.expression).selects(DRIVER, MIG) is case.selects


REJECTED = {
    "a field that devices lack": ("device.attribute['x'].y == 1", "undefined field 'attribute'"),
    "not a condition": ("device.driver", "must evaluate to bool or the unknown type, not string"),
    "a quantity compared with a number": (
        "device.capacity['gpu.nvidia.com'].memory >= 10",
        "found no matching overload for '_>=_' applied to (kubernetes.Quantity, int)",
    ),
    "an unbalanced parenthesis": ("(device.driver == 'a'", "expected ')', found the end"),
    "an invalid pattern": ("device.driver.matches('(')", "invalid regular expression: missing )"),
    "longer than 10 KiB": (f"'{'a' * 10_240}' == device.driver", "must be at most 10240 bytes long"),
}


@pytest.mark.parametrize(("expression", "reason"), REJECTED.values(), ids=REJECTED)
def test_the_api_server_rejects_a_selector(expression: str, reason: str) -> None:
    with pytest.raises(SelectorCompileError) as caught:
        compile_device_selector(expression)
    assert caught.value.reason.startswith(reason)


def test_a_missing_key_is_an_error_that_names_it() -> None:
    program = compile_device_selector("device.attributes['gpu.nvidia.com'].productname == 'NVIDIA H100'")
    with pytest.raises(SelectorRuntimeError, match="no such key: productname") as caught:
        program.selects(DRIVER, MIG)
    assert caught.value.missing_key == "productname"


def test_a_result_that_is_not_a_condition_is_an_error() -> None:
    with pytest.raises(SelectorRuntimeError, match="the result is a string, not true or false"):
        compile_device_selector("device.attributes['gpu.nvidia.com'].type").selects(DRIVER, MIG)


UNMODELED = {
    "a time": "duration('1h') > duration('1m')",
    "an address": "isIP('10.0.0.1')",
    "a million steps": "lists.range(99999).all(a, a >= 0)",
    "an expression that grows with each macro": "optional.of(1)" + ".optMap(x, x)" * 40 + ".hasValue()",
}


@pytest.mark.parametrize("expression", UNMODELED.values(), ids=UNMODELED)
def test_nothing_is_said_about_what_is_not_evaluated_here(expression: str) -> None:
    with pytest.raises(UnmodeledExpressionError):
        compile_device_selector(expression).selects(DRIVER, MIG)
