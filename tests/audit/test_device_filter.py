"""Placement of pods that need devices of ResourceSlices."""

from __future__ import annotations

import pytest

from tests.audit.test_pod_placement import nodes, place_pod
from tests.audit.test_simulation import simulate_replicas
from tests.builders import Json, make_node, make_pod
from tests.device_builders import (
    NVIDIA,
    allocated,
    card,
    device_class,
    partitionable_gpus,
    resource_claim,
    resource_slice,
)
from tests.placement.clusters import gpu_node, placement_input
from webhook.audit.simulation import unsimulated_constraints
from webhook.model.pods import parse_pod
from webhook.report.placement import placement_document, placement_lines
from webhook.report.simulation import SimulationResult

TYPE = f"device.attributes['{NVIDIA}'].type"
CLASSES = [
    device_class("gpu", f"device.driver == '{NVIDIA}' && {TYPE} == 'gpu'", "nvidia.com/gpu"),
    device_class("mig", f"device.driver == '{NVIDIA}' && {TYPE} == 'mig'"),
    device_class("unguarded", f"{TYPE} == 'gpu'"),
]
CARDS = [make_node("cards", {}), resource_slice("cards", NVIDIA, "cards", nodeName="cards", devices=[card("gpu-0")])]
CUT = [make_node("cut", {}), *partitionable_gpus("cut")]
PORTS = [make_node("ports", {}), resource_slice("ports", "dra.net", "ports", nodeName="ports", devices=[{"name": "p"}])]
COUNTERS = CUT[1]["spec"]["sharedCounters"]
HALF = {"default": "40779Mi"}
SHARED = card("gpu-0") | {"allowMultipleAllocations": True}
SHARED["capacity"] = {"memory": {"value": "81558Mi", "requestPolicy": HALF}}
CLUSTER = [*CLASSES, *CARDS, *CUT]
TWO = [make_node("two", {}), *partitionable_gpus("two", 2)]


def template(name: str, device_class_name: str, count: int = 1) -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class_name, "count": count}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def claiming(**source: str) -> Json:
    """Return a pod with one claim."""
    return make_pod().spec(resourceClaims=[{"name": "gpu", **source}]).build()


BY_TEMPLATE = claiming(resourceClaimTemplateName="t")
BY_NAME = claiming(resourceClaimName="c")
WHOLE = make_pod().gpus(1).build()
PART = make_pod().requests("amd.com/part", "1").build()
WITH_PARTS = [*CLUSTER, device_class("part", f"device.driver == '{NVIDIA}' && {TYPE} == 'mig'", "amd.com/part")]
SMALL = make_pod().requests("deviceclass.resource.kubernetes.io/mig", "1").build()

TAINT = {"key": "health", "value": "bad", "effect": "NoSchedule"}
TAINTED = [
    *CLASSES,
    make_node("cards", {}),
    resource_slice("cards", NVIDIA, "cards", nodeName="cards", devices=[card("gpu-0") | {"taints": [TAINT]}]),
]

