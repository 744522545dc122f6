"""Compile a checked expression to Python functions, and evaluate it within a number of steps.

Evaluation takes at most `STEP_LIMIT` steps: a step of a loop counts the parts of its body, and a function that reads a
long text or list counts its size. cel-go limits the cost of an evaluation instead, to a million units, each of which
can be as slow as a step here; no expression of a driver or a user comes near either.

Source: `interpreter/planner.go`, `interpretable.go`, `attributes.go` and `decorators.go` of cel-go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from webhook.model.cel.cel_errors import (
    CelError,
    CelSyntaxError,
    FatalCelError,
    MissingKeyError,
    StepLimitError,
    UnmodelledExpressionError,
)
from webhook.model.cel.cel_types import BOOL, BYTES, DOUBLE, INT, STRING, UINT, CelType
from webhook.model.cel.declarations import FUNCTIONS, QUANTITY, SEMVER, TYPE_NAMES, FunctionOverload
from webhook.model.cel.list_functions import LIST_OVERLOADS
from webhook.model.cel.operators import (
    OPERATORS,
    SCALAR_OVERLOADS,
    Implementation,
    compile_pattern,
    no_overload,
)
from webhook.model.cel.syntax_tree import (
    Comprehension,
    ExpressionNode,
    FieldSelection,
    FunctionCall,
    Identifier,
    ListLiteral,
    LiteralValue,
    MapLiteral,
)
from webhook.model.cel.values import (
    NO_VALUE,
    CelMap,
    CelValue,
    OptionalValue,
    QuantityValue,
    SemanticVersion,
    UnsignedInteger,
    are_equal,
    is_list,
    list_contains,
    matches_type,
    type_name,
)

STEP_LIMIT = 50_000
MAX_PATTERN_WEIGHT = 5_000
"""Size of all regular expressions of one text, repetitions multiplied out."""

Frame = list[Any]
"""The steps that are left, and the values of variables by number."""

Evaluator = Callable[[Frame], Any]

_IMPLEMENTATIONS = {**SCALAR_OVERLOADS, **LIST_OVERLOADS}
_UNGUARDED = frozenset({"contains", "endsWith", "startsWith", "flatten"})
"""Functions whose implementations check the types of their arguments themselves."""

_CONVERSIONS = frozenset({"bool", "bytes", "double", "dyn", "int", "string", "type", "uint"})
"""Functions that are computed when the expression is compiled if their argument is a constant."""

_PARSERS = frozenset({"quantity", "semver"})
_UNSET = object()
_STEPS, _DEVICE = 0, 1


class CompiledExpression(NamedTuple):
    """An expression that can be evaluated."""

    evaluate: Evaluator
    slots: int

    def run(self, device: CelValue) -> CelValue:
        """Return the value of the expression for a device.

        Raises:
            CelError, FatalCelError: It has none.
        """
        frame: Frame = [STEP_LIMIT, device, *[_UNSET] * self.slots]
        return self.evaluate(frame)


def compile_checked(root: ExpressionNode) -> CompiledExpression:
    """Compile a checked expression.

    Raises:
        CelSyntaxError: A constant in it is invalid.
        UnmodelledExpressionError: Its regular expressions are too large.
    """
    planner = _ExpressionPlanner()
    evaluate = planner.plan(root)
    return CompiledExpression(evaluate, planner.slots)


class _Constant:
    """An evaluator that always returns the same value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _frame: Frame) -> Any:
        return self.value


