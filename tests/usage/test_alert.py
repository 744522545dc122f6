"""The alert on use that is not refreshed, asked of a real Prometheus."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.house.checkout import read
from tests.usage.exporter import Sample
from tests.usage.prometheus import PrometheusServer, now
from webhook.documents.reading import read as documents

ALERTS = "manifests/monitoring/alerts.yaml"
LOADS = "rightslice_usage_loads_total"
EVERY = 600

Counts = dict[str, Callable[[int], int]]

STORIES: dict[str, tuple[Counts, bool]] = {
    "read each half hour": ({"good": lambda i: i // 3, "bad": lambda _: 0}, False),
    "read, and once not": ({"good": lambda i: i // 3, "bad": lambda i: min(1, i // 20)}, False),
    "not read for a day": ({"good": lambda _: 4, "bad": lambda i: i // 3}, True),
    "never read": ({"bad": lambda i: 1 + i // 3}, True),
    "nothing to read": ({}, False),
}


@pytest.mark.parametrize(("counts", "fires"), STORIES.values(), ids=STORIES)
def test_it_fires_where_use_was_not_read_for_hours(prometheus: PrometheusServer, counts: Counts, fires: bool) -> None:
    end = now()
    told = [
        Sample(LOADS, {"result": result, "instance": "replica"}, end - EVERY * (144 - i), count(i))
        for result, count in counts.items()
        for i in range(145)
    ]
    selector = prometheus.feed({"ksm": [*told, Sample("up", {"instance": "x"}, end, 1)]})
    assert bool(prometheus.ask(expression().replace("result=", f"{selector},result="))) is fires


def expression() -> str:
    """What the alert asks."""
    [document] = documents(read(ALERTS), ALERTS)
    rules = [rule for group in document.data["spec"]["groups"] for rule in group["rules"]]
    (asked,) = [rule["expr"] for rule in rules if rule["alert"] == "RightsliceUseNotRefreshed"]
    return str(asked)
