"""A real Prometheus, and a way to load hours of history into it within a second.

Exporters state the time of each sample, and Prometheus accepts samples out of order, so the samples of a whole day are
scraped at once, with the same relabeling as in a cluster.
"""

from __future__ import annotations

import json
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.cluster.polling import PATIENCE_SECONDS, eventually
from tests.cluster.processes import Process, free_port
from tests.usage.exporter import Exporter, Sample, pages

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

EXPORTER_POD = {"namespace": "gpu-operator", "pod": "dcgm-exporter-7x2", "container": "exporter"}
"""The labels that a ServiceMonitor adds to every series of a target: the scraped pod."""


class Job(NamedTuple):
    """The scrape settings of one exporter.

    Attributes:
        honor: Prometheus' honor_labels.
        target: Labels that every series of it gets.
    """

    honor: bool = True
    target: Mapping[str, str] = EXPORTER_POD

    def configuration(self, name: str, address: str) -> dict[str, Any]:
        """Return the scrape configuration."""
        return {
            "job_name": name,
            "honor_labels": self.honor,
            "scrape_interval": "400ms",
            "scrape_timeout": "400ms",
            "static_configs": [{"targets": [address], "labels": dict(self.target)}],
        }


JOBS = {
    "dcgm": Job(),
    "dcgm, another": Job(target={**EXPORTER_POD, "pod": "dcgm-exporter-9qp"}),
    "dcgm, exported": Job(honor=False),
    "dcgm, static": Job(honor=False, target={}),
    "ksm": Job(),
    "ksm, exported": Job(honor=False),
}


class Prometheus:
    """One Prometheus. As a context manager it runs inside the block.

    Attributes:
        url: Its base URL.
    """

    def __init__(self, program: Path, folder: Path, config: Mapping[str, Any], flags: Sequence[str] = ()) -> None:
        """Write its configuration into an empty folder."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        file = folder / "prometheus.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        command = [
            str(program),
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=60d",
            f"--web.listen-address=127.0.0.1:{port}",
            "--scrape.discovery-reload-interval=100ms",
            "--log.level=warn",
            *flags,
        ]
        self.process = Process("prometheus", command, folder / "prometheus.log", self._serves)

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    def instant_query(self, query: str, at: float | None = None) -> list[Any]:
        """Return the result of an instant query, now or at a time in Unix seconds."""
        moment = {} if at is None else {"time": at}
        found: list[Any] = self.api("query", query=query, **moment)["result"]
        return found

    def api(self, path: str, **parameters: str | float) -> Any:
        """Return the data of an API answer."""
        with OPENER.open(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def _serves(self) -> bool:
        try:
            with OPENER.open(f"{self.url}/-/ready", timeout=30) as answer:
                status: int = answer.status
        except urllib.error.HTTPError as error:
            return error.code == 400  # it speaks TLS only
        return status == 200


class PrometheusServer(Prometheus):
    """One Prometheus, and an exporter for each of `JOBS`. As a context manager they run inside the block."""

    def __init__(self, program: Path, folder: Path, flags: Sequence[str] = ()) -> None:
        """Write its configuration into an empty folder."""
        self._exporters = {name: Exporter() for name in JOBS}
        jobs = [JOBS[name].configuration(name, each.address) for name, each in self._exporters.items()]
        config = {"storage": {"tsdb": {"out_of_order_time_window": "60d"}}, "scrape_configs": jobs}
        super().__init__(program, folder, config, flags)

    def __enter__(self) -> Self:
        for each in self._exporters.values():
            each.listen()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for each in self._exporters.values():
            each.close()

    def feed(self, samples: Mapping[str, Iterable[Sample]], within: float = PATIENCE_SECONDS) -> str:
        """Have Prometheus scrape all of these samples, by job of `JOBS`.

        Returns:
            A selector for these samples only.
        """
        cluster = f"c{secrets.token_hex(4)}"
        waits = [self._exporters[name].serve(pages(some, cluster)) for name, some in samples.items()]
        eventually(lambda: all(served() for served in waits), within=within)
        return f'cluster="{cluster}"'

    def stop_exporters(self) -> None:
        """Stop the exporters."""
        for each in self._exporters.values():
            each.close()


def now() -> int:
    """Return the current time, at which histories end; Prometheus has the same clock."""
    return int(time.time())
