"""Annotations of source lines for code review: SARIF 2.1.0, and workflow commands of GitHub Actions.

Sources: OASIS, Static Analysis Results Interchange Format 2.1.0, sections 3.13 to 3.30; actions/toolkit,
`packages/core/src/command.ts`, for the escaping in messages and properties.
"""

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
"""Stands for a code if a file could not be evaluated."""


class AnnotationLevel(StrEnum):
    """Severity of an annotation."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


ANNOTATION_LEVELS = {
    PolicyMode.ENFORCE: AnnotationLevel.ERROR,
    PolicyMode.WARN: AnnotationLevel.WARNING,
    PolicyMode.AUDIT: AnnotationLevel.NOTE,
}


class CodeAnnotation(msgspec.Struct, frozen=True):
    """One message at one source location."""

    location: SourceLocation
    level: AnnotationLevel
    code: str
    message: str


def finding_annotations(results: Iterable[CheckResult]) -> Iterator[CodeAnnotation]:
    """Yield an annotation for every finding and every invalid file."""
    for result in results:
        if result.verdict is CheckVerdict.SKIPPED and result.invalid:
            yield CodeAnnotation(result.location, AnnotationLevel.ERROR, UNREADABLE, result.reason)
        yield from (_finding_annotation(found, result.title) for found in result.findings)


def _finding_annotation(found: LocatedFinding, title: str) -> CodeAnnotation:
    finding = found.finding
    message = f"{title}: {finding_sentence(finding)}. {finding.fix}".strip()
    return CodeAnnotation(found.location, ANNOTATION_LEVELS[finding.effective_mode], finding.code, message)


_GITHUB_LEVELS = {AnnotationLevel.ERROR: "error", AnnotationLevel.WARNING: "warning", AnnotationLevel.NOTE: "notice"}


def github_commands(annotations: Iterable[CodeAnnotation]) -> list[str]:
    """Return one workflow command per annotation."""
    return [_github_command(annotation) for annotation in annotations]


def _github_command(annotation: CodeAnnotation) -> str:
    location = annotation.location
    where = [f"file={_escape_github_property(location.file)}"]
    if location.line:
        where += [f"line={location.line}", f"col={location.column}"]
    where.append(f"title={_escape_github_property(annotation.code)}")
    return f"::{_GITHUB_LEVELS[annotation.level]} {','.join(where)}::{_escape_github_data(annotation.message)}"


def _escape_github_data(text: str) -> str:
    """Escape a message; its lines are kept, control and invisible characters are made visible."""
    return "%0A".join(sanitize(line) for line in text.replace("%", "%25").split("\n"))


def _escape_github_property(text: str) -> str:
    return _escape_github_data(text).replace(":", "%3A").replace(",", "%2C")


def sarif_document(annotations: Sequence[CodeAnnotation], version: str) -> Json:
    """Return one run with a rule for each code and a result for each annotation."""
    rules = {code: i for i, code in enumerate(dict.fromkeys(annotation.code for annotation in annotations))}
    driver = {"name": "rightslice", "semanticVersion": version, "rules": [_sarif_rule(code) for code in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(annotation, rules[annotation.code]) for annotation in annotations],
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


def _sarif_result(annotation: CodeAnnotation, rule: int) -> Json:
    location = annotation.location
    physical: Json = {"artifactLocation": {"uri": quote(location.file)}}
    if location.line:
        physical["region"] = {"startLine": location.line, "startColumn": max(1, location.column)}
    return {
        "ruleId": annotation.code,
        "ruleIndex": rule,
        "level": annotation.level.value,
        "message": {"text": sanitize(annotation.message)},
        "locations": [{"physicalLocation": physical}],
    }
