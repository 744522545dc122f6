"""The selectors of random clusters, as CEL expressions and as functions of a driver and a device."""

from __future__ import annotations

from collections.abc import Callable

from webhook.model.dra.allocator import SelectorRuntimeError
from webhook.model.dra.devices import Device
from webhook.model.quantity import parse_nano

NVIDIA, AMD, SHARED, FABRIC = "gpu.nvidia.com", "gpu.amd.com", "shared.example.com", "fabric.example.com"

Selector = Callable[[str, Device], bool]


def _value(driver: str, device: Device, domain: str, name: str) -> int | str | bool:
    """Return an attribute; the error of an unknown key if a device does not have it."""
    attribute = device.attributes.get(name) if driver == domain else None
    if attribute is None:
        raise SelectorRuntimeError(f"no such key: {name}")
    values = (attribute.int_value, attribute.bool_value, attribute.string_value, attribute.version_value)
    return next(value for value in values if value is not None)


def _memory(driver: str, device: Device, domain: str) -> int:
    if driver != domain or "memory" not in device.capacity:
        raise SelectorRuntimeError("no such key: memory")
    return parse_nano(device.capacity["memory"].value)


def _memory_is(domain: str, compares: Callable[[int], bool]) -> Selector:
    return lambda driver, device: compares(_memory(driver, device, domain))


def _is_equal(domain: str, name: str, wanted: str) -> Selector:
    return lambda driver, device: _value(driver, device, domain, name) == wanted


def _number_is(domain: str, name: str, compares: Callable[[int], bool]) -> Selector:
    return lambda driver, device: compares(int(_value(driver, device, domain, name)))


def _of_driver(wanted: str, selector: Selector = lambda _driver, _device: True) -> Selector:
    return lambda driver, device: driver == wanted and selector(driver, device)


def _is_newer(driver: str, device: Device) -> bool:
    version = str(_value(driver, device, NVIDIA, "driverVersion"))
    return tuple(map(int, version.split("."))) > (560, 0, 0)


def _is_large_slice(driver: str, device: Device) -> bool:
    return "profile" in device.attributes and _of_driver(NVIDIA, _is_equal(NVIDIA, "profile", "2g.20gb"))(
        driver, device
    )


_MEMORY = f"device.capacity['{NVIDIA}'].memory.compareTo(quantity"
_ATTRIBUTES = f"device.attributes['{NVIDIA}']"
_GIB = parse_nano("1Gi")

CLASSES: dict[str, tuple[str, Selector]] = {
    "gpu": (
        f"device.driver == '{NVIDIA}' && {_ATTRIBUTES}.type == 'gpu'",
        _of_driver(NVIDIA, _is_equal(NVIDIA, "type", "gpu")),
    ),
    "mig": (
        f"device.driver == '{NVIDIA}' && {_ATTRIBUTES}.type == 'mig'",
        _of_driver(NVIDIA, _is_equal(NVIDIA, "type", "mig")),
    ),
    "unguarded": (f"{_ATTRIBUTES}.type == 'gpu'", _is_equal(NVIDIA, "type", "gpu")),
    "nvidia": (f"device.driver == '{NVIDIA}'", _of_driver(NVIDIA)),
    "amd": (f"device.driver == '{AMD}'", _of_driver(AMD)),
    "shared": (f"device.driver == '{SHARED}'", _of_driver(SHARED)),
    "fabric": (f"device.driver == '{FABRIC}'", _of_driver(FABRIC)),
    "any": ("true", lambda _driver, _device: True),
}
"""Selector of each device class."""

SELECTORS: dict[str, Selector] = {
    f"{_MEMORY}('10Gi')) >= 0": _memory_is(NVIDIA, lambda memory: memory >= 10 * _GIB),
    f"{_MEMORY}('9500Mi')) >= 0": _memory_is(NVIDIA, lambda memory: memory >= parse_nano("9500Mi")),
    f"{_MEMORY}('20Gi')) < 0": _memory_is(NVIDIA, lambda memory: memory < 20 * _GIB),
    f"{_ATTRIBUTES}.productName == 'NVIDIA A10'": _is_equal(NVIDIA, "productName", "NVIDIA A10"),
    f"{_ATTRIBUTES}.driverVersion.isGreaterThan(semver('560.0.0'))": _is_newer,
    f"'profile' in {_ATTRIBUTES} && {_ATTRIBUTES}.profile == '2g.20gb'": _is_large_slice,
    f"{_ATTRIBUTES}.profile == '1g.10gb'": _is_equal(NVIDIA, "profile", "1g.10gb"),
    f"{_ATTRIBUTES}.index < 1": _number_is(NVIDIA, "index", lambda index: index < 1),
    f"device.attributes['{AMD}'].type == 'amdgpu-partition'": _is_equal(AMD, "type", "amdgpu-partition"),
    f"device.capacity['{AMD}'].memory.compareTo(quantity('48Gi')) >= 0": _memory_is(
        AMD, lambda memory: memory >= 48 * _GIB
    ),
    f"device.capacity['{SHARED}'].memory.isGreaterThan(quantity('10Gi'))": _memory_is(
        SHARED, lambda memory: memory > 10 * _GIB
    ),
    "device.allowMultipleAllocations": lambda _driver, device: bool(device.allow_multiple_allocations),
    f"device.attributes['{FABRIC}'].speed >= 100": _number_is(FABRIC, "speed", lambda speed: speed >= 100),
    "device.driver.endsWith('.example.com')": lambda driver, _device: driver.endswith(".example.com"),
    f"device.driver == '{NVIDIA}'": _of_driver(NVIDIA),
}
"""Selectors of requests."""

_BY_EXPRESSION = dict(CLASSES.values()) | SELECTORS


def select_device(expression: str, driver: str, device: Device) -> bool:
    """Return whether a selector of a random cluster selects a device."""
    return _BY_EXPRESSION[expression](driver, device)
