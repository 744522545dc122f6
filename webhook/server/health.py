"""May requests be sent to the process?"""

from __future__ import annotations

from collections.abc import Callable

from webhook.report.words import count
from webhook.server.world import Watched, World
from webhook.web.checks import Check, Checks
from webhook.web.plaintext import one_line


class Health:
    """Ready means: policies, a view of the cluster and a certificate are there, and nobody told the process to end."""

    def __init__(self, world: World, draining: Callable[[], bool], more: Checks = tuple) -> None:
        self._world = world
        self._draining = draining
        self._more = more

    def checks(self) -> list[Check]:
        """The lines of `/readyz?verbose`."""
        world, status = self._world, self._world.policy_load
        policies = world.policies
        digest = f"{count(len(policies.policies), 'policy', 'policies')}, digest {policies.digest}"
        in_use = f"{digest}, read {status.loaded:%Y-%m-%dT%H:%M:%SZ}" if status.loaded else "none could be read yet"
        faults = [Check("policy files", good=False, says=one_line(fault), must=False) for fault in status.faults[:20]]
        return [
            Check("policies", good=status.loaded is not None, says=in_use),
            *(faults or [Check("policy files", good=True, says="as in use", must=False)]),
            *self._cluster(),
            *self._more(),
            Check("serving", not self._draining(), "told to end" if self._draining() else "ok"),
        ]

    def _cluster(self) -> list[Check]:
        """The view; of a live cluster also each kind that is watched. One that is old is still a view."""
        view, followed = self._world.view, self._world.followed
        nodes = count(len(view.fleet.nodes), "node")
        if followed is None:
            return [Check("cluster", good=True, says=nodes)]
        if not followed.ready:
            return [Check("cluster", good=False, says="not known yet"), *map(_kind, followed.states)]
        old = "" if view.current else ": too old to shrink anything"
        says = f"{nodes}, confirmed {followed.age:.0f} s ago{old}"
        return [Check("cluster", good=True, says=says), *map(_kind, followed.states)]


def _kind(state: Watched) -> Check:
    says = "not on this server" if state.absent else "synced" if state.synced else "not synced yet"
    if state.fault:
        says = f"{says}; {one_line(state.fault)}"
    return Check(state.name, good=state.synced and not state.fault, says=says, must=False)
