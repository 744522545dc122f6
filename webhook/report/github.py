"""Workflow commands of GitHub Actions, which the runner shows beside the line.

Source: actions/toolkit, `packages/core/src/command.ts`: what has to be escaped in a message and in a property.
"""

from __future__ import annotations

from collections.abc import Iterable

from webhook.report.notes import AnnotationLevel, CodeAnnotation
from webhook.report.words import sanitize

_GITHUB_LEVELS = {AnnotationLevel.ERROR: "error", AnnotationLevel.WARNING: "warning", AnnotationLevel.NOTE: "notice"}


def github_commands(notes: Iterable[CodeAnnotation]) -> list[str]:
    """One command a note."""
    return [_github_command(note) for note in notes]


def _github_command(note: CodeAnnotation) -> str:
    place = note.place
    where = [f"file={_escape_github_property(place.file)}"]
    if place.line:
        where += [f"line={place.line}", f"col={place.column}"]
    where.append(f"title={_escape_github_property(note.code)}")
    return f"::{_GITHUB_LEVELS[note.level]} {','.join(where)}::{_escape_github_data(note.message)}"


def _escape_github_data(text: str) -> str:
    """The text with its lines kept, and what a terminal would obey or nobody would see made visible."""
    return "%0A".join(sanitize(line) for line in text.replace("%", "%25").split("\n"))


def _escape_github_property(text: str) -> str:
    return _escape_github_data(text).replace(":", "%3A").replace(",", "%2C")
