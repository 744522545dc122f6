"""Bytes to text that a YAML parser can take: UTF-8, no control characters, within bounds."""

from __future__ import annotations

import re
from typing import NamedTuple

from webhook.errors import DocumentError, SourceLocation

MIB = 1 << 20


class SizeBounds(NamedTuple):
    """The most of everything.

    Attributes:
        size: Bytes of UTF-8.
        values: Maps, lists and scalars.
        depth: Maps and lists inside one another.
        expansion: Values that aliases stand for.
    """

    size: int
    values: int
    depth: int
    expansion: int


POLICY_BOUNDS = SizeBounds(size=1 * MIB, values=10_000, depth=100, expansion=0)
"""A policy is written by hand; ten thousand fields in one file are a mistake or an attack."""

MANIFEST_BOUNDS = SizeBounds(size=64 * MIB, values=8_000_000, depth=100, expansion=100_000)
"""A snapshot of some thousand pods. Kubernetes objects are about 20 deep, custom ones rarely 40."""


BOM = "\ufeff"
_BOM_AT_START = re.compile(rf"(?m)^(---[ \t]*(?:#.*)?\r?\n){BOM}")
"""A document that begins with a byte order mark, as in files that were put together of several."""
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
"""What YAML 1.2 does not let into a file (section 5.1), and lone surrogates."""


def find_invalid_character(text: str, file: str, start: int = 0, end: int | None = None) -> DocumentError | None:
    """The first character of a stretch that no text has."""
    odd = _NOT_TEXT.search(text, start, len(text) if end is None else end)
    if odd is None:
        return None
    name = f"U+{ord(odd.group()):04X}"
    sentence = f"must be text, found the character {name}. Remove it, or write it as an escape in double quotes"
    return DocumentError(location_at(text, odd.start(), file), sentence)


def decode_text(content: str | bytes, file: str, bounds: SizeBounds) -> str:
    """Decode a file's content. A UTF-8 byte order mark before a document, which Windows editors write, is dropped.

    Raises:
        DocumentError: too large, or not UTF-8.
    """
    if len(content) > bounds.size:
        raise DocumentError(SourceLocation(file), _size_message(bounds))
    text = content if isinstance(content, str) else _decode_utf8(content, file)
    return _BOM_AT_START.sub(r"\1", text).removeprefix(BOM) if BOM in text else text


def _decode_utf8(content: bytes, file: str) -> str:
    if content.startswith(_UTF16_BOMS) or content[:4].count(0) > 1:
        raise DocumentError(SourceLocation(file, 1, 1), "must be UTF-8, found UTF-16. Save the file as UTF-8")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        raise DocumentError(
            location_at(before, len(before), file),
            f"must be UTF-8, found the byte 0x{content[error.start]:02x}. Save the file as UTF-8",
        ) from None


def _size_message(bounds: SizeBounds) -> str:
    """How much more is not told: who reads files stops just beyond the bound."""
    most = f"{bounds.size // MIB} MiB"
    return f"must be at most {most}, found more than {most}. Split the file, or give the one that was meant"


def location_at(text: str, offset: int, file: str) -> SourceLocation:
    """The place of a character, by its offset."""
    line_start = text.rfind("\n", 0, offset) + 1
    return SourceLocation(file, text.count("\n", 0, offset) + 1, offset - line_start + 1)
