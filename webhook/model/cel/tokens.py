"""Split the text of an expression into tokens.

Source: `parser/gen/CEL.g4` and `parser/unescape.go` of cel-go.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from webhook.model.cel.cel_errors import CelSyntaxError, UnmodeledExpressionError
from webhook.model.cel.values import CelValue, UnsignedInteger


class Token(NamedTuple):
    """A token: "int", "uint", "double", "string", "bytes", "name", "escaped", "end", or itself if it is a symbol."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """Return the offset behind the token."""
        return self.start + len(self.text)


_ESCAPE = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_QUOTED = (
    rf'"""(?:{_ESCAPE}|[^\\])*?"""|\'\'\'(?:{_ESCAPE}|[^\\])*?\'\'\''
    rf'|"(?:{_ESCAPE}|[^\\"\n\r])*"|\'(?:{_ESCAPE}|[^\\\'\n\r])*\''
    r"|[rR](?:\"\"\".*?\"\"\"|'''.*?'''|\"[^\"\n\r]*\"|'[^'\n\r]*')"
)
_TOKEN = re.compile(
    rf"""
    (?P<space>(?:[\t\ \r\n\f]+|//[^\n]*)+)
    |(?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<uint>0x[0-9a-fA-F]+[uU]|[0-9]+[uU])
    |(?P<int>0x[0-9a-fA-F]+|[0-9]+)
    |(?P<bytes>[bB](?:{_QUOTED}))
    |(?P<string>{_QUOTED})
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<escaped>`[A-Za-z0-9_.\-/\ ]+`)
    |(?P<symbol>==|!=|<=|>=|&&|\|\||[<>\[\]{{}}().,\-!?:+*/%])
    """,
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset({"in", "true", "false", "null"})

MAX_TOKENS = 3000
"""Tokens of an expression that is evaluated here."""

MAX_INT64 = (1 << 63) - 1
MIN_INT64 = -(1 << 63)
MAX_UINT64 = (1 << 64) - 1


def tokenize_expression(text: str) -> list[Token]:
    """Return the tokens of an expression, and one of kind "end" behind them.

    Raises:
        CelSyntaxError: A character starts no token.
        UnmodeledExpressionError: It is too long to be evaluated here.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CelSyntaxError(f"unexpected character {text[position]!r}", position)
        kind = str(match.lastgroup)
        if kind != "space":
            content = match.group()
            is_symbol = kind == "symbol" or content in _KEYWORDS
            tokens.append(Token(content if is_symbol else kind, content, position))
            if len(tokens) > MAX_TOKENS:
                raise UnmodeledExpressionError(f"it has more than {MAX_TOKENS} tokens")
        position = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


def literal_value(token: Token, *, negative: bool = False) -> CelValue:
    """Return the value of a literal.

    Raises:
        CelSyntaxError: It is too large, or an escape sequence is not a character.
    """
    if token.kind in ("int", "uint"):
        return _integer_value(token, negative=negative)
    if token.kind == "double":
        value = float(token.text)
        if value == float("inf"):
            raise CelSyntaxError("invalid double literal", token.start)
        return -value if negative else value
    if token.kind == "bytes":
        return _unquote_bytes(token.text[1:])
    return _unquote_string(token)


def _integer_value(token: Token, *, negative: bool) -> int:
    digits = token.text.rstrip("uU") if token.kind == "uint" else token.text
    value = int(digits[2:], 16) if digits.startswith("0x") else int(digits) if len(digits) <= 40 else MAX_UINT64 + 1
    value = -value if negative else value
    if token.kind == "uint":
        if value > MAX_UINT64:
            raise CelSyntaxError("invalid uint literal", token.start)
        return UnsignedInteger(value)
    if not MIN_INT64 <= value <= MAX_INT64:
        raise CelSyntaxError("invalid int literal", token.start)
    return value


_ESCAPED = re.compile(_ESCAPE)
_SIMPLE_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unquote_string(token: Token) -> str:
    content, is_raw = _strip_quotes(token.text)
    if is_raw:
        return content

    def decode(match: re.Match[str]) -> str:
        code = _escape_code(match.group())
        if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            raise CelSyntaxError("invalid unicode code point", token.start)
        return chr(code)

    return _ESCAPED.sub(decode, content)


def _unquote_bytes(text: str) -> bytes:
    content, is_raw = _strip_quotes(text)
    if is_raw:
        return content.encode()
    parts: list[bytes] = []
    position = 0
    for match in _ESCAPED.finditer(content):
        if match.group()[1] in "uU":
            raise CelSyntaxError("unable to unescape string", 0)
        parts += [content[position : match.start()].encode(), bytes([_escape_code(match.group()) & 0xFF])]
        position = match.end()
    return b"".join([*parts, content[position:].encode()])


def _strip_quotes(text: str) -> tuple[str, bool]:
    """Return what is between the quotes, with newlines normalized, and whether backslashes stand for themselves."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    is_raw = text[0] in "rR"
    quoted = text[1:] if is_raw else text
    width = 3 if len(quoted) >= 6 and quoted[:3] in ('"""', "'''") else 1
    return quoted[width:-width], is_raw


def _escape_code(escape: str) -> int:
    letter = escape[1]
    if letter in "xXuU":
        return int(escape[2:], 16)
    if letter in "0123":
        return int(escape[1:], 8)
    return ord(_SIMPLE_ESCAPES.get(letter, letter))
