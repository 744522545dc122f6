"""A pod with affinity, anti-affinity or spread is right-sized where these are sure to allow a node with a slice."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.example_cluster import A100, MIXED, NO_USAGE, NOW, policies_of, policy, request_of, review, view_of
from webhook.engine.decide import decide
from webhook.engine.decision_cache import DecisionCache
from webhook.model.assumed_pods import AssumedPod
from webhook.model.decisions import KeepReason, KeepRequest, OfferChoice
from webhook.model.filters.pod_ties import pending_pod
from webhook.model.pods import parse_pod

SIZING = "mode: enforce\nrightSizing: {}"
SLICE, GPU = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu"
HOST, ZONE, RACK = "kubernetes.io/hostname", "zone", "rack"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
APP = {"labelSelector": {"matchLabels": {"app": "a"}}}


def small() -> PodMaker:
    """Return a pod of an app that requests one GPU and needs 8Gi."""
    return make_pod().gpus(1).needs("8Gi").label("app", "a")


def near(key: str = ZONE, **fields: Any) -> Json:
    """Return required affinity to pods of the app."""
    return {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": key, **APP, **fields}]}}}


def apart(key: str = HOST, **fields: Any) -> Json:
    """Return required anti-affinity to pods of the app."""
    return {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": key, **APP, **fields}]}}}


def even(key: str = ZONE, **fields: Any) -> Json:
    """Return a required spread of pods of the app."""
    constraint = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **APP, **fields}
    return {"topologySpreadConstraints": [constraint]}


def running(on: str = "", name: str = "other", **spec: Any) -> Json:
    """Return a pod of the app without GPUs; on a node, or waiting for one."""
    return make_pod(name).label("app", "a").spec(nodeName=on, **spec).build()


def terminating(on: str) -> Json:
    """Return a pod of the app that is being deleted."""
    pod = running(on)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return pod


def slices(name: str, zone: str, free: int = 7) -> Json:
    """Return a node with slices."""
    return make_node(name, MIXED | {HOST: name, ZONE: zone, RACK: zone}, **{SLICE: free})


def cards(name: str, zone: str) -> Json:
    """Return a node with whole cards."""
    return make_node(name, A100 | {HOST: name, ZONE: zone, RACK: zone}, **{GPU: 8})


def cpus(name: str, zone: str) -> Json:
    """Return a node without GPUs."""
    return make_node(name, {HOST: name, ZONE: zone})


EAST = (slices("s1", "east"), cards("w1", "east"), cards("w2", "west"), cpus("c3", "north"))
"""Slices in one zone of three."""

EVERYWHERE = (slices("s1", "east"), slices("s2", "west"), cards("w1", "east"))
"""Slices in every zone."""


class Case(NamedTuple):
    spec: Json
    objects: tuple[Json, ...]
    want: KeepReason | None = None


CASES = {
    # Affinity.
    "affinity to a pod in the zone of the slices": Case(near(), (*EAST, running("w1"))),
    "affinity to a pod on a node without GPUs in the zone of the slices": Case(
        near(), (*EAST, cpus("c1", "east"), running("c1"))
    ),
    "affinity to a pod in another zone": Case(near(), (*EAST, running("w2")), KeepReason.POD_AFFINITY),
    "affinity to a pod that terminates counts": Case(near(), (*EAST, terminating("w1"))),
    "affinity to pods that do not run yet": Case(
        near(labelSelector={"matchLabels": {"app": "b"}}), EAST, KeepReason.POD_AFFINITY
    ),
    "the first pod of a group, which the others have to follow": Case(near(), EAST, KeepReason.POD_AFFINITY),
    "affinity to a pod that waits": Case(near(), (*EAST, running()), KeepReason.POD_AFFINITY),
    "affinity to pods of another namespace": Case(
        near(namespaces=["x"]), (*EAST, running("w1")), KeepReason.POD_AFFINITY
    ),
    "affinity to pods of all namespaces": Case(near(namespaceSelector={}), (*EAST, running("w1"))),
    "affinity to a pod with the same revision": Case(near(matchLabelKeys=["app"]), (*EAST, running("w1"))),
    # Anti-affinity.
    "anti-affinity to pods that do not run yet": Case(apart(), EAST),
    "anti-affinity to a pod on the node of the slices": Case(apart(), (*EAST, running("s1")), KeepReason.ANTI_AFFINITY),
    "anti-affinity to a pod on another node": Case(apart(), (*EAST, running("w1"))),
    "anti-affinity to a pod in the zone of the slices": Case(
        apart(ZONE), (*EAST, running("w1")), KeepReason.ANTI_AFFINITY
    ),
    "anti-affinity to a pod that may get the only node with slices": Case(
        apart(), (*EAST, running()), KeepReason.ANTI_AFFINITY
    ),
    "anti-affinity to a pod that may get one node of two": Case(apart(), (*EVERYWHERE, running())),
    "anti-affinity to two pods that may get both nodes": Case(
        apart(), (*EVERYWHERE, running(), running(name="more")), KeepReason.ANTI_AFFINITY
    ),
    "anti-affinity to a pod that may get one zone of two": Case(apart(ZONE), (*EVERYWHERE, running())),
    "anti-affinity to two pods that may get both zones": Case(
        apart(ZONE), (*EVERYWHERE, running(), running(name="more")), KeepReason.ANTI_AFFINITY
    ),
    "anti-affinity to a pod with another revision": Case(
        apart(mismatchLabelKeys=["app"], labelSelector={}), (*EAST, running("s1"))
    ),
    "anti-affinity by a label that no node has": Case(apart("region"), (*EAST, running("s1"), running())),
    # Spread.
    "spread of the first pod": Case(even(), EAST),
    "spread that the zone of the slices would violate": Case(
        even(), (*EAST, running("w1")), KeepReason.TOPOLOGY_SPREAD
    ),
    "spread that a pod in the zone of the slices evens": Case(even(), (*EAST, running("w2"), running("c3", "third"))),
    "spread that ignores a terminating pod": Case(even(), (*EAST, terminating("w1"))),
    "spread with a larger skew": Case(even(maxSkew=2), (*EAST, running("w1"))),
    "spread over fewer zones than it must have": Case(
        even(minDomains=4), (*EAST, running("w1")), KeepReason.TOPOLOGY_SPREAD
    ),
    "spread of pods with other labels": Case(even(labelSelector={"matchLabels": {"app": "b"}}), (*EAST, running("w1"))),
    "spread over a label that the node of the slices lacks": Case(even("other"), EAST, KeepReason.TOPOLOGY_SPREAD),
    "spread while a pod waits that may fill the only zone with slices": Case(
        even(), (*EAST, running()), KeepReason.TOPOLOGY_SPREAD
    ),
    "spread while a pod waits, with slices in every zone": Case(even(), (*EVERYWHERE, running())),
    "spread over nodes while a pod waits that may take one of two": Case(even(HOST), (*EVERYWHERE, running())),
    "spread over nodes while a pod waits that may take the only one": Case(
        even(HOST), (*EAST, running()), KeepReason.TOPOLOGY_SPREAD
    ),
    "spread over nodes and zones": Case(
        {"topologySpreadConstraints": even(HOST)["topologySpreadConstraints"] + even()["topologySpreadConstraints"]},
        (*EVERYWHERE, slices("s3", "east"), slices("s4", "west"), running()),
    ),
    "spread over nodes and zones while a pod waits that may fill a zone or its only node": Case(
        {"topologySpreadConstraints": even(HOST)["topologySpreadConstraints"] + even()["topologySpreadConstraints"]},
        (*EVERYWHERE, running()),
        KeepReason.TOPOLOGY_SPREAD,
    ),
    "spread over zones and racks while a pod waits: what it may block is not added up": Case(
        {"topologySpreadConstraints": even(RACK)["topologySpreadConstraints"] + even()["topologySpreadConstraints"]},
        (*EVERYWHERE, slices("s3", "east"), slices("s4", "west"), running()),
        KeepReason.UNMODELED_CONSTRAINT,
    ),
    "spread that is only preferred": Case(even(whenUnsatisfiable="ScheduleAnyway"), (*EAST, running("w1"))),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_right_sizing_with(case: Case) -> None:
    outcome = review(small().spec(**case.spec), SIZING, nodes=case.objects).outcome
    assert (outcome.reason if isinstance(outcome, KeepRequest) else None) is case.want


def test_a_policy_that_lets_pods_wait_ignores_ties() -> None:
    waiting = "mode: enforce\nrightSizing: {whenFull: wait}"
    outcome = review(small().spec(**apart()), waiting, nodes=(*EAST, running("s1"))).outcome
    assert isinstance(outcome, OfferChoice)


TIES = {"anti-affinity": (apart(), KeepReason.ANTI_AFFINITY), "spread": (even(), KeepReason.TOPOLOGY_SPREAD)}


@pytest.mark.parametrize(("spec", "reason"), TIES.values(), ids=TIES)
def test_a_pod_of_the_same_workload_that_was_just_admitted_may_take_the_only_domain(
    spec: Json, reason: KeepReason
) -> None:
    policies, view = policies_of(policy(SIZING)), view_of(make_namespace("team"), *EAST)
    data = small().spec(**spec).build()
    pending = pending_pod(parse_pod(data), "team")
    assumed = view.with_assumed(AssumedPod("uid", SLICE, view.fleet.all_nodes, 1, 1e12, pending=pending), 0.0)
    cache = DecisionCache()
    outcomes = [
        (cache.decide(request_of(data), policies, each, NO_USAGE, NOW).outcome)
        for each in (view, assumed, view.with_replicas(2))
    ]
    assert outcomes == [
        decide(request_of(data), policies, each, NO_USAGE, NOW).outcome
        for each in (view, assumed, view.with_replicas(2))
    ]
    reasons = [outcome.reason if isinstance(outcome, KeepRequest) else None for outcome in outcomes]
    assert reasons == [None, reason, reason]


def test_a_pod_that_was_just_admitted_excludes_others_by_its_anti_affinity() -> None:
    policies, view = policies_of(policy(SIZING)), view_of(make_namespace("team"), *EAST)
    quiet = pending_pod(parse_pod(make_pod().spec(**apart()).build()), "team")
    assumed = view.with_assumed(AssumedPod("uid", SLICE, view.fleet.all_nodes, 1, 1e12, pending=quiet), 0.0)
    outcome = decide(request_of(small().build()), policies, assumed, NO_USAGE, NOW).outcome
    assert isinstance(outcome, KeepRequest)
    assert (outcome.reason, outcome.detail) == (KeepReason.ANTI_AFFINITY, SLICE)
    other = decide(request_of(small().label("app", "b").build()), policies, assumed, NO_USAGE, NOW).outcome
    assert isinstance(other, OfferChoice)
