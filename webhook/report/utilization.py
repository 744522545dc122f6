"""The head figures of a cluster: where its GPUs go, in GPUs and in money. `docs/audit.md` defines each.

All GPUs fall into six parts that do not overlap and leave nothing over: what is held is effective, over-asked or
idle; what is free is usable, lost to fragmentation, or on nodes that take no pods. What pods wait for is in none of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from webhook.model.prices import NodePrices
from webhook.report.capacity import NodeCapacity
from webhook.report.costs import ProductPrice, has_no_price, money_text, price_lines, prices_document, product_prices
from webhook.report.text import format_gpus, format_gpus_with_unit, pluralize
from webhook.report.workloads import NO_COST, GpuCost, WorkloadReport, gpu_cost


class ClusterUtilization(msgspec.Struct, frozen=True):
    """Where the GPUs of a cluster go.

    Attributes:
        physical: GPUs that are built in.
        total: What the nodes give out, in thousandths of a GPU.
        held: The part that pods hold.
        idle: Held by workloads that do nothing with it.
        over_asked: Held by the others, and not needed by them.
        lost: Free, and of no use to a pod like those that run here, on average.
        closed: Free, on nodes that take no pods.
        on_trial_milli: The part of `over_asked` that right-sizings on trial would free.
        waiting: Pods with GPUs that have no node.
        astray: Pods with GPUs whose node is not there, or gives out none: they hold nothing.
        beyond_milli: What pods ask of their nodes beyond what these give out: nobody holds it.
        seen: Workloads with GPUs whose use was seen, and how many there are.
        prices: Where the money comes from; None where no prices are given.
        rates: The prices that it was reckoned with, most GPUs first.
    """

    installed: int
    allocatable: GpuCost
    allocated: GpuCost
    idle: GpuCost
    over_requested: GpuCost
    fragmented: GpuCost
    unschedulable: GpuCost
    audit_saved_milli: int
    pending_pods: int
    pods_on_missing_nodes: int
    overcommitted_milli: int
    usage_coverage: tuple[int, int]
    prices: NodePrices | None = None
    rates: tuple[ProductPrice, ...] = ()

    @property
    def effective(self) -> GpuCost:
        """Held, and needed as far as is known."""
        return _subtract_costs(self.allocated, self.idle, self.over_requested)

    @property
    def waste(self) -> GpuCost:
        """Idle, over-asked, and lost to fragmentation."""
        return self.idle + self.over_requested + self.fragmented

    @property
    def usable(self) -> GpuCost:
        """Free, and of use to a pod like those that run here."""
        return _subtract_costs(self.allocatable, self.allocated, self.fragmented, self.unschedulable)

    @property
    def allocated_or_usable(self) -> GpuCost:
        """Held or still usable: what is neither lost to fragmentation nor on nodes that take no pods."""
        return self.allocated + self.usable

    @property
    def utilization(self) -> int:
        """Effective GPUs, thousandths of all."""
        return _per_mille(self.effective.milli, self.allocatable.milli)

    @property
    def scheduling_efficiency(self) -> int:
        """Scheduling efficiency: GPUs held or still usable, thousandths of all."""
        return _per_mille(self.allocated_or_usable.milli, self.allocatable.milli)


def compute_utilization(
    stocks: Sequence[NodeCapacity], rows: Sequence[WorkloadReport], prices: NodePrices | None = None
) -> ClusterUtilization:
    """Add up a cluster.

    Args:
        stocks: Every node with GPUs.
        rows: Every workload, added up over these nodes.
    """
    with_gpus = [row for row in rows if row.usages]
    return ClusterUtilization(
        installed=sum(stock.installed_gpus for stock in stocks),
        allocatable=_sum_costs(gpu_cost(stock.name, stock.total_milli, prices) for stock in stocks),
        allocated=_sum_costs(gpu_cost(stock.name, stock.allocated_milli, prices) for stock in stocks),
        idle=_sum_costs(row.idle for row in rows),
        over_requested=_sum_costs(row.over_requested for row in rows),
        fragmented=_sum_costs(gpu_cost(stock.name, stock.fragmented_milli, prices) for stock in stocks),
        unschedulable=_sum_costs(gpu_cost(stock.name, stock.unschedulable_milli, prices) for stock in stocks),
        audit_saved_milli=sum(row.gpu_milli_audit_saved for row in rows),
        pending_pods=sum(row.pending for row in with_gpus),
        pods_on_missing_nodes=sum(row.pods_on_missing_nodes for row in rows),
        overcommitted_milli=sum(row.overcommitted_milli for row in rows),
        usage_coverage=(sum(any(use.samples for use in row.usages) for row in with_gpus), len(with_gpus)),
        prices=prices,
        rates=product_prices(stocks, prices) if prices is not None else (),
    )


def _sum_costs(amounts: Iterable[GpuCost]) -> GpuCost:
    total = NO_COST
    for amount in amounts:
        total += amount
    return total


def _subtract_costs(whole: GpuCost, *parts: GpuCost) -> GpuCost:
    taken = _sum_costs(parts)
    return GpuCost(whole.milli - taken.milli, whole.micro - taken.micro, whole.unpriced_milli - taken.unpriced_milli)


def _per_mille(some: int, whole: int) -> int:
    return (some * 1000 + whole // 2) // whole if whole else 0


def utilization_parts(figures: ClusterUtilization) -> tuple[tuple[str, GpuCost], ...]:
    """The parts that all GPUs fall into, in the order of a waterfall from all of them to the effective ones."""
    return (
        ("free and usable", figures.usable),
        ("lost to fragmentation", figures.fragmented),
        ("on closed nodes", figures.unschedulable),
        ("idle", figures.idle),
        ("over-asked", figures.over_requested),
        ("effective", figures.effective),
    )


def utilization_lines(figures: ClusterUtilization) -> Iterator[str]:
    """The head of the report for people: each figure beside those that it comes from."""
    total, held = figures.allocatable.milli, format_gpus(figures.allocated.milli)
    yield f"Total GPUs             {figures.installed} built in, {format_gpus(total)} given out, {held} held"
    taken = (
        f"held, less {format_gpus(figures.idle.milli)} idle and {format_gpus(figures.over_requested.milli)} over-asked"
    )
    yield f"Effective GPUs         {format_gpus(figures.effective.milli)} ({taken})"
    wasted = (
        ("idle", figures.idle),
        ("over-asked", figures.over_requested),
        ("lost to fragmentation", figures.fragmented),
    )
    parts = " + ".join(f"{name} {format_gpus(some.milli)}" for name, some in wasted)
    yield f"Wasted GPUs            {format_gpus(figures.waste.milli)} ({parts})"
    yield f"Utilisation            {percent_text(figures.utilization)} (effective of {format_gpus(total)})"
    yield (
        f"Scheduling efficiency  {percent_text(figures.scheduling_efficiency)} "
        f"(held or still usable, of {format_gpus(total)})"
    )
    yield from cost_lines(figures)
    yield from utilization_caveats(figures)


def cost_lines(figures: ClusterUtilization) -> Iterator[str]:
    """What it costs and what is wasted, with the prices it comes from; nothing where there are none."""
    if figures.prices is None:
        return
    say = figures.prices.currency
    kinds = (
        ("idle", figures.idle),
        ("over-asked", figures.over_requested),
        ("lost to fragmentation", figures.fragmented),
    )
    each = ", ".join(f"{name} {money_text(some.micro)}" for name, some in kinds)
    wasted = money_text(figures.waste.micro, say)
    if has_no_price(figures.allocatable):
        yield "Cost an hour           not known: no GPU has a price"
    else:
        whole = f"{money_text(figures.allocatable.micro, say)}{priced_share_text(figures)}"
        yield f"Cost an hour           {whole}; wasted {wasted} ({each})"
    yield from price_lines(figures.prices, figures.rates)


def priced_share_text(figures: ClusterUtilization) -> str:
    """Of how many GPUs the money is, where it is not of all; "" where it is."""
    total, known = figures.allocatable.milli, figures.allocatable.milli - figures.allocatable.unpriced_milli
    return f" for the {format_gpus(known)} of {format_gpus(total)} GPUs that have a price" if known < total else ""


def utilization_caveats(figures: ClusterUtilization) -> Iterator[str]:
    """What the figures leave out."""
    seen, workloads = figures.usage_coverage
    if workloads:
        others = ": none of the others counts as idle" if seen < workloads else ""
        yield f"Use was seen of {seen} of {pluralize(workloads, 'workload')} with GPUs{others}."
    if figures.prices is not None and figures.allocatable.unpriced_milli:
        yield f"{format_gpus(figures.allocatable.unpriced_milli)} GPUs have no price, and no money is counted for them."
    if figures.unschedulable.milli:
        are = (
            f"{format_gpus_with_unit(figures.unschedulable.milli)} "
            f"{'is' if figures.unschedulable.milli == 1000 else 'are'}"
        )
        yield f"{are} free on closed nodes, which take no pods: neither held nor usable."
    if figures.pending_pods:
        yield (
            f"{pluralize(figures.pending_pods, 'pod')} with GPUs "
            f"{'waits' if figures.pending_pods == 1 else 'wait'} for a node."
        )
    yield from _unsatisfied_requests(figures)


def _unsatisfied_requests(figures: ClusterUtilization) -> Iterator[str]:
    """What pods ask for of nodes that do not have it."""
    if figures.pods_on_missing_nodes:
        verbs = ("is", "holds") if figures.pods_on_missing_nodes == 1 else ("are", "hold")
        who = f"{pluralize(figures.pods_on_missing_nodes, 'pod')} with GPUs {verbs[0]} on nodes"
        yield f"{who} that are not there, or give out none, and {verbs[1]} nothing."
    if figures.overcommitted_milli:
        verb, what = ("is", "it") if figures.overcommitted_milli == 1000 else ("are", "them")
        more = f"{format_gpus_with_unit(figures.overcommitted_milli)} {verb} more than these give out"
        yield f"Of what pods ask of their nodes, {more}: nobody holds {what}."


def percent_text(milli: int) -> str:
    """Thousandths as percent.

    >>> percent(625), percent(-385)
    ('62.5%', '-38.5%')
    """
    return f"{'-' if milli < 0 else ''}{abs(milli) // 10}.{abs(milli) % 10}%"


def utilization_document(figures: ClusterUtilization) -> dict[str, Any]:
    """The same as plain data."""
    data: dict[str, Any] = {
        "physicalGpus": figures.installed,
        "totalMilli": figures.allocatable.milli,
        "heldMilli": figures.allocated.milli,
        "effectiveMilli": figures.effective.milli,
        "wastedMilli": figures.waste.milli,
        "idleMilli": figures.idle.milli,
        "overAskedMilli": figures.over_requested.milli,
        "lostToFragmentationMilli": figures.fragmented.milli,
        "closedMilli": figures.unschedulable.milli,
        "usableMilli": figures.usable.milli,
        "utilisationMilli": figures.utilization,
        "schedulingEfficiencyMilli": figures.scheduling_efficiency,
        "waitingPods": figures.pending_pods,
        "astrayPods": figures.pods_on_missing_nodes,
        "beyondMilli": figures.overcommitted_milli,
        "workloadsWithGpus": figures.usage_coverage[1],
        "workloadsSeen": figures.usage_coverage[0],
    }
    return data | ({"cost": _utilization_cost_document(figures, figures.prices)} if figures.prices is not None else {})


def _utilization_cost_document(figures: ClusterUtilization, prices: NodePrices) -> dict[str, Any]:
    return prices_document(prices, figures.rates) | {
        "microPerHour": figures.allocatable.micro,
        "effectiveMicroPerHour": figures.effective.micro,
        "wastedMicroPerHour": figures.waste.micro,
        "idleMicroPerHour": figures.idle.micro,
        "overAskedMicroPerHour": figures.over_requested.micro,
        "lostToFragmentationMicroPerHour": figures.fragmented.micro,
        "closedMicroPerHour": figures.unschedulable.micro,
        "unpricedMilli": figures.allocatable.unpriced_milli,
    }
