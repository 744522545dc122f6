"""How a report says things: what strangers wrote made visible, amounts of GPU, counts, columns and colour."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from enum import StrEnum

from webhook.model.modes import Mode

INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories that a terminal or an XML reader acts on, or that nobody can see."""

LABELS = {Mode.ENFORCE: "deny", Mode.WARN: "warn", Mode.AUDIT: "note"}
"""What a finding does, in the word that stands beside it."""


class Style(StrEnum):
    """What a piece of text means; a terminal may show it in colour, and it never means anything alone."""

    BAD = "bad"
    WARNING = "warning"
    GOOD = "good"
    FAINT = "faint"
    STRONG = "strong"


Paint = Callable[[str, Style], str]
"""Puts a style on a text."""

STYLES = {Mode.ENFORCE: Style.BAD, Mode.WARN: Style.WARNING, Mode.AUDIT: Style.FAINT}


def plain(text: str, style: Style) -> str:  # noqa: ARG001 - the paint that paints nothing
    """No colour."""
    return text


def shown(text: str) -> str:
    r"""Write what a stranger wrote so that it is seen, not obeyed: control and invisible characters escaped.

    >>> shown("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in INVISIBLE else char for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def gpus(milli: int) -> str:
    """Write thousandths of a GPU as GPUs, to the nearest hundredth.

    >>> gpus(143), gpus(7500), gpus(-8000)
    ('0.14', '7.5', '-8')
    """
    hundredths = (abs(milli) + 5) // 10
    text = f"{hundredths // 100}.{hundredths % 100:02}".rstrip("0").rstrip(".")
    return f"-{text}" if milli < 0 and hundredths else text


def count(number: int, one: str, many: str = "") -> str:
    """Write a number and the thing counted.

    >>> count(1, "object"), count(3, "object")
    ('1 object', '3 objects')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def columns(rows: Sequence[Sequence[str]], *, gap: int = 3) -> list[str]:
    """Set rows in columns, as kubectl does: the first row is the head, the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["".join(_cells(row, widths, gap)).rstrip() for row in rows]


def _cells(row: Sequence[str], widths: Sequence[int], gap: int) -> list[str]:
    return [cell.ljust(width + gap) for cell, width in zip(row, widths, strict=True)]
