"""Explain why a selector selects no device, and what to write instead.

The conditions of a selector are the terms of its outermost `&&`. A key is unguarded if reading it is an error on some
device: that ends scheduling of the pod on every node. A bound is close if a device has almost as much as it requires.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from itertools import islice
from math import prod
from typing import NamedTuple

from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, canonical_text, parse_quantity
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.cel.evaluator import CompiledExpression, compile_checked
from webhook.model.cel.syntax_tree import (
    NO_NAMES,
    BoundNames,
    Comprehension,
    ExpressionNode,
    FieldSelection,
    FunctionCall,
    Identifier,
    LiteralValue,
    names_in_body,
    resolve_name,
    walk_expression,
    walk_with_names,
)
from webhook.model.cel.values import CelMap, QuantityValue
from webhook.model.dra.device_selectors import (
    DeviceSelectorProgram,
    SelectorCompileError,
    SelectorRuntimeError,
    compile_device_selector,
    evaluate_expression,
)

MIN_SIMILARITY = 0.8
"""Names that are less alike are different keys."""

MAX_NAME = 64
"""Characters of a name that are compared."""

MAX_TEXTS_TRIED = 16
"""Texts with which a condition is evaluated again."""

CLOSE_PERCENT = 10
"""A bound is close if it exceeds what a device has by at most this share: 10Gi and 9,850 MiB differ by 4 %."""


class CapacityBound(NamedTuple):
    """An amount with which a condition compares a capacity.

    Attributes:
        domain: Domain of the capacity.
        name: Name of the capacity.
        amount: The amount.
        literal: Where the amount stands in the expression, and how it is written.
        unit: By what the condition divides the capacity.
    """

    domain: str
    name: str
    amount: Quantity
    literal: LiteralValue
    unit: int = 1


class SelectorCondition(NamedTuple):
    """One term of a selector's outermost `&&`, and the amounts with which it compares a capacity."""

    text: str
    tree: ExpressionNode
    compiled: CompiledExpression
    bounds: tuple[CapacityBound, ...] = ()

    def holds(self, device: CelMap) -> bool:
        """Return whether the condition is true for a device.

        Raises:
            SelectorRuntimeError: It has no value for the device.
        """
        return evaluate_expression(self.compiled, device) is True


class DeviceKey(NamedTuple):
    """An attribute or capacity that a selector reads.

    Attributes:
        group: "attributes" or "capacity".
    """

    group: str
    domain: str
    name: str

    @property
    def expression(self) -> str:
        """Return the expression that reads the key."""
        return f"device.{self.group}['{self.domain}'].{self.name}"

    @property
    def guard(self) -> str:
        """Return the condition that a device has the key."""
        return f"'{self.name}' in device.{self.group}['{self.domain}']"

    def published_names(self, driver: str) -> tuple[str, ...]:
        """Return the names by which a driver may publish the key: it shortens those of its own domain."""
        qualified = f"{self.domain}/{self.name}"
        return (qualified, self.name) if self.domain == driver else (qualified,)


def attribute_key(name: str) -> DeviceKey:
    """Return the key of an attribute by its qualified name."""
    domain, _, short = name.partition("/")
    return DeviceKey("attributes", domain, short)


def published_keys(device: CelMap) -> Iterator[DeviceKey]:
    """Yield the attributes and capacities of a device."""
    for group in ("attributes", "capacity"):
        for domain in list(device.get(group)):
            yield from (DeviceKey(group, domain, name) for name in list(device.get(group).get(domain)))


def meant_key(key: DeviceKey, published: Collection[DeviceKey]) -> DeviceKey | None:
    """Return the published key that one which no device has almost is; None without any.

    Names are alike in the domain of the key, else they are equal: an attribute may be a capacity, and the domain
    misspelled.
    """
    beside = {each.name.casefold(): each for each in published if each.domain == key.domain}
    same_group = {name: each for name, each in beside.items() if each.group == key.group}
    for names in (same_group, beside):
        if near := get_close_matches(key.name[:MAX_NAME].casefold(), names, n=1, cutoff=MIN_SIMILARITY):
            return names[near[0]]
    elsewhere = {each.domain: each for each in sorted(published, reverse=True) if each.name == key.name}
    domains = get_close_matches(key.domain[:MAX_NAME], elsewhere, n=1, cutoff=0)
    return elsewhere[domains[0]] if domains else None


def names_beside(key: DeviceKey, published: Collection[DeviceKey]) -> list[str]:
    """Return the names of the published keys of a key's group and domain."""
    return sorted(each.name for each in published if (each.group, each.domain) == (key.group, key.domain))


