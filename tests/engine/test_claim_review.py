"""Findings about resource claims, their templates, and pods that have claims."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.conftest import ROOT
from tests.cpu_timer import CpuTimer
from tests.device_builders import (
    AMD,
    NVIDIA,
    allocated,
    card,
    device_class,
    mig_device,
    node_groups,
    partitionable_gpus,
    resource_claim,
    resource_slice,
)
from tests.engine.test_fit import limit_range
from tests.engine.test_workload_review import workload
from tests.example_cluster import NO_USAGE, NOW, policies_of, request_of, review, view_of
from webhook.audit.pod_audit import audit_claims
from webhook.documents.reader import read_documents
from webhook.engine.decision_cache import DecisionCache
from webhook.engine.pod_claim_review import NAME_A_CLAIM
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.device_view import NO_DEVICES, DeviceKind, DeviceView
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import format_path
from webhook.model.findings import Finding
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX

ATTRIBUTES, MEMORY = "device.attributes['gpu.nvidia.com']", "device.capacity['gpu.nvidia.com'].memory"
PROCESSORS = "device.capacity['gpu.nvidia.com'].multiprocessors"
CLASSES = [
    device_class("gpu", f"device.driver == '{NVIDIA}' && {ATTRIBUTES}.type == 'gpu'"),
    device_class("mig", f"device.driver == '{NVIDIA}' && {ATTRIBUTES}.type == 'mig'"),
]
A10 = card("gpu-0", "NVIDIA A10", memory="23028Mi")
CLUSTER = [
    make_node("h100", {}),
    make_node("a10", {}),
    *partitionable_gpus("h100", 2),
    resource_slice("a10", NVIDIA, "a10", nodeName="a10", devices=[A10]),
    *CLASSES,
]


def request(*expressions: str, name: str = "gpu", **fields: Any) -> Json:
    """Return a request for devices of a class."""
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": "g", "exactly": {"deviceClassName": name, "selectors": selectors, **fields}}


def claim(*requests: Json, **devices: Any) -> Json:
    """Return a ResourceClaim."""
    spec = {"devices": {"requests": list(requests), **devices}}
    metadata = {"name": "c", "namespace": "team"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def at_least(memory: str) -> str:
    """Return the selector of devices with so much memory."""
    return f"{MEMORY}.compareTo(quantity('{memory}')) >= 0"


def template(*requests: Json, **devices: Any) -> Json:
    """Return a ResourceClaimTemplate."""
    return claim() | {"kind": "ResourceClaimTemplate", "spec": {"spec": claim(*requests, **devices)["spec"]}}


def findings(data: Json, *cluster: Json) -> list[Finding]:
    """Return the findings about a new object."""
    return list(review(data, view=view_of(*(cluster or CLUSTER))).findings)


def test_the_claim_that_the_page_shows_is_one_of_which_nothing_is_said() -> None:
    page = (ROOT / "docs" / "dra.md").read_text(encoding="utf-8")
    block, *_ = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shown, pod = (dict(document.data) for document in read_documents(block.encode(), "dra.md"))
    classes = [device_class(f"{each['metadata']['name']}.nvidia.com", **_selector_of(each)) for each in CLASSES]
    cluster = [*CLUSTER, *classes, shown | {"metadata": {"name": "notebook-gpu", "namespace": "team"}}]
    assert (findings(shown, *cluster), findings(pod, *cluster)) == ([], [])


def _selector_of(each: Json) -> dict[str, str]:
    return {"expression": each["spec"]["selectors"][0]["cel"]["expression"]}


def shared_card(name: str, **policy: Any) -> Json:
    """Return a card whose memory several claims may have."""
    memory = {"value": "40Gi", **({"requestPolicy": policy} if policy else {})}
    return card(name) | {"allowMultipleAllocations": True, "capacity": {"memory": memory}}


def test_all_devices_that_have_room_can_be_allocated() -> None:
    """The first request takes the card with a policy; while others use part of it, all that have room is the other."""
    cards = [shared_card("gpu-0"), shared_card("gpu-1", default="10Gi", validValues=["10Gi", "40Gi"])]
    cluster = [make_node("node"), resource_slice("s", NVIDIA, "node", nodeName="node", devices=cards), *CLASSES]
    every = request(allocationMode="All", capacity={"requests": {"memory": "30Gi"}}) | {"name": "all"}
    assert [each.code for each in findings(claim(request(), every), *cluster)] == ["GPU-D111"]


@pytest.mark.parametrize(("count", "is_reported"), [(32, False), (33, True)])
def test_all_devices_of_a_node_may_be_more_than_a_claim_can_get(count: int, *, is_reported: bool) -> None:
    devices = [mig_device(f"mig-{i}", "1g.10gb", "GPU-0") for i in range(count)]
    some = {"small": devices[:1], "large": devices}
    slices = [resource_slice(name, NVIDIA, name, nodeName=name, devices=each) for name, each in some.items()]
    namespace = make_namespace("team", **{"resource.kubernetes.io/admin-access": "true"})
    cluster = [namespace, make_node("small"), make_node("large"), *slices, *CLASSES]
    found = findings(claim(request(name="mig", allocationMode="All", adminAccess=True)), *cluster)
    assert [f"{each.code} {'node large' in each.message}" for each in found] == ["GPU-D104 True"] * is_reported


def replaced_card(name: str, count: int, generation: int = 1) -> Json:
    """Return a slice of a card of a pool on the node "a", which has so many slices of this generation."""
    about = resource_slice(name, NVIDIA, "a", count, nodeName="a", devices=[card(name, uuid=name)])
    about["spec"]["pool"]["generation"] = generation
    return about


REPLACED: dict[str, tuple[list[Json], Json, list[str]]] = {
    "a pool that lacks a slice": (
        [replaced_card("gpu-0", 2)],
        request(),
        ["those that match are not: pool a lacks slices"],
    ),
    "a newer generation without the device": (
        [replaced_card("gpu-0", 1), replaced_card("gpu-1", 1, 2)],
        request(f"{ATTRIBUTES}.uuid == 'gpu-0'"),
        ["those that match are not: pool a has a newer generation without them"],
    ),
    "fewer devices than are requested, of those that can be allocated": (
        [replaced_card("gpu-0", 1), replaced_card("gpu-1", 1, 2)],
        request(count=2),
        ["found no node of this cluster that has all of them"],
    ),
    "all devices, and a pool that lacks a slice": (
        [*CLUSTER, make_node("a", {}), replaced_card("gpu-0", 2)],
        request(allocationMode="All", adminAccess=True),
        [f"is an error on the nodes of pool {NVIDIA}/a, for which slices are missing; it ends scheduling on all nodes"],
    ),
    "all devices, and such a pool of a node that is gone": (
        [*CLUSTER, replaced_card("gpu-0", 2)],
        request(allocationMode="All", adminAccess=True),
        [],
    ),
    "all devices of pools that lack none": (CLUSTER, request(allocationMode="All", adminAccess=True), []),
}


@pytest.mark.parametrize(("slices", "requested", "words"), REPLACED.values(), ids=REPLACED)
def test_devices_of_pools_that_are_being_replaced_cannot_be_allocated(
    slices: list[Json], requested: Json, words: list[str]
) -> None:
    namespace = make_namespace("team", **{"resource.kubernetes.io/admin-access": "true"})
    cluster = [make_node("a", {}), *CLASSES] if slices[0]["kind"] == "ResourceSlice" else []
    found = findings(claim(requested), namespace, *cluster, *slices)
    assert [each.code for each in found] == ["GPU-D104"] * len(words)
    assert all(text in each.message for text, each in zip(words, found, strict=True))


CODES: dict[str, tuple[Json, list[str]]] = {
    "a whole GPU": (claim(request()), []),
    "a slice that is there": (claim(request(f"{ATTRIBUTES}.profile == '1g.10gb'", name="mig")), []),
    "a profile that no card has": (claim(request(f"{ATTRIBUTES}.profile == '1g.5gb'", name="mig")), ["GPU-D101"]),
    "a misspelled attribute": (claim(request(f"{ATTRIBUTES}.productname == 'NVIDIA A10'")), ["GPU-D102"]),
    "an attribute that whole GPUs lack, in a class that has it": (
        claim(request(f"{ATTRIBUTES}.parentUUID != ''", name="mig")),
        [],
    ),
    "a bound just above a slice": (
        claim(request(f"{MEMORY}.compareTo(quantity('10Gi')) >= 0", name="mig")),
        ["GPU-D103"],
    ),
    "a bound just above a slice, and more such slices than a node has": (
        claim(request(f"{MEMORY}.compareTo(quantity('10Gi')) >= 0", name="mig", count=30)),
        ["GPU-D103", "GPU-D104"],
    ),
    "a bound that a slice meets": (claim(request(f"{MEMORY}.compareTo(quantity('9500Mi')) >= 0", name="mig")), []),
    "a bound that no card meets": (claim(request(f"{MEMORY}.compareTo(quantity('80Gi')) >= 0")), ["GPU-D101"]),
    "a bound just above a slice, in other words": (
        claim(request(f"!(quantity('10Gi').isGreaterThan({MEMORY}))", name="mig")),
        ["GPU-D103"],
    ),
    "an amount of capacity just above a slice": (
        claim(request(name="mig", capacity={"requests": {"memory": "10Gi"}})),
        ["GPU-D103"],
    ),
    "an amount of capacity that a slice has": (
        claim(request(name="mig", capacity={"requests": {"memory": "9500Mi"}})),
        [],
    ),
    "an amount of capacity that no card has": (
        claim(request(capacity={"requests": {"memory": "80Gi"}})),
        ["GPU-D101"],
    ),
    "an amount of a capacity that no card publishes": (
        claim(request(capacity={"requests": {"cores": "1"}})),
        ["GPU-D101"],
    ),
    "two cards": (claim(request(count=2)), []),
    "more cards than a node has": (claim(request(count=3)), ["GPU-D104"]),
    "more devices than a claim can get": (claim(request(count=33)), ["GPU-D104"]),
    "more of them in several requests": (
        claim(*(request(name="mig", count=count) | {"name": f"r{count}"} for count in (16, 17))), ["GPU-D104"],
    ),
    "more of them in one of two choices": (
        claim({"name": "g", "firstAvailable": [{"name": "a", "deviceClassName": "gpu", "count": 33},
                                               {"name": "b", "deviceClassName": "gpu"}]}),
        [],
    ),
    "more of them of a class that is not known": (claim(request(name="gpus", count=33)), ["GPU-D106", "GPU-D104"]),
    "cards of one product on different roots": (
        claim(
            request(f"{ATTRIBUTES}.productName == 'NVIDIA A10'"),
            constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}],
        ),
        [],
    ),
    "cards with one UUID": (
        claim(request(count=2), constraints=[{"matchAttribute": "gpu.nvidia.com/uuid"}]),
        ["GPU-D105"],
    ),
    "a class that does not exist": (claim(request(name="gpus")), ["GPU-D106"]),
    "a field that devices lack": (claim(request("device.attribute['x'].y == 1")), ["GPU-D107"]),
    "a selector that is too long": (claim(request(" || ".join(["true"] * 1500))), ["GPU-D107"]),
    "all devices of a node": (claim(request(allocationMode="All")), ["GPU-D111"]),
    "all devices of a class that holds no GPUs": (
        claim(request(name="compute-domain-a.nvidia.com", allocationMode="All")),
        ["GPU-D106"],
    ),
    "administrative access": (claim(request(adminAccess=True)), ["GPU-D108"]),
    "one of two choices that nothing matches": (
        claim(
            {
                "name": "g",
                "firstAvailable": [
                    {"name": "a", "deviceClassName": "mig"},
                    {"name": "b", "deviceClassName": "gpu", "selectors": [{"cel": {"expression": "false"}}]},
                ],
            }
        ),
        [],
    ),
    "two choices that nothing matches": (
        claim(
            {
                "name": "g",
                "firstAvailable": [
                    {"name": name, "deviceClassName": name, "selectors": [{"cel": {"expression": "false"}}]}
                    for name in ("gpu", "mig")
                ],
            }
        ),
        ["GPU-D101", "GPU-D101"],
    ),
    "a selector that is not evaluated here": (claim(request("duration('1h') < duration('1m')")), []),
    "a template": (template(request("device.driver == 'other'")), ["GPU-D101"]),
    "a claim of the scheduler": (
        claim(request(name="gpus"))
        | {"metadata": {"name": "c", "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}},
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "codes"), CODES.values(), ids=CODES)
def test_a_claim_is_reviewed(data: Json, codes: list[str]) -> None:
    assert [each.code for each in findings(data)] == codes


def test_the_nearest_device_and_the_condition_that_it_fails_are_named() -> None:
    [found] = findings(claim(request(f"{MEMORY}.compareTo(quantity('80Gi')) >= 0")))
    assert str(found) == (
        "[GPU-D101] spec.devices.requests[0].exactly.selectors[0].cel.expression: must match a device of this cluster, "
        "and none of its 39 devices matches; the nearest, gpu-0 of h100 (NVIDIA H100 80GB HBM3), fails "
        f"{MEMORY}.compareTo(quantity('80Gi')) >= 0. "
        f"If 81559Mi is enough, write {MEMORY}.compareTo(quantity('81559Mi')) >= 0"
    )


NEAREST: dict[str, tuple[Json, str]] = {
    "of slices that are too small, the largest": (
        request(f"{MEMORY}.compareTo(quantity('500Gi')) >= 0", name="mig"),
        "(7g.80gb, ",
    ),
    "of slices that are too large, the smallest": (
        request(f"{MEMORY}.isLessThan(quantity('1Gi'))", name="mig"),
        "(1g.10gb, ",
    ),
    "of slices around a size, one just below it": (
        request(f"{MEMORY}.compareTo(quantity('21Gi')) == 0", name="mig"),
        "(1g.20gb, ",
    ),
    "a small slice that fails the bound alone": (
        request(f"{MEMORY}.isGreaterThan(quantity('500Gi')) && {ATTRIBUTES}.profile == '1g.10gb'", name="mig"),
        "(1g.10gb, ",
    ),
    "of cards that are too small, the larger": (
        request(f"{MEMORY}.isGreaterThan(quantity('500Gi'))"),
        "(NVIDIA H100 80GB HBM3)",
    ),
    "a slice that misses a bound by little, whatever else all slices lack": (
        request(f"{ATTRIBUTES}.productName == 'NVIDIA B300'", f"{MEMORY}.isGreaterThan(quantity('100Gi'))", name="mig"),
        "(7g.80gb, ",
    ),
}


@pytest.mark.parametrize(("requested", "kind"), NEAREST.values(), ids=NEAREST)
def test_the_nearest_device_is_the_one_that_misses_least(requested: Json, kind: str) -> None:
    [found] = findings(claim(requested))
    assert found.code == "GPU-D101"
    assert kind in found.message


IS_3G = f"{ATTRIBUTES}.profile == '3g.40gb'"
OF_CLASS: dict[str, tuple[Json, str, str]] = {
    "a key that only devices of another class have": (
        request(IS_3G),
        "GPU-D102 gpu-0 of a10",
        "No device of class gpu has profile. Request class mig.",
    ),
    "a guarded key that only devices of another class have": (
        request(f"'profile' in {ATTRIBUTES} && {IS_3G}"),
        "GPU-D101 gpu-0 of a10",
        "No device of class gpu has profile. Request class any or mig.",
    ),
    "a size that only devices of another class have": (
        request(f"{MEMORY}.isLessThan(quantity('10Gi'))"),
        "GPU-D101 gpu-0 of a10",
        "Change the condition, or request class any or mig.",
    ),
    "a class that selects no device": (
        request(f"{MEMORY}.isLessThan(quantity('10Gi'))", name="l4"),
        "GPU-D101 class l4 excludes all of its 39 devices",
        "Request class any or mig.",
    ),
    "a class that selects no device, whatever the request is": (
        request(name="l4"),
        "GPU-D101 class l4 excludes all of its 39 devices",
        "Devices have productName NVIDIA A10, NVIDIA H100 80GB HBM3.",
    ),
}


@pytest.mark.parametrize(("requested", "about", "fix"), OF_CLASS.values(), ids=OF_CLASS)
def test_devices_that_the_class_excludes_are_nearest_only_without_others(requested: Json, about: str, fix: str) -> None:
    of_driver = f"device.driver == '{NVIDIA}'"
    l4 = device_class("l4", f"{of_driver} && {ATTRIBUTES}.productName == 'NVIDIA L4'")
    [found] = findings(claim(requested), *CLUSTER, device_class("any", of_driver), l4)
    code, text = about.split(" ", 1)
    assert (found.code, found.fix) == (code, fix)
    assert text in found.message


@pytest.mark.parametrize(
    ("attribute", "fix"),
    [
        ("gpu.nvidia.com/productname", "Write gpu.nvidia.com/productName."),
        ("resource.kubernetes.io/pcieroot", "Write resource.kubernetes.io/pcieRoot."),
        ("gpu.nvidia.com/pcieRoot", "Write resource.kubernetes.io/pcieRoot."),
        ("example.com/rack", "Remove the constraint, or write one that devices have: gpu.nvidia.com/addressingMode, "),
    ],
)
def test_a_constraint_on_an_attribute_that_no_device_has_names_the_one_that_is_meant(attribute: str, fix: str) -> None:
    data = claim(request(count=2), constraints=[{"requests": ["g"], "matchAttribute": attribute}])
    [found] = findings(data, *CLUSTER)
    assert (found.code, format_path(found.path)) == ("GPU-D105", "spec.devices.constraints[0].matchAttribute")
    assert f"none that matches has {attribute}" in found.message
    assert found.fix.startswith(fix)


@pytest.mark.parametrize(
    ("constraints", "index", "words"),
    [
        ([{"distinctAttribute": "gpu.nvidia.com/uuid"}, {"matchAttribute": "gpu.nvidia.com/uuid"},
          {"matchAttribute": "gpu.nvidia.com/productName"}], 1, "equal values of gpu.nvidia.com/uuid that satisfy"),
        ([{"matchAttribute": "gpu.nvidia.com/productName"}, {"matchAttribute": "gpu.nvidia.com/type"},
          {"distinctAttribute": "gpu.nvidia.com/type"}], 2, "different values of gpu.nvidia.com/type that satisfy"),
    ],
)  # fmt: skip
def test_the_first_of_several_constraints_that_does_not_hold_is_named(
    constraints: list[Json], index: int, words: str
) -> None:
    data = claim(request(), request() | {"name": "h"}, constraints=constraints)
    [found] = findings(data, *CLUSTER)
    assert found.path[-2] == index
    assert words in found.message


def test_more_slices_of_one_card_than_it_has_are_found_impossible() -> None:
    profile = f"{ATTRIBUTES}.profile == '1g.10gb'"
    together = [{"matchAttribute": "gpu.nvidia.com/parentUUID"}]
    fitting, excessive = (claim(request(profile, name="mig", count=n), constraints=together) for n in (7, 8))
    assert findings(fitting, *CLUSTER) == []
    assert [one.code for one in findings(excessive, *CLUSTER)] == ["GPU-D105"]


def test_a_constraint_is_reviewed_on_one_of_many_equal_nodes() -> None:
    roots = [{"string": f"pci{i}"} for i in range(8)]
    cards = [card(f"gpu-{i}", minor=i) for i in range(8)]
    for one, root in zip(cards, roots, strict=True):
        one["attributes"] |= {"resource.kubernetes.io/pcieRoot": root}
    names = [f"n{i}" for i in range(600)]
    slices = [resource_slice(name, NVIDIA, name, nodeName=name, devices=cards) for name in names]
    cluster = [*map(make_node, names), *slices, *CLASSES]
    requests = [request(), request() | {"name": "h"}, request() | {"name": "i"}]
    found = [
        findings(claim(*requests, constraints=[{key: "resource.kubernetes.io/pcieRoot"}]), *cluster)
        for key in ("matchAttribute", "distinctAttribute")
    ]
    assert [[one.code for one in some] for some in found] == [["GPU-D105"], []]


@pytest.mark.parametrize(("count", "codes"), [(7, []), (8, ["GPU-D105"])])
def test_cards_of_many_nodes_differ_only_in_their_uuid_for_a_constraint(count: int, codes: list[str]) -> None:
    profile = request(f"{ATTRIBUTES}.profile == '1g.10gb'", name="mig", count=count)
    names = [f"n{i}" for i in range(60)]
    slices = [one for name in names for one in partitionable_gpus(name, 2)]
    together = claim(profile, constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}])
    assert [one.code for one in findings(together, *map(make_node, names), *slices, *CLASSES)] == codes


def test_a_missing_key_is_named_with_the_guarded_expression() -> None:
    [found] = findings(claim(request(f"{ATTRIBUTES}.brand == 'x' && {ATTRIBUTES}.nvlink == 'y'", name="gpu")))
    assert found.code == "GPU-D101", "the first condition already excludes all"
    fast = card("gpu-0") | {"attributes": card("gpu-0")["attributes"] | {"nvlink": {"string": "y"}}}
    cluster = [*CLUSTER, make_node("fast"), resource_slice("fast", NVIDIA, "fast", nodeName="fast", devices=[fast])]
    selector = f"{ATTRIBUTES}.brand == 'Nvidia' && {ATTRIBUTES}.nvlink == 'y'"
    [found] = findings(claim(request(selector, name="gpu")), *cluster)
    assert "lacks nvlink" in found.message
    assert (
        found.fix == f"Write {ATTRIBUTES}.brand == 'Nvidia' && 'nvlink' in {ATTRIBUTES} && {ATTRIBUTES}.nvlink == 'y'"
    )


def test_a_misspelled_key_names_the_right_one() -> None:
    [found] = findings(claim(request(f"{ATTRIBUTES}.productname == 'NVIDIA A10'")))
    assert found.fix == "No device has productname. Write productName."


WRITTEN: dict[str, tuple[str, str]] = {
    "a capacity that is read as an attribute": (
        f"{ATTRIBUTES}.memory.compareTo(quantity('9Gi')) >= 0",
        f"No device has {ATTRIBUTES}.memory. Write {MEMORY}.",
    ),
    "a misspelled domain, which is an empty map": (
        "device.attributes['gpu.nvida.com'].productName == 'NVIDIA A10'",
        f"No device has device.attributes['gpu.nvida.com'].productName. Write {ATTRIBUTES}.productName.",
    ),
    "a test of a key of a misspelled domain": (
        "'productName' in device.attributes['gpu.nvida.com']",
        f"No device has device.attributes['gpu.nvida.com'].productName. Write {ATTRIBUTES}.productName.",
    ),
    "a key that is like none": (
        "device.capacity['gpu.nvidia.com'].vram.compareTo(quantity('9Gi')) >= 0",
        "No device has vram. Those of class gpu have memory.",
    ),
    "a test of a key that is like none": (
        "'vram' in device.capacity['gpu.nvidia.com']",
        "No device has vram. Those of class gpu have memory.",
    ),
    "a product that is almost one": (f"{ATTRIBUTES}.productName == 'nvidia a10 '", "Write 'NVIDIA A10'."),
    "the beginning of a product": (f"{ATTRIBUTES}.productName == 'NVIDIA H100'", "Write 'NVIDIA H100 80GB HBM3'."),
    "words of a product that are joined otherwise": (
        f"{ATTRIBUTES}.productName == 'nvidia-h100'",
        "Write 'NVIDIA H100 80GB HBM3'.",
    ),
    "one of two products": (
        f"{ATTRIBUTES}.productName == 'NVIDIA H100' || {ATTRIBUTES}.productName == 'NVIDIA B200'",
        "Write 'NVIDIA H100 80GB HBM3'.",
    ),
    "a product of which one digit at the end is wrong": (
        f"{ATTRIBUTES}.productName == 'NVIDIA H100 80GB HBM2'",
        "Write 'NVIDIA H100 80GB HBM3'.",
    ),
    "a beginning of which the case alone differs": (
        f"{ATTRIBUTES}.productName.startsWith('nvidia')",
        "Write 'NVIDIA'.",
    ),
    "a part that all products have": (
        f"!{ATTRIBUTES}.productName.contains('NVIDIA')",
        "Devices have productName NVIDIA A10, NVIDIA H100 80GB HBM3.",
    ),
    "another product of almost the same name": (
        f"{ATTRIBUTES}.productName == 'NVIDIA A40'",
        "Devices have productName NVIDIA A10, NVIDIA H100 80GB HBM3.",
    ),
    "a value that devices of another class have": (
        f"{ATTRIBUTES}.type == 'mig'",
        "Change the condition, or request class mig. Devices have type gpu.",
    ),
    "a list of products": (f"{ATTRIBUTES}.productName in ['B200', 'NVIDIA-A10']", "Write 'NVIDIA A10'."),
    "a text that no value can be": (
        f"{ATTRIBUTES}.productName.lowerAscii() == 'nvidia a1'",
        "Devices have productName NVIDIA A10, NVIDIA H100 80GB HBM3.",
    ),
    "a product that is like none": (
        f"{ATTRIBUTES}.productName == 'B300'",
        "Devices have productName NVIDIA A10, NVIDIA H100 80GB HBM3.",
    ),
    "a version": (
        f"{ATTRIBUTES}.cudaComputeCapability.isGreaterThan(semver('12.0.0'))",
        "Devices have cudaComputeCapability 9.0.0.",
    ),
    "a capacity that is compared as a number": (
        f"{MEMORY} >= 10",
        "To compare a capacity, write .compareTo(quantity('10Gi')) >= 0; texts are in device.attributes.",
    ),
    "an attribute that is read as a capacity": (
        "device.capacity['gpu.nvidia.com'].productName == 'NVIDIA A10'",
        "To compare a capacity, write .compareTo(quantity('10Gi')) >= 0; texts are in device.attributes.",
    ),
    "a text that is no quantity": (
        f"{MEMORY}.compareTo(quantity('10GB')) >= 0",
        "Correct the value that causes this error, or exclude such devices before it is read.",
    ),
    "a text and a version": (
        f"{ATTRIBUTES}.cudaComputeCapability == '9.0.0'",
        "Write semver('9.0.0') for '9.0.0'.",
    ),
    "two bounds": (
        f"{MEMORY}.compareTo(quantity('80Gi')) >= 0 && {ATTRIBUTES}.brand == 'Nvidia'",
        f"If 81559Mi is enough, write {MEMORY}.compareTo(quantity('81559Mi')) >= 0 && {ATTRIBUTES}.brand == 'Nvidia'",
    ),
}


@pytest.mark.parametrize(("expression", "fix"), WRITTEN.values(), ids=WRITTEN)
def test_what_is_meant_is_written(expression: str, fix: str) -> None:
    [found] = findings(claim(request(expression)))
    assert found.fix == fix


@pytest.mark.parametrize(
    ("device", "slices"),
    [
        (card("gpu-0", "NVIDIA H100 64GB") | {"taints": [{"key": "k", "effect": "NoExecute"}]}, 1),
        (card("gpu-0", "NVIDIA H100 64GB"), 2),
    ],
    ids=["a taint", "a pool that lacks a slice"],
)
def test_the_product_of_a_device_that_can_be_allocated_is_preferred(device: Json, slices: int) -> None:
    other = resource_slice("other", NVIDIA, "other", slices, nodeName="other", devices=[device])
    data = claim(request(f"{ATTRIBUTES}.productName == 'NVIDIA H100'"))
    assert findings(data, *CLUSTER, make_node("other", {}), other)[0].fix == "Write 'NVIDIA H100 80GB HBM3'."
    data = claim(request(f"{ATTRIBUTES}.productName == 'B300'"))
    [found] = findings(data, *CLUSTER, make_node("other", {}), other)
    assert found.fix == "Devices have productName NVIDIA A10, NVIDIA H100 80GB HBM3, NVIDIA H100 64GB."


JUST_ABOVE: dict[str, tuple[str, str]] = {
    "a number of bytes": (f"{MEMORY}.asInteger() >= 10737418240", f"{MEMORY}.asInteger() >= 10328473600"),
    "a product of numbers": (
        f"{MEMORY}.asInteger() >= 10 * 1024 * 1024 * 1024",
        f"{MEMORY}.asInteger() >= 10328473600",
    ),
    "a number of mebibytes": (
        f"{MEMORY}.asInteger() / 1024 / 1024 >= 10240",
        f"{MEMORY}.asInteger() / 1024 / 1024 >= 9850",
    ),
    "a floating-point number": (
        f"{MEMORY}.asApproximateFloat() / 1073741824.0 > 10.0",
        f"{MEMORY}.asApproximateFloat() / 1073741824.0 > 9.0",
    ),
}


@pytest.mark.parametrize(("written", "fitting"), JUST_ABOVE.values(), ids=JUST_ABOVE)
def test_a_bound_just_above_a_slice_is_found_however_it_is_written(written: str, fitting: str) -> None:
    [found] = findings(claim(request(written, name="mig")))
    assert (found.code, found.fix) == ("GPU-D103", f"If 9850Mi is enough, write {fitting}")
    assert found.message.endswith("less than 10Gi")
    assert findings(claim(request(fitting, name="mig"))) == []


def two_sizes() -> list[Json]:
    """Return a node with a slice that has 16 multiprocessors, and one of twice its size."""
    devices = [mig_device(f"mig-{name}", name, "GPU-0", memory=memory) for name, memory in SIZES.items()]
    devices[1]["capacity"]["multiprocessors"] = {"value": "32"}
    return [make_node("n", {}), resource_slice("n", NVIDIA, "n", nodeName="n", devices=devices), *CLASSES]


def test_two_bounds_that_fit_are_written_together() -> None:
    above = f"{MEMORY}.compareTo(quantity('10Gi')) >= 0 && {PROCESSORS}.isGreaterThan(quantity('16'))"
    [found] = findings(claim(request(above, name="mig")), *two_sizes())
    fitting = above.replace("10Gi", "9850Mi").replace("'16'", "'15'")
    assert (found.code, found.fix) == ("GPU-D103", f"If 9850Mi and 16 are enough, write {fitting}")
    assert findings(claim(request(fitting, name="mig")), *two_sizes()) == []


def test_two_selectors_whose_bounds_are_just_above_a_slice_are_both_reported() -> None:
    above = request(f"{MEMORY}.compareTo(quantity('10Gi')) >= 0", f"{PROCESSORS}.asInteger() >= 17", name="mig")
    found = findings(claim(above), *two_sizes())
    assert [(each.code, each.fix.split()[1]) for each in found] == [("GPU-D103", "9850Mi"), ("GPU-D103", "16")]


def test_an_amount_of_capacity_that_fits_is_written() -> None:
    [found] = findings(claim(request(name="mig", capacity={"requests": {"memory": "10Gi"}})))
    assert format_path(found.path) == "spec.devices.requests[0].exactly.capacity.requests.memory"
    assert found.message.endswith("which has 9850Mi of memory: less than 10Gi")
    assert found.fix == "If 9850Mi is enough, write 9850Mi."


CAPACITIES: dict[str, tuple[str, str]] = {
    "the domain beside the name": ("gpu.nvidia.com/memory", "Write memory."),
    "a misspelled name": ("memry", "Write memory."),
    "a name that is like none": ("foo", "They have memory."),
}


@pytest.mark.parametrize(("name", "fix"), CAPACITIES.values(), ids=CAPACITIES)
def test_a_capacity_that_no_device_has_is_named(name: str, fix: str) -> None:
    slices = [make_node("a10", {}), *CLUSTER[-3:]]
    [found] = findings(claim(request(capacity={"requests": {"memory": "1Gi", name: "1"}})), *slices)
    assert (found.code, found.path[-1], found.fix) == ("GPU-D101", name, fix)


def test_a_bound_that_fits_is_written() -> None:
    [found] = findings(claim(request(f"{MEMORY}.compareTo(quantity('10Gi')) >= 0", name="mig")))
    assert "has 9850Mi of memory: less than 10Gi" in found.message
    assert found.fix == f"If 9850Mi is enough, write {MEMORY}.compareTo(quantity('9850Mi')) >= 0"


def test_an_expression_that_does_not_compile_is_located() -> None:
    [found] = findings(claim(request("device.driver == 'a' &&\n  device.attribute['x'] == 1")))
    assert found.message == "must be CEL on a device, found at line 2, column 3: undefined field 'attribute'"


def listed(view: ClusterView, *unlisted: DeviceKind) -> ClusterView:
    """Return a view all of whose objects about devices were read, but those of some kinds."""
    return view.with_devices(view.devices._replace(unlisted=frozenset(unlisted)))


def test_what_an_unknown_class_may_serve_is_not_reported_as_missing() -> None:
    """Neither a name that no node advertises, nor devices that one class alone would have."""
    by_name = make_pod().namespace("team").gpus(1).requests("example.com/card", "1").build()
    job = workload("Job", claiming("a", "b"), "batch/v1", parallelism=20, completions=20)
    view, policy = listed(view_of(*CLUSTER[: -len(CLASSES)], template(request(count=3)))), "mode: warn\nrightSizing: {}"
    for new, codes in ((by_name, {"GPU-T201"}), (job, {"GPU-D106"})):
        assert {each.code for each in review(new, policy, view=view).findings} >= codes
        assert review(new, policy, view=listed(view, DeviceKind.CLASS)).findings == ()


NO_CLASS: dict[str, tuple[list[Json], list[tuple[str, str]]]] = {
    "a cluster with classes names the nearest": (
        CLUSTER,
        [("must be a device class of this cluster, found gpus", "Write gpu.")],
    ),
    "a cluster with devices and no class says that it has none": (
        CLUSTER[: -len(CLASSES)],
        [("must be a device class of this cluster, which has none, found gpus", "Create it.")],
    ),
    "of a cluster with neither, nothing is known": (CLUSTER[:2], []),
}


@pytest.mark.parametrize(("cluster", "expected"), NO_CLASS.values(), ids=NO_CLASS)
def test_a_class_that_does_not_exist_is_reported(cluster: list[Json], expected: list[tuple[str, str]]) -> None:
    new, view = claim(request(name="gpus")), view_of(*cluster)
    found = review(new, view=listed(view)).findings
    assert [(each.code, each.message, each.fix) for each in found] == [("GPU-D106", *each) for each in expected]
    assert review(new, view=listed(view, DeviceKind.CLASS)).findings == ()


def test_the_taint_of_the_only_devices_that_match_is_named() -> None:
    taints = [{"key": "health", "value": "bad", "effect": "NoSchedule"}, {"key": "seen", "effect": "None"}]
    tainted = A10 | {"taints": taints}
    slices = resource_slice("a10", NVIDIA, "a10", nodeName="a10", devices=[tainted])
    cluster = [make_node("a10", {}), slices, *CLASSES]
    [found] = findings(claim(request()), *cluster)
    assert found.code == "GPU-D104"
    text = "found health=bad:NoSchedule; tolerations of pods do not count"
    assert found.message == f"must tolerate a taint of the devices that match, {text}"
    toleration = "{key: health, operator: Equal, value: bad, effect: NoSchedule}"
    assert found.fix == f"Write tolerations: [{toleration}] in the request of the claim."
    [by_name] = findings(make_pod().requests("deviceclass.resource.kubernetes.io/gpu", 1).build(), *cluster)
    assert (by_name.message, by_name.fix) == (found.message, NAME_A_CLAIM)
    assert [each.reason for each in (found, by_name)] == ["UntoleratedTaint"] * 2
    tolerated = request(tolerations=[{"key": "health", "operator": "Exists"}])
    assert not findings(claim(tolerated), *cluster)
    [too_many] = findings(claim(request(count=2)), *cluster)
    assert (too_many.fix, too_many.reason) == ("Request fewer devices.", "")


def test_a_quota_that_will_reject_a_claim_is_reported() -> None:
    key = "gpu.deviceclass.resource.k8s.io/devices"
    assert not findings(claim(request()), *CLUSTER, device_quota(key))
    [found] = findings(claim(request(count=2)), *CLUSTER, device_quota(key))
    assert found.code == "GPU-D109"
    figures = f"requested: {key}=2, used: {key}=1, limited: {key}=2"
    assert found.message == f"must fit the quotas of the namespace: exceeded quota: devices, {figures}"
    assert found.fix == "Delete claims that are not in use. If the quota counts devices, request fewer."
    [of_template] = findings(template(request(count=2)), *CLUSTER, device_quota(key))
    assert (of_template.message, of_template.path) == (found.message, ("spec", "spec"))
    assert not findings(template(request()), *CLUSTER, device_quota(key))


def test_the_decision_names_the_policies_of_its_findings() -> None:
    decision = review(claim(request(count=40)), "limits: {resourceQuotas: evaluate}", view=view_of(*CLUSTER))
    assert decision.findings
    assert set(decision.policies) == {each.policy for each in decision.findings}


def device_quota(key: str) -> Json:
    """Return a quota that has one of two devices left."""
    status = {"hard": {key: "2"}, "used": {key: "1"}}
    metadata = {"name": "devices", "namespace": "team"}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": status["hard"]},
        "status": status,
    }


COUNTED: dict[str, tuple[int, str, list[str]]] = {
    "Kubernetes 1.36 counts the name that a class serves": (36, f"requests.{DEVICE_CLASS_PREFIX}gpu", ["GPU-D109"]),
    "Kubernetes 1.35 does not count it": (35, f"requests.{DEVICE_CLASS_PREFIX}gpu", []),
    "Kubernetes 1.35 counts the devices of a class": (35, "gpu.deviceclass.resource.k8s.io/devices", ["GPU-D109"]),
}


@pytest.mark.parametrize(("minor", "key", "codes"), COUNTED.values(), ids=COUNTED)
def test_quotas_count_claims_as_the_version_of_the_api_server_does(minor: int, key: str, codes: list[str]) -> None:
    view = view_of(*CLUSTER, device_quota(key), template(request(count=2))).with_api_minor(minor)
    assert [each.code for each in review(claim(request(count=2)), view=view).findings] == codes
    of_pod = review(pod_with_claim(resourceClaimTemplateName="c"), "limits: {resourceQuotas: evaluate}", view=view)
    assert [each.code for each in of_pod.findings] == [each.replace("GPU-D109", "GPU-Q306") for each in codes]


def test_administrative_access_is_allowed_in_labeled_namespaces() -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}}
    assert not findings(claim(request(adminAccess=True)), *CLUSTER, namespace)
    assert not findings(claim(request(allocationMode="All", adminAccess=True)), *CLUSTER, namespace)


def test_nothing_is_said_about_devices_of_a_cluster_without_slices() -> None:
    assert not findings(claim(request("device.driver == 'other'")), make_node("n", {}), *CLASSES)


def test_a_pod_is_told_about_its_templates() -> None:
    [found] = findings(
        pod_with_claim(resourceClaimTemplateName="c").build(), *CLUSTER, template(request("device.driver == 'other'"))
    )
    assert (found.code, found.path) == ("GPU-D101", ("spec", "resourceClaims", 0))
    assert found.message.startswith("devices.requests[0].exactly.selectors[0].cel.expression of template c must match")


def test_a_workload_is_told_about_the_claims_of_its_pods() -> None:
    deployment = workload("Deployment", pod_with_claim(resourceClaimTemplateName="c"), replicas=2)
    [found] = findings(deployment, *CLUSTER, template(request("device.driver == 'other'")))
    assert (found.code, found.mode) == ("GPU-D101", PolicyMode.WARN)
    assert format_path(found.path) == "spec.template.spec.resourceClaims[0]"


WAITING = claim(request("device.driver == 'other'"))
MADE = "resource.kubernetes.io/pod-claim-name"
STORED: dict[str, tuple[Json, list[tuple[str, str]]]] = {
    "a claim that waits for devices that do not exist": (WAITING, [("ResourceClaim team/c", "GPU-D101")]),
    "a template of such claims": (
        template(request("device.driver == 'other'")),
        [("ResourceClaimTemplate team/c", "GPU-D101")],
    ),
    "a claim with devices": (
        WAITING | {"status": {"allocation": {"devices": {"results": [allocated("h100", "gpu-0")]}}}},
        [],
    ),
    "a claim that was made from a template for a pod": (
        WAITING | {"metadata": {**WAITING["metadata"], "annotations": {MADE: "gpu"}}},
        [],
    ),
    "a claim that fits": (claim(request()), []),
}


@pytest.mark.parametrize(("data", "expected"), STORED.values(), ids=STORED)
def test_stored_claims_that_wait_and_templates_are_reviewed(data: Json, expected: list[tuple[str, str]]) -> None:
    found = list(audit_claims(view_of(*CLUSTER, data)))
    assert [(each.title, located.finding.code) for each in found for located in each.findings] == expected


MISSING: dict[str, tuple[Json, str]] = {
    "a template": (
        {"resourceClaimTemplateName": "other"},
        "must name a template of claims of this namespace, found other",
    ),
    "a claim": ({"resourceClaimName": "other"}, "must name a claim of this namespace, found other"),
    "a template of the name of a claim": ({"resourceClaimName": "c"}, "must name a claim of this namespace, found c"),
}


@pytest.mark.parametrize(("names", "words"), MISSING.values(), ids=MISSING)
def test_a_pod_is_told_what_does_not_exist(names: Json, words: str) -> None:
    new, view = pod_with_claim(**names).build(), view_of(*CLUSTER, template(request()))
    [found] = review(new, view=listed(view)).findings
    assert (found.code, found.path, found.fix) == ("GPU-D110", ("spec", "resourceClaims", 0), "Create it.")
    assert found.message == f"{words}, which does not exist yet"
    kind = DeviceKind.TEMPLATE if "resourceClaimTemplateName" in names else DeviceKind.CLAIM
    assert review(new, view=listed(view, kind)).findings == (), "others may exist"
    [found] = findings(
        pod_with_claim(resourceClaimTemplateName="gpu-smal").build(), *CLUSTER, named_template("gpu-small")
    )
    assert found.fix == "Write gpu-small."


REFERENCES: dict[str, tuple[str, list[str]]] = {
    "a request of the claim": ("g", []),
    "a choice of a request": ("g/small", []),
    "a request that the claim lacks": ("gpu", ["spec.containers[0].resources.claims[0].request: Write g."]),
}


@pytest.mark.parametrize(("name", "fixes"), REFERENCES.values(), ids=REFERENCES)
def test_a_container_names_a_request_of_its_claim(name: str, fixes: list[str]) -> None:
    pod = pod_with_claim(resourceClaimTemplateName="c")
    pod.main["resources"] = {"claims": [{"name": "gpu", "request": name}]}
    found = [one for one in findings(pod.build(), *CLUSTER, template(request())) if one.code == "GPU-D113"]
    assert [f"{format_path(each.path)}: {each.fix}" for each in found] == fixes


def test_a_workload_uses_its_claims_where_a_limit_range_sets_amounts() -> None:
    """What the container names is kept beside the amounts that it gets."""
    pod = claiming("gpu")
    pod.main["resources"] = {"claims": [{"name": "gpu"}]}
    defaults = limit_range(default={"memory": "8Gi"}, defaultRequest={"cpu": "1"})
    view = view_of(*CLUSTER, template(request()), defaults)
    assert review(workload("Job", pod, "batch/v1"), view=view).findings == ()


UNUSED: dict[str, tuple[Json, list[Json], list[str]]] = {
    "a claim that no container names": ({}, [request()], ["GPU-D114"]),
    "one that a container names": ({"containers": [{"name": "gpu"}]}, [request()], []),
    "one of which a container names a request": ({"containers": [{"name": "gpu", "request": "g"}]}, [request()], []),
    "one that an init container names": ({"initContainers": [{"name": "gpu"}]}, [request()], []),
    "another claim": ({"containers": [{"name": "other"}]}, [request()], ["GPU-D114"]),
    "a claim for devices that are no GPUs, which may be for the whole pod": ({}, [request(name="nic")], []),
}


@pytest.mark.parametrize(("uses", "requests", "codes"), UNUSED.values(), ids=UNUSED)
def test_gpus_of_a_claim_that_no_container_uses_are_reported(
    uses: Json, requests: list[Json], codes: list[str]
) -> None:
    nic = [device_class("nic", "device.driver == 'dra.net'"), make_node("nic", {})]
    nic.append(resource_slice("nic", "dra.net", "nic", nodeName="nic", devices=[{"name": "eth1"}]))
    pod = make_pod().spec(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "c"}])
    for kind, claims in uses.items():
        pod.container("uses", kind=kind, resources={"claims": claims})
    found = findings(pod.build(), *CLUSTER, *nic, template(*requests))
    assert [(each.code, format_path(each.path)) for each in found] == [(one, "spec.resourceClaims[0]") for one in codes]


def named_template(name: str) -> Json:
    """Return a template of this name."""
    made = template(request())
    return made | {"metadata": made["metadata"] | {"name": name}}


def pod_with_claim(**names: str) -> PodMaker:
    """Return a pod with a claim, by its name or by that of its template."""
    return make_pod().namespace("team").claims({"name": "gpu", **names})


OTHER = "gpus.example.com"


def twice_by_plugin(*names: str) -> list[Json]:
    """Return nodes whose device plugin advertises the GPU that NVIDIA's driver publishes too."""
    label = {"nvidia.com/gpu.product": "NVIDIA-A10"}
    return [
        one
        for name in names
        for one in (
            make_node(name, label, **{"nvidia.com/gpu": 1}),
            resource_slice(f"s-{name}", NVIDIA, name, nodeName=name, devices=[A10]),
        )
    ]