PLACED: dict[str, tuple[Json, list[Json], list[str], str]] = {
    "a claim of a template": (BY_TEMPLATE, [*CLUSTER, template("t", "mig")], ["cut"], ""),
    "a claim by name": (BY_NAME, [*CLUSTER, resource_claim("c")], ["cards", "cut"], ""),
    "a claim while another one has the card": (
        BY_TEMPLATE,
        [*CLUSTER, template("t", "gpu"), resource_claim("other", allocated("cards", "gpu-0"))],
        ["cut"],
        "",
    ),
    "a claim for more devices than a node has": (
        BY_TEMPLATE,
        [*CLUSTER, template("t", "gpu", 2)],
        [],
        "it has too few free devices that match the pod's claims and whose taints these tolerate",
    ),
    "a claim for the only card, which has a taint": (
        BY_TEMPLATE,
        [*TAINTED, template("t", "gpu")],
        [],
        "and whose taints these tolerate",
    ),
    "an attribute that devices of one node lack": (
        BY_TEMPLATE,
        [*CLUSTER, *PORTS, template("t", "unguarded")],
        [],
        "this ends scheduling on all nodes",
    ),
    "an attribute that devices lack of a node that the pod excludes": (
        make_pod()
        .spec(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])
        .spec(nodeSelector={"kubernetes.io/hostname": "cards"})
        .build(),
        [*CLUSTER, *PORTS, template("t", "unguarded")],
        ["cards"],
        "",
    ),
    "a template that does not exist": (
        BY_TEMPLATE,
        [*CLUSTER, template("other", "gpu")],
        [],
        "resource claim template t does not exist",
    ),
    "a claim that does not exist": (BY_NAME, [*CLUSTER, resource_claim("other")], [], '"c" not found'),
    "a class that does not exist": (
        BY_TEMPLATE,
        [*CLUSTER, template("t", "missing")],
        [],
        "device class missing does not exist",
    ),
    "an extended resource of a class": (WHOLE, CLUSTER, ["cards", "cut"], ""),
    "a name that a class serves, and no device plugin": (PART, WITH_PARTS, ["cut"], ""),
    "a name that a device plugin offers on another node": (
        WHOLE,
        [*CLUSTER, gpu_node("plugin", 1)],
        ["cards", "cut", "plugin"],
        "",
    ),
    "a name that a device plugin offers on another node, where it is used up": (
        WHOLE,
        [*CLUSTER, gpu_node("plugin", 1), make_pod("other").gpus(1).spec(nodeName="plugin").build()],
        ["cards", "cut"],
        "full",
    ),
    "a name that a device plugin offers beside slices is served by the plugin": (
        WHOLE,
        [*CLASSES, gpu_node("cards", 1), CARDS[1], make_pod("other").gpus(1).spec(nodeName="cards").build()],
        [],
        "full",
    ),
    "a name of which a device plugin offers none": (
        WHOLE,
        [*CLASSES, gpu_node("cards", 0), CARDS[1], gpu_node("plugin", 1)],
        ["cards", "plugin"],
        "",
    ),
    "a name of no GPU that a device plugin offers on another node": (
        PART,
        [*WITH_PARTS, make_node("plugin", {}, **{"amd.com/part": 1})],
        ["cut", "plugin"],
        "",
    ),
    "more of a name than a device plugin offers, and fewer than a node has cards": (
        make_pod().gpus(2).build(),
        [*CLUSTER, *TWO, gpu_node("plugin", 1)],
        ["two"],
        "1 on the node, 2 requested",
    ),
    "the implicit name of a class": (SMALL, CLUSTER, ["cut"], ""),
    "the implicit name of a class that does not exist": (
        make_pod().requests("deviceclass.resource.kubernetes.io/missing", "1").build(),
        CLUSTER,
        [],
        "neither a device plugin nor a device class offers an extended resource of the pod here",
    ),
}


@pytest.mark.parametrize(("pod", "objects", "fits", "reason"), PLACED.values(), ids=PLACED)
def test_nodes_with_devices_for_a_pod(pod: Json, objects: list[Json], fits: list[str], reason: str) -> None:
    found = place_pod(pod, *objects)
    assert sorted(nodes(found)) == fits
    assert list(placement_document(found)["unevaluated"]) == []
    assert any(reason in line for line in placement_lines(found))


UNEVALUATED = {
    "no object about devices": (BY_TEMPLATE, [make_node("n", {})], "resource claims"),
    "a template, in a snapshot that has none": (
        BY_TEMPLATE,
        CLUSTER,
        "resource claims: resource claim template t (no resourceclaimtemplates could be read)",
    ),
    "a claim, in a snapshot that has none": (
        BY_NAME,
        CLUSTER,
        'resource claims: resourceclaim.resource.k8s.io "c" (no resourceclaims could be read)',
    ),
    "a device class, in a snapshot that has none": (
        BY_TEMPLATE,
        [*CARDS, *CUT, template("t", "gpu")],
        "resource claims: no deviceclasses could be read",
    ),
    "counters of two drivers whose pools have one name": (
        BY_TEMPLATE,
        [
            *CLUSTER,
            template("t", "mig"),
            resource_slice("x", "example.com", "cut", nodeName="cut", sharedCounters=COUNTERS),
        ],
        "resource claims: pools of several drivers have one name",
    ),
}


@pytest.mark.parametrize(("pod", "objects", "unevaluated"), UNEVALUATED.values(), ids=UNEVALUATED)
def test_devices_that_cannot_be_told_are_named(pod: Json, objects: list[Json], unevaluated: str) -> None:
    assert list(placement_document(place_pod(pod, *objects))["unevaluated"]) == [unevaluated]


UNREAD = "resource claims: they cannot be read, so all devices count as free"


