"""HTML pages, and that of an audit: one file that loads nothing from a network, prints, and has two themes.

Every text is untrusted: jinja2 and Markup escape it, `sanitize` makes invisible characters visible, and the page's
Content-Security-Policy lets no script run but its own.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from webhook.errors import shorten_text
from webhook.model.codes import CODES
from webhook.model.findings import Finding
from webhook.model.usage import IDLE_BELOW
from webhook.report.audit import NAMESPACES, AuditPage, ExemptionUsage, NamespaceTotals
from webhook.report.capacity import CAPACITY_WIDE, NodeCapacity
from webhook.report.charts import Bar, BarGroup, WaterfallStep, bar_chart, stacked_bar_chart, waterfall_chart
from webhook.report.check import finding_sentence
from webhook.report.costs import GpuCost, cost_text, money_text, product_price_text
from webhook.report.reach import KEPT_PODS
from webhook.report.results import UnevaluatedReason
from webhook.report.tables import Column, Table
from webhook.report.text import LABELS, STYLES, format_gpus, format_percent, pluralize, sanitize
from webhook.report.utilization import ClusterUtilization, idle_money_text, priced_share_text, utilization_caveats
from webhook.report.workload_report import workload_columns
from webhook.report.workloads import WorkloadReport
from webhook.well_known import DEMO

MAX_NODES = 200
MAX_FINDINGS = 1000
MAX_UNEVALUATED = 1000
MAX_MESSAGE_LETTERS = 300
"""Characters of a message that are shown."""


class FindingGroup(NamedTuple):
    """Findings of one code and mode in one namespace: one of each workload, with its number of pods."""

    namespace: str
    findings: tuple[tuple[Finding, int], ...]

    @property
    def first(self) -> Finding:
        """The finding that serves as the example."""
        return self.findings[0][0]

    @property
    def pods(self) -> int:
        """Pods with such findings."""
        return sum(pods for _, pods in self.findings)

    @property
    def pods_text(self) -> str:
        """The pods for people, with the number of workloads if it differs."""
        workloads = len(self.findings)
        return str(self.pods) if self.pods == workloads else f"{self.pods} in {pluralize(workloads, 'workload')}"


class UnevaluatedPods(NamedTuple):
    """Pods of a workload that were not evaluated at admission."""

    workload: WorkloadReport
    reason: UnevaluatedReason
    would_become: str
    pods: int


FINDINGS = Table[FindingGroup](
    (
        Column("", lambda row: row.namespace, "Namespace"),
        Column("", lambda row: row.first.code, "Code", code=True),
        Column(
            "",
            lambda row: row.first.mode,
            "Mode",
            lambda row: LABELS[row.first.mode],
            css=lambda row: STYLES[row.first.mode],
        ),
        Column("", lambda row: CODES[row.first.code].title if row.first.code in CODES else "", "Meaning"),
        Column("", lambda row: row.pods, "Pods", lambda row: row.pods_text, numeric=True),
        Column("", lambda row: shorten_text(finding_sentence(row.first), MAX_MESSAGE_LETTERS), "Example"),
        Column("", lambda row: shorten_text(row.first.fix, MAX_MESSAGE_LETTERS), "Fix"),
    )
)
UNEVALUATED = Table[UnevaluatedPods](
    (
        Column("", lambda row: row.workload.namespace, "Namespace"),
        Column("", lambda row: row.workload.name, "Workload"),
        Column("", lambda row: row.pods, "Pods", numeric=True),
        Column("", lambda row: row.reason.value, "Reason"),
        Column("", lambda row: row.would_become, "Would be"),
    )
)
EXEMPTIONS = Table[ExemptionUsage](
    (
        Column("", lambda row: row.name, "Name"),
        Column("", lambda row: row.policy, "Policy"),
        Column("", lambda row: " ".join(row.codes), "Codes", code=True),
        Column("", lambda row: row.reason, "Reason"),
        Column("", lambda row: row.expires, "Ends"),
        Column("", lambda row: "expired" if row.expired else "active", "State", css=lambda row: "bad" * row.expired),
        Column("", lambda row: row.workloads, "Workloads", numeric=True),
    )
)


def html_report_pieces(page: AuditPage) -> Iterator[str]:
    """Yield the report as HTML, piece by piece: a whole one is tens of megabytes in a large cluster."""
    findings = group_findings(page.workloads)
    unevaluated = [UnevaluatedPods(row, *each) for row in page.workloads for each in row.unevaluated]
    unevaluated.sort(key=lambda each: (-each.pods, each.workload.namespace, each.workload.name))
    figures = page.utilization
    nodes = sorted(page.nodes, key=lambda node: (-node.fragmented_milli, node.name))[:MAX_NODES]
    context = {
        "page": page,
        "version": page.version,
        "figures": figures,
        "admission": page.admission,
        "pods": sum(row.pods for row in page.namespaces),
        "listed_pods": sum(row.pods for row in page.workloads),
        "caveats": list(utilization_caveats(figures)) if figures else [],
        "waterfall": utilization_waterfall(figures) if figures else "",
        "reach_sentence": _sentence(str(page.reach)) if page.reach else "",
        "kept_pods": KEPT_PODS.to_html(page.reach.kept) if page.reach and page.reach.kept else "",
        "namespace_chart": _namespace_chart(page),
        "namespaces": NAMESPACES.to_html(page.namespaces),
        "fragmentation_chart": _fragmentation_chart(page.nodes),
        "nodes": CAPACITY_WIDE.to_html(nodes),
        "shown_nodes": len(nodes),
        "workloads": workload_columns(figures.prices if figures else None).html_pieces(
            page.workloads, "workloads", row_header="Workload"
        ),
        "findings": FINDINGS.to_html(findings[:MAX_FINDINGS]),
        "all_findings": len(findings),
        "max_findings": MAX_FINDINGS,
        "unevaluated": UNEVALUATED.to_html(unevaluated[:MAX_UNEVALUATED], row_header="Workload"),
        "all_unevaluated": len(unevaluated),
        "max_unevaluated": MAX_UNEVALUATED,
        "exemptions": EXEMPTIONS.to_html(page.exemptions),
        "idle_below": format_percent(IDLE_BELOW),
    }
    return jinja_environment().get_template("audit.html").generate(_common_context(), **context)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def render_page(template: str, context: Mapping[str, object]) -> str:
    """Return a page with the style and the script that all pages have."""
    return jinja_environment().get_template(template).render(_common_context(), **context)


def _common_context() -> Mapping[str, object]:
    """Return the style and the script of all pages."""
    script = template_text("page.js")
    return {
        "style": Markup(template_text("page.css")),  # noqa: S704 - our own file
        "script": Markup(script),  # noqa: S704 - our own file
        "security": content_security_policy(script),
    }


def content_security_policy(script: str) -> str:
    """Return a Content-Security-Policy that allows inline styles and this one script."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"{allowed}; base-uri 'none'; form-action 'none'"


