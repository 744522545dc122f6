"""World: what requests are judged against. Each part is one immutable reference, swapped whole by its own task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from webhook.engine.feasible_nodes import assumed_usage
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import AssumedPod, ClusterView
from webhook.model.codes import MUTATION_CODES
from webhook.model.decisions import Decision, OfferChoice
from webhook.model.node_masks import union_masks
from webhook.model.pod_resources import cpu_and_memory
from webhook.model.pods import Pod, pod_display_name
from webhook.model.pools import QuotaReservation
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.server.policy_sources import UnusedReason

Clock = Callable[[], datetime]
"""The moment, aware of its zone."""

Decide = Callable[[AdmissionRequest, PolicySet, ClusterView, UsageView, datetime], Decision]
"""The shape of `webhook.engine.decide.decide`."""

ASSUME_TTL_SECONDS = 30.0
"""How long an admitted pod is taken to hold its slice before a view must have seen it."""


MAX_CLOCK_SKEW_SECONDS = 3.0
"""How far the API server's clock, which tells whole seconds, may be behind ours."""

RESERVATION_TTL_SECONDS = 120.0
"""How long an admitted pod counts at most that no view shows: a view that is not confirmed for longer than half of
it is old, and no quota is checked by it."""


class PolicyLoadStatus(msgspec.Struct, frozen=True):
    """How the policies in use came to be.

    Attributes:
        loaded: When the set in use was read; None: none was, so nothing can be judged yet.
        faults: Why what is in the files now is not in use, one sentence each; empty: it is.
        unused: Which objects are not in use as they are written now, and why.
    """

    loaded_at: datetime | None
    errors: tuple[str, ...] = ()
    unused: Mapping[str, UnusedReason] = {}


class WatchedKind(Protocol):
    """How the watch of one kind of object is doing."""

    name: str
    synced: bool
    absent: bool
    error: str


class LiveCluster(Protocol):
    """A live cluster, as far as health and metrics ask."""

    @property
    def ready(self) -> bool:
        """Was everything there once, and is there a view of it?"""

    @property
    def age(self) -> float:
        """Seconds since all of it was last confirmed."""

    @property
    def states(self) -> Sequence[WatchedKind]:
        """How each watch is doing."""


class AdmissionState:
    """Three references and how fresh they are. `followed` is None where the view is of a snapshot."""

    def __init__(self, policies: PolicySet, view: ClusterView, usage: UsageView, loaded: PolicyLoadStatus) -> None:
        self.policies = policies
        self.view = view
        self.usage = usage
        self.policy_load = loaded
        self.cluster: LiveCluster | None = None

    @property
    def ready(self) -> bool:
        """Are policies and cluster known? Before, any answer would be that of a cluster without policies."""
        return self.policy_load.loaded_at is not None and (self.cluster is None or self.cluster.ready)

    def knows_namespace(self, name: str) -> bool:
        """False where the view is complete and has no such namespace: its labels cannot be known."""
        view = self.view
        return not (view.complete and name and view.namespace(name) is None)

    def reserve(self, request: AdmissionRequest, decision: Decision, moment: float) -> None:
        """Count a pod that may be stored now against the quotas that its namespace shares, until a view shows it.

        Args:
            moment: Seconds of the clock that the cluster's watches are timed by.
        """
        pod = request.pod
        if pod is None or not (decision.weight and pod.metadata.uid) or request.dry_run or not admits_object(decision):
            return
        reservation = QuotaReservation(pod.metadata.uid, request.namespace, decision.weight, moment)
        self.view = self.view.with_reservation(reservation).without_reservations_before(
            moment - RESERVATION_TTL_SECONDS
        )

    def expire_assumed(self, now: datetime) -> None:
        """Let go of what was taken for pods that have not come by now."""
        self.view = self.view.without_expired(now.timestamp())

    def assume_requested(self, request: AdmissionRequest, decision: Decision, now: datetime) -> None:
        """Take what a pod asks for that may be stored now as gone, until a view shows it.

        It is asked where the pod is final and known to pass. What was given to it before is assumed already.
        """
        pod = request.pod
        if pod is None or request.sub_resource or not decision.involves_gpus or not admits_object(decision):
            return
        if request.dry_run or request.operation != "CREATE":
            return
        moment = now.timestamp()
        uid, called = pod.metadata.uid or request.uid, (request.namespace, original_pod_name(pod))
        for resource, nodes, units in assumed_usage(pod, self.view):
            known, until = uid and f"{uid} {resource}", moment + ASSUME_TTL_SECONDS
            self.view = self.view.with_assumed(
                AssumedPod(
                    known,
                    resource,
                    nodes,
                    units,
                    until,
                    called,
                    *_requests_per_unit(pod, units),
                    moment - MAX_CLOCK_SKEW_SECONDS,
                ),
                moment,
            )

    def assume_fit(self, request: AdmissionRequest, decision: Decision, now: datetime) -> None:
        """Take what was just given to a pod as gone, until a view shows it."""
        fit = decision.outcome
        if not (decision.applied and isinstance(fit, OfferChoice)) or request.dry_run or request.operation != "CREATE":
            return
        nodes = union_masks(offer.nodes for offer in fit.offers)
        moment = now.timestamp()
        called = (request.namespace, pod_display_name(request.pod)) if request.pod is not None else ("", "")
        amounts = _requests_per_unit(request.pod, 1) if request.pod is not None else (0, 0)
        until, since = moment + ASSUME_TTL_SECONDS, moment - MAX_CLOCK_SKEW_SECONDS
        pod = AssumedPod(request.uid, fit.resource, nodes, 1, until, called, *amounts, since)
        self.view = self.view.with_assumed(pod, moment)


def _requests_per_unit(pod: Pod, units: int) -> tuple[int, int]:
    """CPU and memory that a pod needs for each of its units; see `AssumedPod`."""
    cpu_milli, memory = cpu_and_memory(pod)
    return -(-cpu_milli // units), -(-memory // units)


def original_pod_name(pod: Pod) -> str:
    """What a pod was called when it came: its name, or the beginning of a name that was made meanwhile."""
    start = pod.metadata.generate_name
    return f"{start}*" if start and pod.metadata.name.startswith(start) else pod_display_name(pod)


def admits_object(decision: Decision) -> bool:
    """Does /validate let the object pass?"""
    return all(found.code in MUTATION_CODES for found in decision.denials)
