"""Sentences of pages are short enough to be understood at the first reading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.checkout import ROOT, pages, without_code

MAX_WORDS = 40
"""Most sentences have fewer than 30; the rest are enumerations."""

LIST_ITEM = re.compile(r"\s*([*-]|\d+\.) ")
SENTENCE_END = re.compile(r'(?<=[.!?])\s+(?=[\w`"*\[(])')


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and list items as one line each, without headings and tables."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        ends = not line.strip() or line.startswith(("#", "|")) or LIST_ITEM.match(line)
        if ends and lines:
            yield " ".join(lines)
            lines = []
        if line.strip() and not line.startswith(("#", "|")):
            lines.append(line.strip())


def count_words(sentence: str) -> int:
    """Return the number of words; code counts as one word, and link targets do not count."""
    return len(re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", sentence)).split())


def long_sentences(page: Path) -> list[str]:
    """Return the sentences of a page that have too many words."""
    sentences = (each for text in paragraphs(without_code(page)) for each in SENTENCE_END.split(text))
    return [each for each in sentences if count_words(each) > MAX_WORDS]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    assert long_sentences(page) == []


def test_a_long_sentence_is_found_across_lines_and_list_items(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n* Short. " + "word " * 30 + "\n  " + "word " * 16 + ".\n* `a b c` [d](e f).\n")

    assert [count_words(each) for each in long_sentences(page)] == [47]
