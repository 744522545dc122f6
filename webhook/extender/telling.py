"""Says once of each report that cannot be used why, and again when that changes."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.extender.counts import Counts


class Telling:
    """What was told."""

    def __init__(self, unusable: Mapping[str, str], counts: Counts) -> None:
        """Begin.

        Args:
            unusable: Why reports cannot be used, by node, kept by who reads them.
            counts: Who is told.
        """
        self._unusable, self._counts = unusable, counts
        self._told: dict[str, str] = {}

    async def look(self) -> None:
        """Tell what is new."""
        for node, why in self._unusable.items():
            if self._told.get(node) != why:
                self._counts.report_unusable(node, why)
        self._told = dict(self._unusable)