class _ExpressionPlanner:
    def __init__(self) -> None:
        self.slots = 0
        self._scopes: list[dict[str, int]] = [{"device": _DEVICE}]
        self._pattern_weight = 0

    def plan(self, node: ExpressionNode) -> Evaluator:
        """Return a function that evaluates a part of the expression."""
        if isinstance(node, LiteralValue):
            return _Constant(node.value)
        if isinstance(node, Identifier):
            return self._plan_identifier(node.name)
        if isinstance(node, FieldSelection):
            operand = self.plan(node.operand)
            return _test_field(operand, node.field) if node.test_only else _select(operand, _Constant(node.field))
        if isinstance(node, ListLiteral):
            return _make_list(list(map(self.plan, node.elements)), node.optional)
        if isinstance(node, MapLiteral):
            return _make_map(list(map(self.plan, node.keys)), list(map(self.plan, node.values)), node.optional)
        if isinstance(node, FunctionCall):
            return self._plan_call(node)
        assert isinstance(node, Comprehension)
        return self._plan_comprehension(node)

    def _plan_identifier(self, name: str) -> Evaluator:
        for scope in reversed(self._scopes):
            if name in scope:
                return _read_variable(scope[name])
        return _Constant(TYPE_NAMES[name].parameters[0])

    def _plan_call(self, node: FunctionCall) -> Evaluator:
        parts = node.arguments if node.target is None else (node.target, *node.arguments)
        arguments = [self.plan(part) for part in parts]
        if node.function in _INDEXES and not _is_possible_key(arguments[1]):
            raise CelSyntaxError("invalid qualifier type", node.start)
        special = _SPECIAL_CALLS.get(node.function)
        if special is not None:
            return special(*arguments)
        if node.function in _PATTERN_FUNCTIONS:
            self._check_pattern(node, arguments[1])
        if node.function == "type":
            return _convert(arguments[0], _type_of_value, node)
        if node.function == "@in" and node.overloads == ("in_list",):
            return _test_membership(*arguments)
        call = _CallSite(node.function, _implementation(node.function, node.overloads), arguments)
        if node.function in _CONVERSIONS:
            return _convert(arguments[0], call.implementation, node)
        if node.function in _PARSERS and all(isinstance(argument, _Constant) for argument in arguments):
            return call.evaluated_once()
        return call.evaluator()

    def _check_pattern(self, node: FunctionCall, pattern: Evaluator) -> None:
        """Compile a constant regular expression once, to see that it is one."""
        first = node.arguments[0]
        checked = [pattern.value] if isinstance(pattern, _Constant) else []
        if node.function == "matches" and isinstance(first, LiteralValue):
            checked.append(first.value)
        for text in checked:
            if isinstance(text, str):
                self._pattern_weight += 20 + pattern_weight(text)
                if self._pattern_weight > MAX_PATTERN_WEIGHT:
                    raise UnmodelledExpressionError("its regular expressions are too large")
                try:
                    compile_pattern(text)
                except CelError as error:
                    raise CelSyntaxError(str(error), node.start) from None

    def _plan_comprehension(self, node: Comprehension) -> Evaluator:
        values = self.plan(node.iteration_range)
        initial = self.plan(node.initial)
        accumulator, first, second = (self._new_slot() for _ in range(3))
        self._scopes.append({node.accumulator: accumulator})
        self._scopes.append({node.variable: first, **({node.second_variable: second} if node.second_variable else {})})
        condition, step = self.plan(node.condition), self.plan(node.step)
        self._scopes.pop()
        result = self.plan(node.result)
        self._scopes.pop()
        loop = _Loop(values, accumulator, first, second if node.second_variable else 0, condition, step)
        return _fold(loop, initial, result, node.condition.nodes + node.step.nodes)

    def _new_slot(self) -> int:
        self.slots += 1
        return _DEVICE + self.slots


def _read_variable(slot: int) -> Evaluator:
    def evaluate(frame: Frame) -> Any:
        value = frame[slot]
        if isinstance(value, _PendingValue):
            value = frame[slot] = value.resolve(frame)
        if isinstance(value, CelError):
            raise value
        return value

    return evaluate


class _PendingValue(NamedTuple):
    """The first value of an accumulator, which is evaluated when it is first read."""

    evaluate: Evaluator

    def resolve(self, frame: Frame) -> Any:
        """Return the value, or its error."""
        try:
            return self.evaluate(frame)
        except CelError as error:
            return error


class _Loop(NamedTuple):
    """A loop: what it runs over, the slots of its variables, its condition and step."""

    values: Evaluator
    accumulator: int
    first: int
    second: int
    condition: Evaluator
    step: Evaluator


def _fold(loop: _Loop, initial: Evaluator, result: Evaluator, weight: int) -> Evaluator:
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


def spend_steps(frame: Frame, steps: int) -> None:
    """Count steps.

    Raises:
        StepLimitError: None are left.
    """
    frame[_STEPS] -= steps
    if frame[_STEPS] < 0:
        raise StepLimitError("the expression takes too many steps to be evaluated here")


