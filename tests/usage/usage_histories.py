"""Builders of usage histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webhook.usage.history import MAX_MIB, UsageHistory, peaks_from_readings

NOW = 1_700_000_000
QUARTER = 900
CARD_MIB = 81_920


def record(readings: Sequence[float | None], **fields: Any) -> UsageHistory:
    """The history of one pod, in bins of 15 minutes up to now."""
    plain: dict[str, Any] = {
        "namespace": "team",
        "workload": "Deployment/serve",
        "container": "main",
        "pod": "serve-0",
        "start": NOW - QUARTER * len(readings),
        "step_seconds": QUARTER,
        "capacity_mib": CARD_MIB,
        "mean_mib": round(_mean(readings)),
    }
    return UsageHistory(**({**plain, "peaks_mib": peaks_from_readings(readings)} | fields))


def _mean(readings: Sequence[float | None]) -> float:
    seen = [reading for reading in readings if reading is not None and 0 <= reading <= MAX_MIB]
    return sum(seen) / len(seen) if seen else 0


def steady(mib: float, *, hours: int = 240, **fields: Any) -> UsageHistory:
    """A pod with constant usage."""
    return record([mib] * (4 * hours), **fields)
