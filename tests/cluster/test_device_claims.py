"""Claims for GPUs that drivers publish in ResourceSlices: the allocation by a cluster, and our findings about them.

The drivers' objects are written by hand: NVIDIA's in both of its layouts, and AMD's. The scheduler allocates devices
and binds pods without a kubelet or a driver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.audit.test_claim_validation import ACCEPTED as ACCEPTED_CLAIMS
from tests.audit.test_claim_validation import REJECTED as REJECTED_CLAIMS
from tests.audit.test_claim_validation import RIGHT_PODS, VERSIONS, WRONG_PODS
from tests.audit.test_pod_placement import nodes as nodes_of_placement
from tests.audit.test_pod_placement import place_pod
from tests.builders import Json, make_node, make_pod
from tests.cluster.client import RefusedError
from tests.cluster.installation import Installation, install_from_page
from tests.cluster.nodes import NODES, add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.random_claims import API, CHARGES_EXTENDED
from tests.cluster.test_extender import serve_extender
from tests.controlplane.build import is_minor_or_newer, wanted_version
from tests.device_builders import (
    AMD,
    CARD_MEMORY,
    NVIDIA,
    amd_gpu,
    card,
    device_class,
    mig_device,
    partitionable_gpus,
    resource_slice,
)
from tests.example_cluster import GPU_TAINT, policies_of, request_of, review, view_of
from tests.policy.policy_texts import policy_text
from webhook.engine.claim_review import review_claim
from webhook.manifests.scheduler_config import claims_entry
from webhook.model.claims import ClaimSpec, DeviceRequest, with_requests_of_v1
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.pod_fields import CLAIM_FIELDS
from webhook.model.pods import without_nulls

GPU, MIG, AMD_GPU, SMALL = "gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com", "mig-1g.10gb"
ATTRIBUTES, CAPACITY = f"device.attributes['{NVIDIA}']", f"device.capacity['{NVIDIA}']"
CLASSES = [
    device_class(GPU, f"device.driver == '{NVIDIA}' && {ATTRIBUTES}.type == 'gpu'", extended="nvidia.com/gpu"),
    device_class(MIG, f"device.driver == '{NVIDIA}' && {ATTRIBUTES}.type == 'mig'"),
    device_class(AMD_GPU, f"device.driver == '{AMD}'"),
    device_class(
        SMALL, f"device.driver == '{NVIDIA}' && {ATTRIBUTES}.type == 'mig' && {ATTRIBUTES}.profile == '1g.10gb'"
    ),
]
"""The classes of the drivers' charts, and one of a single profile."""

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
IMPLICIT = f"{DEVICE_CLASS_PREFIX}{MIG}"
A10 = "NVIDIA A10"
A10_LABELS = {"nvidia.com/gpu.product": "NVIDIA-A10", "nvidia.com/gpu.count": "1", "nvidia.com/gpu.memory": "23028"}
"""The labels of a node whose device plugin advertises one A10."""

KUBELET = f"v{wanted_version()}"
WAITING = ""
ADVERTISED = "a GPU of the device plugin"


class Wish(NamedTuple):
    """The devices that a pod wants: the requests of its claim, or extended resources."""

    requests: Sequence[Json] = ()
    limits: Mapping[str, str] = {}


class Run(NamedTuple):
    """Pods that are created one after the other, and what each gets.

    Attributes:
        slices: The slices of a node, and of others whose names begin with its name.
        pods: What the pods want.
        devices: The profile or type of the device that each gets, with the request if it is a choice; or WAITING.
        message: Part of what the scheduler says about a pod that waits.
        codes: What Rightslice says about the claim of the last pod.
        advertised: GPUs that the device plugin advertises.
    """

    slices: Callable[[str], Sequence[Json]]
    pods: Sequence[Wish]
    devices: Sequence[str]
    message: str = ""
    codes: Sequence[str] = ()
    advertised: int = 0


def exactly(device_class: str, *expressions: str, **fields: Any) -> Wish:
    """Return the wish for devices of a class."""
    return Wish([{"name": "gpu", "exactly": _devices(device_class, expressions) | fields}])


def first_available(*choices: tuple[str, str]) -> Wish:
    """Return the wish for the first device that is available, by class and selector."""
    requests = [{"name": f"s{index}"} | _devices(name, [each]) for index, (name, each) in enumerate(choices)]
    return Wish([{"name": "gpu", "firstAvailable": requests}])


def _devices(device_class: str, expressions: Sequence[str]) -> Json:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {"deviceClassName": device_class} | ({"selectors": selectors} if selectors else {})


def at_least(memory: str) -> str:
    """Return the selector of devices with so much memory."""
    return f"{CAPACITY}.memory.compareTo(quantity('{memory}')) >= 0"


def of_profile(profile: str) -> str:
    """Return the selector of MIG devices of a profile."""
    return f"'profile' in {ATTRIBUTES} && {ATTRIBUTES}.profile == '{profile}'"


def static_mig(node: str) -> list[Json]:
    """Return a card, and the MIG devices of another one, as they are configured."""
    devices = [
        mig_device("gpu-1-mig-9-0-1", "3g.40gb", "GPU-1", memory=40448),
        mig_device("gpu-1-mig-15-4-2", "1g.20gb", "GPU-1", memory=20096),
        mig_device("gpu-1-mig-19-6-1", "1g.10gb", "GPU-1", memory=9850),
        card("gpu-0"),
    ]
    return [resource_slice(f"{node}-{NVIDIA}", NVIDIA, node, nodeName=node, devices=devices)]


