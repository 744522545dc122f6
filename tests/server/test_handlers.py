"""Handlers: the state that a request is evaluated with, what is cached, and internal errors."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.builders import make_namespace, make_node, make_pod
from tests.example_cluster import policies_of, policy
from tests.server.site import NOW, Site, encoded, http, make_state, nothing, post, review, serve_site
from webhook.cache.snapshot import view_of_objects
from webhook.engine.decide import decide
from webhook.errors import SourceLocation
from webhook.manifests.webhooks import webhook_configurations
from webhook.model.admission import AdmissionRequest
from webhook.model.assumed_pods import ObservedPod
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision, GpuNeed, OfferChoice, PendingUnits, PendingUse, patch_add
from webhook.model.enums import EvidenceSource
from webhook.model.pods import parse_pod
from webhook.model.usage import UsageView
from webhook.server.admission_state import ASSUME_TTL_SECONDS, AdmissionState, PolicyLoadStatus

PLACE = SourceLocation("test")


GPU_POD = parse_pod(make_pod("a").gpus(1).build())


def small_cluster() -> ClusterView:
    """One node with two cards, and one namespace."""
    node = make_node("a", {"nvidia.com/gpu.product": "NVIDIA-L40S"}, **{"nvidia.com/gpu": 2})
    return view_of_objects([(node, PLACE), (make_namespace("team"), PLACE)])


def fit_decision(view: ClusterView) -> Decision:
    """Return a decision that assigns one unit of the cluster's only offer."""
    offers = view.fleet.offers
    fit = OfferChoice(offers[0].resource, offers, GpuNeed(8192, None, EvidenceSource.DECLARED, "8Gi declared"), "sizes")
    use = PendingUse((PendingUnits(fit.resource, offers[0].nodes, 1),))
    return Decision(outcome=fit, applied=True, gpu_milli_before=1000, gpu_milli_after=fit.gpu_milli, pending_use=use)


def free(state: AdmissionState) -> int:
    offer = state.view.fleet.offers[0]
    return state.view.free_units(offer, offer.nodes)


def assumed_units(*routes: str, **request: Any) -> int:
    """Return the number of units that are assumed after such reviews."""
    view = small_cluster()
    state = make_state(view)
    before = free(state)
    decision = fit_decision(view)
    with serve_site(lambda *_: decision, state=state) as site:
        for route in routes:
            site.evaluate(review(make_pod("a").gpus(1).build(), **request), route)
    return before - free(state)


def test_an_assigned_slice_is_not_free_for_the_next_pod() -> None:
    assert assumed_units("/mutate") == 1


def test_a_dry_run_assumes_nothing() -> None:
    assert assumed_units("/mutate", dryRun=True) == 0


def test_a_pod_counts_once_over_both_webhooks_and_also_if_another_replica_changed_it() -> None:
    assert assumed_units("/mutate", "/validate") == 1
    assert assumed_units("/validate") == 1


def test_an_update_assumes_nothing() -> None:
    assert assumed_units("/mutate", operation="UPDATE") == 0


def test_assumed_capacity_expires() -> None:
    state = make_state(small_cluster())
    decision = fit_decision(state.view)
    request = AdmissionRequest("CREATE", "", "Pod", "team", "a", GPU_POD, dict, uid="u-1")
    state.assume_pod(request, decision, NOW, 0.0, is_final=False)
    later = ASSUME_TTL_SECONDS + 1
    state.assume_pod(msgspec.structs.replace(request, uid="u-2"), decision, NOW, later, is_final=False)
    assert free(state) == 1


def test_a_pod_that_takes_a_unit_by_its_own_request_shows_for_a_while_that_others_do() -> None:
    view = small_cluster().with_replicas(1)
    state, taken = make_state(view), msgspec.structs.replace(fit_decision(view), applied=False)
    request = AdmissionRequest("CREATE", "", "Pod", "team", "a", GPU_POD, dict, uid="u-1")
    state.assume_pod(request, taken, NOW, 0.0, is_final=False)
    state.view = state.view.without_observed([ObservedPod(("team", "a"), "nvidia.com/gpu")])

    assert free(state) == 1
    state.view = state.view.without_expired(ASSUME_TTL_SECONDS)
    assert free(state) == 2


def test_the_same_review_twice_counts_once() -> None:
    state = make_state(small_cluster())
    request = AdmissionRequest("CREATE", "", "Pod", "team", "a", GPU_POD, dict, uid="u-1")
    state.assume_pod(request, fit_decision(state.view), NOW, 0.0, is_final=False)
    state.assume_pod(request, fit_decision(state.view), NOW, 0.0, is_final=False)
    assert free(state) == 1


