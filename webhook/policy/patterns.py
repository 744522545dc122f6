"""The patterns that a CEL expression matches with, as far as they are written in it.

CEL compiles a pattern when it meets it, so a broken one would fail on the first object. One that an object
brings can still fail then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cel_expr_python import cel

from webhook.policy import syntax

_MATCHES_EXPRESSION = cel.NewEnv(variables={"pattern": cel.Type.STRING}).compile("''.matches(pattern)")


class RegexPattern(NamedTuple):
    """A pattern, and how many characters of the expression stand before it."""

    text: str
    offset: int


def find_patterns(serialized: bytes) -> list[RegexPattern]:
    """Every pattern that stands in a compiled expression as text, or as texts added together.

    Args:
        serialized: `cel.Expression.serialize()`.
    """
    return [
        RegexPattern(text, syntax.source_offset(argument, serialized))
        for argument in _pattern_arguments(syntax.root_expression(serialized))
        if (text := _literal_text(argument)) is not None
    ]


def pattern_error(pattern: str) -> str:
    """Why CEL's own engine refuses a pattern; "" where it takes it."""
    value = _MATCHES_EXPRESSION.eval(data={"pattern": pattern})
    return str(value.plain_value()) if value.type() == cel.Type.ERROR else ""


def _pattern_arguments(expression: bytes) -> Iterator[bytes]:
    """What `text.matches(pattern)` and `matches(text, pattern)` below an expression take as their pattern."""
    call = syntax.first_field(expression, syntax.CALL)
    if call and _function_name(call) == "matches":
        yield [content for number, content in syntax.wire_fields(call) if number == syntax.CALL_ARGUMENTS][-1]
    for child, _ in syntax.child_expressions(expression):
        yield from _pattern_arguments(child)


def _literal_text(expression: bytes) -> str | None:
    for kind, content in syntax.wire_fields(expression):
        if kind == syntax.CONSTANT:
            return _string_constant(content)
        if kind == syntax.CALL and _function_name(content) == "_+_":
            return _concatenate([_literal_text(part) for number, part in syntax.wire_fields(content) if number == syntax.CALL_ARGUMENTS])
    return None


def _string_constant(constant: bytes) -> str | None:
    return next((text.decode() for kind, text in syntax.wire_fields(constant) if kind == syntax.STRING_CONSTANT), None)


def _concatenate(parts: list[str | None]) -> str | None:
    texts = [part for part in parts if part is not None]
    return "".join(texts) if len(texts) == len(parts) else None


def _function_name(call: bytes) -> str:
    return syntax.first_field(call, syntax.CALL_FUNCTION).decode()
