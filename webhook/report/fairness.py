"""Fair share, written down: for people, as CSV and as plain data."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any

from webhook.model.fairness import Standing
from webhook.policy.fairness import NAMESPACE, FairShare
from webhook.report.words import Paint, Style, columns, gpus, shown

NAMELESS = "(none)"


def fairness_lines(found: Sequence[Standing], rule: FairShare, paint: Paint) -> Iterator[str]:
    """What it is held against, then a row for each, whoever is over the share first."""
    whose = f"policy {shown(rule.policy)}" if rule.policy else "no policy: equal shares"
    yield f"{whose}; by {shown(rule.by)}; an hour of use counts half after {rule.half_life_hours} h"
    head = ("NAMESPACE" if rule.by == NAMESPACE else "QUEUE", "GPU-HOURS", "USED", "SHARE", "OVER", "HOLDS")
    first, *rows = columns([head, *map(_row, found)])
    yield paint(first, Style.STRONG)
    yield from rows


def _row(one: Standing) -> tuple[str, ...]:
    over = f"{'+' if one.over > 0 else ''}{_percent(one.over)}"
    hours = f"{one.milli_hours / 1000:.1f}"
    return shown(one.group) or NAMELESS, hours, _percent(one.used), _percent(one.entitled), over, gpus(one.holds_milli)


def _percent(thousandths: int) -> str:
    return f"{thousandths / 10:.1f}%"


def fairness_document(found: Sequence[Standing], rule: FairShare) -> dict[str, Any]:
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
                "overMilli": one.over,
                "gpuMilliHeld": one.holds_milli,
            }
            for one in found
        ],
    }


def fairness_csv(found: Sequence[Standing]) -> str:
    """A row for each; a name that a spreadsheet would take for a formula cannot be a namespace or a label's value."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("name", "gpu_milli_hours", "used_milli", "entitled_milli", "over_milli", "gpu_milli_held"))
    rows.writerows((one.group, one.milli_hours, one.used, one.entitled, one.over, one.holds_milli) for one in found)
    return text.getvalue()