def meant_text(condition: SelectorCondition, known: Mapping[str, Sequence[CelMap]]) -> str | None:
    """Return what to write instead of a text in a condition, so that a device with the text that is meant satisfies it.

    Args:
        condition: The condition.
        known: The texts that devices have, the preferred ones first, each with the devices that have it.
    """
    nodes = (one for one in walk_expression(condition.tree) if isinstance(one, LiteralValue))
    likely = ((one, *each) for one in nodes if isinstance(one.value, str) for each in _likely_texts(one.value, known))
    for literal, meant, text in islice(likely, MAX_TEXTS_TRIED):
        start, end = literal.start - condition.tree.start, literal.end - condition.tree.start
        if _holds_for_some(f"{condition.text[:start]}'{meant}'{condition.text[end:]}", known[text]):
            return meant
    return None


def _likely_texts(written: str, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield what may be meant by a text, with the known text that it is of, the likeliest first.

    That is the part of a known text with the same words, then all of it, then a text that is alike and has the same
    first number: models of GPUs differ in it.
    """
    words = re.findall(r"[^\W_]+", written[:MAX_NAME])
    pattern = re.compile(r"(?<![^\W_])" + r"[\W_]+".join(words) + r"(?![^\W_])", re.IGNORECASE)
    for text in known:
        if words and (found := pattern.search(text)):
            yield from ((meant, text) for meant in (found.group(), text) if meant != written)
    of_model = {each.casefold(): each for each in known if _first_number(each) == _first_number(written)}
    for near in get_close_matches(written.casefold()[:MAX_NAME], of_model, n=1, cutoff=MIN_SIMILARITY):
        yield of_model[near], of_model[near]


def _first_number(text: str) -> str:
    found = re.search(r"\d+", text)
    return found.group() if found else ""


def _holds_for_some(expression: str, devices: Sequence[CelMap]) -> bool:
    try:
        program = compile_device_selector(expression)
        return any(program.selects_value(device) for device in devices)
    except (SelectorCompileError, SelectorRuntimeError, UnmodeledExpressionError):
        return False


def selector_conditions(program: DeviceSelectorProgram) -> tuple[SelectorCondition, ...]:
    """Return the conditions of a selector, each with its text."""
    return tuple(
        SelectorCondition(_text_of(program, node), node, compile_checked(node), tuple(_bounds_in(node)))
        for node in _terms(program.tree, "_&&_")
    )


def failing_conditions(conditions: Sequence[SelectorCondition], device: CelMap) -> list[SelectorCondition]:
    """Return the conditions that are not true for a device; one without a value is not true."""
    return [condition for condition in conditions if not _holds(condition, device)]


def _holds(condition: SelectorCondition, device: CelMap) -> bool:
    try:
        return condition.holds(device)
    except SelectorRuntimeError:
        return False


def keys_read(tree: ExpressionNode, names: BoundNames = NO_NAMES) -> set[DeviceKey]:
    """Return the attributes and capacities whose values an expression reads, those of optional fields included.

    Args:
        tree: The expression.
        names: The names that it may read.
    """
    found = (_key_of(node, inner) for node, inner in walk_with_names(tree, names))
    return {key for key in found if key is not None}


def keys_named(tree: ExpressionNode) -> set[DeviceKey]:
    """Return the attributes and capacities that an expression reads or whose existence it tests."""
    found = (used_key(node, names) for node, names in walk_with_names(tree))
    return {key for key in found if key is not None}


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
    except (SelectorCompileError, SelectorRuntimeError, UnmodeledExpressionError):
        return None
    return guarded


def _guard_terms(
    program: DeviceSelectorProgram, node: ExpressionNode, missing: set[DeviceKey], names: BoundNames = NO_NAMES
) -> str:
    """Return the text of a part of a selector, with guards in the terms of `&&` and `||` that read missing keys.

    Args:
        names: The names that the part may read.
    """
    for operator in ("_&&_", "_||_"):
        terms = list(_terms(node, operator))
        if len(terms) > 1:
            texts = [_guard_terms(program, term, missing, names) for term in terms]
            texts = [f"({text})" if _needs_parentheses(term, operator, text, program) else text
                     for term, text in zip(terms, texts, strict=True)]  # fmt: skip
            return f" {operator.strip('_')} ".join(texts)
    text, needed = _text_of(program, node), keys_read(node, names) & missing
    if isinstance(node, Comprehension) and node.is_binding:
        needed = keys_read(node.initial, names) & missing
        body = _guard_terms(program, node.result, missing - needed, names_in_body(node, names))
        before, after = (
            program.expression[node.start : node.result.start],
            program.expression[node.result.end : node.end],
        )
        text = f"{before}{body}{after}"
    guards = sorted(key.guard for key in needed)
    if not guards:
        return text
    return " && ".join([*guards, f"({text})" if _is_call(node, "_?_:_") else text])


def _needs_parentheses(term: ExpressionNode, operator: str, text: str, program: DeviceSelectorProgram) -> bool:
    """Return whether a term of an operator needs parentheses that its text does not have yet."""
    is_new = text != _text_of(program, term)
    if operator == "_&&_":
        return is_new and _is_call(term, "_||_")
    return is_new


def _bounds_in(node: ExpressionNode, names: BoundNames = NO_NAMES) -> Iterator[CapacityBound]:
    """Yield the amounts in a condition that reads one capacity: quantities, and numbers but those of `compareTo`.

    The terms in the body of `cel.bind` are conditions of their own.
    """
    if isinstance(node, Comprehension) and node.is_binding:
        for term in _terms(node.result, "_&&_"):
            yield from _bounds_in(term, names_in_body(node, names))
        return
    capacities = {key for key in keys_read(node, names) if key.group == "capacity"}
    if len(capacities) != 1:
        return
    [key], divisors = capacities, list(_divisors(node))
    unit = prod(int(one.value) for one in divisors)
    for literal in _written_amounts(node):
        if not any(one.start == literal.start for one in divisors):
            try:
                amount = parse_quantity(_amount_text(literal, unit))
            except QuantityError:
                continue
            yield CapacityBound(key.domain, key.name, amount, literal, unit)


def _written_amounts(node: ExpressionNode) -> Iterator[LiteralValue]:
    """Yield the quantities and numbers of an expression, a product of numbers as one."""
    number = _number_of(node)
    if number is not None:
        if abs(number) > 1:
            yield LiteralValue(number, start=node.start, end=node.end)
    elif isinstance(node, FunctionCall) and node.function == "quantity":
        yield from (one for one in node.arguments if isinstance(one, LiteralValue))
    else:
        for child in node.children():
            yield from _written_amounts(child)


def _divisors(tree: ExpressionNode) -> Iterator[LiteralValue]:
    """Yield the positive numbers by which an expression divides."""
    for node in walk_expression(tree):
        if isinstance(node, FunctionCall) and node.function == "_/_":
            yield from (one for one in _written_amounts(node.arguments[1]) if isinstance(one.value, int | float))


def _number_of(node: ExpressionNode) -> int | float | None:
    """Return the value of a number, or of a product of numbers; None of anything else."""
    if isinstance(node, LiteralValue):
        return node.value if type(node.value) in (int, float) else None
    if not isinstance(node, FunctionCall) or node.function != "_*_":
        return None
    one, other = map(_number_of, node.arguments)
    return None if one is None or other is None else one * other


def _amount_text(literal: LiteralValue, unit: int) -> str:
    if isinstance(literal.value, str):
        return literal.value
    mebibytes, rest = divmod(int(literal.value) * unit, 2**20)
    return str(int(literal.value) * unit) if rest else f"{mebibytes}Mi"


def bound_distance(condition: SelectorCondition, device: CelMap) -> Fraction:
    """Return how far a capacity is from the nearest bound, as a share of the larger; 1 if there is no bound."""
    return min((_share_missed(bound, device) for bound in condition.bounds), default=Fraction(1))


def _share_missed(bound: CapacityBound, device: CelMap) -> Fraction:
    amount = _amount_of(bound, device)
    if amount is None:
        return Fraction(1)
    has, wanted = _as_fraction(amount), _as_fraction(bound.amount)
    larger = max(abs(has), abs(wanted))
    return abs(has - wanted) / larger if larger else Fraction(0)


def close_bound(condition: SelectorCondition, device: CelMap) -> tuple[CapacityBound, Quantity] | None:
    """Return the bound that exceeds what a device has by little, and what it has; None without any."""
    for bound in condition.bounds:
        amount = _amount_of(bound, device)
        if amount is not None and is_close(amount, bound.amount):
            return bound, amount
    return None


def is_close(amount: Quantity, bound: Quantity) -> bool:
    """Return whether a bound is an amount, or exceeds it by little."""
    has, wanted = _as_fraction(amount), _as_fraction(bound)
    return has <= wanted and has * (100 + CLOSE_PERCENT) >= wanted * 100


def _amount_of(bound: CapacityBound, device: CelMap) -> Quantity | None:
    """Return what a device has of the capacity of a bound; None if it does not publish it."""
    value = device.get("capacity").get(bound.domain).find(bound.name)
    return value.value.quantity if value.present and isinstance(value.value, QuantityValue) else None


def with_bound(
    condition: SelectorCondition, bound: CapacityBound, amount: Quantity, devices: Sequence[CelMap]
) -> str | None:
    """Return the literal to write as the bound of a condition, so that it is true for some devices; None without any.

    Args:
        condition: The condition.
        bound: Its bound.
        amount: What one of the devices has. A condition that requires more than its bound gets a little less.
        devices: Values of variable `device`.
    """
    for text in _texts_of_bound(bound, amount):
        try:
            rewritten = compile_device_selector(_replace_in(condition.text, condition.tree.start, [(bound, text)]))
            if all(evaluate_expression(rewritten.compiled, device) is True for device in devices):
                return text
        except (SelectorCompileError, SelectorRuntimeError, UnmodeledExpressionError):
            continue
    return None


def _texts_of_bound(bound: CapacityBound, amount: Quantity) -> Iterator[str]:
    """Yield an amount, and one just below it, as the literal of a bound is written."""
    if isinstance(bound.literal.value, str):
        text = canonical_text(amount)
        number = text.rstrip("KMGTPEiknum")
        before, suffix = "'", f"{text[len(number) :]}'"
    else:
        number = str(int(_as_fraction(amount) / bound.unit))
        before, suffix = "", ".0" if isinstance(bound.literal.value, float) else ""
    if number.isdecimal():
        yield f"{before}{number}{suffix}"
        yield f"{before}{int(number) - 1}{suffix}"


def replace_bounds(program: DeviceSelectorProgram, texts: Sequence[tuple[CapacityBound, str]]) -> str:
    """Return a selector with other amounts as bounds."""
    return _replace_in(program.expression, 0, texts)


def _replace_in(expression: str, offset: int, texts: Sequence[tuple[CapacityBound, str]]) -> str:
    for bound, text in sorted(texts, key=lambda one: one[0].literal.start, reverse=True):
        start, end = bound.literal.start - offset, bound.literal.end - offset
        expression = f"{expression[:start]}{text}{expression[end:]}"
    return expression


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


OPTIONAL_STEPS = frozenset({"_?._", "_[?_]"})
"""Operators that read a field or key if it exists."""


class _Step(NamedTuple):
    """A field or key that a part of an expression reads of another part.

    Attributes:
        names: The names that the other part may read.
    """

    operand: ExpressionNode
    names: BoundNames
    key: str


def used_key(node: ExpressionNode, names: BoundNames = NO_NAMES) -> DeviceKey | None:
    """Return the key that an expression reads or whose existence it tests.

    Args:
        node: The expression.
        names: The names that it may read.
    """
    node, names = resolve_name(node, names)
    if isinstance(node, FunctionCall) and node.function == "@in":
        name, domain = node.arguments
        if isinstance(name, LiteralValue) and isinstance(name.value, str):
            return _key_in(_Step(domain, names, name.value))
        return None
    step = _step_of(node, names, {"_[_]", *OPTIONAL_STEPS})
    return None if step is None else _key_in(step)


def _key_of(node: ExpressionNode, names: BoundNames) -> DeviceKey | None:
    """Return the key that `device.attributes['domain'].name` or `device.capacity['domain']['name']` reads."""
    node, names = resolve_name(node, names)
    is_test = isinstance(node, FieldSelection) and node.test_only
    return None if is_test or _is_call(node, "@in") else used_key(node, names)


def _key_in(step: _Step) -> DeviceKey | None:
    """Return a key of `device.attributes['domain']` or `device.capacity['domain']`."""
    domain = _step_of(step.operand, step.names)
    group = None if domain is None else _step_of(domain.operand, domain.names)
    if domain is None or group is None or group.key not in ("attributes", "capacity"):
        return None
    device, _ = resolve_name(group.operand, group.names)
    is_device = isinstance(device, Identifier) and device.name == "device"
    return DeviceKey(group.key, domain.key, step.key) if is_device else None


def _step_of(node: ExpressionNode, names: BoundNames, operators: Collection[str] = ("_[_]",)) -> _Step | None:
    node, names = resolve_name(node, names)
    if isinstance(node, FieldSelection):
        return _Step(node.operand, names, node.field)
    if isinstance(node, FunctionCall) and node.function in operators:
        operand, key = node.arguments
        if isinstance(key, LiteralValue) and isinstance(key.value, str):
            return _Step(operand, names, key.value)
    return None


def _has_key(device: CelMap, key: DeviceKey) -> bool:
    return bool(device.get(key.group).get(key.domain).contains(key.name))


def _text_of(program: DeviceSelectorProgram, node: ExpressionNode) -> str:
    return program.expression[node.start : node.end]
