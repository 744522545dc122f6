"""The syntax tree of an expression, and what the checker notes on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from webhook.model.cel.cel_types import DYN, CelType
from webhook.model.cel.values import CelValue

ACCUMULATOR = "@result"
"""The variable in which a loop of a macro keeps its result; no text can name it."""


class ExpressionNode:
    """A part of an expression.

    Attributes:
        start: Offset of its first character in the text.
        end: Offset behind its last character.
        nodes: Number of parts, itself included, each counted as often as it is evaluated.
        depth: Nested parts of those kinds that cel-go counts.
        type: Static type, once checked.
    """

    __slots__ = ("depth", "end", "nodes", "start", "type")

    def __init__(self, *children: ExpressionNode, start: int = 0, end: int = 0, nests: bool = False) -> None:
        self.start: int = start or (children[0].start if children else 0)
        self.end: int = end or (children[-1].end if children else 0)
        self.nodes: int = 1 + sum(child.nodes for child in children)
        self.depth: int = max((child.depth for child in children), default=0) + nests
        self.type: CelType = DYN

    def children(self) -> Iterator[ExpressionNode]:
        """Yield the direct parts."""
        yield from ()


class LiteralValue(ExpressionNode):
    """A constant of the text."""

    __slots__ = ("value",)

    def __init__(self, value: CelValue, *, start: int = 0, end: int = 0) -> None:
        super().__init__(start=start, end=end)
        self.value = value


class Identifier(ExpressionNode):
    """A variable or type name."""

    __slots__ = ("name",)

    def __init__(self, name: str, *, start: int = 0, end: int = 0) -> None:
        super().__init__(start=start, end=end)
        self.name = name


class FieldSelection(ExpressionNode):
    """`operand.field`, or with `test_only`, `has(operand.field)`."""

    __slots__ = ("field", "operand", "test_only")

    def __init__(self, operand: ExpressionNode, field: str, *, test_only: bool = False) -> None:
        super().__init__(operand, nests=True)
        self.operand = operand
        self.field = field
        self.test_only = test_only

    def children(self) -> Iterator[ExpressionNode]:
        yield self.operand


class FunctionCall(ExpressionNode):
    """A call of a function, operator or, with a target, of a member function.

    Attributes:
        overloads: Names of the overloads that may apply, once checked.
    """

    __slots__ = ("arguments", "function", "overloads", "target")

    def __init__(
        self, function: str, *arguments: ExpressionNode, target: ExpressionNode | None = None, nests: bool = False
    ) -> None:
        parts = (target, *arguments) if target is not None else arguments
        super().__init__(*parts, nests=nests)
        self.function = function
        self.arguments = arguments
        self.target = target
        self.overloads: tuple[str, ...] = ()

    def children(self) -> Iterator[ExpressionNode]:
        if self.target is not None:
            yield self.target
        yield from self.arguments


class ListLiteral(ExpressionNode):
    """`[a, ?b]`: elements, and the indexes of optional ones."""

    __slots__ = ("elements", "optional")

    def __init__(self, elements: tuple[ExpressionNode, ...] = (), optional: frozenset[int] = frozenset()) -> None:
        super().__init__(*elements)
        self.elements = elements
        self.optional = optional

    def children(self) -> Iterator[ExpressionNode]:
        yield from self.elements


class MapLiteral(ExpressionNode):
    """`{key: value, ?key: value}`: keys, values, and the indexes of optional entries."""

    __slots__ = ("keys", "optional", "values")

    def __init__(
        self,
        keys: tuple[ExpressionNode, ...] = (),
        values: tuple[ExpressionNode, ...] = (),
        optional: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(*keys, *values)
        self.keys = keys
        self.values = values
        self.optional = optional

    def children(self) -> Iterator[ExpressionNode]:
        for key, value in zip(self.keys, self.values, strict=True):
            yield key
            yield value


class Comprehension(ExpressionNode):
    """A loop of a macro: fold a step over a range, while a condition holds, into a result."""

    __slots__ = (
        "accumulator",
        "condition",
        "initial",
        "iteration_range",
        "result",
        "second_variable",
        "step",
        "variable",
    )

    def __init__(
        self,
        iteration_range: ExpressionNode,
        variables: tuple[str, str],
        accumulator: str,
        initial: ExpressionNode,
        condition: ExpressionNode,
        step: ExpressionNode,
        result: ExpressionNode,
    ) -> None:
        super().__init__(iteration_range, initial, condition, step, result)
        self.iteration_range = iteration_range
        self.variable, self.second_variable = variables
        self.accumulator = accumulator
        self.initial = initial
        self.condition = condition
        self.step = step
        self.result = result

    def children(self) -> Iterator[ExpressionNode]:
        yield from (self.iteration_range, self.initial, self.condition, self.step, self.result)

    @property
    def is_binding(self) -> bool:
        """True if it never runs and only gives a value a name, as `cel.bind` does."""
        return (
            isinstance(self.iteration_range, ListLiteral)
            and not self.iteration_range.elements
            and isinstance(self.condition, LiteralValue)
            and self.condition.value is False
            and self.accumulator != "__result__"
        )


class BoundValue(NamedTuple):
    """A value to which `cel.bind` gives a name, and the names that it may read itself."""

    node: ExpressionNode
    names: BoundNames


BoundNames = Mapping[str, BoundValue]
"""The values of the names that a part of an expression may read."""

NO_NAMES: BoundNames = MappingProxyType({})


def walk_expression(node: ExpressionNode) -> Iterator[ExpressionNode]:
    """Yield a part of an expression and all parts below it."""
    yield node
    for child in node.children():
        yield from walk_expression(child)


def walk_with_names(node: ExpressionNode, names: BoundNames = NO_NAMES) -> Iterator[tuple[ExpressionNode, BoundNames]]:
    """Yield a part of an expression and all parts below it, each with the names that it may read."""
    yield node, names
    inner = names
    if isinstance(node, Comprehension):
        inner = names_in_body(node, names)
    for child in node.children():
        is_outside = isinstance(node, Comprehension) and child in (node.iteration_range, node.initial)
        yield from walk_with_names(child, names if is_outside else inner)


def names_in_body(loop: Comprehension, names: BoundNames) -> BoundNames:
    """Return the names that the body of a loop or of `cel.bind` may read."""
    if loop.is_binding:
        return {**names, loop.accumulator: BoundValue(loop.initial, names)}
    own = (loop.variable, loop.second_variable, loop.accumulator)
    return {name: value for name, value in names.items() if name not in own}


def resolve_name(node: ExpressionNode, names: BoundNames) -> tuple[ExpressionNode, BoundNames]:
    """Return the value of a name that `cel.bind` gave, and the names that it may read; any other part as it is."""
    while isinstance(node, Identifier) and node.name in names:
        node, names = names[node.name]
    return node, names


def qualified_name(node: ExpressionNode) -> str | None:
    """Return `a.b.c` if the expression is a chain of names; None for any other."""
    names: list[str] = []
    while isinstance(node, FieldSelection) and not node.test_only:
        names.append(node.field)
        node = node.operand
    if not isinstance(node, Identifier):
        return None
    return ".".join([node.name, *reversed(names)])
