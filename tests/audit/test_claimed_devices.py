"""What `explain` says about claims: the devices that they would get, and their right-sizing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.builders import Json, make_namespace, make_node, make_pod
from tests.device_builders import NVIDIA, allocated, partitionable_gpus, resource_claim, resource_slice
from tests.engine.test_claim_review import A10, CLUSTER, MEMORY, claim, pod_with_claim, request, template
from tests.engine.test_claim_sizing import GPUS, api_view, sized_claim, stored
from tests.engine.test_claim_sizing import claim as gpu_claim
from tests.engine.test_class_offers import CLASSES, NODE, device_node
from tests.engine.test_fit import sizing
from tests.engine.test_workload_review import workload
from tests.example_cluster import NOW, parse_documents, policies_of, policy, view_of
from webhook.audit.evaluate import EvaluationContext, evaluate_all
from webhook.audit.pod_audit import evaluate_for_explain
from webhook.report.explain import explain_lines
from webhook.report.results import CheckResult, CheckVerdict

LARGE = f"{MEMORY}.compareTo(quantity('30Gi')) >= 0"
NOT_ON_A10 = "none (cannot allocate all claims) on 1 node (a10)"
WHOLE = "NVIDIA-H100-80GB-HBM3 for g on 1 node (h100)"
NAMED = pod_with_claim(resourceClaimTemplateName="c")
CASES: dict[str, tuple[list[Json], list[str]]] = {
    "a claim": ([claim(request(LARGE))], [WHOLE, NOT_ON_A10]),
    "a template": (
        [template(request(LARGE, count=2))],
        [f"2 x {WHOLE}", NOT_ON_A10],
    ),
    "a MIG device": (
        [claim(request(name="mig"))],
        [
            "1g.10gb of NVIDIA-H100-80GB-HBM3 for g on 1 node (h100)",
            NOT_ON_A10,
        ],
    ),
    "a pod beside its template": ([NAMED.build(), template(request())], [WHOLE, "NVIDIA-A10 for g on 1 node (a10)"]),
    "a workload beside its template": (
        [workload("Deployment", NAMED), template(request())],
        [WHOLE, "NVIDIA-A10 for g on 1 node (a10)"],
    ),
    "a pod without its template": (
        [NAMED.build()],
        ["unknown: resource claim template c (no resourceclaimtemplates could be read)"],
    ),
    "a claim of a class that does not exist": (
        [claim(request(name="gpus"))],
        ["none: request g: device class gpus does not exist"],
    ),
    "a pod without claims": ([pod_with_claim().spec(resourceClaims=[]).build()], []),
}


def devices_of(objects: list[Json], *cluster: Json) -> list[str]:
    """Return the devices of the first of some objects, as `explain` prints them."""
    context = EvaluationContext(policies_of(), view_of(*cluster), NOW, namespace="team")
    first = next(iter(evaluate_for_explain(parse_documents(objects), context)))
    lines = list(explain_lines(first))
    return [line[12:] for line in lines if line[:12].strip() == "Devices" or line.startswith(" " * 12)]


@pytest.mark.parametrize(("objects", "devices"), CASES.values(), ids=CASES)
def test_devices_are_explained(objects: list[Json], devices: list[str]) -> None:
    assert devices_of(objects, *CLUSTER) == devices


UNKNOWN = pod_with_claim().spec(resourceClaims=[{"name": "gpu", "resourceClaimName": "unknown"}])
OUTCOMES: dict[str, tuple[list[Json], list[Json], str]] = {
    "a template that is not known": ([NAMED.build()], CLUSTER, "it is not known what its claims request: gpu"),
    "a claim that is not known": ([UNKNOWN.build()], CLUSTER, "it is not known what its claims request: gpu"),
    "a cluster without devices": ([NAMED.build()], [], "it is not known what its claims request: gpu"),
    "a known template": (
        [NAMED.build(), template(request())],
        CLUSTER,
        "it requests its GPUs by claims, and only a claim may be right-sized, when it is created",
    ),
    "no claim": ([make_pod().build()], CLUSTER, "it does not use GPUs"),
}


@pytest.mark.parametrize(("objects", "cluster", "outcome"), OUTCOMES.values(), ids=OUTCOMES)
def test_what_the_claims_of_a_pod_request_is_known_or_said_to_be_unknown(
    objects: list[Json], cluster: list[Json], outcome: str
) -> None:
    context = EvaluationContext(policies_of(), view_of(*cluster), NOW, namespace="team")
    result = next(iter(evaluate_for_explain(parse_documents(objects), context)))
    assert f"  Outcome   {outcome}" in list(explain_lines(result))
    assert (result.verdict is CheckVerdict.NO_GPU) == ("does not use" in outcome)


def test_a_device_that_a_pod_requests_by_the_name_of_its_class_is_listed() -> None:
    name = "deviceclass.resource.kubernetes.io/gpu"
    context = EvaluationContext(policies_of(), api_view(*GPUS, *CLASSES), NOW, namespace="team")
    for pod in (make_pod().requests(name, "1"), make_pod().requests_without_limit(name, "1")):
        [result] = evaluate_for_explain(parse_documents([pod.build()]), context)
        assert f"  Requests  main: {name} 1" in list(explain_lines(result))


def test_a_pod_with_claims_does_not_request_0_gpus() -> None:
    context = EvaluationContext(policies_of(), api_view(*GPUS, *CLASSES), NOW, namespace="team")
    for pod, text in (
        (NAMED, "1 claim: gpu"),
        (pod_with_claim(resourceClaimTemplateName="c").gpus(1), "1 GPU (main: nvidia.com/gpu 1); 1 claim: gpu"),
    ):
        [result] = evaluate_for_explain(parse_documents([pod.build()]), context)
        assert f"  Requests  {text}" in list(explain_lines(result))


SIZED_TEMPLATE = gpu_claim(kind="ResourceClaimTemplate", about={"name": "c"})
PART, CARD = "1g.10gb of NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3"
CHANGES: dict[str, tuple[list[Json], list[str]]] = {
    "a claim": ([gpu_claim()], [f"{PART} for gpu/mig-1g-10gb", f"without right-sizing: {CARD} for gpu"]),
    "a pod beside its template": (
        [NAMED.build(), SIZED_TEMPLATE],
        [f"{PART} for gpu/mig-1g-10gb", f"without right-sizing: {CARD} for gpu"],
    ),
    "a pod that gets a class": (
        [make_pod().namespace("team").gpus(1).needs("8Gi").build()],
        [f"{PART} for container-0-request-0", f"without right-sizing: {CARD} for container-0-request-0"],
    ),
    "a claim that keeps its request": ([gpu_claim(count=2)], ["none (cannot allocate all claims)"]),
}


@pytest.mark.parametrize(("objects", "devices"), CHANGES.values(), ids=CHANGES)
def test_the_devices_are_those_of_the_changed_object(objects: list[Json], devices: list[str]) -> None:
    view = view_of(make_namespace("team"), *GPUS, *CLASSES)
    context = EvaluationContext(policies_of(policy(sizing())), view, NOW, namespace="team")
    first = next(iter(evaluate_for_explain(parse_documents(objects), context)))
    assert [line.partition(" on ")[0] for line in first.devices] == devices


def test_nodes_that_a_pod_does_not_select_give_it_no_devices() -> None:
    """A finding says that no node has them: the list must not name nodes that do."""
    cluster = (*GPUS, *CLASSES, device_node("b"), *partitionable_gpus("b"))
    pod = make_pod().namespace("team").requests("deviceclass.resource.kubernetes.io/gpu", "1")
    selecting = [pod.build(), pod.spec(nodeSelector={"kubernetes.io/hostname": "b"}).build()]
    context = EvaluationContext(policies_of(), api_view(*cluster), NOW, namespace="team")
    anywhere, on_b = (each.devices for each in evaluate_for_explain(parse_documents(selecting), context))
    gets = f"{CARD} for container-0-request-0 on"
    assert anywhere == (f"{gets} 2 nodes (a, b)",)
    assert on_b == (f"{gets} 1 node (b)", "none (excluded by its node selector or affinity) on 1 node (a)")


TWO_CARDS = (NODE, *partitionable_gpus("a", 2), *CLASSES)
BOTH_EVALUATIONS = {"check": evaluate_all, "explain": evaluate_for_explain}


@pytest.mark.parametrize("evaluated", BOTH_EVALUATIONS.values(), ids=BOTH_EVALUATIONS)
@pytest.mark.parametrize(
    ("about", "codes"),
    [({}, []), ({"annotations": {}}, ["GPU-T206"]), ({"uid": "1"}, ["GPU-T206"])],
    ids=["right-sized", "without a need", "stored before"],
)
def test_pods_are_reviewed_with_the_templates_that_the_webhook_right_sizes(
    evaluated: Callable[..., Iterable[CheckResult]], about: Json, codes: list[str]
) -> None:
    context = EvaluationContext(policies_of(policy(sizing())), api_view(*TWO_CARDS), NOW, namespace="team")
    objects = [
        workload("Deployment", NAMED, replicas=3),
        gpu_claim(kind="ResourceClaimTemplate", about={"name": "c"} | about),
    ]
    deployment, _ = evaluated(parse_documents(objects), context)
    assert [each.code for each in deployment.decision.findings] == codes


def test_devices_in_use_are_left_out() -> None:
    in_use = [resource_claim(f"c{i}", allocated("h100", f"gpu-{i}")) for i in range(2)]
    assert devices_of([claim(request(LARGE))], *CLUSTER, *in_use) == [
        "none (cannot allocate all claims) on 2 nodes (h100, a10)"
    ]


def test_an_error_on_one_node_ends_scheduling_on_all() -> None:
    incomplete = resource_slice("a", NVIDIA, "a", 2, nodeName="a", devices=[A10])
    lines = devices_of([claim(request(allocationMode="All"))], *CLUSTER, make_node("a", {}), incomplete)
    assert lines[-1].endswith("is currently being updated: this ends scheduling on all nodes) on 1 node (a)")


def test_nothing_is_said_without_devices() -> None:
    assert devices_of([claim(request())]) == []


SIZED_NOW = "gpu: the first available of mig-1g-10gb, requested"
RECORD = [
    "Record    Rightslice changed devices when it was created",
    "Before    gpu: 1 of class gpu",
    f"Now       {SIZED_NOW}",
    "Reason    it needs 8Gi declared; the smallest devices are of class small, 0.14 of a GPU",
    'Opt out   annotate the claim or template with rightslice.dev/keep: "true"',
    "Verdict   allowed",
    f"Requests  {SIZED_NOW}",
    "Policies  test",
    "Outcome   the claim was right-sized when it was created",
]
CHANGED = sized_claim()
CHANGED["metadata"]["annotations"]["rightslice.dev/original-resources"] = "{"
EXPLAINED: dict[str, tuple[Json, list[str]]] = {
    "a new claim": (
        gpu_claim(),
        [
            "Requests  gpu: 1 of class gpu",
            "Needs     8Gi declared",
            "Outcome   right-sized to 1g.10gb, 9850Mi of class small (0.14 of a GPU) (test)",
            "Offer     class small on NVIDIA-H100-80GB-HBM3: 1g.10gb, 9850Mi, hardware isolation, 1 node",
        ],
    ),
    "a right-sized claim that is applied again": (sized_claim(), RECORD),
    "a right-sized claim in its final form": (stored(sized_claim()), RECORD),
    "a right-sized template": (sized_claim(kind="ResourceClaimTemplate"), RECORD),
    "a right-sized claim whose original is unknown": (
        CHANGED,
        ["Before    unknown: rightslice.dev/original-resources is missing or was changed"],
    ),
    "a claim for two devices": (
        gpu_claim(count=2),
        [
            "Requests  gpu: 2 of class gpu",
            "Outcome   not right-sized: MIG instances and shares have no peer-to-peer access, so a request for several "
            "GPUs is kept",
        ],
    ),
    "a claim that opts out": (
        gpu_claim(about={"annotations": {"rightslice.dev/gpu-memory": "8Gi", "rightslice.dev/keep": "true"}}),
        ["Outcome   not right-sized: it opts out with rightslice.dev/keep"],
    ),
}


@pytest.mark.parametrize(("data", "lines"), EXPLAINED.values(), ids=EXPLAINED)
def test_right_sizing_of_a_claim_is_explained(data: Json, lines: list[str]) -> None:
    context = EvaluationContext(policies_of(policy(sizing())), api_view(*GPUS, *CLASSES), NOW, namespace="team")
    (result,) = evaluate_for_explain(parse_documents([data]), context)
    found = [line.strip() for line in explain_lines(result)]
    assert [line for line in found if line in lines] == lines
    assert not [line for line in found if " pod" in line or "0 GPUs" in line]
