"""The pages Workloads: the list, and one workload with its usage over time, the advice and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from markupsafe import Markup

from webhook.model.decisions import KeepReason
from webhook.model.dra.device_allocations import AllocatedDevice
from webhook.report.check import finding_sentence, resource_with_meaning
from webhook.report.console.page import WORKLOADS_ENTRY, render_console_page
from webhook.report.console.query import (
    NAMESPACE_FILTER,
    FilterField,
    PageQuery,
    node_address,
    page_address,
    workload_address,
)
from webhook.report.console.rows import LONG_TEXT, sort_keys, table_markup, table_page
from webhook.report.console.state import ConsolePod, ConsoleState
from webhook.report.console.usage_band import UsageBand, band_chart
from webhook.report.costs import cost_text, gpus_lower_bound
from webhook.report.node_topology import ALLOCATED_DEVICES, AllocatedDeviceRow
from webhook.report.recommendations import ContainerRow, container_rows, risk_text, savings_text
from webhook.report.results import LocatedFinding
from webhook.report.tables import NO_VALUE, Column, Table, gpu_column
from webhook.report.text import LABELS, MODES_BY_LABEL, STYLES, format_gpus
from webhook.report.workload_report import usage_text, wasted_cost_text, wasted_text
from webhook.report.workloads import WorkloadReport

MAX_PODS, MAX_FINDINGS = 200, 200
"""Pods, also devices of their claims, and findings of a workload that its page lists."""

SHOWN: Mapping[str, tuple[str, Callable[[WorkloadReport], bool]]] = {
    "wasted": ("Wasting GPUs", lambda row: row.waste.milli > 0),
    "idle": ("Idle", lambda row: row.idle.milli > 0),
    "saved": ("Saving when created again", lambda row: row.gpu_milli_saved > 0),
    "audit": ("Saving if audit and warn mode end", lambda row: row.gpu_milli_audit_saved > 0),
    "kept": ("Keeping their GPUs", lambda row: bool(row.keep_reason)),
    "denied": ("Denied now", lambda row: row.denied > 0),
    "pending": ("Pending", lambda row: row.pending > 0),
    "unmeasured": ("Without usage data", lambda row: row.idle_unknown.milli > 0),
}
"""Workloads that the filter `show` selects."""

_REASONS = {reason.value: reason for reason in KeepReason}

_CODE, _POLICY = FilterField("code", "Finding"), FilterField("policy", "Policy")
WORKLOAD_FILTERS = (
    FilterField("q", "Workload or pod contains"),
    NAMESPACE_FILTER,
    FilterField("show", "Show", tuple((name, label) for name, (label, _) in SHOWN.items())),
    _CODE,
    FilterField("mode", "Mode of the finding", tuple((label, label) for label in MODES_BY_LABEL)),
    _POLICY,
    FilterField("reason", "Reason to keep", tuple((reason, reason) for reason in _REASONS)),
)
WORKLOAD_KEY = (NAMESPACE_FILTER, FilterField("name", "Name"))
"""The parameters of the page of a workload."""


def _used_cell(row: WorkloadReport) -> str:
    return "; ".join(dict.fromkeys(map(usage_text, row.usages))) or NO_VALUE


def _advice_cell(row: WorkloadReport) -> str:
    return resource_with_meaning(row.recommended, row.recommended_meaning) if row.recommended else "keep"


def _advice_with_reason(row: WorkloadReport) -> str:
    """Return the advice, and why a workload keeps its GPUs; the amounts of the reason are on its own page."""
    reason = _REASONS.get(row.keep_reason)
    is_detailed = reason is not None and row.outcome.startswith(reason.sentence)
    words = reason.sentence if reason is not None and is_detailed else row.outcome
    return ": ".join(filter(None, (_advice_cell(row), "" if row.recommended and not row.keep_reason else words)))


def _lines(_row: WorkloadReport) -> str:
    """Return the class of cells that are set in several lines, also if they are short: the table has many columns."""
    return LONG_TEXT


CONSOLE_WORKLOADS = Table[WorkloadReport](
    (
        Column("", lambda row: row.name, "Workload"),
        Column("", lambda row: row.namespace, "Namespace"),
        Column("", lambda row: row.pods, "Pods", numeric=True),
        gpu_column("", lambda row: row.gpu_milli_before, "Requested"),
        Column("", lambda row: row.waste.milli, "Wasted", wasted_text, numeric=True),
        Column("", lambda row: row.waste.micro, "Wasted/h", wasted_cost_text, numeric=True),
        Column("", _used_cell, "Used", css=_lines, narrow=True),
        Column("", _advice_with_reason, "Advice", css=_lines),
        gpu_column("", lambda row: row.gpu_milli_saved, "Saved"),
        gpu_column("", lambda row: row.gpu_milli_audit_saved, "Audit-saved"),
        Column("", lambda row: " ".join(row.codes), "Findings", empty="", code=True),
    )
)
WORKLOAD_COLUMNS = sort_keys(CONSOLE_WORKLOADS)

CONTAINERS = Table[ContainerRow](
    (
        Column("", lambda row: row.usage.container, "Container"),
        Column("", lambda row: f"{row.usage.count} x {row.usage.resource}", "Requested"),
        Column("", lambda row: row.usage.pods, "Pods", numeric=True),
        Column("", lambda row: usage_text(row.usage), "Used"),
        Column("", lambda row: row.usage.samples, "Samples", numeric=True),
        Column("", lambda row: _advice_cell(row.workload), "Advice"),
        Column("", lambda row: row.usage.risk_ppm, "Risk", lambda row: risk_text(row.usage), numeric=True),
    )
)

FOUND = Table[tuple[LocatedFinding, int]](
    (
        Column("", lambda row: row[0].finding.code, "Code"),
        Column("", lambda row: LABELS[row[0].finding.mode], "Mode", css=lambda row: STYLES[row[0].finding.mode]),
        Column("", lambda row: row[1], "Pods", numeric=True),
        Column("", lambda row: finding_sentence(row[0].finding), "Finding"),
        Column("", lambda row: row[0].finding.fix, "Fix", empty=""),
        Column("", lambda row: row[0].finding.policy, "Policy", empty=""),
    )
)

ALLOCATED_TO_PODS = Table[AllocatedDeviceRow](
    tuple(column for column in ALLOCATED_DEVICES.columns if column.header != "Card")
)

PODS = Table[ConsolePod](
    (
        Column("", lambda pod: pod.name, "Pod"),
        Column("", lambda pod: pod.node, "Node", empty="pending"),
        gpu_column("", lambda pod: pod.gpu_milli, "Requested"),
        Column("", lambda pod: pod.verdict.value, "If created now"),
    )
)


def workloads_page(state: ConsoleState, query: PageQuery, problem: str = "") -> str:
    """Return the list as HTML."""
    rows = [row for row in state.workloads if _is_selected(state, row, query)]
    page = table_page(
        CONSOLE_WORKLOADS,
        rows,
        query,
        WORKLOADS_ENTRY.path,
        "workload",
        {"Workload": lambda row: workload_address(row.namespace, row.name)},
        {
            NAMESPACE_FILTER: lambda: (row.namespace for row in state.workloads),
            _CODE: lambda: (code for row in state.workloads for code in row.codes),
            _POLICY: lambda: (name for names in state.policies_of.values() for name in names),
        },
    )
    reasons = dict.fromkeys(row.keep_reason for row in state.workloads if row.keep_reason)
    fields = [
        field._replace(choices=tuple((each, each) for each in sorted(reasons))) if field.name == "reason" else field
        for field in WORKLOAD_FILTERS
    ]
    context = {
        "page": page,
        "query": query,
        "fields": fields,
        "path": WORKLOADS_ENTRY.path,
        "unmeasured": 0 if rows else _count_unmeasured(state, query),
        "unmeasured_link": page_address(WORKLOADS_ENTRY.path, show="unmeasured"),
    }
    return render_console_page("workloads.html", state, WORKLOADS_ENTRY, context, problem=problem)


def _count_unmeasured(state: ConsoleState, query: PageQuery) -> int:
    """Return how many workloads lack the usage data that would select them, if the query asks for idle ones."""
    if query.value("show") not in ("wasted", "idle"):
        return 0
    return sum(SHOWN["unmeasured"][1](row) for row in state.workloads)


def _is_selected(state: ConsoleState, row: WorkloadReport, query: PageQuery) -> bool:
    show, reason, policy = query.value("show"), query.value("reason"), query.value("policy")
    return (
        _is_named(state, row, query.value("q").casefold())
        and query.value("namespace") in ("", row.namespace)
        and (not show or SHOWN[show][1](row))
        and reason in ("", row.keep_reason)
        and _is_found(row, query.value("code"), query.value("mode"))
        and (not policy or policy in state.policies_of[row.namespace, row.name])
    )


def _is_found(row: WorkloadReport, code: str, mode: str) -> bool:
    """Return whether the workload has a finding of the code and the mode; "" is any, also none."""
    return not (code or mode) or any(
        code in ("", found.code) and mode in ("", LABELS[found.mode]) for found, _ in row.pods_by_code
    )


def _is_named(state: ConsoleState, row: WorkloadReport, text: str) -> bool:
    """Return whether the workload or one of its pods has a name that contains the text."""
    return text in row.name.casefold() or any(
        text in pod.name.casefold() for pod in state.pods[row.namespace, row.name]
    )


def workload_page(
    state: ConsoleState,
    row: WorkloadReport,
    bands: Sequence[UsageBand] = (),
    allocated: Sequence[AllocatedDevice] = (),
    problem: str = "",
) -> str:
    """Return the page of one workload as HTML.

    Args:
        bands: GPU memory in use over time, one for each container with recorded usage.
        allocated: Devices of ResourceSlices that claims of its pods have.
    """
    currency = state.prices.currency if state.prices else ""
    pods = state.pods[row.namespace, row.name]
    reason = _REASONS.get(row.keep_reason)
    context = {
        "row": row,
        "idle": gpus_lower_bound(row.idle, row.idle_unknown),
        "wasted": wasted_text(row),
        "wasted_cost": f"{wasted_cost_text(row)} {currency}/h" if currency and row.waste.milli else "",
        "advice": _advice_cell(row),
        "savings": savings_text(row, currency),
        "cost": cost_text(row.allocated, row.allocated, f" {currency}/h") if currency else "",
        "audit_only": bool(row.recommended) and not row.gpu_milli_saved,
        "why_not": reason.sentence if reason else "",
        "fix": reason.fix if reason else "",
        "charts": [(band, band_chart(band)) for band in bands],
        "containers": table_markup(CONTAINERS, list(container_rows([row])), "container") if row.usages else "",
        "policies": sorted(state.policies_of[row.namespace, row.name]),
        "findings": table_markup(FOUND, row.findings[:MAX_FINDINGS], "finding") if row.findings else "",
        "hidden_findings": max(0, len(row.findings) - MAX_FINDINGS),
        "pods": table_markup(PODS, pods[:MAX_PODS], "pod", {"Node": lambda pod: node_address(pod.node)}),
        "hidden_pods": max(0, len(pods) - MAX_PODS),
        "allocated": _allocated_markup(pods, allocated[:MAX_PODS]) if allocated else "",
        "hidden_allocated": max(0, len(allocated) - MAX_PODS),
        "requested": format_gpus(row.gpu_milli_before),
    }
    return render_console_page("workload.html", state, WORKLOADS_ENTRY, context, problem=problem)


def _allocated_markup(pods: Iterable[ConsolePod], allocated: Iterable[AllocatedDevice]) -> Markup:
    nodes = {pod.name: pod.node for pod in pods if pod.node}

    def link_node(row: AllocatedDeviceRow) -> str:
        return node_address(next((nodes[pod] for pod in row.device.pods if pod in nodes), ""))

    rows = [AllocatedDeviceRow("", each) for each in allocated]
    return table_markup(ALLOCATED_TO_PODS, rows, "allocated device", {"Device": link_node})
