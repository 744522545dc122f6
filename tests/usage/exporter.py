"""An exporter: serves each of its pages to one scrape, and empty ones after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

LINES_PER_PAGE = 4_000
"""So that a busy machine serves and reads a page within the time limit of a scrape."""


class Exporter:
    """Listens between `listen` and `close`."""

    def __init__(self) -> None:
        self._pages: list[str] = []
        self._scraped = 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            page_served = -1

            def do_GET(self) -> None:
                """Serve the next page; a client that reuses its connection has received the last one."""
                if self.page_served == exporter._scraped < len(exporter._pages):
                    exporter._scraped += 1
                page = exporter._pages[exporter._scraped : exporter._scraped + 1]
                self.page_served = exporter._scraped if page else -1
                body = "".join(page).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(OSError):  # the client disconnected; the page is served again
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = Listening(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def listen(self) -> None:
        """Start listening."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def serve(self, texts: Iterable[str]) -> Callable[[], bool]:
        """Serve more pages.

        Returns:
            A function that returns whether they were scraped.
        """
        self._pages += texts
        end = len(self._pages)
        return lambda: self._scraped >= end


class Listening(ThreadingHTTPServer):
    """A server that ignores clients that disconnect."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore it."""


class Sample(NamedTuple):
    """One sample of one series, with its time in Unix seconds."""

    name: str
    labels: Mapping[str, str]
    moment: float
    value: float | str


def pages(samples: Iterable[Sample], cluster: str) -> Iterator[str]:
    """Yield the pages with these samples; each sample gets the label `cluster`."""
    lines: list[str] = []
    for sample in samples:
        labels = ",".join(f'{key}="{value}"' for key, value in {**sample.labels, "cluster": cluster}.items())
        lines.append(f"{sample.name}{{{labels}}} {sample.value} {round(sample.moment * 1000)}")
        if len(lines) == LINES_PER_PAGE:
            yield "\n".join(lines) + "\n"
            lines = []
    if lines:
        yield "\n".join(lines) + "\n"
