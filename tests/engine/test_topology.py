"""NVLink affinity: requirements that every scheduler honors by labels, and what the extender receives."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.example_cluster import A100, MIXED, apply_patch, codes, review, view_of, whole_node
from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.model.node_labels import ISLAND_LABEL, PRODUCT_LABEL, SHARING_LABEL
from webhook.model.pods import parse_pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
CLIQUE = "nvidia.com/gpu.clique"

L40S = make_node("l40s", {PRODUCT_LABEL: "NVIDIA-L40S"}, **{"nvidia.com/gpu": 8})
LINKED = {"key": PRODUCT_LABEL, "operator": "In", "values": ["NVIDIA-A100-SXM4-80GB"]}

TOLD = [
    {"key": ISLAND_LABEL, "operator": "Gt", "values": ["3"]},
    {"key": SHARING_LABEL, "operator": "NotIn", "values": ["mps", "time-slicing"]},
]
"""What agents say of four."""


def node(name: str, island: int | None = None, product: str = "NVIDIA-A100-SXM4-80GB", gpus: int = 8) -> Json:
    """Return a node with whole cards; with an island label if an agent runs there."""
    labels_by_agent = {} if island is None else {ISLAND_LABEL: str(island)}
    return make_node(name, A100 | {PRODUCT_LABEL: product, **labels_by_agent}, **{"nvidia.com/gpu": gpus})


def shared(name: str, product: str, **labels: str) -> Json:
    """Return a node with shared cards, all linked by NVLink."""
    labels_by_agent = {PRODUCT_LABEL: product, ISLAND_LABEL: "8", "nvidia.com/gpu.replicas": "4", **labels}
    return make_node(name, A100 | labels_by_agent, **{"nvidia.com/gpu": 32})


def topology(pod: PodMaker | Json, section: str, *nodes: Json) -> Json:
    """Return the pod after an enforced topology section."""
    return apply_patch(pod, review(pod, f"mode: enforce\ntopology: {section}", nodes=nodes))


def affinity(pod: PodMaker, section: str, *nodes: Json) -> Json:
    """Return the affinity of that pod."""
    found: Json = topology(pod, section, *nodes)["spec"].get("affinity", {})
    return found


def allowed(pod: Json, *nodes: Json) -> set[str]:
    """Return the nodes that the pod's required affinity allows, by masks tested against a real scheduler."""
    view, spec = view_of(*nodes), parse_pod(pod).spec
    required = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    mask = view.fleet.select_nodes(spec.node_selector, required.node_selector_terms if required else None)
    return {found.name for i, found in enumerate(view.fleet.nodes) if mask >> i & 1}


def several(*gpus: int) -> PodMaker:
    """Return a pod whose containers request these numbers of GPUs."""
    pod = make_pod().gpus(gpus[0])
    for number, count in enumerate(gpus[1:]):
        pod.container(f"c{number}", resources=limits(count))
    return pod


def limits(count: int) -> Json:
    return {"limits": {"nvidia.com/gpu": str(count)}}


SIDECAR: dict[str, Any] = {"kind": "initContainers", "restartPolicy": "Always", "resources": limits(1)}


class Case(NamedTuple):
    """A pod that requires NVLink between some GPUs, and the nodes that it may use."""

    gpus: int
    nodes: tuple[Json, ...]
    want: set[str]


PCIE = "NVIDIA-A100-PCIE-80GB"
JOINED, HALVES, BROKEN = node("joined", 8), node("halves", 4), node("broken", 1)
BRIDGED, BARE, SILENT = node("bridged", 2, PCIE), node("bare", 1, PCIE), node("silent")
SHARES = (
    shared("sliced", "NVIDIA-A100-SXM4-80GB-SHARED", **{SHARING_LABEL: "time-slicing"}),
    shared("silent-shares", "NVIDIA-H200-SHARED", **{SHARING_LABEL: ""}),
)
"""The second says only by its product's name that its cards are shared."""

