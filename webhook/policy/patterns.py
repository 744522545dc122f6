"""The patterns that a CEL expression matches with, as far as they are written in it.

CEL compiles a pattern when it meets it, so a broken one would fail on the first object. One that an object
brings can still fail then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cel_expr_python import cel

from webhook.policy import syntax

_matching = cel.NewEnv(variables={"pattern": cel.Type.STRING}).compile("''.matches(pattern)")


class Pattern(NamedTuple):
    """A pattern, and how many characters of the expression stand before it."""

    text: str
    offset: int


def patterns(serialized: bytes) -> list[Pattern]:
    """Every pattern that stands in a compiled expression as text, or as texts added together.

    Args:
        serialized: `cel.Expression.serialize()`.
    """
    return [
        Pattern(text, syntax.offset_of(argument, serialized))
        for argument in _arguments(syntax.root_of(serialized))
        if (text := _literal(argument)) is not None
    ]


def fault_of(pattern: str) -> str:
    """Why CEL's own engine refuses a pattern; "" where it takes it."""
    value = _matching.eval(data={"pattern": pattern})
    return str(value.plain_value()) if value.type() == cel.Type.ERROR else ""


def _arguments(expression: bytes) -> Iterator[bytes]:
    """What `text.matches(pattern)` and `matches(text, pattern)` below an expression take as their pattern."""
    call = syntax.only(expression, syntax.CALL)
    if call and _function(call) == "matches":
        yield [content for number, content in syntax.fields(call) if number == syntax.CALL_ARGUMENTS][-1]
    for child, _ in syntax.children(expression):
        yield from _arguments(child)


def _literal(expression: bytes) -> str | None:
    for kind, content in syntax.fields(expression):
        if kind == syntax.CONSTANT:
            return _text(content)
        if kind == syntax.CALL and _function(content) == "_+_":
            return _sum([_literal(part) for number, part in syntax.fields(content) if number == syntax.CALL_ARGUMENTS])
    return None


def _text(constant: bytes) -> str | None:
    return next((text.decode() for kind, text in syntax.fields(constant) if kind == syntax.STRING_CONSTANT), None)


def _sum(parts: list[str | None]) -> str | None:
    texts = [part for part in parts if part is not None]
    return "".join(texts) if len(texts) == len(parts) else None


def _function(call: bytes) -> str:
    return syntax.only(call, syntax.CALL_FUNCTION).decode()
