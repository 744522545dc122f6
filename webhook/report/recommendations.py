"""The recommended GPUs of each workload, by container, with the risk and the saving: as a table, CSV and plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from webhook.model.decisions import DENIED
from webhook.model.prices import NodePrices
from webhook.report.check import UNKNOWN_OUTCOME, resource_with_meaning
from webhook.report.costs import ProductPrice, cost_csv, cost_text, prices_document
from webhook.report.reach import ReachReport, reach_document
from webhook.report.results import ContainerUsage
from webhook.report.tables import NO_VALUE, Column, Table
from webhook.report.text import format_gpus
from webhook.report.workload_report import WORKLOADS, cost_columns, short_usage_text
from webhook.report.workloads import WorkloadReport, WorkloadUsage


class ContainerRow(NamedTuple):
    """One container of a workload with one amount of GPUs.

    Attributes:
        saved: The workload in the first of its rows, where its savings stand; None in the others.
    """

    workload: WorkloadReport
    usage: WorkloadUsage
    saved: WorkloadReport | None


def recommended_resource(row: WorkloadReport) -> str:
    """Return the resource that one unit would become; "keep" if it stays."""
    return row.recommended or "keep"


def advice_text(row: ContainerRow) -> str:
    """Return the resource that one unit would become, or that it stays and the word of the reason, or "unknown"."""
    workload = row.workload
    if workload.outcome == UNKNOWN_OUTCOME:
        return "unknown"
    if workload.recommended:
        return resource_with_meaning(workload.recommended, workload.recommended_meaning)
    reason = workload.keep_reason or (DENIED if workload.denied else "")
    return f"keep: {reason}" if reason else "keep"


def risk_text(usage: ContainerUsage) -> str:
    """Format the share of pod-hours that would need more than the size recommended from usage.

    >>> risk_text(ContainerUsage("main", "nvidia.com/gpu", 1, risk_ppm=5000))
    '0.5%/h'
    """
    return NO_VALUE if usage.risk_ppm is None else f"{usage.risk_ppm / 10_000:g}%/h"


def savings_text(row: WorkloadReport, currency: str) -> str:
    """Format the GPUs that would be freed, and the money that is saved or spent if it is known."""
    milli, savings = row.gpu_milli_saved + row.gpu_milli_audit_saved, row.savings
    if not milli:
        return NO_VALUE
    gpus = f"{format_gpus(milli)} GPUs"
    if not currency or not savings.milli:
        return gpus
    if savings.micro >= 0:
        return f"{gpus}, {cost_text(savings, savings, f' {currency}/h')}"
    more = replace(savings, micro=-savings.micro)
    return f"{gpus}, costs {cost_text(more, more, f' {currency}/h more')}"


def _savings_cell(row: WorkloadReport, currency: str) -> str:
    in_audit_mode = row.gpu_milli_audit_saved and not row.gpu_milli_saved
    return f"{savings_text(row, currency)}{' (audit)' if in_audit_mode else ''}"


def recommendation_columns(prices: NodePrices | None = None) -> Table[ContainerRow]:
    """Return the columns; each CSV line has currency and source of the prices, as lines get copied."""
    currency, source = (prices.currency, prices.source) if prices else ("", "")

    def savings_csv(row: ContainerRow) -> object:
        return cost_csv(row.saved.savings, row.saved.savings) if prices and row.saved else ""

    def outcome(row: ContainerRow) -> str:
        return row.saved.outcome if row.saved and not row.saved.recommended else ""

    return Table(
        (
            Column("", lambda row: row.workload.namespace, "Namespace", csv="namespace"),
            Column("", lambda row: row.workload.name, "Workload", csv="workload"),
            Column("name", lambda row: row.usage.container, "Container", csv="container", terminal=False),
            Column("pods", lambda row: row.usage.pods, "Pods"),
            Column(
                "requested",
                lambda row: row.usage.count,
                "Requested",
                lambda row: f"{row.usage.count} {row.usage.resource}",
            ),
            Column("resource", lambda row: row.usage.resource),
            Column("", lambda row: short_usage_text(row.usage), "Used"),
            Column("usedMemoryMiB", lambda row: row.usage.memory_mib, csv="used_memory_mib"),
            Column("usedComputeMilli", lambda row: row.usage.compute_milli),
            Column("samples", lambda row: row.usage.samples, "Samples", terminal=False),
            Column("preallocates", lambda row: row.usage.preallocates),
            Column("", lambda row: recommended_resource(row.workload), "Recommended", advice_text, csv="recommended"),
            Column("", lambda row: row.workload.recommended_meaning, csv="recommended_meaning"),
            Column("riskPpm", lambda row: row.usage.risk_ppm, "Risk", lambda row: risk_text(row.usage), terminal=False),
            Column("", lambda row: row.saved.gpu_milli_saved if row.saved else "", csv="gpu_milli_saved"),
            Column("", lambda row: row.saved.gpu_milli_audit_saved if row.saved else "", csv="gpu_milli_audit_saved"),
            Column("", lambda row: currency if row.saved else "", csv="currency"),
            Column(
                "",
                savings_csv,
                "Saves",
                lambda row: _savings_cell(row.saved, currency) if row.saved else "",
                csv="savings_micro_per_hour",
                empty="",
            ),
            Column(
                "",
                outcome,
                "Outcome",
                csv="outcome",
                csv_value=lambda row: row.workload.outcome,
                terminal=False,
                empty="",
            ),
            Column("", lambda row: row.saved.keep_reason if row.saved else "", csv="keep_reason"),
            Column("", lambda row: row.saved.savings.unpriced_milli if row.saved else "", csv="unpriced_milli"),
            Column("", lambda row: source if row.saved else "", csv="price_source"),
        )
    )


RECOMMENDATIONS = recommendation_columns()

SAVINGS = Table(cost_columns("savings", lambda row: row.savings, None))


def container_rows(rows: Iterable[WorkloadReport]) -> Iterator[ContainerRow]:
    """Yield a row for each container and amount of GPUs of the workloads."""
    for row in rows:
        for i, usage in enumerate(row.usages):
            yield ContainerRow(row, usage, row if i == 0 else None)


def recommendation_csv(rows: Iterable[WorkloadReport], prices: NodePrices | None = None) -> str:
    """Return CSV with a line for each container and amount of GPUs."""
    return recommendation_columns(prices).to_csv(container_rows(rows))


def recommendation_document(
    rows: Sequence[WorkloadReport],
    prices: NodePrices | None = None,
    rates: Sequence[ProductPrice] = (),
    reach: ReachReport | None = None,
) -> dict[str, Any]:
    """Return the workloads with their containers as plain data."""
    return {
        "currency": prices.currency if prices else None,
        "prices": prices_document(prices, rates) if prices else None,
        "reach": reach_document(reach) if reach else None,
        "workloads": [workload_recommendation(row) for row in rows],
    }


def workload_recommendation(row: WorkloadReport) -> dict[str, Any]:
    """Return a workload with its containers as plain data."""
    return {
        **WORKLOADS.to_document(row),
        "recommended": recommended_resource(row),
        "recommendedMeaning": row.recommended_meaning,
        **SAVINGS.to_document(row),
        "containers": [RECOMMENDATIONS.to_document(each) for each in container_rows([row])],
    }
