"""Reading and typing the first hour: five minutes to a first decision, fifteen to a first saved GPU."""

from __future__ import annotations

import re

import pytest

from tests.house.checkout import read_checkout_file
from tests.house.shown_blocks import FIRST_HOUR, shown_blocks

WORDS_PER_MINUTE = 200
CHARACTERS_PER_MINUTE = 150
"""Of a slow reader and typist who copies nothing; output is read like text."""

PARTS = {"a first decision": ("## 3. ", 5), "a first saved GPU": ("## 7. ", 15)}
"""The section after the goal, and the minutes until then."""


@pytest.mark.parametrize(("section", "minutes"), PARTS.values(), ids=PARTS)
def test_the_page_is_read_and_typed_in_time(section: str, minutes: int) -> None:
    text = read_checkout_file(FIRST_HOUR)
    read, found, _ = text.partition(section)
    end = read.count("\n") + 1
    typed = [
        each.text
        for block in shown_blocks()
        if block.page == FIRST_HOUR and block.line < end
        for each in block.commands
    ]

    assert found
    assert len(typed) >= 2
    spent = len(re.findall(r"\w\S*", read)) / WORDS_PER_MINUTE + sum(map(len, typed)) / CHARACTERS_PER_MINUTE
    assert spent <= minutes, f"{spent:.1f} minutes"