def _make_list(elements: Sequence[Evaluator], optional: frozenset[int]) -> Evaluator:
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

    return _folded(evaluate, elements)


def _make_map(keys: Sequence[Evaluator], values: Sequence[Evaluator], optional: frozenset[int]) -> Evaluator:
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

    return _folded(evaluate, [*keys, *values])


def _checked_optional(value: CelValue) -> OptionalValue:
    if isinstance(value, OptionalValue):
        return value
    raise CelError(f"cannot initialize optional element from non-optional value of type {type_name(value)}")


def _folded(evaluate: Evaluator, parts: Sequence[Evaluator]) -> Evaluator:
    """Evaluate a part once if all that it reads is constant."""
    if not all(isinstance(part, _Constant) for part in parts):
        return evaluate
    try:
        return _Constant(evaluate([STEP_LIMIT]))
    except (CelError, FatalCelError):
        return evaluate


def _convert(argument: Evaluator, implementation: Implementation, node: FunctionCall) -> Evaluator:
    if isinstance(argument, _Constant):
        try:
            return _Constant(implementation(argument.value))
        except CelError as error:
            raise CelSyntaxError(str(error), node.start) from None
    return lambda frame: implementation(argument(frame))


def _type_of_value(value: CelValue) -> CelType:
    return value_type(value)


def value_type(value: CelValue) -> CelType:
    """Return the type of a value as CEL's `type()` does."""
    name = type_name(value)
    return TYPE_NAMES[name].parameters[0] if name in TYPE_NAMES else CelType("object", name)


def _select(operand: Evaluator, key: Evaluator) -> Evaluator:
    if isinstance(key, _Constant):
        constant = key.value

        def select_constant(frame: Frame) -> Any:
            value = operand(frame)
            return value.get(constant) if isinstance(value, CelMap) else _element_of(value, constant)

        return select_constant
    return lambda frame: _element_of(operand(frame), key(frame))


def _element_of(value: CelValue, key: CelValue) -> CelValue:
    if isinstance(value, OptionalValue):
        return _optional_element_of(value, key)
    found = _find_element(value, key)
    if found is None or not found.present:
        raise MissingKeyError(key)
    return found.value


def _select_optional(operand: Evaluator, key: Evaluator) -> Evaluator:
    return lambda frame: _optional_element_of(operand(frame), key(frame))


def _optional_element_of(value: CelValue, key: CelValue) -> OptionalValue:
    if isinstance(value, OptionalValue):
        if not value.present:
            return NO_VALUE
        value = value.value
    return _find_element(value, key) or NO_VALUE


_INDEXES = frozenset({"_[_]", "_[?_]"})
_KEYS = (bool, int, float, str)


def _is_possible_key(key: Evaluator) -> bool:
    """Return whether a constant can be a key or index."""
    return not isinstance(key, _Constant) or isinstance(key.value, _KEYS)


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


def _test_field(operand: Evaluator, field: str) -> Evaluator:
    def evaluate(frame: Frame) -> bool:
        return _optional_element_of(operand(frame), field).present

    return evaluate


def _and(left: Evaluator, right: Evaluator) -> Evaluator:
    def evaluate(frame: Frame) -> bool:
        one = _value_or_error(left, frame)
        if one is False:
            return False
        other = right(frame) if one is True else _value_or_error(right, frame)
        if one is True and other is True:
            return True
        return _absorbed(one, other, result=False)

    return evaluate


def _or(left: Evaluator, right: Evaluator) -> Evaluator:
    def evaluate(frame: Frame) -> bool:
        one = _value_or_error(left, frame)
        if one is True:
            return True
        other = right(frame) if one is False else _value_or_error(right, frame)
        if one is False and other is False:
            return False
        return _absorbed(one, other, result=True)

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
        if value is True:
            return if_true(frame)
        if value is False:
            return if_false(frame)
        raise no_overload(value)

    return evaluate


def _equal(left: Evaluator, right: Evaluator) -> Evaluator:
    def evaluate(frame: Frame) -> bool:
        one, other = left(frame), right(frame)
        if type(one) is str and type(other) is str:
            return bool(one == other)
        _spend_on_contents(frame, one)
        return are_equal(one, other)

    return evaluate


