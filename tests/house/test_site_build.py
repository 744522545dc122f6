"""The site that MkDocs builds: complete, as GitHub shows the pages, and without a request to another server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.conftest import ROOT
from tests.house.test_site_pages import SOURCES
from tests.site.build import build_site
from tests.site.pages import path_in_site
from webhook import __version__

ELEMENTS = ("li", "table", "tr", "pre", "h1", "h2", "h3", "ol")
LOADED = re.compile(r"<(?:script|img|source|iframe)\b[^>]*\bsrc=\"?([^\s\">]+)|<link\b[^>]*\bhref=\"?([^\s\">]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site."""
    return build_site(tmp_path_factory.mktemp("site"))


def article(site: Path, source: str) -> str:
    """Return the HTML of a page's text."""
    html = (site / Path(str(path_in_site(source))).with_suffix(".html")).read_text(encoding="utf-8")
    return html.split("<article", 1)[1].split("</article>", 1)[0]


def count_elements(html: str) -> dict[str, int]:
    """Return how often each element occurs."""
    return {element: len(re.findall(rf"<{element}[ >]", html)) for element in ELEMENTS}


@pytest.mark.parametrize("source", SOURCES)
def test_a_page_has_the_elements_that_github_shows(site: Path, source: str) -> None:
    text = re.sub(r"^```mermaid\n.*?^```$", "", (ROOT / source).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    shown = MarkdownIt("commonmark").enable("table").render(text)

    assert count_elements(article(site, source)) == count_elements(shown)


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    loaded = {one for page in site.rglob("*.html") for pair in LOADED.findall(page.read_text("utf-8")) for one in pair}

    assert {Path(one).name for one in loaded} >= {"iframe-worker.js", "site.css"}
    assert [one for one in loaded if "//" in one] == []


def test_every_page_says_its_version(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]

    assert len(pages) == len(SOURCES)
    assert [page for page in pages if f"Rightslice {__version__}" not in page.read_text("utf-8")] == []


def test_the_search_finds_pages_also_in_files(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")

    assert index.startswith("var __index = ")
    assert "SECURITY.html" in index
    assert "recipes/team-caps.html" in index
