"""Evaluators of the parts of an expression that are no calls of functions: variables, loops, literals, keys, logic.

Source: `interpreter/interpretable.go`, `attributes.go` and `decorators.go` of cel-go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from webhook.model.cel.cel_errors import CelError, CelSyntaxError, FatalCelError, MissingKeyError
from webhook.model.cel.cel_types import CelType
from webhook.model.cel.declarations import TYPE_NAMES
from webhook.model.cel.operators import Implementation, no_overload, optional_content
from webhook.model.cel.steps import STEP_LIMIT, Frame, spend_on_contents, spend_steps
from webhook.model.cel.syntax_tree import FunctionCall
from webhook.model.cel.values import (
    NO_VALUE,
    CelMap,
    CelValue,
    OptionalValue,
    QuantityValue,
    SemanticVersion,
    are_equal,
    is_list,
    list_contains,
    type_name,
)

Evaluator = Callable[[Frame], Any]


class ConstantEvaluator:
    """An evaluator that always returns the same value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _frame: Frame) -> Any:
        return self.value


def read_variable(slot: int) -> Evaluator:
    def evaluate(frame: Frame) -> Any:
        value = frame[slot]
        if isinstance(value, _PendingValue):
            value = frame[slot] = value.resolve(frame)
        if isinstance(value, CelError):
            raise value
        return _pass_optional(value) if type(value) is OptionalValue else value

    return evaluate


def _pass_optional(value: OptionalValue) -> OptionalValue:
    """Return an optional value as a variable or choice gives it: cel-go loses quantities and versions inside."""
    if isinstance(value.value, (QuantityValue, SemanticVersion)):
        return OptionalValue(True, CelError(f"unsupported conversion of {type_name(value.value)}"))
    return value


class _PendingValue(NamedTuple):
    """The first value of an accumulator, which is evaluated when it is first read."""

    evaluate: Evaluator

    def resolve(self, frame: Frame) -> Any:
        """Return the value, or its error."""
        try:
            return self.evaluate(frame)
        except CelError as error:
            return error


class LoopParts(NamedTuple):
    """A loop: what it runs over, the slots of its variables, its condition and step."""

    values: Evaluator
    accumulator: int
    first: int
    second: int
    condition: Evaluator
    step: Evaluator


def fold_range(loop: LoopParts, initial: Evaluator, result: Evaluator, weight: int) -> Evaluator:
    values_of, accumulator, first, second, condition, step = loop
    pending = _PendingValue(initial)

    def evaluate(frame: Frame) -> Any:
        values = values_of(frame)
        saved = frame[accumulator], frame[first]
        frame[accumulator] = pending
        for entry in _loop_entries(values, has_two=bool(second)):
            spend_steps(frame, weight)
            if second:
                frame[first], frame[second] = entry
            else:
                frame[first] = entry
            if _value_or_error(condition, frame) is False:
                break
            frame[accumulator] = _value_or_error(step, frame)
        try:
            return result(frame)
        finally:
            frame[accumulator], frame[first] = saved

    return evaluate


def _loop_entries(values: CelValue, *, has_two: bool) -> Iterable[Any]:
    if isinstance(values, CelMap):
        return values.items() if has_two else values
    if is_list(values):
        return enumerate(values) if has_two else values
    raise CelError(f"unsupported range of type {type_name(values)}")


def _value_or_error(evaluate: Evaluator, frame: Frame) -> Any:
    try:
        return evaluate(frame)
    except CelError as error:
        return error


def make_list(elements: Sequence[Evaluator], optional: frozenset[int]) -> Evaluator:
    def evaluate(frame: Frame) -> tuple[Any, ...]:
        if not optional:
            return tuple([element(frame) for element in elements])
        values: list[Any] = []
        for index, element in enumerate(elements):
            value = element(frame)
            if index in optional:
                value = _checked_optional(value)
                if not value.present:
                    continue
                value = value.value
            values.append(value)
        return tuple(values)

    return _fold_constants(evaluate, elements)


