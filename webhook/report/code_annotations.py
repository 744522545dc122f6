"""Notes: what a reader of code should see beside a line, whatever command found it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

from webhook.errors import SourceLocation
from webhook.model.codes import CODES
from webhook.model.enums import PolicyMode
from webhook.report.check import finding_sentence
from webhook.report.results import CheckResult, CheckVerdict, LocatedFinding
from webhook.report.text import sanitize

Json = dict[str, Any]
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


UNREADABLE = "unreadable"
"""What stands for a code where a file could not be judged."""


class AnnotationLevel(StrEnum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


ANNOTATION_LEVELS = {
    PolicyMode.ENFORCE: AnnotationLevel.ERROR,
    PolicyMode.WARN: AnnotationLevel.WARNING,
    PolicyMode.AUDIT: AnnotationLevel.NOTE,
}


class CodeAnnotation(msgspec.Struct, frozen=True):
    """One message at one place."""

    place: SourceLocation
    level: AnnotationLevel
    code: str
    message: str


def finding_annotations(results: Iterable[CheckResult]) -> Iterator[CodeAnnotation]:
    """Every finding, and every file that is at fault."""
    for result in results:
        if result.verdict is CheckVerdict.SKIPPED and result.invalid:
            yield CodeAnnotation(result.place, AnnotationLevel.ERROR, UNREADABLE, result.reason)
        yield from (_finding_annotation(found, result.title) for found in result.findings)


def _finding_annotation(found: LocatedFinding, title: str) -> CodeAnnotation:
    finding = found.finding
    message = f"{title}: {finding_sentence(finding)}. {finding.fix}".strip()
    return CodeAnnotation(found.place, ANNOTATION_LEVELS[finding.effective_mode], finding.code, message)


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


def sarif_document(notes: Sequence[CodeAnnotation], version: str) -> Json:
    """Write one run: a rule for each code met, a result for each note."""
    rules = {code: i for i, code in enumerate(dict.fromkeys(note.code for note in notes))}
    driver = {"name": "rightslice", "semanticVersion": version, "rules": [_sarif_rule(code) for code in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(note, rules[note.code]) for note in notes],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_rule(code: str) -> Json:
    if code not in CODES:
        return {"id": code, "shortDescription": {"text": code}}
    page = CODES[code]
    return {
        "id": code,
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": page.reason},
        "help": {"text": page.fix},
    }


def _sarif_result(note: CodeAnnotation, rule: int) -> Json:
    place = note.place
    physical: Json = {"artifactLocation": {"uri": quote(place.file)}}
    if place.line:
        physical["region"] = {"startLine": place.line, "startColumn": max(1, place.column)}
    return {
        "ruleId": note.code,
        "ruleIndex": rule,
        "level": note.level.value,
        "message": {"text": sanitize(note.message)},
        "locations": [{"physicalLocation": physical}],
    }