def dynamic_mig(node: str) -> list[Json]:
    """Return a card with all MIG devices that could be made of it."""
    return partitionable_gpus(node)


def amd_partitions(node: str) -> list[Json]:
    """Return a card, and two partitions of another one."""
    devices = [
        amd_gpu("gpu-1-128", "0000:0c:00.0"),
        *(amd_gpu(f"gpu-2-{136 + i}", "0000:22:00.0", "cpx_nps1", "24564Mi") for i in range(2)),
    ]
    return [resource_slice(f"{node}-{AMD}", AMD, node, nodeName=node, devices=devices)]


def cards(node: str, *names: str, **fields: Any) -> list[Json]:
    """Return a slice of whole cards."""
    devices = [card(each) | fields for each in names or ("gpu-0",)]
    return [resource_slice(f"{node}-{NVIDIA}", NVIDIA, node, nodeName=node, devices=devices)]


def two_cards(node: str) -> list[Json]:
    """Return a slice of two cards."""
    return cards(node, "gpu-0", "gpu-1")


def without_driver_version(node: str) -> list[Json]:
    """Return a card, and on another node one that lacks an attribute."""
    other = cards(f"{node}-b")
    del other[0]["spec"]["devices"][0]["attributes"]["driverVersion"]
    return [*cards(node), *other]


def shared_card(node: str) -> list[Json]:
    """Return a card whose memory several claims may have (NVIDIA's ConsumableShares)."""
    policy = {"default": CARD_MEMORY, "validRange": {"min": "1Mi", "step": "1Mi", "max": CARD_MEMORY}}
    memory = {"value": CARD_MEMORY, "requestPolicy": policy}
    return cards(node, allowMultipleAllocations=True, capacity={"memory": memory})


NEW_DRIVER = f"{ATTRIBUTES}.driverVersion.isGreaterThan(semver('550.0.0'))"
SHARE = exactly(GPU, capacity={"requests": {"memory": "20Gi"}})

RUNS: dict[str, Run] = {
    "memory >= 10Gi takes a slice of twice the size, because 1g.10gb has less": Run(
        static_mig, [exactly(MIG, at_least("10Gi"))], ["3g.40gb"], codes=["GPU-D103"]
    ),
    "memory >= 9500Mi takes the first slice that has it, not the smallest": Run(
        static_mig, [exactly(MIG, at_least("9500Mi"))], ["3g.40gb"]
    ),
    "a choice of sizes takes the smallest, and the name of the request stays valid": Run(
        static_mig, [first_available((MIG, of_profile("1g.10gb")), (GPU, "true"))], ["1g.10gb for gpu/s0"]
    ),
    "a choice that is in use leaves the next one": Run(
        static_mig,
        [first_available((MIG, of_profile("1g.10gb")), (GPU, "true"))] * 2,
        ["1g.10gb for gpu/s0", "gpu for gpu/s1"],
    ),
    "memory >= 24Gi takes a whole card of AMD's, because its partitions have less": Run(
        amd_partitions,
        [exactly(AMD_GPU, f"device.capacity['{AMD}'].memory.compareTo(quantity('24Gi')) >= 0")],
        ["spx_nps1"],
        codes=["GPU-D103"],
    ),
    "an attribute that one device lacks keeps the pod from all nodes": Run(
        without_driver_version, [exactly(GPU, NEW_DRIVER)], [WAITING], "no such key: driverVersion", ["GPU-D102"]
    ),
    "so does one that is read by a name": Run(
        without_driver_version,
        [exactly(GPU, f"cel.bind(g, {ATTRIBUTES}, g.driverVersion.isGreaterThan(semver('550.0.0')))")],
        [WAITING],
        "no such key: driverVersion",
        ["GPU-D102"],
    ),
    "a guard in the body of a name lets the pod run": Run(
        without_driver_version,
        [exactly(GPU, f"cel.bind(g, {ATTRIBUTES}, 'driverVersion' in {ATTRIBUTES} && {NEW_DRIVER})")],
        ["gpu"],
    ),
    "a bound on a capacity that is read by a name takes a slice of twice the size": Run(
        static_mig,
        [exactly(MIG, f"cel.bind(c, {CAPACITY}, c.memory.compareTo(quantity('10Gi')) >= 0)")],
        ["3g.40gb"],
        codes=["GPU-D103"],
    ),
    "a guard lets the pod run": Run(
        without_driver_version, [exactly(GPU, f"'driverVersion' in {ATTRIBUTES} && {NEW_DRIVER}")], ["gpu"]
    ),
    "a misspelled attribute keeps the pod from all nodes": Run(
        cards,
        [exactly(GPU, f"{ATTRIBUTES}.productname == '{A10}'")],
        [WAITING],
        "no such key: productname",
        ["GPU-D102"],
    ),
    "a selector that matches nothing": Run(
        two_cards,
        [exactly(GPU), exactly(GPU, f"{ATTRIBUTES}.productName == '{A10}'")],
        ["gpu", WAITING],
        "cannot allocate all claims",
        ["GPU-D101"],
    ),
    "more devices than a node has": Run(
        two_cards, [exactly(GPU), exactly(GPU, count=9)], ["gpu", WAITING], "cannot allocate all claims", ["GPU-D104"]
    ),
    "a class that does not exist": Run(
        cards, [exactly("gpu.nvidia.org")], [WAITING], "device class gpu.nvidia.org does not exist", ["GPU-D106"]
    ),
    "a GPU that the device plugin advertises too is given away twice": Run(
        cards,
        [Wish(limits={"nvidia.com/gpu": "1"}), exactly(GPU)],
        [ADVERTISED, "gpu"],
        codes=["GPU-D112"],
        advertised=1,
    ),
    "a bound in other words takes a slice of twice the size too": Run(
        static_mig,
        [exactly(MIG, f"!quantity('10Gi').isGreaterThan({CAPACITY}.memory)")],
        ["3g.40gb"],
        codes=["GPU-D103"],
    ),
    "a misspelled domain is an empty map, and keeps the pod from all nodes": Run(
        cards,
        [exactly(GPU, f"device.attributes['gpu.nvida.com'].productName == '{A10}'")],
        [WAITING],
        "no such key: productName",
        ["GPU-D102"],
    ),
    "a capacity that is read as an attribute keeps the pod from all nodes": Run(
        cards,
        [exactly(GPU, f"{ATTRIBUTES}.memory.compareTo(quantity('1Gi')) > 0")],
        [WAITING],
        "no such key: memory",
        ["GPU-D102"],
    ),
}
COUNTER_RUNS: dict[str, Run] = {
    "memory >= 10Gi takes a slice of twice the size on a card that can be partitioned": Run(
        dynamic_mig, [exactly(MIG, at_least("10Gi"))], ["1g.20gb"], codes=["GPU-D103"]
    ),
    "memory >= 9500Mi takes a 1g.10gb": Run(dynamic_mig, [exactly(MIG, at_least("9500Mi"))], ["1g.10gb"]),
    "a request for capacity takes a 1g.10gb": Run(
        dynamic_mig, [exactly(MIG, capacity={"requests": {"memory": "9500Mi"}})], ["1g.10gb"]
    ),
    "a request for capacity just above what a 1g.10gb has takes twice the size": Run(
        dynamic_mig, [exactly(MIG, capacity={"requests": {"memory": "10Gi"}})], ["1g.20gb"], codes=["GPU-D103"]
    ),
    "a request for capacity that no device has": Run(
        dynamic_mig,
        [exactly(MIG, capacity={"requests": {"memory": "200Gi"}})],
        [WAITING],
        "cannot allocate all claims",
        ["GPU-D101"],
    ),
    "the name of a class that does not exist": Run(
        cards, [Wish(limits={f"{DEVICE_CLASS_PREFIX}missing": "1"})], [WAITING], "Insufficient", ["GPU-D106"]
    ),
    "more devices of a class by its name than a node has": Run(
        cards,
        [Wish(limits={f"{DEVICE_CLASS_PREFIX}{GPU}": "2"})],
        [WAITING],
        "cannot allocate all claims",
        ["GPU-D104"],
    ),
    "an extended resource of a class gets a slice without a claim": Run(
        dynamic_mig, [Wish(limits={IMPLICIT: "1"})], ["1g.10gb for container-0-request-0"]
    ),
    "the first 1g.10gb leaves no room for a 4g.40gb": Run(
        dynamic_mig,
        [exactly(MIG, of_profile("1g.10gb")), exactly(MIG, of_profile("4g.40gb"))],
        ["1g.10gb", WAITING],
        "cannot allocate all claims",
    ),
    "shares of a card's memory": Run(
        shared_card, [SHARE] * 4, ["gpu", "gpu", "gpu", WAITING], "cannot allocate all claims"
    ),
    "an extended resource takes all of a card that can be shared": Run(
        shared_card,
        [Wish(limits={"nvidia.com/gpu": "1"}), SHARE],
        ["gpu for container-0-request-0", WAITING],
        "cannot allocate all claims",
    ),
}
"""Runs on counters, shares and extended resources: from Kubernetes 1.36 on."""

