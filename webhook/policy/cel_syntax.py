"""CEL's checked syntax tree, read from the form in which CEL itself writes it.

That form is `cel.expr.CheckedExpr` in protobuf's wire format. Field numbers: `cel/expr/checked.proto` and
`cel/expr/syntax.proto` of google/cel-spec.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cel_expr_python import cel

FieldPath = tuple[str, ...]
"""A variable and the members read from it, for example ("object", "metadata", "annotations")."""


class ExpressionReads(NamedTuple):
    """What an expression reads, how deep its loops nest, and the variables that they make."""

    fields: frozenset[FieldPath]
    loop_depth: int
    loop_variables: frozenset[str]


_MATCHES_EXPRESSION = cel.NewEnv(variables={"pattern": cel.Type.STRING}).compile("''.matches(pattern)")


class RegexPattern(NamedTuple):
    """A pattern, and how many characters of the expression stand before it."""

    text: str
    offset: int


IDENT, SELECT, CALL, LIST, STRUCT, COMPREHENSION = 4, 5, 6, 7, 8, 9
"""Kinds of expression, as numbers of the field that holds it."""

CONSTANT, STRING_CONSTANT = 3, 6
CALL_TARGET, CALL_FUNCTION, CALL_ARGUMENTS = 1, 2, 3

_EXPRESSIONS = {SELECT: (1,), CALL: (CALL_TARGET, CALL_ARGUMENTS), LIST: (1,), COMPREHENSION: (2, 4, 5, 6, 7)}
"""The fields of each kind of expression that hold expressions."""

_LOOP_BODY, _LOOP_VARIABLES = (5, 6), (1, 8)
_ENTRIES, _ENTRY_EXPRESSIONS = 2, (3, 4)
_ANY_VALUE, _CHECKED_EXPR, _SOURCE_INFO = 2, 4, 5
_POSITIONS, _ID = 4, 2


def root_expression(serialized: bytes) -> bytes:
    """The outermost expression.

    Args:
        serialized: `cel.Expression.serialize()`: a CheckedExpr inside an Any.
    """
    return first_field(first_field(serialized, _ANY_VALUE), _CHECKED_EXPR)


def source_offset(expression: bytes, serialized: bytes) -> int:
    """How many characters of the source stand before an expression; before an operator, for those that have one."""
    wanted = _integer_field(expression, _ID)
    info = first_field(first_field(serialized, _ANY_VALUE), _SOURCE_INFO)
    entries = (content for number, content in wire_fields(info) if number == _POSITIONS)
    return next((_integer_field(entry, 2) for entry in entries if _integer_field(entry, 1) == wanted), 0)


def child_expressions(expression: bytes) -> Iterator[tuple[bytes, bool]]:
    """The expressions right below an expression, and whether each runs once a round of a loop."""
    for kind, content in wire_fields(expression):
        for number, inner in wire_fields(content):
            if kind == STRUCT and number == _ENTRIES:
                yield from ((entry, False) for key, entry in wire_fields(inner) if key in _ENTRY_EXPRESSIONS)
            elif number in _EXPRESSIONS.get(kind, ()):
                yield inner, kind == COMPREHENSION and number in _LOOP_BODY


def comprehension_variables(expression: bytes) -> set[str]:
    """The names that a loop gives to what it goes through; none for any other expression."""
    loop = first_field(expression, COMPREHENSION)
    return {content.decode() for number, content in wire_fields(loop) if number in _LOOP_VARIABLES}


def first_field(message: bytes, wanted: int) -> bytes:
    """The one field of a number; nothing where it is not there."""
    return next((content for number, content in wire_fields(message) if number == wanted), b"")


def wire_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a protobuf message: (number, content)."""
    return ((number, content) for number, content in _decode_wire_fields(message) if isinstance(content, bytes))


def _integer_field(message: bytes, wanted: int) -> int:
    found = (content for number, content in _decode_wire_fields(message) if number == wanted)
    return next((content for content in found if isinstance(content, int)), 0)


def _decode_wire_fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    position = 0
    while position < len(message):
        key, position = _decode_varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == 2:
            length, position = _decode_varint(message, position)
            yield number, message[position : position + length]
            position += length
        elif wire == 0:
            value, position = _decode_varint(message, position)
            yield number, value
        else:
            position += 8 if wire == 1 else 4


def _decode_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def find_fields_read(serialized: bytes) -> ExpressionReads:
    """What a compiled expression reads.

    Args:
        serialized: `cel.Expression.serialize()`.
    """
    found: set[FieldPath] = set()
    made: set[str] = set()
    loops = _collect_fields(root_expression(serialized), found, made)
    return ExpressionReads(frozenset(found), loops, frozenset(made))


def _collect_fields(expression: bytes, found: set[FieldPath], made: set[str]) -> int:
    """Collect members below one expression; the answer is how deep loops nest."""
    chain = _field_chain(expression)
    if chain is not None:
        found.add(chain)
        return 0
    made |= comprehension_variables(expression)
    return max(
        (_collect_fields(child, found, made) + repeats for child, repeats in child_expressions(expression)), default=0
    )


def _field_chain(expression: bytes) -> FieldPath | None:
    """The members of `a.b.c` or `has(a.b.c)`; None for any other expression."""
    steps: list[str] = []
    while True:
        kinds = ((n, c) for n, c in wire_fields(expression) if n in (IDENT, SELECT))
        number, content = next(kinds, (0, b""))
        if number == IDENT:
            steps.append(first_field(content, 1).decode())
            return tuple(reversed(steps))
        if number != SELECT:
            return None
        steps.append(first_field(content, 2).decode())
        expression = first_field(content, 1)


def find_patterns(serialized: bytes) -> list[RegexPattern]:
    """Every pattern that stands in a compiled expression as text, or as texts added together.

    Args:
        serialized: `cel.Expression.serialize()`.
    """
    return [
        RegexPattern(text, source_offset(argument, serialized))
        for argument in _pattern_arguments(root_expression(serialized))
        if (text := _literal_text(argument)) is not None
    ]


def pattern_error(pattern: str) -> str:
    """Why CEL's own engine refuses a pattern; "" where it takes it."""
    value = _MATCHES_EXPRESSION.eval(data={"pattern": pattern})
    return str(value.plain_value()) if value.type() == cel.Type.ERROR else ""


def _pattern_arguments(expression: bytes) -> Iterator[bytes]:
    """What `text.matches(pattern)` and `matches(text, pattern)` below an expression take as their pattern."""
    call = first_field(expression, CALL)
    if call and _function_name(call) == "matches":
        yield [content for number, content in wire_fields(call) if number == CALL_ARGUMENTS][-1]
    for child, _ in child_expressions(expression):
        yield from _pattern_arguments(child)


def _literal_text(expression: bytes) -> str | None:
    for kind, content in wire_fields(expression):
        if kind == CONSTANT:
            return _string_constant(content)
        if kind == CALL and _function_name(content) == "_+_":
            return _concatenate(
                [_literal_text(part) for number, part in wire_fields(content) if number == CALL_ARGUMENTS]
            )
    return None


def _string_constant(constant: bytes) -> str | None:
    return next((text.decode() for kind, text in wire_fields(constant) if kind == STRING_CONSTANT), None)


def _concatenate(parts: list[str | None]) -> str | None:
    texts = [part for part in parts if part is not None]
    return "".join(texts) if len(texts) == len(parts) else None


def _function_name(call: bytes) -> str:
    return first_field(call, CALL_FUNCTION).decode()
