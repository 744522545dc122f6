"""Tuning of a process that serves short requests for weeks: garbage collector and limit of open files."""

from __future__ import annotations

import gc
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

YOUNG_GENERATION_THRESHOLD = 50_000
"""Allocations between two collections of young objects: a few hundred requests."""

SPARE_DESCRIPTORS = 64
"""For the listening socket, the event loop, and files that are read while all connections are open."""


def freeze_and_tune_gc() -> None:
    """Exclude all current objects from collection, and collect young ones seldom. Call it when everything is loaded.

    Loaded objects live as long as the process, and a request leaves hardly any reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_GENERATION_THRESHOLD, 20, 100)


def raise_descriptor_limit(connections: int) -> int:
    """Raise the soft limit of open files for so many connections; return how many are possible."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    wanted = connections + SPARE_DESCRIPTORS
    if soft == RLIM_INFINITY or soft >= wanted:
        return connections
    limit = wanted if hard == RLIM_INFINITY else min(wanted, hard)
    setrlimit(RLIMIT_NOFILE, (limit, hard))
    return max(1, limit - SPARE_DESCRIPTORS)