@pytest.mark.parametrize(
    ("pod", "found_nodes", "unevaluated"),
    [
        (BY_TEMPLATE, ["cards"], [UNREAD]),  # a claim that may not be read has the only card
        (
            BY_NAME,
            ["cards", "cut"],
            ['resource claims: resourceclaim.resource.k8s.io "c" (no resourceclaims could be read)'],
        ),
        (make_pod().build(), ["cards", "cut"], []),
    ],
)
def test_devices_are_not_said_to_be_free_while_claims_may_not_be_read(
    pod: Json, found_nodes: list[str], unevaluated: list[str]
) -> None:
    taken = resource_claim("other", allocated("cards", "gpu-0"))
    full = [*CLASSES, *CARDS, make_node("cut", {}), template("t", "gpu"), resource_claim("c"), taken]
    found = place_pod(pod, *full, knows_claims=False)
    assert (sorted(nodes(found)), list(placement_document(found)["unevaluated"])) == (found_nodes, unevaluated)


def test_replicas_are_said_to_compete_for_devices() -> None:
    spec = {**BY_TEMPLATE["spec"], "containers": [{"name": "a", "image": "a"}]}
    pod_template = {"metadata": {"labels": {"app": "a"}}, "spec": spec}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a", "namespace": "team"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": pod_template},
    }
    found = place_pod(workload, *CLUSTER, template("t", "mig"))
    assert list(placement_document(found)["unevaluated"]) == ["devices that the other replicas take"]


def test_the_devices_that_claims_would_get_are_listed_for_each_node_that_fits() -> None:
    found = place_pod(BY_TEMPLATE, *CLUSTER, template("t", "mig"))
    name = "gpu-0-mig-1g10gb-1-0"
    chosen = {"request": "gpu", "driver": NVIDIA, "pool": "cut", "device": name}
    assert [each["devices"] for each in placement_document(found)["nodes"]] == [[chosen]]
    assert [line for line in placement_lines(found) if line.startswith("cut") and name in line]
    assert "devices" not in placement_document(place_pod(WHOLE, gpu_node("plugin", 1)))["nodes"][0]


def test_a_pod_of_the_device_plugin_is_placed_as_before() -> None:
    found = place_pod(WHOLE, *CLASSES[1:], *CUT, gpu_node("plugin", 1))
    assert (nodes(found), list(placement_document(found)["unevaluated"])) == (["plugin"], [])


def simulate(pod: Json, count: int, *objects: Json) -> SimulationResult:
    """Place replicas of a pod, one after another."""
    maker = make_pod()
    maker.data = pod
    return simulate_replicas(placement_input(*objects), maker, count)


SIMULATED: dict[str, tuple[Json, int, list[Json], tuple[int, int, int], dict[str, int]]] = {
    "slices of one card until it is used up": (
        BY_TEMPLATE,
        9,
        [*CLUSTER, template("t", "mig")],
        (7, 1001, 1287),
        {"cannot allocate all claims": 2},
    ),
    "whole cards": (
        BY_TEMPLATE,
        3,
        [*CLUSTER, template("t", "gpu")],
        (2, 2000, 3000),
        {"cannot allocate all claims": 1},
    ),
    "cards by the name of the device plugin": (WHOLE, 3, CLUSTER, (2, 2000, 3000), {"cannot allocate all claims": 1}),
    "cards by the name of a device plugin of another node": (
        WHOLE,
        4,
        [*CLUSTER, gpu_node("plugin", 1)],
        (3, 3000, 4000),
        {"Insufficient nvidia.com/gpu": 1},
    ),
    "devices by a name that no device plugin has": (PART, 2, WITH_PARTS, (2, 286, 286), {}),
    "one claim that all replicas use": (BY_NAME, 3, [*CLUSTER, resource_claim("c")], (3, 1000, 1000), {}),
    "a card that another claim has": (
        BY_TEMPLATE,
        1,
        [*CARDS, *CLASSES, template("t", "gpu"), resource_claim("other", allocated("cards", "gpu-0"))],
        (0, 1000, 2000),
        {"cannot allocate all claims": 1},
    ),
    "a key that no device has": (
        BY_TEMPLATE,
        1,
        [*CARDS, device_class("typo", f"device.attributes['{NVIDIA}'].productname == 'a'"), template("t", "typo")],
        (0, 0, 0),
        {"running DynamicResources filter plugin: no such key: productname": 1},
    ),
    "shares of a card": (
        BY_TEMPLATE,
        2,
        [
            make_node("n", {}),
            *CLASSES,
            template("t", "gpu"),
            resource_slice("n", NVIDIA, "n", nodeName="n", devices=[SHARED]),
        ],
        (2, 1000, 1000),
        {},
    ),
}


