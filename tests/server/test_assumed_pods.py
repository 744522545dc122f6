"""The requests of a pod count from its admission, like assigned slices."""

from __future__ import annotations

import json
from time import monotonic
from typing import Any, NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_pod
from tests.engine.test_class_offers import CLASSES, device_node, slices
from tests.engine.test_class_offers import SMALL as DEVICE
from tests.example_cluster import mig_node, policies_of, policy, view_of
from tests.server.site import NOW, review, serve_site
from webhook.cache.live_view import observed_pods_of
from webhook.engine.decide import decide
from webhook.engine.decision_cache import DecisionCache
from webhook.model.annotations import DECISION_ANNOTATION
from webhook.model.assumed_pods import AssumedPod, ObservedPod
from webhook.model.filters.node_ports import ALL_INTERFACES, HostPort
from webhook.model.pod_summary import summarize_pod
from webhook.model.pods import parse_pod
from webhook.model.usage import UsageView
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus, UnvalidatedPods

SMALL = "nvidia.com/mig-1g.10gb"
POLICY = policies_of(policy("mode: enforce\nsecurity: {deny: [visibleDevicesEnv]}\nrightSizing: {}", "sizes"))
RECORD = {"policies": ["sizes"], "digest": "0123456789ab", "changed": ["resources"], "resource": SMALL}


def state_with(slices: int) -> AdmissionState:
    """Return the state of a cluster with so many free slices."""
    view = view_of(make_namespace("team"), mig_node(small=slices, large=0))
    return AdmissionState(POLICY, view, UsageView(), PolicyLoadStatus(NOW))


def free(state: AdmissionState) -> int:
    [offer] = state.view.fleet.by_resource[SMALL]
    return state.view.free_units(offer, offer.nodes)


def gpu_pod(name: str = "a", count: int = 1) -> PodMaker:
    """A final pod that requests slices."""
    pod = make_pod(name).requests(SMALL, str(count))
    pod.data["metadata"]["uid"] = f"uid-{name}"
    return pod


class Case(NamedTuple):
    pod: PodMaker
    want: int
    request: dict[str, Any] | None = None


