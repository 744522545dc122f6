"""The browser of the tests: it shows, records and presses what tests tell it to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser.driver import BrowserProcess, PageError, start_browser
from tests.browser.installation import install_browser

FORM = "<!doctype html><html lang=en><title>Form</title>"
COLORS = "return [matchMedia('(prefers-color-scheme: dark)').matches, matchMedia('print').matches]"


PAGES = {
    "/": "<title>Home</title><script>document.cookie = document.cookie ? 'again=1' : 'once=1'</script>",
    "/broken": "<title>Broken</title><script>console.error('logged'); missing()</script><img src=/none.png>",
}


class Handler(BaseHTTPRequestHandler):
    """A site with two pages: one with a cookie, and one with errors."""

    def do_GET(self) -> None:
        """Serve a page, or 404."""
        found = PAGES.get(self.path)
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write((found or "").encode() + self.headers.get("X-Test", "").encode())

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_errors_and_requests_are_recorded(browser: BrowserProcess, site: str) -> None:
    with browser.open() as page:
        assert page.go(f"{site}/broken") == 200
        assert page.requests[:2] == [f"GET {site}/broken", f"GET {site}/none.png"]
        errors = page.errors
        assert "logged" in errors
        assert "ReferenceError: missing is not defined" in errors
        assert f"{site}/none.png: 404" in errors


def test_a_page_without_errors_has_none(browser: BrowserProcess, site: str) -> None:
    with browser.open() as page:
        assert page.go(site) == 200
        assert [error for error in page.errors if "favicon" not in error] == []


def test_each_page_has_its_own_cookies(browser: BrowserProcess, site: str) -> None:
    for _ in range(2):
        with browser.open() as page:
            page.go(site)
            assert page.evaluate("return document.cookie") == "once=1"


def test_headers_are_sent(browser: BrowserProcess, site: str) -> None:
    with browser.open(headers={"X-Test": "sent"}) as page:
        page.go(site)
        assert page.evaluate("return document.body.textContent") == "sent"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("printed", [False, True])
def test_a_page_is_shown_as_asked(browser: BrowserProcess, dark: bool, printed: bool) -> None:
    with browser.open(FORM, width=390, dark=dark, printed=printed) as page:
        assert page.evaluate("return window.innerWidth") == 390
        assert page.evaluate(COLORS) == [dark, printed]
        page.show(width=1280, dark=not dark)
        assert page.evaluate("return window.innerWidth") == 1280
        assert page.evaluate(COLORS) == [not dark, printed]


def test_keys_move_the_focus_type_and_press_buttons(browser: BrowserProcess) -> None:
    form = f"{FORM}<main><input aria-label=Name><button onclick=\"document.title = 'pressed'\">Go</button></main>"
    with browser.open(form) as page:
        page.press("Tab")
        page.type("h1-a")
        page.press("Tab", "Enter")
        assert page.evaluate("return [document.querySelector('input').value, document.title]") == ["h1-a", "pressed"]


def test_axe_finds_violations(browser: BrowserProcess) -> None:
    with browser.open(f"{FORM}<main><h1>Form</h1><label>Name <input></label></main>") as page:
        assert page.accessibility_violations() == []
    with browser.open(f"{FORM}<main><h1>Form</h1><input><p style='color: #ccc'>faint</p></main>") as page:
        found = {violation.rule: violation for violation in page.accessibility_violations()}
    assert set(found) == {"label", "color-contrast"}
    assert found["label"].elements == ("<input>",)


def test_a_content_security_policy_stops_scripts_of_the_page_but_not_of_the_test(browser: BrowserProcess) -> None:
    policy = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
    with browser.open(f"{FORM}{policy}<h1>Strict</h1><script>document.title = 'ran'</script>") as page:
        assert page.evaluate("return document.title") == "Form"
        assert {violation.rule for violation in page.accessibility_violations()} == set()


def test_a_failed_script_is_an_error_of_the_test(browser: BrowserProcess) -> None:
    with browser.open(FORM) as page, pytest.raises(PageError, match="missing is not defined"):
        page.evaluate("return missing")


def test_a_picture_has_the_height_of_the_page_or_of_the_window(browser: BrowserProcess, tmp_path: Path) -> None:
    with browser.open(f"{FORM}<div style='height: 3000px'></div>", width=390, height=800) as page:
        page.screenshot(tmp_path / "page.png")
        page.screenshot(tmp_path / "window.png", full=False)
    assert picture_size(tmp_path / "window.png") == (390, 800)
    assert picture_size(tmp_path / "page.png")[1] > 3000


def picture_size(path: Path) -> tuple[int, int]:
    """Return width and height of a PNG file."""
    header = path.read_bytes()[16:24]
    return int.from_bytes(header[:4]), int.from_bytes(header[4:])


def test_the_browser_ends_with_its_context() -> None:
    with start_browser(install_browser()) as running, running.open() as page:
        assert page.evaluate("return 1 + 1") == 2
    with pytest.raises(ValueError, match="closed file"):
        running.send("open")
