"""Decode a file to text that a YAML parser accepts: UTF-8, no control characters, within size bounds."""

from __future__ import annotations

import re
from typing import NamedTuple

from webhook.errors import DocumentError, SourceLocation

MIB = 1 << 20


class SizeBounds(NamedTuple):
    """Maximum size of a file, so that no text takes long to parse.

    Attributes:
        size: Bytes of UTF-8.
        values: Maps, lists and scalars.
        depth: Nested maps and lists.
        expansion: Values that aliases expand to.
    """

    size: int
    values: int
    depth: int
    expansion: int


POLICY_BOUNDS = SizeBounds(size=1 * MIB, values=10_000, depth=100, expansion=0)
"""Policies are written by hand; ten thousand fields in one file are a mistake or an attack."""

MANIFEST_BOUNDS = SizeBounds(size=64 * MIB, values=8_000_000, depth=100, expansion=100_000)
"""Enough for a snapshot of thousands of pods. Built-in objects are about 20 levels deep, custom ones rarely 40."""


BOM = "\ufeff"
_BOM_AT_START = re.compile(rf"(?m)^(---[ \t]*(?:#.*)?\r?\n){BOM}")
"""A document that begins with a byte order mark, as in concatenated files."""
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that YAML 1.2 forbids (section 5.1), and lone surrogates."""


def find_invalid_character(text: str, file: str, start: int = 0, end: int | None = None) -> DocumentError | None:
    """Return an error for the first character that YAML forbids, or None."""
    match = _NOT_TEXT.search(text, start, len(text) if end is None else end)
    if match is None:
        return None
    name = f"U+{ord(match.group()):04X}"
    message = f"must be text, found the character {name}. Remove it, or write it as an escape in double quotes"
    return DocumentError(location_at(text, match.start(), file), message)


def decode_text(content: str | bytes, file: str, bounds: SizeBounds) -> str:
    """Decode a file's content, without the UTF-8 byte order marks that Windows editors write.

    Raises:
        DocumentError: The content is too large or not UTF-8.
    """
    if len(content) > bounds.size:
        size = f"{bounds.size // MIB} MiB"
        message = f"must be at most {size}, found more. Split the file, or check that it is the right one"
        raise DocumentError(SourceLocation(file), message)
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


def location_at(text: str, offset: int, file: str) -> SourceLocation:
    """Return the line and column of an offset."""
    line_start = text.rfind("\n", 0, offset) + 1
    return SourceLocation(file, text.count("\n", 0, offset) + 1, offset - line_start + 1)
