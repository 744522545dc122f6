"""The result of `fairshare`: GPU time of each group against its share, as a table, CSV and plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webhook.model.fairness import GroupShare
from webhook.policy.fair_share import BY_NAMESPACE, FairShare
from webhook.report.tables import Column, Table, gpu_column
from webhook.report.text import Paint, format_percent, sanitize


def fair_share_columns(header: str = "Namespace") -> Table[GroupShare]:
    """Return the columns; the header is that of the groups."""
    return Table(
        (
            Column("name", lambda row: row.group, header, empty="(none)"),
            Column(
                "gpuMilliHours", lambda row: row.milli_hours, "GPU-hours", lambda row: f"{row.milli_hours / 1000:.1f}"
            ),
            Column("usedMilli", lambda row: row.used, "Used", lambda row: format_percent(row.used)),
            Column("entitledMilli", lambda row: row.entitled, "Share", lambda row: format_percent(row.entitled)),
            Column(
                "excessMilli",
                lambda row: row.excess_share,
                "Over",
                lambda row: f"{'+' if row.excess_share > 0 else ''}{format_percent(row.excess_share)}",
            ),
            gpu_column("gpuMilliAllocated", lambda row: row.holds_milli, "Allocated"),
        )
    )


def fair_share_table(groups: Sequence[GroupShare], rule: FairShare, paint: Paint) -> list[str]:
    """Return the rule, then one row per group, the largest excess first."""
    policy = f"policy {sanitize(rule.policy)}" if rule.policy else "no policy: equal shares"
    table = fair_share_columns("Namespace" if rule.by == BY_NAMESPACE else "Queue")
    return [
        f"{policy}; by {sanitize(rule.by)}; half-life {rule.half_life_hours} h",
        *table.to_lines(groups, paint),
    ]


def fair_share_document(groups: Sequence[GroupShare], rule: FairShare) -> dict[str, Any]:
    """Return the rule and the groups as plain data, in thousandths."""
    return {
        "policy": rule.policy,
        "by": rule.by,
        "halfLifeHours": rule.half_life_hours,
        "groups": list(map(fair_share_columns().to_document, groups)),
    }