QUOTA_KEYS = [f"{MIG}.deviceclass.resource.k8s.io/devices", *([f"requests.{IMPLICIT}"] if CHARGES_EXTENDED else [])]

RANKS_CHOICES = is_minor_or_newer(35)
"""Whether the scheduler prefers nodes where an earlier choice of `firstAvailable` is available."""

ALL_RUNS = RUNS | (COUNTER_RUNS if CHARGES_EXTENDED else {})

REJECTED: dict[str, tuple[Wish, str, str]] = {
    "a field that devices do not have": (exactly(GPU, "device.memory > 1"), "undefined field 'memory'", "GPU-D107"),
    "access for administration": (exactly(GPU, adminAccess=True), "admin access", "GPU-D108"),
}


@pytest.fixture(scope="module", autouse=True)
def classes(plane: Plane) -> Iterator[None]:
    """The device classes."""
    for each in CLASSES:
        plane.api.create(f"{API}/deviceclasses", each)
    yield
    for each in CLASSES:
        plane.api.delete(f"{API}/deviceclasses/{each['metadata']['name']}")


@pytest.fixture
def publish(plane: Plane) -> Iterator[Callable[..., None]]:
    """A function that publishes slices on new nodes; both are deleted afterwards."""
    nodes: list[str] = []
    created: list[str] = []

    def publish(slices: Sequence[Json], advertised: int = 0) -> None:
        names = sorted({each["spec"]["nodeName"] for each in slices})
        gpus = {"nvidia.com/gpu": advertised} if advertised else {}
        nodes.extend(add_nodes(plane, [make_node(name, {}, **gpus) for name in names]))
        for name in names:
            plane.api.patch(f"{NODES}/{name}/status", {"status": {"nodeInfo": {"kubeletVersion": KUBELET}}})
        created.extend(plane.api.create(f"{API}/resourceslices", each)["metadata"]["name"] for each in slices)

    yield publish
    for name in created:
        plane.api.delete(f"{API}/resourceslices/{name}")
    remove_nodes(plane, nodes)


