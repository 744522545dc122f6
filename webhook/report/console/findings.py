"""The page Findings: what the policies and the cluster's limits object to, by code, mode and namespace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from webhook.model.codes import CODES
from webhook.model.findings import Finding
from webhook.report.check import finding_sentence
from webhook.report.console.page import FINDINGS_ENTRY, render_console_page
from webhook.report.console.query import NAMESPACE_FILTER, FilterField, PageQuery, page_address
from webhook.report.console.rows import sort_keys, table_page
from webhook.report.console.state import ConsoleState
from webhook.report.html import FindingGroup, group_findings
from webhook.report.results import CheckResult
from webhook.report.tables import Column, Table
from webhook.report.text import LABELS, MODES_BY_LABEL, STYLES, pluralize
from webhook.report.workloads import WorkloadReport

FINDING_FILTERS = (
    FilterField("code", "Code contains"),
    NAMESPACE_FILTER,
    FilterField("mode", "Mode", tuple((label, label) for label in MODES_BY_LABEL)),
)


class ConsoleFindings(NamedTuple):
    """Findings of one code and mode in one namespace, of workloads or of resource claims."""

    group: FindingGroup
    of_claims: bool

    @property
    def code(self) -> str:
        """Their code."""
        return self.group.first.code

    @property
    def title(self) -> str:
        """The meaning of the code."""
        return CODES[self.code].title if self.code in CODES else ""


def group_console_findings(
    workloads: Iterable[WorkloadReport], claims: Iterable[CheckResult]
) -> tuple[ConsoleFindings, ...]:
    """Return all findings in groups, the strictest first."""
    of_claims: defaultdict[tuple[int, str, str], list[tuple[Finding, int]]] = defaultdict(list)
    for claim in claims:
        for each in claim.findings:
            of_claims[-each.finding.mode, claim.namespace, each.finding.code].append((each.finding, 1))
    found = [ConsoleFindings(group, False) for group in group_findings(workloads)]
    found += [ConsoleFindings(FindingGroup(key[1], tuple(of_claims[key])), True) for key in sorted(of_claims)]
    return tuple(sorted(found, key=lambda each: -each.group.first.mode))


FINDING_GROUPS = Table[ConsoleFindings](
    (
        Column("", lambda row: row.code, "Code"),
        Column("", lambda row: row.group.namespace, "Namespace"),
        Column(
            "",
            lambda row: row.group.first.mode,
            "Mode",
            lambda row: LABELS[row.group.first.mode],
            css=lambda row: STYLES[row.group.first.mode],
        ),
        Column("", lambda row: row.title, "Meaning"),
        Column(
            "",
            lambda row: row.group.pods,
            "Objects",
            lambda row: pluralize(row.group.pods, "claim") if row.of_claims else row.group.pods_text,
            numeric=True,
        ),
        Column("", lambda row: finding_sentence(row.group.first), "Example"),
        Column("", lambda row: row.group.first.fix, "Fix", empty=""),
    )
)
FINDING_COLUMNS = sort_keys(FINDING_GROUPS)


def findings_page(state: ConsoleState, findings: Sequence[ConsoleFindings], query: PageQuery, problem: str = "") -> str:
    """Return the page as HTML."""
    rows = [each for each in findings if _is_selected(each, query)]
    values = {NAMESPACE_FILTER: lambda: (each.group.namespace for each in findings)}
    page = table_page(FINDING_GROUPS, rows, query, FINDINGS_ENTRY.path, "group", {"Code": _workloads_address}, values)
    context = {"page": page, "query": query, "fields": FINDING_FILTERS, "path": FINDINGS_ENTRY.path}
    return render_console_page("findings.html", state, FINDINGS_ENTRY, context, problem=problem)


def _workloads_address(row: ConsoleFindings) -> str:
    """Return the address of the workloads with these findings; "" for claims."""
    if row.of_claims:
        return ""
    mode = LABELS[row.group.first.mode]
    return page_address("/workloads", namespace=row.group.namespace, code=row.code, mode=mode)


def _is_selected(row: ConsoleFindings, query: PageQuery) -> bool:
    mode = query.value("mode")
    return (
        query.value("code").casefold() in row.code.casefold()
        and query.value("namespace") in ("", row.group.namespace)
        and (not mode or row.group.first.mode is MODES_BY_LABEL[mode])
    )
