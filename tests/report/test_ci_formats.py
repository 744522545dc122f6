"""JUnit, SARIF and GitHub annotations, parsed by third-party code."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from tests.report.sample import BROKEN, DENIED, EVERYTHING, HELM, RIGHT_SIZED, WARNED
from webhook.errors import SourceLocation
from webhook.model.codes import CODES
from webhook.model.enums import PolicyMode
from webhook.report.ci_formats import (
    CodeAnnotation,
    JUnitCase,
    finding_annotations,
    finding_junit_cases,
    github_commands,
    junit_xml,
    sarif_document,
)

HOSTILE = "a<b>&\"'\x00\x1b[2J\r\n::error::x,y:z%25\ud800\ufffe"


def test_junit_has_a_case_per_object_and_counts_them() -> None:
    root = ET.fromstring(junit_xml(finding_junit_cases(EVERYTHING), "rightslice"))
    assert (root.tag, root.attrib["tests"], root.attrib["failures"]) == ("testsuites", "5", "1")
    assert (root.attrib["errors"], root.attrib["skipped"]) == ("1", "1")
    assert [suite.attrib["name"] for suite in root] == ["deploy/train.yaml", "deploy/broken.yaml", "chart/pod.yaml"]
    assert [len(suite) for suite in root] == [3, 1, 1]
    [failure] = root.findall(".//failure")
    assert failure.attrib["message"].startswith("GPU-L102")


def test_junit_can_fail_on_warnings() -> None:
    root = ET.fromstring(junit_xml(finding_junit_cases([WARNED], least=PolicyMode.WARN), "rightslice"))
    assert [failure.attrib["message"][:8] for failure in root.findall(".//failure")] == ["GPU-S201"]
    assert root.find(".//system-out") is not None, "the note is kept"


def test_junit_is_one_document_with_one_prolog() -> None:
    text = junit_xml(
        [JUnitCase(HOSTILE, HOSTILE, failures=((HOSTILE, "long"),)), JUnitCase(HOSTILE, "b", skipped=HOSTILE)],
        HOSTILE[:1],
    )
    assert text.count("<?xml") == 1
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>')
    assert ET.fromstring(text).attrib["tests"] == "2"


def test_sarif_has_what_its_schema_requires() -> None:
    document = sarif_document(list(finding_annotations(EVERYTHING)), "1.2.3")
    assert document["version"] == "2.1.0"
    [run] = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "rightslice"
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        [location] = result["locations"]
        assert re.fullmatch(r"[A-Za-z0-9._~/%-]+", location["physicalLocation"]["artifactLocation"]["uri"])
        region = location["physicalLocation"]["region"]
        assert region["startLine"] >= 1
        assert region["startColumn"] >= 1
    assert [result["ruleId"] for result in run["results"]] == ["GPU-L102", "GPU-S201", "GPU-R102", "unreadable"]


def test_sarif_has_the_meaning_of_a_code() -> None:
    [run] = sarif_document(list(finding_annotations([DENIED])), "1")["runs"]
    assert run["tool"]["driver"]["rules"][0]["help"]["text"] == CODES["GPU-L102"].fix


def test_sarif_of_a_file_without_a_line_has_no_region() -> None:
    [run] = sarif_document(
        [CodeAnnotation(SourceLocation("a b.yaml"), PolicyMode.ENFORCE, "unreadable", HOSTILE)], "1"
    )["runs"]
    physical = run["results"][0]["locations"][0]["physicalLocation"]
    assert physical == {"artifactLocation": {"uri": "a%20b.yaml"}}


GITHUB = {
    "a denial is an error": (
        CodeAnnotation(SourceLocation("a.yaml", 3, 5), PolicyMode.ENFORCE, "GPU-L102", "must be 1"),
        "::error file=a.yaml,line=3,col=5,title=GPU-L102::must be 1",
    ),
    "a file without a line": (
        CodeAnnotation(SourceLocation("a.yaml"), PolicyMode.WARN, "X", "y"),
        "::warning file=a.yaml,title=X::y",
    ),
    "line ends and percent signs are escaped in the message": (
        CodeAnnotation(SourceLocation("a", 1, 1), PolicyMode.AUDIT, "X", "50%\r\n::error::no"),
        r"::notice file=a,line=1,col=1,title=X::50%25\r%0A::error::no",
    ),
    "control characters are escaped": (
        CodeAnnotation(SourceLocation("a\x1b[2J", 1, 1), PolicyMode.AUDIT, "X", "pod \x1b]0;pwn\x07\u202e"),
        r"::notice file=a\x1b[2J,line=1,col=1,title=X::pod \x1b]0;pwn\x07\u202e",
    ),
    "colons and commas are escaped in a property": (
        CodeAnnotation(SourceLocation("c:a,b", 1, 1), PolicyMode.AUDIT, "X", "y"),
        "::notice file=c%3Aa%2Cb,line=1,col=1,title=X::y",
    ),
}


@pytest.mark.parametrize(("note", "want"), GITHUB.values(), ids=GITHUB)
def test_github(note: CodeAnnotation, want: str) -> None:
    assert list(github_commands([note])) == [want]


def test_clean_and_skipped_objects_have_no_annotation() -> None:
    assert list(finding_annotations([RIGHT_SIZED, HELM])) == []
    assert [note.message for note in finding_annotations([BROKEN])] == ["must be YAML"]
