"""Notes: what a reader of code should see beside a line, whatever command found it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from webhook.errors import SourceLocation
from webhook.model.modes import PolicyMode
from webhook.report.results import CheckResult, LocatedFinding, CheckVerdict
from webhook.report.table import finding_sentence

UNREADABLE = "unreadable"
"""What stands for a code where a file could not be judged."""


class AnnotationLevel(StrEnum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


ANNOTATION_LEVELS = {PolicyMode.ENFORCE: AnnotationLevel.ERROR, PolicyMode.WARN: AnnotationLevel.WARNING, PolicyMode.AUDIT: AnnotationLevel.NOTE}


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
