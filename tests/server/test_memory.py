"""Memory that large bodies used is returned to the system."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tests.server.site import PATIENCE, serve_site
from webhook.web import limits, listener
from webhook.web.limits import LARGE_BODIES_BYTES, FreeMemory

MIB = 2**20


def resident_mib() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def leave_holes(memory: FreeMemory, size: int) -> list[bytes]:
    """Allocate 60 MiB in blocks of the heap, free all but each hundredth, and return those."""
    blocks = [bytes(20_000) for _ in range(3000)]
    for _ in range(100):
        memory.count_body(size)
    return blocks[::100]


def test_holes_in_the_heap_are_returned_after_large_bodies() -> None:
    memory = FreeMemory()
    kept = leave_holes(memory, LARGE_BODIES_BYTES)
    before = resident_mib()
    asyncio.run(memory.return_if_large())
    assert resident_mib() < before - 20
    assert len(kept) == 30


def test_up_to_a_mebibyte_of_bodies_costs_nothing() -> None:
    memory = FreeMemory()
    kept = leave_holes(memory, LARGE_BODIES_BYTES // 100)
    before = resident_mib()
    asyncio.run(memory.return_if_large())
    assert resident_mib() > before - 20
    assert len(kept) == 30


def test_a_server_returns_memory_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves no large bodies uses memory too: many reviews at once, or a list of all pods."""
    returned = threading.Event()
    monkeypatch.setattr(listener, "RETURN_SECONDS", 0.01)
    monkeypatch.setattr(limits, "return_free_memory", returned.set)
    with serve_site():
        assert returned.wait(PATIENCE)
