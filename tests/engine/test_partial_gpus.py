"""A plain nvidia.com/gpu may be a slice or a share: pods that are kept on whole cards, and pods that must not wait."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.example_cluster import A100, apply_patch, codes, review, tainted, view_of, whole_node

GPU = "nvidia.com/gpu"
SLICE, SHARE = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "NVIDIA-L4-SHARED"
CUT = {"nvidia.com/gpu.product": SLICE, "nvidia.com/mig.strategy": "single"}
SINGLE = make_node("single", A100 | CUT | {"nvidia.com/gpu.memory": "9728", "nvidia.com/gpu.count": "56"}, **{GPU: 56})
L4 = {"nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"}
SHARED = make_node("shared", L4 | {"nvidia.com/gpu.product": SHARE}, **{GPU: 4})
NAMELESS = {"nvidia.com/gpu.product": "NVIDIA-B7-SHARED", "nvidia.com/gpu.replicas": "4"}
UNSIZED = make_node("unsized", NAMELESS, **{GPU: 4})
AUTO = "mode: enforce\ninjection: {tolerations: auto, nodeAffinity: auto}"
KUEUE = ("kueue.x-k8s.io/queue-name", "q")
KEEP = ("rightslice.dev/keep", "true")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def running_pod(count: int, node: str = "whole") -> Json:
    """Return a running pod that uses GPUs of a node."""
    return make_pod(f"on-{node}-{count}").gpus(count).spec(nodeName=node).build()


CLUSTER = (whole_node(), SINGLE, SHARED)
FULL = (*CLUSTER, running_pod(8))


class Case(NamedTuple):
    pod: PodMaker
    want: tuple[str, ...]
    """Products that it is kept off; with one GPU, only while another node takes it."""
    cluster: tuple[Json, ...] = CLUSTER


def needing(memory: str) -> PodMaker:
    """Return a pod with one GPU and a declared need."""
    return make_pod().gpus(1).needs(memory)


CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
CASES = {
    "several GPUs that work together": Case(make_pod().gpus(4), (SLICE, SHARE)),
    "a need that no partial GPU covers": Case(needing("30Gi"), (SLICE, SHARE)),
    "a need that one partial GPU covers is kept off the other": Case(needing("8Gi"), (SHARE,)),
    "a need that every partial GPU covers": Case(needing("5Gi"), ()),
    "an unknown need": Case(make_pod().gpus(1), ()),
    "a partial GPU of unknown size": Case(needing("30Gi"), (), (whole_node(), UNSIZED)),
    "a need covered by a partial GPU with free capacity, while whole cards have none": Case(
        needing("8Gi"), (SHARE,), FULL
    ),
    "all whole cards are in use, and no partial GPU covers the need": Case(needing("60Gi"), (SLICE, SHARE), FULL),
    "all whole cards are in use, several GPUs": Case(make_pod().gpus(2), (SLICE, SHARE), FULL),
    "too few whole cards are free on one node": Case(make_pod().gpus(4), (SLICE, SHARE), (*CLUSTER, running_pod(5))),
    "enough whole cards are free on one node": Case(make_pod().gpus(3), (SLICE, SHARE), (*CLUSTER, running_pod(5))),
    "no node has so many whole cards": Case(make_pod().gpus(4), (), (whole_node(count=2), SINGLE)),
    "the nodes with whole cards have too little CPU": Case(make_pod().gpus(2).requests("cpu", "1000"), ()),
    "whole cards are on nodes whose taint is not tolerated": Case(
        make_pod().gpus(2), (), (tainted(whole_node(), {"key": "team", "value": "b", "effect": "NoSchedule"}), SINGLE)
    ),
    "the user opts out": Case(needing("30Gi").annotate(*KEEP), ()),
    "the user keeps several GPUs": Case(make_pod().gpus(4).annotate(*KEEP), ()),
    "a queue starts it later": Case(make_pod().gpus(4).label(*KUEUE), ()),
    "it has a scheduling gate": Case(make_pod().gpus(4).spec(schedulingGates=[{"name": "g"}]), ()),
    "it is a DaemonSet's": Case(make_pod().gpus(4).owned_by("DaemonSet", "d"), ()),
    "it names its node": Case(make_pod().gpus(4).spec(nodeName="single"), ()),
    "a claim restricts several GPUs to unknown nodes": Case(make_pod().gpus(4).spec(volumes=[CLAIM]), (SLICE, SHARE)),
    "a claim restricts one GPU to unknown nodes": Case(needing("30Gi").spec(volumes=[CLAIM]), (SLICE, SHARE)),
    "it also requests slices": Case(make_pod().gpus(2).requests("nvidia.com/mig-1g.10gb", "1"), ()),
}


def excluded_products(spec: Json) -> tuple[str, ...]:
    """Return the products that a pod's required node affinity excludes."""
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms", [])
    return products_not_in(terms)


