"""Pods that would fail after admission, each with the nearest available alternative."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.example_cluster import A100, GPU_TAINT, codes, mig_node, review, tainted, view_of, whole_node
from webhook.model.claims import DeviceClassSpec
from webhook.model.field_paths import format_path

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
POLICY = "mode: enforce"
L4 = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.replicas": "4"}
SLICED = make_node("sliced", L4 | {"nvidia.com/gpu.sharing-strategy": "time-slicing"}, **{SHARED: 16})
MPS = make_node("mps", L4 | {"nvidia.com/gpu.sharing-strategy": "mps"}, **{SHARED: 16})
UNRENAMED = make_node(
    "unrenamed",
    L4 | {"nvidia.com/gpu.product": "NVIDIA-L4-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
    **{GPU: 16},
)
PLAIN_MPS = make_node(
    "plain-mps",
    L4 | {"nvidia.com/gpu.product": "NVIDIA-L4-SHARED", "nvidia.com/gpu.sharing-strategy": "mps"},
    **{GPU: 16},
)
SINGLE = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}
PINNED: Json = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}


GPUMEM_FIX = "Remove it, unless the scheduler ignores this name: no node of this cluster advertises it."


class Case(NamedTuple):
    pod: PodMaker
    nodes: tuple[Json, ...]
    want: list[str]
    words: str = ""


CASES = {
    "a whole GPU on a node that has it": Case(make_pod().gpus(1), (whole_node(),), []),
    "an unknown cluster gives no finding": Case(make_pod().gpus(99), (), []),
    "a profile that no node has": Case(
        make_pod().requests("nvidia.com/mig-2g.20gb", "1"),
        (mig_node(),),
        ["warn GPU-T201"],
        "Nearest in this cluster: nvidia.com/mig-1g.10gb, nvidia.com/mig-3g.40gb",
    ),
    "a slice that a node offers as nvidia.com/gpu": Case(
        make_pod().requests("nvidia.com/mig-1g.10gb", "1"),
        (whole_node(), make_node("single", A100 | SINGLE, **{GPU: 56})),
        ["warn GPU-T201"],
        "Node single offers it as nvidia.com/gpu. Write nvidia.com/gpu and the node selector nvidia.com/gpu.product: "
        "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.",
    ),
    "a share that a node offers as nvidia.com/gpu": Case(
        make_pod().requests(SHARED, "1"),
        (whole_node(), UNRENAMED),
        ["warn GPU-T201"],
        "offers it as nvidia.com/gpu. Write nvidia.com/gpu and the node selector nvidia.com/gpu.product",
    ),
    "a slice of another size": Case(
        make_pod().requests("nvidia.com/mig-2g.20gb", "1"),
        (make_node("single", A100 | SINGLE, **{GPU: 56}),),
        ["warn GPU-T201"],
        "Nearest in this cluster: nvidia.com/gpu",
    ),
    "memory of another program's GPU shares": Case(
        make_pod().gpus(1).requests("nvidia.com/gpumem", "3000"), (whole_node(),), ["warn GPU-T201"], GPUMEM_FIX
    ),
    "only another program's shares": Case(
        make_pod().requests("nvidia.com/gpumem", "3000"), (whole_node(),), ["warn GPU-T201"], GPUMEM_FIX
    ),
    "a share of another program that a node advertises": Case(
        make_pod().gpus(1).requests("nvidia.com/gpumem", "3000"),
        (make_node("hami", A100, **{GPU: 8, "nvidia.com/gpumem": 80000}),),
        [],
    ),
    "none of a resource": Case(make_pod().gpus(1).requests("nvidia.com/gpumem", "0"), (whole_node(),), []),
    "a network card and a GPU": Case(
        make_pod().gpus(1).requests("rdma/hca", "1"), (whole_node(),), ["warn GPU-T201"], GPUMEM_FIX
    ),
    "resources of Kubernetes and the accounting resource": Case(
        make_pod().gpus(1).requests("rightslice.dev/gpu-milli", "1000"), (whole_node(),), []
    ),
    "more than any node has": Case(make_pod().gpus(16), (whole_node(),), ["warn GPU-T202"], "Request at most 8."),
    "a product that does not exist": Case(
        make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-A100-80GB"}),
        (whole_node(),),
        ["warn GPU-T203"],
        "Write one of NVIDIA-A100-SXM4-80GB.",
    ),
    "a product, where no node has a label of one": Case(
        make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-A100-80GB"}),
        (make_node("plain", {}, **{GPU: 4}),),
        ["warn GPU-T203"],
        "Remove the selector: no node has this label.",
    ),
    "a selector that leaves no GPU node": Case(
        make_pod().gpus(1).spec(nodeSelector={"zone": "moon"}), (whole_node(),), ["warn GPU-T204"]
    ),
    "an empty affinity term matches nothing": Case(
        make_pod().gpus(1).spec(affinity={"nodeAffinity": PINNED}), (whole_node(),), ["warn GPU-T204"]
    ),
    "an untolerated taint": Case(
        make_pod().gpus(1),
        (tainted(whole_node(), GPU_TAINT),),
        ["warn GPU-T205"],
        "Tolerate nvidia.com/gpu=present:NoSchedule.",
    ),
    "an untolerated taint of the only node with enough": Case(
        make_pod().gpus(2),
        (make_node("one", A100, **{GPU: 1}), tainted(whole_node(), GPU_TAINT)),
        ["warn GPU-T205"],
        "of the nodes that offer 2 nvidia.com/gpu",
    ),
    "two MPS shares are rejected": Case(
        make_pod().requests(SHARED, "2"),
        (MPS,),
        ["enforce GPU-T102"],
        "at most 1 per container, because",
    ),
    "two MPS shares next to whole cards that are too few": Case(
        make_pod().gpus(2), (make_node("whole", A100, **{GPU: 1}), PLAIN_MPS), ["enforce GPU-T102", "warn GPU-T302"]
    ),
    "two MPS shares next to whole cards that are not tolerated": Case(
        make_pod().gpus(2), (tainted(whole_node(), GPU_TAINT), PLAIN_MPS), ["enforce GPU-T102"]
    ),
    "two MPS shares next to whole cards that fit": Case(
        make_pod().gpus(2), (whole_node(), PLAIN_MPS), ["warn GPU-T302"]
    ),
    "one MPS share is fine": Case(make_pod().requests(SHARED, "1"), (MPS,), []),
    "two time slices on one card": Case(make_pod().requests(SHARED, "2"), (SLICED,), ["warn GPU-T101"]),
    "a plain GPU that may be a share": Case(make_pod().gpus(1), (whole_node(), UNRENAMED), ["audit GPU-T302"]),
    "a plain GPU whose share would be too small": Case(
        make_pod().gpus(1).needs("60Gi"), (whole_node(), UNRENAMED), ["warn GPU-T302"]
    ),
    "a plain GPU that may be a share of what takes all it sees": Case(
        make_pod().gpus(1).image("vllm/vllm-openai:v0.9.1"), (whole_node(), UNRENAMED), ["warn GPU-T302"]
    ),
    "several GPUs where all are slices": Case(
        make_pod().gpus(2),
        (make_node("single", A100 | SINGLE, **{GPU: 56}),),
        ["warn GPU-T302"],
        "may be partial GPUs, which cannot access each other,",
    ),
    "one GPU where all are slices": Case(make_pod().gpus(1), (make_node("single", A100 | SINGLE, **{GPU: 56}),), []),
    "pinned to whole cards": Case(
        make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": A100["nvidia.com/gpu.product"]}),
        (whole_node(), UNRENAMED),
        [],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_placement(case: Case) -> None:
    decision = review(case.pod, POLICY, nodes=case.nodes)
    assert codes(decision) == case.want
    assert all(case.words in str(finding) for finding in decision.findings)


@pytest.mark.parametrize("nodes", [(make_node("plain"),), (tainted(whole_node(), GPU_TAINT),)])
def test_resources_that_claims_may_provide_have_no_finding(nodes: tuple[Json, ...]) -> None:
    view, pod = view_of(make_namespace("team"), *nodes), make_pod().gpus(1)
    assert codes(review(pod, POLICY, view=view)), "without the class there is a finding"
    others = {"other.example.com": DeviceClassSpec("example.com/other"), "plain": DeviceClassSpec()}
    assert codes(review(pod, POLICY, view=view.with_classes(others)))
    assert codes(review(pod, POLICY, view=view.with_classes({"gpu.nvidia.com": DeviceClassSpec(GPU)}))) == []


def affinity(*terms: dict[str, str]) -> Json:
    """Return an affinity with required terms, each one label and value."""
    expressions = [[{"key": k, "operator": "In", "values": [v]} for k, v in term.items()] for term in terms]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": each} for each in expressions]
            }
        }
    }


PRODUCT = "nvidia.com/gpu.product"
TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
FIELDS: dict[str, tuple[Json, str, str]] = {
    "one label of the selector": ({"nodeSelector": {"a": "b"}}, "GPU-T204", "spec.nodeSelector.a"),
    "the label that leaves no node, not the one that matches": (
        {"nodeSelector": {PRODUCT: A100[PRODUCT], "zone": "moon"}},
        "GPU-T204",
        "spec.nodeSelector.zone",
    ),
    "labels that no single node has together": (
        {"nodeSelector": {PRODUCT: A100[PRODUCT], "zone": "a"}},
        "GPU-T204",
        "spec.nodeSelector",
    ),
    "the affinity": ({"affinity": affinity({"zone": "moon"})}, "GPU-T204", TERMS),
    "selector and affinity together": (
        {"nodeSelector": {PRODUCT: A100[PRODUCT]}, "affinity": affinity({"zone": "a"})},
        "GPU-T204",
        TERMS,
    ),
    "a product in an affinity": (
        {"affinity": affinity({"zone": "a", PRODUCT: "NVIDIA-A1000"}, {"zone": "b"})},
        "GPU-T203",
        f"{TERMS}.nodeSelectorTerms[0].matchExpressions[1].values",
    ),
}
ZONED = make_node("zoned", {PRODUCT: "NVIDIA-L40S", "zone": "a"}, **{GPU: 4})


@pytest.mark.parametrize(("spec", "code", "field"), FIELDS.values(), ids=FIELDS)
def test_the_constraint_that_excludes_nodes_is_named(spec: Json, code: str, field: str) -> None:
    [finding] = review(make_pod().gpus(1).spec(**spec), POLICY, nodes=(whole_node(), ZONED)).findings
    assert (finding.code, format_path(finding.path)) == (code, field)


def test_a_toleration_that_a_policy_adds_counts() -> None:
    pod, nodes = make_pod().gpus(1), (tainted(whole_node(), GPU_TAINT),)
    assert "warn GPU-T205" not in codes(review(pod, "mode: enforce\ninjection: {tolerations: auto}", nodes=nodes))
