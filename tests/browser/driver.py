"""Drive a browser: open pages, run scripts in them, press keys, and collect what they report.

A process of Node with puppeteer-core controls the browser (`driver.mjs`). Commands go to it one after another, so tests
are plain functions. The browser ends with the process, which ends with the pipe to it, so none outlives the tests.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.browser.installation import HERE, NODE, InstalledBrowser

SERIOUS = frozenset({"serious", "critical"})
ALL_IMPACTS = SERIOUS | {"minor", "moderate"}


class PageError(Exception):
    """A command failed in the browser: a script raised an error, or a page did not load."""


class PageView(NamedTuple):
    """How a page is shown; sizes are CSS pixels."""

    width: int = 1280
    height: int = 900
    dark: bool = False
    printed: bool = False


class AccessibilityViolation(NamedTuple):
    """A violation that axe found, with the HTML of the elements."""

    rule: str
    impact: str
    help: str
    elements: tuple[str, ...]


class BrowserPage:
    """A page with its own cookies and storage."""

    def __init__(self, browser: BrowserProcess, key: int, view: PageView) -> None:
        self._browser, self._key, self.view = browser, key, view

    def go(self, url: str) -> int | None:
        """Load a page with its images and scripts; return the HTTP status."""
        status: int | None = self._send("go", url=url)
        return status

    def fill(self, html: str) -> None:
        """Load HTML."""
        self._send("fill", html=html)

    def show(self, **view: Any) -> None:
        """Change how the page is shown: fields of PageView."""
        self.view = self.view._replace(**view)
        self._send("show", view=self.view._asdict())

    def evaluate(self, script: str) -> Any:
        """Run the body of an async function in the page; return its result as plain data."""
        return self._send("evaluate", script=script)

    def wait(self, script: str) -> None:
        """Wait until the body of a function returns something true."""
        self._send("wait", script=script)

    def follow(self, selector: str) -> None:
        """Click an element with the mouse, and wait until the page that it leads to is loaded."""
        self._send("follow", selector=selector)

    def press(self, *keys: str) -> None:
        """Press keys one after another: "Tab", "Enter", "Escape", "ArrowDown", "a"."""
        self._send("press", keys=keys)

    def type(self, text: str) -> None:
        """Type text into the focused element."""
        self._send("type", text=text)

    def screenshot(self, path: Path, *, full: bool = True) -> None:
        """Write a picture of the whole page, or of what the window shows."""
        self._send("screenshot", path=str(path), full=full)

    def accessibility_violations(self, impacts: frozenset[str] = SERIOUS) -> list[AccessibilityViolation]:
        """Return what axe finds, by default what is serious or critical."""
        found = self._send("axe")
        violations = [AccessibilityViolation(v["id"], v["impact"], v["help"], tuple(v["elements"])) for v in found]
        return [violation for violation in violations if violation.impact in impacts]

    @property
    def errors(self) -> list[str]:
        """Errors and warnings of the console, uncaught errors, failed requests and HTTP errors so far."""
        errors: list[str] = self._send("recorded")["errors"]
        return errors

    @property
    def requests(self) -> list[str]:
        """Method and URL of each request so far."""
        requests: list[str] = self._send("recorded")["requests"]
        return requests

    def _send(self, command: str, **options: object) -> Any:
        return self._browser.send(command, id=self._key, **options)


class BrowserProcess:
    """A running browser."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._keys = itertools.count()

    @contextmanager
    def open(self, html: str = "", *, headers: Mapping[str, str] | None = None, **view: Any) -> Iterator[BrowserPage]:
        """Open a page with some HTML, or an empty one.

        Args:
            html: The document.
            headers: HTTP headers that each request of the page gets.
            view: Fields of PageView.
        """
        page = BrowserPage(self, next(self._keys), PageView(**view))
        self.send("open", id=page._key, view=page.view._asdict(), headers=headers or {})
        try:
            if html:
                page.fill(html)
            yield page
        finally:
            self.send("close", id=page._key)

    def evaluate(self, html: str, script: str, **view: Any) -> Any:
        """Open a page, run a script in it, and return its result as plain data."""
        with self.open(html, **view) as page:
            return page.evaluate(script)

    def send(self, command: str, **options: object) -> Any:
        """Send a command to the driver; return its result."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"command": command, **options}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PageError(f"the browser ended with {self._process.wait()} at the command {command}")
        answer = json.loads(line)
        if "error" in answer:
            raise PageError(answer["error"])
        return answer["result"]


@contextmanager
def start_browser(installed: InstalledBrowser) -> Iterator[BrowserProcess]:
    """Start a browser, which ends with the context."""
    command = [str(NODE), str(HERE / "driver.mjs"), str(installed.modules), str(installed.program)]
    environment = os.environ | installed.environment
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        yield BrowserProcess(process)
