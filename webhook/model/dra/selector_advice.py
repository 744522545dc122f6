"""Explain why a selector selects no device, and what to write instead.

The conditions of a selector are the terms of its outermost `&&`. A key is unguarded if reading it is an error on some
device: that ends scheduling of the pod on every node. A bound is close if a device has almost as much as it requires.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, canonical_text, compare_quantities, parse_quantity
from webhook.model.cel.cel_errors import UnmodelledExpressionError
from webhook.model.cel.evaluator import CompiledExpression, compile_checked
from webhook.model.cel.syntax_tree import (
    ExpressionNode,
    FieldSelection,
    FunctionCall,
    Identifier,
    LiteralValue,
    walk_expression,
)
from webhook.model.cel.values import CelMap, QuantityValue
from webhook.model.dra.device_selectors import (
    DeviceSelectorProgram,
    SelectorCompileError,
    SelectorRuntimeError,
    compile_device_selector,
    evaluate_expression,
)

CLOSE_PERCENT = 10
"""A bound is close if it exceeds what a device has by at most this share: 10Gi and 9,850 MiB differ by 4 %."""


class SelectorCondition(NamedTuple):
    """One term of a selector's outermost `&&`."""

    text: str
    tree: ExpressionNode
    compiled: CompiledExpression

    def holds(self, device: CelMap) -> bool:
        """Return whether the condition is true for a device.

        Raises:
            SelectorRuntimeError: It has no value for the device.
        """
        return evaluate_expression(self.compiled, device) is True


class CapacityBound(NamedTuple):
    """A condition that a capacity is at least, or above, an amount.

    Attributes:
        domain: Domain of the capacity.
        name: Name of the capacity.
        amount: The amount that is required.
        is_strict: Whether the capacity must be above the amount.
        literal: Where the amount stands in the expression.
    """

    domain: str
    name: str
    amount: Quantity
    is_strict: bool
    literal: LiteralValue


class DeviceKey(NamedTuple):
    """An attribute or capacity that a selector reads.

    Attributes:
        group: "attributes" or "capacity".
    """

    group: str
    domain: str
    name: str

    @property
    def guard(self) -> str:
        """Return the condition that a device has the key."""
        return f"'{self.name}' in device.{self.group}['{self.domain}']"

    def published_names(self, driver: str) -> tuple[str, ...]:
        """Return the names by which a driver may publish the key: it shortens those of its own domain."""
        qualified = f"{self.domain}/{self.name}"
        return (qualified, self.name) if self.domain == driver else (qualified,)

    def names_beside(self, device: CelMap) -> list[str]:
        """Return the names that a device has in the domain of the key."""
        return list(device.get(self.group).get(self.domain))


def selector_conditions(program: DeviceSelectorProgram) -> tuple[SelectorCondition, ...]:
    """Return the conditions of a selector, each with its text."""
    return tuple(
        SelectorCondition(_text_of(program, node), node, compile_checked(node)) for node in _terms(program.tree, "_&&_")
    )


def failing_conditions(conditions: Sequence[SelectorCondition], device: CelMap) -> list[SelectorCondition]:
    """Return the conditions that are not true for a device; one without a value is not true."""
    return [condition for condition in conditions if not _holds(condition, device)]


def _holds(condition: SelectorCondition, device: CelMap) -> bool:
    try:
        return condition.holds(device)
    except SelectorRuntimeError:
        return False


def keys_read(tree: ExpressionNode) -> set[DeviceKey]:
    """Return the attributes and capacities that an expression reads, apart from tests whether they exist."""
    return {key for node in walk_expression(tree) if (key := _key_of(node)) is not None}


def guarded_expression(program: DeviceSelectorProgram, devices: Sequence[CelMap]) -> str | None:
    """Return the expression with a condition before each key that some device lacks.

    Args:
        program: A selector that is an error for some of the devices.
        devices: Values of variable `device`.

    Returns:
        An expression that has a value for all devices; None if no such condition cures the errors.
    """
    missing = {key for key in keys_read(program.tree) if any(not _has_key(device, key) for device in devices)}
    guarded = _guard_terms(program, program.tree, missing)
    try:
        fixed = compile_device_selector(guarded)
        for device in devices:
            evaluate_expression(fixed.compiled, device)
    except (SelectorCompileError, SelectorRuntimeError, UnmodelledExpressionError):
        return None
    return guarded


