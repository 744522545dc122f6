"""Utilization of a cluster in GPUs and in money, as `audit` reports it first. `docs/audit.md` defines each figure.

All GPUs fall into six parts that do not overlap: allocated GPUs are effective, over-requested or idle; free GPUs are
usable, fragmented or on unschedulable nodes. Requests of pending pods are in none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.prices import NodePrices
from webhook.report.capacity import NodeCapacity
from webhook.report.costs import (
    NO_COST,
    GpuCost,
    ProductPrice,
    gpu_cost,
    gpus_lower_bound,
    money_text,
    price_lines,
    prices_document,
    product_prices,
)
from webhook.report.text import format_gpus, format_gpus_with_unit, format_percent, pluralize, rounded_hundredths
from webhook.report.workloads import WorkloadReport


class ClusterUtilization(msgspec.Struct, frozen=True):
    """Usage of the GPUs of a cluster, in parts.

    Attributes:
        installed: Physical GPUs.
        allocatable: GPUs that nodes advertise.
        idle: Allocated to idle workloads.
        idle_unknown: Allocated to pods without usage data; counted as effective, although some may be idle.
        over_requested: Allocated to the others, and not needed by them.
        fragmented: Free, and unusable by a typical pod of this cluster.
        unschedulable: Free, on nodes that take no pods or on tainted devices.
        unknown: Allocated to claims or free, which is unknown.
        pending_pods: Pods with GPUs that have no node.
        pods_on_missing_nodes: Pods with GPUs whose node does not exist or has none; nothing is allocated to them.
        overcommitted_milli: What pods request beyond what their nodes have; not allocated.
        usage_coverage: Workloads with GPUs, also of claims, that have usage data, and all workloads with GPUs.
        unmeasured_now: The workloads with GPUs, also of claims, that have pods without usage data on nodes.
        prices: Prices behind the money; None if there are none.
        rates: The prices by product, most GPUs first.
    """

    installed: int
    allocatable: GpuCost
    allocated: GpuCost
    idle: GpuCost
    idle_unknown: GpuCost
    over_requested: GpuCost
    fragmented: GpuCost
    unschedulable: GpuCost
    unknown: GpuCost
    pending_pods: int
    pods_on_missing_nodes: int
    overcommitted_milli: int
    usage_coverage: tuple[int, int]
    unmeasured_now: int = 0
    prices: NodePrices | None = None
    rates: tuple[ProductPrice, ...] = ()

    @property
    def effective(self) -> GpuCost:
        """Allocated, neither idle nor over-requested, as far as known: at most this."""
        return self.allocated - self.idle - self.over_requested

    @property
    def waste(self) -> GpuCost:
        """Idle, over-requested and fragmented, as far as known: at least this."""
        return self.idle + self.over_requested + self.fragmented

    @property
    def usable(self) -> GpuCost:
        """Free, and usable by a typical pod of this cluster."""
        return self.allocatable - self.allocated - self.fragmented - self.unschedulable - self.unknown

    @property
    def allocated_or_usable(self) -> GpuCost:
        """Neither fragmented nor unschedulable."""
        return self.allocated + self.usable

    @property
    def allocated_share(self) -> int:
        """Allocated GPUs, in thousandths of the allocatable ones."""
        return _per_mille(self.allocated.milli, self.allocatable.milli)

    @property
    def has_usage_data(self) -> bool:
        """True if usage of a workload with GPUs is known; a cluster without such workloads has none."""
        return self.usage_coverage[0] > 0

    @property
    def utilization(self) -> int | None:
        """Effective GPUs, in thousandths of the allocatable ones; None without usage data."""
        if not self.has_usage_data:
            return None
        return _per_mille(self.effective.milli, self.allocatable.milli)

    @property
    def scheduling_efficiency(self) -> int:
        """GPUs that are allocated or usable, in thousandths of the allocatable ones."""
        return _per_mille(self.allocated_or_usable.milli, self.allocatable.milli)

    @property
    def at_most(self) -> str:
        """The words before a figure that idle GPUs would lower; "" if all idle GPUs are known."""
        return "at most " if self.idle_is_partial else ""

    @property
    def at_least(self) -> str:
        """The words before a figure that idle GPUs would raise; "" if all idle GPUs are known."""
        return "at least " if self.idle_is_partial else ""

    @property
    def idle_text(self) -> str:
        """The idle GPUs for people: "unknown" without usage data."""
        return "unknown" if self.idle_is_unknown else gpus_lower_bound(self.idle, self.idle_unknown)

    @property
    def idle_is_unknown(self) -> bool:
        """True without usage data, or if GPUs are allocated to pods without any and no other GPU is idle."""
        return self.idle_is_partial and not self.idle.milli

    @property
    def idle_is_partial(self) -> bool:
        """True if more GPUs may be idle than is known."""
        return bool(self.idle_unknown.milli) or not self.has_usage_data

    @property
    def parts(self) -> tuple[tuple[str, GpuCost], ...]:
        """The parts of all GPUs, in the order of a waterfall from all to the effective ones."""
        unknown = (("free or allocated", self.unknown),) if self.unknown.milli else ()
        return (
            *unknown,
            ("free and usable", self.usable),
            ("fragmented", self.fragmented),
            ("on unschedulable nodes", self.unschedulable),
            ("idle", self.idle),
            ("over-requested", self.over_requested),
            ("effective", self.effective),
        )


def compute_utilization(
    nodes: Sequence[NodeCapacity], workloads: Sequence[WorkloadReport], prices: NodePrices | None = None
) -> ClusterUtilization:
    """Sum up a cluster.

    Args:
        nodes: Every node with GPUs.
        workloads: Every workload, summed up over these nodes.
    """
    gpu_workloads = [row for row in workloads if row.has_gpus]
    return ClusterUtilization(
        installed=sum(node.installed_gpus for node in nodes),
        allocatable=sum((gpu_cost(node.name, node.total_milli, prices) for node in nodes), NO_COST),
        allocated=sum((gpu_cost(node.name, node.allocated_milli, prices) for node in nodes), NO_COST),
        idle=sum((row.idle for row in workloads), NO_COST),
        idle_unknown=sum((row.idle_unknown for row in workloads), NO_COST),
        over_requested=sum((row.over_requested for row in workloads), NO_COST),
        fragmented=sum((gpu_cost(node.name, node.fragmented_milli, prices) for node in nodes), NO_COST),
        unschedulable=sum((gpu_cost(node.name, node.unschedulable_milli, prices) for node in nodes), NO_COST),
        unknown=sum((gpu_cost(node.name, node.unknown_milli, prices) for node in nodes), NO_COST),
        pending_pods=sum(row.pending for row in gpu_workloads),
        pods_on_missing_nodes=sum(row.pods_on_missing_nodes for row in workloads),
        overcommitted_milli=sum(row.overcommitted_milli for row in workloads),
        usage_coverage=(sum(map(_is_measured, gpu_workloads)), len(gpu_workloads)),
        unmeasured_now=sum(row.idle_unknown.milli > 0 for row in workloads),
        prices=prices,
        rates=product_prices(nodes, prices) if prices is not None else (),
    )


def _is_measured(workload: WorkloadReport) -> bool:
    return any(usage.samples for usage in workload.usages)


def _per_mille(part: int, whole: int) -> int:
    return (part * 1000 + whole // 2) // whole if whole else 0


def utilization_lines(figures: ClusterUtilization) -> Iterator[str]:
    """Yield the figures for people, each next to those it is computed from."""
    total, allocated = format_gpus(figures.allocatable.milli), format_gpus(figures.allocated.milli)
    idle, over_requested = figures.idle_text, format_gpus(figures.over_requested.milli)
    fragmented = format_gpus(figures.fragmented.milli)
    yield f"Total GPUs             {figures.installed} installed, {total} allocatable, {allocated} allocated"
    yield (
        f"Effective GPUs         {figures.at_most}{format_gpus(figures.effective.milli)} "
        f"(allocated {allocated} - idle {idle} - over-requested {over_requested})"
    )
    yield (
        f"Wasted GPUs            {figures.at_least}{format_gpus(figures.waste.milli)} "
        f"(idle {idle} + over-requested {over_requested} + fragmented {fragmented})"
    )
    yield f"Utilization            {utilization_text(figures)}"
    yield f"Scheduling efficiency  {format_percent(figures.scheduling_efficiency)} (allocated or usable, of {total})"
    if figures.prices is not None:
        yield f"Cost per hour          {_cost_sentence(figures, figures.prices.currency)}"
        yield from price_lines(figures.prices, figures.rates)
    yield from utilization_caveats(figures)


def utilization_text(figures: ClusterUtilization) -> str:
    """Return the utilization for people, with what it is computed from; "no data" without usage data."""
    total = format_gpus(figures.allocatable.milli)
    if figures.utilization is None:
        return f"no data (allocated {format_percent(figures.allocated_share)} of {total})"
    return f"{figures.at_most}{format_percent(figures.utilization)} (effective of {total})"


def _cost_sentence(figures: ClusterUtilization, currency: str) -> str:
    if figures.allocatable.has_no_price:
        return "unknown: no GPU has a price"
    over_requested, fragmented = money_text(figures.over_requested.micro), money_text(figures.fragmented.micro)
    each = f"idle {idle_money_text(figures)}, over-requested {over_requested}, fragmented {fragmented}"
    total = f"{money_text(figures.allocatable.micro, currency)}{priced_share_text(figures)}"
    return f"{total}; wasted {figures.at_least}{money_text(figures.waste.micro, currency)} ({each})"


def idle_money_text(figures: ClusterUtilization) -> str:
    """Return the cost of the idle GPUs per hour; "unknown" without usage data."""
    return "unknown" if figures.idle_is_unknown else f"{figures.at_least}{money_text(figures.idle.micro)}"


def priced_share_text(figures: ClusterUtilization) -> str:
    """Return for how many GPUs the cost is known; "" if for all."""
    total, priced = figures.allocatable.milli, figures.allocatable.milli - figures.allocatable.unpriced_milli
    return f" for the {format_gpus(priced)} of {format_gpus(total)} GPUs that have a price" if priced < total else ""


def utilization_caveats(figures: ClusterUtilization) -> Iterator[str]:
    """Yield what the figures do not cover."""
    measured, workloads = figures.usage_coverage
    if measured < workloads:
        which = "it is unknown whether they are idle" if measured else "idle is unknown"
        unmeasured, now = workloads - measured, figures.unmeasured_now
        with_gpus = f"{pluralize(now, 'workload')} with GPUs now {'has' if now == 1 else 'have'} pods without it; "
        scope = "" if now == unmeasured else with_gpus if now else "none of these holds GPUs now; "
        yield f"No usage data for {unmeasured} of {pluralize(workloads, 'GPU workload')}; {scope}{which}."
    if figures.prices is not None and figures.allocatable.unpriced_milli:
        yield f"{_gpus_are(figures.allocatable.unpriced_milli)} without a price; the cost does not include them."
    if figures.unschedulable.milli:
        unschedulable = _gpus_are(figures.unschedulable.milli)
        yield f"{unschedulable} free on unschedulable nodes or tainted devices: neither allocated nor usable."
    if figures.unknown.milli:
        yield f"{_gpus_are(figures.unknown.milli)} free or allocated, which is unknown: resource claims cannot be read."
    if figures.pending_pods:
        yield f"{_pods_are(figures.pending_pods)} pending."
    if figures.pods_on_missing_nodes:
        yield f"{_pods_are(figures.pods_on_missing_nodes)} on nodes that do not exist or have no GPUs."
    if figures.overcommitted_milli:
        yield f"{_gpus_are(figures.overcommitted_milli)} requested beyond what the pods' nodes have; not allocated."
    if figures.allocatable.milli != CARD_MILLI * figures.installed:
        total = format_gpus(figures.allocatable.milli)
        offered = f"what nodes offer: cards, slices and shares; {figures.installed} are installed"
        yield f"The total of {total} adds up {offered}."
    if not _rounded_parts_add_up(figures):
        yield "Figures are rounded one by one, so the rounded parts can differ from their rounded sum."


def _rounded_parts_add_up(figures: ClusterUtilization) -> bool:
    def add_up(total: GpuCost, *parts: GpuCost) -> bool:
        return rounded_hundredths(total.milli) == sum(rounded_hundredths(part.milli) for part in parts)

    wasted = figures.idle, figures.over_requested, figures.fragmented
    return add_up(figures.waste, *wasted) and add_up(
        figures.allocated, figures.effective, figures.idle, figures.over_requested
    )


def _gpus_are(milli: int) -> str:
    return f"{format_gpus_with_unit(milli)} {'is' if milli == 1000 else 'are'}"


def _pods_are(number: int) -> str:
    return f"{pluralize(number, 'pod')} with GPUs {'is' if number == 1 else 'are'}"


def utilization_document(figures: ClusterUtilization) -> dict[str, Any]:
    """Return the figures as plain data."""
    parts = {
        "effective": figures.effective,
        "wasted": figures.waste,
        "idle": figures.idle,
        "overRequested": figures.over_requested,
        "fragmented": figures.fragmented,
        "unschedulable": figures.unschedulable,
        "unknown": figures.unknown,
    }
    data: dict[str, Any] = {
        "installedGpus": figures.installed,
        "allocatableMilli": figures.allocatable.milli,
        "allocatedMilli": figures.allocated.milli,
        **{f"{name}Milli": part.milli for name, part in parts.items()},
        "idleMilli": None if figures.idle_is_unknown else figures.idle.milli,
        "idleUnknownMilli": figures.idle_unknown.milli,
        "usableMilli": figures.usable.milli,
        "utilizationMilli": figures.utilization,
        "schedulingEfficiencyMilli": figures.scheduling_efficiency,
        "pendingPods": figures.pending_pods,
        "podsOnMissingNodes": figures.pods_on_missing_nodes,
        "overcommittedMilli": figures.overcommitted_milli,
        "gpuWorkloads": figures.usage_coverage[1],
        "gpuWorkloadsWithUsage": figures.usage_coverage[0],
    }
    if figures.prices is not None:
        data["cost"] = {
            **prices_document(figures.prices, figures.rates),
            "microPerHour": figures.allocatable.micro,
            **{f"{name}MicroPerHour": part.micro for name, part in parts.items()},
            "idleMicroPerHour": None if figures.idle_is_unknown else figures.idle.micro,
            "unpricedMilli": figures.allocatable.unpriced_milli,
        }
    return data
