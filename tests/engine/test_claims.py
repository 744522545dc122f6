"""Claims: their charges, and predicted rejections by quotas."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.device_builders import NVIDIA, card, resource_slice
from tests.device_builders import device_class as selecting
from tests.engine.test_workload_review import workload
from tests.example_cluster import NO_USAGE, NOW, codes, policies_of, policy, request_of, review, view_of
from webhook.engine.decision_cache import DecisionCache
from webhook.model.claims import ClaimSpec, DeviceClassSpec, ResourceClaimTemplate, claim_charge
from webhook.model.cluster_view import ClusterView
from webhook.model.pod_summary import summarize_pod
from webhook.model.pods import parse_pod
from webhook.server.admission_response import warning_lines

A, B = "a.example.com", "b.example.com"
CLASSES = {A: DeviceClassSpec(), B: DeviceClassSpec("example.com/b")}
OBJECTS = "count/resourceclaims.resource.k8s.io"
EVALUATED = "limits: {mode: enforce, resourceQuotas: evaluate}\nmode: enforce"


def devices(name: str) -> str:
    """Return the quota key that counts devices of a class."""
    return f"{name}.deviceclass.resource.k8s.io/devices"


def implicit(name: str) -> str:
    """Return the quota key that counts them as an extended resource."""
    return f"requests.deviceclass.resource.kubernetes.io/{name}"


def exactly(name: str, **fields: Any) -> Json:
    """Return a request for devices of a class."""
    return {"exactly": {"deviceClassName": name, **fields}}


def first(*choices: tuple[str, int]) -> Json:
    """Return a request for the first available alternative."""
    return {"firstAvailable": [{"deviceClassName": name, "count": count} for name, count in choices]}


CHARGES: dict[str, tuple[list[Json], dict[str, int]]] = {
    "one device": ([exactly(A)], {devices(A): 1, implicit(A): 1}),
    "a count of 0 is the default, 1": ([exactly(A, count=0)], {devices(A): 1, implicit(A): 1}),
    "several": ([exactly(A, allocationMode="ExactCount", count=3)], {devices(A): 3, implicit(A): 3}),
    "a request for all devices counts as the maximum": (
        [exactly(A, allocationMode="All")],
        {devices(A): 32, implicit(A): 32},
    ),
    "requests add up": ([exactly(A), exactly(A, count=2)], {devices(A): 3, implicit(A): 3}),
    "the largest alternative of each class": (
        [first((A, 1), (A, 4), (B, 2))],
        {devices(A): 4, implicit(A): 4, devices(B): 2, implicit(B): 2, "requests.example.com/b": 2},
    ),
    "a mode of a later version": ([exactly(A, allocationMode="Some")], {}),
    "a request of a later version": ([{"later": {}}], {}),
}


@pytest.mark.parametrize(("requests", "want"), CHARGES.values(), ids=CHARGES)
def test_a_claim_is_charged_by_class(requests: list[Json], want: dict[str, int]) -> None:
    spec = msgspec.convert({"devices": {"requests": requests}}, ClaimSpec)
    assert claim_charge(spec, CLASSES) == {OBJECTS: 1} | want


def test_of_two_classes_with_one_resource_name_the_larger_charge_counts() -> None:
    """The API server charges either of them: its map of names has no order."""
    classes = dict.fromkeys((A, B), DeviceClassSpec("example.com/b"))
    for requests in ([exactly(A, count=3), exactly(B)], [exactly(A), exactly(B, count=3)]):
        spec = msgspec.convert({"devices": {"requests": requests}}, ClaimSpec)
        assert claim_charge(spec, classes)["requests.example.com/b"] == 3


def template(name: str, *requests: Json) -> Json:
    """Return a template of claims."""
    spec = {"spec": {"devices": {"requests": list(requests)}}}
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def device_class(name: str, extended: str = "") -> Json:
    """Return a DeviceClass."""
    spec = {"extendedResourceName": extended} if extended else {}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> Json:
    """Return a quota whose usage the controller has counted."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "devices", "namespace": "team"},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": used},
    }


def claiming(*templates: str, name: str = "pod") -> PodMaker:
    """Return a pod with a claim from each template."""
    claims = [{"name": f"c{place}", "resourceClaimTemplateName": each} for place, each in enumerate(templates)]
    return make_pod(name).claims(*claims)


ONE, TWO = template("one", exactly(A)), template("two", exactly(A, count=2))
NAMED = device_class(B, "example.com/b")


class Said:
    """A pod in a namespace with a quota, and its expected finding."""

    def __init__(self, pod: PodMaker, limit: Json, *others: Json, words: str) -> None:
        self.pod, self.objects, self.words = pod, (limit, *others), words


