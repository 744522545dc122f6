"""Pages, navigation, links and diagrams of the site, without MkDocs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.house.test_pages import anchors
from tests.site.pages import DIAGRAMS, OUTSIDE_DOCS, adapt_page, diagrams, path_in_site, picture_of

SOURCES = [
    *(page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs").rglob("*.md"))),
    *OUTSIDE_DOCS,
]
BY_SITE_PATH = {path_in_site(source): source for source in SOURCES}
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def navigation(entries: Any) -> Iterator[str]:
    """Yield the pages of the navigation in their order."""
    if isinstance(entries, str):
        yield entries
    for entry in entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else ():
        yield from navigation(entry)


def site_links(source: str) -> list[str]:
    """Return the links of a page as the site shows it, without those to other sites."""
    text = adapt_page((ROOT / source).read_text(encoding="utf-8"), source, lambda path: f"https://repository/{path}")
    return [link for link in LINK.findall(FENCED.sub("", text)) if not link.startswith(("https://", "http://"))]


def is_broken(source: str, link: str) -> bool:
    """Return whether a link of the site leads to no file of it, or to no heading of the page."""
    name, _, anchor = link.partition("#")
    inside = path_in_site(source)
    assert inside is not None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(inside), name)) if name else inside
    page = BY_SITE_PATH.get(target)
    if page is None:
        return not (ROOT / "docs" / target).is_file()
    return bool(anchor) and anchor not in anchors(ROOT / page)


def test_the_navigation_has_every_page_once() -> None:
    configured = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    assert list(configured["nav"][0]) == ["Start"]
    assert sorted(navigation(configured["nav"])) == sorted(map(str, BY_SITE_PATH)), (
        "give the page a place in mkdocs.yml"
    )


@pytest.mark.parametrize("source", SOURCES)
def test_the_links_of_a_page_work_in_the_site(source: str) -> None:
    assert [link for link in site_links(source) if is_broken(source, link)] == []


def test_a_link_to_a_page_or_heading_that_does_not_exist_is_broken() -> None:
    assert is_broken("docs/policy.md", "no-such-page.md")
    assert is_broken("docs/policy.md", "install.md#no-such-heading")
    assert not is_broken("docs/policy.md", "install.md#the-image")


LINKS = {
    "from the README into docs": ("README.md", "docs/install.md#the-image", "install.md#the-image"),
    "from docs to the README": ("docs/install.md", "../README.md", "index.md"),
    "from a recipe to docs": ("docs/recipes/team-caps.md", "../policy.md", "../policy.md"),
    "from a recipe out of docs": ("docs/recipes/team-caps.md", "../../SECURITY.md", "../SECURITY.md"),
    "to a file that is no page": ("docs/testing.md", "../action.yml", "https://r/action.yml"),
    "to a heading of the same page": ("docs/testing.md", "#a", "#a"),
    "to another site": ("docs/testing.md", "https://kubernetes.io", "https://kubernetes.io"),
}


@pytest.mark.parametrize(("source", "link", "want"), LINKS.values(), ids=LINKS)
def test_a_link_is_adapted_to_the_paths_of_the_site(source: str, link: str, want: str) -> None:
    assert adapt_page(f"[a]({link})", source, lambda path: f"https://r/{path}") == f"[a]({want})"


def test_a_link_in_a_block_of_code_is_left_as_it_is() -> None:
    code = "```\n[a](../README.md)\n```"

    assert adapt_page(code, "docs/testing.md", str) == code


def test_every_diagram_has_a_picture_and_every_picture_a_diagram() -> None:
    wanted = {picture_of(diagram) for diagram in diagrams(ROOT)}
    drawn = {f"{DIAGRAMS}/{file.name}" for file in (ROOT / "docs" / DIAGRAMS).iterdir()}

    assert drawn == wanted, "draw them again: python -m tests.site.diagrams mermaid.min.js"
