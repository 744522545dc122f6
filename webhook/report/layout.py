"""The result of `layout`: the MIG layouts of a cluster today and as planned, and the demand that they serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.node_labels import card_product
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.prices import NodePrices
from webhook.placement.layout_plan import WHOLE_CARD, CardUnit, LayoutPlan
from webhook.placement.mig import MigLayout, mig_geometry
from webhook.placement.node_layouts import NodeChange, UnplannedNode, nodes_by_product
from webhook.report.costs import NO_COST, GpuCost
from webhook.report.layout_demand import (
    DemandQuota,
    HostUse,
    LayoutDemand,
    RequestOrigin,
    UnitNeed,
    full_quotas,
    quotas_of,
    quotas_text,
)
from webhook.well_known import Json

HOST_RESOURCES = (("CPU", 1000), ("memory", 1 << 30))
"""The resources of `HostUse`, with the amount of a CPU, and of a GiB."""

NO_NODE = "no node that it may use can have the slices or shares that it requests"
NO_LARGE_NODE = "no node that it may use has enough GPUs besides those of other pods, or enough memory per GPU"
FEW_CARDS = "too few suitable cards are left for all GPUs of the pod together"
NO_CARD = "all cards that could serve it are used"
NO_IDLE_CARD = "all cards that could serve it are used, or on nodes with pods, which keep their layouts"


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
        node_labels: The labels of each node.
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
    node_labels: Mapping[str, Mapping[str, str]] = MappingProxyType({})

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
