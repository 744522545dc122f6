"""The result of `rightsize`: what each workload asks for of GPUs, was seen to use, is advised, and would save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from webhook.model.quantity import nano, written
from webhook.report.figures import money
from webhook.report.results import Use
from webhook.report.words import Paint, Style, columns, gpus, plain, shown
from webhook.report.workload_tables import workload_document
from webhook.report.workloads import Workload

HEAD = ("NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "ASKED", "USED", "ADVISED", "SAVES")
MIB = nano("1Mi")


def advice_table(rows: Iterable[Workload], paint: Paint = plain, currency: str = "") -> Iterator[str]:
    """A row for each container that asks for GPUs; its last cell says why where there is no advice."""
    lines = [line for row in rows for line in _rows(row, currency)]
    head, *rest = columns([(*HEAD, ""), *lines])
    yield paint(head, Style.STRONG)
    yield from rest


def _rows(row: Workload, currency: str) -> Iterator[tuple[str, ...]]:
    for i, use in enumerate(row.uses):
        first = i == 0
        cells = (
            *(row.namespace, row.name, use.container, str(row.pods), f"{use.count} {use.resource}", used(use)),
            *(advised(row), saves(row, currency) if first else "", reason(row) if first else ""),
        )
        yield tuple(shown(cell) for cell in cells)


def used(use: Use) -> str:
    """What was seen, in words; "-" where nothing was.

    >>> used(Use("main", "nvidia.com/gpu", 1, memory_mib=9318, compute_milli=60, samples=4000))
    '9318Mi peak, 6% active'
    """
    if not use.samples:
        return "-"
    memory = f"{written((use.memory_mib or 0) * MIB)} {'preallocated' if use.preallocates else 'peak'}"
    active = "" if use.compute_milli is None else f", {use.compute_milli / 10:g}% active"
    return f"{memory}{active}"


def advised(row: Workload) -> str:
    """The resource that one unit would become; "keep" where it stays."""
    return row.fit or "keep"


def saves(row: Workload, currency: str) -> str:
    """GPUs that would be free, and their money where it has a price; "-" for none."""
    milli = row.saved + row.gpu_milli_on_trial
    if not milli:
        return "-"
    cost = f", {money(row.over_asked.micro, currency)}/h" if currency and row.over_asked.micro else ""
    return f"{gpus(milli)} GPUs{cost}"


def reason(row: Workload) -> str:
    """Why the request stays, or in which mode the advice is."""
    if not row.fit:
        return row.outcome
    return "" if row.saved else "on trial"


def advice_document(rows: Sequence[Workload], currency: str = "") -> dict[str, Any]:
    """The same as plain data."""
    return {"currency": currency or None, "workloads": [_document(row) for row in rows]}


def _document(row: Workload) -> dict[str, Any]:
    return workload_document(row) | {"advised": advised(row), "containers": [_container(use) for use in row.uses]}


def _container(use: Use) -> dict[str, Any]:
    return {
        "name": use.container,
        "resource": use.resource,
        "asked": use.count,
        "usedMemoryMiB": use.memory_mib,
        "usedComputeMilli": use.compute_milli,
        "samples": use.samples,
        "preallocates": use.preallocates,
    }
