"""The terminal of a console that reads its cluster again shows each note once."""

from __future__ import annotations

import pytest

from webhook.cli.console_inputs import NewNotes


def test_a_note_is_printed_when_it_is_new_and_when_it_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    notes = NewNotes()
    for reading in (["a", "b", "a"], ["a"], ["a", "b"], []):
        notes.start_reading()
        for line in reading:
            notes.print(line)

    assert capsys.readouterr().err.split() == ["a", "b", "b"]
