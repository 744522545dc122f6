"""A framework that takes what it sees shows in the shape of its use: nearly the whole card, and always the same."""

from __future__ import annotations

import numpy as np

from webhook.usage.history import GAP, UsageHistory

FULL_SHARE = 0.85
"""Share of the card from which on use may be a setting."""

FLAT_SHARE = 0.97
"""Share of the peak that the median reaches where use does not move."""

MIN_FLAT_BINS = 8
"""Bins below which nothing is said of a shape."""


def has_flat_usage(history: UsageHistory) -> bool:
    """Does it hold nearly the whole card and never give any back?"""
    if not history.capacity_mib or history.peak_mib < FULL_SHARE * history.capacity_mib:
        return False
    peaks = history.readings()
    seen = peaks[peaks > GAP]
    return seen.size >= MIN_FLAT_BINS and bool(np.median(seen) >= FLAT_SHARE * seen.max())
