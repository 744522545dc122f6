"""The result of an audit by workload, written down: for people, as CSV, and as plain data."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby
from operator import itemgetter
from typing import Any

from webhook.model.modes import Mode
from webhook.model.prices import NodePrices
from webhook.report.checks import finding_document
from webhook.report.costs import micro_cell
from webhook.report.table import block
from webhook.report.words import Paint, Style, columns, count, gpus, plain, shown
from webhook.report.workloads import Spent, Workload

HEAD = ("NAMESPACE", "WORKLOAD", "PODS", "GPUS", "IDLE", "AFTER", "SAVED", "ON TRIAL", "DENIED", "WARNED", "CODES")
CSV_HEAD = (
    *("namespace", "workload", "pods", "waiting", "gpu_milli_before", "gpu_milli_after", "gpu_milli_saved"),
    *("gpu_milli_on_trial", "held_milli", "idle_milli", "over_asked_milli", "currency", "held_micro_per_hour"),
    *("idle_micro_per_hour", "over_asked_micro_per_hour", "unpriced_milli", "denied", "warned", "missed", "codes"),
    *("outcome", "price_source"),
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes a cell for a formula by."""


def workload_table(rows: Sequence[Workload], paint: Paint = plain, *, every: bool = False) -> Iterator[str]:
    """A row for each workload with something to act on, or for each that has to do with GPUs."""
    with_gpus = [row for row in rows if row.touches_gpus]
    shown_rows = [row for row in with_gpus if every or _matters(row)]
    if shown_rows:
        head, *lines = columns([HEAD, *map(_row, shown_rows)])
        yield paint(head, Style.STRONG)
        yield from lines
    left_out = len(with_gpus) - len(shown_rows)
    if left_out:
        verb = "is" if left_out == 1 else "are"
        yield f"{count(left_out, 'workload')} with nothing to act on {verb} not shown; -v shows all."


def _matters(row: Workload) -> bool:
    return bool(row.saved or row.gpu_milli_on_trial or row.denied or row.warned or row.missed or row.idle.milli)


def _row(row: Workload) -> tuple[str, ...]:
    amounts = (row.gpu_milli_before, row.idle.milli, row.gpu_milli_after, row.saved, row.gpu_milli_on_trial)
    cells = (row.namespace, row.name, str(row.pods), *map(gpus, amounts), str(row.denied), str(row.warned))
    return tuple(shown(cell) for cell in (*cells, ",".join(row.codes) or "-"))


def workload_findings(rows: Iterable[Workload], paint: Paint = plain, *, least: Mode = Mode.AUDIT) -> Iterator[str]:
    """Every finding once a workload, with the place in the first of its pods."""
    for row in rows:
        for located, pods in row.findings:
            if located.finding.mode >= least:
                yield from block(located, title_of(row, pods), paint)


def title_of(row: Workload, pods: int) -> str:
    """The workload as people say it, and how many of its pods are meant where it has several."""
    kind, _, name = row.name.partition("/")
    return f"{kind} {row.namespace}/{name}" + (f" ({pods} of {row.pods} pods)" if row.pods > 1 else "")


def missed_lines(rows: Iterable[Workload]) -> Iterator[str]:
    """The pods that no hook saw, by the reason: each workload with what its pods would have become."""
    found = sorted(
        (reason, row.namespace, row.name, becomes, pods) for row in rows for reason, becomes, pods in row.missed
    )
    for reason, group in groupby(found, key=itemgetter(0)):
        members = list(group)
        yield f"{count(sum(pods for *_, pods in members), 'pod')} that no hook saw, {reason}"
        cells = [
            (f"  {space}/{name}", count(pods, "pod"), f"would be {becomes}")
            for _, space, name, becomes, pods in members
        ]
        yield from map(shown, columns(cells))


def workload_csv(rows: Iterable[Workload], prices: NodePrices | None = None) -> str:
    """One line a workload, RFC 4180, all of them; what a spreadsheet would run as a formula has an apostrophe.

    Each line says where its prices come from: lines are sorted, filtered and copied elsewhere.
    """
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_HEAD)
    for row in rows:
        writer.writerow([cell(value) for value in _csv_row(row, prices)])
    return text.getvalue()


def _csv_row(row: Workload, prices: NodePrices | None) -> tuple[object, ...]:
    spent = [micro_cell(some, row.held) if prices else "" for some in (row.held, row.idle, row.over_asked)]
    currency, source = (prices.currency, prices.source) if prices else ("", "")
    return (
        *(row.namespace, row.name, row.pods, row.waiting, row.gpu_milli_before, row.gpu_milli_after, row.saved),
        *(row.gpu_milli_on_trial, row.held.milli, row.idle.milli, row.over_asked.milli, currency),
        *(*spent, row.held.unpriced_milli, row.denied, row.warned),
        *(sum(pods for *_, pods in row.missed), " ".join(row.codes), row.outcome, source),
    )


def cell(value: object) -> str:
    """A cell of CSV: what strangers wrote is seen, and no spreadsheet runs it."""
    text = shown(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text


def workload_document(row: Workload) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "namespace": row.namespace,
        "workload": row.name,
        "pods": row.pods,
        "waiting": row.waiting,
        "gpuMilliBefore": row.gpu_milli_before,
        "gpuMilliAfter": row.gpu_milli_after,
        "gpuMilliSaved": row.saved,
        "gpuMilliTrialSaved": row.gpu_milli_on_trial,
        "held": spent_document(row.held),
        "idle": spent_document(row.idle),
        "overAsked": spent_document(row.over_asked),
        "denied": row.denied,
        "warned": row.warned,
        "missed": [
            {"reason": reason.name.lower(), "pods": pods, "wouldBe": becomes} for reason, becomes, pods in row.missed
        ],
        "outcome": row.outcome,
        "findings": [finding_document(located) | {"pods": pods} for located, pods in row.findings],
    }


def spent_document(some: Spent) -> dict[str, int]:
    """An amount of GPUs and money as plain data."""
    return {"milli": some.milli, "microPerHour": some.micro, "unpricedMilli": some.unpriced_milli}
