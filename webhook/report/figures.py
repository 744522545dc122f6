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
from webhook.report.capacities import Stock
from webhook.report.costs import Rate, is_unpriced, money, price_lines, prices_document, rates_of
from webhook.report.words import count, gpus, in_gpus
from webhook.report.workloads import NOTHING, Spent, Workload, spent


class Figures(msgspec.Struct, frozen=True):
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

    physical: int
    total: Spent
    held: Spent
    idle: Spent
    over_asked: Spent
    lost: Spent
    closed: Spent
    on_trial_milli: int
    waiting: int
    astray: int
    beyond_milli: int
    seen: tuple[int, int]
    prices: NodePrices | None = None
    rates: tuple[Rate, ...] = ()

    @property
    def effective(self) -> Spent:
        """Held, and needed as far as is known."""
        return _less(self.held, self.idle, self.over_asked)

    @property
    def wasted(self) -> Spent:
        """Idle, over-asked, and lost to fragmentation."""
        return self.idle + self.over_asked + self.lost

    @property
    def usable(self) -> Spent:
        """Free, and of use to a pod like those that run here."""
        return _less(self.total, self.held, self.lost, self.closed)

    @property
    def reachable(self) -> Spent:
        """Held or still usable: what is neither lost to fragmentation nor on nodes that take no pods."""
        return self.held + self.usable

    @property
    def utilisation(self) -> int:
        """Effective GPUs, thousandths of all."""
        return _part(self.effective.milli, self.total.milli)

    @property
    def efficiency(self) -> int:
        """Scheduling efficiency: GPUs held or still usable, thousandths of all."""
        return _part(self.reachable.milli, self.total.milli)


def figures_of(stocks: Sequence[Stock], rows: Sequence[Workload], prices: NodePrices | None = None) -> Figures:
    """Add up a cluster.

    Args:
        stocks: Every node with GPUs.
        rows: Every workload, added up over these nodes.
    """
    with_gpus = [row for row in rows if row.uses]
    return Figures(
        physical=sum(stock.gpus for stock in stocks),
        total=_sum(spent(stock.name, stock.whole_milli, prices) for stock in stocks),
        held=_sum(spent(stock.name, stock.used_milli, prices) for stock in stocks),
        idle=_sum(row.idle for row in rows),
        over_asked=_sum(row.over_asked for row in rows),
        lost=_sum(spent(stock.name, stock.split_milli, prices) for stock in stocks),
        closed=_sum(spent(stock.name, stock.closed_milli, prices) for stock in stocks),
        on_trial_milli=sum(row.gpu_milli_on_trial for row in rows),
        waiting=sum(row.waiting for row in with_gpus),
        astray=sum(row.astray for row in rows),
        beyond_milli=sum(row.beyond_milli for row in rows),
        seen=(sum(any(use.samples for use in row.uses) for row in with_gpus), len(with_gpus)),
        prices=prices,
        rates=rates_of(stocks, prices) if prices is not None else (),
    )


def _sum(amounts: Iterable[Spent]) -> Spent:
    total = NOTHING
    for amount in amounts:
        total += amount
    return total


def _less(whole: Spent, *parts: Spent) -> Spent:
    taken = _sum(parts)
    return Spent(whole.milli - taken.milli, whole.micro - taken.micro, whole.unpriced_milli - taken.unpriced_milli)