def _not_equal(left: Evaluator, right: Evaluator) -> Evaluator:
    """Return an evaluator of `!=`, by which values that cannot be compared are different."""

    def evaluate(frame: Frame) -> bool:
        one, other = left(frame), right(frame)
        _spend_on_contents(frame, one)
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
        return value.value if value.present else right(frame)

    return evaluate


_SPECIAL_CALLS: dict[str, Callable[..., Evaluator]] = {
    "_&&_": _and, "_||_": _or, "!_": _not, "@not_strictly_false": _not_strictly_false, "_?_:_": _conditional,
    "_==_": _equal, "_!=_": _not_equal, "_[_]": _select, "_[?_]": _select_optional, "_?._": _select_optional,
    "or": _or_optional, "orValue": _or_value,
}  # fmt: skip

_PATTERN_FUNCTIONS = frozenset({"matches", "find", "findAll"})


def _test_membership(element: Evaluator, values: Evaluator) -> Evaluator:
    """Return an evaluator of `in`; a constant list is a hash table, into which not every value can be looked up."""
    if not isinstance(values, _Constant):
        return lambda frame: _is_in(frame, element(frame), values(frame))
    members = values.value
    if not members:
        return _Constant(False)
    hashed = all(type(member) in _HASHED for member in members)

    def evaluate(frame: Frame) -> bool:
        value = element(frame)
        if hashed and not _is_hashable(value):
            raise FatalCelError(f"hash of unhashable type {type_name(value)}")
        return _is_in(frame, value, members)

    return evaluate


def _is_hashable(value: CelValue) -> bool:
    """Return whether Go can look a value up in a hash table, or fails for all of the expression."""
    return type_name(value) not in ("bytes", "kubernetes.Semver")


def _is_in(frame: Frame, element: CelValue, values: CelValue) -> bool:
    if isinstance(values, CelMap):
        return values.contains(element)
    if not is_list(values):
        raise no_overload(element, values)
    spend_steps(frame, len(values))
    _spend_on_contents(frame, element)
    return list_contains(values, element)


class _CallSite(NamedTuple):
    """A call of a function: its implementation and arguments."""

    function: str
    implementation: Implementation
    arguments: Sequence[Evaluator]

    def evaluated_once(self) -> Evaluator:
        """Return a function that returns the value of a call with constant arguments, or fails as the call does."""
        evaluate = self.evaluator()
        try:
            value = evaluate([STEP_LIMIT])
        except CelError:
            return evaluate
        return lambda _frame: value

    def evaluator(self) -> Evaluator:
        """Return a function that evaluates the call."""
        implementation, arguments = self.implementation, self.arguments
        charge = _CHARGES.get(self.function)
        if charge is not None:

            def evaluate_charged(frame: Frame) -> Any:
                values = [argument(frame) for argument in arguments]
                charge(frame, *values)
                return implementation(*values)

            return evaluate_charged
        if len(arguments) == 2:
            left, right = arguments
            return lambda frame: implementation(left(frame), right(frame))
        return lambda frame: implementation(*[argument(frame) for argument in arguments])


def _implementation(function: str, names: Sequence[str]) -> Implementation:
    if function == "@in":
        return lambda element, values: _is_in([STEP_LIMIT], element, values)
    if function in OPERATORS:
        return OPERATORS[function]
    overloads = [one for one in FUNCTIONS[function] if one.name in _IMPLEMENTATIONS]
    if len(names) == 1:
        overloads = [one for one in overloads if one.name == names[0]]
    if function in _UNGUARDED and len(overloads) == 1:
        return _IMPLEMENTATIONS[overloads[0].name]
    return _dispatch(overloads)


_CLASSES: dict[CelType, type] = {
    BOOL: bool, BYTES: bytes, DOUBLE: float, INT: int, STRING: str, UINT: UnsignedInteger, QUANTITY: QuantityValue,
    SEMVER: SemanticVersion,
}  # fmt: skip
"""The classes of values whose type is told by their class alone."""


