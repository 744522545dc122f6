"""The garbage collector, set for a process that answers short requests for weeks.

What is loaded at the start lives as long as the process: it is taken out of the collector's sight. A request
leaves next to no cycles behind, so young objects are looked at seldom.
"""

from __future__ import annotations

import gc
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

SPARE_DESCRIPTORS = 64
"""For the listening socket, the loop, and files that are read while every connection is taken."""


YOUNG_GENERATION_THRESHOLD = 50_000
"""Allocations between two looks at young objects: some hundred requests."""


def freeze_and_tune_gc() -> None:
    """Collect once, freeze what is left, and look seldom from now on. Call when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_GENERATION_THRESHOLD, 20, 100)


def raise_descriptor_limit(wanted: int) -> int:
    """How many connections may be open at once: those wanted, as far as the system allows the files for them.

    Raises the process's own limit up to the hard one first.
    """
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if soft == RLIM_INFINITY or soft >= wanted + SPARE_DESCRIPTORS:
        return wanted
    most = wanted + SPARE_DESCRIPTORS if hard == RLIM_INFINITY else min(wanted + SPARE_DESCRIPTORS, hard)
    setrlimit(RLIMIT_NOFILE, (most, hard))
    return max(1, most - SPARE_DESCRIPTORS)
