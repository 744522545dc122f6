"""The result of `layout`: the MIG layouts of a cluster today and as planned, and the demand that they serve."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple, TypeVar

from webhook.errors import abbreviate_names
from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, CARD_MILLI, MIG_PREFIX, SHARED_GPU, WHOLE_GPU
from webhook.model.node_labels import card_product
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.prices import NodePrices
from webhook.placement.layout_plan import (
    EVERY_NODE,
    WHOLE_CARD,
    CardUnit,
    LayoutPlan,
    UnitDemand,
    UnitLimit,
    share_of,
)
from webhook.placement.mig import MigLayout, mig_geometry
from webhook.placement.node_layouts import NodeChange, NodeLayout, UnplannedNode, nodes_by_product
from webhook.report.costs import NO_COST, NO_PRICE, GpuCost, money_text
from webhook.report.tables import Column, Table
from webhook.report.text import Paint, format_percent, pluralize, sanitize, without_style
from webhook.well_known import Json

RowT = TypeVar("RowT")

WHOLE_TEXT = "whole"

HOST_RESOURCES = (("CPU", 1000), ("memory", 1 << 30))
"""The resources of `HostUse`, with the amount of a CPU, and of a GiB."""

NO_CARDS = "No node has cards whose layouts can be planned."
NO_NODE = "no node that it may use can have the slices or shares that it requests"
NO_LARGE_NODE = "no node that it may use has enough GPUs besides those of other pods, or enough memory per GPU"
FEW_CARDS = "too few suitable cards are left for all GPUs of the pod together"
NO_CARD = "all cards that could serve it are used"
UNKNOWN_BUDGETS = "PodDisruptionBudgets may not be listed, and might allow no eviction"
NO_IDLE_CARD = "all cards that could serve it are used, or on nodes with pods, which keep their layouts"


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


class HostShortage(NamedTuple):
    """Pods that request more of a resource than the nodes have that the plan uses for them.

    Attributes:
        nodes: The number of these nodes.
        requested, available: In CPUs or GiB.
    """

    product: str
    resource: str
    nodes: int
    requested: float
    available: float


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


class RecordedService(NamedTuple):
    """The recorded requests that are served by cards which were planned without the record.

    Attributes:
        start, end: Unix seconds.
        pods: Recorded pods.
        requests, served: Sums over all bins.
    """

    start: int
    end: int
    pods: int
    requests: int
    served: int


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


class LayoutRow(NamedTuple):
    """Cards of one product with one layout."""

    product: str
    layout: MigLayout
    today: int
    planned: int


class NeedRow(NamedTuple):
    """Requests with one need, and the units that serve them.

    Attributes:
        now: Requests of today's pods among them; None if all are.
        has_fixed_cards: Whether nodes that could serve them keep their layouts.
        nodes: The nodes that their pods may use, if these are not all with such cards.
        full_quotas: The quotas that admit no more of units.
    """

    need: UnitNeed
    requests: int
    served: Mapping[CardUnit, int]
    now: int | None = None
    has_fixed_cards: bool = False
    nodes: tuple[str, ...] = ()
    full_quotas: Mapping[CardUnit, DemandQuota] = {}

    @property
    def unserved(self) -> int:
        """Requests that get no unit."""
        return self.requests - sum(self.served.values())

    @property
    def reason(self) -> str:
        """Why some get none; "" if all do."""
        if not self.unserved:
            return ""
        if not self.need.units:
            return NO_LARGE_NODE if self.need.origin is RequestOrigin.WHOLE else NO_NODE
        quotas = quotas_text(self.full_quotas.values())
        if len(self.full_quotas) == len(self.need.units):
            return quotas
        return f"{self._reason_of_cards}; {quotas}" if quotas else self._reason_of_cards

    @property
    def _reason_of_cards(self) -> str:
        if self.has_fixed_cards:
            return NO_IDLE_CARD
        return FEW_CARDS if self.need.together > 1 else NO_CARD


class CardUse(NamedTuple):
    """Used cards of one product: partitioned, or allocated as a whole."""

    product: str
    partitioned: bool
    today: int
    planned: int

    @property
    def change(self) -> int:
        """The number of cards that the plan uses in addition."""
        return self.planned - self.today


class ProductUse(NamedTuple):
    """All cards of one product, those that are used, and the price of those that the plan frees.

    Attributes:
        freed: Negative if the plan uses more.
    """

    product: str
    cards: int
    today: int
    planned: int
    freed: GpuCost


class ChangeStep(NamedTuple):
    """Nodes that change alike, after the steps before, and what that frees.

    Attributes:
        number: 0 for what the demand uses before any change.
        nodes: Their names.
        pods: Running pods with GPUs on them.
        freed: Negative if more is used than before.
        unserved: Requests without a unit after this step.
    """

    number: int
    nodes: Sequence[str]
    pods: int
    freed: GpuCost
    unserved: int


class ClusterLayout(NamedTuple):
    """The layouts of a cluster, with the demand and the nodes that change.

    Attributes:
        prices: Prices of the GPUs; None if no cost is shown.
        policies: Policies to write, with right-sizing that is counted here and not enforced yet.
        cluster: A URL, or the names of files.
        unplanned: Nodes with GPUs that keep what they advertise.
        unplanned_pods: Names of pods with GPUs that are no cards, slices or shares of the device plugin.
        without_drains: The best plan in which nodes that run pods with GPUs keep their layouts, if this one is better.
        steps: The changes in their order.
        recorded: How the plan serves recorded pods; None without a record, or if the demand is that of the record.
        namespace: The only one whose needs are shown; "" for all.
    """

    demand: LayoutDemand
    plan: LayoutPlan
    changes: Sequence[NodeChange]
    prices: NodePrices | None
    policies: Sequence[Json] = ()
    cluster: str = ""
    unplanned: Sequence[UnplannedNode] = ()
    unplanned_pods: Sequence[str] = ()
    without_drains: ClusterLayout | None = None
    steps: Sequence[ChangeStep] = ()
    recorded: RecordedService | None = None
    namespace: str = ""

    def layout_rows(self) -> list[LayoutRow]:
        """Return the cards by product and layout, whole cards first."""
        today, planned = Counter[tuple[str, MigLayout]](), Counter[tuple[str, MigLayout]]()
        for node in self.demand.nodes:
            today.update((node.product, layout) for layout in node.layouts)
            planned[node.product, WHOLE_CARD] += node.kept_whole
        for group in self.plan.cards:
            planned[group.product, group.layout] += group.cards
        return [LayoutRow(*key, today[key], planned[key]) for key in sorted(today | planned)]

    def need_rows(self) -> list[NeedRow]:
        """Return the demand, the most requests first."""
        now = self.demand.record.now if self.demand.record else None
        fixed = nodes_by_product(node for node in self.demand.nodes if node.fixed)
        every, used = nodes_by_product(self.demand.nodes), self._used_of_quotas()
        names = {node.bit: node.node for node in self.demand.nodes}
        rows = [
            NeedRow(
                need,
                requests,
                served,
                None if now is None else now.get(need, 0),
                any(need.nodes & fixed[unit.product] for unit in need.units),
                self._only_nodes(need, every, names),
                full_quotas(need, self.demand.quotas, used),
            )
            for (need, requests), served in zip(self.demand.needs.items(), self.plan.served, strict=True)
        ]
        return sorted(rows, key=lambda row: (-row.requests, row.need))

    def shown_needs(self) -> list[NeedRow]:
        """Return the rows of the demand to show, the most requests first."""
        return [row for row in self.need_rows() if self.namespace in ("", row.need.namespace)]

    def _used_of_quotas(self) -> Counter[DemandQuota]:
        """Return what the plan uses of each quota."""
        used = Counter[DemandQuota]()
        for need, served in zip(self.demand.needs, self.plan.served, strict=True):
            for quota in quotas_of(need, self.demand.quotas):
                used[quota] += sum(quota.amount(unit) * count for unit, count in served.items())
        return used

    @property
    def unserved_waiting_pods(self) -> int | None:
        """Waiting pods that get less than they need, headroom aside, if running pods are served first.

        None if the demand is that of the record.
        """
        if self.demand.record:
            return None
        left = Counter({row.need: row.unserved - self.demand.spare.get(row.need, 0) for row in self.need_rows()})
        unserved = 0
        for needs, pods in self.demand.waiting.items():
            for _ in range(pods):
                unserved += any(left[need] > 0 for need, _ in needs)
                left.subtract(dict(needs))
        return unserved

    def _only_nodes(self, need: UnitNeed, every: Mapping[str, int], names: Mapping[int, str]) -> tuple[str, ...]:
        """Return the names of the nodes that serve a need, if the pods may use some of its products only."""
        possible = union_masks(every[unit.product] for unit in need.units)
        if not possible & ~need.nodes:
            return ()
        return tuple(names[bit] for bit in bit_positions(possible & need.nodes))

    def card_uses(self) -> list[CardUse]:
        """Return the used cards by product, whole cards first."""
        today, planned = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
        for product, cards in self.demand.allocated_cards.items():
            today[product, False] += cards
        for node in self.demand.nodes:
            today[node.product, True] += sum(layout != WHOLE_CARD for layout in node.layouts)
            planned[node.product, False] += node.kept_whole
        for group in self.plan.cards:
            planned[group.product, True] += group.cards if group.layout != WHOLE_CARD else 0
        for served in self.plan.served:
            for unit, requests in served.items():
                planned[unit.product, False] += 0 if unit.profile else requests
        return [CardUse(*key, today[key], planned[key]) for key in sorted(today | planned)]

    @property
    def cards(self) -> int:
        """All cards of the nodes whose layouts are planned."""
        return sum(len(node.layouts) for node in self.demand.nodes)

    @property
    def mig_cards(self) -> int:
        """Those of them that can be partitioned; the others can only be shared."""
        return sum(len(node.layouts) for node in self.demand.nodes if mig_geometry(node.product))

    @property
    def used_today(self) -> int:
        """Cards that are partitioned or allocated as a whole today."""
        return sum(use.today for use in self.card_uses())

    @property
    def used_planned(self) -> int:
        """Cards that the plan partitions or allocates as a whole."""
        return sum(use.planned for use in self.card_uses())

    @property
    def lower_bound(self) -> int:
        """The proved least number of cards that any plan uses which serves as much."""
        return self.plan.used.bound + sum(node.kept_whole for node in self.demand.nodes)

    @property
    def changed_cards(self) -> int:
        """Cards whose layout changes."""
        return sum((Counter(each.layouts) - Counter(each.node.layouts)).total() for each in self.changes)

    def _card_prices(self) -> dict[str, int]:
        """Return the highest price of the nodes with each product, shared or not."""
        prices: dict[str, int] = {}
        for product, price in self.prices.by_product.items() if self.prices else ():
            prices[card_product(product)] = max(price, prices.get(card_product(product), 0))
        return prices

    def product_uses(self) -> list[ProductUse]:
        """Return the used cards by product, the product with the most freed cards first."""
        cards, today, planned = Counter[str](), Counter[str](), self.used_by_product()
        for node in self.demand.nodes:
            cards[node.product] += len(node.layouts)
        for use in self.card_uses():
            today[use.product] += use.today
        rows = [
            ProductUse(product, cards[product], today[product], planned[product], self.cost_of({product: freed}))
            for product, freed in ((product, today[product] - planned[product]) for product in cards)
        ]
        return sorted(rows, key=lambda row: (-row.freed.milli, row.product))

    def host_shortages(self) -> list[HostShortage]:
        """Return the products whose nodes with used cards have less CPU or memory than their pods request."""
        have, need = self._host_capacity(), self._host_use()
        found = (
            HostShortage(product, name, nodes, need[product][place] / unit, have[product][place] / unit)
            for product, nodes in sorted(self._used_nodes().items())
            for place, (name, unit) in enumerate(HOST_RESOURCES)
        )
        return [each for each in found if each.requested > each.available]

    def _used_nodes(self) -> Counter[str]:
        """Return the number of nodes with used cards, by product."""
        used = Counter[str]()
        for group in self.plan.used_nodes:
            used[group.product] += group.nodes if group.layouts else 0
        return +used

    def _host_capacity(self) -> dict[str, HostUse]:
        """Return what as many average nodes have as have used cards, by product."""
        used, nodes = self._used_nodes(), Counter(node.product for node in self.demand.nodes)
        cpu, memory = Counter[str](), Counter[str]()
        for node in self.demand.nodes:
            cpu[node.product] += node.cpu_milli
            memory[node.product] += node.memory
        return {
            product: HostUse(cpu[product] * count // nodes[product], memory[product] * count // nodes[product])
            for product, count in used.items()
        }

    def _host_use(self) -> Mapping[str, HostUse]:
        """Return what the pods that the plan serves request, by product."""
        cpu, memory = Counter[str](), Counter[str]()
        for need, served in zip(self.demand.needs, self.plan.served, strict=True):
            use = self.demand.host_use.get(need, HostUse())
            for unit, count in served.items():
                cpu[unit.product] += use.cpu_milli * count
                memory[unit.product] += use.memory * count
        return {product: HostUse(cpu[product], memory[product]) for product in self._used_nodes()}

    def used_by_product(self) -> Counter[str]:
        """Return the cards that the plan uses, by product."""
        planned = Counter[str]()
        for use in self.card_uses():
            planned[use.product] += use.planned
        return planned

    def cost_of(self, cards: Mapping[str, int]) -> GpuCost:
        """Return the cost of numbers of cards by product."""
        prices, total = self._card_prices(), NO_COST
        for product, count in cards.items():
            price = prices.get(card_product(product))
            total += GpuCost(count * CARD_MILLI, count * (price or 0), count * CARD_MILLI if price is None else 0)
        return total

    def freed(self) -> GpuCost:
        """Return the GPUs that the plan frees, with their price; negative if it needs more than today."""
        return sum((use.freed for use in self.product_uses()), NO_COST)


def layout_text(layout: MigLayout) -> str:
    """Format a layout.

    >>> layout_text((("1g.10gb", 4), ("3g.40gb", 1))), layout_text((("mps/4", 4),))
    ('4 x 1g.10gb + 1 x 3g.40gb', '4 x MPS')
    """
    return " + ".join(f"{count} x {_profile_text(profile)}" for profile, count in layout) or WHOLE_TEXT


SHARE_WORDS = {GpuForm.MPS: "MPS", GpuForm.TIME_SLICING: "time-sliced"}


def _profile_text(profile: str) -> str:
    share = share_of(profile)
    return SHARE_WORDS[share[0]] if share else profile


def node_layouts_text(layouts: Sequence[MigLayout]) -> str:
    """Format the layouts of a node's cards.

    >>> node_layouts_text([(), (("1g.10gb", 7),), ()])
    '2 cards whole, 1 card 7 x 1g.10gb'
    """
    counts = sorted(Counter(layouts).items())
    return ", ".join(f"{pluralize(cards, 'card')} {layout_text(layout)}" for layout, cards in counts)


def unit_text(unit: CardUnit) -> str:
    """Format a unit.

    >>> unit_text(CardUnit("NVIDIA-A30", "1g.6gb")), unit_text(CardUnit("NVIDIA-A30", ""))
    ('1g.6gb of NVIDIA-A30', 'NVIDIA-A30 whole')
    """
    if share := share_of(unit.profile):
        return f"1/{share[1]} of {unit.product} ({SHARE_WORDS[share[0]]})"
    return f"{unit.profile} of {unit.product}" if unit.profile else f"{unit.product} {WHOLE_TEXT}"


def _need_text(need: UnitNeed) -> str:
    by_product: dict[str, list[CardUnit]] = {}
    for unit in need.units:
        by_product.setdefault(unit.product, []).append(unit)
    smallest = (unit_text(units[0]) + (" (or larger)" if len(units) > 1 else "") for units in by_product.values())
    units = (" or ".join(smallest) or "none that fits") + (f" ({need.together} together)" if need.together > 1 else "")
    return f"{units} in {need.namespace}" if need.namespace else units


def _nodes_text(nodes: Sequence[str]) -> str:
    """Format the only nodes of a need.

    >>> _nodes_text(["n1", "n2"]), _nodes_text([])
    (' on n1, n2 only', '')
    """
    return f" on {abbreviate_names(list(map(sanitize, nodes)))} only" if nodes else ""


def _served_text(row: NeedRow) -> str:
    return ", ".join(f"{requests} by {unit_text(unit)}" for unit, requests in sorted(row.served.items()))


def _change_text(change: int) -> str:
    """Format a difference.

    >>> _change_text(3), _change_text(-1), _change_text(0)
    ('+3', '-1', '0')
    """
    return f"{change:+d}" if change else "0"


LAYOUTS = Table[LayoutRow](
    (
        Column("product", lambda row: row.product, "Product"),
        Column("layout", lambda row: dict(row.layout), "Layout", lambda row: layout_text(row.layout)),
        Column("today", lambda row: row.today, "Today", numeric=True),
        Column("planned", lambda row: row.planned, "Planned", numeric=True),
        Column("", lambda row: row.planned - row.today, "Change", lambda row: _change_text(row.planned - row.today)),
    )
)


def _freed_columns(freed: Callable[[RowT], GpuCost]) -> tuple[Column[RowT], Column[RowT]]:
    """Return the columns of freed GPUs, and of their price."""
    return (
        Column("freed", lambda row: freed(row).milli // CARD_MILLI, "Freed", numeric=True),
        Column(
            "freedMicroPerHour",
            lambda row: freed(row).micro if freed(row).micro or not freed(row).unpriced_milli else None,
            "Freed per hour",
            lambda row: _price_text(freed(row)),
            numeric=True,
        ),
    )


def _price_text(freed: GpuCost, unit: str = "") -> str:
    """Format the price of freed GPUs, and how many of them have none.

    >>> _price_text(GpuCost(3000, 2_500_000, 1000)), _price_text(GpuCost(1000, 0, 1000)), _price_text(GpuCost())
    ('2.50, 1 card without price', 'no price', '0.00')
    """
    if not freed.unpriced_milli:
        return f"{money_text(freed.micro)}{unit}"
    unpriced = pluralize(freed.unpriced_milli // CARD_MILLI, "card")
    return f"{money_text(freed.micro)}{unit}, {unpriced} without price" if freed.micro else NO_PRICE


PRODUCTS = Table[ProductUse](
    (
        Column("product", lambda row: row.product, "Product"),
        Column("cards", lambda row: row.cards, "Cards", numeric=True),
        Column("usedToday", lambda row: row.today, "Used today", numeric=True),
        Column("usedPlanned", lambda row: row.planned, "Used as planned", numeric=True),
        *_freed_columns(lambda row: row.freed),
    )
)

STEPS = Table[ChangeStep](
    (
        Column("step", lambda row: row.number, "Step", numeric=True),
        Column(
            "nodes",
            lambda row: list(row.nodes),
            "Nodes",
            lambda row: abbreviate_names(row.nodes) or "none: the demand with today's layouts",
        ),
        Column("pods", lambda row: row.pods, "Evicts", numeric=True),
        *_freed_columns(lambda row: row.freed),
        Column("unserved", lambda row: row.unserved, "Unserved", numeric=True),
    )
)

NEEDS = Table[NeedRow](
    (
        Column("requests", lambda row: row.requests, "Units", numeric=True),
        Column("now", lambda row: row.now),
        Column("namespace", lambda row: row.need.namespace or None),
        Column("origin", lambda row: row.need.origin.value, "Origin"),
        Column("together", lambda row: row.need.together),
        Column("nodes", lambda row: list(row.nodes) or None),
        Column("quotas", lambda row: list(dict.fromkeys(quota.name for quota in row.need.quotas)) or None),
        Column(
            "units",
            lambda row: [unit._asdict() for unit in row.need.units],
            "Need",
            lambda row: _need_text(row.need) + _nodes_text(row.nodes),
        ),
        Column(
            "served",
            lambda row: [{**unit._asdict(), "requests": count} for unit, count in sorted(row.served.items())],
            "Served",
            _served_text,
        ),
        Column("unserved", lambda row: row.unserved, "Unserved", numeric=True),
        Column("reason", lambda row: row.reason, "Reason"),
    )
)

CHANGES = Table[NodeChange](
    (
        Column("node", lambda row: row.node.node, "Node"),
        Column("product", lambda row: row.node.product),
        Column("pods", lambda row: row.node.pods, "Pods", numeric=True),
        Column(
            "today",
            lambda row: [dict(layout) for layout in row.node.layouts],
            "Today",
            lambda row: node_layouts_text(row.node.layouts),
        ),
        Column(
            "planned",
            lambda row: [dict(layout) for layout in row.layouts],
            "Planned",
            lambda row: node_layouts_text(row.layouts),
        ),
    )
)


def layout_lines(layout: ClusterLayout, paint: Paint = without_style) -> Iterator[str]:
    """Yield the plan for a terminal: the figures, the layouts, the demand, and the nodes that change."""
    if not layout.demand.nodes:
        yield NO_CARDS
        yield from _unplanned_lines(layout)
        return
    yield from _summary_lines(layout)
    yield ""
    yield from PRODUCTS.to_lines(layout.product_uses(), paint)
    yield ""
    yield from LAYOUTS.to_lines(layout.layout_rows(), paint)
    if rows := layout.shown_needs():
        yield ""
        yield from NEEDS.to_lines(rows, paint)
    if layout.steps:
        yield ""
        yield from STEPS.to_lines(layout.steps, paint)
    if layout.changes:
        yield ""
        yield from CHANGES.to_lines(layout.changes, paint)


def _summary_lines(layout: ClusterLayout) -> Iterator[str]:
    yield f"Cards used             {used_text(layout)}"
    yield f"Lower bound            {layout.lower_bound}: {proof_text(layout)}"
    yield f"Changes                {changes_text(layout)}"
    yield from drain_lines(layout)
    units = pluralize(sum(layout.demand.needs.values()), "unit")
    yield f"Unserved               {layout.plan.unserved.value} of {units}: slices, shares and whole cards"
    yield from note_lines(layout)


def used_text(layout: ClusterLayout) -> str:
    """Return the cards that are used, and what that frees."""
    return f"{layout.used_planned} of {layout.cards}, {layout.used_today} today: {freed_text(layout)}"


def drain_lines(layout: ClusterLayout) -> Iterator[str]:
    """Yield the plan in which nodes that run pods with GPUs keep their layouts, if this one is better."""
    if layout.without_drains is not None:
        yield f"Without drains         {_without_drains_text(layout, layout.without_drains)}"


def _without_drains_text(layout: ClusterLayout, idle: ClusterLayout) -> str:
    """Return what changes without drains, the cards that are used then, and the requests that are not served."""
    more = idle.plan.unserved.value - layout.plan.unserved.value
    unserved = f"; {pluralize(more, 'more unit')} unserved, if all pods are created again" if more else ""
    if idle.changes:
        return f"{used_text(idle)}; changes {changes_text(idle)}{unserved}"
    used = idle.used_planned
    cards = f"; the demand then uses {used} cards, {idle.used_today} today" if used != idle.used_today else ""
    return f"no layout changes{cards}{unserved}"


def note_lines(layout: ClusterLayout) -> Iterator[str]:
    """Yield further facts about the plan."""
    if layout.demand.record:
        yield from _record_lines(layout.demand.record)
    if layout.recorded:
        yield f"Recorded demand        {_recorded_text(layout.recorded)}"
    if layout.demand.headroom:
        yield f"Headroom               {layout.demand.headroom}% more units of each need, rounded up"
    if layout.demand.waiting_pods:
        yield f"Waiting pods           {layout.demand.waiting_pods}: {_waiting_text(layout)}"
    if layout.demand.waiting_whole:
        yield f"Wait for whole cards   {_reasons_text(layout.demand.waiting_whole)}, for waiting pods"
    if layout.demand.kept_whole:
        yield f"Whole cards that stay  {_reasons_text(layout.demand.kept_whole)}, with running pods"
    if layout.demand.resized_pods:
        pods = pluralize(layout.demand.resized_pods, "running pod")
        yield f"To be recreated        {pods}: only new pods get a smaller GPU"
    for each in layout.host_shortages():
        yield f"Too little {each.resource:<12}{_shortage_text(each)}"
    yield from _blocked_lines(layout)
    yield from _unplanned_lines(layout)
    if layout.policies:
        names = abbreviate_names([policy["metadata"]["name"] for policy in layout.policies])
        yield f"Not enforced           {names}: pods keep whole cards until rightSizing.mode is enforce"
    if layout.prices:
        yield f"Prices                 {sanitize(layout.prices.source)}"


def _shortage_text(each: HostShortage) -> str:
    """Format a shortage.

    >>> _shortage_text(HostShortage("NVIDIA-A30", "CPU", 2, 112.0, 96.0))
    'pods on 2 nodes with NVIDIA-A30 request 112 CPUs, and these have 96: some may wait'
    """
    unit = "CPUs" if each.resource == "CPU" else "GiB"
    nodes = f"{pluralize(each.nodes, 'node')} with {sanitize(each.product)}"
    return f"pods on {nodes} request {each.requested:g} {unit}, and these have {each.available:g}: some may wait"


def _waiting_text(layout: ClusterLayout) -> str:
    if layout.unserved_waiting_pods is None:
        return "they count in the last part of the recorded time only"
    served = layout.demand.waiting_pods - layout.unserved_waiting_pods
    return f"the plan serves {served} of them, which use no cards today"


def _recorded_text(recorded: RecordedService) -> str:
    served, pods = _share_text(recorded.served, recorded.requests), pluralize(recorded.pods, "recorded pod")
    period = f"from {_time_text(recorded.start)} to {_time_text(recorded.end)}"
    return f"the planned cards would serve {served} of what {pods} needed {period}; see --quantile"


def _reasons_text(cards: Mapping[str, int]) -> str:
    """Format a number of cards by reason, the most first.

    >>> _reasons_text({"NoEvidence": 1, "MultipleGPUs": 4})
    '5 (4 MultipleGPUs, 1 NoEvidence)'
    """
    ordered = sorted(cards.items(), key=lambda each: (-each[1], each))
    return f"{sum(cards.values())} ({', '.join(f'{count} {reason}' for reason, count in ordered)})"


def _blocked_lines(layout: ClusterLayout) -> Iterator[str]:
    """Yield the nodes that no plan drains, by the reason."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for node in layout.demand.nodes:
        if node.is_blocked:
            by_reason[node.drain.forbidden].append(sanitize(node.node))
    for reason, names in sorted(by_reason.items()):
        nodes = f"{pluralize(len(names), 'node')} ({abbreviate_names(names)})"
        yield f"Not drained            {nodes}: {sanitize(reason) or UNKNOWN_BUDGETS}"


