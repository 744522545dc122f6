"""The result of `test`: policy tests by case, for people, programs and CI servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from webhook.errors import LocatedError, SourceLocation
from webhook.model.enums import PolicyMode
from webhook.report.ci_formats import UNREADABLE, CodeAnnotation, JUnitCase
from webhook.report.text import Paint, TextStyle, pluralize, sanitize, without_style

TEST_FAILED = "test-failed"
"""The code of a failed policy test."""


NO_TESTS = "no-tests"
"""The code of a folder without policy tests."""


class CaseResult(msgspec.Struct, frozen=True):
    """One case and its mismatches: "want …, got …"."""

    name: str
    location: SourceLocation
    problems: tuple[str, ...] = ()


class FileResult(msgspec.Struct, frozen=True):
    """One test file: its cases, the names of its tests, and the errors that prevented a run."""

    file: str
    cases: tuple[CaseResult, ...]
    errors: tuple[LocatedError, ...] = ()
    tests: tuple[str, ...] = ()


def policy_test_table(results: Iterable[FileResult], paint: Paint = without_style) -> Iterator[str]:
    """Yield every case, failed ones with location and mismatches."""
    for result in results:
        yield paint(sanitize(result.file), TextStyle.STRONG)
        for error in result.errors:
            yield f"  {paint('error', TextStyle.BAD)}  {sanitize(str(error.location))}  {sanitize(error.message)}"
        width = max((len(sanitize(case.name)) for case in result.cases if case.problems), default=0)
        for case in result.cases:
            if case.problems:
                name = f"{sanitize(case.name):<{width}}"
                yield f"  {paint('FAIL', TextStyle.BAD)}  {name}  {sanitize(str(case.location))}"
                yield from (f"        {sanitize(problem)}" for problem in case.problems)
            else:
                yield f"  {paint('ok', TextStyle.GOOD)}    {sanitize(case.name)}"


def _count_cases(results: Iterable[FileResult]) -> dict[str, int]:
    every = list(results)
    cases = [case for result in every for case in result.cases]
    failed = sum(bool(case.problems) for case in cases)
    invalid = sum(bool(result.errors) for result in every)
    return {"cases": len(cases), "ok": len(cases) - failed, "failed": failed, "invalid": invalid}


def policy_test_summary(results: Iterable[FileResult]) -> str:
    """Return the totals in one sentence."""
    totals = _count_cases(results)
    parts = [f"{totals['ok']} ok"] * bool(totals["cases"]) + [f"{totals['failed']} failed"] * bool(totals["failed"])
    files = f"; {pluralize(totals['invalid'], 'file')} could not run" if totals["invalid"] else ""
    return f"{pluralize(totals['cases'], 'case')}{': ' if parts else ''}{', '.join(parts)}{files}"


def policy_test_document(results: Sequence[FileResult]) -> dict[str, Any]:
    """Return the results as plain data."""
    return {"files": [_test_file_document(result) for result in results], "summary": _count_cases(results)}


def _test_file_document(result: FileResult) -> dict[str, Any]:
    errors = [{"line": e.location.line, "column": e.location.column, "message": e.message} for e in result.errors]
    cases = [
        {
            "name": case.name,
            "line": case.location.line,
            "column": case.location.column,
            "ok": not case.problems,
            "problems": list(case.problems),
        }
        for case in result.cases
    ]
    return {"file": result.file, "cases": cases, "errors": errors}


def policy_test_annotations(results: Iterable[FileResult]) -> Iterator[CodeAnnotation]:
    """Yield an annotation for every failed case and every error."""
    for result in results:
        yield from (
            CodeAnnotation(error.location, PolicyMode.ENFORCE, UNREADABLE, error.message) for error in result.errors
        )
        for case in result.cases:
            if case.problems:
                yield CodeAnnotation(
                    case.location, PolicyMode.ENFORCE, TEST_FAILED, f"{case.name}: {'; '.join(case.problems)}"
                )


def policy_test_junit_cases(results: Iterable[FileResult]) -> Iterator[JUnitCase]:
    """Yield every case and every error for the JUnit report."""
    for result in results:
        for error in result.errors:
            yield JUnitCase(result.file, str(error.location), error=error.message)
        for case in result.cases:
            failures = tuple((problem, f"{case.location}: {problem}") for problem in case.problems)
            yield JUnitCase(result.file, case.name, failures=failures)
