"""Document: plain data, and where each part of it stands in its file."""

from __future__ import annotations

from typing import Any

import msgspec

from webhook.errors import Place
from webhook.model.paths import Path

Mark = tuple[int, int]
"""Line and column, counted from 1."""


class Branch(msgspec.Struct):
    """Where a map or list stands, and everything in it.

    Attributes:
        mark: Where it begins.
        keys: Where each key of a map stands.
        members: Where each value stands, by key or index.
    """

    mark: Mark
    keys: dict[str, Mark]
    members: Any  # dict[str, Spot] or list[Spot]; typed loosely, for the builder fills both alike


Spot = Mark | Branch
"""Where a value stands: a scalar's mark, or a branch."""

UNKNOWN: Mark = (0, 0)


class Document(msgspec.Struct, frozen=True):
    """One document of a file.

    Attributes:
        data: dict, list, str, int, float, bool or None. Parts may be shared: do not change them.
        file: Name of the file, for messages.
        spot: Where everything stands.
    """

    data: Any
    file: str
    spot: Spot

    def place(self, path: Path = ()) -> Place:
        """Where the value at a path stands, or its nearest ancestor that exists."""
        return Place(self.file, *mark_of(_down(self.spot, path)[0]))

    def key_place(self, path: Path) -> Place:
        """Where the key at the end of a path stands; the value where there is no such key."""
        if not path:
            return self.place()
        parent, walked = _down(self.spot, path[:-1])
        key = path[-1]
        if walked == len(path) - 1 and isinstance(parent, Branch) and isinstance(key, str) and key in parent.keys:
            return Place(self.file, *parent.keys[key])
        return self.place(path)


def _down(spot: Spot, path: Path) -> tuple[Spot, int]:
    """Follow a path as far as it goes: the spot reached, and how many steps were taken."""
    for walked, step in enumerate(path):
        member = _member(spot, step)
        if member is None:
            return spot, walked
        spot = member
    return spot, len(path)


def _member(spot: Spot, step: str | int) -> Spot | None:
    if not isinstance(spot, Branch):
        return None
    members = spot.members
    inside = step in members if isinstance(members, dict) else isinstance(step, int) and 0 <= step < len(members)
    found: Spot | None = members[step] if inside else None
    return found


def mark_of(spot: Spot) -> Mark:
    """Where a value begins."""
    return spot.mark if isinstance(spot, Branch) else spot