def make_map(keys: Sequence[Evaluator], values: Sequence[Evaluator], optional: frozenset[int]) -> Evaluator:
    def evaluate(frame: Frame) -> CelMap:
        entries: list[tuple[Any, Any]] = []
        for index, (key_of, value_of) in enumerate(zip(keys, values, strict=True)):
            key, value = key_of(frame), value_of(frame)
            if index in optional:
                value = _checked_optional(value)
                if not value.present:
                    entries = [entry for entry in entries if entry[0] != key]
                    continue
                value = value.value
            entries.append((key, value))
        return CelMap(entries)

    return _fold_constants(evaluate, [*keys, *values])


def _checked_optional(value: CelValue) -> OptionalValue:
    if isinstance(value, OptionalValue):
        return value
    raise CelError(f"cannot initialize optional element from non-optional value of type {type_name(value)}")


def _fold_constants(evaluate: Evaluator, parts: Sequence[Evaluator]) -> Evaluator:
    """Evaluate a part once if all that it reads is constant."""
    if not all(isinstance(part, ConstantEvaluator) for part in parts):
        return evaluate
    try:
        return ConstantEvaluator(evaluate([STEP_LIMIT]))
    except (CelError, FatalCelError):
        return evaluate


def convert_argument(argument: Evaluator, implementation: Implementation, node: FunctionCall) -> Evaluator:
    if isinstance(argument, ConstantEvaluator):
        try:
            return ConstantEvaluator(implementation(argument.value))
        except CelError as error:
            raise CelSyntaxError(str(error), node.start) from None
    return lambda frame: implementation(argument(frame))


def value_type(value: CelValue) -> CelType:
    """Return the type of a value as CEL's `type()` does."""
    name = type_name(value)
    return TYPE_NAMES[name].parameters[0] if name in TYPE_NAMES else CelType("object", name)


def select_element(operand: Evaluator, key: Evaluator) -> Evaluator:
    if isinstance(key, ConstantEvaluator):
        constant = key.value

        def select_constant(frame: Frame) -> Any:
            value = operand(frame)
            return value.get(constant) if isinstance(value, CelMap) else _element_of(value, constant)

        return select_constant

    def select(frame: Frame) -> Any:
        value = operand(frame)
        return value if value == NO_VALUE else _element_of(value, key(frame))

    return select


def _element_of(value: CelValue, key: CelValue) -> CelValue:
    if isinstance(value, OptionalValue):
        return _optional_element_of(value, key)
    found = _find_element(value, key)
    if found is None or not found.present:
        raise MissingKeyError(key)
    return found.value


def _select_optional(operand: Evaluator, key: Evaluator) -> Evaluator:
    def select(frame: Frame) -> OptionalValue:
        value = operand(frame)
        return NO_VALUE if value == NO_VALUE else _optional_element_of(value, key(frame))

    return select


def _optional_element_of(value: CelValue, key: CelValue) -> OptionalValue:
    if isinstance(value, OptionalValue):
        if not value.present:
            return NO_VALUE
        value = value.value
    return _find_element(value, key) or NO_VALUE


INDEX_OPERATORS = frozenset({"_[_]", "_[?_]"})
_KEYS = (bool, int, float, str)


def is_possible_key(key: Evaluator) -> bool:
    """Return whether a constant can be a key or index."""
    return not isinstance(key, ConstantEvaluator) or isinstance(key.value, _KEYS)


def _find_element(value: CelValue, key: CelValue) -> OptionalValue | None:
    """Return the value of a key or index; None for a value that has neither."""
    if not isinstance(key, _KEYS):
        raise CelError(f"invalid qualifier type: {type_name(key)}")
    if isinstance(value, CelMap):
        return value.find(key)
    if not is_list(value):
        return None
    if isinstance(key, bool) or not isinstance(key, (int, float)) or key != int(key):
        raise CelError(f"unsupported index of type {type_name(key)} in list")
    index = int(key)
    return OptionalValue(True, value[index]) if 0 <= index < len(value) else NO_VALUE


def test_field(operand: Evaluator, field: str) -> Evaluator:
    def evaluate(frame: Frame) -> bool:
        return _optional_element_of(operand(frame), field).present

    return evaluate


def _join_conditions(absorbing: bool, left: Evaluator, right: Evaluator) -> Evaluator:
    """Return an evaluator of `&&` or `||`: one side with the absorbing value is enough, whatever the other is."""
    neutral = not absorbing

    def evaluate(frame: Frame) -> bool:
        one: object = _value_or_error(left, frame)
        if one is absorbing:
            return absorbing
        other: object = right(frame) if one is neutral else _value_or_error(right, frame)
        if one is neutral and other is neutral:
            return neutral
        return _absorbed(one, other, result=absorbing)

    return evaluate


