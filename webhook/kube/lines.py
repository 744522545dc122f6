"""Bytes as they come from a watch, to lines; a line that is too long is left out, not kept in memory."""

from __future__ import annotations

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Bytes: five times the largest object that etcd takes, for JSON is longer than what it stores."""


class LineBuffer:
    """Collects pieces until a line is whole.

    Attributes:
        skipped: Lines left out because they were too long.
    """

    def __init__(self, most: int = MAX_LINE_BYTES) -> None:
        self.skipped = 0
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece; gives the lines that it ends, without their ends, empty ones left out.

        >>> lines = Lines()
        >>> lines.feed(b'{"a":1}'), lines.feed(b'\\n{"b":2}\\n{')
        ([], [b'{"a":1}', b'{"b":2}'])
        """
        *ended, rest = piece.split(b"\n")
        found = [line for line in map(self._finish_line, ended) if line]
        self._append(rest)
        return found

    @property
    def has_partial_line(self) -> bool:
        """Has a line begun that has not ended?"""
        return self._size > 0

    def _append(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._most:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _finish_line(self, part: bytes) -> bytes:
        self._append(part)
        line = b"".join(self._parts)
        self.skipped += self._size > self._most
        self._parts.clear()
        self._size = 0
        return line
