"""Which members of its variables a CEL expression reads, from its checked syntax tree.

Evaluating an expression converts everything that is bound, 50 µs for a pod of usual size; binding only
what is read costs a fifth. The tree is CEL's own (`cel.expr.CheckedExpr`, protobuf wire format), so nothing
is guessed from text. What is not a plain chain of members is taken as reading the whole variable.

Field numbers: `cel/expr/checked.proto` and `cel/expr/syntax.proto` of google/cel-spec.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

Member = tuple[str, ...]
"""A variable and the members read from it, for example ("object", "metadata", "annotations")."""

_ANY_VALUE, _CHECKED_EXPR = 2, 4
_IDENT, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 4, 5, 6, 7, 8, 9
_EXPRESSIONS = {_SELECT: (1,), _CALL: (1, 3), _LIST: (1,), _COMPREHENSION: (2, 4, 5, 6, 7)}
"""The fields of each kind of expression that hold expressions."""

_LOOP_BODY = (5, 6)
_ENTRIES, _ENTRY_EXPRESSIONS = 2, (3, 4)


class Reading(NamedTuple):
    """What an expression reads, and how deep its loops nest."""

    members: frozenset[Member]
    loops: int


def reading(serialized: bytes) -> Reading:
    """What a compiled expression reads.

    Args:
        serialized: `cel.Expression.serialize()`: a CheckedExpr inside an Any.
    """
    checked = _only(serialized, _ANY_VALUE)
    found: set[Member] = set()
    loops = _walk(_only(checked, _CHECKED_EXPR), found)
    return Reading(frozenset(found), loops)


def _walk(expression: bytes, found: set[Member]) -> int:
    """Collect members below one expression; the answer is how deep loops nest."""
    chain = _chain(expression)
    if chain is not None:
        found.add(chain)
        return 0
    deepest = 0
    for kind, content in _fields(expression):
        for child, repeats in _children(kind, content):
            deepest = max(deepest, _walk(child, found) + repeats)
    return deepest


def _chain(expression: bytes) -> Member | None:
    """The members of `a.b.c` or `has(a.b.c)`; None for any other expression."""
    steps: list[str] = []
    while True:
        number, content = next(((n, c) for n, c in _fields(expression) if n in (_IDENT, _SELECT)), (0, b""))
        if number == _IDENT:
            steps.append(_only(content, 1).decode())
            return tuple(reversed(steps))
        if number != _SELECT:
            return None
        steps.append(_only(content, 2).decode())
        expression = _only(content, 1)


def _children(kind: int, content: bytes) -> Iterator[tuple[bytes, bool]]:
    """The expressions right below an expression of one kind, and whether each runs once a round of a loop."""
    for number, inner in _fields(content):
        if kind == _STRUCT and number == _ENTRIES:
            yield from ((entry, False) for key, entry in _fields(inner) if key in _ENTRY_EXPRESSIONS)
        elif number in _EXPRESSIONS.get(kind, ()):
            yield inner, kind == _COMPREHENSION and number in _LOOP_BODY


def _only(message: bytes, wanted: int) -> bytes:
    return next((content for number, content in _fields(message) if number == wanted), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a protobuf message: (number, content)."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == 2:
            length, position = _varint(message, position)
            yield number, message[position : position + length]
            position += length
        elif wire == 0:
            _, position = _varint(message, position)
        else:
            position += 8 if wire == 1 else 4


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
