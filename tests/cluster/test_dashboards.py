"""Every query of the dashboards, asked of a real Prometheus that scrapes real processes under load."""

from __future__ import annotations

import json
import math
import re
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.agent.scripted_process import GPUS
from tests.cluster.monitored_site import MonitoredSite, run_monitored_site
from tests.cluster.nodes import demo_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.test_commands import rightslice
from tests.house.checkout import read_checkout_file
from tests.manifests.dashboards import DASHBOARDS
from tests.usage.prometheus import Prometheus, PrometheusServer

ROUNDS = 6
BUILT_IN = {"$__rate_interval": "1m", "$__range": "15m"}
LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")


class Question(NamedTuple):
    """One query of a panel."""

    title: str
    expression: str


DOCUMENTS = {name: json.loads(read_checkout_file(f"manifests/dashboards/{name}.json")) for name in DASHBOARDS}


@pytest.fixture(scope="module")
def site(
    plane: Plane, prometheus: PrometheusServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MonitoredSite]:
    """All processes, after some rounds of load."""
    with run_monitored_site(plane, tmp_path_factory.mktemp("monitored"), prometheus) as running:
        running.send_load()
        running.fail_open()
        running.wait_for("rightslice_usage_containers > 0 and rightslice_leader == 1")
        for _ in range(ROUNDS):
            running.send_load()
        yield running


def variable_values(prometheus: Prometheus, dashboard: Mapping[str, Any]) -> dict[str, str]:
    """Return what Grafana writes for each variable of a dashboard when all its values are selected one by one."""
    values: dict[str, str] = {}
    for variable in dashboard["templating"]["list"]:
        if found := LABEL_VALUES.fullmatch(str(variable["query"])):
            selector, label = substitute(found[1], values), found[2]
            series = prometheus.instant_query(selector)
            known = sorted({each["metric"][label] for each in series})
            assert known, variable["name"]
            values[f"${variable['name']}"] = f"({'|'.join(map(regex_of, known))})"
    return values


def regex_of(value: str) -> str:
    """Return a value as Grafana writes it into a regular expression within a string."""
    return re.sub(r"([\\^$*+?.()|\[\]{}/])", r"\\\\\1", value)


def substitute(expression: str, values: Mapping[str, str]) -> str:
    """Return an expression as Grafana sends it."""
    for name, value in values.items():
        expression = expression.replace(name, value)
    return expression


def questions(name: str, values: Mapping[str, str]) -> Iterator[Question]:
    """Yield the queries of a dashboard."""
    for panel in DOCUMENTS[name]["panels"]:
        for target in panel.get("targets", ()):
            yield Question(panel["title"], substitute(target["expr"], BUILT_IN | dict(values)))


def answer(prometheus: Prometheus, expression: str) -> list[float]:
    """Return the values of an instant query."""
    return [float(series["value"][1]) for series in prometheus.instant_query(expression)]


def answers_under_load(site: MonitoredSite, name: str) -> dict[Question, list[float]]:
    """Return the answers to all queries of a dashboard. A rate needs two scrapes: load is sent until there are."""
    values = variable_values(site.prometheus, DOCUMENTS[name])

    def ask() -> dict[Question, list[float]]:
        site.send_load()
        return {each: answer(site.prometheus, each.expression) for each in questions(name, values)}

    return eventually(ask, until=lambda answers: all(answers.values()))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_has_an_answer(site: MonitoredSite, name: str) -> None:
    answers = answers_under_load(site, name)

    assert [(question.title, found) for question, found in answers.items() if not all(map(math.isfinite, found))] == []
    assert [(question.title, found) for question, found in answers.items() if min(found) < 0] == []


FAULTS = {"rightslice_internal_errors_total", "rightslice_rollout_halted"}
"""Metrics that exist only after a fault of ours, or with a policy that has a rollout."""


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_metric_has_data(site: MonitoredSite, name: str) -> None:
    """Also where a panel would show 0 without it. A scrape that fails on a busy machine hides them until the next."""
    text = json.dumps(DOCUMENTS[name])
    metrics = set(re.findall(r"\b(?:rightslice|apiserver|process)_\w+", text)) - FAULTS

    def without_data() -> list[str]:
        return [metric for metric in sorted(metrics) if not site.prometheus.instant_query(metric)]

    assert eventually(without_data, until=lambda missing: not missing) == []


def is_share(value: float) -> bool:
    return 0 < value < 1


def is_positive(value: float) -> bool:
    return value > 0


def equals(expected: float) -> Callable[[float], bool]:
    return lambda value: value == expected


EXPECTED: Mapping[str, Callable[[float], bool]] = {
    "Reviews per second": is_positive,
    "Denied reviews": is_share,
    "Internal errors": equals(0),
    "Replicas": equals(1),
    "Leaders": equals(1),
    "Allocated": lambda value: 0 <= value <= 1,
    "Fragmented": lambda value: 0 <= value <= 1,
    "Ranked nodes": lambda value: value >= len(demo_nodes()),
    "GPUs of agents": equals(GPUS),
    "Allocated GPUs of agents": equals(1),
    "Unhealthy GPUs": equals(1),
    "NVLinks that are down": equals(1),
    "Right-sized pods": is_share,
    "Need without a slice": is_share,
    "Saved share": is_share,
    "Saved GPUs": is_positive,
    "By observed usage": is_share,
    "Containers with known usage": equals(1),
    "Age of the usage data": lambda value: value < 3600,
    "Failed open": lambda value: value > 0 and value.is_integer(),
    "Replicas with old policies": equals(0),
    "Oldest cluster view": lambda value: value < 60,
}
"""What the numbers must be after this load."""


def test_numbers_are_right(site: MonitoredSite) -> None:
    found: dict[str, float] = {}
    for name in DOCUMENTS:
        for question, answered in answers_under_load(site, name).items():
            if question.title in EXPECTED:
                [found[question.title]] = answered

    assert found.keys() == EXPECTED.keys()
    assert {title: value for title, value in found.items() if not EXPECTED[title](value)} == {}


def test_capacity_is_what_the_command_prints(site: MonitoredSite) -> None:
    values = variable_values(site.prometheus, DOCUMENTS["gpus"])
    [question] = [each for each in questions("gpus", values) if each.title == "GPUs"]
    printed = json.loads(rightslice(site.plane, "capacity", "-o", "json").stdout)["total"]
    parts = ("allocatedMilli", "freeMilli", "unschedulableMilli")

    [gpus] = answer(site.prometheus, question.expression)

    assert gpus * 1000 == pytest.approx(sum(printed[part] for part in parts))


def test_a_query_without_data_is_noticed(site: MonitoredSite) -> None:
    assert answer(site.prometheus, "rightslice_no_such_metric") == []
    with pytest.raises(urllib.error.HTTPError):
        answer(site.prometheus, "sum(")