CASES = {
    "a slice": Case(gpu_pod(), 1),
    "two slices in one container": Case(gpu_pod(count=2), 2),
    "slices of two containers": Case(gpu_pod().container("side", resources={"limits": {SMALL: "1"}}), 2),
    "a slice of an init container": Case(
        make_pod().container("warm", kind="initContainers", resources={"limits": {SMALL: "1"}}), 1
    ),
    "no GPU": Case(make_pod(), 0),
    "a whole card": Case(make_pod().gpus(1), 0),
    "a dry run": Case(gpu_pod(), 0, {"dryRun": True}),
    "an update": Case(gpu_pod(), 0, {"operation": "UPDATE", "oldObject": gpu_pod().build()}),
    "a rejected pod": Case(gpu_pod().env("NVIDIA_VISIBLE_DEVICES", "all"), 0),
    "a slice that another replica assigned": Case(gpu_pod().annotate(DECISION_ANNOTATION, json.dumps(RECORD)), 1),
    "a pod that a scheduling gate keeps from any node": Case(gpu_pod().spec(schedulingGates=[{"name": "wait"}]), 0),
    "more than any node has": Case(gpu_pod(count=8), 0),
    "a pod that does not match a node with slices": Case(gpu_pod().spec(nodeSelector={"zone": "b"}), 0),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_requests_of_an_admitted_pod_are_assumed(case: Case) -> None:
    state = state_with(7)
    with serve_site(decide, state=state) as site:
        site.evaluate(review(case.pod.build(), **(case.request or {})))
    assert 7 - free(state) == case.want


def test_an_admitted_pod_holds_its_host_ports() -> None:
    state, web = state_with(7), HostPort(80, "TCP", ALL_INTERFACES)
    pod = gpu_pod().container("web", ports=[{"containerPort": 80, "hostPort": 80}])
    with serve_site(decide, state=state) as site:
        site.evaluate(review(pod.build()))
    (assumed,) = state.view.assumed_pods
    assert assumed.pending.ports == (web,)


def submitted(name: str = "a", prefix: str = "") -> Json:
    """Return a pod with a slice as /mutate gets it."""
    pod = gpu_pod(name).build()
    del pod["metadata"]["uid"]
    if prefix:
        pod["metadata"] |= {"generateName": prefix}
        del pod["metadata"]["name"]
    return pod


def test_a_pod_counts_from_its_first_webhook_and_once() -> None:
    state = state_with(7)
    with serve_site(decide, state=state) as site:
        site.evaluate(review(submitted(), uid="m-1"), "/mutate")
        assert free(state) == 6
        site.evaluate(review(submitted(), uid="m-1 again"), "/mutate")
        site.evaluate(review(gpu_pod().build()))
        assert free(state) == 6
        for number in range(2):
            site.evaluate(review(submitted(prefix="train-"), uid=f"m-{number}"), "/mutate")
        for name in ("train-x1", "train-x2", "train-of-another-replica"):
            site.evaluate(review(generated(name)))
    assert free(state) == 3


@pytest.mark.parametrize("route", ["/mutate", "/validate", ""])
def test_the_last_slice_is_not_assigned_after_a_pod_that_requests_it(route: str) -> None:
    with serve_site(decide, state=state_with(1)) as site:
        if route:
            site.evaluate(review(submitted() if route == "/mutate" else gpu_pod().build()), route)
        answer = site.evaluate(review(make_pod("b").gpus(1).needs("8Gi").build(), uid="u-2"), "/mutate").response
    assert ("patch" in answer) is (not route)


def slices_given(replicas: int, slices: int, direct: int = 0) -> int:
    """Return how many pods get slices of so many, at once, of one of several replicas."""
    state = state_with(slices)
    state.view = state.view.with_replicas(replicas)
    with serve_site(decide, state=state) as site:
        for number in range(direct):
            site.evaluate(review(submitted(f"direct-{number}"), uid=f"d-{number}"), "/mutate")
        bodies = [review(make_pod(f"p-{n}").gpus(1).needs("8Gi").build(), uid=f"u-{n}") for n in range(12)]
        return sum("patch" in site.evaluate(body, "/mutate").response for body in bodies)


@pytest.mark.parametrize("slices", range(8))
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_that_decide_alike_at_the_same_time_leave_each_a_slice(replicas: int, slices: int) -> None:
    given = slices_given(replicas, slices)
    assert replicas * given + replicas <= slices or given == 0
    assert slices < replicas * (given + 1) + replicas, "no more than that is left"


def test_a_pod_that_takes_a_slice_leaves_another_to_the_next() -> None:
    assert (slices_given(1, 7), slices_given(1, 7, direct=1), slices_given(1, 7, direct=2)) == (6, 4, 2)
    assert slices_given(0, 7, direct=2) == 5


def stale_quota(limit: int) -> Json:
    """Return a quota of slices that has counted none of the namespace's pods yet."""
    hard = {f"requests.{SMALL}": str(limit), "requests.nvidia.com/gpu": "100"}
    status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
    metadata = {"name": "slices", "namespace": "team"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}, "status": status}


def given_under_quota(limit: int, *others: Json, replicas: int = 1) -> int:
    """Return how many of six pods get one of seven slices under a stale quota, beside other objects.

    They are replicas: the decision about the first is kept for the others, as long as it holds.
    """
    view = view_of(make_namespace("team"), mig_node(small=7, large=0), stale_quota(limit), *others)
    state = AdmissionState(POLICY, view.with_replicas(replicas), UsageView(), PolicyLoadStatus(NOW))
    with serve_site(DecisionCache().decide, state=state) as site:
        pods = [make_pod(f"p-{n}").gpus(1).needs("8Gi").owned_by("ReplicaSet", "r").build() for n in range(6)]
        bodies = [review(pod, uid=f"u-{n}") for n, pod in enumerate(pods)]
        return sum("patch" in site.evaluate(body, "/mutate").response for body in bodies)


def test_no_more_pods_get_slices_than_a_quota_admits_that_has_not_counted_them_yet() -> None:
    assert [given_under_quota(limit) for limit in (0, 1, 3, 20)] == [0, 1, 3, 6]


def test_pods_that_are_stored_count_where_a_quota_has_not_counted_them_yet() -> None:
    stored = [gpu_pod(f"stored-{n}").namespace("team").spec(nodeName="mig").build() for n in range(2)]
    assert given_under_quota(3, *stored) == 1


def test_pods_of_other_namespaces_do_not_count_in_a_quota() -> None:
    other = gpu_pod("other").namespace("other").spec(nodeName="mig").build()
    assert given_under_quota(1, make_namespace("other"), other) == 1