TWO_DRIVERS = [
    make_node("n", {}),
    resource_slice("n-1", NVIDIA, "n", nodeName="n", devices=[A10, card("gpu-1", minor=1)]),
    resource_slice("n-2", OTHER, "n", nodeName="n", devices=[card("gpu-0", uuid="other")]),
    device_class("open", "true"),
    device_class("other", f"device.driver == '{OTHER}'"),
]
WORDS_OF_PLUGIN = f"may be devices that are published twice, by the device plugin and by {NVIDIA}, on"
WORDS_OF_DRIVERS = f"may be devices that are published twice, by {NVIDIA} and by {OTHER}, on n: another pod can get"
MANY_NODES = twice_by_plugin(*(f"n{i}" for i in range(9)))
ON_AN_A10 = f"{ATTRIBUTES}.productName == 'NVIDIA A10'"
TWICE: dict[str, tuple[list[Json], Json, str]] = {
    "a GPU that the device plugin advertises too": (twice_by_plugin("n"), claim(request()), f"{WORDS_OF_PLUGIN} n:"),
    "a template": (twice_by_plugin("n"), template(request()), f"{WORDS_OF_PLUGIN} n:"),
    "several requests are one warning": (
        twice_by_plugin("n", "m", "x", "y"),
        claim({"name": "g", "firstAvailable": [{"name": n, "deviceClassName": "gpu"} for n in ("a", "b")]}),
        f"{WORDS_OF_PLUGIN} n, m, x and 1 more:",
    ),
    "many nodes are counted": (MANY_NODES, claim(request()), f"{WORDS_OF_PLUGIN} n0, n1, n2 and 6 more:"),
    "a GPU of two drivers": ([*TWO_DRIVERS], claim(request(name="open")), WORDS_OF_DRIVERS),
    "a GPU of two drivers in a class of either": ([*TWO_DRIVERS], claim(request(name="other")), WORDS_OF_DRIVERS),
    "a choice": (
        twice_by_plugin("n"),
        claim({"name": "g", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]}),
        f"{WORDS_OF_PLUGIN} n:",
    ),
    "only the node that has such devices": (
        [*twice_by_plugin("n"), make_node("m", {}), *partitionable_gpus("m")],
        claim(request(ON_AN_A10)),
        f"{WORDS_OF_PLUGIN} n:",
    ),
    "a selector that takes devices of other nodes": (
        [*twice_by_plugin("n"), make_node("m", {}), *partitionable_gpus("m")],
        claim(request(f"{ATTRIBUTES}.productName != 'NVIDIA A10'")),
        "",
    ),
    "a device plugin on one node, and equal cards for all nodes": (
        [*twice_by_plugin("n"), resource_slice("fabric", NVIDIA, "fabric", allNodes=True, devices=[A10])],
        claim(request()),
        f"{WORDS_OF_PLUGIN} n:",
    ),
    "a device plugin on other nodes": ([*CLUSTER, make_node("p", {}, **{"nvidia.com/gpu": 1})], claim(request()), ""),
    "a device plugin of other devices": (
        [make_node("n", {}, **{"amd.com/gpu": 1}), *partitionable_gpus("n")],
        claim(request()),
        "",
    ),
}


