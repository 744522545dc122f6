"""A slice is chosen only where the pod fits with all other enforced additions."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.engine.decisions import SIZING
from tests.engine.test_workload_review import workload
from tests.example_cluster import A100, MIXED, apply_patch, codes, review, view_of
from webhook.model.decisions import Decision, KeepReason, KeepRequest, OfferChoice

SLICE = "nvidia.com/mig-1g.10gb"
ZONE_B = "injection: {nodeAffinity: {required: [{key: zone, operator: In, values: [b]}]}}"
ON_H1 = "injection: {nodeAffinity: {required: [{key: host, operator: In, values: [h1]}]}}"
DEFAULTS = 'limits: {perGPU: [{resource: cpu, default: "12"}]}'
SCRATCH = "limits: {perContainer: [{resource: ephemeral-storage, default: 1Gi}]}"
SPREAD = "injection: {spread: required}"
FULL = KeepRequest(KeepReason.UNREACHABLE, f"{SLICE}: node s1 has 8 cpu in all, the pod requests 12")
FAR = KeepRequest(KeepReason.UNREACHABLE, f"{SLICE}: node s1 does not match the required node affinity")


def small() -> PodMaker:
    """Return a pod that requests one GPU and needs 8Gi."""
    return make_pod().gpus(1).needs("8Gi")


def of_workload() -> PodMaker:
    """Return the same pod, owned by a Job."""
    return small().label("batch.kubernetes.io/job-name", "train").owned_by("Job", "train")


def slices(name: str, zone: str, free: int = 7, cpu: int = 64) -> Json:
    """Return a node that offers only slices."""
    return make_node(name, MIXED | {"zone": zone, "host": name}, cpu=cpu, **{SLICE: free})


def cards(name: str, zone: str) -> Json:
    """Return a node that offers whole cards."""
    return make_node(name, A100 | {"zone": zone, "host": name}, cpu=64, **{"nvidia.com/gpu": 8})


FREE_IN_A = (slices("s1", "a"), cards("h1", "a"), cards("h2", "b"))
FREE_IN_B = (slices("s1", "a"), slices("s2", "b"), cards("h1", "a"))
FEW_CORES = (slices("s1", "a", cpu=8), cards("h1", "a"))
ROOMY = (slices("s1", "a"), cards("h1", "a"))


class Case(NamedTuple):
    """A pod, the cluster, the sections besides right-sizing, and the expected result."""

    policies: tuple[str, ...]
    nodes: tuple[Json, ...]
    want: KeepRequest | None = None
    pod: PodMaker = small()


def enforced(section: str) -> str:
    return f"mode: enforce\n{section}"


def audit_policy(section: str) -> str:
    return f"mode: warn\n{section}"


CASES = {
    "a required zone without slices": Case((f"{SIZING}\n{ZONE_B}",), FREE_IN_A, FAR),
    "the same, required by another policy": Case((SIZING, enforced(ZONE_B)), FREE_IN_A, FAR),
    "the same zone in audit mode": Case((SIZING, audit_policy(ZONE_B)), FREE_IN_A),
    "a required zone with a slice": Case((SIZING, enforced(ZONE_B)), FREE_IN_B),
    "a required zone without nodes is not added and not considered": Case(
        (SIZING, enforced(ZONE_B)), (slices("s1", "a"), cards("h1", "a"))
    ),
    "two requirements that leave no node: the second is not added and not considered": Case(
        (SIZING, enforced(ZONE_B), enforced(ON_H1)), FREE_IN_B
    ),
    "a default of more CPU than the slices' node has": Case((SIZING, enforced(DEFAULTS)), FEW_CORES, FULL),
    "the same default in audit mode": Case((SIZING, audit_policy(DEFAULTS)), FEW_CORES),
    "a default that the slices' node has": Case((SIZING, enforced(DEFAULTS)), ROOMY),
    "a default that the user's own amount replaces": Case(
        (SIZING, enforced(DEFAULTS)), FEW_CORES, pod=small().requests("cpu", "2")
    ),
    "a default of disk that no node advertises": Case(
        (SIZING, enforced(SCRATCH)),
        ROOMY,
        KeepRequest(KeepReason.UNREACHABLE, f"{SLICE}: node s1 has 0 ephemeral-storage in all, the pod requests 1Gi"),
    ),
    "a required spread that allows the slices' node": Case((SIZING, enforced(SPREAD)), ROOMY, pod=of_workload()),
    "a required spread that the slices' node would violate": Case(
        (SIZING, enforced(SPREAD)),
        (*ROOMY, of_workload().spec(nodeName="s1").build()),
        KeepRequest(KeepReason.TOPOLOGY_SPREAD, SLICE),
        of_workload(),
    ),
    "the same, for a single pod": Case((SIZING, enforced(SPREAD)), ROOMY),
    "the same spread in audit mode": Case((SIZING, audit_policy(SPREAD)), ROOMY, pod=of_workload()),
    "a preferred spread": Case((SIZING, enforced("injection: {spread: preferred}")), ROOMY, pod=of_workload()),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_planned_additions_are_considered_before_right_sizing(case: Case) -> None:
    outcome = review(case.pod, *case.policies, nodes=case.nodes).outcome
    assert outcome == case.want if case.want else isinstance(outcome, OfferChoice)


TEMPLATES = {
    "a Deployment": ("Deployment", "apps/v1", True),
    "a StatefulSet": ("StatefulSet", "apps/v1", True),
    "a Job": ("Job", "batch/v1", True),
    "a CronJob": ("CronJob", "batch/v1", True),
    "a ReplicaSet without owner, whose pods have no known common label": ("ReplicaSet", "apps/v1", False),
}


@pytest.mark.parametrize(("kind", "group", "tied"), TEMPLATES.values(), ids=TEMPLATES)
def test_pods_of_a_template_get_warnings_about_their_spread(kind: str, group: str, tied: bool) -> None:
    nodes = deepcopy(ROOMY)
    for each in nodes:
        del each["metadata"]["labels"]["kubernetes.io/hostname"]  # so that no node satisfies the spread
    decision = review(workload(kind, small(), group, replicas=3), SIZING, enforced(SPREAD), nodes=nodes)
    assert isinstance(decision.outcome, KeepRequest) == tied
    assert (decision.gpu_milli_after == decision.gpu_milli_before) == tied
    assert codes(decision)[0] == ("warn GPU-R103" if tied else "warn GPU-R101")


TRIALS = {
    "a required zone without slices": (ZONE_B, FREE_IN_A, FAR),
    "a default of more CPU than the slices' node has": (DEFAULTS, FEW_CORES, FULL),
    "a default that the slices' node has": (DEFAULTS, ROOMY, None),
}


@pytest.mark.parametrize(("section", "nodes", "want"), TRIALS.values(), ids=TRIALS)
@pytest.mark.parametrize("mode", [enforced, audit_policy])
def test_a_size_in_audit_mode_considers_all_other_additions(
    section: str, nodes: tuple[Json, ...], want: KeepRequest | None, mode: Any
) -> None:
    outcome = review(small(), audit_policy("rightSizing: {}"), mode(section), nodes=nodes).outcome
    assert outcome == want if want else isinstance(outcome, OfferChoice)


def test_no_default_is_considered_if_a_quota_prevents_it() -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "team"},
        "spec": {"hard": {"requests.cpu": "1"}},
    }
    view = view_of(make_namespace("team"), quota, *FEW_CORES)
    assert isinstance(review(small(), SIZING, enforced(DEFAULTS), view=view).outcome, OfferChoice)


def required(pod: PodMaker, decision: Decision) -> list[str]:
    """Return the keys of the required node affinity after the patch."""
    spec = apply_patch(pod, decision)["spec"]
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [rule["key"] for rule in term["matchExpressions"]]


def number(operator: str) -> str:
    return f'injection: {{nodeAffinity: {{required: [{{key: number, operator: {operator}, values: ["5"]}}]}}}}'


NUMBERED = tuple(make_node(f"n{each}", A100 | {"number": each}, **{"nvidia.com/gpu": 8}) for each in ("3", "7"))
JOINT = {
    "a zone, and a host of another": ((ZONE_B, ON_H1), (cards("h1", "a"), cards("h2", "b")), ["zone"]),
    "more than a number, and less": ((number("Gt"), number("Lt")), NUMBERED, ["number"]),
    "a zone, and a host of it": ((ZONE_B, ON_H1), (cards("h1", "b"), cards("h2", "a")), ["zone", "host"]),
}


@pytest.mark.parametrize(("sections", "nodes", "want"), JOINT.values(), ids=JOINT)
def test_requirements_of_several_policies_leave_at_least_one_node(
    sections: tuple[str, str], nodes: tuple[Json, ...], want: list[str]
) -> None:
    pod = make_pod().gpus(1)
    decision = review(pod, *map(enforced, sections), nodes=nodes)
    assert required(pod, decision) == want
    assert ("warn GPU-I102" in codes(decision)) is (len(want) == 1)


def test_a_slice_and_other_requirements_share_a_node() -> None:
    decision = review(small(), SIZING, enforced(ZONE_B), enforced(ON_H1), nodes=FREE_IN_B)
    assert "zone" in required(small(), decision)
    assert "host" not in required(small(), decision)
    assert "warn GPU-I102" in codes(decision)


IMAGE = "nvidia/cuda:12.4.1-base-ubuntu22.04"
OLD = {"nvidia.com/cuda.driver-version.full": "470.82.01", "nvidia.com/cuda.runtime-version.major": "11"}
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.compute.major": "9", "zone": "a"}
AMPERE = {"family": "ampere", "zone": "a"}
ON_AMPERE = "injection: {nodeAffinity: {required: [{key: family, operator: In, values: [ampere]}]}}"
WHOLE, PART = {"nvidia.com/gpu": 4}, {SLICE: 7}

SECOND_LOOKS = {
    "the zone required has only cards as old as the slices": Case(
        (f"{SIZING}\n{ZONE_B}",),
        (
            make_node("new", A100 | H100, cpu=64, **WHOLE),
            make_node("old", MIXED | OLD | {"zone": "b"}, **WHOLE, **PART),
        ),
        KeepRequest(KeepReason.DRIVER, SLICE),
        small().image(IMAGE),
    ),
    "the zone required has only slices, which have no free capacity": Case(
        (SIZING, enforced(ZONE_B), enforced(ON_AMPERE)),
        (
            slices("b", "b", cpu=1),
            make_node("s", MIXED | AMPERE, cpu=64, **PART),
            make_node("h", A100 | AMPERE, cpu=64, **WHOLE),
        ),
        pod=small().requests("cpu", "2"),
    ),
    "the zone required has a node that is too small for the pod": Case(
        (SIZING, enforced(ZONE_B), enforced(ON_AMPERE)),
        (
            make_node("b", MIXED | {"zone": "b"}, cpu=1, **WHOLE, **PART),
            make_node("s", MIXED | AMPERE, cpu=64, **PART),
            make_node("h", A100 | AMPERE, cpu=64, **WHOLE),
        ),
        pod=small().requests("cpu", "2"),
    ),
    "the same, where the requirement also matches other nodes with cards": Case(
        (SIZING, enforced(ZONE_B), enforced(ON_AMPERE)),
        (
            make_node("b", MIXED | AMPERE | {"zone": "b"}, cpu=1, **PART),
            make_node("s", MIXED | AMPERE, cpu=64, **PART),
            make_node("h", A100 | AMPERE, cpu=64, **WHOLE),
        ),
        KeepRequest(KeepReason.UNREACHABLE, f"{SLICE}: node b has 1 cpu in all, the pod requests 2"),
        small().requests("cpu", "2"),
    ),
}


@pytest.mark.parametrize("case", SECOND_LOOKS.values(), ids=SECOND_LOOKS)
def test_a_second_pass_changes_nothing(case: Case) -> None:
    first = review(case.pod, *case.policies, nodes=case.nodes)
    again = review(apply_patch(case.pod, first), *case.policies, nodes=case.nodes)
    assert first.outcome == case.want if case.want else isinstance(first.outcome, OfferChoice)
    assert again.patch == ()


GPU, LINKED = "nvidia.com/gpu", "topology: {nvlink: required}"
H100S, L40S = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, {"nvidia.com/gpu.product": "NVIDIA-L40S"}
IN_A, IN_B = H100S | {"zone": "a"}, L40S | {"zone": "b"}


def with_slice() -> PodMaker:
    """Return a pod with two whole cards in one container and a slice in another."""
    return make_pod().gpus(2).container("b", resources={"limits": {SLICE: "1"}})


def running_pod(node: str) -> Json:
    """Return a pod that uses all cards of a node."""
    return make_pod("busy").gpus(4).spec(nodeName=node).build() | {"status": {"phase": "Running"}}


def both(name: str, cpu: int) -> Json:
    """Return a node with NVLink between its cards, and with slices."""
    return make_node(name, MIXED | H100S, cpu=cpu, **WHOLE, **PART)


DEFAULTED = {
    "the node with NVLink has too few cores for the default": (
        make_pod().gpus(2),
        LINKED,
        (make_node("h", IN_A, cpu=8, **WHOLE), make_node("l", IN_B, cpu=64, **WHOLE)),
        [],
    ),
    "it is full, and the default is too large for the node with free capacity": (
        make_pod().gpus(2),
        LINKED,
        (make_node("h", IN_A, cpu=64, **WHOLE), running_pod("h"), make_node("l", IN_B, cpu=8, **WHOLE)),
        ["24"],
    ),
    "the same, where a zone is required": (
        make_pod().gpus(2),
        ZONE_B,
        (make_node("l", IN_B, cpu=64, **WHOLE), running_pod("l"), make_node("h", IN_A, cpu=8, **WHOLE)),
        ["24"],
    ),
    "two resource names, and the node with both has too few cores": (
        with_slice(),
        LINKED,
        (both("h", 30), make_node("l", MIXED | IN_B, cpu=64, **WHOLE, **PART)),
        [],
    ),
    "two resource names, each on its own node": (
        with_slice(),
        LINKED,
        (make_node("h", IN_A, cpu=64, **WHOLE), make_node("s", MIXED | L40S, cpu=64, **PART), both("both", 30)),
        [],
    ),
    "two resource names, with capacity for both": (with_slice(), LINKED, (both("h", 64),), ["24", "12"]),
}


@pytest.mark.parametrize(("pod", "section", "nodes", "want"), DEFAULTED.values(), ids=DEFAULTED)
def test_defaults_are_evaluated_on_the_nodes_that_the_pod_is_restricted_to(
    pod: PodMaker, section: str, nodes: tuple[Json, ...], want: list[str]
) -> None:
    policies = (enforced(DEFAULTS), enforced(section))
    after = apply_patch(pod, review(pod, *policies, nodes=nodes))
    requests = [each["resources"].get("requests", {}) for each in after["spec"]["containers"]]
    assert [each["cpu"] for each in requests if "cpu" in each] == want
    assert review(after, *policies, nodes=nodes).patch == ()
