"""The console over the example cluster, and a client that shows what a browser would get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import aiohttp
import pytest

from tests.cli.conftest import BUSY_MACHINE_SECONDS
from tests.cli.conftest import rightslice as rightslice
from webhook.cli.audit_inputs import AuditFlags
from webhook.cli.cluster_access import ClusterFlags
from webhook.cli.commands import layout
from webhook.cli.console_inputs import ConsoleReader
from webhook.console.listener import serve_console
from webhook.console.reading import ClusterReading, NewestReading

NOW = datetime(2026, 6, 1, tzinfo=UTC)
VOID = {"meta", "link", "br", "input", "wbr", "line", "img"}


def demo_flags(**changes: Any) -> AuditFlags:
    flags: dict[str, Any] = {
        "paths": (),
        "policies": None,
        "cluster": "demo",
        "access": ClusterFlags(),
        "policy_namespace": "rightslice-system",
        "labels": {},
        "now": NOW,
        "prices": "",
        "usage": None,
        "verbose": False,
    }
    return AuditFlags(**flags | changes)


@pytest.fixture(scope="session")
def demo() -> ClusterReading:
    """Return the reading of the example cluster."""
    reading = ConsoleReader(demo_flags()).read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "STEP_SECONDS", BUSY_MACHINE_SECONDS)
        planned = reading.plan()
    return reading._replace(plan=lambda: planned)


class Answer:
    """A response with its text."""

    def __init__(self, status: int, headers: Any, text: str) -> None:
        self.status, self.headers, self.text = status, headers, text

    @property
    def words(self) -> str:
        """What a reader sees of the page."""
        return page_words(self.text)


class Client:
    """Sends requests to a console."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.address, self._session = address, session

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.send("GET", path, **headers)

    async def send(self, method: str, path: str, data: Any = None, **headers: str) -> Answer:
        url = self.address.rstrip("/") + path
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._session.request(method, url, data=data, headers=names, allow_redirects=False) as response:
            return Answer(response.status, response.headers, await response.text())


@pytest.fixture
async def client(demo: ClusterReading) -> AsyncIterator[Client]:
    async with serve_console(NewestReading(demo), "127.0.0.1", 0) as address, aiohttp.ClientSession() as session:
        shown = Client(address, session)
        while "being planned" in (await shown.get("/layout")).words:
            await asyncio.sleep(0.01)
        yield shown


class _WordParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if "main" in self.open:
            self.words += data.split()


def page_words(text: str) -> str:
    """Return the words of the main part of a page."""
    parser = _WordParser()
    parser.feed(text)
    return " ".join(parser.words)
