"""Builders of usage histories."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import ceil
from typing import Any

from webhook.usage.history import GAP, MIB_TYPECODE, UsageHistory

NOW = 1_700_000_000
QUARTER = 900
CARD_MIB = 81_920


def record(readings: Sequence[float | None], **fields: Any) -> UsageHistory:
    """Return the history of one pod, in bins of 15 minutes up to now."""
    peaks = [GAP if reading is None else ceil(reading) for reading in readings]
    sampled = [reading for reading in readings if reading is not None]
    plain: dict[str, Any] = {
        "namespace": "team",
        "workload": "Deployment/serve",
        "container": "main",
        "pod": "serve-0",
        "start": NOW - QUARTER * len(readings),
        "step_seconds": QUARTER,
        "capacity_mib": CARD_MIB,
        "mean_mib": round(sum(sampled) / len(sampled)) if sampled else 0,
        "peaks_mib": array(MIB_TYPECODE, peaks),
    }
    return UsageHistory(**(plain | fields))


def steady(mib: float, *, hours: int = 240, **fields: Any) -> UsageHistory:
    """Return the history of a pod with constant usage."""
    return record([mib] * (4 * hours), **fields)
