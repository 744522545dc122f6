"""An exporter: serves each of its pages to one scrape, and empty ones after."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

LINES_A_PAGE = 20_000


class Exporter:
    """Listens between `listen` and `close`."""

    def __init__(self) -> None:
        self._pages: deque[str] = deque()
        self._taken = 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter._next().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def listen(self) -> None:
        """Begin."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()

    def serve(self, texts: Iterable[str]) -> Callable[[], bool]:
        """Serve more pages.

        Returns:
            Whether they were taken in: a scrape begins when the one before is over.
        """
        before = self._taken
        added = list(texts)
        self._pages += added
        return lambda: not self._pages and self._taken > before + len(added)

    def _next(self) -> str:
        page = self._pages.popleft() if self._pages else ""
        self._taken += 1
        return page


class Sample(NamedTuple):
    """One sample of one series; the moment in Unix seconds."""

    name: str
    labels: Mapping[str, str]
    moment: float
    value: float | str


def pages(samples: Iterable[Sample], cluster: str) -> Iterator[str]:
    """Samples as texts of a page's length, each with a label that says whose they are."""
    lines: list[str] = []
    for sample in samples:
        labels = ",".join(f'{key}="{value}"' for key, value in {**sample.labels, "cluster": cluster}.items())
        lines.append(f"{sample.name}{{{labels}}} {sample.value} {round(sample.moment * 1000)}")
        if len(lines) == LINES_A_PAGE:
            yield "\n".join(lines) + "\n"
            lines = []
    if lines:
        yield "\n".join(lines) + "\n"
