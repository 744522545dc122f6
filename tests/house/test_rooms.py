"""The import contracts speak about every room there is."""

from __future__ import annotations

import re

import pytest

from tests.house.checkout import ROOT, files, project, rooms


def contract(name: str) -> dict[str, list[str]]:
    """The import contract whose name begins so."""
    contracts = project()["tool"]["importlinter"]["contracts"]
    (found,) = [each for each in contracts if each["name"].startswith(name)]
    return dict(found)


def test_every_room_has_its_layer() -> None:
    layers = re.findall(r"webhook\.(\w+)", " ".join(contract("Arrows point down")["layers"]))

    assert rooms() <= set(layers), "a new room joins the layers in pyproject.toml"


@pytest.mark.parametrize("name", ["Only the written models are pydantic", "Only the command line draws tables"])
def test_the_core_is_spoken_of(name: str) -> None:
    assert {"webhook.model", "webhook.engine"} <= set(contract(name)["source_modules"])


def test_no_file_of_the_package_is_a_drawer_for_anything() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "misc"}
    sources = [file for file in files(ROOT / "webhook") if file.suffix == ".py"]

    assert [file for file in sources if file.stem in drawers or file.parent.name in drawers] == []


def unexplained(lines: list[str]) -> list[int]:
    """Numbers of the lines that silence a check without a reason, on the line or in a comment above it."""
    rule = r"(?:: ?[A-Z]+[0-9]+(?:, ?[A-Z]+[0-9]+)*|\[[\w, -]+\])?"
    mark = re.compile(rf"# (?:noqa|type: ignore|pragma: no cover){rule}(.*)")
    found = []
    for number, line in enumerate(lines, start=1):
        silenced = mark.search(line)
        above = lines[number - 2].strip() if number > 1 else ""
        if silenced and not re.search(r"[a-z]{3}", silenced[1]) and not above.startswith("#"):
            found.append(number)
    return found


def test_every_exception_from_a_check_says_why() -> None:
    sources = [file for file in files() if file.suffix == ".py"]
    found = {str(file.relative_to(ROOT)): unexplained(file.read_text("utf-8").splitlines()) for file in sources}

    assert {name: lines for name, lines in found.items() if lines} == {}


def test_an_exception_without_a_reason_is_seen() -> None:
    written = """\
        x  % noqa
        x  % noqa: S603
        x  % type: ignore[arg-type]
        x  % noqa: S603  the words are ours
        % what the stubs lack
        x  % type: ignore[arg-type]
    """
    assert unexplained(written.replace("%", "#").splitlines()) == [1, 2, 3]
