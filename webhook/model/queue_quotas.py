"""ClusterQueues and Cohorts of Kueue: their quotas, and what of these is not in use.

A cohort is a tree: ClusterQueues and other Cohorts borrow what its members do not use. A quota that is lent out is free
only when the borrower ends.

Source: Kueue 0.19, `pkg/cache/scheduler/resource_node.go`, `apis/kueue/v1beta2`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import ObjectMeta, QuantityText
from webhook.model.quantity import parse_nano_or_none


class FlavorResource(ApiStruct, frozen=True):
    """The quota of one resource in one flavor."""

    name: str = ""
    nominal_quota: QuantityText = "0"
    borrowing_limit: QuantityText | None = None
    lending_limit: QuantityText | None = None


class FlavorQuotas(ApiStruct, frozen=True):
    """The quotas of one flavor."""

    name: str = ""
    resources: tuple[FlavorResource, ...] = ()


class ResourceGroup(ApiStruct, frozen=True):
    """Resources that get one flavor together, and the flavors in the order in which they are tried."""

    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class AdmissionCheckRule(ApiStruct, frozen=True):
    """A check that workloads of a ClusterQueue must pass, on some flavors or all."""

    name: str = ""
    on_flavors: tuple[str, ...] = ()


class AdmissionCheckRules(ApiStruct, frozen=True):
    """The checks of a ClusterQueue."""

    admission_checks: tuple[AdmissionCheckRule, ...] = ()


class QueuePreemption(ApiStruct, frozen=True):
    """Which admitted workloads a ClusterQueue preempts for others, of its own and of its cohort."""

    within_cluster_queue: str = "Never"
    reclaim_within_cohort: str = "Never"


class ClusterQueueSpec(ApiStruct, frozen=True):
    """The quotas of a ClusterQueue, its checks, and the cohort it borrows from, by names of v1beta2 and of v1beta1."""

    resource_groups: tuple[ResourceGroup, ...] = ()
    admission_checks_strategy: AdmissionCheckRules = AdmissionCheckRules()
    admission_checks: tuple[str, ...] = ()
    preemption: QueuePreemption = QueuePreemption()
    cohort_name: str = ""
    cohort: str = ""


class ReservedResource(ApiStruct, frozen=True):
    """The amount of one resource that workloads have reserved in one flavor."""

    name: str = ""
    total: QuantityText = "0"


class FlavorReservation(ApiStruct, frozen=True):
    """The amounts that workloads have reserved in one flavor."""

    name: str = ""
    resources: tuple[ReservedResource, ...] = ()


class ClusterQueueStatus(ApiStruct, frozen=True):
    """The use of a ClusterQueue."""

    flavors_reservation: tuple[FlavorReservation, ...] = ()


class ClusterQueue(ApiStruct, frozen=True):
    """A queue of the cluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: ClusterQueueStatus = ClusterQueueStatus()

    @property
    def cohort(self) -> str:
        """The cohort that it borrows from; "" for none."""
        return self.spec.cohort_name or self.spec.cohort

    @property
    def may_preempt(self) -> bool:
        """True if it preempts workloads to admit others."""
        preemption = self.spec.preemption
        return {preemption.within_cluster_queue, preemption.reclaim_within_cohort} != {"Never"}

    def reserved(self, flavor: str, resource: str) -> int:
        """Return the nano-units of a resource that workloads have reserved in a flavor."""
        return sum(
            parse_nano_or_none(each.total) or 0
            for reservation in self.status.flavors_reservation
            for each in reservation.resources
            if (reservation.name, each.name) == (flavor, resource)
        )


class CohortSpec(ApiStruct, frozen=True):
    """The quotas of a Cohort, and the one above it."""

    resource_groups: tuple[ResourceGroup, ...] = ()
    parent_name: str = ""


