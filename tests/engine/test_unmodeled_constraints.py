"""A pod with constraints that the view does not model is unchanged if a slice might make it wait."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.example_cluster import mig_node, review, whole_node
from webhook.model.decisions import KeepReason, KeepRequest, OfferChoice

SIZING = "mode: enforce\nrightSizing: {}"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
BY_INDEX = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": {"apps.kubernetes.io/pod-index": "0"}},
}

NO_LABEL = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": {"app": "a"}},
    "namespaceSelector": {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]},
}


def small() -> PodMaker:
    """Return a pod that requests one GPU and needs 8Gi."""
    return make_pod().gpus(1).needs("8Gi")


TIES = {
    "affinity to pods by their index": (
        small().spec(affinity={"podAffinity": {REQUIRED: [BY_INDEX]}}),
        "affinity or spread between pods",
    ),
    "affinity to pods of namespaces without a label, which versions of the scheduler select differently": (
        small().spec(affinity={"podAffinity": {REQUIRED: [NO_LABEL]}}),
        "affinity or spread between pods",
    ),
    "a spread of pods by their index": (
        small().spec(
            topologySpreadConstraints=[{**BY_INDEX, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
        ),
        "affinity or spread between pods",
    ),
    "a disk that it names without a claim": (
        small().spec(volumes=[{"name": "a", "iscsi": {"targetPortal": "10.0.0.1", "iqn": "i", "lun": 0}}]),
        "a disk without a volume claim",
    ),
    "terms of affinity that are too large": (
        small().spec(affinity={"podAntiAffinity": {REQUIRED: [BY_INDEX | {"namespaces": ["x" * 60] * 80}]}}),
        "affinity or spread between pods",
    ),
}


@pytest.mark.parametrize(("pod", "tie"), TIES.values(), ids=TIES)
def test_a_pod_with_unmodeled_constraints_is_unchanged(pod: PodMaker, tie: str) -> None:
    nodes = (whole_node(), mig_node())
    outcome = review(pod, SIZING, nodes=nodes).outcome
    assert isinstance(outcome, KeepRequest)
    assert (outcome.reason, outcome.detail) == (KeepReason.UNMODELED_CONSTRAINT, tie)
    assert isinstance(review(pod, "mode: enforce\nrightSizing: {whenFull: wait}", nodes=nodes).outcome, OfferChoice)


LOOSE = {
    "volumes that every node has": small().spec(
        volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {}}]
    ),
    "preferred affinity": small().spec(
        affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    ),
    "a preferred spread": small().spec(
        topologySpreadConstraints=[{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
    ),
    "a container port": small().container("web", ports=[{"containerPort": 80}]),
    "a host port": small().container("web", ports=[{"containerPort": 80, "hostPort": 80}]),
    "CPU and memory": small().requests("cpu", "1").requests("memory", "1Gi"),
}


@pytest.mark.parametrize("pod", LOOSE.values(), ids=LOOSE)
def test_a_pod_that_may_run_anywhere_is_right_sized(pod: PodMaker) -> None:
    assert isinstance(review(pod, SIZING, nodes=(whole_node(), mig_node())).outcome, OfferChoice)


DISK, PAGES, RDMA = "ephemeral-storage", "hugepages-2Mi", "rdma/hca"
OTHERS = {
    "disk": (small().requests(DISK, "10Gi"), DISK),
    "another extended resource": (small().requests(RDMA, "1"), RDMA),
    "huge pages of the pod as a whole": (
        small().spec(resources={"requests": {PAGES: "4Mi"}, "limits": {PAGES: "4Mi"}}),
        PAGES,
    ),
    "disk in the overhead of its runtime": (small().spec(overhead={DISK: "10Gi"}), DISK),
}


def slices_with(name: str, amount: str) -> Json:
    """Return a node with slices, and an amount of another resource."""
    node = mig_node()
    node["status"]["allocatable"][name] = amount
    return node


@pytest.mark.parametrize(("pod", "name"), OTHERS.values(), ids=OTHERS)
def test_a_pod_is_right_sized_where_its_other_resources_are_free(pod: PodMaker, name: str) -> None:
    for nodes, fits in (
        ((slices_with(name, "100Gi"),), True),
        ((slices_with(name, "0"),), False),
        ((mig_node(), make_node("cpu", {}, **{name: 1 << 40})), False),
    ):
        outcome = review(pod, SIZING, nodes=(whole_node(), *nodes)).outcome
        assert isinstance(outcome, OfferChoice) is fits
        if isinstance(outcome, KeepRequest):
            assert outcome.reason is KeepReason.UNREACHABLE
            assert outcome.detail.startswith(f"nvidia.com/mig-1g.10gb: node mig has 0 {name} in all, the pod requests ")


def test_disk_that_other_pods_hold_or_wait_for_is_not_free() -> None:
    nodes, pod = (whole_node(), slices_with(DISK, "15Gi")), small().requests(DISK, "10Gi")
    other = make_pod("other").requests(DISK, "6Gi")
    waiting = make_pod("waiting").requests("nvidia.com/mig-1g.10gb", "1").requests(DISK, "6Gi").build()
    for running in (other.spec(nodeName="mig").build(), waiting):
        outcome = review(pod, SIZING, nodes=(*nodes, running)).outcome
        assert isinstance(outcome, KeepRequest)
        assert outcome.reason is KeepReason.NO_FREE_CAPACITY
    elsewhere = make_pod("other").requests(DISK, "6Gi").spec(nodeName="whole").build()
    assert isinstance(review(pod, SIZING, nodes=(*nodes, elsewhere)).outcome, OfferChoice)


def test_a_node_at_its_pod_limit_offers_no_slice() -> None:
    full = mig_node()
    full["status"]["allocatable"]["pods"] = "1"
    running = make_pod("other").spec(nodeName="mig").build() | {"status": {"phase": "Running"}}
    assert review(small(), SIZING, nodes=(full, running)).outcome == KeepRequest(
        KeepReason.NO_FREE_CAPACITY, "nvidia.com/mig-1g.10gb: node mig accepts no further pod (of 1)"
    )
    assert isinstance(review(small(), SIZING, nodes=(full,)).outcome, OfferChoice)


@pytest.mark.parametrize("compute", ["101%", "0%", "abc", "0.2", "-5%", ""])
def test_an_invalid_compute_need_is_no_evidence(compute: str) -> None:
    pod = small().annotate("rightslice.dev/gpu-compute", compute)
    decision = review(pod, SIZING, nodes=(mig_node(),))
    assert isinstance(decision.outcome, KeepRequest)
    assert "GPU-R104" in [finding.code for finding in decision.warnings]


def test_pod_level_resources_count_against_limits() -> None:
    policy = 'mode: enforce\nlimits: {perPod: [{resource: cpu, max: "50"}]}'
    for extra in ({"resources": {"limits": {"cpu": "100"}}}, {"overhead": {"cpu": "100"}}):
        denials = review(make_pod().gpus(1).spec(**extra), policy, nodes=(make_node("n"),)).denials
        assert [finding.code for finding in denials] == ["GPU-L103"]
