"""JSON that is deeper than a decoder goes: what stands too deep is cut out, so that the rest can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T")

DEEPEST = 100
"""Levels that stay. What we read of an object is less than twenty deep; notes of who wrote which field are not."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_CUT = b'"(too deep)"'
"""In place of a list or a map: no field of those takes a text, so whatever needs it is not read as if it were empty."""


def decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """Read JSON of any depth.

    Raises:
        msgspec.MsgspecError: as the decoder does.
    """
    try:
        return decoder.decode(text)
    except RecursionError:
        return decoder.decode(shallow(text))


def shallow(text: bytes) -> bytes:
    """The same JSON with a text in place of each list and map that stands deeper than 100 levels."""
    return _CUT.join(_pieces(text))


def _pieces(text: bytes) -> Iterator[bytes]:
    """What stands between the parts that are too deep."""
    depth = start = 0
    for token in _TOKEN.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == DEEPEST + 1:
                yield text[start : token.start()]
        elif token[0] in (b"]", b"}"):
            if depth == DEEPEST + 1:
                start = token.end()
            depth -= 1
    yield text[start:]
