"""Says once of each node why what it says, or its agent, cannot be; and again when that changes."""

from __future__ import annotations

from webhook.extender.counts import Counts
from webhook.extender.standing import Standing
from webhook.model.fleet import Fleet


class Telling:
    """What was told."""

    def __init__(self, standing: Standing, counts: Counts) -> None:
        """Begin.

        Args:
            standing: What is ranked.
            counts: Who is told.
        """
        self._unusable, self._standing, self._counts = standing.inventory.unusable, standing, counts
        self._told: dict[str, str] = {}
        self._fleet = standing.fleet
        self._beyond: dict[str, str] = _beyond(self._fleet)

    async def look(self) -> None:
        """Tell what is new."""
        if self._standing.fleet is not self._fleet:
            self._fleet = self._standing.fleet
            self._beyond = _beyond(self._fleet)
        now = self._beyond | self._unusable
        for node, why in now.items():
            if self._told.get(node) != why:
                self._counts.node_doubted(node, why)
        self._told = now


def _beyond(fleet: Fleet) -> dict[str, str]:
    return {
        node.name: f"{units} {resource} are more than any node can have"
        for node in fleet.nodes
        for resource, units in node.beyond.items()
    }
