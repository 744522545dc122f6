"""cases: the result of policy tests, in every format."""

from __future__ import annotations

from webhook.errors import Place, PlacedError
from webhook.report.cases import (
    CaseResult,
    FileResult,
    case_notes,
    cases_document,
    cases_table,
    junit_cases,
    total_line,
)

FINE = CaseResult("fine", Place("a.yaml", 3, 5))
OFF = CaseResult("off", Place("a.yaml", 9, 5), ("want 1",))
RESULTS = [
    FileResult("a.yaml", (FINE, OFF)),
    FileResult("b.yaml", (), (PlacedError(Place("b.yaml", 2, 1), "must be a map"),)),
]


def test_people_see_each_case_and_where_it_failed() -> None:
    assert list(cases_table(RESULTS)) == [
        "a.yaml",
        "  ok    fine",
        "  FAIL  off  a.yaml:9:5",
        "        want 1",
        "b.yaml",
        "  error  b.yaml:2:1  must be a map",
    ]
    assert total_line(RESULTS) == "2 cases: 1 ok, 1 failed; 1 file could not be run"
    assert total_line([]) == "0 cases"


def test_programs_see_the_same() -> None:
    document = cases_document(RESULTS)
    assert document["summary"] == {"cases": 2, "ok": 1, "failed": 1, "broken": 1}
    assert document["files"][0]["cases"][1] == {
        "name": "off",
        "line": 9,
        "column": 5,
        "ok": False,
        "problems": ["want 1"],
    }
    assert document["files"][1]["faults"] == [{"line": 2, "column": 1, "message": "must be a map"}]


def test_ci_servers_see_failures_and_faults() -> None:
    assert [(note.code, note.place.line, note.message) for note in case_notes(RESULTS)] == [
        ("test-failed", 9, "off: want 1"),
        ("unreadable", 2, "must be a map"),
    ]
    assert [(case.name, len(case.failures), case.error) for case in junit_cases(RESULTS)] == [
        ("fine", 0, ""),
        ("off", 1, ""),
        ("b.yaml:2:1", 0, "must be a map"),
    ]