@pytest.mark.parametrize("run", ALL_RUNS.values(), ids=ALL_RUNS)
def test_pods_get_these_devices(run: Run, plane: Plane, namespace: str, publish: Callable[..., None]) -> None:
    slices = run.slices(f"gpus-{namespace[-6:]}")
    publish(slices, run.advertised)
    _create_pods(run, plane, namespace, _kinds(slices))


def _create_pods(run: Run, plane: Plane, namespace: str, kinds: Mapping[str, str]) -> None:
    """Create the pods of a run, and check what each gets."""
    for index, wish in enumerate(run.pods):
        read_pod = create_pod(plane, namespace, f"pod-{index}", wish)
        if run.devices[index] == WAITING:
            waiting = eventually(read_pod, until=lambda pod: run.message in _message(pod))
            assert not _node(waiting)
        else:
            assert _devices_of(plane, eventually(read_pod, until=_node), kinds) == run.devices[index]


def test_one_node_must_have_the_devices_of_all_claims_of_a_pod(
    plane: Plane, namespace: str, publish: Callable[..., None]
) -> None:
    """Two claims that fit alone: two nodes have two cards each."""
    published = [one for i in range(2) for one in two_cards(f"gpus-{namespace[-6:]}-{i}")]
    publish(published)
    pair = template("pair", exactly(GPU, count=2))
    pair["metadata"]["namespace"] = namespace
    plane.api.create(f"{API}/namespaces/{namespace}/resourceclaimtemplates", pair)
    pod = pod_with_claim(namespace, "pair")
    pod["spec"]["resourceClaims"].append({"name": "more", "resourceClaimTemplateName": "pair"})
    pod["spec"]["containers"][0]["resources"]["claims"].append({"name": "more"})
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    read_pod = partial(plane.api.get, f"/api/v1/namespaces/{namespace}/pods/pair")
    eventually(read_pod, until=lambda found: "cannot allocate all claims" in _message(found))
    nodes = [make_node(one["spec"]["nodeName"]) for one in published]
    [found] = review(pod, view=view_of(*CLASSES, *nodes, *published, pair)).findings
    assert (found.code, found.path) == ("GPU-D104", ("spec", "resourceClaims"))


def test_a_device_that_lacks_an_attribute_ends_no_scheduling_if_the_pod_may_not_use_its_node(
    plane: Plane, namespace: str, publish: Callable[..., None]
) -> None:
    node, pods = f"gpus-{namespace[-6:]}", f"/api/v1/namespaces/{namespace}/pods"
    published, claims = without_driver_version(node), template("newer", exactly(GPU, NEW_DRIVER))
    publish(published)
    claims["metadata"]["namespace"] = namespace
    plane.api.create(f"{API}/namespaces/{namespace}/resourceclaimtemplates", claims)
    anywhere = pod_with_claim(namespace, "newer")
    selecting = anywhere | {"spec": anywhere["spec"] | {"nodeSelector": {"kubernetes.io/hostname": node}}}
    selecting |= {"metadata": anywhere["metadata"] | {"name": "selecting"}}
    for pod in (anywhere, selecting):
        plane.api.create(pods, pod)
    assert _node(eventually(partial(plane.api.get, f"{pods}/selecting"), until=_node)) == node
    eventually(partial(plane.api.get, f"{pods}/newer"), until=lambda pod: "no such key: driverVersion" in _message(pod))
    view = view_of(*CLASSES, *[make_node(each["spec"]["nodeName"]) for each in published], *published, claims)
    found = [review(pod, view=view).findings for pod in (anywhere, selecting)]
    assert [[each.code for each in some] for some in found] == [["GPU-D102"], []]


