"""World: what requests are judged against. Each part is one immutable reference, swapped whole by its own task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from webhook.engine.taking import takes
from webhook.model.cluster import Assumed, ClusterView
from webhook.model.codes import SHAPING
from webhook.model.decisions import Decision, Fit
from webhook.model.effective import cpu_and_memory
from webhook.model.masks import union
from webhook.model.pods import Pod, name_of
from webhook.model.requests import Request
from webhook.model.reservations import Reservation
from webhook.model.usage import UsageView
from webhook.policy.compiled import PolicySet
from webhook.server.policysources import Unused

Clock = Callable[[], datetime]
"""The moment, aware of its zone."""

Decide = Callable[[Request, PolicySet, ClusterView, UsageView, datetime], Decision]
"""The shape of `webhook.engine.decide.decide`."""

ASSUMED_SECONDS = 30.0
"""How long an admitted pod is taken to hold its slice before a view must have seen it."""


SKEW_SECONDS = 3.0
"""How far the API server's clock, which tells whole seconds, may be behind ours."""

RESERVED_MOST = 120.0
"""How long an admitted pod counts at most that no view shows: a view that is not confirmed for longer than half of
it is old, and no quota is checked by it."""


class PolicyLoad(msgspec.Struct, frozen=True):
    """How the policies in use came to be.

    Attributes:
        loaded: When the set in use was read; None: none was, so nothing can be judged yet.
        faults: Why what is in the files now is not in use, one sentence each; empty: it is.
        unused: Which objects are not in use as they are written now, and why.
    """

    loaded: datetime | None
    faults: tuple[str, ...] = ()
    unused: Mapping[str, Unused] = {}


class Watched(Protocol):
    """How the watch of one kind of object is doing."""

    name: str
    synced: bool
    absent: bool
    fault: str


class Followed(Protocol):
    """A live cluster, as far as health and metrics ask."""

    @property
    def ready(self) -> bool:
        """Was everything there once, and is there a view of it?"""

    @property
    def age(self) -> float:
        """Seconds since all of it was last confirmed."""

    @property
    def states(self) -> Sequence[Watched]:
        """How each watch is doing."""


class World:
    """Three references and how fresh they are. `followed` is None where the view is of a snapshot."""

    def __init__(self, policies: PolicySet, view: ClusterView, usage: UsageView, loaded: PolicyLoad) -> None:
        self.policies = policies
        self.view = view
        self.usage = usage
        self.policy_load = loaded
        self.followed: Followed | None = None

    @property
    def judges(self) -> bool:
        """Are policies and cluster known? Before, any answer would be that of a cluster without policies."""
        return self.policy_load.loaded is not None and (self.followed is None or self.followed.ready)

    def knows_namespace(self, name: str) -> bool:
        """False where the view is complete and has no such namespace: its labels cannot be known."""
        view = self.view
        return not (view.complete and name and view.namespace(name) is None)

    def reserve(self, request: Request, decision: Decision, moment: float) -> None:
        """Count a pod that may be stored now against the quotas that its namespace shares, until a view shows it.

        Args:
            moment: Seconds of the clock that the cluster's watches are timed by.
        """
        pod = request.pod
        if pod is None or not (decision.weight and pod.metadata.uid) or request.dry_run or not admits(decision):
            return
        reservation = Reservation(pod.metadata.uid, request.namespace, decision.weight, moment)
        self.view = self.view.reserve(reservation).reserved_since(moment - RESERVED_MOST)

    def forget(self, now: datetime) -> None:
        """Let go of what was taken for pods that have not come by now."""
        self.view = self.view.due(now.timestamp())

    def assume_asked(self, request: Request, decision: Decision, now: datetime) -> None:
        """Take what a pod asks for that may be stored now as gone, until a view shows it.

        It is asked where the pod is final and known to pass. What was given to it before is assumed already.
        """
        pod = request.pod
        if pod is None or request.sub_resource or not decision.touches_gpus or not admits(decision):
            return
        if request.dry_run or request.operation != "CREATE":
            return
        moment = now.timestamp()
        uid, called = pod.metadata.uid or request.uid, (request.namespace, made_from(pod))
        for resource, nodes, units in takes(pod, self.view):
            known, until = uid and f"{uid} {resource}", moment + ASSUMED_SECONDS
            self.view = self.view.assume(
                Assumed(known, resource, nodes, units, until, called, *_each(pod, units), moment - SKEW_SECONDS), moment
            )

    def assume(self, request: Request, decision: Decision, now: datetime) -> None:
        """Take what was just given to a pod as gone, until a view shows it."""
        fit = decision.outcome
        if not (decision.applied and isinstance(fit, Fit)) or request.dry_run or request.operation != "CREATE":
            return
        nodes = union(offer.nodes for offer in fit.offers)
        moment = now.timestamp()
        called = (request.namespace, name_of(request.pod)) if request.pod is not None else ("", "")
        amounts = _each(request.pod, 1) if request.pod is not None else (0, 0)
        until, since = moment + ASSUMED_SECONDS, moment - SKEW_SECONDS
        pod = Assumed(request.uid, fit.resource, nodes, 1, until, called, *amounts, since)
        self.view = self.view.assume(pod, moment)


def _each(pod: Pod, units: int) -> tuple[int, int]:
    """CPU and memory that a pod needs for each of its units; see `Assumed`."""
    cpu_milli, memory = cpu_and_memory(pod)
    return -(-cpu_milli // units), -(-memory // units)


def made_from(pod: Pod) -> str:
    """What a pod was called when it came: its name, or the beginning of a name that was made meanwhile."""
    start = pod.metadata.generate_name
    return f"{start}*" if start and pod.metadata.name.startswith(start) else name_of(pod)


def admits(decision: Decision) -> bool:
    """Does /validate let the object pass?"""
    return all(found.code in SHAPING for found in decision.denials)
