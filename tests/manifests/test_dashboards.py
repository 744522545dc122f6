"""The dashboards use metrics that exist, and each panel explains itself."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from tests.house.checkout import read_checkout_file
from tests.manifests.dashboards import DASHBOARDS
from webhook.telemetry.metrics import METRICS

UNITS = {"short", "percentunit", "reqps", "ops", "s", "bytes"}
OF_OTHERS = {
    "apiserver_admission_webhook_fail_open_count",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
}


def panels(name: str) -> list[dict[str, Any]]:
    """Return the panels of a shipped dashboard."""
    dashboard = json.loads(read_checkout_file(f"manifests/dashboards/{name}.json"))
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_panel_has_a_title_a_description_a_unit_and_thresholds(name: str) -> None:
    found = panels(name)
    incomplete = [
        panel["title"]
        for panel in found
        if not panel["description"].endswith(".")
        or panel["fieldConfig"]["defaults"]["unit"] not in UNITS
        or not panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    ]

    assert len(found) > 10
    assert incomplete == []


def test_titles_and_queries_are_unique() -> None:
    every = [panel for name in DASHBOARDS for panel in panels(name)]
    titles = Counter(panel["title"] for panel in every)
    queries = Counter(target["expr"] for panel in every for target in panel["targets"])

    assert [each for each, count in (titles + queries).items() if count > 1] == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_identifiers_and_do_not_overlap(name: str) -> None:
    dashboard = json.loads(read_checkout_file(f"manifests/dashboards/{name}.json"))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = Counter((x, y) for at in places for x in range(at["x"], at["x"] + at["w"])
                    for y in range(at["y"], at["y"] + at["h"]))  # fmt: skip

    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    assert max(x for x, _ in cells) < 24
    assert max(cells.values()) == 1


def test_dashboards_use_existing_metrics() -> None:
    expressions = [target["expr"] for name in DASHBOARDS for panel in panels(name) for target in panel["targets"]]
    named = set(re.findall(r"\b(?:rightslice|process|apiserver)_\w+", " ".join(expressions)))

    assert {name.removesuffix("_bucket") for name in named} - {metric.name for metric in METRICS} == OF_OTHERS


def test_counts_of_events_are_whole() -> None:
    """Prometheus extrapolates an increase to the edges of the selected time."""
    counts = [
        target["expr"]
        for name in DASHBOARDS
        for panel in panels(name)
        for target in panel["targets"]
        if panel["fieldConfig"]["defaults"]["unit"] == "short"
        and "increase(" in target["expr"]
        and "gpu_milli" not in target["expr"]
    ]

    assert len(counts) > 5
    assert [each for each in counts if "round(sum" not in each] == []
