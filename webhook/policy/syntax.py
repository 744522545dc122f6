"""CEL's checked syntax tree, read from the form in which CEL itself writes it.

That form is `cel.expr.CheckedExpr` in protobuf's wire format. Field numbers: `cel/expr/checked.proto` and
`cel/expr/syntax.proto` of google/cel-spec.
"""

from __future__ import annotations

from collections.abc import Iterator

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
