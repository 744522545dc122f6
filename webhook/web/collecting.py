"""The garbage collector, set for a process that answers short requests for weeks.

What is loaded at the start lives as long as the process: it is taken out of the collector's sight. A request
leaves next to no cycles behind, so young objects are looked at seldom.
"""

from __future__ import annotations

import gc

YOUNG_GENERATION_THRESHOLD = 50_000
"""Allocations between two looks at young objects: some hundred requests."""


def freeze_and_tune_gc() -> None:
    """Collect once, freeze what is left, and look seldom from now on. Call when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_GENERATION_THRESHOLD, 20, 100)
