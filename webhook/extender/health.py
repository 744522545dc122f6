"""What the extender says about itself in `/readyz?verbose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from webhook.extender.standing import SchedulerState
from webhook.web.checks import HealthCheck, HealthChecks
from webhook.web.plaintext import strip_control_characters


class WatchHealth(Protocol):
    """How the watch of one kind of object is doing."""

    name: str
    synced: bool
    absent: bool
    error: str


class ExtenderHealth:
    """Ready once the nodes are known; not when it was told to end."""

    def __init__(
        self,
        standing: SchedulerState,
        watched: Callable[[], Sequence[WatchHealth]],
        draining: Callable[[], bool],
        more: HealthChecks = tuple,
    ) -> None:
        self._state, self._watched, self._draining, self._more = standing, watched, draining, more

    def checks(self) -> list[HealthCheck]:
        """The lines."""
        known = self._state.ranking is not None
        nodes = f"{len(self._state.fleet.nodes)} nodes" if known else "not known yet"
        return [
            HealthCheck("cluster", ok=known, message=nodes),
            *(self._watch_check(state) for state in self._watched()),
            *self._more(),
            HealthCheck("serving", ok=not self._draining(), message="told to end" if self._draining() else "ok"),
        ]

    @staticmethod
    def _watch_check(state: WatchHealth) -> HealthCheck:
        says = "not on this server" if state.absent else "synced" if state.synced else "not synced yet"
        says = f"{says}; {strip_control_characters(state.error)}" if state.error else says
        return HealthCheck(state.name, ok=state.synced and not state.error, message=says, required=False)
