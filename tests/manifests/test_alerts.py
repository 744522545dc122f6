"""Alerts on a real Prometheus: each fires in its situations and in no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import pytest

from tests.house.checkout import read_checkout_file
from tests.usage.exporter import Sample
from tests.usage.prometheus import PrometheusServer, now
from webhook.documents.reader import read_documents as documents

ALERTS = "manifests/monitoring/alerts.yaml"
[RULES] = documents(read_checkout_file(ALERTS), ALERTS)
EXPRESSIONS = {rule["alert"]: rule["expr"] for group in RULES.data["spec"]["groups"] for rule in group["rules"]}

CERTIFICATE_END = "rightslice_certificate_expiration_timestamp_seconds"

MINUTE = 60
DAY = 86400
HISTORY = 30
"""Minutes of each situation."""

Course = Callable[[int], float | None]
"""Returns a value by the remaining minutes; None before the series exists."""


class Series(NamedTuple):
    """A metric, its values over time, and its labels."""

    metric: str
    course: Course
    labels: Mapping[str, str]


class Situation(NamedTuple):
    """Measured series, and whether an alert fires."""

    alert: str
    on: bool
    series: tuple[Series, ...]
    minutes: int = HISTORY


def is_so(value: float) -> Course:
    return lambda _left: value


def rises(by: float) -> Course:
    """A constant increase per minute."""
    return lambda left: by * max(0, HISTORY - left)


def once(before: float | None) -> Course:
    """A counter that increases by one two minutes before the end; None if it did not exist before."""
    return lambda left: before if left > 2 else (before or 0) + 1


def replicas(metric: str, *values: float) -> tuple[Series, ...]:
    """A gauge of several replicas."""
    return tuple(Series(metric, is_so(value), {"instance": str(each)}) for each, value in enumerate(values))


def failed_open(course: Course, hook: str = "mutate.rightslice.dev") -> tuple[Series, ...]:
    return (Series("apiserver_admission_webhook_fail_open_count", course, {"name": hook}),)


def crashes(course: Course) -> tuple[Series, ...]:
    return (Series("rightslice_internal_errors_total", course, {"component": "mutate"}),)


def rejections(per_minute: float) -> tuple[Series, ...]:
    return (Series("rightslice_http_rejections_total", rises(per_minute), {"reason": "overloaded"}),)


def reviews(slow: float) -> tuple[Series, ...]:
    """A hundred reviews per minute, some of them slower than 100 ms."""
    by_bound = {"0.1": 100 - slow, "0.25": 100, "+Inf": 100}
    metric = "rightslice_admission_duration_seconds_bucket"
    return tuple(Series(metric, rises(count), {"route": "mutate", "le": le}) for le, count in by_bound.items())


def loads(replica: str, **results: Course) -> tuple[Series, ...]:
    """Usage loads of a replica by result."""
    metric = "rightslice_usage_loads_total"
    return tuple(Series(metric, course, {"instance": replica, "result": name}) for name, course in results.items())


def needs(**states: float) -> tuple[Series, ...]:
    """The need of created pods per minute, by the availability of a slice."""
    metric = "rightslice_right_sizable_need_bytes_total"
    return tuple(Series(metric, rises(amount), {"slice": name}) for name, amount in states.items())


SITUATIONS = {
    "no targets exist": Situation("RightsliceDown", True, ()),
    "a replica does not answer": Situation("RightsliceDown", False, (
        Series("up", is_so(1), {"job": "rightslice", "instance": "a"}),
        Series("up", is_so(0), {"job": "rightslice", "instance": "b"}),
    )),
    "no replica answers": Situation("RightsliceDown", True, (Series("up", is_so(0), {"job": "rightslice"}),)),
    "failed open for the first time": Situation("RightsliceFailedOpen", True, failed_open(once(None))),
    "failed open once more": Situation("RightsliceFailedOpen", True, failed_open(once(7))),
    "failed open long ago": Situation("RightsliceFailedOpen", False, failed_open(is_so(7))),
    "another webhook failed open": Situation("RightsliceFailedOpen", False, failed_open(once(7), "a.example.com")),
    "a replica with old policies": Situation(
        "RightslicePoliciesNotLoaded", True, replicas("rightslice_policies_last_load_successful", 1, 0)
    ),
    "replicas with current policies": Situation(
        "RightslicePoliciesNotLoaded", False, replicas("rightslice_policies_last_load_successful", 1, 1)
    ),
    "a replica without policies": Situation(
        "RightsliceNoPolicies", True, replicas("rightslice_active_policies", 3, 0)
    ),
    "replicas with policies": Situation("RightsliceNoPolicies", False, replicas("rightslice_active_policies", 3, 3)),
    "a replica with a stale view": Situation(
        "RightsliceClusterViewStale", True, replicas("rightslice_cluster_view_age_seconds", 1, 61)
    ),
    "replicas with current views": Situation(
        "RightsliceClusterViewStale", False, replicas("rightslice_cluster_view_age_seconds", 1, 59)
    ),
    "six days until expiry": Situation("RightsliceCertificateExpiring", True, replicas(CERTIFICATE_END, 30, 6)),
    "eight days until expiry": Situation("RightsliceCertificateExpiring", False, replicas(CERTIFICATE_END, 30, 8)),
    "the first internal error": Situation("RightsliceInternalErrors", True, crashes(once(None))),
    "one more internal error": Situation("RightsliceInternalErrors", True, crashes(once(7))),
    "old internal errors": Situation("RightsliceInternalErrors", False, crashes(is_so(7))),
    "two rejected requests per second": Situation(
        "RightsliceOverloaded", True, rejections(120)
    ),
    "one rejected request in two seconds": Situation(
        "RightsliceOverloaded", False, rejections(30)
    ),
    "two slow reviews of a hundred": Situation("RightsliceSlow", True, reviews(2)),
    "one slow review of two hundred": Situation("RightsliceSlow", False, reviews(0.5)),
    "no slice for half of the need": Situation("RightsliceSlicesMissing", True, needs(free=1000, missing=1000)),
    "no slice for a tenth of the need": Situation("RightsliceSlicesMissing", False, needs(free=9, missing=1)),
    "usage that was never loaded": Situation("RightsliceUsageNotRefreshed", True, loads("a", error=rises(0.1))),
    "usage that is no longer loaded": Situation(
        "RightsliceUsageNotRefreshed", True, loads("b", error=rises(0.1), success=is_so(4)), minutes=400
    ),
    "usage that was loaded once, at the start, half an hour ago": Situation(
        "RightsliceUsageNotRefreshed", False, loads("e", error=rises(0.1), success=is_so(1))
    ),
    "usage that failed to load once": Situation(
        "RightsliceUsageNotRefreshed", False, loads("c", error=once(2), success=rises(0.1))
    ),
    "usage that always loads": Situation(
        "RightsliceUsageNotRefreshed", False, loads("d", error=is_so(0), success=rises(0.1))
    ),
}  # fmt: skip

START = now()
MOMENTS = {
    name: START - (index + 1) * 2 * HISTORY * MINUTE - (3 * DAY if one.minutes > HISTORY else 0)
    for index, (name, one) in enumerate(SITUATIONS.items())
}
"""The end of each situation; samples of one do not affect the next. The alerts on usage and
on slices look back further than one situation, so those in which they do not fire are last, and so the oldest."""


def samples(situation: Situation, end: float) -> Iterator[Sample]:
    for series in situation.series:
        for left in range(situation.minutes, -1, -1):
            value = series.course(left)
            if value is not None:
                measured = end + value * DAY if series.metric == CERTIFICATE_END else value
                yield Sample(series.metric, series.labels, end - left * MINUTE, measured)


def history() -> Iterable[Sample]:
    return (sample for name, one in SITUATIONS.items() for sample in samples(one, MOMENTS[name]))


@pytest.fixture(scope="module")
def server_with_metrics(prometheus: PrometheusServer) -> PrometheusServer:
    """A Prometheus with all series."""
    prometheus.feed({"dcgm": sorted(history(), key=lambda sample: sample.moment)})
    return prometheus


@pytest.mark.parametrize("name", SITUATIONS)
def test_alerts_fire_as_expected(server_with_metrics: PrometheusServer, name: str) -> None:
    situation = SITUATIONS[name]

    assert bool(server_with_metrics.instant_query(EXPRESSIONS[situation.alert], at=MOMENTS[name])) is situation.on


def test_each_alert_is_tested_firing_and_not_firing() -> None:
    ways = {(one.alert, one.on) for one in SITUATIONS.values()}

    assert ways == {(alert, on) for alert in EXPRESSIONS for on in (True, False)}
