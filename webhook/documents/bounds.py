"""How much a file may hold before it is refused: so that no text, however odd, costs more than a moment."""

from __future__ import annotations

from typing import NamedTuple

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
