"""Text for people: untrusted input escaped, amounts of GPUs, counts, aligned columns, styles."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from enum import StrEnum

from webhook.model.enums import PolicyMode

INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that a terminal or an XML parser interprets, or that are invisible."""

LABELS = {PolicyMode.ENFORCE: "deny", PolicyMode.WARN: "warn", PolicyMode.AUDIT: "note"}
"""The word before a finding, by its mode."""

MODES_BY_LABEL = {LABELS[mode]: mode for mode in PolicyMode}


class TextStyle(StrEnum):
    """Meaning of a piece of text. A terminal may show it in color; color never carries meaning alone."""

    BAD = "bad"
    WARNING = "warning"
    GOOD = "good"
    FAINT = "faint"
    STRONG = "strong"


Paint = Callable[[str, TextStyle], str]
"""Applies a style to a text."""

STYLES = {PolicyMode.ENFORCE: TextStyle.BAD, PolicyMode.WARN: TextStyle.WARNING, PolicyMode.AUDIT: TextStyle.FAINT}


def without_style(text: str, style: TextStyle) -> str:  # noqa: ARG001 - the signature of Paint
    """Return the text without color."""
    return text


def sanitize(text: str) -> str:
    r"""Escape control and invisible characters of untrusted text, so that they are visible and have no effect.

    >>> sanitize("a\x1b[2Jb")
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
    """Format thousandths of a GPU as GPUs, rounded to hundredths.

    >>> format_gpus(143), format_gpus(7500), format_gpus(-8000)
    ('0.14', '7.5', '-8')
    """
    hundredths = abs(rounded_hundredths(milli))
    text = f"{hundredths // 100}.{hundredths % 100:02}".rstrip("0").rstrip(".")
    return f"-{text}" if milli < 0 and hundredths else text


def rounded_hundredths(milli: int) -> int:
    """Round thousandths to hundredths, halves away from zero.

    >>> rounded_hundredths(145), rounded_hundredths(-8004)
    (15, -800)
    """
    hundredths = (abs(milli) + 5) // 10
    return -hundredths if milli < 0 else hundredths


def format_gpus_with_unit(milli: int) -> str:
    """Format thousandths of a GPU as GPUs with the unit.

    >>> format_gpus_with_unit(1000), format_gpus_with_unit(143)
    ('1 GPU', '0.14 GPUs')
    """
    return f"{format_gpus(milli)} GPU{'' if milli == 1000 else 's'}"


def format_percent(milli: int) -> str:
    """Format thousandths as percent.

    >>> format_percent(625), format_percent(-385)
    ('62.5%', '-38.5%')
    """
    return f"{'-' if milli < 0 else ''}{abs(milli) // 10}.{abs(milli) % 10}%"


def pluralize(number: int, one: str, many: str = "") -> str:
    """Format a number with the noun it counts.

    >>> pluralize(1, "object"), pluralize(3, "object")
    ('1 object', '3 objects')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows in columns, as kubectl does: the first row is the header, the last column is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["".join(cell.ljust(width + 3) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
