"""JUnit XML, as CI servers read it: one document, one prolog, a test case for each object or policy test.

Source: the schema that Jenkins' xUnit plugin publishes (testsuites, testsuite, testcase, failure, skipped).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from xml.etree import ElementTree as ET

import msgspec

from webhook.model.modes import Mode
from webhook.report.results import Checked, Verdict
from webhook.report.table import block
from webhook.report.words import shown


class Case(msgspec.Struct, frozen=True):
    """One test case.

    Attributes:
        suite: What it stands under; cases of one suite follow each other.
        name: What was judged.
        failures: A short and a long text for each reason why it failed.
        error: Why it could not be judged; "" where it was.
        skipped: Why it was passed over; "" where it was not.
        said: What else was found.
    """

    suite: str
    name: str
    failures: tuple[tuple[str, str], ...] = ()
    error: str = ""
    skipped: str = ""
    said: str = ""


def cases_of(results: Iterable[Checked], *, least: Mode = Mode.ENFORCE) -> list[Case]:
    """A case for each object; findings of at least this mode fail it."""
    return [_case(result, least) for result in results]


def _case(result: Checked, least: Mode) -> Case:
    suite, name = result.place.file, result.title or (f"line {result.place.line}" if result.place.line else "file")
    if result.verdict is Verdict.SKIPPED:
        if result.broken:
            return Case(suite, name, error=result.reason)
        return Case(suite, name, skipped=result.reason)
    blocks = [(found.finding, "\n".join(block(found, result.title))) for found in result.findings]
    return Case(
        suite,
        name,
        failures=tuple(
            (f"{finding.code} {finding.message}", text) for finding, text in blocks if finding.effect >= least
        ),
        said="\n".join(text for finding, text in blocks if finding.effect < least),
    )


def junit(cases: Iterable[Case], name: str) -> str:
    """Write the document, with its prolog and a line end."""
    every = list(cases)
    root = ET.Element("testsuites", {"name": name, **_totals(every)})
    for suite, members in groupby(every, lambda case: case.suite):
        _suite(root, suite, list(members))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _totals(cases: list[Case]) -> dict[str, str]:
    return {
        "tests": str(len(cases)),
        "failures": str(sum(bool(case.failures) for case in cases)),
        "errors": str(sum(bool(case.error) for case in cases)),
        "skipped": str(sum(bool(case.skipped) for case in cases)),
    }


def _suite(root: ET.Element, name: str, cases: list[Case]) -> None:
    suite = ET.SubElement(root, "testsuite", {"name": shown(name), **_totals(cases)})
    for case in cases:
        element = ET.SubElement(suite, "testcase", {"classname": shown(name), "name": shown(case.name)})
        if case.skipped:
            ET.SubElement(element, "skipped", {"message": shown(case.skipped)})
        if case.error:
            ET.SubElement(element, "error", {"message": shown(case.error)})
        for short, long in case.failures:
            ET.SubElement(element, "failure", {"message": shown(short)}).text = long
        if case.said:
            ET.SubElement(element, "system-out").text = case.said
