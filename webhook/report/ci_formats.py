"""Formats that CI systems read: SARIF 2.1.0, workflow commands of GitHub Actions, and JUnit XML.

Sources: OASIS, Static Analysis Results Interchange Format 2.1.0, sections 3.13 to 3.30; actions/toolkit,
`packages/core/src/command.ts`, for the escaping in messages and properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from urllib.parse import quote
from xml.etree import ElementTree as ET

import msgspec

from webhook.errors import SourceLocation
from webhook.model.codes import CODES
from webhook.model.enums import PolicyMode
from webhook.report.check import finding_lines, finding_sentence
from webhook.report.results import CheckResult, CheckVerdict
from webhook.report.text import sanitize
from webhook.well_known import Json

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
UNREADABLE = "unreadable"
"""The code of a file that could not be evaluated."""


SARIF_LEVELS = {PolicyMode.ENFORCE: "error", PolicyMode.WARN: "warning", PolicyMode.AUDIT: "note"}
GITHUB_LEVELS = SARIF_LEVELS | {PolicyMode.AUDIT: "notice"}


class CodeAnnotation(msgspec.Struct, frozen=True):
    """One message at one source location; the mode determines its severity."""

    location: SourceLocation
    mode: PolicyMode
    code: str
    message: str


def finding_annotations(results: Iterable[CheckResult]) -> Iterator[CodeAnnotation]:
    """Yield an annotation for every finding and every invalid file."""
    for result in results:
        if result.verdict is CheckVerdict.SKIPPED and result.invalid:
            yield CodeAnnotation(result.location, PolicyMode.ENFORCE, UNREADABLE, result.reason)
        for located in result.findings:
            finding = located.finding
            message = f"{result.title}: {finding_sentence(finding)}. {finding.fix}".strip()
            yield CodeAnnotation(located.location, finding.effective_mode, finding.code, message)


def github_commands(annotations: Iterable[CodeAnnotation]) -> Iterator[str]:
    """Yield one workflow command per annotation."""
    for annotation in annotations:
        location = annotation.location
        properties = [f"file={_escape_github_property(location.file)}"]
        if location.line:
            properties += [f"line={location.line}", f"col={location.column}"]
        properties.append(f"title={_escape_github_property(annotation.code)}")
        message = _escape_github_data(annotation.message)
        yield f"::{GITHUB_LEVELS[annotation.mode]} {','.join(properties)}::{message}"


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
        "level": SARIF_LEVELS[annotation.mode],
        "message": {"text": sanitize(annotation.message)},
        "locations": [{"physicalLocation": physical}],
    }


class JUnitCase(msgspec.Struct, frozen=True):
    """One test case.

    Attributes:
        suite: Name of its suite; cases of one suite follow each other.
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


def finding_junit_cases(
    results: Iterable[CheckResult], *, least: PolicyMode = PolicyMode.ENFORCE
) -> Iterator[JUnitCase]:
    """Yield a case for each object; findings of at least this mode fail it."""
    for result in results:
        suite, line = result.location.file, result.location.line
        name = result.title or (f"line {line}" if line else "file")
        if result.verdict is CheckVerdict.SKIPPED:
            error, skipped = (result.reason, "") if result.invalid else ("", result.reason)
            yield JUnitCase(suite, name, error=error, skipped=skipped)
            continue
        blocks = [(located.finding, "\n".join(finding_lines(located, result.title))) for located in result.findings]
        failures = tuple((f"{one.code} {one.message}", text) for one, text in blocks if one.effective_mode >= least)
        output = "\n".join(text for one, text in blocks if one.effective_mode < least)
        yield JUnitCase(suite, name, failures=failures, output=output)


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