def test_an_unknown_namespace_of_a_complete_view_is_rejected() -> None:
    view = small_cluster()
    view.complete = True
    with serve_site(state=make_state(view)) as site:
        answer = site.evaluate(review(namespace="nowhere", uid="u-7"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.json["uid"] == "u-7"
        assert site.evaluate(review(namespace="team")).status == 200


def test_a_delete_is_allowed_without_a_message() -> None:
    body = review(operation="DELETE", oldObject=make_pod().gpus(1).build())
    body["request"]["object"] = None
    with serve_site() as site:
        for route in ("/mutate", "/validate"):
            assert site.evaluate(body, route).response == {"uid": "u-1", "allowed": True}


SECRET = "canary-5e1f"


def failing_decide(request: AdmissionRequest, *_: object) -> Decision:
    """A `decide` that raises."""
    if request.name == "bad":
        raise KeyError(f"{SECRET} {request.load_object()}")
    if request.name == "deep":
        return failing_decide(request)
    return Decision()


@pytest.mark.parametrize("name", ["bad", "deep"])
def test_an_internal_error_is_500_and_the_server_continues(name: str) -> None:
    with serve_site(failing_decide) as site:
        connection = site.connect()
        pod = make_pod(name).env("TOKEN", SECRET).build()
        connection.send(post("/validate", encoded(review(pod, name=name, uid="u-13"))))
        answer = connection.read()
        assert answer is not None
        assert answer.status == 500
        assert answer.json["uid"] == "u-13"
        assert len(answer.body) <= 256
        assert b"Traceback" not in answer.body
        assert SECRET.encode() not in answer.body
        connection.send(post("/validate", encoded(review())))
        assert (connection.read() or (0,))[0] == 200
        assert site.metric("rightslice_internal_errors_total", component="validate") == 1
        lines = [json.loads(line) for line in site.log.getvalue().splitlines()]
        logged = next(line for line in lines if line["event"] == "internal error")
        assert logged["uid"] == "u-13"
        assert "test_handlers.py" in logged["exception"]
        assert SECRET not in site.log.getvalue()


def load_whole_object(request: AdmissionRequest, *_: object) -> Decision:
    """A `decide` with match conditions."""
    request.load_object()
    return Decision()


def test_a_duplicate_key_is_rejected_when_the_whole_object_is_read() -> None:
    body = encoded(review()).replace(b'"spec"', b'"spec":{},"spec"', 1)
    with serve_site(load_whole_object) as site:
        answer = site.send_request(post("/validate", body, "User-Agent: kube-apiserver-admission"))
        assert answer.status == 400
        assert "duplicate keys" in answer.json["error"]


def test_a_decision_that_cannot_be_encoded_is_an_internal_error() -> None:
    with serve_site(lambda *_: Decision(patch=(patch_add(("a",), object()),))) as site:
        answer = site.evaluate(review(), "/mutate")
        assert (answer.status, answer.json["uid"]) == (500, "u-1")


def test_metrics_count_the_responses(site: Site) -> None:
    before = site.metric("rightslice_admission_requests_total", route="validate", operation="CREATE", result="allowed")
    site.evaluate(review())
    after = site.metric("rightslice_admission_requests_total", route="validate", operation="CREATE", result="allowed")
    assert after == before + 1
    assert site.metric("rightslice_admission_duration_seconds_count", route="validate") == after


UNPARTITIONED: dict[str, tuple[str, str, float]] = {
    "a need that half of a card covers": ("NVIDIA-A100-SXM4-80GB", "30Gi", 30 * 2**30),
    "a need that only a whole card covers": ("NVIDIA-A100-SXM4-80GB", "60Gi", 0),
    "a card that cannot be partitioned": ("NVIDIA-L40S", "30Gi", 0),
}


@pytest.mark.parametrize(("product", "need", "missing"), UNPARTITIONED.values(), ids=UNPARTITIONED)
def test_metrics_count_the_need_for_which_no_card_is_partitioned(product: str, need: str, missing: float) -> None:
    memory = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "81920"}
    view = view_of_objects([(make_node("a", memory, **{"nvidia.com/gpu": 2}), PLACE), (make_namespace("team"), PLACE)])
    sizing = policies_of(policy("mode: enforce\nrightSizing: {}"))
    state = AdmissionState(sizing, view, UsageView(), PolicyLoadStatus(NOW))
    with serve_site(decide, state=state) as site:
        site.evaluate(review(make_pod("a").gpus(1).needs(need).build()), "/mutate")

        assert site.metric("rightslice_right_sizable_need_bytes_total", slice="missing") == missing


def test_untrusted_names_create_no_series() -> None:
    with serve_site(nothing) as site:
        connection = site.connect()

        def series() -> int:
            return len(site.send_request(http("GET", "/metrics")).body.splitlines())

        connection.send(post("/validate", encoded(review())))
        connection.read()
        before = series()
        for number in range(300):
            connection.send(
                post("/validate", encoded(review(namespace=f"n-{number}", name=f"p-{number}", uid=f"{number}")))
            )
            connection.read()
        assert series() == before


@pytest.mark.parametrize("route", ["/mutate", "/validate"])
def test_an_oversized_object_is_not_evaluated(route: str) -> None:
    evaluated: list[str] = []

    def record_evaluation(request: AdmissionRequest, *_: object) -> Decision:
        evaluated.append(request.uid)
        return Decision()

    def pod_with_containers(count: int) -> dict[str, Any]:
        pod = make_pod().gpus(1).build()
        [main] = pod["spec"]["containers"]
        pod["spec"]["containers"] = [{**main, "name": f"c{index}"} for index in range(count)]
        return pod

    with serve_site(record_evaluation) as site:
        answer = site.evaluate(review(pod_with_containers(151), uid="too-large"), route)
        assert answer.status == 413
        assert answer.json == {
            "error": "could not evaluate: request.object must have at most 150 containers",
            "uid": "too-large",
        }
        assert site.evaluate(review(pod_with_containers(150), uid="largest"), route).response["allowed"]
        assert evaluated == ["largest"]
        assert site.metric("rightslice_http_rejections_total", reason="object_too_large") == 1


def pod_with_tolerations(count: int, **fields: Any) -> dict[str, Any]:
    """Return a pod with a hostPath volume and so many tolerations."""
    pod = make_pod().spec(
        volumes=[{"name": "host", "hostPath": {"path": "/"}}],
        tolerations=[{"key": f"k{number}", "operator": "Exists"} for number in range(count)],
        **fields,
    )
    return pod.build()


GUARDED = "mode: enforce\nsecurity: {deny: [hostPathDevices]}\n"
EXEMPTING = """exemptions:
  - name: large
    codes: [GPU-S401]
    match: {namespaces: [team]}
    reason: a test
    expirationTime: "2026-06-02T00:00:00Z"
"""
OVERSIZED = {
    "a policy enforces security": (GUARDED, {}, (200, False)),
    "an update makes it too large": (
        GUARDED,
        {"operation": "UPDATE", "oldObject": pod_with_tolerations(1)},
        (200, False),
    ),
    "it was too large before": (
        GUARDED,
        {"operation": "UPDATE", "oldObject": pod_with_tolerations(501)},
        (413, None),
    ),
    "security is in audit mode": ("mode: audit\nsecurity: {deny: [hostPathDevices]}\n", {}, (413, None)),
    "no policy covers security": ("mode: enforce\nlimits: {}\n", {}, (413, None)),
    "an exemption applies": (GUARDED + EXEMPTING, {}, (413, None)),
}


@pytest.mark.parametrize(("spec", "request_", "want"), OVERSIZED.values(), ids=OVERSIZED)
def test_an_oversized_pod_is_denied_where_security_is_enforced(
    spec: str, request_: dict[str, Any], want: tuple[int, bool | None]
) -> None:
    [host] = [hook for one in webhook_configurations() for hook in one["webhooks"] if hook["name"].startswith("host.")]
    assert host["failurePolicy"] == "Ignore"
    state = AdmissionState(policies_of(policy(spec)), small_cluster(), UsageView(), PolicyLoadStatus(NOW))
    with serve_site(decide, state=state) as site:
        answer = site.evaluate(review(pod_with_tolerations(501), **request_), host["clientConfig"]["service"]["path"])
        allowed = answer.response["allowed"] if answer.status == 200 else None
        assert (answer.status, allowed) == want
        if allowed is False:
            message = answer.response["status"]["message"]
            assert "[GPU-S401] a pod must have at most 500 tolerations to be evaluated, found more." in message


def padded_pod(values: int) -> dict[str, Any]:
    """Return a pod with so many values that its objects are not decoded."""
    context = {"capabilities": {"add": ["A"] * values}}
    return make_pod().spec(containers=[{"name": "a", "securityContext": context}]).build()


PADDED = {
    "a policy enforces security": (GUARDED, {}, (200, False)),
    "it was as large before": (GUARDED, {"operation": "UPDATE", "oldObject": padded_pod(30_000)}, (413, None)),
    "it was small before": (GUARDED, {"operation": "UPDATE", "oldObject": padded_pod(1)}, (200, False)),
    "an exemption applies": (GUARDED + EXEMPTING, {}, (413, None)),
    "no policy enforces security": ("mode: enforce\nlimits: {}\n", {}, (413, None)),
}


@pytest.mark.parametrize(("spec", "request_", "want"), PADDED.values(), ids=PADDED)
def test_a_review_of_too_many_values_is_denied_without_being_decoded(
    spec: str, request_: dict[str, Any], want: tuple[int, bool | None]
) -> None:
    state = AdmissionState(policies_of(policy(spec)), small_cluster(), UsageView(), PolicyLoadStatus(NOW))
    with serve_site(decide, state=state) as site:
        answer = site.evaluate(review(padded_pod(30_000), **request_))
        assert (answer.status, answer.response["allowed"] if answer.status == 200 else None) == want
        if answer.status == 200:
            assert "a pod must have at most 30000 values to be evaluated" in answer.response["status"]["message"]


def test_a_body_of_millions_of_values_is_rejected_unread() -> None:
    with serve_site() as site:
        assert site.evaluate(b"[" * 1_100_000).status == 413


def test_mutate_never_denies_an_oversized_pod() -> None:
    state = AdmissionState(policies_of(policy(GUARDED)), small_cluster(), UsageView(), PolicyLoadStatus(NOW))
    with serve_site(decide, state=state) as site:
        assert site.evaluate(review(pod_with_tolerations(501)), "/mutate").status == 413
