"""A pod relies on nothing that a nominated pod will take on the node for which it is nominated."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.example_cluster import MIXED, review
from webhook.model.decisions import KeepReason, KeepRequest

SIZING = "mode: enforce\nrightSizing: {}"
SLICE = "nvidia.com/mig-1g.10gb"


def slices(name: str, free: int = 2) -> Json:
    """Return a node with slices, four cores and room for five pods."""
    node = make_node(name, MIXED, **{SLICE: free, "pods": 5, "example.com/card": 1})
    node["status"]["allocatable"]["cpu"] = "4"
    return node


def nominated(pod: PodMaker, node: str = "a", priority: int = 0) -> Json:
    """Return a pod that waits for a node, for which it is nominated."""
    return pod.spec(priority=priority).build() | {"status": {"phase": "Pending", "nominatedNodeName": node}}


def waiting(pod: PodMaker) -> Json:
    """Return a pod that waits for a node."""
    return pod.build() | {"status": {"phase": "Pending"}}


def holder(resource: str, count: str = "1") -> Json:
    """Return a pod on the node that has not gone yet."""
    return make_pod("victim").requests(resource, count).spec(nodeName="a").build()


def other() -> PodMaker:
    """Return another pod."""
    return make_pod("nominated")


class Case(NamedTuple):
    objects: tuple[Json, ...]
    is_kept: bool
    asks: tuple[str, str] = ("cpu", "1")


CASES = {
    "no pod is nominated": Case((slices("a"),), False),
    "a pod waits that needs more slices than are free": Case(
        (slices("a"), holder(SLICE), waiting(other().requests(SLICE, "2"))), False
    ),
    "a pod is nominated that needs these slices, too": Case(
        (slices("a"), holder(SLICE), nominated(other().requests(SLICE, "2"))), True
    ),
    "a pod is nominated for another node": Case(
        (slices("a"), slices("b"), holder(SLICE), nominated(other().requests(SLICE, "2"), "b")), False
    ),
    "a pod without GPUs waits for the processors": Case((slices("a"), waiting(other().requests("cpu", "4"))), False),
    "a pod without GPUs is nominated that takes the processors": Case(
        (slices("a"), nominated(other().requests("cpu", "4"))), True
    ),
    "a pod is nominated that leaves enough processors": Case(
        (slices("a"), nominated(other().requests("cpu", "3"))), False
    ),
    "a pod is nominated that takes another resource of the pod": Case(
        (slices("a"), nominated(other().requests("example.com/card", "1"))), True, ("example.com/card", "1")
    ),
    "as many pods are nominated as the node accepts": Case(
        (slices("a"), *(nominated(make_pod(f"nominated-{number}")) for number in range(5))), True
    ),
    "a pod of lower priority is nominated: which one is scheduled first is not known": Case(
        (slices("a"), nominated(other().requests("cpu", "4"), priority=-10)), True
    ),
    "a gated pod is nominated, as controllers do": Case(
        (slices("a"), nominated(other().requests("cpu", "4").spec(schedulingGates=[{"name": "example.com/gate"}]))),
        True,
    ),
    "a pod with a node is still marked as nominated for another": Case(
        (slices("a"), slices("b"), nominated(other().requests("cpu", "4").spec(nodeName="b"))), False
    ),
    "a pod is nominated for a node that does not exist": Case(
        (slices("a"), nominated(other().requests("cpu", "4"), "gone")), False
    ),
}


def test_a_spread_of_all_pods_by_an_empty_selector_counts_nominated_pods() -> None:
    constraint = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    pod = make_pod().gpus(1).needs("8Gi").spec(topologySpreadConstraints=[{**constraint, "labelSelector": {}}])
    free = [
        review(pod, SIZING, nodes=[slices("a"), slices("b"), *more]).outcome for more in ((), (nominated(other()),))
    ]
    only = review(pod, SIZING, nodes=[slices("a"), slices("b", 0), nominated(other())]).outcome

    assert not any(isinstance(each, KeepRequest) for each in free)
    assert isinstance(only, KeepRequest)
    assert only.reason is KeepReason.TOPOLOGY_SPREAD


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_nominated_pod_will_take_is_not_free(case: Case) -> None:
    decision = review(make_pod().gpus(1).needs("8Gi").requests(*case.asks), SIZING, nodes=case.objects)

    reason = decision.outcome.reason if isinstance(decision.outcome, KeepRequest) else None
    assert reason is (KeepReason.NO_FREE_CAPACITY if case.is_kept else None)
