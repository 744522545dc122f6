"""Compile a checked expression to Python functions, and evaluate it within a number of steps.

Evaluation takes at most `STEP_LIMIT` steps. cel-go limits the cost of an evaluation instead, to a million units. A
unit can be as slow as a step here; expressions of drivers and users stay far below both limits.

Source: `interpreter/planner.go` of cel-go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from webhook.model.cel.cel_errors import CelError, CelSyntaxError, FatalCelError, UnmodeledExpressionError
from webhook.model.cel.cel_types import BOOL, BYTES, DOUBLE, INT, STRING, UINT, CelType
from webhook.model.cel.declarations import COMPARABLE, FUNCTIONS, QUANTITY, SEMVER, TYPE_NAMES, FunctionOverload
from webhook.model.cel.list_functions import LIST_OVERLOADS
from webhook.model.cel.operators import OPERATORS, SCALAR_OVERLOADS, Implementation, compile_pattern, no_overload
from webhook.model.cel.special_forms import (
    INDEX_OPERATORS,
    SPECIAL_FORMS,
    ConstantEvaluator,
    Evaluator,
    LoopParts,
    convert_argument,
    fold_range,
    is_in_values,
    is_possible_key,
    make_list,
    make_map,
    read_variable,
    select_element,
    test_field,
    test_membership,
    value_type,
)
from webhook.model.cel.steps import PATTERN_FUNCTIONS, STEP_CHARGES, STEP_LIMIT, Frame, pattern_weight
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
from webhook.model.cel.values import CelValue, QuantityValue, SemanticVersion, UnsignedInteger, matches_type

MAX_PATTERN_WEIGHT = 5_000
"""Size of all regular expressions of one text, repetitions multiplied out."""

_IMPLEMENTATIONS = {**SCALAR_OVERLOADS, **LIST_OVERLOADS}
_UNGUARDED = frozenset({"contains", "endsWith", "startsWith", "flatten"})
"""Functions whose implementations check the types of their arguments themselves."""

_CONVERSIONS = frozenset({"bool", "bytes", "double", "dyn", "int", "string", "type", "uint"})
"""Functions that are computed when the expression is compiled if their argument is a constant."""

_PARSERS = frozenset({"quantity", "semver"})
_READ_FOR_COST = frozenset(
    {"list_distinct", *(f"list_{one}_{name}" for one in COMPARABLE for name in ("sort", "sortByAssociatedKeys"))}
)
"""Overloads whose lists cel-go reads when it computes the cost of a call: an error in their place is a panic."""

_UNSET = object()
_DEVICE = 1


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
        UnmodeledExpressionError: Its regular expressions are too large.
    """
    planner = _ExpressionPlanner()
    evaluate = planner.plan(root)
    return CompiledExpression(evaluate, planner.slots)


class _ExpressionPlanner:
    def __init__(self) -> None:
        self.slots = 0
        self._scopes: list[dict[str, int]] = [{"device": _DEVICE}]
        self._pattern_weight = 0

    def plan(self, node: ExpressionNode) -> Evaluator:
        """Return a function that evaluates a part of the expression."""
        if isinstance(node, LiteralValue):
            return ConstantEvaluator(node.value)
        if isinstance(node, Identifier):
            return self._plan_identifier(node.name)
        if isinstance(node, FieldSelection):
            operand = self.plan(node.operand)
            return (
                test_field(operand, node.field)
                if node.test_only
                else select_element(operand, ConstantEvaluator(node.field))
            )
        if isinstance(node, ListLiteral):
            return make_list(list(map(self.plan, node.elements)), node.optional)
        if isinstance(node, MapLiteral):
            return make_map(list(map(self.plan, node.keys)), list(map(self.plan, node.values)), node.optional)
        if isinstance(node, FunctionCall):
            return self._plan_call(node)
        assert isinstance(node, Comprehension)
        return self._plan_comprehension(node)

    def _plan_identifier(self, name: str) -> Evaluator:
        for scope in reversed(self._scopes):
            if name in scope:
                return read_variable(scope[name])
        return ConstantEvaluator(TYPE_NAMES[name].parameters[0])

    def _plan_call(self, node: FunctionCall) -> Evaluator:
        parts = node.arguments if node.target is None else (node.target, *node.arguments)
        arguments = [self.plan(part) for part in parts]
        if len(node.overloads) == 1 and node.overloads[0] in _READ_FOR_COST:
            arguments = list(map(_fail_for_good, arguments))
        if node.function in INDEX_OPERATORS and not is_possible_key(arguments[1]):
            raise CelSyntaxError("invalid qualifier type", node.start)
        special = SPECIAL_FORMS.get(node.function)
        if special is not None:
            return special(*arguments)
        if node.function in PATTERN_FUNCTIONS:
            self._check_pattern(node, arguments[1])
        if node.function == "type":
            return convert_argument(arguments[0], value_type, node)
        if node.function == "@in" and node.overloads == ("in_list",):
            return test_membership(*arguments)
        call = _CallSite(node.function, _implementation(node.function, node.overloads), arguments)
        if node.function in _CONVERSIONS:
            return convert_argument(arguments[0], call.implementation, node)
        if node.function in _PARSERS and all(isinstance(argument, ConstantEvaluator) for argument in arguments):
            return call.evaluated_once()
        return call.evaluator()

    def _check_pattern(self, node: FunctionCall, pattern: Evaluator) -> None:
        """Compile a constant regular expression once, to see that it is one."""
        first = node.arguments[0]
        checked = [pattern.value] if isinstance(pattern, ConstantEvaluator) else []
        if node.function == "matches" and isinstance(first, LiteralValue):
            checked.append(first.value)
        for text in checked:
            if isinstance(text, str):
                self._pattern_weight += 20 + pattern_weight(text)
                if self._pattern_weight > MAX_PATTERN_WEIGHT:
                    raise UnmodeledExpressionError("its regular expressions are too large")
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
        loop = LoopParts(values, accumulator, first, second if node.second_variable else 0, condition, step)
        return fold_range(loop, initial, result, node.condition.nodes + node.step.nodes)

    def _new_slot(self) -> int:
        self.slots += 1
        return _DEVICE + self.slots


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
        charge = STEP_CHARGES.get(self.function)
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


def _fail_for_good(argument: Evaluator) -> Evaluator:
    """Return an evaluator whose errors no `&&` or `||` absorbs."""

    def evaluate(frame: Frame) -> Any:
        try:
            return argument(frame)
        except CelError as error:
            raise FatalCelError(f"internal error: the cost of an error cannot be computed: {error}") from None

    return evaluate


def _implementation(function: str, names: Sequence[str]) -> Implementation:
    if function == "@in":
        return lambda element, values: is_in_values([STEP_LIMIT], element, values)
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
"""The Python class of each type whose values have a class of their own."""


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
