"""Open files of the process: every connection is one, and those who read policies and certificates need some too."""

from __future__ import annotations

from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

SPARE_DESCRIPTORS = 64
"""For the listening socket, the loop, and files that are read while every connection is taken."""


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
