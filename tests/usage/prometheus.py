"""A real Prometheus, and how hours of history get into it within a second.

Exporters state the time of each sample, and Prometheus takes samples that are older than others: so a page of a whole
day is scraped at once, by the same way of relabelling as in a cluster.
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

from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.usage.exporter import Exporter, Sample, pages

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

EXPORTER_POD = {"namespace": "gpu-operator", "pod": "dcgm-exporter-7x2", "container": "exporter"}
"""What a ServiceMonitor has every series of a target say: which pod was scraped."""


class Job(NamedTuple):
    """How one exporter is scraped.

    Attributes:
        honor: Prometheus' honor_labels.
        target: Labels that every series of it gets.
    """

    honor: bool = True
    target: Mapping[str, str] = EXPORTER_POD

    def configuration(self, name: str, address: str) -> dict[str, Any]:
        """As Prometheus reads it."""
        return {
            "job_name": name,
            "honor_labels": self.honor,
            "scrape_interval": "200ms",
            "scrape_timeout": "200ms",
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
    """One Prometheus, as it is configured. A context manager: up inside.

    Attributes:
        url: Where it is.
    """

    def __init__(self, program: Path, folder: Path, config: Mapping[str, Any], flags: Sequence[str] = ()) -> None:
        """Write what it needs into an empty folder of ours."""
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

    def ask(self, query: str, at: float | None = None) -> list[Any]:
        """The result of an instant query: of now, or of a moment in Unix seconds."""
        moment = {} if at is None else {"time": at}
        found: list[Any] = self.api("query", query=query, **moment)["result"]
        return found

    def api(self, path: str, **asked: str | float) -> Any:
        """What a path of its API answers."""
        with OPENER.open(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(asked)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def _serves(self) -> bool:
        try:
            with OPENER.open(f"{self.url}/-/ready", timeout=5) as answer:
                status: int = answer.status
        except urllib.error.HTTPError as error:
            return error.code == 400  # it speaks TLS only
        return status == 200


class PrometheusServer(Prometheus):
    """One Prometheus, and an exporter for each of `JOBS`. A context manager: up inside."""

    def __init__(self, program: Path, folder: Path, flags: Sequence[str] = ()) -> None:
        """Write what it needs into an empty folder of ours."""
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

    def feed(self, samples: Mapping[str, Iterable[Sample]], within: float = 120) -> str:
        """Have it scrape samples, by job, until it has all of them. Keys are those of `JOBS`.

        Returns:
            A selector for what was fed, and nothing else.
        """
        cluster = f"c{secrets.token_hex(4)}"
        waits = [self._exporters[name].serve(pages(some, cluster)) for name, some in samples.items()]
        eventually(lambda: all(served() for served in waits), within=within)
        return f'cluster="{cluster}"'

    def silence(self) -> None:
        """End the exporters: nothing more is fed."""
        for each in self._exporters.values():
            each.close()


def now() -> int:
    """The moment that histories end at: Prometheus has no other clock than the machine's."""
    return int(time.time())
