"""Documents as values: the text of a file within size bounds, and plain data with the position of every value."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from webhook.errors import DocumentError, SourceLocation
from webhook.model.field_paths import FieldPath

MIB = 1 << 20


class SizeBounds(NamedTuple):
    """Maximum size of a file, so that no text takes long to parse.

    Attributes:
        size: Bytes of UTF-8.
        values: Maps, lists and scalars.
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


Mark = tuple[int, int]
"""Line and column, counted from 1."""


class PositionTree(msgspec.Struct):
    """The position of a map or list, and of everything in it.

    Attributes:
        keys: The position of each key of a map.
        members: The position of each value, by key or index.
    """

    start: Mark
    keys: dict[str, Mark]
    members: Any  # dict[str, Positions] or list[Positions], which the builder fills alike


Positions = Mark | PositionTree
"""The position of a value: the mark of a scalar, or the positions of a map or list."""

UNKNOWN_MARK: Mark = (0, 0)


class Document(msgspec.Struct, frozen=True):
    """One document of a file.

    Attributes:
        data: dict, list, str, int, float, bool or None. Parts may be shared, so do not modify it.
    """

    data: Any
    file: str
    positions: Positions

    def locate(self, path: FieldPath = ()) -> SourceLocation:
        """Return the location of the value at a path, or of its nearest existing ancestor."""
        return SourceLocation(self.file, *start_mark(_follow_path(self.positions, path)[0]))

    def locate_key(self, path: FieldPath) -> SourceLocation:
        """Return the location of the key at the end of a path, or of the value if there is no such key."""
        if not path:
            return self.locate()
        parent, walked = _follow_path(self.positions, path[:-1])
        key = path[-1]
        if walked == len(path) - 1 and isinstance(parent, PositionTree) and isinstance(key, str) and key in parent.keys:
            return SourceLocation(self.file, *parent.keys[key])
        return self.locate(path)


def _follow_path(positions: Positions, path: FieldPath) -> tuple[Positions, int]:
    """Follow a path as far as it exists; return the positions there and the number of steps taken."""
    for walked, step in enumerate(path):
        members = positions.members if isinstance(positions, PositionTree) else {}
        exists = step in members if isinstance(members, dict) else isinstance(step, int) and 0 <= step < len(members)
        if not exists:
            return positions, walked
        positions = members[step]
    return positions, len(path)


def start_mark(positions: Positions) -> Mark:
    """Return where a value begins."""
    return positions.start if isinstance(positions, PositionTree) else positions