def _guard_terms(program: DeviceSelectorProgram, node: ExpressionNode, missing: set[DeviceKey]) -> str:
    """Return the text of a part of a selector, with guards in the terms of `&&` and `||` that read missing keys."""
    for operator in ("_&&_", "_||_"):
        terms = list(_terms(node, operator))
        if len(terms) > 1:
            texts = [_guard_terms(program, term, missing) for term in terms]
            texts = [f"({text})" if _needs_parentheses(term, operator, text, program) else text
                     for term, text in zip(terms, texts, strict=True)]  # fmt: skip
            return f" {operator.strip('_')} ".join(texts)
    text = _text_of(program, node)
    guards = sorted(key.guard for key in keys_read(node) & missing)
    if not guards:
        return text
    return " && ".join([*guards, f"({text})" if _is_call(node, "_?_:_") else text])


def _needs_parentheses(term: ExpressionNode, operator: str, text: str, program: DeviceSelectorProgram) -> bool:
    """Return whether a term of an operator needs parentheses that its text does not have yet."""
    is_new = text != _text_of(program, term)
    if operator == "_&&_":
        return is_new and _is_call(term, "_||_")
    return is_new


def capacity_bound(condition: SelectorCondition) -> CapacityBound | None:
    """Return the least amount of a capacity that a condition requires; None for another condition."""
    comparison = _greater_than(condition.tree)
    return None if comparison is None else _bound_of(*comparison)


def _bound_of(call: FunctionCall, is_strict: bool) -> CapacityBound | None:
    """Return the amount with which a call compares a capacity; None if it compares something else."""
    key = None if call.target is None else _key_of(call.target)
    literal = _quantity_literal(call.arguments[0])
    if key is None or key.group != "capacity" or literal is None:
        return None
    try:
        return CapacityBound(key.domain, key.name, parse_quantity(str(literal.value)), is_strict, literal)
    except QuantityError:
        return None


def bound_distance(condition: SelectorCondition, device: CelMap) -> Fraction:
    """Return how far a capacity is from the bound that it fails, as a share of the larger; 1 if there is no bound."""
    call = _comparison(condition.tree)
    bound = None if call is None else _bound_of(call, is_strict=False)
    amount = None if bound is None else _amount_of(bound, device)
    if bound is None or amount is None:
        return Fraction(1)
    has, wanted = _as_fraction(amount), _as_fraction(bound.amount)
    larger = max(abs(has), abs(wanted))
    return abs(has - wanted) / larger if larger else Fraction(0)


def close_amount(bound: CapacityBound, device: CelMap) -> Quantity | None:
    """Return what a device has of a capacity, if a bound exceeds it by little; None otherwise."""
    amount = _amount_of(bound, device)
    if amount is None:
        return None
    order = compare_quantities(amount, bound.amount)
    if order > 0 or (order == 0 and not bound.is_strict):
        return None
    is_close = _as_fraction(amount) * (100 + CLOSE_PERCENT) >= _as_fraction(bound.amount) * 100
    return amount if is_close else None


def _amount_of(bound: CapacityBound, device: CelMap) -> Quantity | None:
    """Return what a device has of the capacity of a bound; None if it does not publish it."""
    value = device.get("capacity").get(bound.domain).find(bound.name)
    return value.value.quantity if value.present and isinstance(value.value, QuantityValue) else None


def with_bound(program: DeviceSelectorProgram, bound: CapacityBound, amount: Quantity) -> str:
    """Return the expression with an amount that a device has as the bound, which then includes it.

    >>> program = compile_device_selector("device.capacity['a'].memory.isGreaterThan(quantity('10Gi'))")
    >>> bound = capacity_bound(selector_conditions(program)[0])
    >>> with_bound(program, bound, parse_quantity("9850Mi"))
    "device.capacity['a'].memory.compareTo(quantity('9850Mi')) >= 0"
    """
    node = next(term for term in _terms(program.tree, "_&&_") if bound.literal in set(walk_expression(term)))
    comparison = _greater_than(node)
    assert comparison is not None
    target = comparison[0].target
    assert target is not None
    text = f"{_text_of(program, target)}.compareTo(quantity('{canonical_text(amount)}')) >= 0"
    return f"{program.expression[: node.start]}{text}{program.expression[node.end :]}"