class Cohort(ApiStruct, frozen=True):
    """Members that lend each other their quota. One that only its members name has no quota of its own."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CohortSpec = CohortSpec()

    @property
    def cohort(self) -> str:
        """The cohort above it; "" for none."""
        return self.spec.parent_name


Member = ClusterQueue | Cohort


class MemberQuota(NamedTuple):
    """The quota of a member and of all below it, for one resource in one flavor, in nano-units.

    Attributes:
        total: All of it that they may use.
        unlent: That part of it which is not lent.
        used: What they use.
        borrowing_limit: The most that they may borrow; None for no limit.
    """

    total: int
    unlent: int
    used: int
    borrowing_limit: int | None = None

    @property
    def lent(self) -> int:
        """The part of the quota that the cohort gets."""
        return self.total - self.unlent

    @property
    def used_of_cohort(self) -> int:
        """The part of the quota of the cohort that is used."""
        return max(0, self.used - self.unlent)


class CohortTree:
    """The cohorts of a cluster, with their members. Immutable."""

    __slots__ = ("_cohorts", "_members", "quotas")

    def __init__(self, queues: Iterable[ClusterQueue] = (), cohorts: Iterable[Cohort] = ()) -> None:
        """Index the members of each cohort."""
        self._cohorts = {each.metadata.name: each for each in cohorts}
        self._members: defaultdict[str, list[Member]] = defaultdict(list)
        cohort_queues = [each for each in queues if each.cohort]
        members: list[Member] = [*cohort_queues, *self._cohorts.values()]
        for each in members:
            self._members[each.cohort].append(each)
        self.quotas = frozenset(quota for each in members for quota in _quotas_of(each))
        """Flavor and resource for which some member of a cohort has quota."""

    def free_quota(self, queue: ClusterQueue, flavor: str, resource: str) -> int:
        """Return the nano-units that a ClusterQueue may use now, with what it may borrow; 0 if cohorts form a cycle."""
        lineage = self._lineage(queue)
        if not lineage:
            return 0
        *members, root = (self._quota_of(each, flavor, resource) for each in lineage)
        free = root.total - root.used
        for each in reversed(members):
            if each.borrowing_limit is not None:
                free = min(free, each.lent - each.used_of_cohort + each.borrowing_limit)
            free += max(0, each.unlent - each.used)
        return free

    def _lineage(self, member: Member) -> tuple[Member, ...]:
        """Return a member and the cohorts above it; nothing for a cycle, in which Kueue admits nothing."""
        found, names = [member], {""}
        while (name := found[-1].cohort) not in names:
            names.add(name)
            found.append(self._cohorts.get(name, Cohort(metadata=ObjectMeta(name=name))))
        return () if name else tuple(found)

    def _quota_of(self, member: Member, flavor: str, resource: str) -> MemberQuota:
        own = find_quota(member.spec.resource_groups, flavor, resource)
        total = nominal_quota(own)
        if isinstance(member, ClusterQueue):
            used = member.reserved(flavor, resource)
        else:
            below = [self._quota_of(each, flavor, resource) for each in self._members.get(member.metadata.name, ())]
            total += sum(each.lent for each in below)
            used = sum(each.used_of_cohort for each in below)
        lent = _limit(own.lending_limit)
        return MemberQuota(total, 0 if lent is None else max(0, total - lent), used, _limit(own.borrowing_limit))


def find_quota(groups: Iterable[ResourceGroup], flavor: str, resource: str) -> FlavorResource:
    """Return the quota of a resource in a flavor; one of zero if there is none."""
    quotas = (each for group in groups for of_flavor in group.flavors if of_flavor.name == flavor
              for each in of_flavor.resources if each.name == resource)  # fmt: skip
    return next(quotas, FlavorResource(resource))


def nominal_quota(quota: FlavorResource) -> int:
    """Return the nano-units of a quota."""
    return parse_nano_or_none(quota.nominal_quota) or 0


def _limit(amount: QuantityText | None) -> int | None:
    return None if amount is None else parse_nano_or_none(amount)


def _quotas_of(member: Member) -> Iterator[tuple[str, str]]:
    """Yield flavor and resource of each quota of a member."""
    for group in member.spec.resource_groups:
        for flavor in group.flavors:
            yield from ((flavor.name, each.name) for each in flavor.resources if nominal_quota(each))