@cache
def jinja_environment() -> Environment:
    """Return the environment of all templates: texts are escaped, and invisible characters made visible."""
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(template_text),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: sanitize(value) if type(value) is str else value,
    )
    environment.filters |= {
        "gpus": format_gpus,
        "money": money_text,
        "percent": format_percent,
        "count": pluralize,
        "rate": product_price_text,
        "priced_share": priced_share_text,
        "idle_money": idle_money_text,
        "cluster": cluster_title,
        "lines": escape_lines,
        "verbatim": escape,
    }
    return environment


def cluster_title(name: str) -> str:
    """Return the name of a cluster; of the example one, also that it is an example."""
    return f"{name} (example cluster, not yours)" if name == DEMO else name


def escape_lines(text: str) -> Markup:
    """Return a text of several lines, with everything but the ends of lines made visible."""
    return Markup("\n").join(sanitize(line) for line in text.split("\n"))


@cache
def template_text(name: str) -> str:
    """Return a template, a style or a script, by its path below the folder of templates."""
    return resources.files("webhook.report").joinpath("templates", name).read_text(encoding="utf-8")


def utilization_waterfall(figures: ClusterUtilization) -> Markup:
    """Return a waterfall from all GPUs down to the effective ones."""
    unknown = ("unknown",) if figures.unknown.milli else ()
    kinds = (*unknown, "free", "fragmented", "unschedulable", "idle", "over", "effective")
    left = figures.allocatable.milli
    steps = [WaterfallStep("all GPUs", 0, Bar("all", left, _waterfall_text(figures, figures.allocatable)))]
    for kind, (name, part) in zip(kinds, figures.parts, strict=True):
        left -= part.milli
        text = f"{figures.at_most if kind == 'effective' else ''}{_waterfall_text(figures, part)}"
        text = "unknown" if kind == "idle" and figures.idle_is_unknown else text
        steps.append(WaterfallStep(name, max(0, left), Bar(kind, part.milli, text)))
    return waterfall_chart("From all GPUs to the effective ones", steps)


