"""Document: plain data, and where each part of it stands in its file."""

from __future__ import annotations

from typing import Any

import msgspec

from webhook.errors import SourceLocation
from webhook.model.field_paths import FieldPath

Mark = tuple[int, int]
"""Line and column, counted from 1."""


class PositionTree(msgspec.Struct):
    """Where a map or list stands, and everything in it.

    Attributes:
        mark: Where it begins.
        keys: Where each key of a map stands.
        members: Where each value stands, by key or index.
    """

    start: Mark
    keys: dict[str, Mark]
    members: Any  # dict[str, Spot] or list[Spot]; typed loosely, for the builder fills both alike


Positions = Mark | PositionTree
"""Where a value stands: a scalar's mark, or a branch."""

UNKNOWN_MARK: Mark = (0, 0)


class Document(msgspec.Struct, frozen=True):
    """One document of a file.

    Attributes:
        data: dict, list, str, int, float, bool or None. Parts may be shared: do not change them.
        file: Name of the file, for messages.
        spot: Where everything stands.
    """

    data: Any
    file: str
    positions: Positions

    def locate(self, path: FieldPath = ()) -> SourceLocation:
        """Where the value at a path stands, or its nearest ancestor that exists."""
        return SourceLocation(self.file, *start_mark(_follow_path(self.positions, path)[0]))

    def locate_key(self, path: FieldPath) -> SourceLocation:
        """Where the key at the end of a path stands; the value where there is no such key."""
        if not path:
            return self.locate()
        parent, walked = _follow_path(self.positions, path[:-1])
        key = path[-1]
        if walked == len(path) - 1 and isinstance(parent, PositionTree) and isinstance(key, str) and key in parent.keys:
            return SourceLocation(self.file, *parent.keys[key])
        return self.locate(path)


def _follow_path(spot: Positions, path: FieldPath) -> tuple[Positions, int]:
    """Follow a path as far as it goes: the spot reached, and how many steps were taken."""
    for walked, step in enumerate(path):
        member = _child_positions(spot, step)
        if member is None:
            return spot, walked
        spot = member
    return spot, len(path)


def _child_positions(spot: Positions, step: str | int) -> Positions | None:
    if not isinstance(spot, PositionTree):
        return None
    members = spot.members
    inside = step in members if isinstance(members, dict) else isinstance(step, int) and 0 <= step < len(members)
    found: Positions | None = members[step] if inside else None
    return found


def start_mark(spot: Positions) -> Mark:
    """Where a value begins."""
    return spot.start if isinstance(spot, PositionTree) else spot
