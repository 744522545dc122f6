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

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from webhook.model.codes import CODES
from webhook.model.findings import Finding
from webhook.model.usage import IDLE_BELOW
from webhook.report.advice import used
from webhook.report.audits import Share
from webhook.report.capacities import Stock
from webhook.report.charts import Group, Step, bars, stacked, waterfall
from webhook.report.costs import cost, money, rate_words
from webhook.report.figures import Figures, caveats, of_priced, parts_of, percent
from webhook.report.page import Page
from webhook.report.results import Missed, Use
from webhook.report.table import sentence
from webhook.report.words import count, gpus, shown
from webhook.report.workloads import Spent, Workload

MOST_NODES = 200
MOST_FINDINGS = 1000
MOST_MISSED = 1000
MOST_TEXT = 300
"""Characters of a message that are shown."""


class Row(NamedTuple):
    """Findings of one code in one namespace."""

    namespace: str
    code: str
    mode: str
    title: str
    workloads: int
    pods: int
    example: str
    fix: str


def html(page: Page) -> str:
    """Write the report."""
    style, script = _text("audit.css"), _text("audit.js")
    findings, missed = findings_of(page.workloads), missed_of(page.workloads)
    context = {
        "page": page,
        "figures": page.figures,
        "pods": sum(share.pods for share in page.shares),
        "caveats": list(caveats(page.figures)) if page.figures else [],
        "waterfall": _waterfall(page.figures) if page.figures else "",
        "asked": _asked(page),
        "fragmentation": _fragmentation(page.stocks),
        "nodes": sorted(page.stocks, key=lambda stock: (-stock.split_milli, stock.name))[:MOST_NODES],
        "findings": findings[:MOST_FINDINGS],
        "all_findings": len(findings),
        "missed": missed[:MOST_MISSED],
        "all_missed": len(missed),
        "idle": percent(IDLE_BELOW),
        "style": Markup(style),  # noqa: S704 - our own file
        "script": Markup(script),  # noqa: S704 - our own file
        "security": policy_of(script),
    }
    return _environment().get_template("audit.html").render(context)


def policy_of(script: str) -> str:
    """What a browser may do for the page: show it, and run this one script."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"{allowed}; base-uri 'none'; form-action 'none'"


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_text),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
    )
    environment.filters |= {
        "gpus": gpus,
        "money": money,
        "percent": percent,
        "count": count,
        "used": _used,
        "rate": rate_words,
        "cost": cost,
        "of_priced": of_priced,
    }
    return environment


@cache
def _text(name: str) -> str:
    return resources.files("webhook.report").joinpath("templates", name).read_text(encoding="utf-8")


def _used(use: Use) -> str:
    return used(use)


def _waterfall(figures: Figures) -> Markup:
    """From all GPUs down to the effective ones, each part taken off where the one before it ended."""
    kinds = ("free", "lost", "closed", "idle", "over", "effective")
    total = figures.total.milli
    steps, left = [Step("all GPUs", "all", 0, total, f"{gpus(total)}{_cost(figures, figures.total)}")], total
    for kind, (name, part) in zip(kinds, parts_of(figures), strict=True):
        left -= part.milli
        words = f"{gpus(part.milli)}{_cost(figures, part)}"
        steps.append(Step(name, kind, max(0, left), part.milli, words))
    return waterfall("From all GPUs to the effective ones", steps)


def _cost(figures: Figures, some: Spent) -> str:
    """What a step costs, beside its GPUs; short, for there is no room for more."""
    if figures.prices is None:
        return ""
    words = cost(some, figures.total, f" {figures.prices.currency}/h").partition(" of ")[0]
    return f" ({words})"


def _asked(page: Page) -> Markup:
    seen: Counter[str] = Counter()
    for row in page.workloads:
        if (milli := used_milli(row)) is not None:
            seen[row.namespace] += milli
    return bars(
        "GPUs asked, used and advised by namespace",
        [_group(share, seen.get(share.namespace)) for share in page.shares],
    )


def _group(share: Share, seen: int | None) -> Group:
    advised = share.gpu_milli_after - share.gpu_milli_on_trial
    return Group(
        share.namespace,
        (
            ("asked", share.gpu_milli_before, f"{gpus(share.gpu_milli_before)} asked"),
            ("used", seen or 0, "use not seen" if seen is None else f"{gpus(seen)} used"),
            ("advised", advised, f"{gpus(advised)} advised"),
        ),
    )


def used_milli(row: Workload) -> int | None:
    """Thousandths of a GPU that the pods on nodes were seen to use, by compute; None where nothing was seen."""
    seen = [use for use in row.uses if use.compute_milli is not None and use.pods > use.waiting]
    if not seen:
        return None
    return min(row.held.milli, sum(use.count * (use.compute_milli or 0) * (use.pods - use.waiting) for use in seen))


def _fragmentation(stocks: Iterable[Stock]) -> Markup:
    """By product: held, free and usable, lost, on closed nodes."""
    products: defaultdict[str, list[Stock]] = defaultdict(list)
    for stock in stocks:
        products[stock.product or "product not labelled"].append(stock)
    rows = [_product(name, members) for name, members in sorted(products.items())]
    most = max((sum(amount for _, amount, _ in row.bars) for row in rows), default=0)
    return stacked("Held, usable, lost and closed GPUs by product", rows, most)


def _product(name: str, members: Sequence[Stock]) -> Group:
    held = sum(stock.used_milli for stock in members)
    lost = sum(stock.split_milli for stock in members)
    usable = sum(stock.free_milli for stock in members) - lost
    closed = sum(stock.closed_milli for stock in members)
    return Group(
        name,
        (
            ("asked", held, f"{gpus(held)} held"),
            ("free", usable, f"{gpus(usable)} free and usable"),
            ("lost", lost, f"{gpus(lost)} lost to fragmentation"),
            ("closed", closed, f"{gpus(closed)} on closed nodes"),
        ),
    )


def missed_of(rows: Iterable[Workload]) -> list[tuple[Workload, Missed, str, int]]:
    """Workloads with pods that no hook saw, those with most of them first: why, what they would be, and how many."""
    every = [(row, *each) for row in rows for each in row.missed]
    return sorted(every, key=lambda each: (-each[3], each[0].namespace, each[0].name))


def findings_of(rows: Iterable[Workload]) -> list[Row]:
    """Findings by namespace and code, the strictest first, with one of them as an example."""
    groups: defaultdict[tuple[str, str, int], list[tuple[Finding, int]]] = defaultdict(list)
    for row in rows:
        for located, pods in row.findings:
            groups[row.namespace, located.finding.code, -located.finding.mode].append((located.finding, pods))
    ranked = sorted(groups.items(), key=lambda item: (item[0][2], item[0][0], item[0][1]))
    return [_row(namespace, code, members) for (namespace, code, _), members in ranked]


def _row(namespace: str, code: str, members: Sequence[tuple[Finding, int]]) -> Row:
    first = members[0][0]
    return Row(
        namespace=namespace,
        code=code,
        mode=str(first.mode),
        title=CODES[code].title if code in CODES else "",
        workloads=len(members),
        pods=sum(pods for _, pods in members),
        example=sentence(first)[:MOST_TEXT],
        fix=first.fix[:MOST_TEXT],
    )
