"""The limits of a policy: for a pod, a container, and each GPU."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.example_cluster import (
    A100,
    NO_USAGE,
    NOW,
    apply_patch,
    codes,
    mig_node,
    policies_of,
    policy,
    request_of,
    review,
    view_of,
    whole_node,
)
from webhook.engine.decide import decide
from webhook.model.cluster_view import ClusterView
from webhook.model.field_paths import format_path

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
CHOICES = f"mode: enforce\nlimits: {{perPod: [{{resource: {GPU}, allowed: [1, 2, 4, 8]}}]}}"
PER_CONTAINER = "mode: enforce\nlimits: {perContainer: [{resource: memory, min: 1Gi, max: 64Gi}]}"
PER_GPU = 'mode: enforce\nlimits: {perGPU: [{resource: cpu, max: "12"}]}'
GLOB = 'mode: enforce\nlimits: {perPod: [{resource: "nvidia.com/mig-*", max: 2}]}'


MEMORY = "mode: enforce\nlimits: {perPod: [{resource: memory, max: 64Gi}]}"
FOREIGN = 'mode: enforce\nlimits: {perPod: [{resource: "example.com/*", max: 1}]}'
EACH_FOREIGN = 'mode: enforce\nlimits: {perContainer: [{resource: "example.com/*", max: 1}]}'
EACH_GPU = f"mode: enforce\nlimits: {{perContainer: [{{resource: {GPU}, max: 1}}]}}"


def with_init(pod: PodMaker, name: str, resource: str, amount: str, *, sidecar: bool = False) -> PodMaker:
    """Add an init container, or a sidecar."""
    extra = {"restartPolicy": "Always"} if sidecar else {}
    amounts = {resource: amount}
    return pod.container(name, kind="initContainers", resources={"limits": amounts, "requests": amounts}, **extra)


def with_sidecars(pod: PodMaker, count: int, resource: str, amount: str) -> PodMaker:
    """Add a number of sidecars."""
    for index in range(count):
        pod = with_init(pod, f"side-{index}", resource, amount, sidecar=True)
    return pod


class Case(NamedTuple):
    policy: str
    pod: PodMaker
    want: list[str]
    words: str = ""


CASES = {
    "an allowed number": Case(CHOICES, make_pod().gpus(4), []),
    "three is not allowed, two and four are nearest": Case(
        CHOICES, make_pod().gpus(3), ["enforce GPU-L102"], "must be one of 1, 2, 4, 8 (found 3). Write 4, or 2."
    ),
    "no request violates no limit": Case(CHOICES, make_pod().requests("cpu", "3"), []),
    "two containers count together": Case(
        CHOICES,
        make_pod().gpus(1).container("b", resources={"limits": {GPU: "2"}}),
        ["enforce GPU-L102"],
    ),
    "a container over its ceiling": Case(
        PER_CONTAINER,
        make_pod().gpus(1).requests("memory", "65Gi"),
        ["enforce GPU-L103"],
        "spec.containers[0].resources.limits.memory: memory must be at most 64Gi (found 65Gi). Write 64Gi.",
    ),
    "a container under its floor": Case(
        PER_CONTAINER,
        make_pod().gpus(1).requests("memory", "512Mi"),
        ["enforce GPU-L101"],
        "at least 1Gi (found 512Mi)",
    ),
    "a ceiling grows with the GPUs": Case(PER_GPU, make_pod().gpus(2).requests("cpu", "24"), []),
    "over the ceiling of two GPUs": Case(
        PER_GPU,
        make_pod().gpus(2).requests("cpu", "25"),
        ["enforce GPU-L103"],
        "a pod's cpu must be at most 24 (2 GPUs) (found 25). Write 24.",
    ),
    "a pod without GPUs has no ceiling per GPU": Case(PER_GPU, make_pod().requests("cpu", "99"), []),
    "a glob matches every profile": Case(
        GLOB, make_pod().requests("nvidia.com/mig-1g.10gb", "3"), ["enforce GPU-L103"]
    ),
    "sidecars run with the main container": Case(
        MEMORY,
        with_sidecars(make_pod().gpus(1).requests("memory", "64Gi"), 3, "memory", "64Gi"),
        ["enforce GPU-L103"],
        "a pod's memory must be at most 64Gi (found 256Gi). Write 64Gi.",
    ),
    "with overhead too": Case(
        MEMORY,
        with_sidecars(make_pod().gpus(1).requests("memory", "64Gi"), 3, "memory", "64Gi").spec(overhead={"cpu": "1m"}),
        ["enforce GPU-L103"],
        "(found 256Gi)",
    ),
    "sidecars within the ceiling": Case(
        MEMORY, with_sidecars(make_pod().gpus(1).requests("memory", "16Gi"), 3, "memory", "16Gi"), []
    ),
    "init containers run before the main container": Case(
        MEMORY, with_init(make_pod().gpus(1).requests("memory", "64Gi"), "i", "memory", "64Gi"), []
    ),
    "an init container runs with the sidecars before it": Case(
        MEMORY,
        with_init(with_sidecars(make_pod().gpus(1), 1, "memory", "32Gi"), "i", "memory", "33Gi"),
        ["enforce GPU-L103"],
        "(found 65Gi)",
    ),
    "one container's limit and another's request": Case(
        MEMORY,
        make_pod().gpus(1).requests("memory", "40Gi").container("b", resources={"requests": {"memory": "40Gi"}}),
        ["enforce GPU-L103"],
        "(found 80Gi)",
    ),
    "the same with overhead": Case(
        MEMORY,
        make_pod()
        .gpus(1)
        .container("a", resources={"limits": {"memory": "40Gi"}, "requests": {"memory": "1Gi"}})
        .container("b", resources={"requests": {"memory": "40Gi"}})
        .spec(overhead={"cpu": "1m"}),
        ["enforce GPU-L103"],
        "(found 80Gi)",
    ),
    "a glob covers a resource that only an init container sets": Case(
        FOREIGN,
        with_init(make_pod().gpus(1), "i", "example.com/fpga", "2"),
        ["enforce GPU-L103"],
        "spec.initContainers[0].resources.limits",
    ),
    "a glob covers a resource that only sidecars set": Case(
        FOREIGN, with_sidecars(make_pod().gpus(1), 2, "example.com/fpga", "1"), ["enforce GPU-L103"], "(found 2)"
    ),
    "each sidecar within its ceiling": Case(
        EACH_FOREIGN, with_sidecars(make_pod().gpus(1), 2, "example.com/fpga", "1"), []
    ),
    "an init container over its ceiling": Case(
        EACH_FOREIGN, with_init(make_pod().gpus(1), "i", "example.com/fpga", "2"), ["enforce GPU-L103"]
    ),
    "a sidecar over its ceiling": Case(
        EACH_FOREIGN, with_sidecars(make_pod().gpus(1), 1, "example.com/fpga", "2"), ["enforce GPU-L103"]
    ),
    "a sidecar over its ceiling of GPUs": Case(
        EACH_GPU, with_sidecars(make_pod().gpus(1), 1, GPU, "2"), ["enforce GPU-L103"], "spec.initContainers[0]"
    ),
    "a ceiling per GPU covers sidecars": Case(
        PER_GPU,
        with_sidecars(make_pod().gpus(2).requests("cpu", "12"), 2, "cpu", "8"),
        ["enforce GPU-L103"],
        "a pod's cpu must be at most 24 (2 GPUs) (found 28). Write 24.",
    ),
    "the GPU of a sidecar raises that ceiling": Case(
        PER_GPU, with_sidecars(make_pod().gpus(2).requests("cpu", "36"), 1, GPU, "1"), []
    ),
    "an unknown NVIDIA resource counts for the pod": Case(
        'mode: enforce\nlimits: {perPod: [{resource: "nvidia.com/*", max: 1000}]}',
        make_pod().gpus(1).requests("nvidia.com/gpumem", "5000"),
        ["enforce GPU-L103"],
        "a pod's nvidia.com/gpumem must be at most 1000 (found 5000). Write 1000.",
    ),
    "audit mode reports nothing to the user": Case(
        f"limits: {{perPod: [{{resource: {GPU}, max: 1}}]}}", make_pod().gpus(2), ["audit GPU-L103"]
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_limits(case: Case) -> None:
    decision = review(case.pod, case.policy)
    assert codes(decision) == case.want
    assert all(case.words in str(finding) for finding in decision.findings)


def test_the_strictest_of_two_limits_applies() -> None:
    loose = f"mode: enforce\nlimits: {{perPod: [{{resource: {GPU}, max: 8}}]}}"
    tight = f"mode: enforce\nlimits: {{perPod: [{{resource: {GPU}, max: 2}}]}}"
    denials = review(make_pod().gpus(4), loose, tight).denials
    assert [(finding.code, finding.policy) for finding in denials] == [("GPU-L103", "test-1")]


DEFAULTS = (
    'mode: enforce\nlimits: {perGPU: [{resource: cpu, default: "8"}], perContainer: [{resource: memory, default: 4Gi}]}'
)


def test_defaults_apply_to_containers_that_request_gpus_and_set_no_amount() -> None:
    pod = make_pod().gpus(2).container("side", resources={})
    after = apply_patch(pod, review(pod, DEFAULTS))["spec"]["containers"]
    assert after[0]["resources"]["requests"] == {GPU: "2", "cpu": "16", "memory": "4Gi"}
    assert after[1]["resources"] == {}


def test_a_default_never_replaces_what_the_user_wrote() -> None:
    pod = make_pod().gpus(1).requests("cpu", "2")
    after = apply_patch(pod, review(pod, DEFAULTS))["spec"]["containers"][0]["resources"]["requests"]
    assert after["cpu"] == "2"


LARGEST, SMALLER = whole_node(), make_node("small", A100, **{GPU: 8, "cpu": 12})
BEARABLE: dict[str, tuple[int, ClusterView, bool]] = {
    "it fits": (8, view_of(make_namespace("team"), LARGEST), True),
    "more than any node has": (8, view_of(make_namespace("team"), SMALLER), False),
    "it does not fit now, and fits without": (2, view_of(make_namespace("team"), SMALLER), False),
    "it fits neither with nor without now": (
        2,
        view_of(make_namespace("team"), LARGEST, make_pod("x").gpus(8).spec(nodeName="whole").build()),
        True,
    ),
    "no node is known": (8, view_of(make_namespace("team")), True),
}


@pytest.mark.parametrize(("gpus", "view", "given"), BEARABLE.values(), ids=BEARABLE)
def test_a_default_is_set_if_the_pod_still_fits(gpus: int, view: ClusterView, given: bool) -> None:
    assert bool(review(make_pod().gpus(gpus), DEFAULTS, view=view).patch) is given


AS_A_WHOLE = {
    "a limit of the whole pod, below the default": ({"limits": {"cpu": "2"}}, {GPU: "1", "memory": "4Gi"}),
    "a request of the whole pod": ({"requests": {"memory": "1Gi"}}, {GPU: "1", "cpu": "8"}),
    "limit and request of the whole pod": (
        {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
        {GPU: "1"},
    ),
    "another resource": ({"limits": {"hugepages-2Mi": "4Mi"}}, {GPU: "1", "cpu": "8", "memory": "4Gi"}),
}


@pytest.mark.parametrize(("whole", "want"), AS_A_WHOLE.values(), ids=AS_A_WHOLE)
def test_no_default_with_a_pod_level_amount(whole: Json, want: Json) -> None:
    pod = make_pod().gpus(1).spec(resources=whole)
    assert apply_patch(pod, review(pod, DEFAULTS))["spec"]["containers"][0]["resources"]["requests"] == want


def test_no_default_if_a_quota_could_reject_it() -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "team"},
        "spec": {"hard": {"requests.cpu": "1"}},
    }
    view = view_of(make_namespace("team"), quota)
    assert review(make_pod().gpus(1), DEFAULTS, view=view).patch == ()


def test_accounting_requests_thousandths_for_every_gpu() -> None:
    policy = "mode: enforce\nlimits: {accounting: native, accountingScheduler: configured}\nrightSizing: {}"
    pod = make_pod().gpus(1).needs("8Gi")
    limits = apply_patch(pod, review(pod, policy, nodes=(mig_node(),)))["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/mig-1g.10gb": "1", "rightslice.dev/gpu-milli": "143"}


def test_accounting_of_whole_gpus() -> None:
    pod = make_pod().gpus(2)
    decision = review(
        pod, "mode: enforce\nlimits: {accounting: native, accountingScheduler: configured}", nodes=(whole_node(),)
    )
    limits = apply_patch(pod, decision)["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {GPU: "2", "rightslice.dev/gpu-milli": "2000"}


def test_a_quota_rejection_names_the_quota_and_what_would_fit() -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": "team"},
        "spec": {"hard": {f"requests.{GPU}": "4"}},
        "status": {"hard": {f"requests.{GPU}": "4"}, "used": {f"requests.{GPU}": "3"}},
    }
    view = view_of(make_namespace("team"), quota, whole_node())
    decision = review(make_pod().gpus(2), "mode: enforce\nlimits: {}", view=view)
    assert codes(decision) == ["enforce GPU-Q301"]
    assert "1 would fit" in decision.findings[0].message
    assert review(make_pod().gpus(2), "mode: enforce\nlimits: {resourceQuotas: ignore}", view=view).findings == ()


def test_injected_gpus_violate_no_limit() -> None:
    note = f"LimitRanger plugin set: {GPU} request for container side; {GPU} limit for container side"
    resources = {"limits": {GPU: "4"}, "requests": {GPU: "4"}}
    pod = make_pod().gpus(1).container("side", resources=resources).annotate("kubernetes.io/limit-ranger", note)
    limit_range = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "lr", "namespace": "team"},
        "spec": {"limits": [{"type": "Container", "max": {GPU: "4"}}]},
    }
    assert codes(review(pod, CHOICES, nodes=(limit_range,))) == ["warn GPU-L202"]
    assert codes(review(pod, CHOICES)) == ["enforce GPU-L102"], "a forged annotation alone changes nothing"


HELD = view_of(
    make_namespace("team"),
    {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "lr", "namespace": "team"},
        "spec": {"limits": [{"type": "Container", "max": {GPU: "4"}}]},
    },
)
NOTED = f"LimitRanger plugin set: {GPU} request for container main; {GPU} limit for container main"


@pytest.mark.parametrize("rule", ["perPod", "perContainer"])
def test_injected_gpus_with_a_requesting_init_container_violate_no_limit(rule: str) -> None:
    pod = with_init(make_pod().gpus(4), "i", GPU, "1").annotate("kubernetes.io/limit-ranger", NOTED)
    policy = limits(rule, f"resource: {GPU}, max: 1")
    assert codes(review(pod, policy, view=HELD)) == ["warn GPU-L202"]
    assert codes(review(pod, policy)) == ["enforce GPU-L103"], "nothing is injected without a LimitRange"


def test_a_cached_result_for_injected_gpus_is_not_used_for_requested_ones() -> None:
    policies = policies_of(policy(limits("perContainer", f"resource: {GPU}, max: 1")))
    requesting = with_init(make_pod().gpus(4), "i", GPU, "4")
    annotation = f"{NOTED}; {GPU} request for init container i; {GPU} limit for init container i"
    found = [
        codes(decide(request_of(pod.build()), policies, HELD, NO_USAGE, NOW))
        for pod in (
            with_init(make_pod().gpus(4), "i", GPU, "4").annotate("kubernetes.io/limit-ranger", annotation),
            requesting,
        )
    ]
    assert "enforce GPU-L103" not in found[0]
    assert found[1] == ["enforce GPU-L103", "enforce GPU-L103"]


def limits(scope: str, rule: str, mode: str = "enforce") -> str:
    return f"mode: {mode}\nlimits: {{{scope}: [{{{rule}}}]}}"


TOGETHER = {
    "choices below another's ceiling": (
        (limits("perPod", f"resource: {GPU}, allowed: [1, 2, 4, 8]"), limits("perPod", f"resource: {GPU}, max: 4")),
        make_pod().gpus(5),
        ["Write 4."],
    ),
    "choices that two policies have in common": (
        (
            limits("perPod", f"resource: {GPU}, allowed: [1, 2, 4, 8]"),
            limits("perPod", f"resource: {GPU}, allowed: [1, 3, 8]"),
        ),
        make_pod().gpus(2),
        ["Write 8, or 1."],
    ),
    "the lowest of two ceilings": (
        (limits("perPod", f"resource: {GPU}, max: 6"), limits("perPod", f"resource: {GPU}, max: 2")),
        make_pod().gpus(8),
        ["Write 2."],
    ),
    "a ceiling for the pod and one for its only container": (
        (limits("perPod", f"resource: {GPU}, max: 6"), limits("perContainer", f"resource: {GPU}, max: 2")),
        make_pod().gpus(8),
        ["Write 2."],
    ),
    "a ceiling for the pod and one for each GPU": (
        (limits("perPod", "resource: cpu, max: 30"), limits("perGPU", "resource: cpu, max: 12")),
        make_pod().gpus(2).requests("cpu", "40"),
        ["Write 24."],
    ),
    "one forbids what the other requires": (
        (limits("perPod", f"resource: {GPU}, max: 2"), limits("perPod", f"resource: {GPU}, min: 4")),
        make_pod().gpus(3),
        ["No amount satisfies every policy: ask the admin."],
    ),
    "one in audit mode": (
        (
            limits("perPod", f"resource: {GPU}, allowed: [1, 2, 4]"),
            limits("perPod", f"resource: {GPU}, max: 1", "audit"),
        ),
        make_pod().gpus(3),
        ["Write 4, or 2.", "Write 1."],
    ),
}


@pytest.mark.parametrize(("policies", "pod", "fixes"), TOGETHER.values(), ids=TOGETHER)
def test_the_fix_satisfies_every_section(policies: tuple[str, ...], pod: PodMaker, fixes: list[str]) -> None:
    found = review(pod, *policies).findings
    assert list(dict.fromkeys(finding.fix for finding in found)) == fixes


POD_CPU = limits("perPod", "resource: cpu, max: 4")
FIELDS = {
    "the first container that names it": (
        make_pod().gpus(1).container("b", resources={"limits": {"cpu": "9"}}),
        "spec.containers[1].resources.limits.cpu",
    ),
    "a request alone": (
        make_pod().gpus(1).container("b", resources={"requests": {"cpu": "9"}}),
        "spec.containers[1].resources.requests.cpu",
    ),
    "the pod level": (
        make_pod().gpus(1).spec(resources={"limits": {"cpu": "9"}}),
        "spec.resources.limits.cpu",
    ),
    "an init container": (
        make_pod().gpus(1).spec(initContainers=[{"name": "i", "resources": {"limits": {"cpu": "9"}}}]),
        "spec.initContainers[0].resources.limits.cpu",
    ),
    "overhead": (make_pod().gpus(1).spec(overhead={"cpu": "9"}), "spec.overhead.cpu"),
}


@pytest.mark.parametrize(("pod", "field"), FIELDS.values(), ids=FIELDS)
def test_a_violation_of_a_total_names_a_field_that_adds_to_it(pod: PodMaker, field: str) -> None:
    [finding] = review(pod, POD_CPU).findings
    assert format_path(finding.path) == field


@pytest.mark.parametrize(("count", "denials"), [("1", 0), ("2", 1)])
def test_two_time_sliced_shares_of_one_pod_are_denied_where_a_policy_allows_one(count: str, denials: int) -> None:
    """A second share adds no memory and no guaranteed compute."""
    shared = {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED", "nvidia.com/gpu.replicas": "4"}
    node = make_node("sliced", shared | {"nvidia.com/gpu.sharing-strategy": "time-slicing"}, **{SHARED: 16})
    one = f"mode: enforce\nlimits: {{perPod: [{{resource: {SHARED}, max: 1}}]}}"
    decision = review(make_pod().requests(SHARED, count), one, nodes=(node,))

    assert len(decision.denials) == denials
