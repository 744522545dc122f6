"""The check of the lock files against a vulnerability database, without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.conftest import ROOT
from tests.release.advisories import find_vulnerabilities, is_affected, main, read_database
from tests.release.lock_files import LockedPackage, read_lock_file

JINJA = next(each for each in read_lock_file(ROOT / "requirements" / "run.txt") if each.name == "jinja2")


def advisory(*events: dict[str, str], name: str = "Jinja2", **more: Any) -> dict[str, Any]:
    """Return an advisory as osv.dev publishes it."""
    affected = {
        "package": {"ecosystem": "PyPI", "name": name},
        "ranges": [
            {"type": "GIT", "repo": "https://x", "events": [{"introduced": "0"}]},
            {"type": "ECOSYSTEM", "events": list(events)},
        ],
    }
    return {"id": "GHSA-x", "summary": "sandbox escape", "affected": [affected], **more}


EVERY = advisory({"introduced": "0"}, {"fixed": "9999"})

RANGES: dict[str, tuple[list[dict[str, str]], dict[str, bool]]] = {
    "until a fix": ([{"introduced": "0"}, {"fixed": "2.10"}], {"2.9": True, "2.10": False, "2.10rc1": True}),
    "from a version on": ([{"introduced": "2.0"}], {"1.9": False, "2.0": True, "3": True}),
    "two ranges": (
        [{"introduced": "0"}, {"fixed": "1.5"}, {"introduced": "2.0"}, {"fixed": "2.1"}],
        {"1.4": True, "1.6": False, "2.0.5": True, "2.1": False},
    ),
    "the last affected version": ([{"introduced": "1"}, {"last_affected": "2"}], {"2": True, "2.0.1": False}),
    "events in another order": ([{"fixed": "2"}, {"introduced": "1"}], {"1.5": True, "2": False}),
    "a bound that is no version": ([{"introduced": "first"}, {"fixed": "2"}], {"1": True, "2": False}),
}


@pytest.mark.parametrize(("events", "want"), RANGES.values(), ids=RANGES)
def test_ranges(events: list[dict[str, str]], want: dict[str, bool]) -> None:
    affected = {"ranges": [{"type": "ECOSYSTEM", "events": events}]}

    assert {version: is_affected(version, affected) for version in want} == want


def test_a_listed_version_is_affected() -> None:
    assert is_affected("1.0", {"versions": ["1.0"]})
    assert not is_affected("1.1", {"versions": ["1.0"]})


def test_a_vulnerable_lock_fails_with_what_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(EVERY))

    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        f"requirements/run.txt: jinja2 {JINJA.version} has GHSA-x (sandbox escape). "
        "Write at least 9999: make lock UPGRADE=--upgrade"
    ) in lines


def test_other_packages_and_withdrawn_advisories_are_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [EVERY | {"withdrawn": "2026-01-01T00:00:00Z"}, advisory({"introduced": "0"}, name="unknown-package")]
    (tmp_path / "all.json").write_text(json.dumps(documents))

    assert main([str(tmp_path / "all.json")]) == 0
    assert capsys.readouterr().out.endswith("1 advisories: 0 found\n")


def test_the_archive_of_the_database_is_read(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("GHSA-x.json", json.dumps(EVERY))
    package = LockedPackage("jinja2", "3.0", "", ("0" * 64,), ())

    [found] = find_vulnerabilities({"run.txt": [package]}, read_database(tmp_path / "all.zip"))
    assert (found.advisory, found.fixed) == ("GHSA-x", ("9999",))


UNUSABLE = {
    "nothing": None,
    "no JSON": "x",
    "advisories of other ecosystems": json.dumps([{"id": "x", "affected": []}]),
}


@pytest.mark.parametrize("text", UNUSABLE.values(), ids=UNUSABLE)
def test_a_database_without_advisories_is_an_error(
    tmp_path: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "all.json").write_text(text)

    assert main([str(tmp_path / "all.json")]) == 2
    assert capsys.readouterr().err
