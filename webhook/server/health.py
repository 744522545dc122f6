"""May requests be sent to the process?"""

from __future__ import annotations

from collections.abc import Callable

from webhook.report.words import pluralize
from webhook.server.world import WatchedKind, AdmissionState
from webhook.web.checks import HealthCheck, HealthChecks
from webhook.web.plaintext import strip_control_characters


class AdmissionHealth:
    """Ready means: policies, a view of the cluster and a certificate are there, and nobody told the process to end."""

    def __init__(self, world: AdmissionState, draining: Callable[[], bool], more: HealthChecks = tuple) -> None:
        self._state = world
        self._draining = draining
        self._extra_checks = more

    def checks(self) -> list[HealthCheck]:
        """The lines of `/readyz?verbose`."""
        world, status = self._state, self._state.policy_load
        policies = world.policies
        digest = f"{pluralize(len(policies.policies), 'policy', 'policies')}, digest {policies.digest}"
        in_use = f"{digest}, read {status.loaded_at:%Y-%m-%dT%H:%M:%SZ}" if status.loaded_at else "none could be read yet"
        faults = [HealthCheck("policy files", ok=False, message=strip_control_characters(fault), required=False) for fault in status.errors[:20]]
        return [
            HealthCheck("policies", ok=status.loaded_at is not None, message=in_use),
            *(faults or [HealthCheck("policy files", ok=True, message="as in use", required=False)]),
            *self._cluster_checks(),
            *self._extra_checks(),
            HealthCheck("serving", not self._draining(), "told to end" if self._draining() else "ok"),
        ]

    def _cluster_checks(self) -> list[HealthCheck]:
        """The view; of a live cluster also each kind that is watched. One that is old is still a view."""
        view, followed = self._state.view, self._state.cluster
        nodes = pluralize(len(view.fleet.nodes), "node")
        if followed is None:
            return [HealthCheck("cluster", ok=True, message=nodes)]
        if not followed.ready:
            return [HealthCheck("cluster", ok=False, message="not known yet"), *map(watch_check, followed.states)]
        old = "" if view.current else ": too old to shrink anything"
        says = f"{nodes}, confirmed {followed.age:.0f} s ago{old}"
        return [HealthCheck("cluster", ok=True, message=says), *map(watch_check, followed.states)]


def watch_check(state: WatchedKind) -> HealthCheck:
    says = "not on this server" if state.absent else "synced" if state.synced else "not synced yet"
    if state.error:
        says = f"{says}; {strip_control_characters(state.error)}"
    return HealthCheck(state.name, ok=state.synced and not state.error, message=says, required=False)
