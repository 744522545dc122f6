"""The pages Quotas and ranges: what each ResourceQuota and LimitRange says, and what it really does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.model.field_paths import format_path
from webhook.model.findings import Finding
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.report.console.page import QUOTAS_ENTRY, render_console_page
from webhook.report.console.query import NAMESPACE_FILTER, FilterField, PageQuery, page_address
from webhook.report.console.rows import sort_keys, table_markup, table_page
from webhook.report.console.state import ConsoleState
from webhook.report.tables import Column, Table
from webhook.report.text import sanitize

EFFECT = "This object does what the one above seems to say."
EFFECT_WITH_ACCOUNTING = (
    "This object does what the one above seems to say for pods without claims, in a namespace where a policy sets "
    f"limits.accounting: native. Elsewhere no pod requests {ACCOUNTING_RESOURCE}, and that line counts nothing."
)

QUOTA_KINDS = ("ResourceQuota", "LimitRange")
QUOTA_FILTERS = (
    NAMESPACE_FILTER,
    FilterField("kind", "Kind", tuple((kind, kind) for kind in QUOTA_KINDS)),
    FilterField("show", "Show", (("misleading", "Not what they say"),)),
)
QUOTA_KEY = (NAMESPACE_FILTER, FilterField("kind", "Kind"), FilterField("name", "Name"))
"""The parameters of the page of an object."""


class LimitLine(NamedTuple):
    """One line of an object: a resource, what is written about it, and what of a quota is used.

    Attributes:
        subject: The resource of a quota, or type and field of a LimitRange.
        used: "" for a LimitRange, or if the status of the quota is not known.
    """

    subject: str
    written: str
    used: str = ""


class LimitObject(NamedTuple):
    """A ResourceQuota or a LimitRange.

    Attributes:
        findings: What it does beyond, or instead of, what it says.
        corrected: The object that does what this one says, as YAML; "" if nothing has to be corrected.
        rejections: Why the API server would reject the corrected object, or this one if nothing is corrected.
    """

    namespace: str
    kind: str
    name: str
    lines: tuple[LimitLine, ...]
    findings: tuple[Finding, ...]
    corrected: str
    rejections: tuple[str, ...] = ()

    @property
    def is_misleading(self) -> bool:
        """Whether it does not do what it says."""
        return bool(self.findings or self.rejections)

    @property
    def says(self) -> str:
        """Its lines in one."""
        return ", ".join(f"{each.subject}: {each.written}" for each in self.lines)


def _use_cell(row: LimitObject) -> str:
    return ", ".join(f"{each.subject}: {each.used}" for each in row.lines if each.used)


def _effect_cell(row: LimitObject) -> str:
    rejections = [f"the API server rejects it: {each}" for each in row.rejections]
    return "; ".join([*(f"{each.code} {each.message}" for each in row.findings), *rejections]) or "what it says"


LIMIT_OBJECTS = Table[LimitObject](
    (
        Column("", lambda row: row.name, "Name"),
        Column("", lambda row: row.namespace, "Namespace"),
        Column("", lambda row: row.kind, "Kind"),
        Column("", lambda row: row.says, "Says"),
        Column("", _use_cell, "Used", empty=""),
        Column("", _effect_cell, "Does", css=lambda row: "warning" if row.is_misleading else ""),
    )
)
LIMIT_COLUMNS = sort_keys(LIMIT_OBJECTS)

LIMIT_LINES = Table[LimitLine](
    (
        Column("", lambda row: row.subject, "Field"),
        Column("", lambda row: row.written, "Says"),
        Column("", lambda row: row.used, "Used", empty=""),
    )
)
LIMIT_FINDINGS = Table[Finding](
    (
        Column("", lambda each: each.code, "Code"),
        Column("", lambda each: format_path(each.path), "Field"),
        Column("", lambda each: each.message, "Does"),
        Column("", lambda each: each.fix, "Fix", empty=""),
    )
)


def limit_address(row: LimitObject) -> str:
    """Return the address of the page of an object."""
    return page_address("/quota", namespace=row.namespace, kind=row.kind, name=row.name)


def quotas_page(state: ConsoleState, limits: Sequence[LimitObject], query: PageQuery, problem: str = "") -> str:
    """Return the list as HTML."""
    rows = [each for each in limits if _is_selected(each, query)]
    values = {NAMESPACE_FILTER: lambda: (each.namespace for each in limits)}
    page = table_page(LIMIT_OBJECTS, rows, query, QUOTAS_ENTRY.path, "object", {"Name": limit_address}, values)
    context = {"page": page, "query": query, "fields": QUOTA_FILTERS, "path": QUOTAS_ENTRY.path}
    return render_console_page("quotas.html", state, QUOTAS_ENTRY, context, problem=problem)


def _is_selected(row: LimitObject, query: PageQuery) -> bool:
    return (
        query.value("namespace") in ("", row.namespace)
        and query.value("kind") in ("", row.kind)
        and (not query.value("show") or row.is_misleading)
    )


def quota_page(state: ConsoleState, row: LimitObject, problem: str = "") -> str:
    """Return the page of one object as HTML."""
    context = {
        "row": row,
        "name": sanitize(row.name),
        "lines": table_markup(LIMIT_LINES, row.lines, "field"),
        "effect": EFFECT_WITH_ACCOUNTING if ACCOUNTING_RESOURCE in row.corrected else EFFECT,
        "findings": table_markup(LIMIT_FINDINGS, row.findings, "finding") if row.findings else "",
    }
    return render_console_page("quota.html", state, QUOTAS_ENTRY, context, problem=problem)