@pytest.mark.parametrize(("cluster", "data", "words"), TWICE.values(), ids=TWICE)
def test_devices_that_are_published_twice_are_reported_once(cluster: list[Json], data: Json, words: str) -> None:
    found = findings(data, *cluster, *CLASSES)
    assert [each.code for each in found] == ["GPU-D112"] * bool(words)
    assert not words or (words in found[0].message and format_path(found[0].path).endswith("devices.requests"))


def claiming(*names: str, **spec: Any) -> PodMaker:
    """Return a pod with claims of the template."""
    claims = [{"name": name, "resourceClaimTemplateName": "c"} for name in names]
    return make_pod().namespace("team").claims(*claims).spec(**spec)


def test_a_pod_with_several_claims_gets_one_warning_about_devices_that_are_published_twice() -> None:
    cluster = twice_by_plugin("n")
    cluster[1]["spec"]["devices"] = [A10, card("gpu-1", minor=1)]
    [found] = findings(claiming("a", "b").build(), *cluster, *CLASSES, template(request()))
    assert (found.code, found.path) == ("GPU-D112", ("spec", "resourceClaims", 0))


def test_names_of_gpus_that_are_published_twice_are_reported_in_the_order_of_the_pod() -> None:
    names = ["nvidia.com/gpu", *(f"nvidia.com/mig-{each}g.10gb" for each in range(1, 8))]
    pod = make_pod()
    for name in names:
        pod.requests(name, "1")
    found = [each for each in findings(pod.build(), *twice_by_plugin("n"), *CLASSES) if each.code == "GPU-D112"]
    assert [each.path[-1] for each in found] == names


