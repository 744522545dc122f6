"""Pages of the site and the links between them: a page has another path there than in the checkout.

Needs no MkDocs: hooks.py uses it in a build, and the tests use it without one.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIAGRAMS = "pictures/diagrams"
"""Folder of the pictures of diagrams, below docs/."""

_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"(\]\()([^)\s]+)(\))")
_OUTSIDE = ("https://", "http://", "mailto:", "#")

OUTSIDE_DOCS = {"README.md": "index.md"} | {
    name: name
    for name in (
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "benchmarks/apiserver.md",
        "benchmarks/placement.md",
        "benchmarks/rightsizing.md",
    )
}
"""Pages of the checkout outside of docs/, and their paths in the site."""


def path_in_site(path: str) -> str | None:
    """Return the path in the site of a file of the checkout; None if the site does not contain it."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return OUTSIDE_DOCS.get(path)


def adapt_page(text: str, path: str, repository: Callable[[str], str]) -> str:
    """Return a page as the site shows it: pictures for diagrams, and links by the paths of the site.

    Args:
        path: The page in the checkout.
        repository: Returns the address of a file of the checkout that the site does not contain.
    """
    here = posixpath.dirname(path_in_site(path) or path)
    pictured = DIAGRAM.sub(lambda found: f"![Diagram]({posixpath.relpath(picture_of(found[1]), here or '.')})", text)
    drawn = posixpath.relpath(DIAGRAMS, here or ".")

    def adapt(found: re.Match[str]) -> str:
        link = found[2]
        if link.startswith((*_OUTSIDE, f"{drawn}/")):
            return found[0]
        return f"{found[1]}{_adapt_link(link, path, here, repository)}{found[3]}"

    return _outside_code(pictured, lambda part: _TARGET.sub(adapt, part))


def picture_of(diagram: str) -> str:
    """Return the path below docs/ of a diagram's picture: its name is a digest, so that none is outdated."""
    return f"{DIAGRAMS}/{hashlib.sha256(diagram.encode()).hexdigest()[:12]}.svg"


def diagrams(root: Path) -> set[str]:
    """Return the diagrams of all pages of the site."""
    pages = [*(root / "docs").rglob("*.md"), *(root / name for name in OUTSIDE_DOCS)]
    return {diagram for page in pages for diagram in DIAGRAM.findall(page.read_text(encoding="utf-8"))}


def _adapt_link(link: str, path: str, here: str, repository: Callable[[str], str]) -> str:
    name, hash_sign, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
    inside = path_in_site(target)
    address = posixpath.relpath(inside, here or ".") if inside else repository(target)
    return f"{address}{hash_sign}{anchor}"


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to the parts of a page outside of fenced blocks."""
    parts, end = [], 0
    for block in _FENCED.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])
