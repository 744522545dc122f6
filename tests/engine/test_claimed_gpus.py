"""Limits and the matching of policies count GPUs of claims and device classes as GPUs that are requested by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.device_builders import AMD, NVIDIA, amd_gpu, card, device_class, mig_device, resource_slice, without_profile
from tests.engine.test_workload_review import workload
from tests.example_cluster import GPU_TAINT, mig_node, review, tainted, view_of
from webhook.model.decisions import Decision, OfferChoice
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import format_path

PREFIX = "deviceclass.resource.kubernetes.io/"
TYPE = f"device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type"
SHARED = {"allowMultipleAllocations": True}
CLASSES = [
    device_class("gpu", f"{TYPE} == 'gpu'"),
    device_class("mig", f"{TYPE} == 'mig'", "example.com/slice"),
    device_class("amd", f"device.driver == '{AMD}'"),
    device_class("nic", "device.driver == 'dra.net'"),
    device_class("later", "duration('1h') < duration('1m')"),
]
DEVICES = [
    *(card(f"gpu-{i}") for i in range(2)),
    mig_device("mig-0", "1g.10gb", "GPU-0"),
    mig_device("mig-1", "1g.10gb+me", "GPU-0"),
    mig_device("mig-2", "3g.40gb", "GPU-0", memory=40448),
    card("shared-0", "NVIDIA A10", memory="24Gi") | SHARED,
]
CLUSTER = [
    make_node("n"),
    make_node("m"),
    resource_slice("n", NVIDIA, "n", nodeName="n", devices=DEVICES),
    resource_slice("m", AMD, "m", nodeName="m", devices=[amd_gpu("a", "0000:0c:00.0"), amd_gpu("b", "1", "cpx_nps1")]),
    *CLASSES,
]


def exactly(device_class: str, profile: str = "", name: str = "g", **fields: Any) -> Json:
    """Return a request for a device of a class, or of a MIG profile."""
    selector = {"cel": {"expression": f"device.attributes['{NVIDIA}'].profile == '{profile}'"}}
    return {
        "name": name,
        "exactly": {"deviceClassName": device_class, "selectors": [selector] * bool(profile)} | fields,
    }


def first(*choices: Json) -> Json:
    """Return a request for the first device that is available."""
    return {"name": "g", "firstAvailable": [one["exactly"] | {"name": f"s{i}"} for i, one in enumerate(choices)]}


NOT_SHARED = {"cel": {"expression": "!device.allowMultipleAllocations"}}
GPU = exactly("gpu", selectors=[NOT_SHARED])


def claim(kind: str, *requests: Json, name: str = "t") -> Json:
    """Return a claim or a template."""
    spec: Json = {"devices": {"requests": list(requests)}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name, "namespace": "team"}}
    return about | {"spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec}


def claiming(*templates: str, **uses: str) -> PodMaker:
    """Return a pod with a claim of each template, which its container uses."""
    pod = make_pod().namespace("team")
    pod.main.setdefault("resources", {})["claims"] = [{"name": name} | uses for name in templates]
    return pod.spec(resourceClaims=[{"name": name, "resourceClaimTemplateName": name} for name in templates])


def limits(*rules: str, of: str = "perPod", mode: str = "enforce") -> str:
    """Return a policy with limits of one kind."""
    return f"mode: {mode}\nlimits: {{{of}: [{', '.join(rules)}]}}"


def decide_on(pod: PodMaker | Json, policy: str, *more: Json) -> Decision:
    return review(pod, policy, view=view_of(*CLUSTER, *more))


def codes(decision: Decision) -> list[str]:
    """Return the codes of limits."""
    return [each.code for each in decision.findings if each.code.startswith("GPU-L")]


COUNTED: dict[str, tuple[Json, dict[str, int]]] = {
    "whole GPUs": (exactly("gpu", count=3, selectors=[NOT_SHARED]), {"nvidia.com/gpu": 3}),
    "a MIG device": (exactly("mig", "1g.10gb"), {"nvidia.com/mig-1g.10gb": 1}),
    "a MIG device with media engines": (exactly("mig", "1g.10gb+me"), {"nvidia.com/mig-1g.10gb.me": 1}),
    "any MIG device": (
        exactly("mig", count=2),
        {"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-1g.10gb.me": 2, "nvidia.com/mig-3g.40gb": 2},
    ),
    "a choice": (
        first(exactly("mig", "3g.40gb", count=2), GPU),
        {"nvidia.com/mig-3g.40gb": 2, "nvidia.com/gpu": 1},
    ),
    "a share of a card, or a card": (
        exactly("gpu", capacity={"requests": {"memory": "8Gi"}}),
        {"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 1},
    ),
    "GPUs of AMD": (exactly("amd"), {"amd.com/gpu": 1, "amd.com/cpx_nps1": 1}),
    "all devices": (exactly("gpu", allocationMode="All", selectors=[NOT_SHARED]), {"nvidia.com/gpu": 32}),
    "network cards": (exactly("nic"), {}),
    "devices in use, for administration": (exactly("gpu", adminAccess=True), {}),
    "a selector that is not evaluated": (exactly("later"), {"nvidia.com/gpu": 1}),
    "a class that does not exist": (exactly("other"), {"nvidia.com/gpu": 1}),
    "a selector that matches nothing": (exactly("mig", "7g.80gb"), {"nvidia.com/gpu": 1}),
    "a request of a later version": ({"name": "g", "later": {}}, {"nvidia.com/gpu": 32}),
}
NAMES = sorted({name for _, units in COUNTED.values() for name in units})


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize(("request_", "units"), COUNTED.values(), ids=COUNTED)
def test_a_claim_counts_as_the_most_that_it_may_get(request_: Json, units: dict[str, int], kind: str) -> None:
    pod = claiming("t")
    if kind == "ResourceClaim":
        pod = make_pod().namespace("team").spec(resourceClaims=[{"name": "t", "resourceClaimName": "t"}])
    for name in NAMES:
        count = units.get(name, 0)
        for most in range(count - 1, count + 1):
            rule = f"{{resource: {name}, max: {max(0, most)}}}"
            assert codes(decide_on(pod, limits(rule), claim(kind, request_))) == ["GPU-L103"] * (
                most < count and most >= 0
            )


H100_SLICE = mig_device("part", "2g.20gb", "GPU-0", memory=19968)
NO_MULTIPROCESSORS = {"capacity": {"memory": {"value": "19968Mi"}}}
COUNTED_BY_SIZE: dict[str, tuple[Json, str, dict[str, int]]] = {
    "a slice with memory of one profile": (
        mig_device("part", "1g.10gb", "GPU-0"), "mig", {"nvidia.com/mig-1g.10gb": 1},
    ),
    "a slice with memory of several profiles": (
        H100_SLICE | NO_MULTIPROCESSORS, "mig", {"nvidia.com/mig-1g.20gb": 1, "nvidia.com/mig-2g.20gb": 1},
    ),
    "a slice with memory and multiprocessors of one profile": (
        H100_SLICE | {"capacity": H100_SLICE["capacity"] | {"multiprocessors": {"value": "26"}}},
        "mig", {"nvidia.com/mig-1g.20gb": 1},
    ),
    "a slice without memory": (H100_SLICE | {"capacity": {}}, "mig", {"nvidia.com/mig-unknown": 1}),
    "a slice with memory of no profile": (
        mig_device("part", "1g.10gb", "GPU-0", memory=30000), "mig", {"nvidia.com/mig-unknown": 1},
    ),
    "a slice of an unknown product": (
        mig_device("part", "1g.10gb", "GPU-0", "NVIDIA Z900"), "mig", {"nvidia.com/mig-unknown": 1},
    ),
    "a share of a slice": (
        mig_device("part", "1g.10gb", "GPU-0") | SHARED | {
            "capacity": {"memory": {"value": "9850Mi", "requestPolicy": {"default": "1Gi"}}},
        },
        "mig", {"nvidia.com/mig-1g.10gb.shared": 1},
    ),
    "a partition of AMD": (amd_gpu("part", "1", "cpx_nps1"), "amd", {"amd.com/unknown": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("part", "class_name", "units"), COUNTED_BY_SIZE.values(), ids=COUNTED_BY_SIZE)
def test_a_part_of_a_card_without_a_profile_counts_by_its_size_and_never_as_a_whole_gpu(
    part: Json, class_name: str, units: dict[str, int]
) -> None:
    driver = AMD if class_name == "amd" else NVIDIA
    slices = resource_slice("n", driver, "n", nodeName="n", devices=[without_profile(part)])
    view = view_of(make_node("n"), slices, *CLASSES, claim("ResourceClaimTemplate", exactly(class_name)))
    for name in {*NAMES, *units}:
        found = codes(review(claiming("t"), limits(f"{{resource: {name}, max: 0}}"), view=view))
        assert found == ["GPU-L103"] * (name in units)
    [joined] = review(claiming("t"), limits(*(f"{{resource: {name}, max: 0}}" for name in units)), view=view).denials
    assert joined.message == f"a pod's {', '.join(sorted(units))} with claims must be at most 0 (found 1)"
    assert codes(review(claiming("t"), limits("{resource: '*.com/*', max: 0}"), view=view)) == ["GPU-L103"]


def test_a_request_that_may_get_several_kinds_violates_a_limit_once_and_names_them_sorted() -> None:
    """The order must not depend on the process: replicas give the same answer."""
    template = claim("ResourceClaimTemplate", exactly("mig", count=2))
    names = ["nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-1g.10gb"]
    for of, subject in (("perPod", "a pod's "), ("perContainer", "")):
        rules = [f"{{resource: {name}, max: 1}}" for name in names]
        [found] = decide_on(claiming("t"), limits(*rules, of=of), template).denials
        kinds = "nvidia.com/mig-1g.10gb, nvidia.com/mig-1g.10gb.me, nvidia.com/mig-3g.40gb"
        assert found.message == f"{subject}{kinds} with claims must be at most 1 (found 2)"


def test_a_claim_of_whole_gpus_that_may_get_shares_is_told_how_to_exclude_them() -> None:
    policy = limits("{resource: nvidia.com/gpu.shared, max: 1}", of="perContainer")
    amount, request_one = {"requests": {"memory": "8Gi"}}, "By all claims together, request 1."
    exclude = " For whole devices only, write !device.allowMultipleAllocations in a selector."
    only_shared = {"cel": {"expression": "device.allowMultipleAllocations"}}
    whole = claim("ResourceClaimTemplate", exactly("gpu", selectors=[NOT_SHARED]), name="whole")
    for selectors, fix in (([], request_one + exclude), ([only_shared], request_one)):
        template = claim("ResourceClaimTemplate", exactly("gpu", count=2, capacity=amount, selectors=selectors))
        for pod in (claiming("t"), claiming("t", "whole")):
            [found] = decide_on(pod, policy, template, whole).denials
            assert (found.message, found.fix) == ("nvidia.com/gpu.shared with claims must be at most 1 (found 2)", fix)


def test_a_claim_that_exceeds_a_limit_is_denied_with_its_field_and_what_would_fit() -> None:
    policy = limits("{resource: nvidia.com/gpu, allowed: [1, 2, 4]}")
    template = claim("ResourceClaimTemplate", exactly("gpu", count=3, selectors=[NOT_SHARED]))
    [found] = decide_on(claiming("t"), policy, template).denials
    assert (found.code, format_path(found.path)) == ("GPU-L102", "spec.resourceClaims[0]")
    assert found.message == "a pod's nvidia.com/gpu with claims must be one of 1, 2, 4 (found 3)"
    assert found.fix == "By all claims together, request 4, or 2."
    assert decide_on(claiming("t"), limits("{resource: nvidia.com/gpu, max: 1}", mode="warn"), template).denials == ()


def test_a_pod_is_admitted_if_no_policy_bounds_its_claims() -> None:
    template = claim("ResourceClaimTemplate", exactly("gpu", count=2, selectors=[NOT_SHARED]))
    for policy in ("mode: enforce\nsecurity: {deny: [privileged]}", limits("{resource: cpu, max: 1}")):
        assert decide_on(claiming("t"), policy, template).findings == ()


def test_claims_and_names_count_together() -> None:
    two = [claim("ResourceClaimTemplate", GPU, name=name) for name in ("a", "b")]
    policy = limits("{resource: nvidia.com/gpu, max: 2}")
    assert codes(decide_on(claiming("a", "b"), policy, *two)) == []
    assert codes(decide_on(claiming("a", "b").gpus(1), policy, *two)) == ["GPU-L103"]
    assert codes(decide_on(claiming("a", "b").requests(f"{PREFIX}gpu", "1"), policy, *two)) == ["GPU-L103"]


BOTH: dict[str, tuple[int, int, str]] = {
    "between two allowed amounts": (2, 1, "Write 2, or remove it."),
    "above all allowed amounts": (2, 8, "Write 6."),
    "a name beside more by claims than is allowed": (9, 1, "Request fewer by claims."),
    "just what claims leave": (8, 1, "Remove it."),
}


@pytest.mark.parametrize(("claims", "named", "fix"), BOTH.values(), ids=BOTH)
def test_what_claims_request_is_left_out_of_the_amount_to_write(claims: int, named: int, fix: str) -> None:
    template = claim("ResourceClaimTemplate", exactly("gpu", count=claims, selectors=[NOT_SHARED]))
    policy = limits("{resource: nvidia.com/gpu, allowed: [1, 2, 4, 8]}")
    [found] = decide_on(claiming("t").gpus(named), policy, template).denials
    assert (found.code in {"GPU-L102", "GPU-L103"}, found.path[-1], found.fix) == (True, "nvidia.com/gpu", fix)


BY_CLASS = {"the implicit name": f"{PREFIX}mig", "the explicit name": "example.com/slice"}


@pytest.mark.parametrize("resource", BY_CLASS.values(), ids=BY_CLASS)
@pytest.mark.parametrize("of", ["perPod", "perContainer"])
def test_a_device_class_by_name_counts_as_its_devices(resource: str, of: str) -> None:
    pod, most = make_pod().namespace("team").requests(resource, "2"), "{resource: 'nvidia.com/mig-3g.*', max: %s}"
    assert codes(decide_on(pod, limits(most % 1, of=of))) == ["GPU-L103"]
    assert codes(decide_on(pod, limits(most % 2, of=of))) == []


@pytest.mark.parametrize("of", ["perPod", "perContainer"])
def test_a_request_for_a_class_without_a_limit_counts_too(of: str) -> None:
    """The API server accepts it, unlike one for the name of a device plugin, and the scheduler claims the devices."""
    resource, most = f"{PREFIX}mig", "{resource: nvidia.com/mig-3g.40gb, max: %s}"
    pod = make_pod().namespace("team").requests_without_limit(resource, "2")
    [found] = decide_on(pod, limits(most % 1, of=of)).denials
    assert (found.code, found.path) == ("GPU-L103", ("spec", "containers", 0, "resources", "requests", resource))
    assert codes(decide_on(pod, limits(most % 2, of=of))) == []
    pod.main["resources"]["limits"] = {resource: "3"}
    assert codes(decide_on(pod, limits(most % 2, of=of))) == []


def test_a_container_counts_the_requests_of_claims_that_it_uses() -> None:
    template = claim("ResourceClaimTemplate", GPU | {"name": "a"}, GPU | {"name": "b"})
    policy = limits("{resource: nvidia.com/gpu, max: 1}", of="perContainer")
    assert codes(decide_on(claiming("t"), policy, template)) == ["GPU-L103"]
    assert codes(decide_on(claiming("t", request="a"), policy, template)) == []


def test_a_violation_by_a_device_class_names_the_field_that_requests_it() -> None:
    resource = "deviceclass.resource.kubernetes.io/gpu"
    pod = make_pod().namespace("team").requests(resource, "3")
    for of, subject in (("perContainer", "nvidia.com/gpu"), ("perPod", "a pod's nvidia.com/gpu")):
        [found] = decide_on(pod, limits("{resource: nvidia.com/gpu, max: 2}", of=of)).denials
        assert found.path == ("spec", "containers", 0, "resources", "limits", resource)
        assert found.message == f"{subject} with device classes must be at most 2 (found 3)"
        assert found.fix == "By all device classes together, request 2."


def test_a_violation_by_a_device_class_does_not_name_claims_for_other_devices_of_its_container() -> None:
    resource = "deviceclass.resource.kubernetes.io/gpu"
    pod, nic = claiming("t").requests(resource, "3"), claim("ResourceClaimTemplate", exactly("nic"))
    [found] = decide_on(pod, limits("{resource: nvidia.com/gpu, max: 2}", of="perContainer"), nic).denials
    assert found.path == ("spec", "containers", 0, "resources", "limits", resource)
    assert found.message == "nvidia.com/gpu with device classes must be at most 2 (found 3)"


SLICE, NIC = "example.com/slice", f"{PREFIX}nic"
SMALL = "nvidia.com/mig-1g.10gb"
BESIDE_A_GPU: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({}, SMALL),
    "none of the slices of a class": ({SLICE: "0"}, SMALL),
    "none of the slices of a class by its implicit name": ({f"{PREFIX}mig": "0"}, SMALL),
    "a slice of a class": ({SLICE: "1"}, f"it requests several GPU resources: nvidia.com/gpu, {SLICE}"),
    "a slice and a network card": (
        {NIC: "1", SLICE: "1"}, f"it requests several GPU resources: nvidia.com/gpu, {SLICE}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("beside", "want"), BESIDE_A_GPU.values(), ids=BESIDE_A_GPU)
def test_a_gpu_is_right_sized_unless_gpus_of_a_class_are_requested_too(beside: dict[str, str], want: str) -> None:
    pod = make_pod().namespace("team").gpus(1).needs("8Gi")
    for name, amount in beside.items():
        pod = pod.requests(name, amount)
    outcome = decide_on(pod, "mode: enforce\nrightSizing: {}", mig_node()).outcome
    assert (outcome.resource if isinstance(outcome, OfferChoice) else str(outcome)) == want


def test_none_of_the_devices_of_a_class_excludes_no_node_from_injection() -> None:
    policy, nodes = "mode: enforce\ninjection: {tolerations: auto}", tainted(mig_node(), GPU_TAINT)
    pods = [make_pod().namespace("team").gpus(1), make_pod().namespace("team").gpus(1).requests(SLICE, "0")]
    alone, beside = (decide_on(pod, policy, nodes) for pod in pods)
    assert alone.patch
    assert alone.patch == beside.patch


def test_the_field_of_a_violation_requests_some_of_the_class() -> None:
    pod = make_pod().namespace("team").requests(SLICE, "0")
    pod = pod.container("more", resources={"limits": {SLICE: "2"}, "requests": {SLICE: "2"}})
    [found] = decide_on(pod, limits("{resource: 'nvidia.com/mig-3g.*', max: 1}")).denials
    assert found.path == ("spec", "containers", 1, "resources", "limits", SLICE)


def test_devices_that_no_container_uses_are_bounded_like_those_of_a_container() -> None:
    template, policy = claim("ResourceClaimTemplate", GPU, GPU | {"name": "b"}), "{resource: nvidia.com/gpu, max: %s}"
    unused = make_pod().namespace("team").spec(resourceClaims=claiming("t").build()["spec"]["resourceClaims"])
    for pod in (unused, claiming("t", request="missing")):
        [found] = decide_on(pod, limits(policy % 1, of="perContainer"), template).denials
        assert (found.code, format_path(found.path)) == ("GPU-L103", "spec.resourceClaims[0]")
        assert found.message == "nvidia.com/gpu that no container uses must be at most 1 (found 2)"
        assert decide_on(pod, limits(policy % 2, of="perContainer"), template).denials == ()


def test_limits_per_gpu_count_devices_of_claims() -> None:
    template = claim("ResourceClaimTemplate", exactly("gpu", count=2, selectors=[NOT_SHARED]))
    policy = limits("{resource: cpu, max: 8}", of="perGPU")
    assert codes(decide_on(claiming("t").requests("cpu", "17"), policy, template)) == ["GPU-L103"]
    assert codes(decide_on(claiming("t").requests("cpu", "16"), policy, template)) == []


def test_policies_for_gpu_resources_match_pods_that_claim_such_gpus() -> None:
    policy = "mode: enforce\nmatch: {resources: [%s]}\nlimits: {perPod: [{resource: cpu, max: 1}]}"
    template = claim("ResourceClaimTemplate", exactly("mig", "1g.10gb"))
    pod = claiming("t").requests("cpu", "2")
    assert codes(decide_on(pod, policy % "'nvidia.com/mig-*'", template)) == ["GPU-L103"]
    assert codes(decide_on(pod, policy % "nvidia.com/gpu", template)) == []


def test_a_claim_that_is_not_known_cannot_be_checked_and_is_tried_again() -> None:
    bounded = limits("{resource: 'nvidia.com/*', max: 1}")
    decision = decide_on(claiming("missing"), bounded)
    assert [each.code for each in decision.denials] == ["GPU-L108"]
    assert decision.is_retried
    assert decision.denials[0].fix == "Permit listing resourceclaimtemplates, or add them to the snapshot."
    [denial] = decide_on(claiming("missing"), bounded, claim("ResourceClaimTemplate", exactly("gpu"))).denials
    assert denial.fix == "Create it first, then the pod."
    assert codes(decide_on(claiming("missing"), limits("{resource: cpu, max: 1}"))) == []
    assert codes(review(claiming("missing"), bounded, nodes=[make_node("n")])) == [], "no devices, so no GPUs"


def test_a_workload_is_warned_about_limits_of_its_claims() -> None:
    job = workload("Job", claiming("t"), "batch/v1", parallelism=2)
    template = claim("ResourceClaimTemplate", exactly("gpu", count=2, selectors=[NOT_SHARED]))
    all_found = decide_on(job, limits("{resource: nvidia.com/gpu, max: 1}"), template).findings
    [found] = [each for each in all_found if each.code.startswith("GPU-L")]
    assert (found.code, found.mode) == ("GPU-L103", PolicyMode.WARN)
    assert format_path(found.path) == "spec.template.spec.resourceClaims[0]"


MODES = {"enforce": "be denied", "warn": "get this warning"}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize(("mode", "words"), MODES.items())
def test_a_claim_is_warned_about_limits_that_its_pods_exceed_and_never_denied(kind: str, mode: str, words: str) -> None:
    data, policy = claim(kind, GPU, GPU | {"name": "h"}), limits("{resource: nvidia.com/gpu, allowed: [1]}", mode=mode)
    decision = decide_on(data, policy)
    [found] = [each for each in decision.findings if each.code == "GPU-L103"]
    assert (found.mode, found.policy, decision.denials) == (PolicyMode.WARN, "test-0", ())
    assert found.message == f"its pods will {words}: a pod's nvidia.com/gpu must be at most 1, found up to 2"
    assert codes(decide_on(data, limits("{resource: nvidia.com/gpu, max: 2}"))) == []
    assert codes(decide_on(data, limits("{resource: nvidia.com/gpu, max: 1}", mode="audit"))) == []
    of_some = f"match: {{objectSelector: {{matchLabels: {{a: b}}}}}}\n{policy}"
    assert codes(decide_on(data, of_some)) == []


RUNTIMES = {
    "a GPU": (GPU, []),
    "a GPU of AMD": (exactly("amd"), ["GPU-S301"]),
    "a network card": (exactly("nic"), ["GPU-S301"]),
    "a device that is not known": (exactly("later"), ["GPU-S301"]),
}


@pytest.mark.parametrize(("request_", "found"), RUNTIMES.values(), ids=RUNTIMES)
def test_a_claim_of_an_nvidia_gpu_permits_its_runtime_class(request_: Json, found: list[str]) -> None:
    policy = "mode: enforce\nsecurity: {deny: [runtimeClass]}"
    pod = claiming("t").spec(runtimeClassName="nvidia")
    decision = decide_on(pod, policy, claim("ResourceClaimTemplate", request_))
    assert [each.code for each in decision.denials] == found
