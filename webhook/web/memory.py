"""Returns free memory to the system.

glibc keeps what is freed below the end of its heap. Bodies of megabytes leave holes of up to 35 MiB there, which the
next ones fill, so this memory neither grows nor shrinks. It is returned soon after large bodies were received.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

LARGE_BODY = 16 * 1024
"""Bytes. Smaller bodies leave no holes that others do not fill."""

LARGE_BODIES_BYTES = 1024 * 1024
"""Bytes of large bodies after which memory is returned."""


class FreeMemory:
    """Counts large bodies, and returns free memory after `LARGE_BODIES_BYTES` of them."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def count_body(self, size: int) -> None:
        """Count a body of more than `LARGE_BODY` bytes."""
        self._bytes += size

    async def return_if_large(self) -> None:
        """Return what large bodies have left: about 1 ms of CPU, so this is called between requests."""
        if self._bytes > LARGE_BODIES_BYTES:
            self._bytes = 0
            return_free_memory()


def return_free_memory() -> None:
    """Return all whole free pages of the heap to the system, where the C library can."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
