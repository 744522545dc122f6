"""Text: untrusted input is escaped, amounts and counts are readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.report.text import align_columns, format_gpus, pluralize, sanitize

SANITIZED = {
    "plain text is unchanged": ("train-0", "train-0"),
    "other scripts are unchanged": ("größe 模型", "größe 模型"),
    "an escape sequence is escaped": ("\x1b[2J", "\\x1b[2J"),
    "a line end is escaped": ("a\nb\r\tc", "a\\nb\\r\\tc"),
    "a direction override is escaped": ("\u202ecod", "\\u202ecod"),
    "a zero-width character is escaped": ("a\u200bb", "a\\u200bb"),
    "a lone surrogate is escaped": ("\ud800", "\\ud800"),
    "a private plane is escaped": ("\U000f0000", "\\U000f0000"),
}


@pytest.mark.parametrize(("text", "want"), SANITIZED.values(), ids=SANITIZED)
def test_sanitize(text: str, want: str) -> None:
    assert sanitize(text) == want


@given(st.text())
def test_sanitized_text_can_be_printed_and_encoded(text: str) -> None:
    assert sanitize(text).encode().decode() == sanitize(text)
    assert all(char == " " or char.isprintable() or char.isspace() for char in sanitize(text))
    assert "\n" not in sanitize(text)


GPUS = {0: "0", 1000: "1", 143: "0.14", 7143: "7.14", 5: "0.01", 4: "0", -4: "0", -1500: "-1.5"}


@pytest.mark.parametrize(("milli", "want"), GPUS.items())
def test_format_gpus(milli: int, want: str) -> None:
    assert format_gpus(milli) == want


def test_pluralize() -> None:
    assert [pluralize(n, "policy", "policies") for n in (0, 1, 2)] == ["0 policies", "1 policy", "2 policies"]


def test_columns_are_aligned_without_trailing_spaces() -> None:
    assert align_columns([("A", "BB"), ("ccc", "d")]) == ["A     BB", "ccc   d"]
    assert align_columns([]) == []
