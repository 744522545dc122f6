"""Policy tests: results in every format."""

from __future__ import annotations

from webhook.errors import LocatedError, SourceLocation
from webhook.report.policy_tests import (
    CaseResult,
    FileResult,
    policy_test_annotations,
    policy_test_document,
    policy_test_junit_cases,
    policy_test_summary,
    policy_test_table,
)

PASSED = CaseResult("passing", SourceLocation("a.yaml", 3, 5))
FAILED = CaseResult("failing", SourceLocation("a.yaml", 9, 5), ("want 1",))
RESULTS = [
    FileResult("a.yaml", (PASSED, FAILED)),
    FileResult("b.yaml", (), (LocatedError(SourceLocation("b.yaml", 2, 1), "must be a map"),)),
]


def test_the_table_has_each_case_and_the_location_of_failures() -> None:
    assert list(policy_test_table(RESULTS)) == [
        "a.yaml",
        "  ok    passing",
        "  FAIL  failing  a.yaml:9:5",
        "        want 1",
        "b.yaml",
        "  error  b.yaml:2:1  must be a map",
    ]
    assert policy_test_summary(RESULTS) == "2 cases: 1 ok, 1 failed; 1 file could not run"
    assert policy_test_summary([]) == "0 cases"


def test_the_document_has_each_case() -> None:
    document = policy_test_document(RESULTS)
    assert document["summary"] == {"cases": 2, "ok": 1, "failed": 1, "invalid": 1}
    assert document["files"][0]["cases"][1] == {
        "name": "failing",
        "line": 9,
        "column": 5,
        "ok": False,
        "problems": ["want 1"],
    }
    assert document["files"][1]["errors"] == [{"line": 2, "column": 1, "message": "must be a map"}]


def test_junit_and_annotations_have_failures_and_errors() -> None:
    assert [(note.code, note.location.line, note.message) for note in policy_test_annotations(RESULTS)] == [
        ("test-failed", 9, "failing: want 1"),
        ("unreadable", 2, "must be a map"),
    ]
    assert [(case.name, len(case.failures), case.error) for case in policy_test_junit_cases(RESULTS)] == [
        ("passing", 0, ""),
        ("failing", 1, ""),
        ("b.yaml:2:1", 0, "must be a map"),
    ]
