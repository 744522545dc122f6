"""The HTML report of an audit: one file that asks nothing of a network, prints, and is read in light and in dark.

Every text comes from strangers: jinja2 escapes each, what nobody would see in it is made visible, and the page lets no
script run but its own.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import NamedTuple

import msgspec
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from webhook.model.codes import CODES
from webhook.model.findings import Finding
from webhook.model.usage import IDLE_BELOW
from webhook.report.audit import NamespaceTotals
from webhook.report.capacity import NodeCapacity
from webhook.report.charts import BarGroup, WaterfallStep, bar_chart, stacked_bar_chart, waterfall_chart
from webhook.report.check import finding_sentence
from webhook.report.costs import cost_text, money_text, product_price_text
from webhook.report.results import ContainerUsage, UnevaluatedReason
from webhook.report.rightsizing import usage_text
from webhook.report.text import format_gpus, pluralize, sanitize
from webhook.report.utilization import (
    ClusterUtilization,
    percent_text,
    priced_share_text,
    utilization_caveats,
    utilization_parts,
)
from webhook.report.workloads import GpuCost, WorkloadReport


class ExemptionUsage(msgspec.Struct, frozen=True):
    """An exemption, and how many workloads it serves."""

    name: str
    policy: str
    codes: tuple[str, ...]
    reason: str
    expires: str
    expired: bool
    workloads: int


class AuditPage(msgspec.Struct, frozen=True):
    """What the report is about.

    Attributes:
        cluster: What was judged: an address, or a file.
        moment: When, for people.
        since: The moment from which on pods were taken; "" for all.
        policies: Names.
        digest: Of all policies.
        workloads: Those that have to do with GPUs, the one that saves most first.
        shares: By namespace.
        stocks: Every node with GPUs.
        figures: The head figures; None where no nodes are known.
        version: Of the program.
    """

    cluster: str
    moment: str
    since: str
    policies: tuple[str, ...]
    digest: str
    workloads: tuple[WorkloadReport, ...]
    namespaces: tuple[NamespaceTotals, ...]
    nodes: tuple[NodeCapacity, ...]
    utilization: ClusterUtilization | None
    exemptions: tuple[ExemptionUsage, ...]
    version: str


MAX_NODES = 200
MAX_FINDINGS = 1000
MAX_UNEVALUATED = 1000
MAX_MESSAGE_LETTERS = 300
"""Characters of a message that are shown."""


class FindingGroup(NamedTuple):
    """Findings of one code in one namespace."""

    namespace: str
    code: str
    mode: str
    title: str
    workloads: int
    pods: int
    example: str
    fix: str


def html_report(page: AuditPage) -> str:
    """Write the report."""
    style, script = _template_text("audit.css"), _template_text("audit.js")
    findings, missed = group_findings(page.workloads), list_unevaluated(page.workloads)
    context = {
        "page": page,
        "figures": page.utilization,
        "pods": sum(share.pods for share in page.namespaces),
        "caveats": list(utilization_caveats(page.utilization)) if page.utilization else [],
        "waterfall": _utilization_waterfall(page.utilization) if page.utilization else "",
        "asked": _namespace_chart(page),
        "fragmentation": _fragmentation_chart(page.nodes),
        "nodes": sorted(page.nodes, key=lambda stock: (-stock.fragmented_milli, stock.name))[:MAX_NODES],
        "findings": findings[:MAX_FINDINGS],
        "all_findings": len(findings),
        "missed": missed[:MAX_UNEVALUATED],
        "all_missed": len(missed),
        "idle": percent_text(IDLE_BELOW),
        "style": Markup(style),  # noqa: S704 - our own file
        "script": Markup(script),  # noqa: S704 - our own file
        "security": content_security_policy(script),
    }
    return _jinja_environment().get_template("audit.html").render(context)


def content_security_policy(script: str) -> str:
    """What a browser may do for the page: show it, and run this one script."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"{allowed}; base-uri 'none'; form-action 'none'"


@cache
def _jinja_environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_template_text),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: sanitize(value) if type(value) is str else value,
    )
    environment.filters |= {
        "gpus": format_gpus,
        "money": money_text,
        "percent": percent_text,
        "count": pluralize,
        "used": _usage_filter,
        "rate": product_price_text,
        "cost": cost_text,
        "of_priced": priced_share_text,
    }
    return environment


@cache
def _template_text(name: str) -> str:
    return resources.files("webhook.report").joinpath("templates", name).read_text(encoding="utf-8")


def _usage_filter(use: ContainerUsage) -> str:
    return usage_text(use)


