"""What the extender says about itself in `/readyz?verbose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from webhook.extender.standing import Standing
from webhook.web.checks import Check, Checks
from webhook.web.plaintext import one_line


class Watched(Protocol):
    """How the watch of one kind of object is doing."""

    name: str
    synced: bool
    absent: bool
    fault: str


class Health:
    """Ready once the nodes are known; not when it was told to end."""

    def __init__(
        self,
        standing: Standing,
        watched: Callable[[], Sequence[Watched]],
        draining: Callable[[], bool],
        more: Checks = tuple,
    ) -> None:
        self._standing, self._watched, self._draining, self._more = standing, watched, draining, more

    def checks(self) -> list[Check]:
        """The lines."""
        known = self._standing.ranking is not None
        nodes = f"{len(self._standing.fleet.nodes)} nodes" if known else "not known yet"
        return [
            Check("cluster", good=known, says=nodes),
            *(self._kind(state) for state in self._watched()),
            *self._more(),
            Check("serving", good=not self._draining(), says="told to end" if self._draining() else "ok"),
        ]

    @staticmethod
    def _kind(state: Watched) -> Check:
        says = "not on this server" if state.absent else "synced" if state.synced else "not synced yet"
        says = f"{says}; {one_line(state.fault)}" if state.fault else says
        return Check(state.name, good=state.synced and not state.fault, says=says, must=False)