def avoided_products(spec: Json) -> tuple[str, ...]:
    """Return the products that a pod's preferred node affinity avoids."""
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, [])
    assert all(term["weight"] == 100 for term in terms)
    return products_not_in([term["preference"] for term in terms])


def products_not_in(terms: list[Json]) -> tuple[str, ...]:
    rules = [rule for term in terms for rule in term["matchExpressions"]]
    assert all((rule["key"], rule["operator"]) == ("nvidia.com/gpu.product", "NotIn") for rule in rules)
    return tuple(value for rule in rules for value in rule["values"])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_unsuitable_partial_gpus_are_excluded_without_making_the_pod_pending(case: Case) -> None:
    decision = review(case.pod, AUTO, view=view_of(make_namespace("team"), *case.cluster))
    spec = apply_patch(case.pod, decision)["spec"]
    several = sum(int(each["resources"]["limits"].get(GPU, 0)) for each in spec["containers"]) > 1
    assert (excluded_products(spec), avoided_products(spec)) == ((case.want, ()) if several else ((), case.want))


GKE = {"cloud.google.com/gke-accelerator": "nvidia-a100-80gb"}
GKE_NODES = (
    make_node("gke-mig", GKE | {"cloud.google.com/gke-gpu-partition-size": "1g.10gb"}, **{GPU: 14}),
    make_node("gke-whole", GKE, **{GPU: 2}),
)


def test_nodes_of_gke_with_slices_are_excluded_by_their_label() -> None:
    pod = make_pod().gpus(2)
    once = apply_patch(pod, review(pod, AUTO, nodes=GKE_NODES))
    (term,) = once["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]

    assert term["matchExpressions"] == [{"key": "cloud.google.com/gke-gpu-partition-size", "operator": "DoesNotExist"}]
    assert review(once, AUTO, nodes=GKE_NODES).patch == ()
    assert codes(review(pod, AUTO, nodes=GKE_NODES)) == ["audit GPU-I101"]


def test_an_affinity_that_requires_the_label_of_slices_is_still_warned_about() -> None:
    rule = "{key: cloud.google.com/gke-gpu-partition-size, operator: Exists}"
    policy = f"mode: enforce\ninjection: {{tolerations: auto, nodeAffinity: {{required: [{rule}]}}}}"

    assert "warn GPU-T302" in codes(review(make_pod().gpus(2), policy, nodes=GKE_NODES))


def test_labels_of_gke_that_whole_cards_have_too_exclude_nothing() -> None:
    odd = make_node("odd", GKE | {"cloud.google.com/gke-gpu-sharing-strategy": "none"}, **{GPU: 2})

    assert review(make_pod().gpus(2), AUTO, nodes=(*GKE_NODES, odd)).patch == ()


def test_a_second_pass_adds_nothing() -> None:
    for pod in (make_pod().gpus(4), needing("8Gi")):
        once = apply_patch(pod, review(pod, AUTO, nodes=CLUSTER))
        assert excluded_products(once["spec"]) or avoided_products(once["spec"])
        assert review(once, AUTO, nodes=CLUSTER).patch == ()


def test_requirements_of_other_policies_are_considered_first() -> None:
    zoned = make_node("zoned", A100 | {"zone": "a"}, **{GPU: 4})
    elsewhere = "mode: enforce\ninjection: {nodeAffinity: {offer: ignore, required: [RULE]}}".replace(
        "RULE", "{key: zone, operator: NotIn, values: [a]}"
    )
    pod, cluster = make_pod().gpus(2), view_of(make_namespace("team"), SINGLE, SHARED, zoned)
    assert "NotIn" in str(review(pod, AUTO, view=cluster).patch)
    terms = apply_patch(pod, review(pod, AUTO, elsewhere, view=cluster))["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    assert [rule["key"] for rule in terms["nodeSelectorTerms"][0]["matchExpressions"]] == ["zone"]


def test_a_possible_partial_gpu_is_reported_unless_excluded() -> None:
    view = view_of(make_namespace("team"), *FULL)
    assert codes(review(needing("60Gi"), AUTO, view=view)) == ["audit GPU-I101", "warn GPU-T302"]
    assert codes(review(make_pod().gpus(2), AUTO, nodes=CLUSTER)) == ["audit GPU-I101"]
