"""Spelling is American in names and in prose, as in Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house.checkout import ROOT, files

BRITISH = re.compile(
    r"(mod|lab|trav|lev|chann|tunn|fu)ell(ed|ing|er)|(sign|marsh|di)all(ed|ing)"
    r"|(behavi|col|neighb|fav|hon|lab|hum|rum|harb|rig)our"
    r"|(catal|dial|anal)ogue|licence|defence|offence|judgement|artefact|misspelt|learnt|grey|centre|whilst|amongst|fulfil\b"
    r"|(organ|recogn|normal|serial|initial|optim|minim|maxim|summar|author|custom|priorit|general|special|util|real|final"
    r"|material|parallel|random|synchron|categor|visual|virtual|vector|penal|stabil|standard|token|canonical)"
    r"is(e|ed|es|er|ing|ation)(?-i:(?![a-z]))",
    re.IGNORECASE,
)
TEXTS = {".py", ".md", ".yaml", ".yml", ".toml", ".html", ".tpl", ".txt", ".sh", ".go", ".cpp", ".css", ".js"}
EXCEPT = {
    ROOT / "docs" / "renamed.md",  # lists the old names
    Path(__file__),
}


def british_words(file: Path) -> Iterator[str]:
    """Yield the words and names of a file that contain a British form."""
    for word in set(re.findall("[A-Za-z_]+", file.read_text(encoding="utf-8"))):
        if is_british(word):
            yield f"{file.relative_to(ROOT)}: {word}"


@cache
def is_british(word: str) -> bool:
    """Return whether a word or name contains a British form."""
    return bool(BRITISH.search(word))


def test_names_and_prose_are_american() -> None:
    texts = (file for file in files() if file.suffix in TEXTS and file not in EXCEPT)
    assert [word for file in texts for word in british_words(file)] == []


def test_file_names_are_american() -> None:
    assert [str(file) for file in files() if is_british(str(file.relative_to(ROOT)))] == []


@pytest.mark.parametrize("text", ["a_mig_catalogue", "UnmodelledError", "unlabelled", "utilisationMilli", "Behaviour"])
def test_british_forms_are_found(text: str) -> None:
    assert is_british(text)


@pytest.mark.parametrize("text", ["parallelism", "realistic", "precise", "four hours", "raised", "cancelled"])
def test_american_forms_pass(text: str) -> None:
    assert not is_british(text)