def _absorbed(one: Any, other: Any, *, result: bool) -> bool:
    """Return the result that makes an error on the other side irrelevant, or raise that error."""
    if other is result:
        return bool(result)
    for value in (one, other):
        if isinstance(value, CelError):
            raise value
    raise no_overload(*(value for value in (one, other) if not isinstance(value, bool)))


def _not(operand: Evaluator) -> Evaluator:
    def evaluate(frame: Frame) -> bool:
        value = operand(frame)
        if isinstance(value, bool):
            return not value
        raise no_overload(value)

    return evaluate


def _not_strictly_false(operand: Evaluator) -> Evaluator:
    return lambda frame: _value_or_error(operand, frame) is not False


def _conditional(condition: Evaluator, if_true: Evaluator, if_false: Evaluator) -> Evaluator:
    def evaluate(frame: Frame) -> Any:
        value = condition(frame)
        if not isinstance(value, bool):
            raise no_overload(value)
        chosen = if_true(frame) if value else if_false(frame)
        return _pass_optional(chosen) if type(chosen) is OptionalValue else chosen

    return evaluate


def _equal(left: Evaluator, right: Evaluator) -> Evaluator:
    def evaluate(frame: Frame) -> bool:
        one, other = left(frame), right(frame)
        if type(one) is str and type(other) is str:
            return bool(one == other)
        spend_on_contents(frame, one)
        return are_equal(one, other)

    return evaluate


def _not_equal(left: Evaluator, right: Evaluator) -> Evaluator:
    """Return an evaluator of `!=`, by which values that cannot be compared are different."""

    def evaluate(frame: Frame) -> bool:
        one, other = left(frame), right(frame)
        spend_on_contents(frame, one)
        try:
            return not are_equal(one, other)
        except CelError:
            return True

    return evaluate


def _or_optional(left: Evaluator, right: Evaluator) -> Evaluator:
    def evaluate(frame: Frame) -> Any:
        value = left(frame)
        return value if not isinstance(value, OptionalValue) or value.present else right(frame)

    return evaluate


def _or_value(left: Evaluator, right: Evaluator) -> Evaluator:
    def evaluate(frame: Frame) -> Any:
        value = left(frame)
        if not isinstance(value, OptionalValue):
            return value
        return optional_content(value) if value.present else right(frame)

    return evaluate


SPECIAL_FORMS: dict[str, Callable[..., Evaluator]] = {
    "_&&_": partial(_join_conditions, False), "_||_": partial(_join_conditions, True), "!_": _not,
    "@not_strictly_false": _not_strictly_false, "_?_:_": _conditional, "_==_": _equal, "_!=_": _not_equal,
    "_[_]": select_element, "_[?_]": _select_optional, "_?._": _select_optional, "or": _or_optional,
    "orValue": _or_value,
}  # fmt: skip


def test_membership(element: Evaluator, values: Evaluator) -> Evaluator:
    """Return an evaluator of `in`; a constant list is a hash table, into which not every value can be looked up."""
    if not isinstance(values, ConstantEvaluator):
        return lambda frame: is_in_values(frame, element(frame), values(frame))
    members = values.value
    if not members:
        return ConstantEvaluator(False)
    hashed = all(type(member) in _HASHED for member in members)

    def evaluate(frame: Frame) -> bool:
        value = element(frame)
        if hashed and not _is_hashable(value):
            raise FatalCelError(f"hash of unhashable type {type_name(value)}")
        return is_in_values(frame, value, members)

    return evaluate


def _is_hashable(value: CelValue) -> bool:
    """Return whether Go can look a value up in a hash table, or fails for all of the expression."""
    return type_name(value) not in ("bytes", "kubernetes.Semver")


def is_in_values(frame: Frame, element: CelValue, values: CelValue) -> bool:
    if isinstance(values, CelMap):
        return values.contains(element)
    if not is_list(values):
        raise no_overload(element, values)
    spend_steps(frame, len(values))
    spend_on_contents(frame, element)
    return list_contains(values, element)


_HASHED = frozenset({bool, int, float, str})
