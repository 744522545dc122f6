"""The state that requests are evaluated with: policies, cluster view and usage, each immutable and replaced at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import msgspec

from webhook.kube.reflector import WatchStatus
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import AssumedPod, ClusterView
from webhook.model.decisions import Decision, OfferChoice
from webhook.model.filters.pod_ties import pending_pod
from webhook.model.pod_volumes import NO_CLAIMS, pod_volumes
from webhook.model.pods import pod_display_name
from webhook.model.pools import QuotaReservation
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.server.policy_sources import UnusedReason
from webhook.server.quota_escrows import QuotaEscrows

Clock = Callable[[], datetime]
"""Returns the current time, with a time zone."""

Decide = Callable[[AdmissionRequest, PolicySet, ClusterView, UsageView, datetime], Decision]
"""The signature of `webhook.engine.decide.decide`."""

ASSUME_TTL_SECONDS = 30.0
"""Time that an admitted pod counts as using its GPUs if no view shows it."""

MAX_CLOCK_SKEW_SECONDS = 3.0
"""Largest lag of the API server's clock, which has whole seconds."""

MAX_EXPECTED_TAKERS = 8
"""Most further pods of one resource that are expected because others requested it themselves."""

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


MAX_UNVALIDATED = 8192
"""Names of pods between /mutate and /validate. Beyond, they are forgotten, and such pods count twice.

A pod that the API server rejects in between never comes to /validate: its name stays until it expires."""


class UnvalidatedPods:
    """Pods that /mutate has counted and /validate has not seen yet, by namespace, name and resource."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str, str], tuple[int, float]] = {}

    def __len__(self) -> int:
        """Return the number of names, of which some may have expired."""
        return len(self._pods)

    def add(self, name: tuple[str, str, str], expires_at: float, now: float) -> None:
        """Add a pod, and forget expired ones; pods that are created by one generateName share a name."""
        while self._pods and self._pods[oldest := next(iter(self._pods))][1] <= now:
            del self._pods[oldest]
        if len(self._pods) >= MAX_UNVALIDATED:
            self._pods.clear()
        self._pods[name] = (self._pods.pop(name, (0, 0.0))[0] + 1, expires_at)

    def remove(self, name: tuple[str, str, str], now: float) -> bool:
        """Remove a pod, and return whether it was there and has not expired."""
        count, expires_at = self._pods.pop(name, (0, 0.0))
        if count > 1:
            self._pods[name] = (count - 1, expires_at)
        return count > 0 and now < expires_at


@dataclass(slots=True, eq=False)
class AdmissionState:
    """Policies, cluster view and usage, and how current they are.

    Attributes:
        live_cluster: None for a snapshot.
        on_policies: Gets each set of policies that is activated.
        escrows: What this replica may admit to shared quotas.
        takers: Number of admitted pods that take units by their own request.
    """

    policies: PolicySet
    view: ClusterView
    usage: UsageView
    policy_load: PolicyLoadStatus
    live_cluster: LiveCluster | None = None
    unvalidated: UnvalidatedPods = field(default_factory=UnvalidatedPods)
    on_policies: Callable[[PolicySet], None] = lambda _policies: None
    escrows: QuotaEscrows = field(default_factory=QuotaEscrows)
    takers: int = 0

    @property
    def ready(self) -> bool:
        """True once policies and cluster are loaded; before, every response would be as without policies."""
        return self.policy_load.loaded_at is not None and (self.live_cluster is None or self.live_cluster.ready)

    def activate_policies(self, policies: PolicySet) -> None:
        """Replace the policies."""
        self.policies = policies
        self.on_policies(policies)

    def reserve_quota(self, request: AdmissionRequest, decision: Decision, now: float) -> None:
        """Count an admitted pod against shared quotas until a view shows it; `now` is of the clock of the watches."""
        pod = request.pod
        if pod is None or request.dry_run or not (decision.quota_charge and pod.metadata.uid):
            return
        if decision.denials or self.view.has_reserved(pod.metadata.uid):
            if decision.is_retried:
                self.escrows.add_wanted(self.view, request.namespace, decision.quota_charge, now)
            return
        self.escrows.spend(self.view, request.namespace, decision.quota_charge)
        claims = tuple(name for name, _ in decision.shared_charges)
        reservation = QuotaReservation(pod.metadata.uid, request.namespace, decision.quota_charge, now, claims)
        self.view = self.view.with_reservation(reservation).without_reservations_before(now - RESERVATION_TTL_SECONDS)

    def view_with_escrows(self, request: AdmissionRequest, now: float) -> ClusterView:
        """Return the view for one final review: a pod that will be created must fit into this replica's escrows."""
        self.escrows.apply_policies(self.policies)
        is_bound = self.escrows.shared and self.policies.has_shared_quotas and request.operation == "CREATE"
        if not is_bound or request.pod is None or request.dry_run:
            return self.view
        return self.view.with_escrows(self.escrows.valid_at(now))

    def assume_pod(
        self, request: AdmissionRequest, decision: Decision, now: datetime, seconds: float, *, is_final: bool
    ) -> None:
        """Count what an admitted pod will hold, until the view shows it.

        Args:
            now: Time of day, to compare with creation times of the API server.
            seconds: Of a clock that is never set: what does not appear expires by it.
            is_final: True at /validate, which counts what /mutate did not: it may have run on another replica.
        """
        pod, use = request.pod, decision.pending_use
        if pod is None or not use.units or request.dry_run or request.operation != "CREATE" or decision.denials:
            return
        prefix = pod.metadata.generate_name
        is_generated = bool(prefix) and pod.metadata.name.startswith(prefix)
        name = f"{prefix}*" if is_generated else pod_display_name(pod)
        full_name, replicas = (request.namespace, name), self.view.replicas
        uid = pod.metadata.uid or (f"{request.namespace}/{name}" if pod.metadata.name else request.uid)
        given = decision.outcome.resource if decision.applied and isinstance(decision.outcome, OfferChoice) else ""
        earliest, expires_at = now.timestamp() - MAX_CLOCK_SKEW_SECONDS, seconds + ASSUME_TTL_SECONDS
        pending = pending_pod(pod, request.namespace)
        for resource, nodes, count in use.units:
            if is_final and self.unvalidated.remove((*full_name, resource), seconds):
                continue
            key, cpu, memory = uid and f"{uid} {resource}", -(-use.cpu_milli // count), -(-use.memory // count)
            times = max(1, replicas)  # the other replicas may decide likewise at the same time
            assumed = AssumedPod(
                *(key, resource, nodes, count, expires_at, full_name, cpu, memory, earliest, times),
                others=use.others,
                claims=(request.namespace, claims) if (claims := pod_volumes(pod)) else NO_CLAIMS,
                pending=pending,
            )
            before, self.view = self.view, self.view.with_assumed(assumed, seconds)
            if not is_final and self.view is not before:
                self.unvalidated.add((*full_name, resource), expires_at, seconds)
            if replicas and resource != given:
                self._expect_taker(assumed, seconds)

    def _expect_taker(self, taker: AssumedPod, now: float) -> None:
        """Count a pod that takes units by its own request once more until it expires, whether it is observed or not.

        It shows that others do now, which may overtake a pod that was assigned its units.
        """
        self.takers += 1
        key = f"expected {self.takers % MAX_EXPECTED_TAKERS} {taker.resource}"
        expected = msgspec.structs.replace(
            taker, key=key, pod_name=("", ""), cpu_milli=0, memory=0, others=(), claims=NO_CLAIMS
        )
        self.view = self.view.with_assumed(expected, now)
