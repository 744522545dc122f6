"""What a panel that counts events shows, asked of a real Prometheus."""

from __future__ import annotations

import pytest

from tests.manifests.dashboards import count_events
from tests.usage.exporter import Sample
from tests.usage.prometheus import PrometheusServer, now

LOADS, HOUR, MINUTE = "rightslice_usage_loads_total", 3600, 60
COUNTS = {
    "one load at the start of a replica": ([1] * 20, 1),
    "a replica that starts and loads twice more": ([1] * 10 + [2] * 10 + [3] * 10, 3),
    "a series from the start, whose first count comes later": ([0] * 10 + [1] * 20, 1),
    "a single sample": ([1], 1),
    "a replica from before that loads once": ([5] * 90 + [6] * 10, 1),
    "a replica from before that loads nothing": ([5] * 100, 0),
    "a replica from before that was not scraped when the time began": ([5] * 50 + [None] * 40 + [6] * 40, 0),
    "a process that starts again in its pod": ([5] * 90 + [1] * 10, 1),
}


@pytest.mark.parametrize(("values", "loads"), COUNTS.values(), ids=COUNTS)
def test_each_event_within_the_selected_time_counts_once(
    prometheus: PrometheusServer, values: list[int | None], loads: int
) -> None:
    """The time is an hour, and there is a sample each minute until now, unless it is missing."""
    end = now()
    samples = [
        Sample(LOADS, {"result": "success", "instance": "a"}, end - MINUTE * age, value)
        for age, value in enumerate(reversed(values))
        if value is not None
    ]
    selector = prometheus.feed({"dcgm": samples})
    query = count_events(" by (result) ", f"{LOADS}{{{selector}}}").replace("$__range", f"{HOUR}s")

    [found] = prometheus.instant_query(query, end)

    assert float(found["value"][1]) == loads
