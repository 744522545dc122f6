"""The state that requests are evaluated with: policies, cluster view and usage, each immutable and replaced at once.

Escrows of shared quotas in memory: reviews spend them, and `webhook.server.escrow_keeper` fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import msgspec

from webhook.kube.reflector import WatchStatus
from webhook.model.admission import AdmissionRequest
from webhook.model.assumed_pods import AssumedPod, pods_with_units
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision, OfferChoice
from webhook.model.enums import PolicyMode
from webhook.model.filters.pod_ties import pending_pod
from webhook.model.pod_volumes import NO_CLAIMS, pod_volumes
from webhook.model.pods import pod_display_name
from webhook.model.pools import GpuWeight, QuotaPool, QuotaReservation
from webhook.model.quota_escrow import QuotaBalance
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet, SharedQuota
from webhook.server.policy_sources import UnusedReason

WANTED_SECONDS = 2.0
"""How long a pod that was turned away counts as waiting: a client repeats its request after a second."""

KEPT_SECONDS = 2.0
"""How long an escrow that was raised for such pods is kept for them while other replicas wait."""

NOTHING: Mapping[QuotaPool, int] = {}


@dataclass(slots=True)
class EscrowState:
    """One quota of this replica, in thousandths of a GPU; times are seconds of the monotonic clock.

    Attributes:
        wanted: For pods that were turned away, the last of them at `wanted_at`.
        kept: Kept for these pods until `kept_until`.
    """

    wanted: int = 0
    wanted_at: float = 0.0
    kept: int = 0
    kept_until: float = 0.0


@dataclass(slots=True)
class QuotaEscrows:
    """The amounts that this replica may admit to each shared quota that is enforced.

    Attributes:
        shared: True if other replicas may admit pods to the same quotas.
        quotas: The enforced quotas by name.
        valid_until: When other replicas may begin to count this one as stopped.
        on_wanted: Called when a pod was turned away.
    """

    shared: bool = False
    quotas: Mapping[str, SharedQuota] = field(default_factory=dict)
    valid_until: float = 0.0
    on_wanted: Callable[[], None] = lambda: None
    _policies: PolicySet | None = None
    _unspent: dict[QuotaPool, int] = field(default_factory=dict)
    _states: dict[QuotaPool, EscrowState] = field(default_factory=dict)

    def valid_at(self, now: float) -> Mapping[QuotaPool, int]:
        """Return what may be admitted, by quota; nothing if it was not renewed in time."""
        return self._unspent if now < self.valid_until else NOTHING

    def spend(self, view: ClusterView, namespace: str, weight: GpuWeight) -> None:
        """Charge an admitted pod, also one that a quota does not bind, such as an exempted one."""
        for pool, milli in self._charges(view, namespace, weight):
            self._unspent[pool] = max(0, self._unspent.get(pool, 0) - milli)
            state = self._states.get(pool)
            if state is not None:
                state.kept = max(0, state.kept - milli)

    def add_wanted(self, view: ClusterView, namespace: str, weight: GpuWeight, now: float) -> None:
        """Record a rejected pod, so that the quotas are redistributed."""
        for pool, milli in self._charges(view, namespace, weight):
            if milli > self._unspent.get(pool, 0):
                state = self._states.setdefault(pool, EscrowState())
                state.wanted = milli + (state.wanted if now - state.wanted_at < WANTED_SECONDS else 0)
                state.wanted_at = now
        self.on_wanted()

    def _charges(self, view: ClusterView, namespace: str, weight: GpuWeight) -> Iterator[tuple[QuotaPool, int]]:
        labels = view.labels_of(namespace)
        for quota in self.quotas.values():
            milli = quota.pool.counted_milli(weight) if quota.pool.includes_namespace(namespace, labels) else 0
            if milli:
                yield quota.pool, milli

    def apply_policies(self, policies: PolicySet) -> None:
        """Take the quotas of new policies; what was not spent of a quota with the same name remains."""
        if policies is self._policies:
            return
        self._policies, quotas = policies, enforced_quotas(policies)
        pools = {name: quota.pool for name, quota in self.quotas.items()}
        before, self.quotas = self._unspent, quotas
        remaining = {quota.pool: before[pools[name]] for name, quota in quotas.items() if pools.get(name) in before}
        self._unspent, self._states = remaining, {}

    def balances(self, view: ClusterView, now: float) -> dict[str, QuotaBalance]:
        """Return the quotas by name, as this replica sees them."""
        return {name: self._balance(quota, view, now) for name, quota in self.quotas.items()}

    def _balance(self, quota: SharedQuota, view: ClusterView, now: float) -> QuotaBalance:
        pool, state = quota.pool, self._states.get(quota.pool, EscrowState())
        usage, unspent = view.pool_usage(pool), self._unspent.get(pool, 0)
        wanted = state.wanted if now - state.wanted_at < WANTED_SECONDS else 0
        kept = min(state.kept, unspent) if now < state.kept_until else 0
        wanted = min(wanted, max(0, quota.gpu_milli - usage))
        return QuotaBalance(quota.gpu_milli, usage, view.pool_in_flight(pool), unspent, wanted, kept)

    def clear(self) -> None:
        """Give everything up: another replica has removed our entry, or this one stops."""
        self._unspent = {}

    def lower(self, unspent: Mapping[str, int]) -> None:
        """Apply the amounts that fall, before they are stored."""
        for name, amount in unspent.items():
            pool = self.quotas[name].pool
            if amount < self._unspent.get(pool, 0):
                self._unspent[pool] = amount

    def raise_by(self, before: Mapping[str, QuotaBalance], unspent: Mapping[str, int], now: float) -> None:
        """Apply the amounts that rise, after they were stored; meanwhile, some may have been spent."""
        for name, amount in unspent.items():
            if name not in self.quotas:
                continue
            balance, pool = before[name], self.quotas[name].pool
            self._unspent[pool] = self._unspent.get(pool, 0) + max(0, amount - balance.unspent)
            if 0 < balance.wanted <= amount:
                state = self._states.setdefault(pool, EscrowState())
                state.wanted = max(0, state.wanted - balance.wanted)
                state.kept, state.kept_until = balance.wanted, now + KEPT_SECONDS


def enforced_quotas(policies: PolicySet) -> dict[str, SharedQuota]:
    """Return the shared quotas that deny pods, by policy and name."""
    sections = [(policy.name, policy.quotas) for policy in policies.policies if policy.quotas is not None]
    enforced = [(name, section.shared) for name, section in sections if section.mode is PolicyMode.ENFORCE]
    return {f"{name}/{quota.name}": quota for name, shared in enforced for quota in shared}


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
        """Return the number of names, including expired ones."""
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
            seconds: Time of a monotonic clock; pods that do not appear expire by it.
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
        each = AssumedPod(
            *(uid, "", 0, 0, expires_at, full_name),
            admitted_at=earliest,
            times=max(1, replicas),  # the other replicas may decide the same at the same time
            claims=(request.namespace, claims) if (claims := pod_volumes(pod)) else NO_CLAIMS,
            pending=pending_pod(pod, request.namespace),
        )
        for assumed in pods_with_units(use, each):
            resource = assumed.resource
            if is_final and self.unvalidated.remove((*full_name, resource), seconds):
                continue
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
