"""Evaluate selectors by their text, and remember programs and results.

The devices of a cluster differ in what few selectors read, such as their UUID. So a result is remembered by the values
of the keys that a selector reads, unless it reads more than single keys. Programs are forgotten together when their
parts exceed `MAX_CACHED_NODES`, and with all other caches of parts of requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from webhook.model.bounded_cache import BoundedCache
from webhook.model.cel.declarations import DEVICE
from webhook.model.cel.syntax_tree import (
    Comprehension,
    ExpressionNode,
    FieldSelection,
    Identifier,
    walk_expression,
)
from webhook.model.dra.device_selectors import (
    DeviceSelectorProgram,
    SelectorCompileError,
    SelectorRuntimeError,
    compile_device_selector,
)
from webhook.model.dra.resource_slices import Device, DeviceAttribute, DeviceCapacity
from webhook.model.dra.selector_advice import DeviceKey, keys_named, used_key

MAX_CACHED_NODES = 20_000
"""Parts of all expressions whose programs are kept: about 20 MiB."""

MAX_PROGRAMS = 512
MAX_RESULTS = 512
"""Results that are kept of one selector."""


LOOP_WEIGHT = 32
"""A loop runs over the attributes of a device at most so often as a device may have."""


class _CachedProgram(NamedTuple):
    """A program, the keys that it reads if it reads nothing else that differs, and results."""

    program: DeviceSelectorProgram
    keys: tuple[DeviceKey, ...] | None
    results: BoundedCache[Hashable, bool | str]


_UNREADABLE = DeviceAttribute()
"""An attribute of a type that is not known, with which every selector is an error."""

_PLAIN_FIELDS = ("driver", "allowMultipleAllocations")

_programs: BoundedCache[str, _CachedProgram | SelectorCompileError] = BoundedCache(MAX_PROGRAMS)


def select_device(expression: str, driver: str, device: Device) -> bool:
    """Return whether an expression selects a device of a driver.

    Raises:
        SelectorRuntimeError: It has no value for the device, or does not compile.
        UnmodeledExpressionError: It is not evaluated here.
    """
    cached = _valid_program(expression)
    if cached.keys is None or _UNREADABLE in device.attributes.values():
        return cached.program.selects(driver, device)
    values = _values_read(cached.keys, driver, device)
    found = cached.results.get(values)
    if found is None:
        found = cached.results.store(values, _result(cached.program, driver, device))
    if isinstance(found, str):
        raise SelectorRuntimeError(found)
    return found


def compile_cached_selector(expression: str) -> DeviceSelectorProgram:
    """Compile a selector, or return the program that is remembered. Raises what `compile_device_selector` does."""
    found = _cached_program(expression)
    if isinstance(found, SelectorCompileError):
        raise SelectorCompileError(found.reason, found.offset)  # one that is raised again would keep all its frames
    return found.program


def keys_told_apart(expressions: Iterable[str]) -> tuple[DeviceKey, ...] | None:
    """Return the keys whose values some selectors distinguish; None if one reads more than keys.

    Raises:
        SelectorRuntimeError: A selector does not compile.
        UnmodeledExpressionError: One is not evaluated here.
    """
    cached = [_valid_program(expression) for expression in expressions]
    if any(one.keys is None for one in cached):
        return None
    return tuple(sorted({key for one in cached for key in one.keys or ()}))


def evaluation_parts(expressions: Iterable[str]) -> int:
    """Return the parts of selectors that are evaluated for each device. Raises what `keys_told_apart` does."""
    return sum(count_parts(_valid_program(expression).program) for expression in expressions)


def count_parts(program: DeviceSelectorProgram) -> int:
    """Return the parts of a selector, those of loops counted several times."""
    loops = sum(isinstance(node, Comprehension) for node in walk_expression(program.tree))
    return int(program.tree.nodes * LOOP_WEIGHT**loops)


def _result(program: DeviceSelectorProgram, driver: str, device: Device) -> bool | str:
    try:
        return program.selects(driver, device)
    except SelectorRuntimeError as error:
        return error.reason


def _valid_program(expression: str) -> _CachedProgram:
    found = _cached_program(expression)
    if isinstance(found, SelectorCompileError):
        raise SelectorRuntimeError(found.reason)
    return found


def _cached_program(expression: str) -> _CachedProgram | SelectorCompileError:
    found = _programs.get(expression)
    if found is None:
        found = _programs.store(expression, _compile_program(expression))
        kept = (one.program.tree.nodes for one in _programs.values() if isinstance(one, _CachedProgram))
        if sum(kept) > MAX_CACHED_NODES:
            _programs.clear()
    return found


def _compile_program(expression: str) -> _CachedProgram | SelectorCompileError:
    try:
        program = compile_device_selector(expression)
    except SelectorCompileError as error:
        return error
    keys = tuple(sorted(keys_named(program.tree))) if _reads_only_keys(program.tree) else None
    return _CachedProgram(program, keys, BoundedCache(MAX_RESULTS))


def _reads_only_keys(tree: ExpressionNode) -> bool:
    """Return whether every use of variable `device` is one of a key, or of a field that is not a map."""
    nodes = list(walk_expression(tree))
    uses = sum(isinstance(node, Identifier) and node.name == "device" for node in nodes)
    return uses == sum(used_key(node) is not None or _is_plain_field(node) for node in nodes)


def _is_plain_field(node: ExpressionNode) -> bool:
    return isinstance(node, FieldSelection) and node.operand.type == DEVICE and node.field in _PLAIN_FIELDS


def _values_read(keys: Sequence[DeviceKey], driver: str, device: Device) -> Hashable:
    """Return all of a device that a selector can tell apart by some keys."""
    return (driver, device.allow_multiple_allocations, *[_published_value(key, driver, device) for key in keys])


def _published_value(key: DeviceKey, driver: str, device: Device) -> Hashable:
    values = device.attributes if key.group == "attributes" else device.capacity
    found = next((values[name] for name in key.published_names(driver) if name in values), None)
    return found.value if isinstance(found, DeviceCapacity) else found
