"""Builders of observed use."""

from __future__ import annotations

from typing import Any

from webhook.model.usage import RISKS_PPM, ObservedUsage, UsageView

CARD_MIB = 81_920


def observed(memory_mib: int, **fields: Any) -> ObservedUsage:
    """Use that never went, and with certainty never goes, above some memory."""
    plain: dict[str, Any] = {
        "memory_mib": memory_mib,
        "compute_milli": None,
        "samples": 500,
        "sizes_mib": (memory_mib,) * len(RISKS_PPM),
        "typical_mib": memory_mib,
        "card_mib": CARD_MIB,
    }
    return ObservedUsage(**(plain | fields))


def seen(workload: str, **containers: ObservedUsage) -> UsageView:
    """Use of the containers of one workload of "team", where an hour of a card is what running out costs."""
    uses = {("team", workload, name): use for name, use in containers.items()}
    return UsageView(uses, prices=((1, 1000),))
