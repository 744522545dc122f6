"""Results of selectors are remembered by the values that they read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from webhook.model.dra.device_selectors import SelectorRuntimeError
from webhook.model.dra.resource_slices import Device
from webhook.model.dra.selector_cache import MAX_CACHED_NODES, _programs, select_device

DRIVER = "gpu.nvidia.com"
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"


def published(**attributes: Any) -> Device:
    device = {"attributes": {name: {"string": value} for name, value in attributes.items()}}
    return msgspec.convert(device, Device)


def test_devices_that_differ_in_what_a_selector_reads_have_results_of_their_own() -> None:
    expression = f"'type' in {ATTRIBUTES} && {ATTRIBUTES}.type == 'mig' && device.driver == '{DRIVER}'"
    assert select_device(expression, DRIVER, published(type="mig", uuid="a"))
    assert select_device(expression, DRIVER, published(type="mig", uuid="b"))
    assert not select_device(expression, DRIVER, published(type="gpu", uuid="a"))
    assert not select_device(expression, DRIVER, published(uuid="a"))
    assert not select_device(expression, "gpu.amd.com", published(type="mig", uuid="a"))


def test_a_selector_that_reads_every_key_is_evaluated_on_every_device() -> None:
    expression = f"{ATTRIBUTES}.exists(k, k == 'uuid')"
    assert select_device(expression, DRIVER, published(uuid="a"))
    assert not select_device(expression, DRIVER, published(type="mig"))


def test_an_error_is_remembered() -> None:
    for _ in range(2):
        with pytest.raises(SelectorRuntimeError, match="no such key: brand"):
            select_device(f"{ATTRIBUTES}.brand == 'x'", DRIVER, published())
    for _ in range(2):
        with pytest.raises(SelectorRuntimeError, match="undefined field 'brand'"):
            select_device("device.brand == 'x'", DRIVER, published())


def test_an_attribute_of_an_unknown_type_is_an_error_for_every_selector() -> None:
    device = msgspec.convert({"attributes": {"type": {"string": "mig"}, "new": {"ints": [1]}}}, Device)
    assert select_device(f"{ATTRIBUTES}.type == 'mig'", DRIVER, published(type="mig"))
    with pytest.raises(SelectorRuntimeError, match="attribute new: unsupported attribute value"):
        select_device(f"{ATTRIBUTES}.type == 'mig'", DRIVER, device)


def test_many_large_selectors_do_not_fill_memory() -> None:
    for number in range(100):
        select_device("||".join([f"device.driver=='{number}'"] * 200), DRIVER, published())
    kept = sum(one.program.tree.nodes for one in _programs.values() if not isinstance(one, Exception))
    assert kept <= MAX_CACHED_NODES
