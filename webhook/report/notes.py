"""Notes: what a reader of code should see beside a line, whatever command found it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from webhook.errors import Place
from webhook.model.modes import Mode
from webhook.report.results import Checked, Located, Verdict
from webhook.report.table import sentence

UNREADABLE = "unreadable"
"""What stands for a code where a file could not be judged."""


class Level(StrEnum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


LEVELS = {Mode.ENFORCE: Level.ERROR, Mode.WARN: Level.WARNING, Mode.AUDIT: Level.NOTE}


class Note(msgspec.Struct, frozen=True):
    """One message at one place."""

    place: Place
    level: Level
    code: str
    message: str


def notes_of(results: Iterable[Checked]) -> Iterator[Note]:
    """Every finding, and every file that is at fault."""
    for result in results:
        if result.verdict is Verdict.SKIPPED and result.broken:
            yield Note(result.place, Level.ERROR, UNREADABLE, result.reason)
        yield from (_note(found, result.title) for found in result.findings)


def _note(found: Located, title: str) -> Note:
    finding = found.finding
    message = f"{title}: {sentence(finding)}. {finding.fix}".strip()
    return Note(found.place, LEVELS[finding.effect], finding.code, message)
