"""Right-sizing to device classes: a pod that requests a GPU gets a MIG device by the name of an extended resource."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent
from typing import Any, NamedTuple

import pytest
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
    partitionable_gpus,
    resource_claim,
    resource_slice,
)
from tests.engine.test_fit import quota, sizing
from tests.example_cluster import NO_USAGE, NOW, apply_patch, policies_of, policy, request_of, review, view_of
from webhook.engine.decision_cache import DecisionCache
from webhook.model.cluster_view import AssumedPod, ClusterView
from webhook.model.decisions import Decision, KeepReason, KeepRequest, OfferChoice
from webhook.model.dra.allocator import AllocationOutcome
from webhook.model.dra.class_offers import count_free_devices, known_free_devices
from webhook.model.dra.device_view import DeviceView
from webhook.model.dra.pod_devices import allocate_for_pod, resolve_claims, with_devices_bound
from webhook.model.dra.selector_cache import select_device
from webhook.model.pods import Pod, parse_pod

PREFIX = "deviceclass.resource.kubernetes.io/"
SMALL, GPU = f"{PREFIX}small", "nvidia.com/gpu"
IS_MIG = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"
IS_SMALL = f"{IS_MIG} && device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
IS_LARGE = f"{IS_MIG} && device.attributes['gpu.nvidia.com'].profile == '3g.40gb'"
IS_GPU = "device.attributes['gpu.nvidia.com'].type == 'gpu'"
CLASSES = (device_class("small", IS_SMALL), device_class("gpu", IS_GPU, GPU))
DEVICES_KEY = "small.deviceclass.resource.k8s.io/devices"


def device_node(name: str = "a", kubelet: str = "v1.36.3", gpus: dict[str, int] | None = None) -> Json:
    """Return a node that may publish devices."""
    node = make_node(name, None, **(gpus or {}))
    node["status"]["nodeInfo"] = {"kubeletVersion": kubelet}
    return node


def slices(node: str = "a", count: int = 7, *more: Json, **fields: Any) -> Json:
    """Return the slice of a node with MIG devices that exist."""
    devices = [mig_device(f"mig-{i}", "1g.10gb", "GPU-0") | fields for i in range(count)]
    return resource_slice(f"{node}-0", NVIDIA, node, nodeName=node, devices=[*devices, *more])


def claims(count: int, pool: str = "a") -> list[Json]:
    """Return claims that have the first MIG devices of a node."""
    return [resource_claim(f"c{i}", allocated(pool, f"mig-{i}")) for i in range(count)]


def small() -> PodMaker:
    """Return a pod that requests one GPU and needs 8Gi."""
    return make_pod().gpus(1).needs("8Gi")


def decide_in(*objects: Json, pod: PodMaker | None = None, policy: str = sizing()) -> Decision:
    """Decide about a pod in a cluster of these objects."""
    return review(pod or small(), policy, view=view_of(make_namespace("team"), *objects))


def outcome(decision: Decision) -> str:
    """Return the resource that was chosen, or why none was."""
    return decision.outcome.resource if isinstance(decision.outcome, OfferChoice) else str(decision.outcome.reason)


NODE, DEVICES = device_node(), slices()
UNKNOWN = mig_device("any", "1g.10gb", "GPU-0", product="NVIDIA XYZ")["attributes"]
CLAIMED = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
COUNTED = {f"requests.{GPU}": "8"}

OUTCOMES: dict[str, tuple[Sequence[Json], PodMaker | None, str]] = {
    "a pod gets a MIG device by the implicit name of its class": ((NODE, DEVICES, *CLASSES), None, SMALL),
    "devices that are made on demand": ((NODE, *partitionable_gpus("a"), *CLASSES), None, SMALL),
    "the name of a MIG profile is preferred": (
        (NODE, DEVICES, device_class("small", IS_SMALL, "nvidia.com/mig-1g.10gb")),
        None,
        "nvidia.com/mig-1g.10gb",
    ),
    "a name that other nodes advertise is not used": (
        (NODE, DEVICES, device_class("small", IS_SMALL, "nvidia.com/mig-1g.10gb"),
         device_node("b", gpus={"nvidia.com/mig-1g.10gb": 7})),
        make_pod().gpus(1).needs("8Gi").spec(nodeSelector={"kubernetes.io/hostname": "a"}),
        SMALL,
    ),
    "nodes that also have a device plugin keep their GPUs for it": (
        (device_node("a", gpus={GPU: 1}), DEVICES, *CLASSES),
        None,
        KeepReason.DEVICE_PLUGIN_ON_NODES,
    ),
    "the smallest device of a class counts": (
        (NODE, slices("a", 1, mig_device("large", "3g.40gb", "GPU-0", memory=40192)),
         device_class("mixed", IS_MIG)),
        make_pod().gpus(1).needs("20Gi"),
        KeepReason.MIXED_CLASS,
    ),
    "devices that differ in nothing but their texts": (
        (NODE, DEVICES, device_node("b"), slices("b", 7, attributes=UNKNOWN),
         device_class("any", IS_MIG)),
        None,
        KeepReason.NO_OFFER,
    ),
    "a selector that would fail on devices of another driver, which may join": (
        (NODE, DEVICES, device_class("small", IS_SMALL.partition(" && ")[2])),
        None,
        KeepReason.UNGUARDED_CLASS,
    ),
    "a class that may give a whole GPU saves nothing": (
        (NODE, slices("a", 1, card("gpu-1")), device_class("any", "device.driver == 'gpu.nvidia.com'")),
        None,
        KeepReason.MIXED_CLASS,
    ),
    "a selector that fails on some device ends scheduling": (
        (NODE, slices("a", 7, card("gpu-1")), device_class("small", IS_SMALL.rpartition(" && ")[2])),
        None,
        KeepReason.UNGUARDED_CLASS,
    ),
    "a shared device has no memory of its own": (
        (NODE, slices(allowMultipleAllocations=True), *CLASSES),
        None,
        KeepReason.NO_OFFER,
    ),
    "no device is free": ((NODE, DEVICES, *CLASSES, *claims(7)), None, KeepReason.NO_FREE_CAPACITY),
    "one device is free": ((NODE, DEVICES, *CLASSES, *claims(6)), None, SMALL),
    "a claim without an allocation may get the last one": (
        (NODE, DEVICES, *CLASSES, *claims(6), resource_claim("waiting", device_class_name="small")),
        None,
        KeepReason.NO_FREE_CAPACITY,
    ),
    "a claim for another device does not": (
        (NODE, slices("a", 7, card("gpu-1")), *CLASSES, *claims(6), resource_claim("waiting")),
        None,
        SMALL,
    ),
    "a pod that waits for the class may get the last one": (
        (NODE, DEVICES, *CLASSES, *claims(6), make_pod("first").requests(SMALL, "1").build()),
        None,
        KeepReason.NO_FREE_CAPACITY,
    ),
    "a whole GPU may be the card of the last devices": (
        (NODE, *partitionable_gpus("a"), *CLASSES, make_pod("first").gpus(1).build()),
        None,
        KeepReason.NO_FREE_CAPACITY,
    ),
    "another card is left": (
        (NODE, *partitionable_gpus("a", 2), *CLASSES, make_pod("first").gpus(1).build()),
        None,
        SMALL,
    ),
    "a tainted device is not free": (
        (NODE, slices(taints=[{"key": "broken", "effect": "NoSchedule"}]), *CLASSES),
        None,
        KeepReason.NO_FREE_CAPACITY,
    ),
    "no CPU is free": (
        (NODE, DEVICES, *CLASSES, make_pod("big").requests("cpu", "60").spec(nodeName="a").build()),
        make_pod().gpus(1).needs("8Gi").requests("cpu", "8"),
        KeepReason.NO_FREE_CAPACITY,
    ),
    "a pod that waits for its claim may take the CPU": (
        (NODE, DEVICES, *CLASSES, make_pod("first").requests("cpu", "60").spec(resourceClaims=CLAIMED).build()),
        make_pod().gpus(1).needs("8Gi").requests("cpu", "8"),
        KeepReason.NO_FREE_CAPACITY,
    ),
    "an older kubelet does not get devices for pods": (
        (device_node("a", "v1.35.4"), device_node("b"), DEVICES, *CLASSES),
        None,
        KeepReason.KUBERNETES_TOO_OLD,
    ),
    "an older cluster": ((device_node("a", "v1.35.4"), DEVICES, *CLASSES), None, KeepReason.KUBERNETES_TOO_OLD),
    "a version that is not known": ((device_node("a", ""), DEVICES, *CLASSES), None, KeepReason.KUBERNETES_TOO_OLD),
    "another scheduler does not know classes": (
        (NODE, DEVICES, *CLASSES),
        make_pod().gpus(1).needs("8Gi").spec(schedulerName="volcano"),
        KeepReason.QUEUED_POD,
    ),
    "a scheduler of one's own does not know classes": (
        (NODE, DEVICES, *CLASSES),
        make_pod().gpus(1).needs("8Gi").spec(schedulerName="my-scheduler"),
        KeepReason.NO_CLASS_FOR_POD,
    ),
    "a pod that also gets a device of another class": (
        (NODE, DEVICES, *CLASSES, device_class("nic", "device.driver == 'dra.net'", "example.com/nic")),
        make_pod().gpus(1).needs("8Gi").requests("example.com/nic", "1"),
        KeepReason.NO_CLASS_FOR_POD,
    ),
    "nodes of Karpenter": (
        (NODE, DEVICES, *CLASSES,
         {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"}, "spec": {}}),
        None,
        KeepReason.KARPENTER,
    ),
    "init containers with GPUs": (
        (NODE, DEVICES, *CLASSES),
        small().container("init", kind="initContainers", resources={"limits": {GPU: "1"}, "requests": {GPU: "1"}}),
        KeepReason.NO_CLASS_FOR_POD,
    ),
    "a quota on GPUs that counts no classes": (
        (NODE, DEVICES, *CLASSES, quota(COUNTED)),
        None,
        KeepReason.QUOTA_NOT_COVERING,
    ),
    "a quota that counts the pods of the class too": (
        (NODE, DEVICES, *CLASSES, quota(COUNTED | {f"requests.{SMALL}": "1"})),
        None,
        SMALL,
    ),
    "a quota that counts its devices too": (
        (NODE, DEVICES, *CLASSES, quota(COUNTED | {DEVICES_KEY: "1"})),
        None,
        SMALL,
    ),
    "a quota on the devices of the class that serves GPUs": (
        (NODE, DEVICES, *CLASSES, quota({"gpu.deviceclass.resource.k8s.io/devices": "8"})),
        None,
        KeepReason.QUOTA_NOT_COVERING,
    ),
    "a full quota on devices": (
        (NODE, DEVICES, *CLASSES, quota({DEVICES_KEY: "1"}, {DEVICES_KEY: "1"})),
        None,
        KeepReason.QUOTA_EXCEEDED,
    ),
    "a full quota on claims": (
        (NODE, DEVICES, *CLASSES, quota({"count/resourceclaims.resource.k8s.io": "0"})),
        None,
        KeepReason.QUOTA_EXCEEDED,
    ),
    "a quota that a waiting pod fills when its claim is made": (
        (NODE, DEVICES, *CLASSES, quota({DEVICES_KEY: "1"}), make_pod("first").requests(SMALL, "1").build()),
        None,
        KeepReason.QUOTA_EXCEEDED,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "pod", "want"), OUTCOMES.values(), ids=OUTCOMES)
def test_a_pod_gets_a_device_of_a_class_where_nothing_is_lost(
    objects: Sequence[Json], pod: PodMaker | None, want: str
) -> None:
    assert outcome(decide_in(*objects, pod=pod)) == want


POLICIES: dict[str, tuple[str, str]] = {
    "a form that the policy does not allow": (
        "mode: enforce\nrightSizing: {forms: [mps], isolation: memory}",
        KeepReason.FORM_NOT_ALLOWED,
    ),
    "a saving that is too small": (
        "mode: enforce\nrightSizing: {minSavingPercent: 90}",
        KeepReason.SAVING_TOO_SMALL,
    ),
    "a policy that denies device classes": (
        "mode: enforce\nrightSizing: {}\nsecurity: {deny: [resourceClaims]}",
        KeepReason.LIMITS,
    ),
    "accounting on nodes that do not advertise it": (
        "mode: enforce\nrightSizing: {}\nlimits: {accounting: native}",
        KeepReason.QUOTA_NOT_COVERING,
    ),
    "limits that hold for whole GPUs alone": (
        "mode: enforce\nmatch: {resources: [nvidia.com/gpu]}\nrightSizing: {}\n"
        "limits: {perPod: [{resource: cpu, max: 8}]}",
        KeepReason.NEW_POLICY,
    ),
}


@pytest.mark.parametrize(("text", "want"), POLICIES.values(), ids=POLICIES)
def test_a_pod_that_policies_would_no_longer_count_keeps_its_request(text: str, want: str) -> None:
    assert outcome(decide_in(NODE, DEVICES, *CLASSES, policy=text)) == want


def test_the_reason_names_what_an_admin_changes() -> None:
    unguarded = device_class("small", IS_SMALL.partition(" && ")[2])
    (found,) = (each for each in decide_in(NODE, DEVICES, unguarded).findings if each.code == "GPU-R103")
    assert found.message.endswith("on all nodes: 1g.10gb of small on a")
    assert "device.driver == 'gpu.nvidia.com' as the first selector of the class" in (found.fix or "")


def by_class(need: str, name: str = f"{PREFIX}gpu") -> PodMaker:
    """Return a pod that requests a device by the name of its class."""
    return make_pod().requests(name, "1").needs(need)


REQUESTED_BY_CLASS: dict[str, tuple[PodMaker, str, str]] = {
    "a smaller class covers the need": (
        by_class("8Gi"),
        "RequestedByDeviceClass",
        f"Request {SMALL}, which covers 8Gi.",
    ),
    "none does": (by_class("60Gi"), "RequestedByDeviceClass", KeepReason.REQUESTED_BY_CLASS.fix),
    "no need is declared": (make_pod().requests(f"{PREFIX}gpu", "1"), "RequestedByDeviceClass", ""),
    "the pod opts out": (by_class("8Gi").annotate("rightslice.dev/keep", "true"), "OptedOut", ""),
    "the class has no whole GPUs": (by_class("8Gi", SMALL), "NoWholeGPU", ""),
}


@pytest.mark.parametrize(("pod", "reason", "fix"), REQUESTED_BY_CLASS.values(), ids=REQUESTED_BY_CLASS)
def test_a_pod_that_requests_a_gpu_by_a_class_gets_the_true_reason(pod: PodMaker, reason: str, fix: str) -> None:
    decision = decide_in(NODE, slices("a", 7, card("gpu-1")), *CLASSES, pod=pod)
    found = [(each.path[-1], each.fix) for each in decision.findings if each.code == "GPU-R103"]
    assert (outcome(decision), decision.patch) == (reason, ())
    assert found == ([(f"{PREFIX}gpu", fix)] if fix else [])


def test_limits_of_mig_devices_hold_for_those_of_a_class() -> None:
    allowed = "mode: enforce\nmatch: {resources: ['nvidia.com/*']}\nrightSizing: {}\nlimits: {perPod: [%s]}"
    some, none = "{resource: 'nvidia.com/mig-*', max: 1}", "{resource: 'nvidia.com/mig-1g.10gb', max: 0}"
    assert outcome(decide_in(NODE, DEVICES, *CLASSES, policy=allowed % some)) == SMALL
    assert outcome(decide_in(NODE, DEVICES, *CLASSES, policy=allowed % none)) == KeepReason.LIMITS


SHARED = "mode: enforce\nrightSizing: {}\nquotas: {shared: [{name: q, gpuMilli: 200, namespaceSelector: {}}]}"
ACCOUNTED = "mode: enforce\nrightSizing: {}\nlimits: {accounting: native, accountingScheduler: configured}"


def test_the_finding_says_which_device_a_class_gives() -> None:
    sized = next(each for each in decide_in(NODE, DEVICES, *CLASSES).findings if each.code == "GPU-R101")
    assert sized.message == f"right-sized to {SMALL} (1g.10gb, 9850Mi, 0.14 of a GPU); need: 8Gi declared"


def test_shared_quotas_count_a_device_of_a_class_before_and_after_it_is_stored() -> None:
    first, view = (
        decide_in(NODE, DEVICES, *CLASSES, policy=SHARED),
        view_of(make_namespace("team"), NODE, DEVICES, *CLASSES),
    )
    stored = apply_patch(small(), first)
    stored["metadata"]["uid"] = "u"
    assert [sum(milli for _, milli in each.quota_charge) for each in (first, review(stored, SHARED, view=view))] == [
        143,
        143,
    ]
    waiting = make_pod("first").requests(SMALL, "1").build()
    second = decide_in(NODE, DEVICES, *CLASSES, waiting, policy=SHARED)
    assert [each.code for each in second.denials] == ["GPU-Q303"]


def test_the_accounting_resource_counts_a_device_of_a_class() -> None:
    view = view_of(make_namespace("team"), NODE, DEVICES, *CLASSES)
    after = apply_patch(small(), review(small(), ACCOUNTED, view=view))
    assert after["spec"]["containers"][0]["resources"]["limits"] == {SMALL: "1", "rightslice.dev/gpu-milli": "143"}
    assert review(after, ACCOUNTED, view=view).patch == ()


def test_only_the_request_changes_and_a_second_pass_changes_nothing() -> None:
    view = view_of(make_namespace("team"), NODE, DEVICES, *CLASSES)
    after = apply_patch(small(), review(small(), sizing(), view=view))
    assert after["spec"]["containers"][0]["resources"] == {"limits": {SMALL: "1"}, "requests": {SMALL: "1"}}
    assert after["spec"] | {"containers": []} == small().build()["spec"] | {"containers": []}
    assert review(after, sizing(), view=view).patch == ()


GUARD = dedent((ROOT / "policies" / "guard.yaml").read_text().partition("spec:\n")[2]).partition("---")[0]
PRIVILEGED = {"securityContext": {"privileged": True}}
GUARDED: dict[str, PodMaker] = {
    "nothing else": small(),
    "a GPU runtime class": small().spec(runtimeClassName="nvidia"),
    "a driver feature that acts on its own GPU": small().env("NVIDIA_GDS", "enabled"),
    "an image that would see every GPU without a request": small().env("CUDA_VERSION", "12.4"),
    "an init container with privileges, which ends before": small().container("i", kind="initContainers", **PRIVILEGED),
}


@pytest.mark.parametrize("pod", GUARDED.values(), ids=GUARDED)
def test_the_shipped_guard_accepts_a_right_sized_pod(pod: PodMaker) -> None:
    view = view_of(make_namespace("team"), NODE, DEVICES, *CLASSES)
    before = review(pod, GUARD, sizing(), view=view)
    after = apply_patch(pod, before)
    assert before.denials == ()
    assert SMALL in after["spec"]["containers"][0]["resources"]["limits"]
    assert review(after, GUARD, sizing(), view=view).denials == ()


FOR_NVIDIA = device_class("any", "device.driver == 'gpu.nvidia.com'", "example.com/card")
REQUESTING: dict[str, tuple[Sequence[Json], str, str, list[str]]] = {
    "the implicit name of a class": (CLASSES, SMALL, "1", []),
    "the name that a class gives": ((FOR_NVIDIA,), "example.com/card", "1", []),
    "none of them": (CLASSES, SMALL, "0", ["GPU-S110", "GPU-S301"]),
    "a class that may give other devices": (
        (device_class("any", "true"), resource_slice("n", "dra.net", "a", nodeName="a", devices=[{"name": "nic"}])),
        f"{PREFIX}any",
        "1",
        ["GPU-S110", "GPU-S301"],
    ),
    "a class that is not known": (CLASSES, f"{PREFIX}unknown", "1", ["GPU-S110", "GPU-S301"]),
    "a name that nodes advertise too": (
        (FOR_NVIDIA, device_node("b", gpus={"example.com/card": 1})),
        "example.com/card",
        "1",
        ["GPU-S110", "GPU-S301"],
    ),
}


@pytest.mark.parametrize(("objects", "name", "amount", "want"), REQUESTING.values(), ids=REQUESTING)
def test_a_resource_of_a_class_is_a_gpu_request_if_it_surely_gives_gpus(
    objects: Sequence[Json], name: str, amount: str, want: list[str]
) -> None:
    denied = "mode: enforce\nsecurity: {deny: [runtimeClass, extraDevicesEnv]}"
    pod = make_pod().requests(name, amount).spec(runtimeClassName="nvidia").env("NVIDIA_GDRCOPY", "enabled")
    assert sorted(each.code for each in decide_in(NODE, DEVICES, *objects, pod=pod, policy=denied).denials) == want


NIC = resource_slice("n", "dra.net", "a", nodeName="a", devices=[{"name": "nic"}])
MAYBE: dict[str, tuple[Sequence[Json], str, bool]] = {
    "GPUs by the name that a class gives": ((FOR_NVIDIA,), "example.com/card", True),
    "GPUs, or what nodes advertise": (
        (FOR_NVIDIA, device_node("b", gpus={"example.com/card": 1})), "example.com/card", True,
    ),
    "GPUs or other devices": ((NIC, device_class("any", "true", "example.com/any")), "example.com/any", True),
    "a class that is not known": ((), f"{PREFIX}unknown", True),
    "network cards": (
        (NIC, device_class("nic", "device.driver == 'dra.net'", "example.com/nic")), "example.com/nic", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "name", "is_checked"), MAYBE.values(), ids=MAYBE)
def test_containers_with_a_resource_that_may_be_a_gpu_are_checked(
    objects: Sequence[Json], name: str, *, is_checked: bool
) -> None:
    deny = "mode: enforce\nsecurity: {deny: [hostNamespaces, privileged]}"
    alone, amounts = make_pod().requests(name, "1").spec(hostPID=True), {name: "1"}
    setup = make_pod().requests(SMALL, "1")
    setup.container("i", kind="initContainers", resources={"limits": amounts, "requests": amounts}, **PRIVILEGED)
    found = [decide_in(NODE, DEVICES, *CLASSES, *objects, pod=pod, policy=deny).denials for pod in (alone, setup)]
    assert [[each.code for each in some] for some in found] == (
        [["GPU-S203"], ["GPU-S201"]] if is_checked else [[], []]
    )


GUARDED_VARIABLES = {"NVIDIA_GDS": "enabled", "NVIDIA_GDRCOPY": "enabled", "NVIDIA_MOFED": "enabled"}
GUARDED_VARIABLES |= {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "CUDA_VERSION": "12.4"}
VARIABLES = st.lists(st.sampled_from([{"name": name, "value": value} for name, value in GUARDED_VARIABLES.items()]))


@st.composite
def guarded_pods(draw: st.DrawFn) -> PodMaker:
    """Return a pod that is right-sized to a class, with fields that the guard checks."""
    pod = small()
    pod.main["env"] = draw(VARIABLES)
    for kind in draw(st.lists(st.sampled_from(["containers", "initContainers"]), max_size=2)):
        fields: Json = draw(st.sampled_from([{}, PRIVILEGED]))
        pod.container(f"c{len(pod.data['spec'].get(kind, ()))}", kind=kind, env=draw(VARIABLES), **fields)
    flags = draw(st.fixed_dictionaries({}, optional={"hostPID": st.booleans(), "shareProcessNamespace": st.booleans()}))
    return pod.spec(**flags, runtimeClassName=draw(st.sampled_from(["", "nvidia", "kata"])))


@given(guarded_pods())
def test_the_shipped_guard_denies_no_right_sized_pod_that_it_allowed(pod: PodMaker) -> None:
    view = view_of(make_namespace("team"), NODE, DEVICES, *CLASSES)
    before = review(pod, GUARD, sizing(), view=view)
    after = apply_patch(pod, before)
    assert [each.code for each in review(after, GUARD, sizing(), view=view).denials] == [
        each.code for each in review(pod, GUARD, view=view).denials
    ]


def test_each_pod_of_a_burst_counts_until_it_is_observed() -> None:
    view, resources = view_of(make_namespace("team"), NODE, DEVICES, *CLASSES, *claims(4)), list[str]()
    for number in range(5):
        decision = review(make_pod(f"p{number}").gpus(1).needs("8Gi"), sizing(), view=view)
        resources.append(outcome(decision))
        for unit in decision.pending_use.units:
            view = view.with_assumed(AssumedPod(f"p{number}", *unit, 60.0), 0.0)
    assert resources == [SMALL] * 3 + [KeepReason.NO_FREE_CAPACITY] * 2


def test_on_many_nodes_devices_are_counted_a_few_at_a_time() -> None:
    names, objects = [f"node-{i}" for i in range(10)], list[Json]()
    for name in names:
        objects += [device_node(name), slices(name, 2), resource_claim(f"{name}-0", allocated(name, "mig-0"))]
        objects += [resource_claim(f"{name}-1", allocated(name, "mig-1"))] if name != names[-1] else []
    view = view_of(make_namespace("team"), *CLASSES, *objects)
    found = [outcome(review(small(), sizing(), view=view)) for _ in range(3)]
    assert found == [KeepReason.NO_FREE_CAPACITY, KeepReason.NO_FREE_CAPACITY, SMALL]


PENDING: dict[str, tuple[PodMaker, dict[str, int]]] = {
    "a GPU that a class serves": (make_pod().gpus(2), {GPU: 2}),
    "a device of a class": (make_pod().requests(SMALL, "1"), {SMALL: 1}),
    "a claim of a template": (
        make_pod().spec(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "two"}]),
        {SMALL: 2},
    ),
    "no device": (make_pod().requests("cpu", "1"), {}),
}


@pytest.mark.parametrize(("pod", "want"), PENDING.values(), ids=PENDING)
def test_a_pod_with_devices_is_pending_with_them(pod: PodMaker, want: dict[str, int]) -> None:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "small", "count": 2}}]}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "two", "namespace": "team"},
        "spec": {"spec": {"devices": devices}},
    }
    decision = decide_in(NODE, DEVICES, *CLASSES, template, pod=pod)
    assert {unit.resource: unit.amount for unit in decision.pending_use.units} == want


def test_where_claims_may_not_be_read_no_device_is_known_to_be_free() -> None:
    view = view_of(make_namespace("team"), NODE, DEVICES, *CLASSES)
    blind = view.with_devices(view.devices._replace(knows_claims=False))
    assert outcome(review(small(), sizing(), view=blind)) == KeepReason.STALE_VIEW


def test_a_cached_decision_follows_the_devices_that_are_free() -> None:
    cache, policies = DecisionCache(), policies_of(policy(sizing()))
    found = []
    for taken in (0, 7, 0):
        view = view_of(make_namespace("team"), NODE, DEVICES, *CLASSES, *claims(taken))
        found.append(outcome(cache.decide(request_of(small().build()), policies, view, NO_USAGE, NOW)))
    assert found == [SMALL, KeepReason.NO_FREE_CAPACITY, SMALL]


class World(NamedTuple):
    """A cluster: its objects, and pods that wait in it, in the order in which they are scheduled."""

    objects: list[Json]
    waiting: list[Json]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Return a cluster of nodes with devices, claims that have some, and waiting pods of every kind."""
    objects = [make_namespace("team"), *CLASSES, device_class("large", IS_LARGE)]
    for name in "ab"[: draw(st.integers(1, 2))]:
        objects.append(device_node(name))
        if draw(st.booleans()):
            objects += partitionable_gpus(name, draw(st.integers(1, 2)))
            taken = draw(
                st.sets(st.sampled_from(["gpu-0", "gpu-0-mig-1g10gb-1-2", "gpu-0-mig-3g40gb-3-4"]), max_size=1)
            )
        else:
            objects.append(slices(name, draw(st.integers(0, 3)), card("gpu-1")))
            taken = draw(st.sets(st.sampled_from(["mig-0", "mig-2", "gpu-1"])))
        objects += [resource_claim(f"{name}-{device}", allocated(name, device)) for device in taken]
    kinds = st.sampled_from([GPU, SMALL, f"{PREFIX}large"])
    waiting = [
        make_pod(f"w{i}").requests(kind, "1").build() for i, kind in enumerate(draw(st.lists(kinds, max_size=6)))
    ]
    return World(objects, waiting)


