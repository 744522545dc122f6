"""The versions of the site, in a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser.driver import BrowserProcess
from tests.site.build import build_site
from tests.site.versions import built_versions, index_versions
from webhook import __version__

EARLIER = "0.0.9"
SELECTOR = "document.querySelectorAll('.md-version__link')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build two versions into one folder, the later one last."""
    site = tmp_path_factory.mktemp("site")
    build_site(site).rename(site / EARLIER)
    build_site(site)
    return site


class QuietHandler(SimpleHTTPRequestHandler):
    """Serve files, and print nothing."""

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Serve the folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_build_keeps_the_other_versions_and_lists_all_of_them(folder: Path) -> None:
    assert json.loads((folder / "versions.json").read_text(encoding="utf-8")) == [
        {"version": __version__, "title": __version__, "aliases": ["latest"]},
        {"version": EARLIER, "title": EARLIER, "aliases": []},
    ]
    assert (folder / EARLIER / "install.html").is_file()
    assert (folder / "latest" / "install.html").samefile(folder / __version__ / "install.html")


def test_a_build_of_an_earlier_version_leaves_the_alias_at_the_newest(tmp_path: Path) -> None:
    for version in ("0.10.0", "0.9.1", "assets"):
        (tmp_path / version).mkdir()
        if version != "assets":
            index_versions(tmp_path)

    assert built_versions(tmp_path) == ["0.10.0", "0.9.1"]
    assert (tmp_path / "latest").readlink() == Path("0.10.0")


def test_the_root_leads_to_the_latest_version_and_its_selector_to_the_others(
    browser: BrowserProcess, address: str
) -> None:
    with browser.open() as page:
        page.go(f"{address}/")
        page.wait(f"return {SELECTOR}.length === 2")
        assert page.evaluate("return location.pathname") == "/latest/index.html"
        links = page.evaluate(f"return [...{SELECTOR}].map(link => new URL(link.href).pathname)")
        assert links == [f"/{__version__}/", f"/{EARLIER}/"]
        page.evaluate(f"setTimeout(() => {SELECTOR}[1].click())")
        page.wait(f"return location.pathname === '/{EARLIER}/index.html' && document.readyState === 'complete'")
        assert [each for each in page.requests if not each.startswith((f"GET {address}/", "GET data:"))] == []
        assert page.errors == []


SAME_PAGES = {
    "the same page, if the other version has it": ("recipes/kueue.html#configuration", "recipes/kueue.html"),
    "the start page, if it does not": ("install.html", ""),
}


@pytest.mark.parametrize(("page_here", "page_there"), SAME_PAGES.values(), ids=SAME_PAGES)
def test_the_selector_leads_to(
    browser: BrowserProcess, address: str, folder: Path, page_here: str, page_there: str
) -> None:
    (folder / EARLIER / "install.html").unlink(missing_ok=True)
    index_versions(folder)
    with browser.open() as page:
        page.go(f"{address}/latest/{page_here}")
        page.wait(f"return {SELECTOR}.length === 2")
        page.evaluate(f"setTimeout(() => {SELECTOR}[1].click())")
        page.wait(f"return location.pathname === '/{EARLIER}/{page_there}' && document.readyState === 'complete'")
        assert page.errors == []


def test_a_page_of_an_earlier_version_says_so_and_leads_to_the_latest(browser: BrowserProcess, address: str) -> None:
    banner = "document.querySelector('[data-md-component=outdated]')"
    with browser.open() as page:
        page.go(f"{address}/{EARLIER}/recipes/kueue.html")
        page.wait(f"return !{banner}.hidden")
        page.follow("[data-md-component=outdated] a")
        assert page.evaluate("return location.pathname") == "/latest/index.html"
        page.wait(f"return {SELECTOR}.length === 2")
        assert page.evaluate(f"return {banner}.hidden")
        assert page.errors == []


def test_pages_that_are_opened_as_files_work_without_the_selector(browser: BrowserProcess, folder: Path) -> None:
    with browser.open() as page:
        page.go((folder / __version__ / "recipes" / "kueue.html").as_uri())
        page.follow("a[href='../queues.html']")
        assert page.evaluate(f"return [document.title.includes('ueue'), {SELECTOR}.length]") == [True, 0]