def _utilization_waterfall(figures: ClusterUtilization) -> Markup:
    """From all GPUs down to the effective ones, each part taken off where the one before it ended."""
    kinds = ("free", "lost", "closed", "idle", "over", "effective")
    total = figures.allocatable.milli
    steps, left = (
        [
            WaterfallStep(
                "all GPUs", "all", 0, total, f"{format_gpus(total)}{_waterfall_step_cost(figures, figures.allocatable)}"
            )
        ],
        total,
    )
    for kind, (name, part) in zip(kinds, utilization_parts(figures), strict=True):
        left -= part.milli
        words = f"{format_gpus(part.milli)}{_waterfall_step_cost(figures, part)}"
        steps.append(WaterfallStep(name, kind, max(0, left), part.milli, words))
    return waterfall_chart("From all GPUs to the effective ones", steps)


def _waterfall_step_cost(figures: ClusterUtilization, some: GpuCost) -> str:
    """What a step costs, beside its GPUs; short, for there is no room for more."""
    if figures.prices is None:
        return ""
    words = cost_text(some, figures.allocatable, f" {figures.prices.currency}/h").partition(" of ")[0]
    return f" ({words})"


def _namespace_chart(page: AuditPage) -> Markup:
    seen: Counter[str] = Counter()
    for row in page.workloads:
        if (milli := measured_usage_milli(row)) is not None:
            seen[row.namespace] += milli
    return bar_chart(
        "GPUs asked, used and advised by namespace",
        [_namespace_bar_group(share, seen.get(share.namespace)) for share in page.namespaces],
    )


def _namespace_bar_group(share: NamespaceTotals, seen: int | None) -> BarGroup:
    advised = share.gpu_milli_after - share.gpu_milli_audit_saved
    return BarGroup(
        share.namespace,
        (
            ("asked", share.gpu_milli_before, f"{format_gpus(share.gpu_milli_before)} asked"),
            ("used", seen or 0, "use not seen" if seen is None else f"{format_gpus(seen)} used"),
            ("advised", advised, f"{format_gpus(advised)} advised"),
        ),
    )


def measured_usage_milli(row: WorkloadReport) -> int | None:
    """Thousandths of a GPU that the pods on nodes were seen to use, by compute; None where nothing was seen."""
    seen = [use for use in row.usages if use.compute_milli is not None and use.pods > use.pending]
    if not seen:
        return None
    return min(
        row.allocated.milli, sum(use.count * (use.compute_milli or 0) * (use.pods - use.pending) for use in seen)
    )


def _fragmentation_chart(stocks: Iterable[NodeCapacity]) -> Markup:
    """By product: held, free and usable, lost, on closed nodes."""
    products: defaultdict[str, list[NodeCapacity]] = defaultdict(list)
    for stock in stocks:
        products[stock.product or "product not labelled"].append(stock)
    rows = [_product_bar_group(name, members) for name, members in sorted(products.items())]
    most = max((sum(amount for _, amount, _ in row.bars) for row in rows), default=0)
    return stacked_bar_chart("Held, usable, lost and closed GPUs by product", rows, most)


def _product_bar_group(name: str, members: Sequence[NodeCapacity]) -> BarGroup:
    held = sum(stock.allocated_milli for stock in members)
    lost = sum(stock.fragmented_milli for stock in members)
    usable = sum(stock.free_milli for stock in members) - lost
    closed = sum(stock.unschedulable_milli for stock in members)
    return BarGroup(
        name,
        (
            ("asked", held, f"{format_gpus(held)} held"),
            ("free", usable, f"{format_gpus(usable)} free and usable"),
            ("lost", lost, f"{format_gpus(lost)} lost to fragmentation"),
            ("closed", closed, f"{format_gpus(closed)} on closed nodes"),
        ),
    )


def list_unevaluated(rows: Iterable[WorkloadReport]) -> list[tuple[WorkloadReport, UnevaluatedReason, str, int]]:
    """Workloads with pods that no hook saw, those with most of them first: why, what they would be, and how many."""
    every = [(row, *each) for row in rows for each in row.unevaluated]
    return sorted(every, key=lambda each: (-each[3], each[0].namespace, each[0].name))


def group_findings(rows: Iterable[WorkloadReport]) -> list[FindingGroup]:
    """Findings by namespace and code, the strictest first, with one of them as an example."""
    groups: defaultdict[tuple[str, str, int], list[tuple[Finding, int]]] = defaultdict(list)
    for row in rows:
        for located, pods in row.findings:
            groups[row.namespace, located.finding.code, -located.finding.mode].append((located.finding, pods))
    ranked = sorted(groups.items(), key=lambda item: (item[0][2], item[0][0], item[0][1]))
    return [_finding_group(namespace, code, members) for (namespace, code, _), members in ranked]


def _finding_group(namespace: str, code: str, members: Sequence[tuple[Finding, int]]) -> FindingGroup:
    first = members[0][0]
    return FindingGroup(
        namespace=namespace,
        code=code,
        mode=str(first.mode),
        title=CODES[code].title if code in CODES else "",
        workloads=len(members),
        pods=sum(pods for _, pods in members),
        example=finding_sentence(first)[:MAX_MESSAGE_LETTERS],
        fix=first.fix[:MAX_MESSAGE_LETTERS],
    )
