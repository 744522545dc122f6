"""Alerts use existing metrics."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tests.house.checkout import read_checkout_file
from webhook.documents.reader import read_documents as documents
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry

ALERTS = "manifests/monitoring/alerts.yaml"
OPTIONAL = {"rightslice_cluster_view_age_seconds", "rightslice_usage_loads_total"}
"""Metrics of servers with a live cluster or with GPU usage."""


def test_alerts_use_existing_metrics() -> None:
    telemetry = Telemetry(make_logger("error"))
    telemetry.record_policies_loaded("digest", 1, datetime.now(UTC))
    metrics = set(re.findall(r"^# TYPE (rightslice_\w+)", telemetry.metrics_text().decode(), re.MULTILINE)) | OPTIONAL
    named = set(re.findall(r"\brightslice_\w+", read_checkout_file(ALERTS)))

    assert named
    assert {name.removesuffix("_bucket") for name in named} <= metrics


def test_every_alert_has_a_summary() -> None:
    [document] = documents(read_checkout_file(ALERTS), ALERTS)
    rules = [rule for group in document.data["spec"]["groups"] for rule in group["rules"]]

    assert len(rules) > 5
    assert [
        rule["alert"] for rule in rules if not rule["annotations"]["summary"] or not rule["labels"]["severity"]
    ] == []


def test_one_bad_replica_is_enough() -> None:
    assert re.findall(r"max\(\w+\) (?:==|<)|min\(\w+\) >", read_checkout_file(ALERTS)) == []
