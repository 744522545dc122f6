"""Expand the macros of CEL: `has()`, loops over lists and maps, `cel.bind()`, and those of optional values.

Source: `parser/macro.go`, `ext/comprehensions.go`, `ext/bindings.go`, `ext/lists.go` and `cel/library.go` of cel-go.
"""

from __future__ import annotations

from collections.abc import Callable

from webhook.model.cel.cel_errors import CelSyntaxError
from webhook.model.cel.syntax_tree import (
    ACCUMULATOR,
    Comprehension,
    ExpressionNode,
    FieldSelection,
    FunctionCall,
    Identifier,
    ListLiteral,
    LiteralValue,
    MapLiteral,
)

_UNUSED = "#unused"
_SORT_INPUT = "@__sortBy_input__"
_OLD_ACCUMULATOR = "__result__"

Arguments = tuple[ExpressionNode, ...]
MacroExpander = Callable[[ExpressionNode, Arguments], ExpressionNode]


def expand_macro(name: str, target: ExpressionNode | None, arguments: Arguments, offset: int) -> ExpressionNode | None:
    """Return what a call stands for if it is a macro; None if it is a function.

    Args:
        name: Name of the function.
        target: What a member function is called on; None for other functions.
        arguments: Its arguments.
        offset: Offset of the name in the text.

    Raises:
        CelSyntaxError: The arguments are not those of the macro.
    """
    if target is None:
        return _presence_test(arguments[0], offset) if name == "has" and len(arguments) == 1 else None
    if name == "bind" and len(arguments) == 3:
        is_namespace = isinstance(target, Identifier) and target.name == "cel"
        return _bind(_variable_name(arguments[0]), arguments[1], arguments[2]) if is_namespace else None
    expand = _MACROS.get((name, len(arguments)))
    return None if expand is None else expand(target, arguments)


def _presence_test(argument: ExpressionNode, offset: int) -> ExpressionNode:
    if not isinstance(argument, FieldSelection) or argument.test_only:
        raise CelSyntaxError("invalid argument to has() macro", offset)
    return FieldSelection(argument.operand, argument.field, test_only=True)


def _bind(name: str, value: ExpressionNode, result: ExpressionNode) -> ExpressionNode:
    """Return a loop that runs never: its result reads a value by name."""
    return Comprehension(ListLiteral(), (_UNUSED, ""), name, value, LiteralValue(False), Identifier(name), result)


def _variable_name(argument: ExpressionNode) -> str:
    if not isinstance(argument, Identifier):
        raise CelSyntaxError("argument must be a simple name", argument.start)
    return argument.name


def _loop_variables(arguments: Arguments) -> tuple[str, str]:
    """Return the names of one or two variables of a loop, "" for none."""
    names = [_variable_name(argument) for argument in arguments]
    if len(set(names)) < len(names):
        raise CelSyntaxError(f"duplicate variable name: {names[0]}", arguments[1].start)
    if not {ACCUMULATOR, _OLD_ACCUMULATOR}.isdisjoint(names):
        raise CelSyntaxError("iteration variable overwrites accumulator variable", arguments[0].start)
    return names[0], names[1] if len(names) > 1 else ""


def _accumulator() -> Identifier:
    return Identifier(ACCUMULATOR)


def _make_loop(
    target: ExpressionNode,
    variables: Arguments,
    initial: ExpressionNode,
    step: ExpressionNode,
    condition: ExpressionNode | None = None,
    result: ExpressionNode | None = None,
) -> ExpressionNode:
    return Comprehension(
        target,
        _loop_variables(variables),
        ACCUMULATOR,
        initial,
        condition or LiteralValue(True),
        step,
        result or _accumulator(),
    )


def _all(variables: int) -> MacroExpander:
    def expand(target: ExpressionNode, arguments: Arguments) -> ExpressionNode:
        condition = FunctionCall("@not_strictly_false", _accumulator())
        step = FunctionCall("_&&_", _accumulator(), arguments[variables])
        return _make_loop(target, arguments[:variables], LiteralValue(True), step, condition)

    return expand