def schedule(pod: Pod, view: ClusterView, devices: DeviceView, order: Sequence[int]) -> DeviceView | None:
    """Return the devices after the scheduler gave a pod some on the first node that has them; None if none has."""
    found = resolve_claims(pod, view.namespace_claims("team"), devices, view.fleet)
    for node in order:
        chosen = allocate_for_pod(pod, found, node, devices, view.fleet, select_device)
        assert chosen.outcome in (AllocationOutcome.ALLOCATED, AllocationOutcome.REJECTED), chosen.reason
        if chosen.outcome is AllocationOutcome.ALLOCATED:
            return with_devices_bound(devices, "team", found, chosen, view.fleet.nodes[node].name)
    return None


@given(worlds(), st.booleans(), st.permutations(range(6)))
def test_a_right_sized_pod_finds_its_device_after_all_that_wait(world: World, reverse: bool, turns: list[int]) -> None:
    view = view_of(*world.objects, *world.waiting)
    decision = review(small(), sizing(), view=view)
    if isinstance(decision.outcome, KeepRequest):
        assert decision.patch == ()
        return
    after, devices = apply_patch(small(), decision), view.devices
    order = sorted(range(len(view.fleet.nodes)), reverse=reverse)
    for turn in turns:
        if turn < len(world.waiting):
            devices = schedule(parse_pod(world.waiting[turn]), view, devices, order) or devices
    assert schedule(parse_pod(after), view, devices, order) is not None
    assert review(after, sizing(), view=view).patch == ()


