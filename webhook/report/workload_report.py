"""The result of an audit by workload, written down: for people, as CSV, and as plain data."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby
from operator import itemgetter
from typing import Any

from webhook.model.enums import PolicyMode
from webhook.model.prices import NodePrices
from webhook.report.check import finding_document, finding_lines
from webhook.report.costs import cost_micro_cell
from webhook.report.text import Paint, TextStyle, align_columns, format_gpus, pluralize, sanitize, without_style
from webhook.report.workloads import GpuCost, WorkloadReport

HEAD = ("NAMESPACE", "WORKLOAD", "PODS", "GPUS", "IDLE", "AFTER", "SAVED", "ON TRIAL", "DENIED", "WARNED", "CODES")
CSV_HEAD = (
    *("namespace", "workload", "pods", "waiting", "gpu_milli_before", "gpu_milli_after", "gpu_milli_saved"),
    *("gpu_milli_on_trial", "held_milli", "idle_milli", "over_asked_milli", "currency", "held_micro_per_hour"),
    *("idle_micro_per_hour", "over_asked_micro_per_hour", "unpriced_milli", "denied", "warned", "missed", "codes"),
    *("outcome", "price_source"),
)
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes a cell for a formula by."""


def workload_table(
    rows: Sequence[WorkloadReport], paint: Paint = without_style, *, every: bool = False
) -> Iterator[str]:
    """A row for each workload with something to act on, or for each that has to do with GPUs."""
    with_gpus = [row for row in rows if row.touches_gpus]
    shown_rows = [row for row in with_gpus if every or _needs_action(row)]
    if shown_rows:
        head, *lines = align_columns([HEAD, *map(_workload_row, shown_rows)])
        yield paint(head, TextStyle.STRONG)
        yield from lines
    left_out = len(with_gpus) - len(shown_rows)
    if left_out:
        verb = "is" if left_out == 1 else "are"
        yield f"{pluralize(left_out, 'workload')} with nothing to act on {verb} not shown; -v shows all."


def _needs_action(row: WorkloadReport) -> bool:
    return bool(
        row.gpu_milli_saved
        or row.gpu_milli_audit_saved
        or row.denied
        or row.warned
        or row.unevaluated
        or row.idle.milli
    )


def _workload_row(row: WorkloadReport) -> tuple[str, ...]:
    amounts = (
        row.gpu_milli_before,
        row.idle.milli,
        row.gpu_milli_after,
        row.gpu_milli_saved,
        row.gpu_milli_audit_saved,
    )
    cells = (row.namespace, row.name, str(row.pods), *map(format_gpus, amounts), str(row.denied), str(row.warned))
    return tuple(sanitize(cell) for cell in (*cells, ",".join(row.codes) or "-"))


def workload_finding_lines(
    rows: Iterable[WorkloadReport], paint: Paint = without_style, *, least: PolicyMode = PolicyMode.AUDIT
) -> Iterator[str]:
    """Every finding once a workload, with the place in the first of its pods."""
    for row in rows:
        for located, pods in row.findings:
            if located.finding.mode >= least:
                yield from finding_lines(located, workload_title(row, pods), paint)


def workload_title(row: WorkloadReport, pods: int) -> str:
    """The workload as people say it, and how many of its pods are meant where it has several."""
    kind, _, name = row.name.partition("/")
    return f"{kind} {row.namespace}/{name}" + (f" ({pods} of {row.pods} pods)" if row.pods > 1 else "")


def unevaluated_lines(rows: Iterable[WorkloadReport]) -> Iterator[str]:
    """The pods that no hook saw, by the reason: each workload with what its pods would have become."""
    found = sorted(
        (reason, row.namespace, row.name, becomes, pods) for row in rows for reason, becomes, pods in row.unevaluated
    )
    for reason, group in groupby(found, key=itemgetter(0)):
        members = list(group)
        yield f"{pluralize(sum(pods for *_, pods in members), 'pod')} that no hook saw, {reason}"
        cells = [
            (f"  {space}/{name}", pluralize(pods, "pod"), f"would be {becomes}")
            for _, space, name, becomes, pods in members
        ]
        yield from map(sanitize, align_columns(cells))


def workload_csv(rows: Iterable[WorkloadReport], prices: NodePrices | None = None) -> str:
    """One line a workload, RFC 4180, all of them; what a spreadsheet would run as a formula has an apostrophe.

    Each line says where its prices come from: lines are sorted, filtered and copied elsewhere.
    """
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_HEAD)
    for row in rows:
        writer.writerow([csv_cell(value) for value in _workload_csv_row(row, prices)])
    return text.getvalue()


def _workload_csv_row(row: WorkloadReport, prices: NodePrices | None) -> tuple[object, ...]:
    spent = [
        cost_micro_cell(some, row.allocated) if prices else "" for some in (row.allocated, row.idle, row.over_requested)
    ]
    currency, source = (prices.currency, prices.source) if prices else ("", "")
    return (
        *(
            row.namespace,
            row.name,
            row.pods,
            row.pending,
            row.gpu_milli_before,
            row.gpu_milli_after,
            row.gpu_milli_saved,
        ),
        *(row.gpu_milli_audit_saved, row.allocated.milli, row.idle.milli, row.over_requested.milli, currency),
        *(*spent, row.allocated.unpriced_milli, row.denied, row.warned),
        *(sum(pods for *_, pods in row.unevaluated), " ".join(row.codes), row.outcome, source),
    )


def csv_cell(value: object) -> str:
    """A cell of CSV: what strangers wrote is seen, and no spreadsheet runs it."""
    text = sanitize(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA_STARTS) else text


def workload_document(row: WorkloadReport) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "namespace": row.namespace,
        "workload": row.name,
        "pods": row.pods,
        "waiting": row.pending,
        "gpuMilliBefore": row.gpu_milli_before,
        "gpuMilliAfter": row.gpu_milli_after,
        "gpuMilliSaved": row.gpu_milli_saved,
        "gpuMilliTrialSaved": row.gpu_milli_audit_saved,
        "held": gpu_cost_document(row.allocated),
        "idle": gpu_cost_document(row.idle),
        "overAsked": gpu_cost_document(row.over_requested),
        "denied": row.denied,
        "warned": row.warned,
        "missed": [
            {"reason": reason.name.lower(), "pods": pods, "wouldBe": becomes}
            for reason, becomes, pods in row.unevaluated
        ],
        "outcome": row.outcome,
        "findings": [finding_document(located) | {"pods": pods} for located, pods in row.findings],
    }


def gpu_cost_document(some: GpuCost) -> dict[str, int]:
    """An amount of GPUs and money as plain data."""
    return {"milli": some.milli, "microPerHour": some.micro, "unpricedMilli": some.unpriced_milli}
