"""Escrows of shared quotas in memory: reviews spend them, and `webhook.server.escrow_keeper` fills them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from webhook.model.cluster_view import ClusterView
from webhook.model.enums import PolicyMode
from webhook.model.pools import GpuWeight, QuotaPool
from webhook.model.quota_escrow import QuotaBalance
from webhook.policy.policy_set import PolicySet, SharedQuota

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
        """Record a pod that was turned away, so that the quotas are divided anew."""
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
