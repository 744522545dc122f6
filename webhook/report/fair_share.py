"""Fair share, written down: for people, as CSV and as plain data."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any

from webhook.model.fairness import GroupShare
from webhook.policy.fair_share import BY_NAMESPACE, FairShare
from webhook.report.text import Paint, TextStyle, align_columns, format_gpus, sanitize

UNNAMED_GROUP = "(none)"


def fair_share_table(found: Sequence[GroupShare], rule: FairShare, paint: Paint) -> Iterator[str]:
    """What it is held against, then a row for each, whoever is over the share first."""
    whose = f"policy {sanitize(rule.policy)}" if rule.policy else "no policy: equal shares"
    yield f"{whose}; by {sanitize(rule.by)}; an hour of use counts half after {rule.half_life_hours} h"
    head = ("NAMESPACE" if rule.by == BY_NAMESPACE else "QUEUE", "GPU-HOURS", "USED", "SHARE", "OVER", "HOLDS")
    first, *rows = align_columns([head, *map(_fair_share_row, found)])
    yield paint(first, TextStyle.STRONG)
    yield from rows


def _fair_share_row(one: GroupShare) -> tuple[str, ...]:
    over = f"{'+' if one.excess_share > 0 else ''}{_share_percent(one.excess_share)}"
    hours = f"{one.milli_hours / 1000:.1f}"
    return (
        sanitize(one.group) or UNNAMED_GROUP,
        hours,
        _share_percent(one.used),
        _share_percent(one.entitled),
        over,
        format_gpus(one.holds_milli),
    )


def _share_percent(thousandths: int) -> str:
    return f"{thousandths / 10:.1f}%"


def fair_share_document(found: Sequence[GroupShare], rule: FairShare) -> dict[str, Any]:
    """Plain data: thousandths of a GPU, of all use and of all shares."""
    return {
        "policy": rule.policy,
        "by": rule.by,
        "halfLifeHours": rule.half_life_hours,
        "groups": [
            {
                "name": one.group,
                "gpuMilliHours": one.milli_hours,
                "usedMilli": one.used,
                "entitledMilli": one.entitled,
                "overMilli": one.excess_share,
                "gpuMilliHeld": one.holds_milli,
            }
            for one in found
        ],
    }


def fair_share_csv(found: Sequence[GroupShare]) -> str:
    """A row for each; a name that a spreadsheet would take for a formula cannot be a namespace or a label's value."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("name", "gpu_milli_hours", "used_milli", "entitled_milli", "over_milli", "gpu_milli_held"))
    rows.writerows(
        (one.group, one.milli_hours, one.used, one.entitled, one.excess_share, one.holds_milli) for one in found
    )
    return text.getvalue()
