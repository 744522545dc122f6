"""Pod-level resources since Kubernetes 1.37: completed after LimitRanges, from all containers, limits included."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from tests.builders import Json, make_namespace, make_node, make_pod
from tests.example_cluster import view_of
from webhook.model.apimachinery import canonical_text
from webhook.model.cluster_view import ClusterView
from webhook.model.defaulting import apply_defaults, default_pod, default_pod_data
from webhook.model.limit_ranges import ResourceList
from webhook.model.pods import parse_pod

Amounts = dict[str, str]


class Case(NamedTuple):
    """The pod level and two containers as written, each limits and requests, and what the pod level becomes."""

    whole: tuple[Amounts, Amounts]
    containers: list[tuple[Amounts, Amounts]]
    before: tuple[Amounts, Amounts]
    since: tuple[Amounts, Amounts]


GIVES = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "gives", "namespace": "team"},
    "spec": {"limits": [{"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}]},
}
CASES = {
    "a limit of the pod beside defaults of a LimitRange": Case(
        ({"cpu": "8"}, {}), [({}, {}), ({}, {})], ({"cpu": "8"}, {"cpu": "8"}), ({"cpu": "8"}, {"cpu": "2"})
    ),
    "a request of the pod, and limits of all containers": Case(
        ({}, {"cpu": "1"}), [({}, {}), ({}, {})], ({}, {"cpu": "1"}), ({"cpu": "4"}, {"cpu": "1"})
    ),
    "a request of the pod above the limits of its containers": Case(
        ({}, {"cpu": "9"}), [({}, {}), ({}, {})], ({}, {"cpu": "9"}), ({"cpu": "9"}, {"cpu": "9"})
    ),
    "memory that only one container limits": Case(
        ({}, {"memory": "1Gi"}),
        [({"memory": "2Gi", "cpu": "1"}, {}), ({"cpu": "1"}, {})],
        ({}, {"memory": "1Gi"}),
        ({"cpu": "2"}, {"cpu": "2", "memory": "1Gi"}),
    ),
    "nothing at the pod level": Case(({}, {}), [({}, {}), ({}, {})], ({}, {}), ({}, {})),
}


def pod_of(case: Case) -> Json:
    pod = make_pod("p").container("side").build()
    pod["metadata"]["namespace"] = "team"
    for container, (limits, requests) in zip(pod["spec"]["containers"], case.containers, strict=True):
        container["resources"] = {"limits": limits, "requests": requests}
    pod["spec"]["resources"] = {"limits": case.whole[0], "requests": case.whole[1]}
    return pod


def view(minor: int) -> ClusterView:
    return view_of(make_namespace("team"), GIVES).with_api_minor(minor)


def texts(amounts: ResourceList) -> Amounts:
    return {name: canonical_text(amount) for name, amount in amounts.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_pod_level_is_completed_as_by_the_servers_version(case: Case) -> None:
    def completed(minor: int) -> tuple[Amounts, Amounts]:
        whole = apply_defaults(parse_pod(pod_of(case)), view(minor).ranges("team")).pod_level
        assert whole is not None
        return texts(whole.limits), texts(whole.requests)

    assert (completed(0), completed(36)) == (case.before, case.before)
    assert (completed(37), completed(38)) == (case.since, case.since)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_webhook_sees_the_pod_level_as_written_and_completes_it_once(case: Case) -> None:
    ranges = view(37).ranges("team")
    reviewed = default_pod(parse_pod(pod_of(case)), ranges)
    data: Any = default_pod_data(pod_of(case), ranges)

    assert reviewed.spec.resources == parse_pod(pod_of(case)).spec.resources
    assert parse_pod(data).spec == reviewed.spec
    assert apply_defaults(reviewed, ranges) == apply_defaults(parse_pod(pod_of(case)), ranges)
    stored = msgspec.structs.replace(reviewed, spec=msgspec.structs.replace(reviewed.spec))
    assert apply_defaults(stored, ranges.without_ranges()) == apply_defaults(reviewed, ranges)


def test_a_namespace_without_limit_ranges_has_the_version_of_its_server_too() -> None:
    assert [view(minor).ranges("other").before_pod_level for minor in (36, 37)] == [False, True]


@pytest.mark.parametrize(
    ("versions", "minor"),
    [(["v1.36.3", "v1.37.2"], 37), (["v1.37.0-eks-1"], 37), (["v1.9.1"], 9), ([""], 0), (["unknown"], 0), ([], 0)],
)
def test_a_snapshot_has_at_least_the_version_of_its_newest_kubelet(versions: list[str], minor: int) -> None:
    nodes = [make_node(f"n{number}", {}) for number in range(len(versions))]
    for node, version in zip(nodes, versions, strict=True):
        node["status"]["nodeInfo"] = {"kubeletVersion": version}

    assert view_of(*nodes).api_minor == minor
