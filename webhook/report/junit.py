"""JUnit XML for CI servers: a test case for each object or policy test.

Source: the schema that Jenkins' xUnit plugin publishes (testsuites, testsuite, testcase, failure, skipped).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from xml.etree import ElementTree as ET

import msgspec

from webhook.model.enums import PolicyMode
from webhook.report.check import finding_lines
from webhook.report.results import CheckResult, CheckVerdict
from webhook.report.text import sanitize


class JUnitCase(msgspec.Struct, frozen=True):
    """One test case.

    Attributes:
        suite: Name of its suite; cases of one suite follow each other.
        name: Name of the object or test.
        failures: A short and a long text for each failure.
        error: Why it could not be evaluated; "" if it was.
        skipped: Why it was skipped; "" if it was not.
        output: Milder findings.
    """

    suite: str
    name: str
    failures: tuple[tuple[str, str], ...] = ()
    error: str = ""
    skipped: str = ""
    output: str = ""


def finding_junit_cases(results: Iterable[CheckResult], *, least: PolicyMode = PolicyMode.ENFORCE) -> list[JUnitCase]:
    """Return a case for each object; findings of at least this mode fail it."""
    return [_junit_case(result, least) for result in results]


def _junit_case(result: CheckResult, least: PolicyMode) -> JUnitCase:
    suite, name = (
        result.location.file,
        result.title or (f"line {result.location.line}" if result.location.line else "file"),
    )
    if result.verdict is CheckVerdict.SKIPPED:
        if result.invalid:
            return JUnitCase(suite, name, error=result.reason)
        return JUnitCase(suite, name, skipped=result.reason)
    blocks = [(found.finding, "\n".join(finding_lines(found, result.title))) for found in result.findings]
    return JUnitCase(
        suite,
        name,
        failures=tuple(
            (f"{finding.code} {finding.message}", text) for finding, text in blocks if finding.effective_mode >= least
        ),
        output="\n".join(text for finding, text in blocks if finding.effective_mode < least),
    )


def junit_xml(cases: Iterable[JUnitCase], name: str) -> str:
    """Return the document, with its prolog and a line end."""
    every = list(cases)
    root = ET.Element("testsuites", {"name": name, **_junit_totals(every)})
    for suite, members in groupby(every, lambda case: case.suite):
        _add_junit_suite(root, suite, list(members))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _junit_totals(cases: list[JUnitCase]) -> dict[str, str]:
    return {
        "tests": str(len(cases)),
        "failures": str(sum(bool(case.failures) for case in cases)),
        "errors": str(sum(bool(case.error) for case in cases)),
        "skipped": str(sum(bool(case.skipped) for case in cases)),
    }


def _add_junit_suite(root: ET.Element, name: str, cases: list[JUnitCase]) -> None:
    suite = ET.SubElement(root, "testsuite", {"name": sanitize(name), **_junit_totals(cases)})
    for case in cases:
        element = ET.SubElement(suite, "testcase", {"classname": sanitize(name), "name": sanitize(case.name)})
        if case.skipped:
            ET.SubElement(element, "skipped", {"message": sanitize(case.skipped)})
        if case.error:
            ET.SubElement(element, "error", {"message": sanitize(case.error)})
        for short, long in case.failures:
            ET.SubElement(element, "failure", {"message": sanitize(short)}).text = long
        if case.output:
            ET.SubElement(element, "system-out").text = case.output
