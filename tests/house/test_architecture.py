"""The diagram of packages is correct: its arrows are the imports of the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from tests.house.checkout import ROOT, packages, read_checkout_file
from webhook.model.cluster_view import ClusterView

PACKAGE = ROOT / "webhook"
TOP_LEVEL = {"errors", "settings", "well_known"}
"""Top-level modules, which the page describes in words."""

Graph = Mapping[str, frozenset[str]]


def package_imports() -> Graph:
    """Return the packages that each package imports."""
    return {
        package: frozenset(found for file in (PACKAGE / package).rglob("*.py") for found in imported_by(file, package))
        for package in packages()
    }


def imported_by(file: Path, package: str) -> set[str]:
    tree = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    modules = [node.module.split(".") for node in tree if isinstance(node, ast.ImportFrom) and node.module]
    inside = {parts[1] for parts in modules if parts[0] == "webhook" and len(parts) > 1}
    return {each for each in inside if each != package and (PACKAGE / each).is_dir()}


def packages_below(graph: Graph, package: str) -> set[str]:
    """Return all packages that a package reaches along arrows."""
    found: set[str] = set()
    edge = [package]
    while edge:
        below = graph[edge.pop()] - found
        found |= below
        edge += below
    return found


def diagram_arrows() -> Graph:
    """Return the arrows of the diagram; a chain is one arrow per link."""
    picture = read_checkout_file("docs/architecture.md").split("```mermaid", 1)[1].split("```", 1)[0]
    arrows: dict[str, frozenset[str]] = {package: frozenset() for package in re.findall(r'(\w+)\["<b>', picture)}
    for line in (line for line in picture.splitlines() if "-->" in line):
        steps = [re.findall(r"\w+", step) for step in line.split("-->")]
        for above, below in pairwise(steps):
            for package in above:
                arrows[package] |= frozenset(below)
    return arrows


def test_arrows_are_imports_and_every_import_is_an_arrow_or_a_chain_of_arrows() -> None:
    code, page = package_imports(), diagram_arrows()
    assert page.keys() == packages() - TOP_LEVEL
    assert {name: page[name] - code[name] for name in page if page[name] - code[name]} == {}
    missing = {name: code[name] - packages_below(page, name) for name in page}
    assert {name: found for name, found in missing.items() if found} == {}


def test_no_arrow_is_redundant() -> None:
    page = diagram_arrows()
    redundant = {
        (name, below)
        for name in page
        for below in page[name]
        for other in page[name] - {below}
        if below in packages_below(page, other)
    }
    assert redundant == set()


def code_pointers() -> list[tuple[str, str]]:
    """Return the rows of the list of entry points: names, and the files they are in."""
    section = (
        read_checkout_file("docs/architecture.md").split("## Find your way in the code", 1)[1].split("\n## ", 1)[0]
    )
    rows = [row.split(" | ") for row in section.splitlines() if row.startswith("| ")][2:]
    return [(names, files) for _, names, files in rows]


@pytest.mark.parametrize(("names", "files"), code_pointers())
def test_listed_entry_points_exist(names: str, files: str) -> None:
    sources = "\n".join(read_checkout_file(file) for file in re.findall(r"`([\w/]+\.py)`", files))

    for name in re.findall(r"`(\w+)`", names):
        assert re.search(rf"(def|class) {name}\b|^{name}\b.* = |\"{name}\"", sources, re.MULTILINE), name


def functions_that_read(attribute: str) -> set[str]:
    """Return the names of the functions of the package that read an attribute."""
    return {
        function.name
        for file in PACKAGE.rglob("*.py")
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(isinstance(node, ast.Attribute) and node.attr == attribute for node in ast.walk(function))
    }


def test_every_place_that_handles_a_stale_view_is_listed_in_one_docstring() -> None:
    effects = set(re.findall(r"^ *\* `(\w+)`", inspect.getdoc(ClusterView.is_stale) or "", re.MULTILINE))
    assert functions_that_read("is_stale") - {"publish"} == effects  # it only passes the mark on