@pytest.mark.skipif(not CHARGES_EXTENDED, reason="classes serve extended resources from Kubernetes 1.36 on")
def test_a_class_serves_a_name_on_nodes_whose_device_plugin_offers_none(
    plane: Plane, namespace: str, publish: Callable[..., None]
) -> None:
    """Both may serve it in one cluster: each node is as `place` says."""
    both = [f"gpus-{namespace[-6:]}-{name}" for name in ("class", "plugin")]
    for node, advertised in zip(both, (0, 1), strict=True):
        publish(cards(node), advertised)
    nodes = [make_node(both[0], {}), make_node(both[1], {}, **{"nvidia.com/gpu": 1})]
    cluster = [*CLASSES, *nodes, *cards(both[0]), *cards(both[1])]
    wish, got, placed = Wish(limits={"nvidia.com/gpu": "1"}), list[str](), list[list[str]]()
    for index in range(3):
        claims = plane.api.get(f"{API}/namespaces/{namespace}/resourceclaims")["items"]
        made = [each | {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1"} for each in claims]
        found = place_pod(pod_with_limits(namespace, "next", wish), *cluster, *made)
        placed.append(sorted(found.node_name(each.node) for each in found.feasible))
        read_pod = create_pod(plane, namespace, f"pod-{index}", wish)
        fits = _node if placed[-1] else lambda pod: "Insufficient nvidia.com/gpu" in _message(pod)
        stored = eventually(read_pod, until=fits)  # a scheduler that has no devices yet says that it lacks them
        cluster.append(stored | {"kind": "Pod", "apiVersion": "v1"})
        got.append(_node(stored))
    assert (sorted(got[:2]), got[2]) == (both, "")
    assert placed == [both, [each for each in both if each != got[0]], []]


def test_a_pod_waits_while_another_pod_uses_its_claim_on_a_node_that_it_may_not_use(
    plane: Plane, namespace: str, publish: Callable[..., None]
) -> None:
    """The scheduler releases the devices once no pod uses the claim, and allocates others."""
    prefix, pods = f"gpus-{namespace[-6:]}", f"/api/v1/namespaces/{namespace}/pods"
    published = [one for i in range(2) for one in cards(f"{prefix}-{i}")]
    publish(published)
    claims = f"{API}/namespaces/{namespace}/resourceclaims"
    plane.api.create(claims, {"metadata": {"name": "shared"}, **template("shared", exactly(GPU))["spec"]})
    submitted = [_pod_with_shared_claim(namespace, f"{prefix}-{i}") for i in range(2)]
    plane.api.create(pods, submitted[0])
    eventually(partial(plane.api.get, f"{pods}/{prefix}-0"), until=_node)
    plane.api.create(pods, submitted[1])
    read_second = partial(plane.api.get, f"{pods}/{prefix}-1")
    eventually(read_second, until=lambda found: "resourceclaim not available on the node" in _message(found))
    stored = plane.api.get(f"{claims}/shared") | {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1"}
    nodes = [make_node(one["spec"]["nodeName"]) for one in published]
    found = [review(pod, view=view_of(*CLASSES, *nodes, *published, stored)).findings for pod in submitted]
    assert [[each.code for each in some] for some in found] == [[], ["GPU-D104"]]
    plane.api.delete(f"{pods}/{prefix}-0", gracePeriodSeconds="0")
    assert _node(eventually(read_second, until=_node)) == f"{prefix}-1"


def _pod_with_shared_claim(namespace: str, node: str) -> Json:
    """Return a pod for a node, with a claim that others may use too."""
    pod = make_pod(node).namespace(namespace).spec(nodeSelector={"kubernetes.io/hostname": node})
    return pod.claims({"name": "gpus", "resourceClaimName": "shared"}).build()


def _kinds(published: Sequence[Json]) -> Mapping[str, str]:
    """Return the profile or type of each device by its name."""
    return {device["name"]: _kind(device) for each in published for device in each["spec"].get("devices", ())}


@pytest.mark.parametrize("case", REJECTED.values(), ids=REJECTED)
def test_what_the_api_server_rejects_is_said(case: tuple[Wish, str, str], plane: Plane, namespace: str) -> None:
    wish, message, code = case
    with pytest.raises(RefusedError, match=message) as refused:
        plane.api.create(f"{API}/namespaces/{namespace}/resourceclaimtemplates", template("gpus", wish))
    assert refused.value.status == 422
    found = review(template("gpus", wish), view=view_of(*CLASSES, make_node("node"), *cards("node"))).findings
    assert [each.code for each in found] == [code]


FIELDS_SINCE_1_36 = {
    "a toleration of every value that has one",
    "a constraint on a choice",
    "a toleration, an amount and a configuration",
}
"""Claims with tolerations, amounts or `distinctAttribute`, which earlier API servers drop unless gates are on."""

FIELDS_ARE_ON = is_minor_or_newer(36)

REJECTING = {
    name: data for name, (data, _) in REJECTED_CLAIMS.items() if FIELDS_ARE_ON or name not in FIELDS_SINCE_1_36
}
ACCEPTING = {
    name: data for name, data in (ACCEPTED_CLAIMS | VERSIONS).items() if FIELDS_ARE_ON or name not in FIELDS_SINCE_1_36
}


@pytest.mark.parametrize("data", REJECTING.values(), ids=REJECTING)
def test_the_api_server_rejects_claims_as_check_does(data: Json, plane: Plane, namespace: str) -> None:
    with pytest.raises(RefusedError) as refused:
        _create_dry(data, plane, namespace)
    assert refused.value.status in (400, 422)


@pytest.mark.parametrize("data", ACCEPTING.values(), ids=ACCEPTING)
def test_the_api_server_stores_claims_as_check_reads_them(data: Json, plane: Plane, namespace: str) -> None:
    stored = _create_dry(data, plane, namespace)
    assert _choices_of(stored) == _choices_of(data)


@pytest.mark.parametrize("pod", [pod for pod, _ in WRONG_PODS.values()], ids=WRONG_PODS)
def test_the_api_server_rejects_claims_of_pods_as_check_does(pod: Json, plane: Plane, namespace: str) -> None:
    with pytest.raises(RefusedError) as refused:
        _create_dry(pod, plane, namespace)
    assert refused.value.status in (400, 422)


@pytest.mark.parametrize("pod", RIGHT_PODS.values(), ids=RIGHT_PODS)
def test_the_api_server_stores_pods_whose_claims_check_accepts(pod: Json, plane: Plane, namespace: str) -> None:
    assert _create_dry(pod, plane, namespace)["kind"] == "Pod"


def _create_dry(data: Json, plane: Plane, namespace: str) -> Json:
    """Return a claim, template or pod as the API server would store it if kubectl sent it."""
    version, kind = data["apiVersion"], f"{data['kind'].lower()}s"
    named = data | {"metadata": data["metadata"] | {"namespace": namespace}}
    path = f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{namespace}/{kind}"
    return plane.api.create(path, named, dryRun="All", fieldValidation="Strict")


def _choices_of(data: Json) -> list[tuple[DeviceRequest, ...]]:
    """Return what the requests of a claim or template are read as."""
    spec = with_requests_of_v1(data)["spec"]
    read = msgspec.convert(without_nulls(spec.get("spec", spec)), ClaimSpec)
    return [request.choices for request in read.devices.requests]


SERVED_TYPES = [name for name in CLAIM_FIELDS if name != "DeviceDerivedAttribute" or is_minor_or_newer(37)]


@pytest.mark.parametrize("type_name", SERVED_TYPES)
def test_check_knows_every_field_of_claims(plane: Plane, type_name: str) -> None:
    schemas = plane.api.get(f"/openapi/v3{API}")["components"]["schemas"]
    served = schemas[f"io.k8s.api.resource.v1.{type_name}"]["properties"]
    assert served.keys() - CLAIM_FIELDS[type_name].keys() == set()


def test_a_missing_template_is_only_an_event(plane: Plane, namespace: str) -> None:
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod_with_claim(namespace, "lonely"))
    selector = "involvedObject.name=lonely,reason=FailedResourceClaimCreation"
    events = partial(plane.api.get, f"/api/v1/namespaces/{namespace}/events", fieldSelector=selector)
    (event, *_) = eventually(lambda: events()["items"])
    assert '"lonely" not found' in event["message"]


def test_small_needs_stay_off_large_cards_if_the_claim_has_a_choice(
    plane: Plane, namespace: str, publish: Callable[..., None]
) -> None:
    names = [f"gpu-{i}" for i in range(8)]
    small = [card(each, A10, memory="23028Mi") for each in names]
    for node in (f"{namespace[-6:]}-a10-{i}" for i in range(4)):
        publish([resource_slice(f"{node}-{NVIDIA}", NVIDIA, node, nodeName=node, devices=small)])
    publish(cards(f"{namespace[-6:]}-h100", *names))
    fits = f"{at_least('20Gi')} && {CAPACITY}.memory.compareTo(quantity('23028Mi')) <= 0"
    wishes = {"choice": first_available((GPU, fits), (GPU, at_least("20Gi"))), "fixed": exactly(GPU, at_least("20Gi"))}
    nodes = {
        name: [eventually(create_pod(plane, namespace, f"{name}-{i}", wish), until=_node)["spec"] for i in range(10)]
        for name, wish in wishes.items()
    }
    on_large = {name: sum(spec["nodeName"].endswith("-h100") for spec in specs) for name, specs in nodes.items()}
    assert not (RANKS_CHOICES and on_large["choice"])
    assert on_large["fixed"] > 0


@pytest.mark.parametrize("key", QUOTA_KEYS)
def test_a_quota_counts_a_claim_once(key: str, plane: Plane, namespace: str, publish: Callable[..., None]) -> None:
    publish(static_mig(f"gpus-{namespace[-6:]}"))
    wishes = {"claim": exactly(MIG)} | ({"name": Wish(limits={IMPLICIT: "1"})} if CHARGES_EXTENDED else {})
    quotas, claims = f"/api/v1/namespaces/{namespace}/resourcequotas", f"{API}/namespaces/{namespace}/resourceclaims"
    plane.api.create(quotas, {"metadata": {"name": "slices"}, "spec": {"hard": {key: str(len(wishes))}}})
    read_used = partial(plane.api.get, f"{quotas}/slices")
    eventually(read_used, until=lambda quota: quota.get("status", {}).get("used", {}).get(key) == "0")
    for name, wish in wishes.items():
        eventually(create_pod(plane, namespace, name, wish), until=_node)
    eventually(read_used, until=lambda quota: quota["status"]["used"][key] == str(len(wishes)))
    with pytest.raises(RefusedError, match="exceeded quota: slices"):
        plane.api.create(claims, {"metadata": {"name": "more"}, **template("more", exactly(MIG))["spec"]})
    assert read_used()["status"]["used"][key] == str(len(wishes))


@pytest.mark.skipif(not CHARGES_EXTENDED, reason="the scheduler makes claims from Kubernetes 1.36 on")
def test_a_changed_claim_of_the_scheduler_contradicts_its_device(
    plane: Plane, namespace: str, publish: Callable[..., None]
) -> None:
    publish(static_mig(f"gpus-{namespace[-6:]}"))
    claims = f"{API}/namespaces/{namespace}/resourceclaims"
    with claims_changed(plane, namespace, "/spec/devices/requests/0/exactly/deviceClassName", GPU):
        probe = {"metadata": {"name": "probe"}, **template("probe", exactly(MIG))["spec"]}
        eventually(lambda: plane.api.create(claims, probe, dryRun="All"), until=lambda found: _class(found) == GPU)
        eventually(create_pod(plane, namespace, "train", Wish(limits={IMPLICIT: "1"})), until=_node)
    (claim,) = plane.api.get(claims)["items"]
    (result,) = _results(claim)
    assert (_class(claim), result["device"]) == (GPU, "gpu-1-mig-9-0-1")
    assert review_claim(request_of(claim | {"kind": "ResourceClaim"}), policies_of(), view_of(*CLASSES)).findings == ()


@pytest.mark.skipif(not CHARGES_EXTENDED, reason="cards that can be partitioned are on from Kubernetes 1.36 on")
def test_with_the_extender_slices_leave_cards_whole(
    plane: Plane, namespace: str, publish: Callable[..., None], tmp_path: Path
) -> None:
    for number in range(2):
        publish(dynamic_mig(f"gpus-{namespace[-6:]}-{number}"))
    implicit = Wish(limits={f"deviceclass.resource.kubernetes.io/{SMALL}": "1"})
    wishes = {"claim": exactly(SMALL), "another": exactly(SMALL), "name": implicit, "later": implicit}
    with serve_extender(plane, tmp_path) as (extender, entry):
        shared = {key: entry[key] for key in ("tlsConfig", "httpTimeout")}
        with plane.scheduler_with(extenders=[entry, claims_entry(entry["urlPrefix"]) | shared]):
            nodes = [_node(eventually(create_pod(plane, namespace, *each), until=_node)) for each in wishes.items()]
            assert len(set(nodes)) == 1
            # The scheduler alone prefers the node with more free CPU, and cuts the other card.
            extender.kill()
            alone = eventually(create_pod(plane, namespace, "alone", exactly(SMALL)), until=_node)
            assert _node(alone) not in nodes


@pytest.mark.skipif(not CHARGES_EXTENDED, reason="classes serve extended resources from Kubernetes 1.36 on")
def test_with_the_extender_a_gpu_comes_from_the_plugin_or_the_class_that_place_ranks_first(
    plane: Plane, namespace: str, publish: Callable[..., None], tmp_path: Path
) -> None:
    """A small card of a device plugin stays free without the extender: its node has fewer CPUs."""
    published, plugin = f"gpus-{namespace[-6:]}-class", f"gpus-{namespace[-6:]}-plugin"
    publish(two_cards(published))
    a10 = make_node(plugin, A10_LABELS, cpu=8, **{"nvidia.com/gpu": 1})
    wish = Wish(limits={"nvidia.com/gpu": "1", "cpu": "2"})
    placed = place_pod(
        pod_with_limits(namespace, "p", wish), *CLASSES, make_node(published), *two_cards(published), a10
    )
    assert nodes_of_placement(placed) == [plugin, published]
    added = add_nodes(plane, [a10])
    try:
        assert _node(eventually(create_pod(plane, namespace, "alone", wish), until=_node)) == published
        with serve_extender(plane, tmp_path) as (_, entry), plane.scheduler_with(extenders=[entry]):
            nodes = [_node(eventually(create_pod(plane, namespace, name, wish), until=_node)) for name in ("b", "c")]
        assert nodes == [plugin, published]
    finally:
        remove_nodes(plane, added)


@contextmanager
def claims_changed(plane: Plane, namespace: str, path: str, value: str) -> Iterator[None]:
    """Let a MutatingAdmissionPolicy replace a field of new claims of a namespace within the block."""
    rule = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["v1"], "operations": ["CREATE"]}
    patch = f'[JSONPatch{{op: "replace", path: "{path}", value: "{value}"}}]'
    policy = {
        "matchConstraints": {"resourceRules": [rule | {"resources": ["resourceclaims"]}]},
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": namespace, "matchResources": where}
    specs = {"mutatingadmissionpolicies": policy, "mutatingadmissionpolicybindings": binding}
    for kind, spec in specs.items():
        plane.api.create(f"{ADMISSION}/{kind}", {"metadata": {"name": namespace}, "spec": spec})
    yield
    for kind in specs:
        plane.api.delete(f"{ADMISSION}/{kind}/{namespace}")


def create_pod(plane: Plane, namespace: str, name: str, wish: Wish) -> Callable[[], Json]:
    """Create a pod, with a template if it wants a claim, and return a function that reads it."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    if wish.requests:
        plane.api.create(f"{API}/namespaces/{namespace}/resourceclaimtemplates", template(name, wish))
        plane.api.create(pods, pod_with_claim(namespace, name))
    else:
        plane.api.create(pods, pod_with_limits(namespace, name, wish))
    return partial(plane.api.get, f"{pods}/{name}")


def pod_with_limits(namespace: str, name: str, wish: Wish) -> Json:
    """Return a pod that requests extended resources."""
    maker = make_pod(name).namespace(namespace)
    for resource, amount in wish.limits.items():
        maker.requests(resource, amount)
    return maker.build()


def pod_with_claim(namespace: str, template: str) -> Json:
    """Return a pod whose container has the request "gpu" of a claim from a template; both have its name."""
    pod = make_pod(template).namespace(namespace)
    pod.requests("cpu", "2").main["resources"]["claims"] = [{"name": "gpus", "request": "gpu"}]
    return pod.spec(resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": template}]).build()


def template(name: str, wish: Wish) -> Json:
    """Return a template of claims."""
    spec = {"spec": {"devices": {"requests": list(wish.requests)}}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return about | {"spec": spec}


@pytest.fixture(scope="module")
def site(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation whose policies right-size and add tolerations."""
    folder = tmp_path_factory.mktemp("claims")
    policies = folder / "policies"
    policies.mkdir()
    text = policy_text("gpus", mode="enforce", rightSizing={}, injection={"tolerations": "auto"})
    (policies / "gpus.yaml").write_text(text, encoding="utf-8")
    with install_from_page(plane, folder, policies=policies) as installed:
        yield installed


@pytest.mark.parametrize("run", ALL_RUNS.values(), ids=ALL_RUNS)
def test_with_the_webhook_this_is_said_and_pods_get_the_same(
    run: Run, site: Installation, namespace: str, publish: Callable[..., None]
) -> None:
    slices = run.slices(f"gpus-{namespace[-6:]}")
    publish(slices, run.advertised)
    eventually(lambda: codes_printed(site, namespace, run.pods[-1]), until=lambda codes: codes == list(run.codes))
    _create_pods(run, site.plane, namespace, _kinds(slices))


@pytest.mark.parametrize("slices", [static_mig, *([dynamic_mig] if CHARGES_EXTENDED else [])])
def test_a_right_sized_claim_gets_the_smallest_slice(
    slices: Callable[[str], Sequence[Json]], site: Installation, namespace: str, publish: Callable[..., None]
) -> None:
    published, plane = slices(f"gpus-{namespace[-6:]}"), site.plane
    publish(published)
    submitted = template("train", exactly(GPU))
    submitted["metadata"] |= {"annotations": {"rightslice.dev/gpu-memory": "8Gi"}}
    path = f"{API}/namespaces/{namespace}/resourceclaimtemplates"
    dry_run = partial(plane.api.create, path, submitted, dryRun="All")
    eventually(dry_run, until=lambda sized: sized["spec"] != submitted["spec"] and "firstAvailable" in str(sized))
    plane.api.create(path, submitted)
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod_with_claim(namespace, "train"))
    read_pod = partial(plane.api.get, f"/api/v1/namespaces/{namespace}/pods/train")
    assert _devices_of(plane, eventually(read_pod, until=_node), _kinds(published)) == "1g.10gb for gpu/mig-1g-10gb"


@pytest.mark.skipif(not CHARGES_EXTENDED, reason="the scheduler makes claims from Kubernetes 1.36 on")
@pytest.mark.parametrize("slices", [static_mig, dynamic_mig])
def test_a_right_sized_pod_gets_a_slice_of_a_class(
    slices: Callable[[str], Sequence[Json]], site: Installation, namespace: str, publish: Callable[..., None]
) -> None:
    # Of devices that are free, the webhook leaves some to pods that it does not see yet.
    published = [one for index in range(4) for one in slices(f"gpus-{namespace[-6:]}-{index}")]
    publish(published)
    plane = site.plane
    submitted = make_pod("train").namespace(namespace).gpus(1).needs("8Gi").build()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    sized = {f"{DEVICE_CLASS_PREFIX}{SMALL}": "1"}
    dry_run = partial(plane.api.create, pods, submitted, dryRun="All")
    eventually(dry_run, until=lambda pod: pod["spec"]["containers"][0]["resources"]["limits"] == sized)
    plane.api.create(pods, submitted)
    found = _devices_of(plane, eventually(partial(plane.api.get, f"{pods}/train"), until=_node), _kinds(published))
    assert found == "1g.10gb for container-0-request-0"


def test_a_pod_with_a_claim_runs_on_nodes_that_are_tainted_for_gpus(
    site: Installation, namespace: str, publish: Callable[..., None]
) -> None:
    node, plane = f"gpus-{namespace[-6:]}", site.plane
    publish(cards(node))
    plane.api.patch(f"{NODES}/{node}", {"spec": {"taints": [GPU_TAINT]}})
    plane.api.create(f"{API}/namespaces/{namespace}/resourceclaimtemplates", template("train", exactly(GPU)))
    pod, pods = pod_with_claim(namespace, "train"), f"/api/v1/namespaces/{namespace}/pods"
    eventually(partial(plane.api.create, pods, pod, dryRun="All"), until=lambda found: GPU_TAINT["key"] in str(found))
    plane.api.create(pods, pod)
    assert _node(eventually(partial(plane.api.get, f"{pods}/train"), until=_node)) == node


@pytest.mark.parametrize("key", QUOTA_KEYS)
def test_with_the_webhook_a_full_quota_is_said_about_claims_templates_and_pods(
    key: str, site: Installation, namespace: str, publish: Callable[..., None]
) -> None:
    publish(static_mig(f"gpus-{namespace[-6:]}"))
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    site.plane.api.create(quotas, {"metadata": {"name": "slices"}, "spec": {"hard": {key: "1"}}})
    two = exactly(MIG, count=2)
    eventually(lambda: codes_printed(site, namespace, two), until=lambda codes: codes == ["GPU-D109"])
    assert codes_printed(site, namespace, exactly(MIG)) == []
    claim = {**template("two", two), "kind": "ResourceClaim", "spec": template("two", two)["spec"]["spec"]}
    with pytest.raises(RefusedError, match="exceeded quota: slices"):
        site.plane.api.create(f"{API}/namespaces/{namespace}/resourceclaims", claim)


def codes_printed(site: Installation, namespace: str, wish: Wish) -> list[str]:
    """Return what kubectl prints about the template of a claim, or about a pod without one, in a dry run."""
    data = template("gpus", wish) if wish.requests else pod_with_limits(namespace, "dry-run", wish)
    flags = ("--dry-run=server", "--namespace", namespace)
    done = site.plane.kubectl("create", *flags, "-f", "-", stdin=json.dumps(data), check=False)
    return list(dict.fromkeys(re.findall(r"\[(GPU-D\d+)\]", done.stderr)))  # a fix may have a line of its own


def _message(pod: Json) -> str:
    """Return what the scheduler says about a pod that waits."""
    messages = (each.get("message", "") for each in pod["status"].get("conditions", ()) if each["status"] == "False")
    return " ".join(messages)


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _devices_of(plane: Plane, pod: Json, kinds: Mapping[str, str]) -> str:
    """Return the devices of the claims of a pod."""
    namespace, status = pod["metadata"]["namespace"], pod["status"]
    names = [each["resourceClaimName"] for each in status.get("resourceClaimStatuses", ())]
    names += [each["resourceClaimName"] for each in [status.get("extendedResourceClaimStatus")] if each]
    found = [plane.api.get(f"{API}/namespaces/{namespace}/resourceclaims/{name}") for name in names]
    results = [result for claim in found for result in _results(claim)]
    named = [(kinds[each["device"]], each["request"]) for each in results]
    return ", ".join(kind if request == "gpu" else f"{kind} for {request}" for kind, request in named) or ADVERTISED


def _class(claim: Json) -> str:
    return str(claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"])


def _results(claim: Json) -> Sequence[Json]:
    results: Sequence[Json] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return results


def _kind(device: Json) -> str:
    attributes = device["attributes"]
    found = attributes.get("profile") or attributes.get("partitionProfile") or attributes["type"]
    return str(found["string"])
