"""The checkout as the tests of the house see it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

MADE = {"__pycache__", "build", "dist"}
"""Folders that tools make; the other ones of that sort begin with a dot."""

WRITTEN_WITH_A_DOT = {".ci", ".pre-commit-config.yaml", ".gitignore", ".dockerignore"}


def read(name: str) -> str:
    """The text of a file, by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads(read("pyproject.toml"))


def files(folder: Path = ROOT) -> Iterator[Path]:
    """Every file that people wrote."""
    for entry in sorted(folder.iterdir()):
        if entry.name in MADE or (entry.name.startswith(".") and entry.name not in WRITTEN_WITH_A_DOT):
            continue
        if entry.is_dir():
            yield from files(entry)
        else:
            yield entry


def pages() -> list[Path]:
    """Every Markdown page."""
    return [file for file in files() if file.suffix == ".md"]


def without_code(page: Path) -> str:
    """A page without its fenced blocks, where brackets mean something else."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def rooms() -> set[str]:
    """The rooms of the package: its folders of code, and its modules beside them."""
    entries = (ROOT / "webhook").iterdir()
    found = {entry.stem for entry in entries if (entry / "__init__.py").is_file() or entry.suffix == ".py"}
    return found - {"__init__"}
