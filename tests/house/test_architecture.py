"""The picture of the rooms is true: its arrows are the imports of the code, and those alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from tests.house.checkout import ROOT, read, rooms

PACKAGE = ROOT / "webhook"
BESIDE = {"errors", "settings", "well_known"}
"""Modules beside the rooms, of which the page tells in words."""

Graph = Mapping[str, frozenset[str]]


def imports() -> Graph:
    """Which rooms each room imports."""
    return {
        room: frozenset(found for file in (PACKAGE / room).rglob("*.py") for found in named(file, room))
        for room in rooms()
    }


def named(file: Path, room: str) -> set[str]:
    tree = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    modules = [node.module.split(".") for node in tree if isinstance(node, ast.ImportFrom) and node.module]
    inside = {parts[1] for parts in modules if parts[0] == "webhook" and len(parts) > 1}
    return {each for each in inside if each != room and (PACKAGE / each).is_dir()}


def reached(graph: Graph, room: str) -> set[str]:
    """All rooms below one, however far."""
    found: set[str] = set()
    edge = [room]
    while edge:
        below = graph[edge.pop()] - found
        found |= below
        edge += below
    return found


def drawn() -> Graph:
    """The arrows of the page; a chain stands for each of its links."""
    picture = read("docs/architecture.md").split("```mermaid", 1)[1].split("```", 1)[0]
    arrows: dict[str, frozenset[str]] = {room: frozenset() for room in re.findall(r'(\w+)\["<b>', picture)}
    for line in (line for line in picture.splitlines() if "-->" in line):
        steps = [re.findall(r"\w+", step) for step in line.split("-->")]
        for above, below in pairwise(steps):
            for room in above:
                arrows[room] |= frozenset(below)
    return arrows


def test_each_arrow_is_an_import_and_each_import_follows_from_arrows() -> None:
    code, page = imports(), drawn()
    assert page.keys() == rooms() - BESIDE
    assert {room: page[room] - code[room] for room in page if page[room] - code[room]} == {}
    missing = {room: code[room] - reached(page, room) for room in page}
    assert {room: found for room, found in missing.items() if found} == {}


def test_no_arrow_is_drawn_that_follows_from_others() -> None:
    page = drawn()
    spare = {
        (room, below)
        for room in page
        for below in page[room]
        for other in page[room] - {below}
        if below in reached(page, other)
    }
    assert spare == set()