def full(requested: int, used: int, hard: int, key: str = devices(A)) -> str:
    """Return the API server's message."""
    return f"exceeded quota: devices, requested: {key}={requested}, used: {key}={used}, limited: {key}={hard}"


CASES = {
    "it fits": Said(claiming("two"), quota({devices(A): "2"}, {devices(A): "0"}), TWO, words=""),
    "too many, some would fit": Said(
        claiming("two"), quota({devices(A): "4"}, {devices(A): "3"}), TWO, words=f"1 would fit; {full(2, 3, 4)}"
    ),
    "the second claim is charged after the first": Said(
        claiming("one", "two"), quota({devices(A): "2"}, {devices(A): "0"}), ONE, TWO, words=full(2, 1, 2)
    ),
    "too many claims": Said(
        claiming("one"), quota({OBJECTS: "1"}, {OBJECTS: "1"}), ONE, words=f"0 would fit; {full(1, 1, 1, OBJECTS)}"
    ),
    "by the class's name as an extended resource": Said(
        claiming("b"),
        quota({"requests.example.com/b": "0"}, {"requests.example.com/b": "0"}),
        template("b", exactly(B)),
        NAMED,
        words=full(1, 0, 0, "requests.example.com/b"),
    ),
    "the pod's own request of the name is charged first": Said(
        claiming("b").requests("example.com/b", "1"),
        quota({"requests.example.com/b": "1"}, {"requests.example.com/b": "0"}),
        template("b", exactly(B)),
        NAMED,
        words=full(1, 1, 1, "requests.example.com/b"),
    ),
    "the pod's own request of the implicit name is charged first": Said(
        claiming("b").requests(f"deviceclass.resource.kubernetes.io/{B}", "1"),
        quota({implicit(B): "1"}, {implicit(B): "0"}),
        template("b", exactly(B)),
        NAMED,
        words=full(1, 1, 1, implicit(B)),
    ),
    "room for the pod's own request of the name and its claim": Said(
        claiming("b").requests("example.com/b", "1"),
        quota({"requests.example.com/b": "2"}, {"requests.example.com/b": "0"}),
        template("b", exactly(B)),
        NAMED,
        words="",
    ),
    "the name of an unknown class counts nothing": Said(
        claiming("b"),
        quota({"requests.example.com/b": "0"}, {"requests.example.com/b": "0"}),
        template("b", exactly(B)),
        words="",
    ),
    "a quota with a scope counts no claims": Said(
        claiming("two"), quota({devices(A): "0"}, {devices(A): "0"}, scopes=["NotTerminating"]), TWO, words=""
    ),
    "a quota from a file, not counted yet": Said(
        claiming("one"), quota({devices(A): "2"}, {}), ONE, TWO, claiming("two", name="x").build(), words=full(1, 2, 2)
    ),
    "an unknown template ends the prediction": Said(
        claiming("unknown", "two"), quota({devices(A): "0"}, {devices(A): "0"}), TWO, words=""
    ),
    "an existing claim is not created": Said(
        make_pod().claims({"name": "c0", "resourceClaimName": "two"}),
        quota({devices(A): "0"}, {devices(A): "0"}),
        TWO,
        words="",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_claim_that_will_be_rejected_is_a_warning(case: Said) -> None:
    decision = review(case.pod, EVALUATED, nodes=case.objects)
    assert codes(decision) == (["warn GPU-Q306"] if case.words else [])
    assert case.words in "".join(finding.message for finding in decision.findings)


def test_the_warning_has_field_consumers_and_fix() -> None:
    pods = [claiming(*names, name=name).build() for name, names in (("x", ["one"]), ("y", ["two", "one"]))]
    full_quota = quota({devices(A): "4"}, {devices(A): "4"})
    (finding,) = review(claiming("one"), EVALUATED, nodes=[full_quota, ONE, TWO, *pods]).findings
    assert finding.path == ("spec", "resourceClaims", 0, "resourceClaimTemplateName")
    assert finding.message == (
        "claim c0 cannot be created, and the pod stays Pending: quota devices: "
        "1 a.example.com devices requested, 4 of 4 used, "
        f"0 would fit, used by y (3), x (1); {full(1, 4, 4)}"
    )
    assert finding.fix == "Wait until another pod of the namespace ends."


def test_a_workload_is_warned_about_claims_of_later_replicas() -> None:
    limit = quota({devices(A): "5"}, {devices(A): "0"})
    deployment = workload("Deployment", claiming("two"), replicas=4)
    (finding,) = review(deployment, EVALUATED, nodes=[limit, TWO]).findings
    assert finding.message.startswith("2 of 4 pods would get their claims, then: claim c0 cannot be created")
    assert full(2, 4, 5) in finding.message
    for replicas, others in ((2, [limit, TWO]), (4, [quota({devices(A): "8"}, {devices(A): "0"}), TWO])):
        assert not review(workload("Deployment", claiming("two"), replicas=replicas), EVALUATED, nodes=others).findings


def test_templates_of_one_workload_are_charged_one_after_another() -> None:
    limit = quota({devices(A): "3"}, {devices(A): "0"})
    roles = {"master": claiming("two"), "worker": claiming("two")}
    specs = {name: {"replicas": 1, "template": {"spec": pod.build()["spec"]}} for name, pod in roles.items()}
    replicas = {"pytorchReplicaSpecs": {name.capitalize(): each for name, each in specs.items()}}
    about = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train", "namespace": "team"}}
    job = about | {"spec": replicas}
    found = review(job, EVALUATED, nodes=[limit, TWO]).findings
    assert [(each.code, each.path[2]) for each in found] == [("GPU-Q306", "Worker")]


def test_waiting_is_no_fix_if_the_pods_own_claims_fill_the_quota() -> None:
    limit = quota({devices(A): "2"}, {devices(A): "0"})
    (finding,) = review(claiming("two", "one"), EVALUATED, nodes=[limit, ONE, TWO]).findings
    assert finding.fix == ("Ending other pods is not enough: ask for a higher quota, or use another namespace.")


def test_a_warning_about_many_keys_keeps_the_figures() -> None:
    hard = {devices(A): "4", implicit(A): "4", OBJECTS: "2"}
    pods = [claiming("two", name=name).build() for name in ("x", "y")]
    decision = review(
        claiming("big"), EVALUATED, nodes=[quota(hard, hard), template("big", exactly(A, count=32)), TWO, *pods]
    )
    warning, _ = warning_lines(decision.findings)
    assert (
        "32 a.example.com devices requested, 4 of 4 used, 0 would fit, used by x (2), y (2); 1 claims requested"
        in warning
    )


def test_a_cached_decision_follows_templates_classes_and_consumers() -> None:
    key = "requests.example.com/b"
    view = view_of(make_namespace("team"), quota({key: "1"}, {key: "0"}), template("one", exactly(B)))
    memory, policies, request = DecisionCache(), policies_of(policy(EVALUATED)), request_of(claiming("one").build())

    def messages(view: ClusterView) -> list[str]:
        return [found.message for found in memory.decide(request, policies, view, NO_USAGE, NOW).findings]

    assert messages(view) == []
    more = msgspec.convert(template("one", exactly(B, count=2)), ResourceClaimTemplate)
    view = view.with_objects({}, {}, {}, {"team": [more]})
    assert messages(view) == []
    view = view.with_classes(CLASSES)
    assert [message.split("; ")[0].split(": ")[-1] for message in messages(view)] == [
        "2 example.com/b requested, 0 of 1 used, 1 would fit"
    ]
    view = view.with_pods({"team": {"x": summarize_pod(parse_pod(claiming("one", name="x").build()))}})
    assert [message.split("; ")[0].endswith(", used by x (2)") for message in messages(view)] == [True]
    assert messages(view.with_classes({})) == []


SLICES = resource_slice("n", NVIDIA, "n", nodeName="n", devices=[card("gpu-0"), card("gpu-1")])
IS_NVIDIA = f"device.driver == '{NVIDIA}'"
PUBLISHED = (make_node("n"), SLICES, selecting(A, IS_NVIDIA), selecting(B, IS_NVIDIA, "example.com/b"))
BY_NAME, EXPLICIT = f"deviceclass.resource.kubernetes.io/{A}", "example.com/b"


class Resources(NamedTuple):
    """A pod that requests extended resources, the keys of a quota without room, and the code and key that are found."""

    amounts: dict[str, str]
    keys: list[str]
    want: list[str]


RESOURCES = {
    "the implicit name, which the pod itself is charged for": Resources(
        {BY_NAME: "1"}, [implicit(A)], [f"enforce GPU-Q301 {implicit(A)}"]
    ),
    "the explicit name, which the pod itself is charged for": Resources(
        {EXPLICIT: "1"}, [f"requests.{EXPLICIT}"], [f"enforce GPU-Q301 requests.{EXPLICIT}"]
    ),
    "devices of the class, of the claim": Resources({BY_NAME: "1"}, [devices(A)], [f"warn GPU-Q306 {devices(A)}"]),
    "claims": Resources({EXPLICIT: "1"}, [OBJECTS], [f"warn GPU-Q306 {OBJECTS}"]),
    "the implicit name of a class whose explicit one is requested": Resources(
        {EXPLICIT: "1"}, [implicit(B)], [f"warn GPU-Q306 {implicit(B)}"]
    ),
    "another class": Resources({BY_NAME: "1"}, [devices(B), implicit(B), f"requests.{EXPLICIT}"], []),
}


@pytest.mark.parametrize("case", RESOURCES.values(), ids=RESOURCES)
def test_the_claim_that_the_scheduler_makes_is_predicted_too(case: Resources) -> None:
    pod, hard = make_pod("pod"), dict.fromkeys(case.keys, "0")
    for name, amount in case.amounts.items():
        pod = pod.requests(name, amount)
    found = review(pod, EVALUATED, nodes=[*PUBLISHED, quota(hard, hard)]).findings
    said = [
        f"{each.mode.name.lower()} {each.code} {each.message.split('limited: ')[1].split('=')[0]}" for each in found
    ]
    assert said == case.want
    assert review(pod, EVALUATED, nodes=[*PUBLISHED, quota(dict.fromkeys(case.keys, "1"), hard)]).findings == ()


def test_a_claim_of_the_scheduler_is_not_predicted_where_it_may_not_be_made() -> None:
    hard = quota({devices(A): "0", OBJECTS: "0"}, {devices(A): "0", OBJECTS: "0"})
    pod = make_pod("pod").requests(BY_NAME, "1")
    plugin = make_node("p", None, **{BY_NAME: 1})
    assert review(pod, EVALUATED, nodes=[*PUBLISHED, plugin, hard]).findings == ()
    older = view_of(make_namespace("team"), *PUBLISHED, hard).with_api_minor(35)
    assert "GPU-Q306" not in {each.code for each in review(pod, EVALUATED, view=older).findings}


def test_later_replicas_lack_the_claim_of_the_scheduler() -> None:
    limit = quota({devices(A): "2"}, {devices(A): "0"})
    deployment = workload("Deployment", make_pod("pod").requests(BY_NAME, "1"), replicas=4)
    found = review(deployment, EVALUATED, nodes=[*PUBLISHED, limit]).findings
    (finding,) = (each for each in found if each.code == "GPU-Q306")
    assert finding.message.startswith("2 of 4 pods would get their claims, then: the claim for its extended resources")


@given(
    replicas=st.integers(2, 12),
    own=st.integers(0, 3),
    claimed=st.integers(1, 3),
    free=st.tuples(st.integers(0, 24), st.integers(0, 12)),
)
def test_the_count_is_that_of_pods_created_one_by_one_each_with_its_claim(
    replicas: int, own: int, claimed: int, free: tuple[int, int]
) -> None:
    key, (devices_free, cpu_free) = f"requests.{EXPLICIT}", free
    hard = {key: str(devices_free), "requests.cpu": str(cpu_free)}
    pod = claiming("b").requests("cpu", "1").requests(EXPLICIT, str(own))
    objects = [NAMED, template("b", exactly(B, count=claimed)), quota(hard, dict.fromkeys(hard, "0"))]

    found = review(workload("Deployment", pod, replicas=replicas), EVALUATED, nodes=objects).findings

    used, admitted, with_claims = 0, 0, 0
    while admitted < replicas and admitted < cpu_free and used + own <= devices_free:
        used, admitted = used + own, admitted + 1
        if used + claimed <= devices_free:
            used, with_claims = used + claimed, with_claims + 1
    want = {"GPU-Q301": ["its pods"] if not admitted else [f"{admitted} of"] if admitted < replicas else []}
    if admitted:
        want["GPU-Q306"] = ["claim c0"] if not with_claims else [f"{with_claims} of"] * (with_claims < admitted)
    for code, starts in want.items():
        messages = [each.message for each in found if each.code == code]
        assert [each[: len(start)] for each, start in zip(messages, starts, strict=True)] == starts


MODES = {
    "a policy about something else": ("mode: enforce\nsecurity: {deny: [privileged]}", ["warn GPU-Q306"]),
    "a policy that does not evaluate quotas": ("mode: enforce\nlimits: {resourceQuotas: ignore}", []),
    "a policy that evaluates quotas": (EVALUATED, ["warn GPU-Q306"]),
}


@pytest.mark.parametrize(("text", "want"), MODES.values(), ids=MODES)
def test_a_rejected_claim_is_said_once_unless_quotas_are_ignored(text: str, want: list[str]) -> None:
    limit = quota({devices(A): "0"}, {devices(A): "0"})
    for pod in (claiming("one"), make_pod("pod").requests(BY_NAME, "1")):
        assert codes(review(pod, text, nodes=[*PUBLISHED, limit, ONE])) == want