def _waterfall_text(figures: ClusterUtilization, part: GpuCost) -> str:
    """Return the GPUs of a step and their cost, shortened."""
    text = format_gpus(part.milli)
    if figures.prices is None:
        return text
    cost = cost_text(part, figures.allocatable, f" {figures.prices.currency}/h").partition(" of ")[0]
    return f"{text} ({cost})"


def _namespace_chart(page: AuditPage) -> Markup:
    used: Counter[str] = Counter()
    for row in page.workloads:
        if (milli := measured_usage_milli(row)) is not None:
            used[row.namespace] += milli
    groups = [_namespace_bar_group(row, used.get(row.namespace)) for row in page.namespaces]
    return bar_chart("GPUs requested, used and recommended by namespace", groups)


def _namespace_bar_group(row: NamespaceTotals, used: int | None) -> BarGroup:
    recommended = row.gpu_milli_after - row.gpu_milli_audit_saved
    return BarGroup(
        row.namespace,
        (
            Bar("requested", row.gpu_milli_before, f"{format_gpus(row.gpu_milli_before)} requested"),
            Bar("used", used or 0, "no usage data" if used is None else f"{format_gpus(used)} used"),
            Bar("recommended", recommended, f"{format_gpus(recommended)} recommended"),
        ),
    )


def measured_usage_milli(row: WorkloadReport) -> int | None:
    """Return the thousandths of a GPU that the pods on nodes use, by compute; None without usage data."""
    measured = [usage for usage in row.usages if usage.compute_milli is not None and usage.pods > usage.pending]
    if not measured:
        return None
    used = sum(usage.count * (usage.compute_milli or 0) * (usage.pods - usage.pending) for usage in measured)
    return min(row.allocated.milli, used)


def _fragmentation_chart(nodes: Iterable[NodeCapacity]) -> Markup:
    products: defaultdict[str, list[NodeCapacity]] = defaultdict(list)
    for node in nodes:
        products[node.product_text].append(node)
    rows = [_product_bar_group(name, members) for name, members in sorted(products.items())]
    total = max((sum(bar.amount for bar in group.bars) for group, _ in rows), default=0)
    return stacked_bar_chart("Allocated, usable, fragmented and unschedulable GPUs by product", rows, total)


def _product_bar_group(name: str, nodes: Sequence[NodeCapacity]) -> tuple[BarGroup, str]:
    allocated = sum(node.allocated_milli for node in nodes)
    fragmented = sum(node.fragmented_milli for node in nodes)
    usable = sum(node.free_milli for node in nodes) - fragmented
    unschedulable = sum(node.unschedulable_milli for node in nodes)
    unknown = sum(node.unknown_milli for node in nodes)
    unknown_bar = Bar("unknown", unknown, f"{format_gpus(unknown)} free or allocated, which is unknown")
    group = BarGroup(
        name,
        (
            Bar("requested", allocated, f"{format_gpus(allocated)} allocated"),
            Bar("free", usable, f"{format_gpus(usable)} free and usable"),
            Bar("fragmented", fragmented, f"{format_gpus(fragmented)} fragmented"),
            Bar("unschedulable", unschedulable, f"{format_gpus(unschedulable)} on unschedulable nodes"),
            *([unknown_bar] if unknown else []),
        ),
    )
    total = sum(bar.amount for bar in group.bars)
    return group, f"{format_gpus(allocated)} of {format_gpus(total)} allocated"


def group_findings(rows: Iterable[WorkloadReport]) -> list[FindingGroup]:
    """Return the findings by namespace and code, the strictest first."""
    groups: defaultdict[tuple[int, str, str], list[tuple[Finding, int]]] = defaultdict(list)
    for row in rows:
        for finding, pods in row.pods_by_code:
            groups[-finding.mode, row.namespace, finding.code].append((finding, pods))
    return [FindingGroup(key[1], tuple(groups[key])) for key in sorted(groups)]
