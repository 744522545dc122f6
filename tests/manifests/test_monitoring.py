"""Alerts name metrics that there are."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tests.house.checkout import read
from webhook.documents.reader import read_documents as documents
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry

ALERTS = "manifests/monitoring/alerts.yaml"
OPTIONAL = {"rightslice_cluster_view_age_seconds", "rightslice_usage_loads_total"}
"""Told only by a server that follows a cluster, or reads what GPUs are used for."""


def test_every_metric_of_an_alert_is_one_of_ours() -> None:
    telemetry = Telemetry(make_logger("error"))
    telemetry.record_policies_loaded("digest", 1, datetime.now(UTC))
    told = set(re.findall(r"^# TYPE (rightslice_\w+)", telemetry.metrics_text().decode(), re.MULTILINE)) | OPTIONAL
    named = set(re.findall(r"\brightslice_\w+", read(ALERTS)))

    assert named
    assert {name.removesuffix("_bucket") for name in named} <= told


def test_every_alert_says_what_is_wrong() -> None:
    [document] = documents(read(ALERTS), ALERTS)
    rules = [rule for group in document.data["spec"]["groups"] for rule in group["rules"]]

    assert len(rules) > 5
    assert [
        rule["alert"] for rule in rules if not rule["annotations"]["summary"] or not rule["labels"]["severity"]
    ] == []


def test_one_replica_of_several_that_is_in_a_bad_way_is_enough() -> None:
    assert re.findall(r"max\(\w+\) (?:==|<)|min\(\w+\) >", read(ALERTS)) == []
