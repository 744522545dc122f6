"""The state that requests are evaluated with: policies, cluster view and usage, each immutable and replaced at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

from webhook.engine.feasible_nodes import assumed_usage
from webhook.kube.reflector import WatchStatus
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import AssumedPod, ClusterView
from webhook.model.decisions import Decision, OfferChoice
from webhook.model.node_masks import union_masks
from webhook.model.pod_resources import cpu_and_memory
from webhook.model.pods import Pod, pod_display_name
from webhook.model.pools import QuotaReservation
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.server.policy_sources import UnusedReason

Clock = Callable[[], datetime]
"""Returns the current time, with a time zone."""

Decide = Callable[[AdmissionRequest, PolicySet, ClusterView, UsageView, datetime], Decision]
"""The signature of `webhook.engine.decide.decide`."""

ASSUME_TTL_SECONDS = 30.0
"""Time that an admitted pod counts as using its GPUs if no view shows it."""

MAX_CLOCK_SKEW_SECONDS = 3.0
"""Largest lag of the API server's clock, which has whole seconds."""

RESERVATION_TTL_SECONDS = 120.0
"""Time that an admitted pod counts against shared quotas if no view shows it: twice the age of a stale view."""


class PolicyLoadStatus(msgspec.Struct, frozen=True):
    """Status of the last policy load.

    Attributes:
        loaded_at: When the active set was loaded; None if none was, so that nothing can be evaluated.
        errors: Why the current files are not active; empty if they are.
        unused: Objects whose current version is not used, by source name.
    """

    loaded_at: datetime | None
    errors: tuple[str, ...] = ()
    unused: Mapping[str, UnusedReason] = {}


class LiveCluster(Protocol):
    """A live cluster, for health and metrics."""

    @property
    def ready(self) -> bool:
        """True once everything was listed and there is a view."""

    @property
    def age(self) -> float:
        """Seconds since the least recently confirmed resource was confirmed."""

    @property
    def states(self) -> Sequence[WatchStatus]:
        """The status of each watch."""


@dataclass(slots=True, eq=False)
class AdmissionState:
    """Policies, cluster view and usage, and how current they are. `cluster` is None for a snapshot."""

    policies: PolicySet
    view: ClusterView
    usage: UsageView
    policy_load: PolicyLoadStatus
    live_cluster: LiveCluster | None = None

    @property
    def ready(self) -> bool:
        """True once policies and cluster are loaded; before, every response would be as without policies."""
        return self.policy_load.loaded_at is not None and (self.live_cluster is None or self.live_cluster.ready)

    def reserve_quota(self, request: AdmissionRequest, decision: Decision, now: float) -> None:
        """Count an admitted pod against shared quotas until a view shows it; `now` is of the clock of the watches."""
        pod = request.pod
        if pod is None or request.dry_run or decision.denials or not (decision.quota_charge and pod.metadata.uid):
            return
        reservation = QuotaReservation(pod.metadata.uid, request.namespace, decision.quota_charge, now)
        self.view = self.view.with_reservation(reservation).without_reservations_before(now - RESERVATION_TTL_SECONDS)

    def assume_requested(self, request: AdmissionRequest, decision: Decision, now: datetime) -> None:
        """Count the requests of an admitted pod as used, until a view shows it.

        /validate calls it, because the pod is final there. A fit that /mutate chose is assumed already.
        """
        pod = request.pod
        if pod is None or request.sub_resource or not decision.involves_gpus or decision.denials:
            return
        if request.dry_run or request.operation != "CREATE":
            return
        uid, prefix = pod.metadata.uid or request.uid, pod.metadata.generate_name
        is_generated = bool(prefix) and pod.metadata.name.startswith(prefix)
        full_name = (request.namespace, f"{prefix}*" if is_generated else pod_display_name(pod))
        for resource, nodes, units in assumed_usage(pod, self.view):
            self._assume(uid and f"{uid} {resource}", full_name, pod, resource, nodes, units, now)

    def assume_fit(self, request: AdmissionRequest, decision: Decision, now: datetime) -> None:
        """Count the GPUs that were chosen for a pod as used, until a view shows it."""
        fit, pod = decision.outcome, request.pod
        if not (decision.applied and isinstance(fit, OfferChoice)) or request.dry_run or request.operation != "CREATE":
            return
        full_name = (request.namespace, pod_display_name(pod)) if pod is not None else ("", "")
        nodes = union_masks(offer.nodes for offer in fit.offers)
        self._assume(request.uid, full_name, pod, fit.resource, nodes, 1, now)

    def _assume(
        self,
        key: str,
        full_name: tuple[str, str],
        pod: Pod | None,
        resource: str,
        nodes: int,
        units: int,
        now: datetime,
    ) -> None:
        seconds = now.timestamp()
        cpu_milli, memory = cpu_and_memory(pod) if pod is not None else (0, 0)
        per_unit = -(-cpu_milli // units), -(-memory // units)
        expires_at, earliest = seconds + ASSUME_TTL_SECONDS, seconds - MAX_CLOCK_SKEW_SECONDS
        assumed = AssumedPod(key, resource, nodes, units, expires_at, full_name, *per_unit, earliest)
        self.view = self.view.with_assumed(assumed, seconds)
