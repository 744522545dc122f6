"""The result of an audit by workload, as a table, CSV and plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from webhook.model.enums import PolicyMode
from webhook.model.prices import NodePrices
from webhook.model.quantity import format_nano, parse_nano
from webhook.report.check import finding_document, finding_lines
from webhook.report.costs import GpuCost, cost_csv, cost_lower_bound, cost_text, gpus_lower_bound
from webhook.report.results import ContainerUsage
from webhook.report.tables import NO_VALUE, Column, Table, gpu_column
from webhook.report.text import STYLES, Paint, align_columns, pluralize, sanitize, without_style
from webhook.report.workloads import WorkloadReport

_MIB = parse_nano("1Mi")


def usage_text(usage: ContainerUsage) -> str:
    """Format measured usage; `-` if there is none.

    >>> usage_text(ContainerUsage("main", "nvidia.com/gpu", 1, memory_mib=9318, compute_milli=60, samples=4000))
    '9318Mi peak, 6% active'
    >>> usage_text(ContainerUsage("main", "nvidia.com/gpu", 1, memory_mib=9318, samples=4000, idle=True))
    '9318Mi peak, idle'
    """
    if not usage.samples:
        return NO_VALUE
    memory = f"{format_nano((usage.memory_mib or 0) * _MIB)} {'preallocated' if usage.preallocates else 'peak'}"
    if usage.idle:
        return f"{memory}, idle"
    return memory if usage.compute_milli is None else f"{memory}, {usage.compute_milli / 10:g}% active"


def short_usage_text(usage: ContainerUsage) -> str:
    """Format measured usage for a narrow column.

    >>> short_usage_text(ContainerUsage("main", "nvidia.com/gpu", 1, memory_mib=9318, compute_milli=60, samples=4000))
    '9318Mi, 6% active'
    """
    return usage_text(usage).replace(" peak", "").replace(" preallocated", "")


def cost_columns(
    key: str,
    value: Callable[[WorkloadReport], GpuCost],
    prices: NodePrices | None,
    header: str = "",
    *,
    whole: Callable[[WorkloadReport], GpuCost] | None = None,
    unknown: Callable[[WorkloadReport], bool] = lambda _: False,
    text: Callable[[WorkloadReport], str] | None = None,
    csv_unpriced: str = "",
) -> tuple[Column[WorkloadReport], ...]:
    """Return the columns of an amount of GPUs and its cost; HTML shows the cost where there are prices.

    Args:
        key: The JSON key of the object with all three.
        prices: None: CSV leaves the cost empty.
        whole: The amount that this is a part of; without a price of it there is none of its parts.
        unknown: Whether the amount of a row is unknown: null in JSON, empty in CSV.
        text: Formats the cost for people; by default as the cost of this part of the whole.
        csv_unpriced: The CSV header of the part without a price.
    """
    whole = whole or value
    return (
        Column(f"{key}.milli", lambda row: None if unknown(row) else value(row).milli),
        Column(
            f"{key}.microPerHour",
            lambda row: None if unknown(row) else value(row).micro,
            header if prices else "",
            text or (lambda row: cost_text(value(row), whole(row))),
            csv_value=lambda row: cost_csv(value(row), whole(row)) if prices and not unknown(row) else "",
            terminal=False,
            numeric=True,
        ),
        Column(
            f"{key}.unpricedMilli", lambda row: None if unknown(row) else value(row).unpriced_milli, csv=csv_unpriced
        ),
    )


def idle_text(row: WorkloadReport) -> str:
    """Return the idle GPUs of a workload for people; `-` if all its pods with GPUs are pending."""
    if row.pending and not row.allocated.milli:
        return NO_VALUE
    return gpus_lower_bound(row.idle, row.idle_unknown)


def wasted_text(row: WorkloadReport) -> str:
    """Return the wasted GPUs of a workload for people."""
    return gpus_lower_bound(row.waste, row.idle_unknown)


def wasted_cost_text(row: WorkloadReport) -> str:
    """Return the cost of the wasted GPUs of a workload for people."""
    return cost_lower_bound(row.waste, row.idle_unknown, row.allocated)


def _allocated(row: WorkloadReport) -> GpuCost:
    return row.allocated


def _waste(row: WorkloadReport) -> GpuCost:
    return row.waste


def _idle_is_unknown(row: WorkloadReport) -> bool:
    return bool(row.idle_unknown.milli) and not row.idle.milli


def workload_columns(prices: NodePrices | None = None) -> Table[WorkloadReport]:
    """Return the columns of workloads; each CSV line has currency and source of the prices, as lines get copied."""
    currency, source = (prices.currency, prices.source) if prices else ("", "")
    return Table(
        (
            Column("namespace", lambda row: row.namespace, "Namespace"),
            Column("workload", lambda row: row.name, "Workload"),
            Column("pods", lambda row: row.pods, "Pods", numeric=True),
            Column("pending", lambda row: row.pending),
            gpu_column("gpuMilliBefore", lambda row: row.gpu_milli_before, "GPUs"),
            Column("", idle_text, "Idle", numeric=True, html=False),
            gpu_column("gpuMilliAfter", lambda row: row.gpu_milli_after, "After"),
            gpu_column("gpuMilliSaved", lambda row: row.gpu_milli_saved, "Saved"),
            gpu_column("gpuMilliAuditSaved", lambda row: row.gpu_milli_audit_saved, "Audit-saved"),
            *cost_columns("allocated", _allocated, prices, "Cost/h", csv_unpriced="unpriced_milli"),
            *cost_columns("idle", lambda row: row.idle, prices, whole=_allocated, unknown=_idle_is_unknown),
            Column("idleUnknownMilli", lambda row: row.idle_unknown.milli),
            *cost_columns("overRequested", lambda row: row.over_requested, prices, whole=_allocated),
            Column("", lambda row: row.waste.milli, "Wasted", wasted_text, terminal=False, numeric=True),
            *cost_columns("wasted", _waste, prices, "Wasted/h", whole=_allocated, text=wasted_cost_text),
            Column("", lambda _: currency, csv="currency"),
            Column("denied", lambda row: row.denied, "Denied", html=False),
            Column("warned", lambda row: row.warned, "Warned", html=False),
            Column(
                "unevaluated",
                lambda row: [
                    {"reason": reason.name.title(), "pods": pods, "wouldBe": change}
                    for reason, change, pods in row.unevaluated
                ],
                csv_value=lambda row: sum(pods for *_, pods in row.unevaluated),
            ),
            Column(
                "",
                lambda row: "; ".join(dict.fromkeys(map(usage_text, row.usages))),
                "Used",
                terminal=False,
                narrow=True,
            ),
            Column("outcome", lambda row: row.outcome, "Outcome", terminal=False),
            Column("keepReason", lambda row: row.keep_reason),
            Column(
                "",
                lambda row: " ".join(row.codes),
                "Codes",
                lambda row: ",".join(row.codes),
                csv="codes",
                code=True,
                word_css=code_styles,
            ),
            Column(
                "findings",
                lambda row: [finding_document(located) | {"pods": pods} for located, pods in row.findings],
                csv="",
            ),
            Column("", lambda _: source, csv="price_source"),
        )
    )


def code_styles(row: WorkloadReport) -> dict[str, str]:
    """Return the style of the codes of a workload that deny or warn, by the strictest mode of their findings."""
    found = sorted((located.finding for located, _ in row.findings), key=lambda finding: finding.mode)
    return {finding.code: STYLES[finding.mode] for finding in found if finding.mode > PolicyMode.AUDIT}


WORKLOADS = workload_columns()


def listed_workloads(rows: Iterable[WorkloadReport], *, every: bool = False) -> list[WorkloadReport]:
    """Return the workloads that need action, or with `every` those that have to do with GPUs."""
    return [
        row
        for row in rows
        if row.touches_gpus
        and (
            every
            or (row.gpu_milli_saved or row.gpu_milli_audit_saved or row.idle.milli)
            or (row.denied or row.warned or row.unevaluated)
        )
    ]


def omitted_workloads_lines(rows: Sequence[WorkloadReport], listed: Sequence[WorkloadReport]) -> list[str]:
    """Return how many workloads with GPUs are not listed; no line if all are."""
    omitted = sum(row.touches_gpus for row in rows) - len(listed)
    return [f"{pluralize(omitted, 'workload')} without anything to act on omitted; -v shows all."] if omitted else []


def workload_finding_lines(
    rows: Iterable[WorkloadReport], paint: Paint = without_style, *, least: PolicyMode = PolicyMode.AUDIT
) -> Iterator[str]:
    """Yield each finding once per workload, with its location in the first of the pods."""
    for row in rows:
        kind, _, name = row.name.partition("/")
        for located, pods in row.findings:
            if located.finding.mode >= least:
                number = f" ({pods} of {row.pods} pods)" if row.pods > 1 else ""
                yield from finding_lines(located, f"{kind} {row.namespace}/{name}{number}", paint)


def unevaluated_lines(rows: Iterable[WorkloadReport]) -> Iterator[str]:
    """Yield the pods that were not evaluated at admission, by reason and workload."""
    groups = sorted(
        (reason, row.namespace, row.name, change, pods) for row in rows for reason, change, pods in row.unevaluated
    )
    for reason, group in groupby(groups, key=itemgetter(0)):
        members = list(group)
        number = sum(pods for *_, pods in members)
        yield f"{pluralize(number, 'pod was', 'pods were')} not evaluated at admission: {reason}"
        cells = [
            (f"  {namespace}/{name}", pluralize(pods, "pod"), f"would be {change}")
            for _, namespace, name, change, pods in members
        ]
        yield from map(sanitize, align_columns(cells))
