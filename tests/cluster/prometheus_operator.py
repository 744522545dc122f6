"""A Prometheus configured from our ServiceMonitor and PrometheusRule as the Prometheus operator would."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.controlplane.build import prometheus_program
from tests.usage.prometheus import Prometheus
from webhook.well_known import SYSTEM_NAMESPACE

INTERVAL = "1s"
"""Scrape and evaluation interval: those of monitors and rules are too long for a test."""


@contextmanager
def scrape_service(plane: Plane, monitoring: Sequence[Json], service: Json, port: int) -> Iterator[Prometheus]:
    """Run a Prometheus for the block that scrapes a local port as the monitor says, and evaluates the rules.

    Args:
        monitoring: A ServiceMonitor and a PrometheusRule.
        service: The manifest of a Service that the monitor selects.
        port: The port of the only replica.
    """
    folder = plane.folder / "prometheus"
    folder.mkdir()
    monitor, rules = (_of_kind(monitoring, kind) for kind in ("ServiceMonitor", "PrometheusRule"))
    (folder / "rules.yaml").write_text(json.dumps(rules), encoding="utf-8")
    assert _selects(monitor, service)
    jobs = [_job(plane, endpoint, service, port, folder) for endpoint in monitor["endpoints"]]
    config = {
        "global": {"evaluation_interval": INTERVAL},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": jobs,
    }
    with Prometheus(prometheus_program(), folder, config) as prometheus:
        yield prometheus


def _of_kind(objects: Sequence[Json], kind: str) -> Json:
    [spec] = [item["spec"] for item in objects if item["kind"] == kind]
    return dict(spec)


def _selects(monitor: Json, service: Json) -> bool:
    labels = service["metadata"].get("labels", {})
    ports = {port["name"] for port in service["spec"]["ports"]}
    selected = monitor["selector"]["matchLabels"].items() <= labels.items()
    return selected and {endpoint["port"] for endpoint in monitor["endpoints"]} <= ports


def _job(plane: Plane, endpoint: Json, service: Json, port: int, folder: Path) -> dict[str, Any]:
    secret = endpoint["tlsConfig"]["ca"]["secret"]
    data = plane.api.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{secret['name']}")["data"]
    (folder / "ca.crt").write_bytes(b64decode(data[secret["key"]]))
    return {
        "job_name": service["metadata"]["name"],
        "scheme": endpoint["scheme"],
        "metrics_path": endpoint["path"],
        "scrape_interval": INTERVAL,
        "scrape_timeout": INTERVAL,
        "tls_config": {"ca_file": str(folder / "ca.crt"), "server_name": endpoint["tlsConfig"]["serverName"]},
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
    }