def _greater_than(node: ExpressionNode) -> tuple[FunctionCall, bool] | None:
    """Return the call in `a.compareTo(b) >= 0`, `… > 0` or `a.isGreaterThan(b)`, and whether it needs a > b."""
    call = _comparison(node)
    if call is None or not _is_call(node, "isGreaterThan", "_>=_", "_>_"):
        return None
    return call, not _is_call(node, "_>=_")


def _comparison(node: ExpressionNode) -> FunctionCall | None:
    """Return the call that compares in a bound: `a.isGreaterThan(b)`, `a.isLessThan(b)`, or `a.compareTo(b)` with 0."""
    if not isinstance(node, FunctionCall):
        return None
    if node.function in ("isGreaterThan", "isLessThan"):
        return node
    if node.function not in ("_>=_", "_>_", "_<=_", "_<_", "_==_"):
        return None
    call, zero = node.arguments
    is_zero = isinstance(zero, LiteralValue) and zero.value == 0
    return call if is_zero and isinstance(call, FunctionCall) and call.function == "compareTo" else None


def _quantity_literal(node: ExpressionNode) -> LiteralValue | None:
    if isinstance(node, FunctionCall) and node.function == "quantity" and isinstance(node.arguments[0], LiteralValue):
        return node.arguments[0]
    return None


def _as_fraction(quantity: Quantity) -> Fraction:
    return quantity.unscaled * Fraction(10) ** quantity.exponent


def _terms(node: ExpressionNode, operator: str) -> Iterator[ExpressionNode]:
    """Yield the terms that an operator joins, from left to right."""
    if not isinstance(node, FunctionCall) or node.function != operator:
        yield node
        return
    for argument in node.arguments:
        yield from _terms(argument, operator)


def _is_call(node: ExpressionNode, *functions: str) -> bool:
    return isinstance(node, FunctionCall) and node.function in functions


def used_key(node: ExpressionNode) -> DeviceKey | None:
    """Return the key that an expression reads or whose existence it tests."""
    if _is_call(node, "@in"):
        assert isinstance(node, FunctionCall)
        name, domain = node.arguments
        if isinstance(name, LiteralValue) and isinstance(name.value, str):
            return _key_in(domain, name.value)
        return None
    step = _step_of(node)
    return None if step is None else _key_in(*step)


def _key_of(node: ExpressionNode) -> DeviceKey | None:
    """Return the key that `device.attributes['domain'].name` or `device.capacity['domain']['name']` reads."""
    is_test = isinstance(node, FieldSelection) and node.test_only
    return None if is_test or _is_call(node, "@in") else used_key(node)


def _key_in(domain_map: ExpressionNode, name: str) -> DeviceKey | None:
    """Return a key of `device.attributes['domain']` or `device.capacity['domain']`."""
    domain = _step_of(domain_map)
    group = None if domain is None else _step_of(domain[0])
    if domain is None or group is None or group[1] not in ("attributes", "capacity"):
        return None
    is_device = isinstance(group[0], Identifier) and group[0].name == "device"
    return DeviceKey(group[1], domain[1], name) if is_device else None


def _step_of(node: ExpressionNode) -> tuple[ExpressionNode, str] | None:
    if isinstance(node, FieldSelection):
        return node.operand, node.field
    if isinstance(node, FunctionCall) and node.function == "_[_]":
        operand, key = node.arguments
        if isinstance(key, LiteralValue) and isinstance(key.value, str):
            return operand, key.value
    return None


def _has_key(device: CelMap, key: DeviceKey) -> bool:
    return bool(device.get(key.group).get(key.domain).contains(key.name))


def _text_of(program: DeviceSelectorProgram, node: ExpressionNode) -> str:
    return program.expression[node.start : node.end]
