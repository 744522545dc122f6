"""JSON that is deeper than a decoder goes: what stands too deep is cut out, so that the rest can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T")

MAX_DEPTH = 100
"""Levels that stay. What we read of an object is less than twenty deep; notes of who wrote which field are not."""

_JSON_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_TOO_DEEP = b'"(too deep)"'
"""In place of a list or a map: no field of those takes a text, so whatever needs it is not read as if it were empty."""


def decode_any_depth(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """Read JSON of any depth.

    Raises:
        msgspec.MsgspecError: as the decoder does.
    """
    try:
        return decoder.decode(text)
    except RecursionError:
        return decoder.decode(replace_deep_values(text))


def replace_deep_values(text: bytes) -> bytes:
    """The same JSON with a text in place of each list and map that stands deeper than 100 levels."""
    return _TOO_DEEP.join(_shallow_parts(text))


def _shallow_parts(text: bytes) -> Iterator[bytes]:
    """What stands between the parts that are too deep."""
    depth = start = 0
    for token in _JSON_TOKEN.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == MAX_DEPTH + 1:
                yield text[start : token.start()]
        elif token[0] in (b"]", b"}"):
            if depth == MAX_DEPTH + 1:
                start = token.end()
            depth -= 1
    yield text[start:]