PAIR = [template(request(count=2)), claim(request(count=2))]
TOGETHER: dict[str, tuple[PodMaker, list[str]]] = {
    "two claims of a template for all cards of a node": (
        claiming("a", "b"),
        ["GPU-D104"],
    ),
    "a template and a claim": (
        make_pod().claims({"name": "a", "resourceClaimTemplateName": "c"}, {"name": "b", "resourceClaimName": "c"}),
        ["GPU-D104"],
    ),
    "one claim, named twice": (
        make_pod().claims(*[{"name": n, "resourceClaimName": "c"} for n in ("a", "b")]),
        [],
    ),
    "one claim": (claiming("a"), []),
    "a claim, and a class by its name": (
        claiming("a").requests(f"{DEVICE_CLASS_PREFIX}gpu", "1"),
        ["GPU-D104"],
    ),
    "a claim, and none of a class by its name": (
        claiming("a").requests(f"{DEVICE_CLASS_PREFIX}gpu", "0"),
        [],
    ),
}


@pytest.mark.parametrize(("pod", "codes"), TOGETHER.values(), ids=TOGETHER)
def test_one_node_must_have_the_devices_of_all_claims_of_a_pod(pod: PodMaker, codes: list[str]) -> None:
    found = findings(pod.namespace("team").build(), *CLUSTER, *PAIR)
    assert [each.code for each in found] == codes
    assert all(each.path == ("spec", "resourceClaims") for each in found)


