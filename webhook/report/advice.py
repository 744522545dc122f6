"""The result of `rightsize`: what each workload asks for of GPUs, was seen to use, is advised, and would save."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import Any

from msgspec.structs import replace

from webhook.model.prices import NodePrices
from webhook.model.quantity import nano, written
from webhook.report.costs import Rate, cost, micro_cell, prices_document
from webhook.report.results import Use
from webhook.report.wide import named
from webhook.report.words import Paint, Style, columns, gpus, plain, shown
from webhook.report.workload_tables import cell, spent_document, workload_document
from webhook.report.workloads import Spent, UseOfPods, Workload

HEAD = ("NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "ASKED", "USED", "ADVISED", "RISK", "SAVES")
CSV_HEAD = (
    *("namespace", "workload", "container", "pods", "asked", "resource", "used_memory_mib", "used_compute_milli"),
    *("samples", "preallocates", "advised", "meant", "risk_ppm", "gpu_milli_saved", "gpu_milli_on_trial", "currency"),
    *("freed_micro_per_hour", "reason", "unpriced_milli", "price_source"),
)
MIB = nano("1Mi")


def advice_table(rows: Iterable[Workload], paint: Paint = plain, currency: str = "") -> Iterator[str]:
    """A row for each container and amount of GPUs; the last cell of the first says why where there is no advice."""
    lines = [line for row in rows for line in _rows(row, currency)]
    head, *rest = columns([(*HEAD, ""), *lines])
    yield paint(head, Style.STRONG)
    yield from rest


def _rows(row: Workload, currency: str) -> Iterator[tuple[str, ...]]:
    for i, use in enumerate(row.uses):
        first = i == 0
        cells = (
            *(row.namespace, row.name, use.container, str(use.pods), f"{use.count} {use.resource}", used(use)),
            *(named(advised(row), row.meant), risk(use)),
            *((saves(row, currency), reason(row)) if first else ("", "")),
        )
        yield tuple(shown(cell) for cell in cells)


def used(use: Use) -> str:
    """What was seen, in words; "-" where nothing was.

    >>> used(Use("main", "nvidia.com/gpu", 1, memory_mib=9318, compute_milli=60, samples=4000))
    '9318Mi peak, 6% active'
    >>> used(Use("main", "nvidia.com/gpu", 1, memory_mib=9318, compute_milli=60, samples=4000, idle=True))
    '9318Mi peak, idle'
    """
    if not use.samples:
        return "-"
    memory = f"{written((use.memory_mib or 0) * MIB)} {'preallocated' if use.preallocates else 'peak'}"
    if use.idle:
        return f"{memory}, idle"
    return memory if use.compute_milli is None else f"{memory}, {use.compute_milli / 10:g}% active"


def advised(row: Workload) -> str:
    """The resource that one unit would become; "keep" where it stays."""
    return row.fit or "keep"


def risk(use: Use) -> str:
    """The share of pod-hours that would need more than what observed use advises; "-" where use advises nothing.

    >>> risk(Use("main", "nvidia.com/gpu", 1, risk_ppm=5000)), risk(Use("main", "nvidia.com/gpu", 1))
    ('0.5%/h', '-')
    """
    return "-" if use.risk_ppm is None else f"{use.risk_ppm / 10_000:g}%/h"


def saves(row: Workload, currency: str) -> str:
    """GPUs that would be free, and the money that it saves or costs where it has a price; "-" for none."""
    milli = row.saved + row.gpu_milli_on_trial
    if not milli:
        return "-"
    return f"{gpus(milli)} GPUs{_money(row.freed, currency) if currency and row.freed.milli else ''}"


def _money(freed: Spent, currency: str) -> str:
    if freed.micro >= 0:
        return f", {cost(freed, freed, f' {currency}/h')}"
    more = replace(freed, micro=-freed.micro)
    return f", costs {cost(more, more, f' {currency}/h more')}"


def reason(row: Workload) -> str:
    """Why the request stays, or in which mode the advice is."""
    if not row.fit:
        return row.outcome
    return "" if row.saved else "on trial"


def advice_csv(rows: Iterable[Workload], prices: NodePrices | None = None) -> str:
    """One line for each container and amount of GPUs, RFC 4180; savings are the workload's, on its first line."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_HEAD)
    for row in rows:
        for i, use in enumerate(row.uses):
            writer.writerow([cell(value) for value in _csv_row(row, use, prices, first=i == 0)])
    return text.getvalue()


def _csv_row(row: Workload, use: UseOfPods, prices: NodePrices | None, *, first: bool) -> tuple[object, ...]:
    currency, source = (prices.currency, prices.source) if prices else ("", "")
    micro = micro_cell(row.freed, row.freed) if prices else ""
    money = (currency, micro, reason(row), row.freed.unpriced_milli, source)
    saved = (row.saved, row.gpu_milli_on_trial, *money) if first else ("",) * 7
    return (
        *(row.namespace, row.name, use.container, use.pods, use.count, use.resource, _known(use.memory_mib)),
        *(_known(use.compute_milli), use.samples, str(use.preallocates).lower(), advised(row), row.meant),
        *(_known(use.risk_ppm), *saved),
    )


def _known(number: int | None) -> int | str:
    return "" if number is None else number


def advice_document(
    rows: Sequence[Workload], prices: NodePrices | None = None, rates: Sequence[Rate] = ()
) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "currency": prices.currency if prices else None,
        "prices": prices_document(prices, rates) if prices else None,
        "workloads": [_document(row) for row in rows],
    }


def _document(row: Workload) -> dict[str, Any]:
    advice = {"advised": advised(row), "meant": row.meant, "freed": spent_document(row.freed)}
    return workload_document(row) | advice | {"containers": [_container(use) for use in row.uses]}


def _container(use: UseOfPods) -> dict[str, Any]:
    return {
        "name": use.container,
        "pods": use.pods,
        "resource": use.resource,
        "asked": use.count,
        "usedMemoryMiB": use.memory_mib,
        "usedComputeMilli": use.compute_milli,
        "samples": use.samples,
        "preallocates": use.preallocates,
        "riskPpm": use.risk_ppm,
    }
