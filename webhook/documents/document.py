"""Plain data with the position of every value in its file."""

from __future__ import annotations

from typing import Any

import msgspec

from webhook.errors import SourceLocation
from webhook.model.field_paths import FieldPath

Mark = tuple[int, int]
"""Line and column, counted from 1."""


class PositionTree(msgspec.Struct):
    """The position of a map or list, and of everything in it.

    Attributes:
        start: Where it begins.
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
        file: Name of the file, for messages.
        positions: The position of every value.
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
