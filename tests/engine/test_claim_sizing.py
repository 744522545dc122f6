"""Right-sizing of new resource claims and templates: the choices that a request gets, or why it stays as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.conftest import ROOT
from tests.device_builders import (
    NVIDIA,
    allocated,
    card,
    device_class,
    mig_device,
    node_groups,
    partitionable_gpus,
    resource_claim,
    resource_slice,
    without_profile,
)
from tests.engine.test_claimed_gpus import claiming, limits
from tests.engine.test_class_offers import CLASSES, IS_GPU, IS_MIG, NODE, device_node, slices
from tests.engine.test_fit import quota, sizing
from tests.engine.test_queued_templates import LOCAL_QUEUE
from tests.example_cluster import NO_USAGE, NOW, apply_patch, policies_of, policy, request_of, view_of
from webhook.engine.decide import decide
from webhook.model.claims import ClaimSpec, claim_charge
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.dra.allocator import AllocationOutcome, NamedClaim, NodeAllocation, allocate_on_node
from webhook.model.dra.selector_cache import select_device
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import format_path

MIG = device_class("mig", IS_MIG)
GPUS = (NODE, *partitionable_gpus("a"))
A10 = card("gpu-0", "NVIDIA A10", memory="23028Mi")
SMALL_CARD = (device_node("b"), resource_slice("b-0", NVIDIA, "b", nodeName="b", devices=[A10]))
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
TYPE, PROFILE = f"{ATTRIBUTES}.type", f"{ATTRIBUTES}.profile"
ONE_LARGE = (NODE, slices("a", 1, mig_device("large", "3g.40gb", "GPU-0", memory=40192)), MIG)
"""A node with a small and a larger MIG device, and the class of both."""
KARPENTER_POOL = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"}, "spec": {}}
H100_ONLY = "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'"


def selected_by(*expressions: str) -> Json:
    """Return the selectors of a request."""
    return {"selectors": [{"cel": {"expression": each}} for each in expressions]}


def claim(memory: str = "8Gi", *, kind: str = "ResourceClaim", about: Json | None = None, **exactly: Any) -> Json:
    """Return a claim or template for a device of class "gpu", with the declared need."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu", **exactly}}]
    annotations = {"rightslice.dev/gpu-memory": memory} if memory else {}
    metadata = {"name": "claim", "namespace": "team", "annotations": annotations, **(about or {})}
    spec: Json = {"devices": {"requests": requests}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
    }


def with_devices(**fields: Any) -> Json:
    """Return a claim with other fields besides its requests."""
    found = claim()
    found["spec"]["devices"] |= fields
    return found


def decide_claim(data: Json, view: ClusterView, text: str = sizing(), **fields: Any) -> Decision:
    """Decide about a claim."""
    return decide(request_of(data, **fields), policies_of(policy(text)), view, NO_USAGE, NOW)


def choices_of(data: Json) -> list[str]:
    """Return the choices of the only request: name, class and number of selectors."""
    spec = data["spec"].get("spec", data["spec"])
    return [
        f"{each['name']} {each['deviceClassName']} {len(each.get('selectors', ()))}"
        for each in spec["devices"]["requests"][0].get("firstAvailable", ())
    ]


def api_view(*objects: Json) -> ClusterView:
    """Return a view of a cluster of Kubernetes 1.36."""
    return view_of(make_namespace("team"), *objects).with_api_minor(36)