def _unplanned_lines(layout: ClusterLayout) -> Iterator[str]:
    """Yield the nodes that are not planned by the reason, and the pods on them."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for node in layout.unplanned:
        by_reason[node.reason].append(sanitize(node.node))
    for reason, names in sorted(by_reason.items()):
        yield f"Not planned            {pluralize(len(names), 'node')} ({abbreviate_names(names)}): {reason}"
    yield from _unplanned_pods(layout)


def _unplanned_pods(layout: ClusterLayout) -> Iterator[str]:
    if layout.demand.pods_elsewhere:
        pods = pluralize(layout.demand.pods_elsewhere, "pod")
        yield f"Not planned            {pods} with GPUs on nodes that are not planned, or waiting for such nodes"
    if layout.unplanned_pods:
        pods, names = pluralize(len(layout.unplanned_pods), "pod"), sanitize(abbreviate_names(layout.unplanned_pods))
        yield f"Not planned            {pods} ({names}): with GPUs of ResourceClaims, or of unknown resource names"


def _record_lines(record: DemandRecord) -> Iterator[str]:
    period = f"{_time_text(record.start)} to {_time_text(record.end)}"
    pods = pluralize(record.pods, "recorded pod")
    yield f"Demand                 enough for {100 * record.quantile:g}% of the time from {period}, of {pods}"
    if record.unrecorded_pods:
        yield f"Not recorded           {pluralize(record.unrecorded_pods, 'running pod')}, which count at any time"
    held = record.held_out
    if held is None:
        yield "Not used to plan       -: the record is too short to plan with one part and test with the other"
        return
    later, earlier = _share_text(held.served, held.requests), _share_text(held.earlier_served, held.earlier_requests)
    yield f"Not used to plan       {later} served from {_time_text(held.start)} on by a plan from the time before"
    yield f"Used to plan           {earlier} served before"


def _time_text(seconds: int) -> str:
    """Format a time.

    >>> _time_text(1780272000)
    '2026-06-01T00:00Z'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%MZ}"