ON_NODES = [
    make_node("h100", {"cards": "h100"}),
    make_node("a10", {"cards": "a10"}) | {"spec": {"taints": [{"key": "reserved", "effect": "NoSchedule"}]}},
    make_node("plugin", {}, **{"nvidia.com/gpu": 1}),
    *CLUSTER[2:],
]
ALLOWED: dict[str, tuple[Json, PodMaker, bool]] = {
    "a node that is selected and has the devices": (request(count=2), make_pod().spec(nodeSelector={"cards": "h100"}),
                                                    True),
    "a node that is selected and has fewer": (
        request(count=2),
        make_pod().spec(nodeSelector={"cards": "a10"}, tolerations=[{"operator": "Exists"}]),
        False,
    ),
    "devices of a node whose taint is not tolerated": (request(ON_AN_A10), make_pod(), False),
    "devices of a node whose taint is tolerated": (
        request(ON_AN_A10),
        make_pod().spec(tolerations=[{"key": "reserved", "operator": "Exists"}]),
        True,
    ),
    "devices, and a GPU that the device plugin of another node has": (request(), make_pod().gpus(1), False),
}  # fmt: skip


@pytest.mark.parametrize(("requested", "pod", "is_served"), ALLOWED.values(), ids=ALLOWED)
def test_a_node_that_the_pod_may_use_must_have_the_devices(requested: Json, pod: PodMaker, *, is_served: bool) -> None:
    pod = pod.namespace("team").claims({"name": "a", "resourceClaimTemplateName": "c"})
    found = findings(pod.build(), *ON_NODES, template(requested))
    assert [each.code for each in found] == ["GPU-D104"] * (not is_served)
    assert all("a node has that the pod may use" in each.message for each in found)


def without_version(name: str) -> Json:
    """Return a card that lacks an attribute."""
    attributes = {key: value for key, value in card(name)["attributes"].items() if key != "driverVersion"}
    return card(name) | {"attributes": attributes}


def torn(one: Json) -> Json:
    """Return a slice of a pool that lacks another one."""
    return one | {"spec": one["spec"] | {"pool": one["spec"]["pool"] | {"resourceSliceCount": 2}}}


NEWER, EVERY = f"{ATTRIBUTES}.driverVersion.isGreaterThan(semver('1.0.0'))", {"allocationMode": "All"}
GOOD_AND_BAD = [
    make_namespace("team", **{"resource.kubernetes.io/admin-access": "true"}),
    make_node("good", {"cards": "good"}),
    make_node("bad", {"cards": "bad"}) | {"spec": {"taints": [{"key": "reserved", "effect": "NoSchedule"}]}},
    resource_slice("good", NVIDIA, "good", nodeName="good", devices=[card("gpu-0")]),
    torn(resource_slice("bad", NVIDIA, "bad", nodeName="bad", devices=[without_version("gpu-0")])),
    device_class("newer", NEWER),
    *CLASSES,
]
SELECTED = {"nodeSelector": {"cards": "good"}}
NOT_BAD = {"key": "cards", "operator": "NotIn", "values": ["bad"]}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [NOT_BAD]}]}}
TOLERATING = {"tolerations": [{"operator": "Exists"}]}
OF_OTHER_NODES: dict[str, tuple[Json, Json, list[str]]] = {
    "a key that a device of any node lacks": (request(NEWER), TOLERATING, ["GPU-D102"]),
    "of a node that is not selected": (request(NEWER), TOLERATING | SELECTED, []),
    "of a node that affinity excludes": (request(NEWER), TOLERATING | {"affinity": {"nodeAffinity": REQUIRED}}, []),
    "of a node whose taint is not tolerated": (request(NEWER), {}, []),
    "a key that no device has": (request(f"{ATTRIBUTES}.version == 'x'"), SELECTED, ["GPU-D102"]),
    "all devices, with a pool that lacks slices": (request(**EVERY), TOLERATING, ["GPU-D104"]),
    "all devices, without it": (request(**EVERY), SELECTED, []),
    "a selector that matches nothing on the others": (request(NEWER, at_least("200Gi")), SELECTED, ["GPU-D101"]),
    "more of them than the others have": (request(NEWER, count=2), SELECTED, ["GPU-D104"]),
    "devices of a node that is not selected": (request(NEWER), {"nodeSelector": {"cards": "none"}}, ["GPU-D104"]),
}


