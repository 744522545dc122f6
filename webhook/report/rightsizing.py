"""The result of `rightsize`: what each workload asks for of GPUs, was seen to use, is advised, and would save."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import Any

from msgspec.structs import replace

from webhook.model.prices import NodePrices
from webhook.model.quantity import format_nano, parse_nano
from webhook.report.check import resource_with_meaning
from webhook.report.costs import ProductPrice, cost_micro_cell, cost_text, prices_document
from webhook.report.results import ContainerUsage
from webhook.report.text import Paint, TextStyle, align_columns, format_gpus, sanitize, without_style
from webhook.report.workload_report import csv_cell, gpu_cost_document, workload_document
from webhook.report.workloads import GpuCost, WorkloadReport, WorkloadUsage

HEAD = ("NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "ASKED", "USED", "ADVISED", "RISK", "SAVES")
CSV_HEAD = (
    *("namespace", "workload", "container", "pods", "asked", "resource", "used_memory_mib", "used_compute_milli"),
    *("samples", "preallocates", "advised", "meant", "risk_ppm", "gpu_milli_saved", "gpu_milli_on_trial", "currency"),
    *("freed_micro_per_hour", "reason", "unpriced_milli", "price_source"),
)
MIB = parse_nano("1Mi")


def recommendation_table(
    rows: Iterable[WorkloadReport], paint: Paint = without_style, currency: str = ""
) -> Iterator[str]:
    """A row for each container and amount of GPUs; the last cell of the first says why where there is no advice."""
    lines = [line for row in rows for line in _recommendation_rows(row, currency)]
    head, *rest = align_columns([(*HEAD, ""), *lines])
    yield paint(head, TextStyle.STRONG)
    yield from rest


def _recommendation_rows(row: WorkloadReport, currency: str) -> Iterator[tuple[str, ...]]:
    for i, use in enumerate(row.usages):
        first = i == 0
        cells = (
            *(row.namespace, row.name, use.container, str(use.pods), f"{use.count} {use.resource}", usage_text(use)),
            *(resource_with_meaning(recommended_resource(row), row.recommended_meaning), risk_text(use)),
            *((savings_text(row, currency), recommendation_reason(row)) if first else ("", "")),
        )
        yield tuple(sanitize(cell) for cell in cells)


def usage_text(use: ContainerUsage) -> str:
    """What was seen, in words; "-" where nothing was.

    >>> used(Use("main", "nvidia.com/gpu", 1, memory_mib=9318, compute_milli=60, samples=4000))
    '9318Mi peak, 6% active'
    >>> used(Use("main", "nvidia.com/gpu", 1, memory_mib=9318, compute_milli=60, samples=4000, idle=True))
    '9318Mi peak, idle'
    """
    if not use.samples:
        return "-"
    memory = f"{format_nano((use.memory_mib or 0) * MIB)} {'preallocated' if use.preallocates else 'peak'}"
    if use.idle:
        return f"{memory}, idle"
    return memory if use.compute_milli is None else f"{memory}, {use.compute_milli / 10:g}% active"


def recommended_resource(row: WorkloadReport) -> str:
    """The resource that one unit would become; "keep" where it stays."""
    return row.recommended or "keep"


def risk_text(use: ContainerUsage) -> str:
    """The share of pod-hours that would need more than what observed use advises; "-" where use advises nothing.

    >>> risk(Use("main", "nvidia.com/gpu", 1, risk_ppm=5000)), risk(Use("main", "nvidia.com/gpu", 1))
    ('0.5%/h', '-')
    """
    return "-" if use.risk_ppm is None else f"{use.risk_ppm / 10_000:g}%/h"


def savings_text(row: WorkloadReport, currency: str) -> str:
    """GPUs that would be free, and the money that it saves or costs where it has a price; "-" for none."""
    milli = row.gpu_milli_saved + row.gpu_milli_audit_saved
    if not milli:
        return "-"
    return f"{format_gpus(milli)} GPUs{_savings_cost(row.savings, currency) if currency and row.savings.milli else ''}"


def _savings_cost(freed: GpuCost, currency: str) -> str:
    if freed.micro >= 0:
        return f", {cost_text(freed, freed, f' {currency}/h')}"
    more = replace(freed, micro=-freed.micro)
    return f", costs {cost_text(more, more, f' {currency}/h more')}"


def recommendation_reason(row: WorkloadReport) -> str:
    """Why the request stays, or in which mode the advice is."""
    if not row.recommended:
        return row.outcome
    return "" if row.gpu_milli_saved else "on trial"


def recommendation_csv(rows: Iterable[WorkloadReport], prices: NodePrices | None = None) -> str:
    """One line for each container and amount of GPUs, RFC 4180; savings are the workload's, on its first line."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_HEAD)
    for row in rows:
        for i, use in enumerate(row.usages):
            writer.writerow([csv_cell(value) for value in _recommendation_csv_row(row, use, prices, first=i == 0)])
    return text.getvalue()


def _recommendation_csv_row(
    row: WorkloadReport, use: WorkloadUsage, prices: NodePrices | None, *, first: bool
) -> tuple[object, ...]:
    currency, source = (prices.currency, prices.source) if prices else ("", "")
    micro = cost_micro_cell(row.savings, row.savings) if prices else ""
    money = (currency, micro, recommendation_reason(row), row.savings.unpriced_milli, source)
    saved = (row.gpu_milli_saved, row.gpu_milli_audit_saved, *money) if first else ("",) * 7
    return (
        *(row.namespace, row.name, use.container, use.pods, use.count, use.resource, _empty_if_none(use.memory_mib)),
        *(
            _empty_if_none(use.compute_milli),
            use.samples,
            str(use.preallocates).lower(),
            recommended_resource(row),
            row.recommended_meaning,
        ),
        *(_empty_if_none(use.risk_ppm), *saved),
    )


def _empty_if_none(number: int | None) -> int | str:
    return "" if number is None else number


def recommendation_document(
    rows: Sequence[WorkloadReport], prices: NodePrices | None = None, rates: Sequence[ProductPrice] = ()
) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "currency": prices.currency if prices else None,
        "prices": prices_document(prices, rates) if prices else None,
        "workloads": [_workload_recommendation(row) for row in rows],
    }


def _workload_recommendation(row: WorkloadReport) -> dict[str, Any]:
    advice = {
        "advised": recommended_resource(row),
        "meant": row.recommended_meaning,
        "freed": gpu_cost_document(row.savings),
    }
    return workload_document(row) | advice | {"containers": [_container_recommendation(use) for use in row.usages]}


def _container_recommendation(use: WorkloadUsage) -> dict[str, Any]:
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
