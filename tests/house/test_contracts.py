"""The import contracts cover every package, and every exception from a check has a reason."""

from __future__ import annotations

import re

import pytest

from tests.house.checkout import ROOT, files, packages, project


def contract(name: str) -> dict[str, list[str]]:
    """Return the import contract whose name starts with this text."""
    contracts = project()["tool"]["importlinter"]["contracts"]
    (found,) = [each for each in contracts if each["name"].startswith(name)]
    return dict(found)


def test_every_package_has_a_layer() -> None:
    layers = re.findall(r"webhook\.(\w+)", " ".join(contract("Packages import only packages below them")["layers"]))

    assert packages() <= set(layers), "add a new package to the layers in pyproject.toml"


@pytest.mark.parametrize(
    "name", ["Only models of written files use pydantic", "Only the command line uses typer and rich"]
)
def test_a_contract_covers_the_core(name: str) -> None:
    assert {"webhook.model", "webhook.engine"} <= set(contract(name)["source_modules"])


def test_no_module_is_named_utils_or_helpers() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    sources = [file for file in files(ROOT / "webhook") if file.suffix == ".py"]

    assert [file for file in sources if file.stem in vague or file.parent.name in vague] == []


def unexplained_lines(lines: list[str]) -> list[int]:
    """Return the numbers of lines that silence a check without a reason on the line or in a comment above it."""
    rule = r"(?:: ?[A-Z]+[0-9]+(?:, ?[A-Z]+[0-9]+)*|\[[\w, -]+\])?"
    mark = re.compile(rf"# (?:noqa|type: ignore|pragma: no cover){rule}(.*)")
    found = []
    for number, line in enumerate(lines, start=1):
        silenced = mark.search(line)
        above = lines[number - 2].strip() if number > 1 else ""
        if silenced and not re.search(r"[a-z]{3}", silenced[1]) and not above.startswith("#"):
            found.append(number)
    return found


def test_every_exception_from_a_check_has_a_reason() -> None:
    sources = [file for file in files() if file.suffix == ".py"]
    found = {str(file.relative_to(ROOT)): unexplained_lines(file.read_text("utf-8").splitlines()) for file in sources}

    assert {name: lines for name, lines in found.items() if lines} == {}


def test_an_exception_without_a_reason_is_found() -> None:
    source = """\
        x  % noqa
        x  % noqa: S603
        x  % type: ignore[arg-type]
        x  % noqa: S603  a reason
        % missing in the stubs
        x  % type: ignore[arg-type]
    """
    assert unexplained_lines(source.replace("%", "#").splitlines()) == [1, 2, 3]
