"""Says once of each node why what it says, or its agent, cannot be; and again when that changes."""

from __future__ import annotations

from webhook.extender.counts import ExtenderMetrics
from webhook.extender.standing import SchedulerState
from webhook.model.fleet import Fleet


class NodeWarnings:
    """What was told."""

    def __init__(self, standing: SchedulerState, counts: ExtenderMetrics) -> None:
        """Begin.

        Args:
            standing: What is ranked.
            counts: Who is told.
        """
        self._unusable, self._state, self._metrics = standing.inventory.unusable_reports, standing, counts
        self._logged: dict[str, str] = {}
        self._fleet = standing.fleet
        self._implausible: dict[str, str] = _implausible_gpu_counts(self._fleet)

    async def log_new_warnings(self) -> None:
        """Tell what is new."""
        if self._state.fleet is not self._fleet:
            self._fleet = self._state.fleet
            self._implausible = _implausible_gpu_counts(self._fleet)
        now = self._implausible | self._unusable
        for node, why in now.items():
            if self._logged.get(node) != why:
                self._metrics.warn_node(node, why)
        self._logged = now


def _implausible_gpu_counts(fleet: Fleet) -> dict[str, str]:
    return {
        node.name: f"{units} {resource} are more than any node can have"
        for node in fleet.nodes
        for resource, units in node.implausible_gpus.items()
    }
