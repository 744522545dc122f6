"""The page of faults: every case is there once, with a proof that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import NamedTuple

import pytest

from tests.house.checkout import ROOT, read_checkout_file
from tests.house.test_pages import anchors

CASES = range(1, 173)
CATALOG = ROOT.parent / "shared" / "reference" / "faults.md"
"""The catalog that the numbers come from; not part of the checkout."""

TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
TARGET = re.compile(r"`make ([a-z-]+)[^`]*`")
MODULE = re.compile(r"`python -m benchmarks\.(\w+)[^`]*`")
REASON = re.compile(r"\[[^]]+\]\(\.\./SECURITY\.md#([\w-]+)\)")


class Row(NamedTuple):
    number: int
    sentence: str
    proof: str


def rows() -> list[Row]:
    found = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", read_checkout_file("docs/faults.md"), re.MULTILINE)
    return [Row(int(number), sentence, proof) for number, sentence, proof in found]


@cache
def functions_of(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def missing_from(proof: str) -> list[str]:
    """Return the parts of a proof that do not exist; the proof itself if it names none."""
    targets = set(re.findall(r"^([a-z-]+):", read_checkout_file("Makefile"), re.MULTILINE))
    reasons = anchors(ROOT / "SECURITY.md")
    missing = [f"{file}::{name}" for file, name in TEST.findall(proof) if name not in functions_of(file)]
    missing += [f"make {name}" for name in TARGET.findall(proof) if name not in targets]
    missing += [name for name in MODULE.findall(proof) if not (ROOT / "benchmarks" / f"{name}.py").is_file()]
    missing += [f"SECURITY.md#{name}" for name in REASON.findall(proof) if name not in reasons]
    rest = proof
    for pattern in (TEST, TARGET, MODULE, REASON):
        rest = pattern.sub("", rest)
    return missing or ([proof] if rest.strip(" ,") else [])


def test_every_case_is_on_the_page_once() -> None:
    assert [row.number for row in rows()] == list(CASES)


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.number))
def test_a_case_has_a_proof_that_exists(row: Row) -> None:
    assert len(row.sentence.split()) >= 2
    assert missing_from(row.proof) == []


@pytest.mark.parametrize(
    "proof",
    [
        "none yet",
        "`tests/house/test_fault_catalog.py::test_that_does_not_exist`",
        "`tests/house/test_no_such_file.py::test_x`",
        "`make nothing`",
        "`python -m benchmarks.nothing`",
        "[why not](../SECURITY.md#no-such-heading)",
    ],
)
def test_a_proof_that_does_not_exist_is_found(proof: str) -> None:
    assert missing_from(proof)


def test_the_numbers_are_those_of_the_catalog_where_it_is_at_hand() -> None:
    numbers = list(CASES)
    if CATALOG.is_file():
        acceptance = CATALOG.read_text(encoding="utf-8").partition("## 8. ")[2]
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", acceptance, re.MULTILINE)]
    assert numbers == [row.number for row in rows()]
