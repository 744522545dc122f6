"""The demand for cards and slices whose layouts are planned, and the quotas that limit it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, CARD_MILLI, MIG_PREFIX, SHARED_GPU, WHOLE_GPU
from webhook.placement.layout_plan import EVERY_NODE, CardUnit, UnitDemand, UnitLimit, share_of
from webhook.placement.node_layouts import NodeLayout


class RequestOrigin(StrEnum):
    """Why a pod needs a unit. The value is its word in reports."""

    RIGHT_SIZED = "right-sized"
    SLICE = "slice requested"
    SHARE = "share requested"
    WHOLE = "whole cards requested"


class QuotaKey(NamedTuple):
    """The identity of a quota on one resource: a ResourceQuota has one for each resource that it counts.

    Attributes:
        name: For example "ResourceQuota team/gpus".
        resource: The resource that it counts; "" if it counts thousandths of all GPUs.
    """

    name: str
    resource: str


class UnitNeed(NamedTuple):
    """Any of some units, the smallest first, and why.

    Attributes:
        namespace: The namespace of the pods; "" if the needs of all are counted together.
        together: The requests of one pod, which gets all or none.
        nodes: Mask of the nodes that the pods may use.
        quotas: The quotas that count some of the units for the pods.
    """

    units: tuple[CardUnit, ...]
    origin: RequestOrigin
    namespace: str = ""
    together: int = 1
    nodes: int = EVERY_NODE
    quotas: tuple[QuotaKey, ...] = ()

    def demand(self, requests: int) -> UnitDemand:
        """Return so many requests as the demand of a plan."""
        return UnitDemand(requests, self.units, self.together, self.nodes)

    def increase(self, requests: int, percent: int) -> int:
        """Return more requests, rounded up to those of whole pods."""
        return self.together * -(-requests * (100 + percent) // (100 * self.together))


class DemandQuota(NamedTuple):
    """A quota on the units of some needs.

    Attributes:
        name: For example "ResourceQuota team/gpus".
        resource: The resource that it counts; "" if it counts thousandths of all GPUs.
        most: What it admits.
        products: The only products whose GPUs it counts; None for all.
    """

    name: str
    resource: str
    most: int
    products: frozenset[str] | None = None

    def amount(self, unit: CardUnit) -> int:
        """Return what it counts of one unit."""
        if self.products is not None and unit.product not in self.products:
            return 0
        if self.resource in ("", ACCOUNTING_RESOURCE):
            return unit.milli
        return int(unit_resource(unit) == self.resource)

    @property
    def key(self) -> QuotaKey:
        """Its identity."""
        return QuotaKey(self.name, self.resource)

    @property
    def admitted_text(self) -> str:
        """The amount that it admits, as a text."""
        return f"{self.most} of {self.resource}" if self.resource else f"{self.most / CARD_MILLI:g} GPUs"


def unit_resource(unit: CardUnit) -> str:
    """Return the resource that a pod requests for a unit.

    >>> unit_resource(CardUnit("NVIDIA-A30", "1g.6gb")), unit_resource(CardUnit("NVIDIA-A30", "mps/4"))
    ('nvidia.com/mig-1g.6gb', 'nvidia.com/gpu.shared')
    """
    if share_of(unit.profile):
        return SHARED_GPU
    return f"{MIG_PREFIX}{unit.profile}" if unit.profile else WHOLE_GPU


def quotas_of(need: UnitNeed, quotas: Iterable[DemandQuota]) -> list[DemandQuota]:
    """Return those of some quotas that count a need."""
    return [quota for quota in quotas if quota.key in need.quotas]


def full_quotas(
    need: UnitNeed, quotas: Iterable[DemandQuota], used: Mapping[DemandQuota, int]
) -> dict[CardUnit, DemandQuota]:
    """Return the first quota that admits no more of each unit of a need; units without one are left out."""
    found: dict[CardUnit, DemandQuota] = {}
    for quota in quotas_of(need, quotas):
        left = quota.most - used.get(quota, 0)
        for unit in need.units:
            if (amount := quota.amount(unit)) and amount * need.together > left:
                found.setdefault(unit, quota)
    return found


def quotas_text(quotas: Iterable[DemandQuota]) -> str:
    """Format what quotas admit.

    >>> quotas_text([DemandQuota("ResourceQuota team/gpus", "nvidia.com/gpu", 3), DemandQuota("quota all", "", 4500)])
    'ResourceQuota team/gpus admits 3 of nvidia.com/gpu for these pods; quota all admits 4.5 GPUs for these pods'
    """
    by_name: dict[str, dict[str, None]] = {}
    for quota in quotas:
        by_name.setdefault(quota.name, {})[quota.admitted_text] = None
    return "; ".join(f"{name} admits {', '.join(amounts)} for these pods" for name, amounts in by_name.items())


def unit_limits(needs: Sequence[tuple[UnitNeed, int]], quotas: Iterable[DemandQuota]) -> list[UnitLimit]:
    """Return what needs may get together, by their places, where quotas admit less than all of them request."""
    found = []
    for quota in quotas:
        counted = [
            (number, need, requests) for number, (need, requests) in enumerate(needs) if quota.key in need.quotas
        ]
        amounts = [(number, unit, quota.amount(unit)) for number, need, _ in counted for unit in need.units]
        largest = sum(requests * max(map(quota.amount, need.units), default=0) for _, need, requests in counted)
        if largest > quota.most:
            found.append(UnitLimit(quota.most, tuple(each for each in amounts if each[2])))
    return found


class HostUse(NamedTuple):
    """CPU in millicores, and memory in bytes."""

    cpu_milli: int = 0
    memory: int = 0


class HeldOutShare(NamedTuple):
    """The recorded requests that are served by layouts that were planned from the first part of the record alone.

    Attributes:
        start: Unix seconds from which on nothing was used to plan.
        requests, served: Sums over all bins from then on.
        earlier_requests, earlier_served: The same over the bins that were used to plan.
    """

    start: int
    requests: int
    served: int
    earlier_requests: int
    earlier_served: int


class DemandRecord(NamedTuple):
    """The recorded time that a demand was computed from.

    Attributes:
        quantile: The needs are what is enough for this share of the time.
        start, end: Unix seconds.
        bins: The number of parts of the time that were compared.
        pods: Recorded pods.
        unrecorded_pods: Running pods without recorded usage, whose needs count at any time.
        now: The needs of today's pods.
        held_out: None if the record is too short to be divided.
    """

    quantile: float
    start: int
    end: int
    bins: int
    pods: int
    unrecorded_pods: int
    now: Mapping[UnitNeed, int]
    held_out: HeldOutShare | None


class LayoutDemand(NamedTuple):
    """The needs of the pods of a cluster, and the nodes to serve them.

    Attributes:
        nodes: The nodes whose layouts are planned, with their pods.
        needs: Requests by what they need, without the whole cards that are kept.
        kept_whole: Whole cards that running pods keep, by the reason's word.
        allocated_cards: Whole cards that running pods hold today, kept or not, by product.
        waiting_pods: Pods without a node among those that need units.
        pods_elsewhere: Pods with GPUs that run on other nodes, or wait and can only run there.
        waiting_whole: Whole cards that waiting pods need, by the reason's word.
        waiting: Waiting pods by their needs, without the whole cards that are kept for them.
        resized_pods: Running pods that get a smaller GPU when they are created again.
        headroom: Percent by which the requests are increased.
        spare: The requests that the headroom adds.
        quotas: What quotas admit of the needs that they count.
        host_use: The CPU and memory that one unit of a need takes on average.
        record: The time that the needs were computed from; None if they are those of today's pods.
    """

    nodes: tuple[NodeLayout, ...]
    needs: Mapping[UnitNeed, int]
    kept_whole: Mapping[str, int]
    allocated_cards: Mapping[str, int]
    waiting_pods: int
    pods_elsewhere: int
    record: DemandRecord | None = None
    waiting_whole: Mapping[str, int] = {}
    waiting: Mapping[tuple[tuple[UnitNeed, int], ...], int] = {}
    resized_pods: int = 0
    headroom: int = 0
    spare: Mapping[UnitNeed, int] = {}
    quotas: tuple[DemandQuota, ...] = ()
    host_use: Mapping[UnitNeed, HostUse] = {}

    def limits(self) -> list[UnitLimit]:
        """Return what the needs may get together."""
        return unit_limits(list(self.needs.items()), self.quotas)

    def increased_by(self, percent: int) -> LayoutDemand:
        """Return the demand with more requests of each need, rounded up."""
        needs = {need: need.increase(count, percent) for need, count in self.needs.items()}
        spare = {need: count - self.needs[need] for need, count in needs.items()}
        return self._replace(needs=needs, headroom=percent, spare=spare)