@pytest.mark.parametrize(("requested", "spec", "codes"), OF_OTHER_NODES.values(), ids=OF_OTHER_NODES)
def test_devices_of_nodes_that_the_pod_may_not_use_are_not_reported(
    requested: Json, spec: Json, codes: list[str]
) -> None:
    cluster = [*GOOD_AND_BAD, template(requested)]
    assert [each.code for each in findings(claiming("a", **spec).build(), *cluster)] == codes
    deployment = workload("Deployment", claiming("a", **spec), replicas=1)
    assert [each.code for each in findings(deployment, *cluster)] == codes


EQUAL_UUIDS = [{"matchAttribute": "gpu.nvidia.com/uuid"}]
BEHIND_A_KEY: dict[str, tuple[Json, str, str]] = {
    "a bound just above a slice": (
        claim(request(NEWER, at_least("10Gi"), name="mig")), "GPU-D103", "If 9850Mi is enough, write ",
    ),
    "a constraint that no two devices satisfy": (
        claim(request(NEWER, count=2), constraints=EQUAL_UUIDS), "GPU-D105", "Remove the constraint, or ",
    ),
    "more devices than a node has": (claim(request(NEWER, count=3)), "GPU-D104", "Request fewer devices."),
}  # fmt: skip


@pytest.mark.parametrize(("of_template", "code", "fix"), BEHIND_A_KEY.values(), ids=BEHIND_A_KEY)
def test_a_key_that_devices_of_other_nodes_lack_hides_no_finding(of_template: Json, code: str, fix: str) -> None:
    made = of_template | {"kind": "ResourceClaimTemplate", "spec": {"spec": of_template["spec"]}}
    lacking = [without_version("gpu-0"), without_version("gpu-1") | {"attributes": {"type": {"string": "mig"}}}]
    cluster = [
        *(each for each in GOOD_AND_BAD if each["kind"] != "ResourceSlice"),
        *partitionable_gpus("good", 2),
        resource_slice("bad", NVIDIA, "bad", nodeName="bad", devices=lacking),
    ]
    found = findings(claiming("a", **SELECTED).build(), *cluster, made)
    assert [each.code for each in found] == [code]
    assert found[0].fix.startswith(fix)
    assert "of this cluster" not in found[0].message