@pytest.mark.parametrize(("pod", "count", "objects", "figures", "reasons"), SIMULATED.values(), ids=SIMULATED)
def test_simulated_pods_take_devices(
    pod: Json, count: int, objects: list[Json], figures: tuple[int, int, int], reasons: dict[str, int]
) -> None:
    found = simulate(pod, count, *objects)
    last = found.steps[-1]
    assert (last.placed, last.allocated, last.requested) == figures
    assert found.reasons == reasons
    assert found.capacity == 1000 * sum(each["kind"] == "Node" for each in objects)


def test_simulate_names_devices_that_it_cannot_tell() -> None:
    assert list(unsimulated_constraints(parse_pod(BY_TEMPLATE), placement_input(make_node("n", {})))) == [
        "resource claims"
    ]
    assert list(unsimulated_constraints(parse_pod(BY_TEMPLATE), placement_input(*CLUSTER, template("t", "gpu")))) == []


def taken(node: str, *devices: str) -> Json:
    """Return a claim that has some devices of a node."""
    return resource_claim(f"on-{node}", *(allocated(node, name) for name in devices))


FIRST, HALF_CARD = "gpu-0-mig-1g10gb-1-0", "gpu-0-mig-3g40gb-3-0"
SMALL_MIG = f"({TYPE} == 'mig' && device.attributes['{NVIDIA}'].profile == '1g.10gb')"
SMALL_CLASS = device_class("small", f"{SMALL_MIG} || device.attributes['{NVIDIA}'].productName == 'NVIDIA A10'")
A10 = [
    make_node("a10", {}),
    resource_slice("a10", NVIDIA, "a10", nodeName="a10", devices=[card("gpu-0", "NVIDIA A10")]),
]
SMALL_CARD = card("gpu-0", "NVIDIA A10", memory="23028Mi")
SMALL_A10 = [make_node("a10", {}), resource_slice("a10", NVIDIA, "a10", nodeName="a10", devices=[SMALL_CARD])]
OTHER = [make_node("other", {}), *partitionable_gpus("other")]
RANKED: dict[str, tuple[str, list[Json], list[str]]] = {
    "a slice goes where it leaves the most room": (
        "small",
        [*CUT, *OTHER, taken("other", HALF_CARD)],
        ["other", "cut"],
    ),
    "and not onto an empty card": ("small", [*CUT, *OTHER, taken("other", FIRST)], ["other", "cut"]),
    "a whole card goes to the fuller node": (
        "gpu",
        [*CUT, *TWO, taken("two", "gpu-0")],
        ["two", "cut"],
    ),
    "a slice of an empty card takes less than a whole one": ("small", [*A10, *CUT], ["cut", "a10"]),
    "a card with less memory before a larger one": ("gpu", [*CARDS, *SMALL_A10], ["a10", "cards"]),
    "a small card rather than the first slice of an empty large one": ("small", [*CUT, *SMALL_A10], ["a10", "cut"]),
    "a slice of a card that is cut already rather than a small card": (
        "small",
        [*CUT, taken("cut", FIRST), *SMALL_A10],
        ["cut", "a10"],
    ),
}


@pytest.mark.parametrize(("device_class_name", "cluster", "want"), RANKED.values(), ids=RANKED)
def test_nodes_are_ranked_by_what_the_devices_leave(
    device_class_name: str, cluster: list[Json], want: list[str]
) -> None:
    found = place_pod(BY_TEMPLATE, *CLASSES, SMALL_CLASS, *cluster, template("t", device_class_name))
    assert nodes(found) == want


def test_a_node_without_the_devices_of_its_claims_is_excluded_whoever_serves_its_other_gpus() -> None:
    """A device plugin offers nvidia.com/gpu on some nodes, and class gpu elsewhere."""
    pod = make_pod().gpus(1).spec(resourceClaims=[{"name": "port", "resourceClaimTemplateName": "t"}]).build()
    offering = [make_node(name, {}, **{"nvidia.com/gpu": 1}) for name in ("ports", "other")]
    cluster = [*CLUSTER, *offering, PORTS[1], device_class("port", "device.driver == 'dra.net'"), template("t", "port")]
    found = place_pod(pod, *cluster)
    assert (nodes(found), found.unevaluated) == (["ports"], ())


def test_pods_whose_end_would_make_room_are_those_of_the_device_plugin() -> None:
    """Which pod has the devices of a claim is not known here."""
    taken = resource_claim("c", allocated("cards", "gpu-0"))
    other = make_pod("other").gpus(1).spec(nodeName="plugin").build()
    found = place_pod(WHOLE, *CLASSES, *CARDS, taken, gpu_node("plugin", 1), other)
    assert nodes(found) == []
    assert "Nearest  plugin: would fit if team/other ended." in placement_lines(found)
