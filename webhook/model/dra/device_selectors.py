"""Compile the CEL expressions that select devices, and evaluate them, as the API server and the scheduler do.

Source: `k8s.io/dynamic-resource-allocation/cel` 0.36.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from webhook.errors import shorten_text
from webhook.model.apimachinery import parse_quantity
from webhook.model.cel.cel_errors import (
    CelError,
    CelSyntaxError,
    FatalCelError,
    MissingKeyError,
    StepLimitError,
    UnmodeledExpressionError,
)
from webhook.model.cel.cel_types import describe_type
from webhook.model.cel.checker import check_expression
from webhook.model.cel.cost_estimate import estimate_cost
from webhook.model.cel.evaluator import CompiledExpression, compile_checked
from webhook.model.cel.parser import parse_expression
from webhook.model.cel.syntax_tree import ExpressionNode
from webhook.model.cel.values import CelMap, CelValue, DomainMap, FieldMap, QuantityValue, semantic_version, type_name
from webhook.model.dra.resource_slices import Device, DeviceAttribute

MAX_EXPRESSION_BYTES = 10 * 1024
MAX_EXPRESSION_COST = 1_000_000
_UNBOUNDED_COST = 1 << 60


class SelectorCompileError(Exception):
    """An expression that the API server rejects with status 422, and the offset in its text where that shows."""

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset

    def place_in(self, expression: str) -> str:
        """Return the line and column of the error."""
        before = expression[: self.offset].split("\n")
        return f"line {len(before)}, column {len(before[-1]) + 1}"


class SelectorRuntimeError(Exception):
    """An error for one device, which ends scheduling of the pod on every node.

    Attributes:
        missing_key: The key that the device lacks; "" for another error.
    """

    def __init__(self, reason: str, missing_key: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.missing_key = missing_key


class DeviceSelectorProgram(NamedTuple):
    """A compiled selector."""

    expression: str
    tree: ExpressionNode
    compiled: CompiledExpression

    def selects(self, driver: str, device: Device) -> bool:
        """Return whether the expression is true for a device.

        Raises:
            SelectorRuntimeError: It has no value, or one that is not true or false.
            UnmodeledExpressionError: It takes too many steps to be evaluated here.
        """
        return self.selects_value(device_value(driver, device))

    def selects_value(self, device: CelMap) -> bool:
        """Return whether the expression is true for a `device_value`. Raises what `selects` does."""
        value = evaluate_expression(self.compiled, device)
        if not isinstance(value, bool):
            raise SelectorRuntimeError(f"the result is a {type_name(value)}, not true or false")
        return value


def compile_device_selector(expression: str) -> DeviceSelectorProgram:
    """Compile a selector.

    Raises:
        SelectorCompileError: The API server rejects it.
        UnmodeledExpressionError: It may be accepted, but is not evaluated here.
    """
    if len(expression.encode()) > MAX_EXPRESSION_BYTES:
        raise SelectorCompileError(f"must be at most {MAX_EXPRESSION_BYTES} bytes long")
    try:
        tree = parse_expression(expression)
        _check_condition(tree)
        program = DeviceSelectorProgram(expression, tree, compile_checked(tree))
        _check_cost(tree)
    except CelSyntaxError as error:
        raise SelectorCompileError(error.reason, error.offset) from None
    except RecursionError:
        raise UnmodeledExpressionError("it is nested too deeply") from None
    return program


def _check_condition(tree: ExpressionNode) -> None:
    check_expression(tree)
    if tree.type.kind not in ("bool", "any"):
        raise CelSyntaxError(f"must evaluate to bool or the unknown type, not {describe_type(tree.type)}", 0)


def _check_cost(tree: ExpressionNode) -> None:
    cost = estimate_cost(tree)
    if cost > MAX_EXPRESSION_COST:
        found = "a size in it has no known limit" if cost >= _UNBOUNDED_COST else f"it may cost {cost}"
        raise CelSyntaxError(f"too complex, exceeds cost limit of {MAX_EXPRESSION_COST}: {found}", 0)


def evaluate_expression(compiled: CompiledExpression, device: CelValue) -> CelValue:
    """Return the value of an expression for a device.

    Raises:
        SelectorRuntimeError: It has none.
        UnmodeledExpressionError: It takes too many steps to be evaluated here.
    """
    try:
        return compiled.run(device)
    except MissingKeyError as error:
        raise SelectorRuntimeError(str(error), str(error.key)) from None
    except StepLimitError as error:
        raise UnmodeledExpressionError(str(error)) from None
    except RecursionError:
        raise UnmodeledExpressionError("it is nested too deeply") from None
    except (CelError, FatalCelError) as error:
        raise SelectorRuntimeError(shorten_text(str(error), 200)) from None


def device_value(driver: str, device: Device) -> CelMap:
    """Return variable `device` of an expression.

    Raises:
        SelectorRuntimeError: An attribute has no value, or a version that is none.
    """
    attributes = {name: _attribute_value(name, attribute) for name, attribute in device.attributes.items()}
    capacity = {name: QuantityValue(parse_quantity(str(one.value))) for name, one in device.capacity.items()}
    return FieldMap(
        {
            "driver": driver,
            "allowMultipleAllocations": bool(device.allow_multiple_allocations),
            "attributes": _by_domain(driver, attributes),
            "capacity": _by_domain(driver, capacity),
        }
    )


def _by_domain(driver: str, values: Mapping[str, CelValue]) -> DomainMap:
    domains: dict[str, dict[str, CelValue]] = {}
    for qualified, value in values.items():
        domain, slash, name = qualified.partition("/")
        domains.setdefault(domain if slash else driver, {})[name if slash else qualified] = value
    return DomainMap({domain: FieldMap(names) for domain, names in domains.items()})


def _attribute_value(name: str, attribute: DeviceAttribute) -> CelValue:
    for value in (attribute.int_value, attribute.bool_value, attribute.string_value):
        if value is not None:
            return value
    if attribute.version_value is None:
        raise SelectorRuntimeError(f"attribute {name}: unsupported attribute value")
    try:
        return semantic_version(attribute.version_value)
    except CelError as error:
        raise SelectorRuntimeError(f"attribute {name}: parse semantic version: {error}") from None
