"""How a report says things: what strangers wrote made visible, amounts of GPU, counts, columns and colour."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from enum import StrEnum

from webhook.model.enums import PolicyMode

INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories that a terminal or an XML reader acts on, or that nobody can see."""

LABELS = {PolicyMode.ENFORCE: "deny", PolicyMode.WARN: "warn", PolicyMode.AUDIT: "note"}
"""What a finding does, in the word that stands beside it."""


class TextStyle(StrEnum):
    """What a piece of text means; a terminal may show it in colour, and it never means anything alone."""

    BAD = "bad"
    WARNING = "warning"
    GOOD = "good"
    FAINT = "faint"
    STRONG = "strong"


Paint = Callable[[str, TextStyle], str]
"""Puts a style on a text."""

STYLES = {PolicyMode.ENFORCE: TextStyle.BAD, PolicyMode.WARN: TextStyle.WARNING, PolicyMode.AUDIT: TextStyle.FAINT}


def without_style(text: str, style: TextStyle) -> str:  # noqa: ARG001 - the paint that paints nothing
    """No colour."""
    return text


def sanitize(text: str) -> str:
    r"""Write what a stranger wrote so that it is seen, not obeyed: control and invisible characters escaped.

    >>> shown("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_character(char) if unicodedata.category(char) in INVISIBLE else char for char in text)


def _escape_character(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def format_gpus(milli: int) -> str:
    """Write thousandths of a GPU as GPUs, to the nearest hundredth.

    >>> gpus(143), gpus(7500), gpus(-8000)
    ('0.14', '7.5', '-8')
    """
    hundredths = (abs(milli) + 5) // 10
    text = f"{hundredths // 100}.{hundredths % 100:02}".rstrip("0").rstrip(".")
    return f"-{text}" if milli < 0 and hundredths else text


def format_gpus_with_unit(milli: int) -> str:
    """The same with its unit.

    >>> in_gpus(1000), in_gpus(143)
    ('1 GPU', '0.14 GPUs')
    """
    return f"{format_gpus(milli)} GPU{'' if milli == 1000 else 's'}"


def pluralize(number: int, one: str, many: str = "") -> str:
    """Write a number and the thing counted.

    >>> count(1, "object"), count(3, "object")
    ('1 object', '3 objects')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def align_columns(rows: Sequence[Sequence[str]], *, gap: int = 3) -> list[str]:
    """Set rows in columns, as kubectl does: the first row is the head, the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["".join(_pad_cells(row, widths, gap)).rstrip() for row in rows]


def _pad_cells(row: Sequence[str], widths: Sequence[int], gap: int) -> list[str]:
    return [cell.ljust(width + gap) for cell, width in zip(row, widths, strict=True)]