ROOTS = [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]
NEWER_BY_NAME = "deviceclass.resource.kubernetes.io/newer"
OTHERS, FEWER = "Change its node selector, affinity, tolerations or claims.", "Request fewer devices."
LACKING: dict[str, tuple[PodMaker, Json, str]] = {
    "as many as another node has": (claiming("a"), template(request(NEWER, count=2)), OTHERS),
    "as many as it has if the key of a device is guarded": (claiming("a"), template(request(NEWER, count=3)), OTHERS),
    "more than any node has": (claiming("a"), template(request(NEWER, count=4)), FEWER),
    "several claims, as many as another node has": (claiming("a", "b"), template(request(NEWER)), OTHERS),
    "several claims, more than any node has": (claiming("a", "b", "c", "d"), template(request(NEWER)), FEWER),
    "by name, as many as another node has": (make_pod().requests(NEWER_BY_NAME, 2), template(request()), OTHERS),
    "by name, more than any node has": (make_pod().requests(NEWER_BY_NAME, 4), template(request()), FEWER),
    "a constraint that another node satisfies": (
        claiming("a"), template(request(NEWER, count=2), constraints=ROOTS), OTHERS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("replicas", [1, 5])
@pytest.mark.parametrize(("pod", "of_pod", "fix"), LACKING.values(), ids=LACKING)
def test_fewer_devices_are_advised_only_if_no_node_may_have_as_many(
    pod: PodMaker, of_pod: Json, fix: str, replicas: int
) -> None:
    good = [card("gpu-0")]
    if "constraints" in of_pod["spec"]["spec"]["devices"]:
        good.append(card("gpu-1", minor=2))  # with another root
    bad = [without_version("gpu-0"), card("gpu-1", minor=0), card("gpu-2", minor=1)]
    cluster = [
        *(each for each in GOOD_AND_BAD if each["kind"] != "ResourceSlice"),
        *(resource_slice(node, NVIDIA, node, nodeName=node, devices=some)
          for node, some in (("good", good), ("bad", bad))),
    ]  # fmt: skip
    deployment = workload("Deployment", pod.namespace("team").spec(**SELECTED), replicas=replicas)
    found = findings(deployment, *cluster, of_pod)
    assert {each.code for each in found} <= {"GPU-D104", "GPU-T206"}
    assert {each.fix for each in found} == {fix}
    assert ("that the pod may use" in found[0].message) == (fix == OTHERS)


def test_a_pod_whose_nodes_have_no_devices_is_advised_to_use_others() -> None:
    [found] = findings(claiming("a", nodeSelector={"cards": "none"}).build(), *GOOD_AND_BAD, template(request(NEWER)))
    assert found.fix == "Change its node selector, affinity, tolerations or claims."


def test_the_nearest_device_is_one_of_a_node_that_the_pod_may_use() -> None:
    cluster = [*GOOD_AND_BAD, template(request(NEWER, at_least("200Gi")))]
    [found] = findings(claiming("a", **SELECTED).build(), *cluster)
    words = (
        "must match a device of the nodes that the pod may use, and none of their devices matches; the nearest, gpu-0"
    )
    assert f"{words} of good" in found.message


def test_devices_of_nodes_that_the_pod_may_not_use_are_not_reported_by_class() -> None:
    pods = [make_pod().requests(f"{DEVICE_CLASS_PREFIX}newer", "1").spec(**spec) for spec in (TOLERATING, SELECTED)]
    found = [findings(pod.build(), *GOOD_AND_BAD) for pod in pods]
    assert [[each.code for each in some] for some in found] == [["GPU-D102"], []]


def claim_on(node: str, name: str, *, is_in_use: bool = True) -> Json:
    """Return a claim with a device of a node, which a pod may use."""
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    made = resource_claim(name, allocated(node, "gpu-0"))
    made["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [by_name]}
    users = [{"resource": "pods", "name": "other", "uid": "u"}] if is_in_use else []
    return made | {"status": made["status"] | {"reservedFor": users}}


IN_USE: dict[str, tuple[Sequence[Json], Sequence[str], Json, list[str]]] = {
    "the node that the pod selects": ([claim_on("h100", "x")], ["x"], {"cards": "h100"}, []),
    "another node than the pod selects": (
        [claim_on("h100", "x")], ["x"], {"cards": "a10"}, ["0 other pods use claim x on h100"],
    ),
    "a node whose taint is not tolerated": ([claim_on("a10", "x")], ["x"], {}, ["0 other pods use claim x on a10"]),
    "two nodes": (
        [claim_on("plugin", "x"), claim_on("h100", "y")], ["x", "y"], {}, ["1 other pods use claim y on h100"],
    ),
    "devices that no pod uses, which the scheduler releases": (
        [claim_on("h100", "x", is_in_use=False)], ["x"], {"cards": "a10"}, [],
    ),
    "a node that is not known": ([claim_on("gone", "x")], ["x"], {}, []),
}  # fmt: skip


@pytest.mark.parametrize(("stored", "names", "selector", "want"), IN_USE.values(), ids=IN_USE)
def test_a_pod_runs_where_the_devices_of_its_claims_are(
    stored: Sequence[Json], names: Sequence[str], selector: Json, want: list[str]
) -> None:
    used = [{"name": name, "resourceClaimName": name} for name in names]
    pod = make_pod().namespace("team").claims(*used).spec(nodeSelector=selector)
    found = findings(pod.build(), *ON_NODES, *stored)
    assert [f"{each.path[-1]} {each.message.rpartition(': ')[2]}" for each in found] == want
    assert all(each.code == "GPU-D104" for each in found)


def test_claims_in_use_on_different_nodes_do_not_blame_the_nodes_that_the_pod_may_use() -> None:
    used = [{"name": name, "resourceClaimName": name} for name in ("x", "y")]
    stored = [claim_on("plugin", "x"), claim_on("h100", "y")]
    [found] = findings(make_pod().namespace("team").claims(*used).build(), *ON_NODES, *stored)
    assert "on the node of the pod's other claims" in found.message
    assert found.fix == "Name claims whose devices are on one node."


def test_a_node_with_devices_in_use_must_have_those_of_the_other_claims() -> None:
    made = [{"name": "a", "resourceClaimName": "x"}, {"name": "b", "resourceClaimTemplateName": "c"}]
    pod = make_pod().namespace("team").claims(*made).spec(tolerations=[{"operator": "Exists"}])
    for node, is_served in (("h100", True), ("a10", False)):
        found = findings(pod.build(), *ON_NODES, template(request(count=2)), claim_on(node, "x"))
        assert [each.code for each in found] == ["GPU-D104"] * (not is_served)


def test_a_claim_that_is_being_deleted_serves_no_new_pod() -> None:
    going = claim(request())
    going["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    [found] = findings(pod_with_claim(resourceClaimName="c").build(), *CLUSTER, going)
    assert (found.code, found.message.rpartition(", ")[2]) == ("GPU-D110", "which is being deleted")


def test_tolerations_that_a_policy_adds_allow_the_nodes() -> None:
    pod = claiming("a")
    policy = "mode: enforce\ninjection: {tolerations: [{key: reserved, operator: Exists}]}"
    decision = review(pod.build(), policy, view=view_of(*ON_NODES, template(request(ON_AN_A10))))
    assert [each.code for each in decision.findings if each.code == "GPU-D104"] == []


def test_one_node_must_have_the_devices_of_all_classes_that_containers_request_by_name() -> None:
    name, words = f"{DEVICE_CLASS_PREFIX}gpu", "must request resources of device classes that one node has together"
    for other, is_reported in (("1", False), ("2", True)):
        amounts = {"limits": {name: other}, "requests": {name: other}}
        pod = make_pod().namespace("team").requests(name, "1").container("other", resources=amounts)
        found = findings(pod.build(), *CLUSTER)
        assert [(each.code, each.message.partition(",")[0]) for each in found] == [("GPU-D104", words)] * is_reported


def test_replicas_each_get_devices_of_their_own_node() -> None:
    """A replica is a pod with claims of its own: several of them need not fit one node."""
    pods = claiming("a")
    assert findings(workload("Deployment", pods, replicas=2), *CLUSTER, make_node("h2"), *MORE_CARDS, *PAIR) == []


MORE_CARDS = [resource_slice("h2", NVIDIA, "h2", nodeName="h2", devices=[card("gpu-0"), card("gpu-1", minor=1)])]
REPLICAS: dict[str, tuple[Json, int, str]] = {
    "as many pods as cards": (request(), 3, ""),
    "more pods than cards": (request(), 100, "at most 3 of 100"),
    "more pods than pairs of cards on one node": (request(count=2), 3, "at most 1 of 3"),
    "slices that share the memory of a card": (
        request(f"{ATTRIBUTES}.profile == '3g.40gb'", name="mig"),
        9,
        "at most 4",
    ),
    "slices of a node that the search does not reach": (request(name="mig"), 9, ""),
}


@pytest.mark.parametrize(("requested", "replicas", "words"), REPLICAS.values(), ids=REPLICAS)
def test_a_workload_is_told_how_many_of_its_pods_get_devices(requested: Json, replicas: int, words: str) -> None:
    pods = claiming("a")
    found = findings(workload("Deployment", pods, replicas=replicas), *CLUSTER, template(requested))
    assert [each.code for each in found] == ["GPU-T206"] * bool(words)
    assert all(words in each.message for each in found)


OF_ALL_NODES = [
    *[make_node(name, {}) for name in ("a", "b", "c")],
    resource_slice("net", NVIDIA, "net", allNodes=True, devices=[card(f"gpu-{i}") for i in range(4)]),
    *CLASSES,
]
OWN = resource_slice("own", NVIDIA, "a", nodeName="a", devices=[card("gpu-0")])
OF_SEVERAL: dict[str, tuple[Sequence[Json], Json, list[str]]] = {
    "as many pods as devices": ([], request(count=1), ["at most 4"]),
    "pods with several devices": ([], request(count=2), ["at most 2"]),
    "devices of one node too": ([OWN], request(), ["at most 5"]),
    "several, which may be of one node too": ([OWN], request(count=2), []),
}


@pytest.mark.parametrize(("more", "requested", "words"), OF_SEVERAL.values(), ids=OF_SEVERAL)
def test_devices_that_several_nodes_can_use_serve_pods_once(
    more: Sequence[Json], requested: Json, words: list[str]
) -> None:
    pods = claiming("a")
    found = findings(workload("Deployment", pods, replicas=6), *OF_ALL_NODES, *more, template(requested))
    assert [(each.code, each.message.partition(" of ")[0]) for each in found] == [("GPU-T206", one) for one in words]


def machines(left: int = 1, annotations: dict[str, str] | None = None) -> Json:
    """Return machines of Cluster API without a machine, of which cluster-autoscaler expects four devices."""
    capacity = "capacity.cluster-autoscaler.kubernetes.io/"
    written = {"cpu": "32", "memory": "128Gi", "gpu-count": "4", "dra-driver": NVIDIA} | (annotations or {})
    size = {"cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": str(left)}
    about = {"name": "four", "annotations": {f"{capacity}{key}": value for key, value in written.items()} | size}
    return {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": about, "spec": {}}


LABELED = {"labels": "cards=four"}
ON_NEW: dict[str, tuple[Json, Json, Json, list[str]]] = {
    "more cards than a live node has": (claim(request(count=4)), machines(), template(), []),
    "more cards than a new node has": (claim(request(count=5)), machines(), template(), ["GPU-D104"]),
    "a group at its maximum": (claim(request(count=4)), machines(0), template(), ["GPU-D104"]),
    "another driver": (claim(request(count=4)), machines(annotations={"dra-driver": AMD}), template(), ["GPU-D104"]),
    "no driver": (claim(request(count=4)), machines(annotations={"dra-driver": ""}), template(), ["GPU-D104"]),
    "an attribute that the autoscaler does not know": (
        claim(request(f"{ATTRIBUTES}.productName == 'NVIDIA H100 80GB HBM3'", count=4)),
        machines(),
        template(),
        ["GPU-D104"],
    ),
    "claims of a pod": (claiming("a", "b").build(), machines(), template(request(count=2)), []),
    "claims of a pod that may not use new nodes": (
        claiming("a", "b", nodeSelector={"cards": "h100"}).build(),
        machines(),
        template(request(count=2)),
        ["GPU-D104"],
    ),
    "claims of a pod that only new nodes may run": (
        claiming("a", nodeSelector={"cards": "four"}).build(),
        machines(annotations=LABELED),
        template(request(count=2)),
        [],
    ),
    "as many pods as new nodes serve": (
        workload("Deployment", claiming("a"), replicas=7),
        machines(),
        template(request()),
        [],
    ),
    "more pods than new nodes serve": (
        workload("Deployment", claiming("a"), replicas=8),
        machines(),
        template(request()),
        ["GPU-T206"],
    ),
}


@pytest.mark.parametrize(("data", "group", "used", "codes"), ON_NEW.values(), ids=ON_NEW)
def test_devices_that_an_autoscaler_expects_of_new_nodes_count(
    data: Json, group: Json, used: Json, codes: list[str]
) -> None:
    cluster = [make_node("h100", {"cards": "h100"}), *CLUSTER[1:], group, used]
    assert [each.code for each in findings(data, *cluster)] == codes


def settings(cards: int, **fields: Any) -> Json:
    """Return settings with one group, whose new nodes have some cards that can be partitioned."""
    return node_groups(*partitionable_gpus("gone", cards), **fields)


IN_SETTINGS: dict[str, tuple[Json, Json, list[str]]] = {
    "more cards than a live node has": (claim(request(count=4)), settings(4), []),
    "more cards than a new node has": (claim(request(count=5)), settings(4), ["GPU-D104"]),
    "a group that does not grow": (claim(request(count=4)), settings(4, grows=False), ["GPU-D104"]),
    "an attribute that a machine's annotations do not state": (
        claim(request(f"{ATTRIBUTES}.productName == 'NVIDIA H100 80GB HBM3'", count=4)), settings(4), []
    ),
    "slices of one card": (claim(request(f"{ATTRIBUTES}.profile == '1g.10gb'", name="mig", count=15)), settings(3), []),
    "more slices of a card than fit": (
        claim(request(f"{ATTRIBUTES}.profile == '1g.10gb'", name="mig", count=22)), settings(3), ["GPU-D104"]
    ),
    "pods that only new nodes may run": (
        workload("Deployment", claiming("a", nodeSelector={"pool": "new"}), replicas=100),
        settings(1, labels={"pool": "new"}),
        [],
    ),
    "pods that no new node may run either": (
        workload("Deployment", claiming("a", nodeSelector={"pool": "old"}), replicas=100),
        settings(1, labels={"pool": "new"}),
        ["GPU-D104"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "group", "codes"), IN_SETTINGS.values(), ids=IN_SETTINGS)
def test_devices_that_settings_state_of_new_nodes_count(data: Json, group: Json, codes: list[str]) -> None:
    assert sorted(each.code for each in findings(data, *CLUSTER, group, template(request()))) == codes


AT_ZERO: dict[str, tuple[Json, list[str]]] = {
    "devices that a new node has": (claim(request(count=2)), []),
    "more devices": (claim(request(count=3)), ["GPU-D104"]),
    "a bound just above a slice": (claim(request(at_least("10Gi"), name="mig")), ["GPU-D103"]),
    "a misspelled key": (claim(request(f"{ATTRIBUTES}.productname == 'a'")), ["GPU-D102"]),
    "a product that no group has": (claim(request(f"{ATTRIBUTES}.productName == 'NVIDIA B200'")), ["GPU-D101"]),
    "a template that does not exist": (claiming("a").build(), ["GPU-D110"]),
}


@pytest.mark.parametrize(("data", "codes"), AT_ZERO.values(), ids=AT_ZERO)
def test_while_no_node_has_devices_those_of_the_settings_count(data: Json, codes: list[str]) -> None:
    view = listed(view_of(make_node("cpu"), *CLASSES, settings(2)))
    assert [each.code for each in review(data, view=view).findings] == codes
    assert review(data, view=listed(view, DeviceKind.SLICE)).findings == (), "live nodes may publish other devices"
    machine = [] if data["kind"] == "Pod" else findings(data, make_node("cpu"), *CLASSES, machines())
    assert machine == []


def test_the_number_of_pods_that_run_at_once_follows_changes_of_groups() -> None:
    view = view_of(*CLUSTER, template(request()), machines(1))
    full = view_of(machines(0)).group_sources
    data = workload("Deployment", claiming("a"), replicas=7)

    def codes(view: ClusterView) -> list[str]:
        return [each.code for each in review(data, view=view).findings]

    assert (codes(view), codes(view.with_group_sources(full)), codes(view)) == ([], ["GPU-T206"], [])


COPIED: dict[str, tuple[str, str, list[str]]] = {
    "nothing says that groups grow": ("cloud.google.com/gke-nodepool", "mode: enforce", ["GPU-T206"]),
    "a policy says that groups grow": (
        "cloud.google.com/gke-nodepool", "mode: enforce\nrightSizing: {whenFull: grow}", []
    ),
    "Karpenter adds no node for claims": (
        "karpenter.sh/nodepool", "mode: enforce\nrightSizing: {whenFull: grow}", ["GPU-T206"]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("label", "policy", "codes"), COPIED.values(), ids=COPIED)
def test_cluster_autoscaler_copies_a_node_with_its_devices(label: str, policy: str, codes: list[str]) -> None:
    data = workload("Deployment", claiming("a"), replicas=100)
    cluster = [make_node("h100", {label: "cards"}), *CLUSTER[1:], template(request())]
    found = review(data, policy, view=view_of(*cluster)).findings
    assert [each.code for each in found if each.code == "GPU-T206"] == codes


def test_a_class_that_is_requested_by_name_without_a_limit_is_reviewed() -> None:
    for name, code in (("gpus", "GPU-D106"), ("gpu", "GPU-D104")):
        pod = make_pod().namespace("team").requests_without_limit(f"{DEVICE_CLASS_PREFIX}{name}", "3")
        [found] = findings(pod.build(), *CLUSTER)
        field = ("spec", "containers", 0, "resources", "requests", f"{DEVICE_CLASS_PREFIX}{name}")
        assert (found.code, found.path) == (code, field)


def test_a_part_of_a_device_of_a_class_leaves_the_pod_pending() -> None:
    """The API server stores the amount, and the scheduler ends with an error when it binds the pod."""
    name = f"{DEVICE_CLASS_PREFIX}gpu"
    for amount, expected in (("500m", ["GPU-L104"]), ("1500m", ["GPU-L104"]), ("2000m", []), ("0", [])):
        found = findings(make_pod().namespace("team").requests(name, amount).build(), *CLUSTER)
        assert [each.code for each in found] == expected
        assert all(each.mode is PolicyMode.WARN and each.path[-1] == name for each in found)


def test_a_claim_that_pods_share_is_for_any_number_of_them() -> None:
    pods = make_pod().namespace("team").claims({"name": "a", "resourceClaimName": "c"})
    assert findings(workload("Deployment", pods, replicas=100), *CLUSTER, claim(request())) == []


TOO_MANY = "must be devices that one node has, found no node of this cluster that has all of them"
SERVED = device_class("whole", f"device.driver == '{NVIDIA}' && {ATTRIBUTES}.type == 'gpu'", "nvidia.com/gpu")
MOST: dict[str, tuple[Json, str]] = {
    "cards": (claim(request(count=3)), "Request at most 2."),
    "many cards": (claim(request(count=32)), "Request at most 2."),
    "slices": (claim(request(f"{ATTRIBUTES}.profile == '3g.40gb'", name="mig", count=5)), "Request at most 4."),
    "a name that a class serves": (make_pod().requests("nvidia.com/gpu", "5").build(), "Request at most 2."),
    "several requests": (claim(request(count=2), request(count=2) | {"name": "h"}), "Request fewer devices."),
    "choices": (
        claim({"name": "g", "firstAvailable": [{"name": "a", "deviceClassName": "gpu", "count": 3}]}),
        "Request fewer devices.",
    ),
}


@pytest.mark.parametrize(("data", "fix"), MOST.values(), ids=MOST)
def test_a_claim_of_too_many_devices_is_told_how_many_a_node_has(data: Json, fix: str) -> None:
    [found] = findings(data, *CLUSTER, SERVED)
    assert (found.code, found.message.partition(" (")[0], found.fix) == ("GPU-D104", TOO_MANY, fix)


BY_NAME: dict[str, tuple[list[Json], dict[str, str], list[tuple[str, str]]]] = {
    "a class with devices": (CLUSTER, {f"{DEVICE_CLASS_PREFIX}gpu": "2"}, []),
    "a class that does not exist": (
        CLUSTER,
        {f"{DEVICE_CLASS_PREFIX}gpus": "1"},
        [("GPU-D106", "must be a device class of this cluster, found gpus")],
    ),
    "a class that does not exist in a cluster without devices": (
        CLASSES,
        {f"{DEVICE_CLASS_PREFIX}gpus": "1"},
        [("GPU-D106", "must be a device class of this cluster, found gpus")],
    ),
    "nothing of a class that does not exist": (CLUSTER, {f"{DEVICE_CLASS_PREFIX}gpus": "0"}, []),
    "more devices than a node has": (
        CLUSTER,
        {f"{DEVICE_CLASS_PREFIX}gpu": "3"},
        [("GPU-D104", TOO_MANY)],
    ),
    "a name that a node advertises": (
        [*CLUSTER, make_node("p", {}, **{f"{DEVICE_CLASS_PREFIX}gpus": 1})],
        {f"{DEVICE_CLASS_PREFIX}gpus": "1"},
        [],
    ),
    "more devices than a node has, by the name that a class serves": (
        [*CLUSTER, SERVED],
        {"nvidia.com/gpu": "3"},
        [("GPU-D104", f"{TOO_MANY} (class whole serves it)")],
    ),
    "another extended resource": (CLUSTER, {"example.com/foo": "1"}, []),
    "in a cluster without known devices": (
        [make_node("n", {})],
        {f"{DEVICE_CLASS_PREFIX}a": "1"},
        [],
    ),
}


@pytest.mark.parametrize(("cluster", "limits", "expected"), BY_NAME.values(), ids=BY_NAME)
def test_a_class_that_is_requested_by_name_is_reviewed(
    cluster: list[Json], limits: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    pod = make_pod().namespace("team")
    for name, amount in limits.items():
        pod.requests(name, amount)
    found = findings(pod.build(), *cluster)
    assert [(each.code, each.message) for each in found] == expected
    assert {each.path for each in found} <= {("spec", "containers", 0, "resources", "limits", name) for name in limits}


BY_PLUGIN: dict[str, tuple[PodMaker, bool]] = {
    "a GPU of the device plugin": (make_pod().gpus(1), True),
    "a GPU of the device plugin, in a container that runs first": (
        make_pod().spec(
            initContainers=[{"name": "init", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]
        ),
        True,
    ),
    "no GPU": (make_pod().gpus(0), False),
    "a GPU of another node": (make_pod().gpus(1).spec(nodeSelector={"kubernetes.io/hostname": "m"}), False),
    "another resource": (make_pod().requests("rdma/hca", "1"), False),
}


@pytest.mark.parametrize(("pod", "is_reported"), BY_PLUGIN.values(), ids=BY_PLUGIN)
def test_a_pod_by_the_device_plugin_may_get_a_gpu_that_a_driver_publishes_too(
    pod: PodMaker, *, is_reported: bool
) -> None:
    other = make_node("m", {}, **{"nvidia.com/gpu": 1, "rdma/hca": 1})
    found = findings(pod.namespace("team").build(), *twice_by_plugin("n"), other, *CLASSES)
    twice = [each for each in found if each.code == "GPU-D112"]
    assert [f"by the device plugin and by {NVIDIA}, on n:" in each.message for each in twice] == [True] * is_reported
    assert all(each.path[-1] == "nvidia.com/gpu" for each in twice)


def test_devices_that_are_published_twice_are_reported_for_their_implicit_name() -> None:
    pod = make_pod().namespace("team").requests(f"{DEVICE_CLASS_PREFIX}gpu", "1").build()
    [found] = findings(pod, *twice_by_plugin("n"), *CLASSES)
    assert (found.code, found.mode) == ("GPU-D112", PolicyMode.WARN)


def test_a_pod_with_claims_of_gpus_uses_gpus_and_says_that_they_are_claimed() -> None:
    pod = make_pod().namespace("team").claims({"name": "a", "resourceClaimName": "c"}).build()
    decision = review(pod, view=view_of(*CLUSTER, claim(request())))
    assert (decision.involves_gpus, decision.right_sizing_outcome) == (True, "ClaimedGPUs")
    other = review(
        pod, view=view_of(*CLUSTER, device_class("nics", "device.driver == 'dra.net'"), claim(request(name="nics")))
    )
    assert other.right_sizing_outcome == "NoGPURequest"


OF_ALL_DRIVERS = [device_class("amd", "device.driver == 'gpu.amd.com'"), device_class("any", "true"), *CLUSTER]
CLASS_FOR: dict[str, tuple[str, list[Json], str]] = {
    "a card": ("nvidia.com/gpu", OF_ALL_DRIVERS, ": request one by a claim of class gpu."),
    "a slice": ("nvidia.com/mig-1g.10gb", OF_ALL_DRIVERS, ": request one by a claim of class mig."),
    "a slice that no card has": (
        "nvidia.com/mig-1g.5gb",
        OF_ALL_DRIVERS,
        ", and no device class has nvidia.com/mig-1g.5gb.",
    ),
    "a slice without a class": (
        "nvidia.com/mig-1g.10gb",
        [*CLUSTER[:-2], CLASSES[0]],
        ", and no device class has nvidia.com/mig-1g.10gb.",
    ),
}


@pytest.mark.parametrize(("name", "cluster", "advice"), CLASS_FOR.values(), ids=CLASS_FOR)
def test_a_name_of_a_device_plugin_in_a_cluster_of_resource_slices_gets_the_class_that_fits(
    name: str, cluster: list[Json], advice: str
) -> None:
    pod = make_pod().namespace("team").requests(name, "1").build()
    decision = review(pod, "mode: warn\nrightSizing: {}", view=view_of(*cluster))
    [found] = [each for each in decision.findings if each.code == "GPU-T201"]
    published = "The GPUs of this cluster are published in ResourceSlices, not by a device plugin"
    assert found.fix == f"{published}{advice}"


def test_static_slices_of_a_card_are_compared_by_memory() -> None:
    devices = [mig_device(f"gpu-0-mig-{name}", name, "GPU-0", memory=memory) for name, memory in SIZES.items()]
    cluster = [make_node("n", {}), resource_slice("n", NVIDIA, "n", nodeName="n", devices=devices), *CLASSES]
    [found] = findings(claim(request(f"{MEMORY}.isGreaterThan(quantity('10Gi'))", name="mig")), *cluster)
    assert found.code == "GPU-D103"
    assert not findings(claim(request(f"{MEMORY}.isGreaterThan(quantity('15Gi'))", name="mig")), *cluster)


SIZES = {"1g.10gb": 9850, "2g.20gb": 20000}


COSTLY: dict[str, Json] = {
    "hundreds of selectors": claim(*[request(*["device.driver == 'other'"] * 32, name="gpu") for _ in range(32)]),
    "long selectors": claim(request("||".join(["device.driver == 'a'"] * 600), "||".join(["true"] * 1500))),
    "a selector that takes every step": claim(request("lists.range(999).all(a, lists.range(99).all(b, a >= 0))")),
    "loops over all keys": claim(
        request(f"{ATTRIBUTES}.all(a, {ATTRIBUTES}.all(b, {ATTRIBUTES}.exists(c, a == b || b == c)))")
    ),
    "hundreds of keys that no device has": claim(
        request("||".join(f"'nobody{i}' in {ATTRIBUTES}" for i in range(180)))
    ),
    "a hundred bounds that all slices fail": claim(
        request("&&".join(f"{MEMORY}.compareTo(quantity('{8 * 2**30 - i}')) > 0" for i in range(90)), name="mig")
    ),
    "a hundred bounds just above a slice": claim(
        request("&&".join(f"{MEMORY}.compareTo(quantity('{10 * 2**30 - i}')) > 0" for i in range(90)), name="mig")
    ),
    "many devices under a constraint": claim(
        request(name="mig", count=16), constraints=[{"distinctAttribute": "gpu.nvidia.com/parentUUID"}]
    ),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("data", COSTLY.values(), ids=COSTLY)
def test_a_claim_takes_no_long_review(data: Json) -> None:
    assert min(_review_seconds(data) for _ in range(3)) < MAX_REVIEW_SECONDS


MAX_REVIEW_SECONDS = 0.5


def _review_seconds(data: Json) -> float:
    cluster = view_of(*CLUSTER)
    with CpuTimer() as timer:
        review(data, view=cluster)
    return timer.seconds


def test_a_cached_decision_follows_the_claims_of_the_namespace_and_the_slices() -> None:
    pod = make_pod().namespace("team").claims({"name": "g", "resourceClaimName": "c"})
    view = view_of(*CLUSTER, claim(request(f"{MEMORY}.compareTo(quantity('80Gi')) >= 0")))
    memory, policies, new = DecisionCache(), policies_of(), request_of(pod.build())

    def codes(devices: DeviceView) -> list[str]:
        changed = view.with_devices(devices)
        return [each.code for each in memory.decide(new, policies, changed, NO_USAGE, NOW).findings]

    of_others = {**view.devices.claims, "other": {}}
    assert codes(view.devices) == codes(view.devices._replace(claims=of_others)) == ["GPU-D101"]
    assert codes(view.devices._replace(claims={})) == ["GPU-D110"]
    assert codes(view.devices._replace(claims={}, unlisted=view.devices.unlisted | {DeviceKind.CLAIM})) == []
    assert codes(view.devices) == ["GPU-D101"]
    assert codes(view.devices._replace(pools=NO_DEVICES.pools)) == []


@pytest.mark.no_cover
def test_hundreds_of_cards_that_a_selector_tells_apart_take_no_long_review() -> None:
    nodes = [f"node-{number}" for number in range(12)]
    cluster = [*[make_node(name, {}) for name in nodes], *CLASSES]
    view = view_of(*cluster, *[each for name in nodes for each in partitionable_gpus(name, 8)])
    data = claim(request(f"{ATTRIBUTES}.parentUUID == 'GPU-none'", name="mig"))
    with CpuTimer() as timer:
        assert review(data, view=view).findings == ()
    assert timer.seconds < MAX_REVIEW_SECONDS


def test_nothing_is_said_about_devices_with_a_version_that_is_none() -> None:
    broken = card("gpu-0", "NVIDIA A10", memory="23028Mi")
    broken["attributes"]["driverVersion"] = {"version": "newest"}
    cluster = [make_node("a10", {}), resource_slice("a10", NVIDIA, "a10", nodeName="a10", devices=[broken]), *CLASSES]

    assert findings(claim(request(f"{ATTRIBUTES}.productName == 'x'")), *cluster) == []