def test_a_pod_that_takes_a_slice_in_another_namespace_does_not_count_in_a_quota() -> None:
    nodes = [mig_node(name, small=7, large=0) for name in "ab"]
    view = view_of(make_namespace("team"), make_namespace("other"), *nodes, stale_quota(2))
    state = AdmissionState(POLICY, view.with_replicas(2), UsageView(), PolicyLoadStatus(NOW))
    with serve_site(decide, state=state) as site:
        site.evaluate(review(gpu_pod("taker").namespace("other").build(), uid="t", namespace="other"))
        answer = site.evaluate(review(make_pod("p").gpus(1).needs("8Gi").build(), uid="p"), "/mutate").response
    assert "patch" in answer


def test_replicas_that_decide_at_the_same_time_share_a_quota() -> None:
    assert [given_under_quota(limit, replicas=2) for limit in (1, 2, 3, 5)] == [1, 1, 2, 2]


def test_cpu_of_a_right_sized_pod_is_assumed_too() -> None:
    with serve_site(decide, state=state_with(7)) as site:
        pods = [make_pod(name).gpus(1).requests("cpu", "40").needs("8Gi").build() for name in ("a", "b")]
        answers = [site.evaluate(review(pod, uid=pod["metadata"]["name"]), "/mutate").response for pod in pods]
    assert ["patch" in answer for answer in answers] == [True, False]


@pytest.mark.parametrize(("left", "given"), [(0, True), (60, False)])
def test_the_slice_of_an_assumed_pod_that_expired_is_assigned_to_the_next(left: float, given: bool) -> None:
    """Even if everything was full meanwhile, and no other slice was assigned."""
    state = state_with(1)
    [offer] = state.view.fleet.by_resource[SMALL]
    moment = monotonic()
    state.view = state.view.with_assumed(AssumedPod("gone", SMALL, offer.nodes, 1, moment + left), moment - 30)
    with serve_site(decide, state=state) as site:
        answer = site.evaluate(review(make_pod().gpus(1).needs("8Gi").build()), "/mutate").response
    assert ("patch" in answer) is given


def test_each_copy_counts_and_the_same_pod_once() -> None:
    state = state_with(7)
    with serve_site(DecisionCache().decide, state=state) as site:
        for number, name in enumerate(["a", "b", "c", "c"]):
            site.evaluate(review(gpu_pod(name).owned_by("ReplicaSet", "r").build(), uid=f"u-{number}"))
    assert free(state) == 4


def generated(name: str) -> Json:
    pod = gpu_pod(name).build()
    pod["metadata"] |= {"generateName": "train-", "namespace": "team"}
    return pod


@pytest.mark.parametrize("name", ["train-x1", "by-hand"])
def test_an_assumed_pod_counts_on_its_node_once_it_is_bound(name: str) -> None:
    state, pod = state_with(7), generated(name)
    with serve_site(decide, state=state) as site:
        site.evaluate(review(pod))
    assert free(state) == 6
    assert free_after(state, observed(pod)) == 7


def observed(pod: Json) -> list[ObservedPod]:
    read = parse_pod(pod)
    return observed_pods_of(read, summarize_pod(read))


def free_after(state: AdmissionState, bound: list[Any]) -> int:
    state.view = state.view.without_observed(bound)
    return free(state)


def test_pods_that_the_api_server_rejects_after_mutate_are_forgotten() -> None:
    """They never come to /validate, so that only time ends them."""
    unvalidated = UnvalidatedPods()
    for second in range(10_000):
        unvalidated.add(("team", f"p{second}", SMALL), second + 30.0, float(second))
    assert len(unvalidated) == 30
    assert unvalidated.remove(("team", "p9999", SMALL), 10_000.0)
    assert not unvalidated.remove(("team", "p9000", SMALL), 10_000.0)


def test_a_device_of_a_class_is_assumed_until_its_pod_is_observed() -> None:
    objects = (make_namespace("team"), device_node(), *CLASSES)
    state = AdmissionState(POLICY, view_of(*objects, slices(count=1)), UsageView(), PolicyLoadStatus(NOW))
    with serve_site(decide, state=state) as site:
        first, second = (
            site.evaluate(review(make_pod(name).gpus(1).needs("8Gi").build(), uid=name), "/mutate").response
            for name in ("a", "b")
        )
    assert ("patch" in first, "patch" in second) == (True, False)
    held = [assumed.resource for assumed in state.view.assumed_pods]
    assert held == [DEVICE, "nvidia.com/gpu"]
    found = observed(make_pod("a").requests(DEVICE, "1").build())
    assert [assumed.resource for assumed in state.view.without_observed(found).assumed_pods] == held[1:]
