"""Bytes to text that a YAML parser can take: UTF-8, no control characters, within bounds."""

from __future__ import annotations

import re

from webhook.documents.bounds import MIB, Bounds
from webhook.errors import DocumentError, Place

BOM = "\ufeff"
_MARKED = re.compile(rf"(?m)^(---[ \t]*(?:#.*)?\r?\n){BOM}")
"""A document that begins with a byte order mark, as in files that were put together of several."""
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
"""What YAML 1.2 does not let into a file (section 5.1), and lone surrogates."""


def odd_in(text: str, file: str, start: int = 0, end: int | None = None) -> DocumentError | None:
    """The first character of a stretch that no text has."""
    odd = _NOT_TEXT.search(text, start, len(text) if end is None else end)
    if odd is None:
        return None
    name = f"U+{ord(odd.group()):04X}"
    sentence = f"must be text, found the character {name}. Remove it, or write it as an escape in double quotes"
    return DocumentError(place_at(text, odd.start(), file), sentence)


def as_text(content: str | bytes, file: str, bounds: Bounds) -> str:
    """Decode a file's content. A UTF-8 byte order mark before a document, which Windows editors write, is dropped.

    Raises:
        DocumentError: too large, or not UTF-8.
    """
    if len(content) > bounds.size:
        raise DocumentError(Place(file), _too_large(bounds))
    text = content if isinstance(content, str) else _decoded(content, file)
    return _MARKED.sub(r"\1", text).removeprefix(BOM) if BOM in text else text


def _decoded(content: bytes, file: str) -> str:
    if content.startswith(_UTF16_BOMS) or content[:4].count(0) > 1:
        raise DocumentError(Place(file, 1, 1), "must be UTF-8, found UTF-16. Save the file as UTF-8")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        raise DocumentError(
            place_at(before, len(before), file),
            f"must be UTF-8, found the byte 0x{content[error.start]:02x}. Save the file as UTF-8",
        ) from None


def _too_large(bounds: Bounds) -> str:
    """How much more is not told: who reads files stops just beyond the bound."""
    most = f"{bounds.size // MIB} MiB"
    return f"must be at most {most}, found more than {most}. Split the file, or give the one that was meant"


def place_at(text: str, offset: int, file: str) -> Place:
    """The place of a character, by its offset."""
    line_start = text.rfind("\n", 0, offset) + 1
    return Place(file, text.count("\n", 0, offset) + 1, offset - line_start + 1)