CASES = {
    "without agents the product decides": Case(8, (whole_node("a"), L40S), {"a"}),
    "a node of the product with too few GPUs is left to the scheduler": Case(
        8, (whole_node("a"), whole_node("b", count=4), L40S), {"a", "b"}
    ),
    "an agent's island must be large enough": Case(8, (JOINED, HALVES, BROKEN), {"joined"}),
    "a smaller set fits more islands": Case(4, (JOINED, HALVES, BROKEN), {"joined", "halves"}),
    "a bridge that no product name shows": Case(2, (BRIDGED, BARE, L40S), {"bridged"}),
    "a product name for nodes without an agent, never against an agent": Case(4, (SILENT, BROKEN, L40S), {"silent"}),
    "an agent's label where it covers the product names": Case(
        2, (JOINED, BRIDGED, BARE, BROKEN), {"joined", "bridged"}
    ),
    "product names alone where a node has no agent": Case(
        2, (SILENT, JOINED, BRIDGED, BARE, BROKEN), {"silent", "joined"}
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_required_links_allow_only_nodes_with_links(case: Case) -> None:
    after = topology(make_pod().gpus(case.gpus), "{nvlink: required}", *case.nodes)
    assert allowed(after, *case.nodes) == case.want


def test_the_constraint_also_applies_to_later_nodes() -> None:
    after = topology(make_pod().gpus(4), "{nvlink: required}", JOINED)
    assert allowed(after, node("new"), node("small", 2), node("other", 8)) == {"other"}


def test_with_agents_later_products_are_allowed_and_shared_cards_are_not() -> None:
    after = topology(make_pod().gpus(2), "{nvlink: required}", BRIDGED, *SHARES)
    h100, later = (
        node("h100", 8, "NVIDIA-H100-80GB-HBM3"),
        shared("later", "NVIDIA-B200-SHARED", **{SHARING_LABEL: "mps"}),
    )
    assert allowed(after, BRIDGED, *SHARES, h100, later) == {"bridged", "h100"}


def test_required_links_are_added_to_every_existing_term() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    pod = make_pod().gpus(4).spec(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}})
    zoned = JOINED | {"metadata": {"name": "joined", "labels": JOINED["metadata"]["labels"] | {"zone": "a"}}}
    (found,) = affinity(pod, "{nvlink: required}", zoned)["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert found["matchExpressions"] == [*term["matchExpressions"], *TOLD]


def test_several_gpus_prefer_nodes_that_link_them() -> None:
    found = affinity(make_pod().gpus(4), "{nvlink: preferred}", whole_node(), L40S)
    assert found["nodeAffinity"][PREFERRED] == [{"weight": 50, "preference": {"matchExpressions": [LINKED]}}]


def test_several_gpus_prefer_a_large_island() -> None:
    found = affinity(make_pod().gpus(4), "{nvlink: preferred}", JOINED, BROKEN)
    assert found["nodeAffinity"][PREFERRED] == [{"weight": 50, "preference": {"matchExpressions": TOLD}}]


def test_nothing_is_preferred_where_every_node_links_them() -> None:
    assert affinity(make_pod().gpus(4), "{nvlink: preferred}", whole_node("a"), whole_node("b")) == {}


@pytest.mark.parametrize("section", ["{nvlink: required}", "{nvlink: preferred}"])
def test_one_gpu_needs_no_link(section: str) -> None:
    pod = make_pod().gpus(1)
    assert topology(pod, section, whole_node(), L40S) == pod.build()


def test_too_few_linked_gpus_are_reported_with_their_number() -> None:
    decision = review(
        make_pod().gpus(8), "mode: enforce\ntopology: {nvlink: required}", nodes=(whole_node(count=4), L40S)
    )
    assert decision.patch == ()
    field = "spec.containers[0].resources.limits['nvidia.com/gpu']"
    assert f"[GPU-T301] {field}: 8 GPUs must be connected by NVLink" in str(decision.warnings[0])
    assert "Request at most 4 GPUs." in str(decision.warnings[0])


TOO_FEW_TOGETHER: dict[str, tuple[PodMaker, tuple[Json, ...]]] = {
    "the nodes that link them are too small": (several(4, 2), (node("small", 4, gpus=4), node("large", 2))),
    "next to a sidecar": (several(4).container("s", **SIDECAR), (node("small", 4, gpus=4), node("large", 2))),
    "without agents": (several(4, 2), (whole_node(count=4), L40S)),
}


@pytest.mark.parametrize(("pod", "nodes"), TOO_FEW_TOGETHER.values(), ids=TOO_FEW_TOGETHER)
def test_nodes_that_link_one_container_must_have_free_capacity_for_all(pod: PodMaker, nodes: tuple[Json, ...]) -> None:
    decision = review(pod, "mode: enforce\ntopology: {nvlink: required}", nodes=nodes)
    assert decision.patch == ()
    (found,) = [str(warning) for warning in decision.warnings if "[GPU-T301]" in str(warning)]
    assert "GPUs must be connected by NVLink, and no node with 4 connected GPUs has" in found


SLICE = "nvidia.com/mig-1g.10gb"
MIG = make_node("mig", MIXED | {PRODUCT_LABEL: "NVIDIA-A100-PCIE-80GB"}, **{"nvidia.com/gpu": 4, SLICE: 7})
"""Whole cards and slices, which nothing joins."""
WITH_SLICE = make_pod().gpus(2).container("b", resources={"limits": {SLICE: "1"}})
CORES = make_node("cores", {PRODUCT_LABEL: "NVIDIA-L40S"}, **{"nvidia.com/gpu": 8, "cpu": 128})
TOO_LITTLE_BESIDE: dict[str, tuple[PodMaker, tuple[Json, ...]]] = {
    "no slice for another container": (WITH_SLICE, (whole_node(), MIG)),
    "no slice for another container, where agents run": (WITH_SLICE, (JOINED, MIG)),
    "too few cores": (make_pod().gpus(2).requests("cpu", "100"), (whole_node(), CORES)),
}


@pytest.mark.parametrize(("pod", "nodes"), TOO_LITTLE_BESIDE.values(), ids=TOO_LITTLE_BESIDE)
def test_nodes_that_link_gpus_must_be_able_to_take_the_whole_pod(pod: PodMaker, nodes: tuple[Json, ...]) -> None:
    decision = review(pod, "mode: enforce\ntopology: {nvlink: required}", nodes=nodes)
    assert decision.patch == ()
    (found,) = [str(warning) for warning in decision.warnings if "[GPU-T301]" in str(warning)]
    assert "2 GPUs must be connected by NVLink, and no node with 2 connected GPUs can take the pod" in found


def test_links_are_required_on_nodes_that_also_have_slices() -> None:
    joined = make_node("both", MIXED | {PRODUCT_LABEL: "NVIDIA-H100-80GB-HBM3"}, **{"nvidia.com/gpu": 4, SLICE: 7})
    assert allowed(topology(WITH_SLICE, "{nvlink: required}", whole_node(), joined, MIG), joined, MIG) == {"both"}


def test_an_init_container_uses_no_capacity_of_later_containers() -> None:
    init = make_pod().gpus(4).container("i", kind="initContainers", resources=limits(4))
    found = affinity(init, "{nvlink: required}", node("small", 4, gpus=4), node("large", 2))
    assert found["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [{"matchExpressions": TOLD}]


def test_islands_report_their_maximum_size() -> None:
    decision = review(make_pod().gpus(8), "mode: enforce\ntopology: {nvlink: required}", nodes=(HALVES, BRIDGED))
    assert codes(decision) == ["warn GPU-T301"]
    assert "Request at most 4 GPUs." in str(decision.warnings[0])


def test_more_gpus_than_any_node_has_are_evaluated_like_any_other_number() -> None:
    """Any user who may create a pod can write this number, and a node may report a wrong one."""
    liar = node("liar", 8, gpus=10**9)
    decision = review(make_pod().gpus(10**9), "mode: enforce\ntopology: {nvlink: required}", nodes=(JOINED, liar))
    (found,) = [str(warning) for warning in decision.warnings if "[GPU-T301]" in str(warning)]
    assert "Request at most 8 GPUs." in found


SAYS: dict[str, tuple[PodMaker, str, str | None]] = {
    "required": (make_pod().gpus(4), "required", "nvlink=required"),
    "preferred": (make_pod().gpus(4), "preferred", "nvlink=preferred"),
    "ignored": (make_pod().gpus(4), "ignored", None),
    "one GPU": (make_pod().gpus(1), "required", None),
    "the user's own value stays": (
        make_pod().gpus(4).annotate(TOPOLOGY_ANNOTATION, "nvlink=ignored"),
        "required",
        "nvlink=ignored",
    ),
}


@pytest.mark.parametrize(("pod", "nvlink", "want"), SAYS.values(), ids=SAYS)
def test_the_pod_declares_its_need(pod: PodMaker, nvlink: str, want: str | None) -> None:
    after = topology(pod, f"{{nvlink: {nvlink}}}", JOINED, L40S)
    assert (after["metadata"].get("annotations") or {}).get(TOPOLOGY_ANNOTATION) == want


@pytest.mark.parametrize(
    ("said", "kinds"),
    [("nvlink=required", {REQUIRED}), ("nvlink=ignored", set()), ("anything", {PREFERRED})],
)
def test_the_pod_annotation_applies_if_the_policy_allows_a_choice(said: str, kinds: set[str]) -> None:
    found = affinity(make_pod().gpus(4).annotate(TOPOLOGY_ANNOTATION, said), "{nvlink: preferred}", JOINED, L40S)
    assert set(found.get("nodeAffinity", {})) == kinds


def test_the_stricter_of_two_policies_is_reported() -> None:
    sections = [f"mode: enforce\ntopology: {{nvlink: {each}}}" for each in ("required", "preferred")]
    pod = make_pod().gpus(4)
    after = apply_patch(pod, review(pod, *sections, nodes=(JOINED, L40S)))
    assert after["metadata"]["annotations"][TOPOLOGY_ANNOTATION] == "nvlink=required"


def workload(label: str, kind: str) -> PodMaker:
    """Return a pod with eight GPUs that a controller owns."""
    return make_pod().gpus(8).label(label, "x").owned_by(kind, "x")


def in_domain(name: str) -> Json:
    """Return a node in a multi-node NVLink domain."""
    found: Json = make_node(name, A100 | {CLIQUE: "d.0"}, **{"nvidia.com/gpu": 8})
    return found


DOMAINS: dict[str, tuple[PodMaker, str, tuple[Json, ...], str]] = {
    "a job that requires one domain": (workload("job-name", "Job"), "required", (in_domain("a"),), REQUIRED),
    "a job that prefers one domain": (workload("job-name", "Job"), "preferred", (in_domain("a"),), PREFERRED),
    "replicas need not be together": (
        workload("pod-template-hash", "ReplicaSet"),
        "required",
        (in_domain("a"),),
        PREFERRED,
    ),
    "no node has a domain label": (workload("job-name", "Job"), "required", (whole_node(),), PREFERRED),
}


@pytest.mark.parametrize(("pod", "nvlink", "nodes", "kind"), DOMAINS.values(), ids=DOMAINS)
def test_pods_of_one_workload_go_to_one_domain(pod: PodMaker, nvlink: str, nodes: tuple[Json, ...], kind: str) -> None:
    found: Any = affinity(pod, f"{{nvlink: {nvlink}, multiNodeDomain: {CLIQUE}}}", *nodes)["podAffinity"]
    assert list(found) == [kind]
    term = found[kind][0] if kind == REQUIRED else found[kind][0]["podAffinityTerm"]
    assert (term["topologyKey"], list(term["labelSelector"])) == (CLIQUE, ["matchLabels"])


@pytest.mark.parametrize("nvlink", ["required", "preferred"])
def test_a_second_pass_adds_nothing(nvlink: str) -> None:
    section = f"{{nvlink: {nvlink}, multiNodeDomain: {CLIQUE}}}"
    for nodes in [case.nodes for case in CASES.values()]:
        once = topology(workload("job-name", "Job"), section, *nodes, in_domain("d"))
        assert topology(once, section, *nodes, in_domain("d")) == once


def test_a_section_in_audit_mode_reports_what_it_would_add() -> None:
    decision = review(make_pod().gpus(4), "mode: warn\ntopology: {nvlink: required}", nodes=(JOINED, L40S))
    assert decision.patch == ()
    assert "would add nodeAffinity, topology" in str(decision.warnings[0])