def _part(some: int, whole: int) -> int:
    return (some * 1000 + whole // 2) // whole if whole else 0


def parts_of(figures: Figures) -> tuple[tuple[str, Spent], ...]:
    """The parts that all GPUs fall into, in the order of a waterfall from all of them to the effective ones."""
    return (
        ("free and usable", figures.usable),
        ("lost to fragmentation", figures.lost),
        ("on closed nodes", figures.closed),
        ("idle", figures.idle),
        ("over-asked", figures.over_asked),
        ("effective", figures.effective),
    )


def figures_lines(figures: Figures) -> Iterator[str]:
    """The head of the report for people: each figure beside those that it comes from."""
    total, held = figures.total.milli, gpus(figures.held.milli)
    yield f"Total GPUs             {figures.physical} built in, {gpus(total)} given out, {held} held"
    taken = f"held, less {gpus(figures.idle.milli)} idle and {gpus(figures.over_asked.milli)} over-asked"
    yield f"Effective GPUs         {gpus(figures.effective.milli)} ({taken})"
    wasted = ("idle", figures.idle), ("over-asked", figures.over_asked), ("lost to fragmentation", figures.lost)
    parts = " + ".join(f"{name} {gpus(some.milli)}" for name, some in wasted)
    yield f"Wasted GPUs            {gpus(figures.wasted.milli)} ({parts})"
    yield f"Utilisation            {percent(figures.utilisation)} (effective of {gpus(total)})"
    yield f"Scheduling efficiency  {percent(figures.efficiency)} (held or still usable, of {gpus(total)})"
    yield from money_lines(figures)
    yield from caveats(figures)


def money_lines(figures: Figures) -> Iterator[str]:
    """What it costs and what is wasted, with the prices it comes from; nothing where there are none."""
    if figures.prices is None:
        return
    say = figures.prices.currency
    kinds = (("idle", figures.idle), ("over-asked", figures.over_asked), ("lost to fragmentation", figures.lost))
    each = ", ".join(f"{name} {money(some.micro)}" for name, some in kinds)
    wasted = money(figures.wasted.micro, say)
    if is_unpriced(figures.total):
        yield "Cost an hour           not known: no GPU has a price"
    else:
        whole = f"{money(figures.total.micro, say)}{of_priced(figures)}"
        yield f"Cost an hour           {whole}; wasted {wasted} ({each})"
    yield from price_lines(figures.prices, figures.rates)


def of_priced(figures: Figures) -> str:
    """Of how many GPUs the money is, where it is not of all; "" where it is."""
    total, known = figures.total.milli, figures.total.milli - figures.total.unpriced_milli
    return f" for the {gpus(known)} of {gpus(total)} GPUs that have a price" if known < total else ""


def caveats(figures: Figures) -> Iterator[str]:
    """What the figures leave out."""
    seen, workloads = figures.seen
    if workloads:
        others = ": none of the others counts as idle" if seen < workloads else ""
        yield f"Use was seen of {seen} of {count(workloads, 'workload')} with GPUs{others}."
    if figures.prices is not None and figures.total.unpriced_milli:
        yield f"{gpus(figures.total.unpriced_milli)} GPUs have no price, and no money is counted for them."
    if figures.closed.milli:
        are = f"{in_gpus(figures.closed.milli)} {'is' if figures.closed.milli == 1000 else 'are'}"
        yield f"{are} free on closed nodes, which take no pods: neither held nor usable."
    if figures.waiting:
        yield f"{count(figures.waiting, 'pod')} with GPUs {'waits' if figures.waiting == 1 else 'wait'} for a node."
    yield from _unheld(figures)


def _unheld(figures: Figures) -> Iterator[str]:
    """What pods ask for of nodes that do not have it."""
    if figures.astray:
        verbs = ("is", "holds") if figures.astray == 1 else ("are", "hold")
        who = f"{count(figures.astray, 'pod')} with GPUs {verbs[0]} on nodes"
        yield f"{who} that are not there, or give out none, and {verbs[1]} nothing."
    if figures.beyond_milli:
        verb, what = ("is", "it") if figures.beyond_milli == 1000 else ("are", "them")
        more = f"{in_gpus(figures.beyond_milli)} {verb} more than these give out"
        yield f"Of what pods ask of their nodes, {more}: nobody holds {what}."


def percent(milli: int) -> str:
    """Thousandths as percent.

    >>> percent(625), percent(-385)
    ('62.5%', '-38.5%')
    """
    return f"{'-' if milli < 0 else ''}{abs(milli) // 10}.{abs(milli) % 10}%"


def figures_document(figures: Figures) -> dict[str, Any]:
    """The same as plain data."""
    data: dict[str, Any] = {
        "physicalGpus": figures.physical,
        "totalMilli": figures.total.milli,
        "heldMilli": figures.held.milli,
        "effectiveMilli": figures.effective.milli,
        "wastedMilli": figures.wasted.milli,
        "idleMilli": figures.idle.milli,
        "overAskedMilli": figures.over_asked.milli,
        "lostToFragmentationMilli": figures.lost.milli,
        "closedMilli": figures.closed.milli,
        "usableMilli": figures.usable.milli,
        "utilisationMilli": figures.utilisation,
        "schedulingEfficiencyMilli": figures.efficiency,
        "waitingPods": figures.waiting,
        "astrayPods": figures.astray,
        "beyondMilli": figures.beyond_milli,
        "workloadsWithGpus": figures.seen[1],
        "workloadsSeen": figures.seen[0],
    }
    return data | ({"cost": _cost(figures, figures.prices)} if figures.prices is not None else {})


def _cost(figures: Figures, prices: NodePrices) -> dict[str, Any]:
    return prices_document(prices, figures.rates) | {
        "microPerHour": figures.total.micro,
        "effectiveMicroPerHour": figures.effective.micro,
        "wastedMicroPerHour": figures.wasted.micro,
        "idleMicroPerHour": figures.idle.micro,
        "overAskedMicroPerHour": figures.over_asked.micro,
        "lostToFragmentationMicroPerHour": figures.lost.micro,
        "closedMicroPerHour": figures.closed.micro,
        "unpricedMilli": figures.total.unpriced_milli,
    }
