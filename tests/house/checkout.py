"""Files of the checkout."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

GENERATED = {"__pycache__", "build", "dist"}
"""Folders that tools create; others of that kind start with a dot."""

TRACKED_DOTFILES = {".ci", ".pre-commit-config.yaml", ".gitignore", ".dockerignore"}


def read_checkout_file(name: str) -> str:
    """Return the text of a file, by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    """Return the content of pyproject.toml."""
    return tomllib.loads(read_checkout_file("pyproject.toml"))


def files(folder: Path = ROOT) -> Iterator[Path]:
    """Yield every file that is not generated."""
    for entry in sorted(folder.iterdir()):
        if entry.name in GENERATED or (entry.name.startswith(".") and entry.name not in TRACKED_DOTFILES):
            continue
        if entry.is_dir():
            yield from files(entry)
        else:
            yield entry


def pages() -> list[Path]:
    """Return every Markdown page."""
    return [file for file in files() if file.suffix == ".md"]


def without_code(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def packages() -> set[str]:
    """Return the subpackages and top-level modules of `webhook`."""
    entries = (ROOT / "webhook").iterdir()
    found = {entry.stem for entry in entries if (entry / "__init__.py").is_file() or entry.suffix == ".py"}
    return found - {"__init__"}