@given(worlds())
def test_free_devices_are_counted_as_the_scheduler_gives_them(world: World) -> None:
    view = view_of(*world.objects)
    for resource, offered in view.class_offers().by_resource.items():
        pod = parse_pod(make_pod().requests(resource, "1").build())
        for node in range(len(view.fleet.nodes)):
            given_out, devices = 0, view.devices
            while (left := schedule(pod, view, devices, [node])) is not None:
                given_out, devices = given_out + 1, left
            assert count_free_devices(offered, node, view.devices) == given_out
            assert known_free_devices(offered, node, view.devices) == given_out


IN_ZONE = "injection: {nodeAffinity: {required: [{key: zone, operator: In, values: [z]}]}}"
INCOMPLETE = {"name": "z", "generation": 1, "resourceSliceCount": 2}
ZONED: dict[str, tuple[Json, str, bool]] = {
    "a free device": (slices("z"), SMALL, True),
    "a card alone": (slices("z", 0, card("gpu-0")), SMALL, False),
    "no device at all": (device_class("other", "false"), SMALL, False),
    "devices of a pool that is not complete": (
        slices("z") | {"spec": slices("z")["spec"] | {"pool": INCOMPLETE}},
        GPU,
        False,
    ),
}


@pytest.mark.parametrize(("published", "resource", "is_required"), ZONED.values(), ids=ZONED)
def test_nodes_are_required_only_if_they_have_a_free_device_of_the_class(
    published: Json, resource: str, *, is_required: bool
) -> None:
    zoned = device_node("z")
    zoned["metadata"]["labels"]["zone"] = "z"
    cluster = (NODE, slices("a", 7, card("gpu-0")), zoned, published, *CLASSES)
    spec = apply_patch(small(), decide_in(*cluster, policy=f"{sizing()}\n{IN_ZONE}"))["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {resource: "1"}
    assert ("affinity" in spec) is is_required
