"""Names are unique, functions are named by verbs, and docstrings open with what the function does."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache

import pytest

from tests.house.checkout import ROOT

OPENINGS = re.compile(r"(What|Who|Whose|How|The same)\b")

PARTICIPLES = re.compile(
    r"[a-z]+ed|said|told|kept|held|given|taken|found|seen|left|met|gone|done|made|written|drawn|known|shown|spoken|chosen"
    r"|sent|bent|meant|built|spent|lost|won"
)
ADJECTIVES = re.compile(
    r"[a-z]+(able|ible|ful|less|ous)"
    r"|plain|ready|fresh|stale|empty|full|whole|same|near|nearest|best|idle|free|busy|safe|sure|strict|valid|wide|brief"
)
VERBS_AND_NOUNS = {"need", "seed", "feed", "embed", "exceed", "speed", "enable", "disable", "table", "variable"}


@cache
def parse_package() -> dict[str, ast.Module]:
    """Return every module of the package by its name."""
    files = sorted((ROOT / "webhook").rglob("*.py"))
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): ast.parse(file.read_text("utf-8")) for file in files
    }


def find_duplicates(kinds: tuple[type[ast.stmt], ...]) -> dict[str, list[str]]:
    """Return the public names that several modules define at their top level, with these modules."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module, tree in parse_package().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(node, kinds):
                places[node.name].append(module)
    return {name: found for name, found in places.items() if len(set(found)) > 1 and not name.startswith("_")}


def is_bare_modifier(name: str) -> bool:
    """Return whether a name is one word that is a participle or an adjective."""
    return name not in VERBS_AND_NOUNS and bool(PARTICIPLES.fullmatch(name) or ADJECTIVES.fullmatch(name))


def test_a_class_name_is_used_once() -> None:
    assert find_duplicates((ast.ClassDef,)) == {}


def test_a_public_function_name_is_used_once() -> None:
    assert find_duplicates((ast.FunctionDef, ast.AsyncFunctionDef)) == {}


def test_no_public_function_is_named_by_a_participle_or_an_adjective() -> None:
    functions = [
        f"{module}.{node.name}"
        for module, tree in parse_package().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_bare_modifier(node.name)
    ]

    assert functions == []


@pytest.mark.parametrize(
    ("name", "is_bare"),
    [("asked", True), ("asked_by", False), ("plain", True), ("usable", True), ("embed", False), ("run", False)],
)
def test_participles_and_adjectives_are_recognized(name: str, is_bare: bool) -> None:
    assert is_bare_modifier(name) is is_bare


def test_docstrings_open_with_what_the_thing_does_or_is() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{module}: {docstring.splitlines()[0]}"
        for module, tree in parse_package().items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)) and OPENINGS.match(docstring)
    ]

    assert found == []
