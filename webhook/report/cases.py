"""The result of `test`: policy tests, case by case, for people, for programs and for CI servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from webhook.errors import Place, PlacedError
from webhook.report import junit
from webhook.report.notes import UNREADABLE, Level, Note
from webhook.report.words import Paint, Style, count, plain, shown

FAILED = "test-failed"
"""What stands for a code where a policy test failed."""


class CaseResult(msgspec.Struct, frozen=True):
    """One case and what came out otherwise than wanted: "want …, got …"."""

    name: str
    place: Place
    problems: tuple[str, ...] = ()


class FileResult(msgspec.Struct, frozen=True):
    """One test file: its cases, and the faults for which it could not be run."""

    file: str
    cases: tuple[CaseResult, ...]
    faults: tuple[PlacedError, ...] = ()


def cases_table(results: Iterable[FileResult], paint: Paint = plain) -> Iterator[str]:
    """Every case, the failed ones with their place and what came out."""
    for result in results:
        yield paint(shown(result.file), Style.STRONG)
        for fault in result.faults:
            yield f"  {paint('error', Style.BAD)}  {shown(str(fault.place))}  {shown(fault.sentence)}"
        width = max((len(shown(case.name)) for case in result.cases if case.problems), default=0)
        for case in result.cases:
            yield from _case(case, width, paint)


def _case(case: CaseResult, width: int, paint: Paint) -> Iterator[str]:
    if not case.problems:
        yield f"  {paint('ok', Style.GOOD)}    {shown(case.name)}"
        return
    yield f"  {paint('FAIL', Style.BAD)}  {shown(case.name):<{width}}  {shown(str(case.place))}"
    yield from (f"        {shown(problem)}" for problem in case.problems)


def total_line(results: Iterable[FileResult]) -> str:
    """The totals in one sentence."""
    every = list(results)
    cases = [case for result in every for case in result.cases]
    failed = sum(bool(case.problems) for case in cases)
    broken = sum(bool(result.faults) for result in every)
    parts = [f"{len(cases) - failed} ok"] * bool(cases) + [f"{failed} failed"] * bool(failed)
    files = f"; {count(broken, 'file')} could not be run" if broken else ""
    return f"{count(len(cases), 'case')}{': ' if parts else ''}{', '.join(parts)}{files}"


def cases_document(results: Iterable[FileResult]) -> dict[str, Any]:
    """The same as plain data."""
    every = list(results)
    cases = [case for result in every for case in result.cases]
    failed = sum(bool(case.problems) for case in cases)
    broken = sum(bool(result.faults) for result in every)
    summary = {"cases": len(cases), "ok": len(cases) - failed, "failed": failed, "broken": broken}
    return {"files": [_file(result) for result in every], "summary": summary}


def _file(result: FileResult) -> dict[str, Any]:
    faults = [{"line": f.place.line, "column": f.place.column, "message": f.sentence} for f in result.faults]
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


def case_notes(results: Iterable[FileResult]) -> Iterator[Note]:
    """Every failed case and every fault, beside its line."""
    for result in results:
        yield from (Note(fault.place, Level.ERROR, UNREADABLE, fault.sentence) for fault in result.faults)
        for case in result.cases:
            if case.problems:
                yield Note(case.place, Level.ERROR, FAILED, f"{case.name}: {'; '.join(case.problems)}")


def junit_cases(results: Iterable[FileResult]) -> Iterator[junit.Case]:
    """Every case, and every file that could not be run, for the JUnit report."""
    for result in results:
        for fault in result.faults:
            yield junit.Case(result.file, str(fault.place), error=fault.sentence)
        for case in result.cases:
            failures = tuple((problem, f"{case.place}: {problem}") for problem in case.problems)
            yield junit.Case(result.file, case.name, failures=failures)