def _dispatch(overloads: Sequence[FunctionOverload]) -> Implementation:
    """Return a function that calls the first overload whose argument types the arguments have."""
    choices = [(one.arguments, _IMPLEMENTATIONS[one.name]) for one in overloads]
    quick = {tuple(map(_CLASSES.get, types)): implementation for types, implementation in reversed(choices)}

    def call(*values: CelValue) -> Any:
        found = quick.get(tuple(map(type, values)))
        if found is not None:
            return found(*values)
        for types, implementation in choices:
            if len(types) == len(values) and all(map(matches_type, types, values)):
                return implementation(*values)
        raise no_overload(*values)

    return call


def _spend_on_contents(frame: Frame, value: CelValue) -> None:
    """Count the elements of a list or map, and those of its elements."""
    if is_list(value):
        spend_steps(frame, 1 + len(value))
        for element in value:
            _spend_on_contents(frame, element)
    elif isinstance(value, CelMap):
        spend_steps(frame, 1 + len(value))
        _spend_on_contents(frame, tuple(entry for _, entry in value.items()))
    elif isinstance(value, OptionalValue) and value.present:
        _spend_on_contents(frame, value.value)


def _charge_size(frame: Frame, *values: Any) -> None:
    spend_steps(frame, sum(_text_or_list_size(value) for value in values) // 64)


def _text_or_list_size(value: CelValue) -> int:
    return len(value) if isinstance(value, (str, bytes)) or is_list(value) else 0


def _charge_contents(frame: Frame, *values: Any) -> None:
    for value in values:
        _spend_on_contents(frame, value)


def _charge_product(frame: Frame, *values: Any) -> None:
    """Count each pair of elements of two lists, or of one list with itself."""
    sizes = [len(value) for value in values if is_list(value)]
    spend_steps(frame, sizes[0] * sizes[-1] if sizes else 0)
    _charge_contents(frame, *values)


def _charge_replacement(frame: Frame, text: Any, old: Any, new: Any, *_: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        spend_steps(frame, (text.count(old) * len(new) + len(text)) // 64)


def _charge_join(frame: Frame, texts: Any, separator: Any = "") -> None:
    if is_list(texts):
        size = sum(_text_or_list_size(text) for text in texts) + len(texts) * _text_or_list_size(separator)
        spend_steps(frame, len(texts) + size // 64)


def _charge_split(frame: Frame, text: Any, *_: Any) -> None:
    spend_steps(frame, _text_or_list_size(text))


def _charge_pattern(frame: Frame, text: Any, pattern: Any, *_: Any) -> None:
    if isinstance(text, str) and isinstance(pattern, str):
        spend_steps(frame, 10 + pattern_weight(pattern) + 8 * len(text))


def _charge_parse(frame: Frame, text: Any, *_: Any) -> None:
    spend_steps(frame, 10 + _text_or_list_size(text))


def _charge_count(frame: Frame, count: Any) -> None:
    spend_steps(frame, count if type(count) is int and count > 0 else 0)


_CHARGES: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("_+_", "contains", "indexOf", "lastIndexOf", "lowerAscii", "upperAscii"), _charge_size),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "slice", "reverse", "flatten"), _charge_contents),
    **dict.fromkeys(("sort", "@sortByAssociatedKeys", "distinct", "optional.unwrap", "unwrapOpt"), _charge_product),
    **dict.fromkeys(("sets.contains", "sets.equivalent", "sets.intersects"), _charge_product),
    **dict.fromkeys(_PATTERN_FUNCTIONS, _charge_pattern),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), _charge_parse),
    "cel.@mapInsert": lambda frame, target, *_: spend_steps(frame, len(target) if isinstance(target, CelMap) else 0),
    "replace": _charge_replacement, "join": _charge_join, "split": _charge_split, "lists.range": _charge_count,
    "strings.quote": _charge_split,
}  # fmt: skip

_REPETITION = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")


def pattern_weight(pattern: str) -> int:
    """Return the size of a regular expression with its repetitions multiplied out."""
    weight = 1 + len(pattern) // 4
    for match in _REPETITION.finditer(pattern):
        weight *= max(1, int(match[1][:6]), int((match[2] or "0")[:6]))
    return weight


_HASHED = frozenset({bool, int, float, str})
