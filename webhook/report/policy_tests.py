"""The result of `test`: policy tests, case by case, for people, for programs and for CI servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from webhook.errors import LocatedError, SourceLocation
from webhook.report import junit
from webhook.report.code_annotations import UNREADABLE, AnnotationLevel, CodeAnnotation
from webhook.report.text import Paint, TextStyle, pluralize, sanitize, without_style

TEST_FAILED = "test-failed"
"""What stands for a code where a policy test failed."""


class CaseResult(msgspec.Struct, frozen=True):
    """One case and what came out otherwise than wanted: "want …, got …"."""

    name: str
    place: SourceLocation
    problems: tuple[str, ...] = ()


class FileResult(msgspec.Struct, frozen=True):
    """One test file: its cases, and the faults for which it could not be run."""

    file: str
    cases: tuple[CaseResult, ...]
    errors: tuple[LocatedError, ...] = ()


def policy_test_table(results: Iterable[FileResult], paint: Paint = without_style) -> Iterator[str]:
    """Every case, the failed ones with their place and what came out."""
    for result in results:
        yield paint(sanitize(result.file), TextStyle.STRONG)
        for fault in result.errors:
            yield f"  {paint('error', TextStyle.BAD)}  {sanitize(str(fault.location))}  {sanitize(fault.message)}"
        width = max((len(sanitize(case.name)) for case in result.cases if case.problems), default=0)
        for case in result.cases:
            yield from _policy_test_lines(case, width, paint)


def _policy_test_lines(case: CaseResult, width: int, paint: Paint) -> Iterator[str]:
    if not case.problems:
        yield f"  {paint('ok', TextStyle.GOOD)}    {sanitize(case.name)}"
        return
    yield f"  {paint('FAIL', TextStyle.BAD)}  {sanitize(case.name):<{width}}  {sanitize(str(case.place))}"
    yield from (f"        {sanitize(problem)}" for problem in case.problems)


def policy_test_summary(results: Iterable[FileResult]) -> str:
    """The totals in one sentence."""
    every = list(results)
    cases = [case for result in every for case in result.cases]
    failed = sum(bool(case.problems) for case in cases)
    broken = sum(bool(result.errors) for result in every)
    parts = [f"{len(cases) - failed} ok"] * bool(cases) + [f"{failed} failed"] * bool(failed)
    files = f"; {pluralize(broken, 'file')} could not be run" if broken else ""
    return f"{pluralize(len(cases), 'case')}{': ' if parts else ''}{', '.join(parts)}{files}"


def policy_test_document(results: Iterable[FileResult]) -> dict[str, Any]:
    """The same as plain data."""
    every = list(results)
    cases = [case for result in every for case in result.cases]
    failed = sum(bool(case.problems) for case in cases)
    broken = sum(bool(result.errors) for result in every)
    summary = {"cases": len(cases), "ok": len(cases) - failed, "failed": failed, "broken": broken}
    return {"files": [_test_file_document(result) for result in every], "summary": summary}


def _test_file_document(result: FileResult) -> dict[str, Any]:
    faults = [{"line": f.location.line, "column": f.location.column, "message": f.message} for f in result.errors]
    cases = [
        {
            "name": case.name,
            "line": case.place.line,
            "column": case.place.column,
            "ok": not case.problems,
            "problems": list(case.problems),
        }
        for case in result.cases
    ]
    return {"file": result.file, "cases": cases, "faults": faults}


def policy_test_annotations(results: Iterable[FileResult]) -> Iterator[CodeAnnotation]:
    """Every failed case and every fault, beside its line."""
    for result in results:
        yield from (
            CodeAnnotation(fault.location, AnnotationLevel.ERROR, UNREADABLE, fault.message) for fault in result.errors
        )
        for case in result.cases:
            if case.problems:
                yield CodeAnnotation(
                    case.place, AnnotationLevel.ERROR, TEST_FAILED, f"{case.name}: {'; '.join(case.problems)}"
                )


def policy_test_junit_cases(results: Iterable[FileResult]) -> Iterator[junit.JUnitCase]:
    """Every case, and every file that could not be run, for the JUnit report."""
    for result in results:
        for fault in result.errors:
            yield junit.JUnitCase(result.file, str(fault.location), error=fault.message)
        for case in result.cases:
            failures = tuple((problem, f"{case.place}: {problem}") for problem in case.problems)
            yield junit.JUnitCase(result.file, case.name, failures=failures)
