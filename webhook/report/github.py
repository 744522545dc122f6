"""Workflow commands of GitHub Actions, which the runner shows beside the line.

Source: actions/toolkit, `packages/core/src/command.ts`: what has to be escaped in a message and in a property.
"""

from __future__ import annotations

from collections.abc import Iterable

from webhook.report.notes import Level, Note
from webhook.report.words import shown

_WORDS = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTE: "notice"}


def github(notes: Iterable[Note]) -> list[str]:
    """One command a note."""
    return [_command(note) for note in notes]


def _command(note: Note) -> str:
    place = note.place
    where = [f"file={_property(place.file)}"]
    if place.line:
        where += [f"line={place.line}", f"col={place.column}"]
    where.append(f"title={_property(note.code)}")
    return f"::{_WORDS[note.level]} {','.join(where)}::{_data(note.message)}"


def _data(text: str) -> str:
    """The text with its lines kept, and what a terminal would obey or nobody would see made visible."""
    return "%0A".join(shown(line) for line in text.replace("%", "%25").split("\n"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