def _share_text(served: int, requests: int) -> str:
    """Format a part of requests, rounded down.

    >>> _share_text(9999, 10000), _share_text(0, 0)
    ('99.9%', '100.0%')
    """
    return format_percent(1000 * served // requests if requests else 1000)


def changes_text(layout: ClusterLayout) -> str:
    """Return the number of changes, and what must be drained for them."""
    if not layout.changes:
        return "none"
    cards, nodes = pluralize(layout.changed_cards, "card"), pluralize(len(layout.changes), "node")
    busy = sum(bool(change.node.pods) for change in layout.changes)
    drained = f"; {pluralize(busy, 'node')} must be drained" if busy else " without GPU pods"
    return f"{cards} on {nodes}{drained}"


def freed_text(layout: ClusterLayout) -> str:
    """Return the GPUs that the plan frees, with their price if there are prices."""
    freed = layout.freed()
    gpus = pluralize(abs(freed.milli) // CARD_MILLI, "card")
    text = f"{gpus} {'freed' if freed.milli >= 0 else 'more'}"
    if not layout.prices or not freed.milli:
        return text
    unit = f" {layout.prices.currency}/h"
    if freed.micro >= 0:
        return f"{text}, {_price_text(freed, unit)}"
    return f"{text}, costs {_price_text(GpuCost(-freed.milli, -freed.micro, -freed.unpriced_milli), f'{unit} more')}"


def proof_text(layout: ClusterLayout) -> str:
    """Return the meaning of the lower bound: that the plan is proved best, or what another could save."""
    if layout.plan.is_optimal:
        return "no layouts serve as much with fewer cards"
    unserved, used = layout.plan.unserved, layout.plan.used
    if unserved.value > unserved.bound:
        return f"time ended; other layouts may serve {unserved.value - unserved.bound} more units"
    return f"time ended; other layouts may use {used.value - used.bound} fewer cards"


def layout_document(layout: ClusterLayout) -> Json:
    """Return the plan as plain data."""
    freed = layout.freed()
    return {
        "cardsUsed": {
            "today": layout.used_today,
            "planned": layout.used_planned,
            "lowerBound": layout.lower_bound,
        },
        "optimal": layout.plan.is_optimal,
        "cardsChanged": layout.changed_cards,
        "withoutDrains": layout.without_drains and _without_drains_document(layout.without_drains),
        "unserved": {"requests": layout.plan.unserved.value, "lowerBound": layout.plan.unserved.bound},
        "freed": {
            "gpus": freed.milli // CARD_MILLI,
            "microPerHour": freed.micro if layout.prices else None,
            "currency": layout.prices.currency if layout.prices else None,
            "unpricedGpus": freed.unpriced_milli // CARD_MILLI if layout.prices else None,
        },
        "waitingPods": layout.demand.waiting_pods,
        "waitingPodsUnserved": layout.unserved_waiting_pods,
        "waitingWhole": dict(layout.demand.waiting_whole),
        "keptWhole": dict(layout.demand.kept_whole),
        "podsToCreateAgain": layout.demand.resized_pods,
        "podsElsewhere": layout.demand.pods_elsewhere,
        "notDrained": {node.node: node.drain.forbidden or None for node in layout.demand.nodes if node.is_blocked},
        "hostShortages": [each._asdict() for each in layout.host_shortages()],
        "podsNotPlanned": list(layout.unplanned_pods),
        "nodesNotPlanned": [{"node": each.node, "reason": each.reason} for each in layout.unplanned],
        "unenforcedPolicies": [policy["metadata"]["name"] for policy in layout.policies],
        "record": _record_document(layout.demand.record) if layout.demand.record else None,
        "products": list(map(PRODUCTS.to_document, layout.product_uses())),
        "recorded": layout.recorded and _recorded_document(layout.recorded),
        "steps": list(map(STEPS.to_document, layout.steps)),
        "layouts": list(map(LAYOUTS.to_document, layout.layout_rows())),
        "demand": list(map(NEEDS.to_document, layout.shown_needs())),
        "nodes": list(map(CHANGES.to_document, layout.changes)),
    }


def _without_drains_document(layout: ClusterLayout) -> Json:
    return {
        "cardsUsed": layout.used_planned,
        "cardsChanged": layout.changed_cards,
        "unserved": layout.plan.unserved.value,
        "nodes": [change.node.node for change in layout.changes],
    }


def _recorded_document(recorded: RecordedService) -> Json:
    return {
        "start": _time_text(recorded.start),
        "end": _time_text(recorded.end),
        "pods": recorded.pods,
        "servedShare": recorded.served / recorded.requests if recorded.requests else 1.0,
    }


def _record_document(record: DemandRecord) -> Json:
    held = record.held_out
    return {
        "quantile": record.quantile,
        "start": _time_text(record.start),
        "end": _time_text(record.end),
        "bins": record.bins,
        "pods": record.pods,
        "unrecordedPods": record.unrecorded_pods,
        "heldOut": held
        and {
            "start": _time_text(held.start),
            "servedShare": held.served / held.requests if held.requests else 1.0,
            "earlierServedShare": held.earlier_served / held.earlier_requests if held.earlier_requests else 1.0,
        },
    }