def _exists(variables: int) -> MacroExpander:
    def expand(target: ExpressionNode, arguments: Arguments) -> ExpressionNode:
        condition = FunctionCall("@not_strictly_false", FunctionCall("!_", _accumulator()))
        step = FunctionCall("_||_", _accumulator(), arguments[variables])
        return _make_loop(target, arguments[:variables], LiteralValue(False), step, condition)

    return expand


def _exists_one(variables: int) -> MacroExpander:
    def expand(target: ExpressionNode, arguments: Arguments) -> ExpressionNode:
        more = FunctionCall("_+_", _accumulator(), LiteralValue(1))
        step = FunctionCall("_?_:_", arguments[variables], more, _accumulator())
        result = FunctionCall("_==_", _accumulator(), LiteralValue(1))
        return _make_loop(target, arguments[:variables], LiteralValue(0), step, result=result)

    return expand


def _transform(
    variables: int, initial: Callable[[], ExpressionNode], add: Callable[[Arguments, ExpressionNode], ExpressionNode]
) -> MacroExpander:
    """Return a macro that adds the last argument to a list or map, where the argument before it, if any, is true."""

    def expand(target: ExpressionNode, arguments: Arguments) -> ExpressionNode:
        step = add(arguments, arguments[-1])
        if len(arguments) == variables + 2:
            step = FunctionCall("_?_:_", arguments[variables], step, _accumulator())
        return _make_loop(target, arguments[:variables], initial(), step)

    return expand


def _append(_: Arguments, element: ExpressionNode) -> ExpressionNode:
    return FunctionCall("_+_", _accumulator(), ListLiteral((element,)))


def _insert_value(arguments: Arguments, value: ExpressionNode) -> ExpressionNode:
    return FunctionCall("cel.@mapInsert", _accumulator(), Identifier(_variable_name(arguments[0])), value)


def _insert_entries(_: Arguments, entries: ExpressionNode) -> ExpressionNode:
    return FunctionCall("cel.@mapInsert", _accumulator(), entries)


def _filter(target: ExpressionNode, arguments: Arguments) -> ExpressionNode:
    variable, condition = arguments
    step = FunctionCall("_?_:_", condition, _append(arguments, variable), _accumulator())
    return _make_loop(target, (variable,), ListLiteral(), step)


def _map_optional(*, wraps: bool) -> MacroExpander:
    def expand(target: ExpressionNode, arguments: Arguments) -> ExpressionNode:
        variable, transform = arguments
        value = FunctionCall("value", target=target)
        mapped = _bind(_variable_name(variable), value, transform)
        if wraps:
            mapped = FunctionCall("optional.of", mapped)
        return FunctionCall("_?_:_", FunctionCall("hasValue", target=target), mapped, FunctionCall("optional.none"))

    return expand


def _sort_by(target: ExpressionNode, arguments: Arguments) -> ExpressionNode:
    if isinstance(target, (LiteralValue, MapLiteral)):
        raise CelSyntaxError("sortBy can only be applied to a list", target.start)
    keys = _MACROS["map", 2](Identifier(_SORT_INPUT), arguments)
    sort = FunctionCall("@sortByAssociatedKeys", keys, target=Identifier(_SORT_INPUT))
    return _bind(_SORT_INPUT, target, sort)


_MACROS: dict[tuple[str, int], MacroExpander] = {
    ("all", 2): _all(1),
    ("all", 3): _all(2),
    ("exists", 2): _exists(1),
    ("exists", 3): _exists(2),
    ("exists_one", 2): _exists_one(1),
    ("exists_one", 3): _exists_one(2),
    ("existsOne", 3): _exists_one(2),
    ("filter", 2): _filter,
    ("map", 2): _transform(1, ListLiteral, _append),
    ("map", 3): _transform(1, ListLiteral, _append),
    ("transformList", 3): _transform(2, ListLiteral, _append),
    ("transformList", 4): _transform(2, ListLiteral, _append),
    ("transformMap", 3): _transform(2, MapLiteral, _insert_value),
    ("transformMap", 4): _transform(2, MapLiteral, _insert_value),
    ("transformMapEntry", 3): _transform(2, MapLiteral, _insert_entries),
    ("transformMapEntry", 4): _transform(2, MapLiteral, _insert_entries),
    ("optMap", 2): _map_optional(wraps=True),
    ("optFlatMap", 2): _map_optional(wraps=False),
    ("sortBy", 2): _sort_by,
}