CHOICES: dict[str, tuple[Sequence[Json], Json, list[str]]] = {
    "each profile that covers the need, the smallest first, and the card": (
        (*GPUS, device_class("gpu", IS_GPU), MIG),
        claim("15Gi"),
        ["mig-1g-20gb mig 1", "mig-2g-20gb mig 1", "mig-3g-40gb mig 1", "mig-4g-40gb mig 1", "requested gpu 0"],
    ),
    "a smaller card among those that were requested, by its memory": (
        (*GPUS, *SMALL_CARD, device_class("gpu", IS_GPU), MIG),
        claim("15Gi"),
        [
            *("mig-1g-20gb mig 1", "mig-2g-20gb mig 1", "card-23028mi gpu 1"),
            *("mig-3g-40gb mig 1", "mig-4g-40gb mig 1", "requested gpu 0"),
        ],
    ),
    "a smaller card that is too small": (
        (*GPUS, *SMALL_CARD, device_class("gpu", IS_GPU), MIG),
        claim("23Gi"),
        ["mig-3g-40gb mig 1", "mig-4g-40gb mig 1", "requested gpu 0"],
    ),
    "a smaller card that the request excludes": (
        (*GPUS, *SMALL_CARD, *CLASSES),
        claim(**selected_by(H100_ONLY)),
        ["mig-1g-10gb small 1", "requested gpu 1"],
    ),
    "a class of one profile needs no selector": (
        (*GPUS, *CLASSES),
        claim(),
        ["mig-1g-10gb small 0", "requested gpu 0"],
    ),
    "the selectors of the request hold for every choice": (
        (*GPUS, *CLASSES),
        claim(**selected_by(H100_ONLY)),
        ["mig-1g-10gb small 1", "requested gpu 1"],
    ),
    "a selector that excludes smaller devices": (
        (*GPUS, *CLASSES),
        claim(**selected_by("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0")),
        [],
    ),
    "an amount of capacity that the smallest devices lack": (
        (*GPUS, *SMALL_CARD, device_class("gpu", IS_GPU), MIG),
        claim(capacity={"requests": {"memory": "30Gi"}}),
        ["mig-3g-40gb mig 1", "mig-4g-40gb mig 1", "requested gpu 0"],
    ),
    "an amount of capacity that only the card has": (
        (*GPUS, *CLASSES), claim(capacity={"requests": {"memory": "60Gi"}}), [],
    ),
    "an amount of a capacity that no device has": ((*GPUS, *CLASSES), claim(capacity={"requests": {"x": "1"}}), []),
    "a request for any MIG device gets the smallest": (
        ONE_LARGE,
        claim(deviceClassName="mig"),
        ["mig-1g-10gb mig 1", "requested mig 0"],
    ),
    "a template": ((*GPUS, *CLASSES), claim(kind="ResourceClaimTemplate"), ["mig-1g-10gb small 0", "requested gpu 0"]),
    "no declared need": ((*GPUS, *CLASSES), claim(""), []),
    "a need that only the card covers": ((*GPUS, *CLASSES), claim("60Gi"), []),
    "a claim that opts out": (
        (*GPUS, *CLASSES),
        claim(about={"annotations": {"rightslice.dev/gpu-memory": "8Gi", "rightslice.dev/keep": "true"}}),
        [],
    ),
    "the scheduler's own claim": (
        (*GPUS, *CLASSES),
        claim(about={"annotations": {"rightslice.dev/gpu-memory": "8Gi",
                                     "resource.kubernetes.io/extended-resource-claim": "true"}}),
        [],
    ),
    "a claim in its final form": ((*GPUS, *CLASSES), claim(about={"uid": "u", **claim()["metadata"]}), []),
    "two devices": ((*GPUS, *CLASSES), claim(count=2), []),
    "all devices": ((*GPUS, *CLASSES), claim(allocationMode="All"), []),
    "access for administration": ((*GPUS, *CLASSES), claim(adminAccess=True), []),
    "a constraint": ((*GPUS, *CLASSES), with_devices(constraints=[{"matchAttribute": "a/b"}]), []),
    "configuration for the device": ((*GPUS, *CLASSES), with_devices(config=[{"opaque": {"driver": NVIDIA}}]), []),
    "a quota on the smaller class": (
        (*GPUS, *CLASSES, quota({"small.deviceclass.resource.k8s.io/devices": "4"})),
        claim(),
        [],
    ),
    "a quota on the requested class": (
        (*GPUS, *CLASSES, quota({"gpu.deviceclass.resource.k8s.io/devices": "4"})),
        claim(),
        ["mig-1g-10gb small 0", "requested gpu 0"],
    ),
    "a namespace with a queue of Kueue": ((*GPUS, *CLASSES, LOCAL_QUEUE), claim(), []),
    "nodes of Karpenter": ((*GPUS, *CLASSES, KARPENTER_POOL), claim(), []),
    "a class with a selector that fails on some device": (
        (NODE, slices("a", 1, card("gpu-1")), device_class("gpu", IS_GPU),
         device_class("mig", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'")),
        claim(),
        [],
    ),
    "a class with a selector that would fail on a device of another driver": (
        (*GPUS, device_class("gpu", IS_GPU), device_class("small", f"{TYPE} == 'mig' && {PROFILE} == '1g.10gb'")),
        claim(),
        [],
    ),
    "a class that guards the key instead of checking the driver": (
        (*GPUS, device_class("gpu", IS_GPU),
         device_class("small", f"'profile' in {ATTRIBUTES} && {PROFILE} == '1g.10gb'")),
        claim(),
        ["mig-1g-10gb small 0", "requested gpu 0"],
    ),
    "a class that would match devices of another driver": (
        (*GPUS, device_class("gpu", IS_GPU),
         device_class("small", f"!('type' in {ATTRIBUTES}) || {TYPE} == 'mig' && {PROFILE} == '1g.10gb'")),
        claim(),
        [],
    ),
    "a class of every device, and a choice that names a profile": (
        (*GPUS, device_class("gpu", IS_GPU), device_class("any", "true")),
        claim("39Gi"),
        ["mig-3g-40gb any 1", "mig-4g-40gb any 1", "requested gpu 0"],
    ),
    "the requested class, which may fail on a device of another driver": (
        (NODE, slices("a", 1, mig_device("large", "3g.40gb", "GPU-0", memory=40192)),
         device_class("mig", f"{TYPE} == 'mig'")),
        claim(deviceClassName="mig"),
        ["mig-1g-10gb mig 1", "requested mig 0"],
    ),
    "slices of another product than those of whole cards": (
        (NODE, slices("a", 2), device_node("b"), slices("b", 0, card("gpu-1", "NVIDIA A100-SXM4-80GB")), *CLASSES),
        claim(),
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "data", "want"), CHOICES.values(), ids=CHOICES)
def test_a_claim_gets_the_smallest_devices_first(objects: Sequence[Json], data: Json, want: list[str]) -> None:
    assert choices_of(apply_patch(data, decide_claim(data, api_view(*objects)))) == want


POLICIES: dict[str, tuple[str, bool]] = {
    "a policy about GPUs of NVIDIA": ("mode: enforce\nmatch: {resources: ['nvidia.com/*']}\nrightSizing: {}", True),
    "one about slices": ("mode: enforce\nmatch: {resources: ['nvidia.com/mig-*']}\nrightSizing: {}", False),
    "one about other namespaces": ("mode: enforce\nmatch: {namespaces: [other]}\nrightSizing: {}", False),
    "one with a condition on pods": (
        "mode: enforce\nmatch: {matchConditions: [{name: a, expression: 'true'}]}\nrightSizing: {}",
        False,
    ),
    "one without right-sizing": ("mode: enforce\nlimits: {perPod: [{resource: cpu, max: 8}]}", False),
    "limits that allow no slice": (
        "mode: enforce\nrightSizing: {}\nlimits: {perPod: [{resource: 'nvidia.com/mig-*', max: 0}]}",
        False,
    ),
    "limits that allow a slice": (
        "mode: enforce\nrightSizing: {}\nlimits: {perContainer: [{resource: 'nvidia.com/mig-*', max: 1}]}",
        True,
    ),
    "limits in audit mode": (
        "mode: enforce\nrightSizing: {}\nlimits: {mode: audit, perPod: [{resource: 'nvidia.com/mig-*', max: 0}]}",
        True,
    ),
    "one that wants a larger saving": ("mode: enforce\nrightSizing: {minSavingPercent: 90}", False),
}


@pytest.mark.parametrize(("text", "is_changed"), POLICIES.values(), ids=POLICIES)
def test_the_policies_of_pods_hold_for_claims(text: str, is_changed: bool) -> None:
    assert bool(decide_claim(claim(), api_view(*GPUS, *CLASSES), text).patch) is is_changed


CARDS_ALONE = (NODE, *SMALL_CARD, slices("a", 0, card("gpu-0")), device_class("gpu", IS_GPU))
SLICES_AND_CARDS = (*GPUS, *SMALL_CARD, device_class("gpu", IS_GPU), MIG)
SMALLEST = ["mig-1g-20gb mig 1", "mig-2g-20gb mig 1", "card-23028mi gpu 1"]
TOO_SMALL = "SavingTooSmall"
SAVINGS: dict[str, tuple[Sequence[Json], Json, int, str, list[str]]] = {
    "smaller cards, and slices that save enough": (
        SLICES_AND_CARDS, claim("15Gi"), 70, "RightSized", [*SMALLEST, "requested gpu 0"],
    ),
    "slices that save too little, and a smaller card that saves nothing": (
        SLICES_AND_CARDS, claim("15Gi"), 90, TOO_SMALL, [],
    ),
    "a smaller card where anything must be saved": (CARDS_ALONE, claim(), 1, TOO_SMALL, []),
    "a smaller card where nothing must be saved": (
        CARDS_ALONE, claim(), 0, "RightSized", ["card-23028mi gpu 1", "requested gpu 0"],
    ),
    "slices that save too little": ((*GPUS, *CLASSES), claim(), 90, TOO_SMALL, []),
    "a need that only the card covers": ((*GPUS, *CLASSES), claim("60Gi"), 90, "NoOffer", []),
    "a need that only a slice of the whole card covers": (
        (*GPUS, device_class("gpu", IS_GPU), MIG), claim("60Gi"), 20, TOO_SMALL, [],
    ),
    "a selector that excludes the slices": (
        (*GPUS, *CLASSES),
        claim(**selected_by(f"{TYPE} == 'gpu'")), 50, "ExcludedBySelectors", [],
    ),
    "an amount of capacity that excludes the slices": (
        (*GPUS, *CLASSES), claim(capacity={"requests": {"memory": "60Gi"}}), 50, "ExcludedBySelectors", [],
    ),
    "a selector that excludes the slices, and not a smaller card that saves too little": (
        SLICES_AND_CARDS,
        claim("15Gi", **selected_by(f"{TYPE} == 'gpu'")), 50, "ExcludedBySelectors", [],
    ),
    "a selector that excludes smaller slices than the requested one": (
        ONE_LARGE,
        claim(deviceClassName="mig", **selected_by(f"{PROFILE} == '3g.40gb'")), 20, "ExcludedBySelectors", [],
    ),
    "a selector of the smallest slice that covers the need": (
        ONE_LARGE,
        claim("30Gi", deviceClassName="mig", **selected_by(f"{PROFILE} == '3g.40gb'")), 20, "NothingSmaller", [],
    ),
    "a slice that saves the share of the requested slice": (
        ONE_LARGE,
        claim(deviceClassName="mig"), 60, "RightSized", ["mig-1g-10gb mig 1", "requested mig 0"],
    ),
    "a slice that saves too little of the requested slice": (
        ONE_LARGE,
        claim(deviceClassName="mig"), 80, TOO_SMALL, [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "data", "percent", "reason", "want"), SAVINGS.values(), ids=SAVINGS)
def test_a_changed_claim_may_save_what_the_policy_requires(
    objects: Sequence[Json], data: Json, percent: int, reason: str, want: list[str]
) -> None:
    text = f"mode: enforce\nrightSizing: {{minSavingPercent: {percent}}}"
    decision = decide_claim(data, api_view(*objects), text)
    assert (decision.right_sizing_outcome, choices_of(apply_patch(data, decision))) == (reason, want)


SHARED = {"allowMultipleAllocations": True}
POLICY = {"requestPolicy": {"default": "1Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}}


def shared(device: Json) -> Json:
    """Return a device that claims share by its memory, as with NVIDIA's ConsumableShares."""
    return device | SHARED | {"capacity": {"memory": device["capacity"]["memory"] | POLICY}}


def on_node(name: str, *devices: Json) -> tuple[Json, ...]:
    """Return a node and the devices that it publishes."""
    return device_node(name), resource_slice(name, NVIDIA, name, nodeName=name, devices=list(devices))


H100, L40S = card("gpu-0"), card("gpu-0", "NVIDIA L40S", memory="46068Mi")
GPU_CLASS = device_class("gpu", IS_GPU)
NODES = {"a": 0, "b": 1, "c": 2}
SHARES: dict[str, tuple[Sequence[Json], Json, str, list[str]]] = {
    "cards that claims share are no choice": (
        (*on_node("a", H100), *on_node("b", shared(L40S)), GPU_CLASS), claim(), "NoOffer", [],
    ),
    "other cards are": (
        (*on_node("a", H100), *on_node("b", shared(L40S)), *on_node("c", A10), GPU_CLASS),
        claim(), "RightSized", ["card-23028mi gpu 1", "requested gpu 0"],
    ),
    "cards of which some are shared": (
        (*on_node("a", H100), *on_node("b", shared(A10)), *on_node("c", A10), GPU_CLASS),
        claim(), "RightSized", ["card-23028mi gpu 1", "requested gpu 0"],
    ),
    "a share is smaller than MIG devices": (
        (*on_node("a", shared(H100)), *on_node("b", mig_device("mig-0", "1g.10gb", "GPU-1")), GPU_CLASS, MIG),
        claim(capacity={"requests": {"memory": "8Gi"}}), "NothingSmaller", [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "data", "reason", "want"), SHARES.values(), ids=SHARES)
def test_a_share_is_no_smaller_device_because_nothing_reserves_memory_of_its_card(
    objects: Sequence[Json], data: Json, reason: str, want: list[str]
) -> None:
    view, text = api_view(*objects), "mode: enforce\nrightSizing: {minSavingPercent: 0}"
    decision = decide_claim(data, view, text)
    after = apply_patch(data, decision)
    assert (decision.right_sizing_outcome, choices_of(after)) == (reason, want)
    if want:
        chosen = {name: allocate_on(after["spec"], view, node).claims[0][0].request for name, node in NODES.items()}
        assert chosen == {"a": "gpu/requested", "b": "gpu/requested", "c": "gpu/card-23028mi"}


AMD_CARD = {"name": "gpu-0", "attributes": {"type": {"string": "amdgpu"}}, "capacity": {"memory": {"value": "196Gi"}}}
AMD = (
    resource_slice("amd", "gpu.amd.com", "a", nodeName="a", devices=[AMD_CARD]),
    device_class("amd", "device.driver == 'gpu.amd.com'"),
    device_class("nic", "device.driver == 'dra.net'"),
)
NIC = resource_slice("nic", "dra.net", "a", nodeName="a", devices=[{"name": "nic-0"}])
ODD_SLICE = without_profile(mig_device("odd", "1g.10gb", "GPU-9"))
KEPT: dict[str, tuple[Sequence[Json], Json, str, bool]] = {
    "a GPU of AMD": (AMD, claim(deviceClassName="amd"), "OtherDriver", True),
    "a device that is no GPU": ((*AMD, NIC), claim(deviceClassName="nic"), "NoGPURequest", False),
    "no request": ((), with_devices(requests=[]), "NoGPURequest", False),
    "only compute is declared": (
        (), claim(about={"annotations": {"rightslice.dev/gpu-compute": "10%"}}), "NoEvidence", True,
    ),
    "nothing is declared": ((), claim(""), "NoEvidence", True),
    "a selector that does not compile": ((), claim(**selected_by("device.memory > 1")), "NoDevice", True),
    "a selector that fails": ((), claim(**selected_by(f"{ATTRIBUTES}.nope == 'x'")), "NoDevice", True),
    "a selector that matches nothing": ((), claim(**selected_by(f"{PROFILE} == 'x'")), "NoDevice", True),
    "a class that does not exist": ((), claim(deviceClassName="gone"), "NoDevice", True),
    "the smallest slice that covers the need": ((), claim(deviceClassName="small"), "NothingSmaller", True),
    "a slice whose profile is not published": (
        (resource_slice("e", "gpu.nvidia.com", "e", nodeName="a", devices=[ODD_SLICE]),
         device_class("odd", f"{TYPE} == 'mig' && !('profile' in {ATTRIBUTES})")),
        claim(deviceClassName="odd"), "NothingSmaller", True,
    ),
    "nodes of Karpenter": ((KARPENTER_POOL,), claim(), "Karpenter", True),
    "a queue of Kueue": ((LOCAL_QUEUE,), claim(), "QueueWithoutChoices", True),
    "a quota on the smaller class": (
        (quota({"small.deviceclass.resource.k8s.io/devices": "4"}),), claim(), "ChargedMoreByQuota", True,
    ),
    "a constraint": ((), with_devices(constraints=[{"matchAttribute": "a/b"}]), "ConstrainedClaim", True),
}  # fmt: skip


@pytest.mark.parametrize(("more", "data", "reason", "is_gpu"), KEPT.values(), ids=KEPT)
def test_why_a_claim_is_kept(more: Sequence[Json], data: Json, reason: str, *, is_gpu: bool) -> None:
    decision = decide_claim(data, api_view(*GPUS, *CLASSES, *more), "mode: enforce\nrightSizing: {}")
    assert decision.right_sizing_outcome == reason
    assert decision.involves_gpus is is_gpu


CLASSLESS: dict[str, tuple[Json, str, str]] = {
    "an unknown class": (claim(deviceClassName="gone"), "found gone", "may get: device class gone does not exist"),
    "no class": (claim(deviceClassName=""), "found no name", "may get: it names no device class"),
    "a class of which nothing matches": (claim(**selected_by(f"{PROFILE} == 'x'")), "", "may get: device class gpu"),
}


@pytest.mark.parametrize(("data", "found", "kept"), CLASSLESS.values(), ids=CLASSLESS)
def test_the_class_of_a_claim_without_known_devices_is_named(data: Json, found: str, kept: str) -> None:
    findings = {each.code: each for each in decide_claim(data, api_view(*GPUS, *CLASSES)).findings}
    assert findings["GPU-R103"].message.endswith(kept)
    assert findings["GPU-R103"].reason == "NoDevice"
    assert ("GPU-D106" in findings) is bool(found)
    assert not found or findings["GPU-D106"].message.endswith(found)


def test_the_class_whose_selectors_may_fail_is_named() -> None:
    unguarded = device_class("part", f"{TYPE} == 'mig' && {PROFILE} == '1g.10gb'")
    decision = decide_claim(claim(), api_view(*GPUS, device_class("gpu", IS_GPU), unguarded), "rightSizing: {}")
    assert str(decision.outcome).endswith("ends scheduling of the pod on all nodes: part")


@pytest.mark.parametrize(("minor", "reason"), [(33, "KubernetesTooOld"), (0, "KubernetesTooOld"), (34, "RightSized")])
def test_an_older_kubernetes_is_the_reason_for_no_choices(minor: int, reason: str) -> None:
    view = view_of(*GPUS, *CLASSES).with_api_minor(minor)
    assert decide_claim(claim(), view, "mode: enforce\nrightSizing: {}").right_sizing_outcome == reason


def declares(**values: str) -> Json:
    """Return the metadata of a claim with annotations of Rightslice."""
    return {"annotations": {f"rightslice.dev/{key.replace('_', '-')}": value for key, value in values.items()}}


UNREADABLE: dict[str, tuple[Json, str, list[str]]] = {
    "compute without a unit": (declares(gpu_memory="8Gi", gpu_compute="0.5"), "enforce", ["GPU-R104", "GPU-R103"]),
    "compute as a word": (declares(gpu_memory="8Gi", gpu_compute="lots"), "enforce", ["GPU-R104", "GPU-R103"]),
    "compute alone": (declares(gpu_compute="lots"), "enforce", ["GPU-R104"]),
    "memory as a word": (declares(gpu_memory="eight"), "enforce", ["GPU-R104"]),
    "memory below zero": (declares(gpu_memory="-1Gi"), "enforce", ["GPU-R104"]),
    "no memory": (declares(gpu_memory="0"), "enforce", ["GPU-R104"]),
    "both": (declares(gpu_memory="eight", gpu_compute="lots"), "enforce", ["GPU-R104", "GPU-R104"]),
    "a policy in audit mode": (declares(gpu_memory="eight"), "audit", ["GPU-R104"]),
}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize(("about", "mode", "codes"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_need_that_cannot_be_read_is_reported_and_the_claim_kept(
    kind: str, about: Json, mode: str, codes: list[str]
) -> None:
    text = f"mode: {mode}\nrightSizing: {{}}"
    decision = decide_claim(claim(kind=kind, about=about), api_view(*GPUS, *CLASSES), text)
    assert (decision.patch, decision.right_sizing_outcome) == ((), "NoEvidence")
    assert [each.code for each in decision.findings] == codes
    assert {each.mode.name for each in decision.findings} == {"WARN" if mode == "enforce" else "AUDIT"}


def giving(own: Json, **annotations: str) -> Json:
    """Return a template with annotations of its own and others for its claims."""
    template = claim("", kind="ResourceClaimTemplate", about={"annotations": own} if own else {})
    if not own:
        del template["metadata"]["annotations"]
    given = {f"rightslice.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    template["spec"]["metadata"] = {"annotations": given}
    return template


OWN_NEED, OWN_OPT_OUT = {"rightslice.dev/gpu-memory": "60Gi"}, {"rightslice.dev/keep": "true"}
GIVEN: dict[str, tuple[Json, str, list[str]]] = {
    "a need": (giving({}, gpu_memory="8Gi"), "RightSized", []),
    "a need that differs from that of the template": (giving(OWN_NEED, gpu_memory="8Gi"), "RightSized", []),
    "an opt-out": (giving(OWN_NEED, gpu_memory="8Gi", keep="true"), "OptedOut", ["spec"]),
    "a need, and the template opts out": (giving(OWN_OPT_OUT, gpu_memory="8Gi", keep="false"), "OptedOut", ["spec"]),
    "a need that cannot be read": (giving(OWN_NEED, gpu_memory="eight"), "NoEvidence", ["spec.metadata.annotations"]),
}


@pytest.mark.parametrize(("template", "outcome", "places"), GIVEN.values(), ids=GIVEN)
def test_a_template_is_right_sized_by_the_annotations_that_its_claims_get(
    template: Json, outcome: str, places: list[str]
) -> None:
    decision = decide_claim(template, api_view(*GPUS, *CLASSES))
    kept = [each.path for each in decision.findings if each.code != "GPU-R101"]
    assert decision.right_sizing_outcome == outcome
    assert [format_path(path).startswith(place) for path, place in zip(kept, places, strict=True)] == [True] * len(kept)
    after = apply_patch(template, decision)
    assert choices_of(after) == (["mig-1g-10gb small 0", "requested gpu 0"] if outcome == "RightSized" else [])
    assert decide_claim(after, api_view(*GPUS, *CLASSES)).patch == ()


def test_a_policy_for_labeled_pods_right_sizes_a_template_that_labels_its_claims() -> None:
    template = giving({}, gpu_memory="8Gi")
    template["spec"]["metadata"]["labels"] = {"a": "b"}
    text = "mode: enforce\nmatch: {objectSelector: {matchLabels: {a: b}}}\nrightSizing: {}"
    assert decide_claim(template, api_view(*GPUS, *CLASSES), text).patch


@pytest.mark.parametrize(
    ("mode", "labels", "is_changed"), [("enforce", "", False), ("audit", "", True), ("enforce", "a: b", False)]
)
def test_a_policy_that_matches_slices_alone_would_hold_for_pods_with_the_changed_claim(
    mode: str, labels: str, is_changed: bool
) -> None:
    selector = f", objectSelector: {{matchLabels: {{{labels}}}}}" if labels else ""
    match = f"match: {{resources: ['nvidia.com/mig-*']{selector}}}"
    other = f"mode: {mode}\n{match}\nlimits: {{perPod: [{{resource: cpu, max: 1}}]}}"
    policies = policies_of(policy(sizing(), "sizing"), policy(other, "other"))
    view = api_view(*GPUS, *CLASSES)
    assert bool(decide(request_of(claim()), policies, view, NO_USAGE, NOW).patch) is is_changed


def test_an_older_cluster_has_no_choices() -> None:
    assert decide_claim(claim(), api_view(*GPUS, *CLASSES).with_api_minor(33)).patch == ()


@pytest.mark.parametrize(("minor", "is_changed"), [(35, True), (36, False)])
def test_a_quota_on_the_name_of_a_class_counts_claims_from_1_36_on(minor: int, *, is_changed: bool) -> None:
    limit = quota({"requests.deviceclass.resource.kubernetes.io/small": "4"})
    view = api_view(*GPUS, *CLASSES, limit).with_api_minor(minor)
    assert bool(decide_claim(claim(), view).patch) is is_changed


@pytest.mark.parametrize(
    ("selectors", "length", "is_changed"),
    [(31, 0, True), (32, 0, False), (2, 9000, True), (31, 9000, False)],
    ids=["one more is the maximum", "one more is too many", "long selectors", "longer than all annotations may be"],
)
def test_a_claim_that_the_api_server_might_not_store_is_kept(selectors: int, length: int, *, is_changed: bool) -> None:
    selector = {"cel": {"expression": H100_ONLY + " " * length}}
    view = api_view(*GPUS, device_class("gpu", IS_GPU), MIG)
    assert bool(decide_claim(claim("15Gi", selectors=[selector] * selectors), view).patch) is is_changed


@pytest.mark.parametrize("amount", ["1e402", "1e40", "abc"])
def test_an_amount_of_any_size_is_decided(amount: str) -> None:
    capacity = {"requests": {"memory": amount}}
    template = claim("15Gi", kind="ResourceClaimTemplate", capacity=capacity)
    made = {"name": "c", "resourceClaimTemplateName": "claim"}
    pod = make_pod("p").namespace("team").spec(resourceClaims=[made]).build()
    view = api_view(*GPUS, device_class("gpu", IS_GPU), MIG, template)
    for data in (template, claim("15Gi", capacity=capacity), pod):
        assert PolicyMode.ENFORCE not in {each.mode for each in decide_claim(data, view).findings}


def test_an_update_changes_nothing() -> None:
    assert decide_claim(claim(), api_view(*GPUS, *CLASSES), operation="UPDATE") == Decision()


def test_a_policy_in_audit_mode_only_says_what_it_would_do() -> None:
    decision = decide_claim(claim(), api_view(*GPUS, *CLASSES), "mode: audit\nrightSizing: {}")
    assert decision.patch == ()
    assert [each.code for each in decision.findings] == ["GPU-R102"]


def test_the_request_keeps_its_name_and_its_original_is_recorded() -> None:
    after = apply_patch(claim(), decide_claim(claim(), api_view(*GPUS, *CLASSES)))
    assert after["spec"]["devices"]["requests"][0]["name"] == "gpu"
    original = json.loads(after["metadata"]["annotations"]["rightslice.dev/original-resources"])
    assert original == claim()["spec"]["devices"]["requests"][0]


def allocate(spec: Json, view: ClusterView, node: int) -> AllocationOutcome:
    """Return whether a node has devices for a claim."""
    return allocate_on(spec, view, node).outcome


def allocate_on(spec: Json, view: ClusterView, node: int) -> NodeAllocation:
    """Return the devices of a node that a claim would get."""
    devices = view.devices
    named = NamedClaim("claim", msgspec.convert(spec, ClaimSpec))
    pools = devices.pools.pools_of_node(node)
    return allocate_on_node([named], pools, devices.allocated, devices.classes, select_device)


@st.composite
def worlds(draw: st.DrawFn) -> list[Json]:
    """Return nodes with devices of every kind, classes, some of them with quotas, and claims that have devices."""
    extra = st.sampled_from(
        [MIG, device_class("small", IS_MIG + " && true"), device_class("bad", "device.attributes['x'].y")]
    )
    objects = [
        make_namespace("team"),
        device_class("gpu", IS_GPU),
        *draw(st.lists(extra, unique_by=lambda one: one["metadata"]["name"])),
    ]
    for name in "ab"[: draw(st.integers(1, 2))]:
        objects.append(device_node(name))
        if draw(st.booleans()):
            objects += partitionable_gpus(name)
            taken = draw(
                st.sets(st.sampled_from(["gpu-0", "gpu-0-mig-1g10gb-1-2", "gpu-0-mig-3g40gb-3-4"]), max_size=1)
            )
        else:
            objects.append(slices(name, draw(st.integers(0, 2)), card("gpu-1")))
            taken = draw(st.sets(st.sampled_from(["mig-0", "gpu-1"])))
        objects += [resource_claim(f"{name}-{device}", allocated(name, device)) for device in taken]
    keys = st.sampled_from([f"{name}.deviceclass.resource.k8s.io/devices" for name in ("gpu", "mig", "small")])
    return [*objects, *[quota({key: "3"}) for key in draw(st.sets(keys, max_size=1))]]


OVER_10_GI = "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('10Gi'))"
REQUESTS = st.builds(
    lambda name, memory, selectors: claim(memory, deviceClassName=name, **selectors),
    st.sampled_from(["gpu", "mig"]),
    st.sampled_from(["8Gi", "15Gi", "30Gi"]),
    st.sampled_from([{}, selected_by(H100_ONLY), selected_by(OVER_10_GI)]),
)  # fmt: skip


@pytest.mark.no_cover
@given(worlds(), REQUESTS)
def test_a_changed_claim_loses_nothing(objects: list[Json], before: Json) -> None:
    view = api_view(*objects[1:])
    after = apply_patch(before, decide_claim(before, view))
    for node in range(len(view.fleet.nodes)):
        outcomes = [allocate(data["spec"], view, node) for data in (before, after)]
        assert AllocationOutcome.ALLOCATED not in outcomes or outcomes[1] is AllocationOutcome.ALLOCATED
        assert AllocationOutcome.FAILED not in outcomes or outcomes[0] is AllocationOutcome.FAILED
    charged = [claim_charge(msgspec.convert(data["spec"], ClaimSpec), view.classes) for data in (before, after)]
    limited = [key for each in view.quotas("team") for key in each.spec.hard]
    assert [charged[0].get(key, 0) for key in limited] == [charged[1].get(key, 0) for key in limited]
    assert decide_claim(after, view).patch == ()


TEMPLATE = "ResourceClaimTemplate"


def sized_claim(**fields: Any) -> Json:
    """Return a claim after right-sizing."""
    before = claim(**fields)
    return apply_patch(before, decide_claim(before, api_view(*GPUS, *CLASSES)))


def stored(data: Json) -> Json:
    """Return an object with a uid."""
    return {**data, "metadata": {**data["metadata"], "uid": "u"}}


def renamed_choices() -> Json:
    """Return a template with the choices of a right-sized one under names that a user may give."""
    found = sized_claim(kind=TEMPLATE)
    for number, choice in enumerate(found["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]):
        choice["name"] = f"choice-{number}"
    return found


def reversed_choices() -> Json:
    """Return a template that tries a whole GPU first, and whose last choice, a slice, is named as requested."""
    found = sized_claim(kind=TEMPLATE)
    choices = found["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]
    classes = [choice["deviceClassName"] for choice in reversed(choices)]
    for choice, name in zip(choices, classes, strict=True):
        choice["deviceClassName"] = name
    return found


def last_choice_with(expression: str, **fields: str) -> Json:
    """Return a right-sized template whose last choice has a selector that a user wrote."""
    found = sized_claim(kind=TEMPLATE)
    found["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"][-1] |= selected_by(expression) | fields
    return found


def padded(expression: str) -> str:
    """Return a selector that uses up the steps of a claim when its last choice is counted once more."""
    return f"{expression} || '{'x' * 3950}' == ''"


CHOOSES = claim()
CHOOSES["spec"]["devices"]["requests"][0] = sized_claim()["spec"]["devices"]["requests"][0]
FORGED = claim()
FORGED["metadata"]["annotations"] = sized_claim()["metadata"]["annotations"]
REASONS: dict[str, tuple[Json, str, list[str]]] = {
    "a right-sized claim that is applied again": (sized_claim(), "AlreadyRightSized", []),
    "a right-sized claim in its final form": (stored(sized_claim()), "AlreadyRightSized", []),
    "a right-sized template": (sized_claim(kind="ResourceClaimTemplate"), "AlreadyRightSized", []),
    "a claim in its final form": (stored(claim()), "Update", []),
    "choices of the user": (CHOOSES, "NotOneDevice", ["GPU-R103"]),
    "a copied record without choices": (FORGED, "RightSized", ["GPU-R101"]),
    "no declared need": (claim(""), "NoEvidence", []),
}


@pytest.mark.parametrize(("data", "reason", "codes"), REASONS.values(), ids=REASONS)
def test_a_second_pass_is_no_finding(data: Json, reason: str, codes: list[str]) -> None:
    decision = decide_claim(data, api_view(*GPUS, *CLASSES))
    assert (decision.right_sizing_outcome, [one.code for one in decision.findings]) == (reason, codes)


SLICES_OF_A_CONTAINER = limits("{resource: 'nvidia.com/mig-*', max: 1}", of="perContainer")
SLICES_OF_A_POD = limits("{resource: 'nvidia.com/mig-*', max: 1}", "{resource: nvidia.com/gpu, allowed: [1, 2, 4]}")
NO_SLICES = limits("{resource: 'nvidia.com/mig-*', max: 0}")
ONE_GPU = limits("{resource: nvidia.com/gpu, max: 1}", of="perContainer")
TEAM_LIMITS = json.dumps(yaml.safe_load((ROOT / "policies/team-limits.yaml").read_text())["spec"])
ONE_SLICE = limits("{resource: 'nvidia.com/mig-*', max: 1}")
FORBIDDEN = limits("{resource: 'nvidia.com/mig-*', allowed: [7]}", "{resource: nvidia.com/gpu, allowed: [7]}")
COSTLY = last_choice_with(padded(f"{TYPE} == 'gpu'"))
COSTLY_SLICE = last_choice_with(padded(f"{PROFILE} == '3g.40gb'"), deviceClassName="mig")
WARNED, DENIED = ["GPU-L103 WARN"], ["GPU-L103 ENFORCE"]
MIG_1G = "nvidia.com/mig-1g.10gb"
WITH_SIZED_CLAIMS: dict[str, tuple[str, PodMaker, Json, list[str]]] = {
    "one claim": (TEAM_LIMITS, claiming("a"), sized_claim(kind=TEMPLATE), []),
    "two claims that one container uses": (TEAM_LIMITS, claiming("a", "b"), sized_claim(kind=TEMPLATE), WARNED),
    "two claims as requested": (TEAM_LIMITS, claiming("a", "b"), claim(kind=TEMPLATE), []),
    "three claims as requested": (TEAM_LIMITS, claiming("a", "b", "c"), claim(kind=TEMPLATE), ["GPU-L102 ENFORCE"]),
    "three claims": (TEAM_LIMITS, claiming("a", "b", "c"), sized_claim(kind=TEMPLATE), ["GPU-L102 ENFORCE", *WARNED]),
    "two claims of a pod": (SLICES_OF_A_POD, claiming("a", "b"), sized_claim(kind=TEMPLATE), WARNED),
    "a claim, and a slice by name": (
        SLICES_OF_A_POD, claiming("a").requests(MIG_1G, "1"), sized_claim(kind=TEMPLATE), WARNED,
    ),
    "a claim, and two slices by name": (
        SLICES_OF_A_POD, claiming("a").requests(MIG_1G, "2"), sized_claim(kind=TEMPLATE), [*DENIED, *WARNED],
    ),
    "a slice where a later policy allows none": (NO_SLICES, claiming("a"), sized_claim(kind=TEMPLATE), DENIED),
    "a whole GPU of the user's before a slice as requested": (ONE_GPU, claiming("a", "b"), reversed_choices(), DENIED),
    "a last choice whose selector is costly": (ONE_SLICE, claiming("a", "b"), COSTLY, DENIED),
    "one that costs as little as usual": (ONE_SLICE, claiming("a", "b"), last_choice_with(f"{TYPE} == 'gpu'"), WARNED),
    "a last choice that matches no device": (ONE_SLICE, claiming("a", "b"), last_choice_with("false"), DENIED),
    "a larger slice as a costly last choice": (FORBIDDEN, claiming("a"), COSTLY_SLICE, ["GPU-L102 ENFORCE"]),
    "choices of the user": (SLICES_OF_A_CONTAINER, claiming("a", "b"), renamed_choices(), DENIED),
}  # fmt: skip


@pytest.mark.parametrize(("text", "pod", "template", "want"), WITH_SIZED_CLAIMS.values(), ids=WITH_SIZED_CLAIMS)
def test_limits_allow_a_pod_with_right_sized_claims_if_they_allow_what_was_requested(
    text: str, pod: PodMaker, template: Json, want: list[str]
) -> None:
    templates = [{**template, "metadata": {"name": name, "namespace": "team"}} for name in "abc"]
    decision = decide_claim(pod.build(), api_view(*GPUS, *CLASSES, MIG, *templates), text)
    assert [f"{each.code} {each.mode.name}" for each in decision.findings if each.code.startswith("GPU-L")] == want


def test_a_violation_of_claims_as_requested_names_a_claim_that_requested_it() -> None:
    two = {**claim(kind=TEMPLATE, deviceClassName="mig", count=2), "metadata": {"name": "b", "namespace": "team"}}
    sized = {**sized_claim(kind=TEMPLATE), "metadata": {"name": "a", "namespace": "team"}}
    decision = decide_claim(claiming("a", "b").build(), api_view(*GPUS, *CLASSES, MIG, sized, two), ONE_SLICE)
    assert {format_path(one.path) for one in decision.denials} == {"spec.resourceClaims[1]"}


NETWORK = (device_node("net"), resource_slice("net-0", "dra.net", "net", nodeName="net", devices=[{"name": "eth0"}]))
FRAGILE = device_class("mig", "device.attributes['gpu.nvidia.com'].type == 'mig'")
SIZED, NOT_SIZED = ["mig-1g-10gb mig 1", "requested gpu 0"], list[str]()
CARDS, FRAGILE_CARDS = device_class("gpu", f"device.driver == '{NVIDIA}' && {IS_GPU}"), device_class("gpu", IS_GPU)
NEW_NODES: dict[str, tuple[tuple[Json, ...], list[str]]] = {
    "no node publishes devices": ((CARDS, MIG), SIZED),
    "no class of slices": ((CARDS,), NOT_SIZED),
    "live nodes publish other devices": ((CARDS, MIG, *NETWORK), SIZED),
    "the class of slices fails on those": ((CARDS, FRAGILE, *NETWORK), NOT_SIZED),
    "the requested class fails on those": ((FRAGILE_CARDS, MIG, *NETWORK), NOT_SIZED),
    "live nodes have requested cards": ((CARDS, MIG, *SMALL_CARD), NOT_SIZED),
}


@pytest.mark.parametrize(("objects", "choices"), NEW_NODES.values(), ids=NEW_NODES)
def test_devices_of_new_nodes_are_choices_where_no_live_node_has_the_requested_ones(
    objects: tuple[Json, ...], choices: list[str]
) -> None:
    view = api_view(make_node("cpu"), *objects, node_groups(*partitionable_gpus("gone")))
    found = apply_patch(claim(), decide_claim(claim(), view))
    assert choices_of(found)[:1] + choices_of(found)[-1:] == choices


def live_slice(node: str, **texts: str) -> list[Json]:
    """Return a node that publishes one slice of a card, with other attributes; an empty one is absent."""
    found = mig_device("mig-0", "1g.10gb", "GPU-0")
    changed = found["attributes"] | {name: {"string": text} for name, text in texts.items()}
    found["attributes"] = {name: value for name, value in changed.items() if value != {"string": ""}}
    return [device_node(node), resource_slice(f"{node}-0", NVIDIA, node, nodeName=node, devices=[found])]


LIVE_SLICES: dict[str, tuple[list[Json], str, list[str]]] = {
    "a live slice that has the attribute": (live_slice("a"), f"{ATTRIBUTES}.architecture == 'Hopper'", SIZED),
    "one that lacks it": (live_slice("a", architecture=""), f"{ATTRIBUTES}.architecture == 'Hopper'", NOT_SIZED),
    "one that lacks it, which the selector tests": (
        live_slice("a", architecture=""),
        f"'architecture' in {ATTRIBUTES} && {ATTRIBUTES}.architecture == 'Hopper'",
        SIZED,
    ),
    "one of two equal slices with a text that fails": (
        [*live_slice("a"), *live_slice("b", addressingMode="none")],
        f"{ATTRIBUTES}.addressingMode.split('M')[1] == ''",
        NOT_SIZED,
    ),
}


@pytest.mark.parametrize(("live", "selector", "choices"), LIVE_SLICES.values(), ids=LIVE_SLICES)
def test_a_claim_that_waits_for_new_nodes_fails_on_no_live_slice(
    live: list[Json], selector: str, choices: list[str]
) -> None:
    view = api_view(*live, CARDS, MIG, node_groups(*partitionable_gpus("gone")))
    before = claim(**selected_by(selector))
    decision = decide_claim(before, view)
    after = apply_patch(before, decision)
    assert decision.right_sizing_outcome == ("RightSized" if choices else "ExcludedBySelectors")
    assert [one.split()[0] for one in choices_of(after)[:1]] == [one.split()[0] for one in choices[:1]]
    outcomes = {allocate(data["spec"], view, node) for data in (before, after) for node in range(len(view.fleet.nodes))}
    assert AllocationOutcome.FAILED not in outcomes


def test_a_policy_that_does_not_allow_the_slices_of_new_nodes_keeps_the_request() -> None:
    view = api_view(make_node("cpu"), CARDS, MIG, node_groups(*partitionable_gpus("gone")))
    limits = sizing() + "\nlimits: {perPod: [{resource: nvidia.com/mig-*, max: 0}]}"
    assert choices_of(apply_patch(claim(), decide_claim(claim(), view, limits))) == NOT_SIZED
