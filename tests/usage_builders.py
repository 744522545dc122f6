"""Builders of measured usage."""

from __future__ import annotations

from typing import Any

from webhook.model.usage import RISKS_PPM, ObservedUsage, UsageView

CARD_MIB = 81_920


def observed_usage(memory_mib: int, **fields: Any) -> ObservedUsage:
    """Return usage that never went, and with certainty never goes, above some memory."""
    plain: dict[str, Any] = {
        "memory_mib": memory_mib,
        "compute_milli": None,
        "samples": 500,
        "sizes_mib": (memory_mib,) * len(RISKS_PPM),
        "typical_mib": memory_mib,
        "card_mib": CARD_MIB,
    }
    return ObservedUsage(**(plain | fields))


def workload_usage(workload: str, **containers: ObservedUsage) -> UsageView:
    """Return the usage of the containers of one workload of "team"; running out costs as much as a card for an hour."""
    uses = {("team", workload, name): use for name, use in containers.items()}
    return UsageView(uses, prices=((1, 1000),))
