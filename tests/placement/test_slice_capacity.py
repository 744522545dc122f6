"""Capacity of nodes whose GPUs are in ResourceSlices."""

from __future__ import annotations

import pytest

from tests.builders import Json, make_node
from tests.device_builders import (
    AMD,
    H100,
    NVIDIA,
    allocated,
    amd_gpu,
    card,
    mig_device,
    partitionable_gpus,
    resource_claim,
    resource_slice,
    without_profile,
)
from tests.placement.clusters import gpu_node, placement_input
from webhook.audit.device_filter import published_cards
from webhook.model.dra.device_allocations import allocated_in_pools
from webhook.model.dra.pool_kinds import cards_on_node
from webhook.report.capacity import NodeCapacity, capacity_table, node_capacities, total_capacity
from webhook.report.node_topology import node_document, node_lines

SHARE = "00000000-0000-4000-8000-000000000001"
TAINT = {"key": "example.com/health", "value": "bad", "effect": "NoSchedule"}


def capacity(*objects: Json) -> NodeCapacity:
    placement = placement_input(*objects)
    (found,) = node_capacities(placement.snapshot, placement.mix, placement.devices)
    return found


def on_node(*devices: Json, driver: str = NVIDIA, count: int = 1) -> list[Json]:
    return [make_node("n", {}), resource_slice("n", driver, "n", count, nodeName="n", devices=list(devices))]


CUT = [make_node("n", {}), *partitionable_gpus("n", 2)]
PARTS = [mig_device(f"gpu-1-mig-{i}", "1g.10gb", "GPU-1") for i in range(3)]
EIGHTHS = [amd_gpu(f"gpu-{i}", "0000:75:00.0", "cpx_nps4", "24564Mi") for i in range(8)]
SHARED = card("gpu-0") | {"allowMultipleAllocations": True}

FOUND: dict[str, tuple[list[Json], tuple[int, int, int, int], dict[str, int]]] = {
    "whole cards, one of them allocated": (
        [*on_node(card("gpu-0"), card("gpu-1")), resource_claim("c", allocated("n", "gpu-0"))],
        (2, 1000, 1000, 0),
        {},
    ),
    "access for administration does not count": (
        [*on_node(card("gpu-0")), resource_claim("c", allocated("n", "gpu-0") | {"adminAccess": True})],
        (1, 0, 1000, 0),
        {},
    ),
    "cards that nothing is cut from": (
        CUT,
        (2, 0, 2000, 0),
        {"7g.80gb": 2, "4g.40gb": 2, "3g.40gb": 4, "2g.20gb": 6, "1g.20gb": 8, "1g.10gb": 14},
    ),
    "a card with two small slices beside a whole one in use": (
        [
            *CUT,
            resource_claim("a", allocated("n", "gpu-0")),
            resource_claim("b", allocated("n", "gpu-1-mig-1g10gb-1-0"), allocated("n", "gpu-1-mig-1g10gb-1-1")),
        ],
        (2, 1286, 714, 0),
        {"3g.40gb": 1, "2g.20gb": 2, "1g.20gb": 3, "1g.10gb": 5},
    ),
    "MIG devices that exist": (
        [*on_node(card("gpu-0"), *PARTS), resource_claim("c", allocated("n", "gpu-1-mig-0"))],
        (2, 143, 1286, 0),
        {"1g.10gb": 2},
    ),
    "a card that claims share by memory": (
        [*on_node(SHARED), resource_claim("c", allocated("n", "gpu-0", share=SHARE, memory="20Gi"))],
        (1, 252, 748, 0),
        {},
    ),
    "partitions of AMD": (
        [*on_node(*EIGHTHS, driver=AMD), resource_claim("c", allocated("n", "gpu-3", AMD))],
        (1, 125, 875, 0),
        {"cpx_nps4": 7},
    ),
    "whole cards of AMD": (on_node(amd_gpu("gpu-0", "a"), amd_gpu("gpu-1", "b"), driver=AMD), (2, 0, 2000, 0), {}),
    "a tainted card is not free": (on_node(card("gpu-0") | {"taints": [TAINT]}, card("gpu-1")), (2, 0, 1000, 1000), {}),
    "a cordoned node has nothing free": (
        [make_node("n", {}) | {"spec": {"unschedulable": True}}, *CUT[1:]],
        (2, 0, 0, 2000),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "amounts", "fits"), FOUND.values(), ids=FOUND)
def test_capacity_of_slices(objects: list[Json], amounts: tuple[int, int, int, int], fits: dict[str, int]) -> None:
    found = capacity(*objects)
    assert (found.installed_gpus, found.allocated_milli, found.free_milli, found.unschedulable_milli) == amounts
    assert dict(found.mig_fits) == fits
    assert found.from_slices


WARNINGS = {
    "missing slices": (on_node(card("gpu-0"), count=2), "ResourceSlices of pool gpu.nvidia.com/n are missing"),
    "invalid slices": (
        [
            *on_node(card("gpu-0"), count=2),
            resource_slice("m", NVIDIA, "n", 2, nodeName="n", devices=[card("gpu-0")]),
        ],
        "pool gpu.nvidia.com/n is invalid, duplicate device name gpu-0",
    ),
    "GPUs that the device plugin advertises too": (
        [gpu_node("n", 1), resource_slice("n", NVIDIA, "n", nodeName="n", devices=[card("gpu-0")])],
        "its GPUs are in ResourceSlices too",
    ),
}


@pytest.mark.parametrize(("objects", "warning"), WARNINGS.values(), ids=WARNINGS)
def test_a_warning_says_which_gpus_do_not_count(objects: list[Json], warning: str) -> None:
    found = capacity(*objects)
    assert warning in found.warning
    assert any(warning in line for line in capacity_table([found]))


def test_the_product_is_that_of_the_slices_where_no_label_names_it() -> None:
    plugin = make_node("n", {}, **{"nvidia.com/gpu": 1})
    published = resource_slice("n", NVIDIA, "n", nodeName="n", devices=[card("gpu-0")])
    assert capacity(plugin, published).product_text == "H100-80GB-HBM3"
    assert capacity(plugin).product_text == "product not labeled"
    assert capacity(*on_node(card("gpu-0"), count=2)).product_text == "product not published"


def test_a_node_with_cards_of_several_products_names_each_once() -> None:
    cards = [card("gpu-0", "NVIDIA A10", memory="23028Mi"), card("gpu-1"), card("gpu-2")]
    assert capacity(*on_node(*cards)).product == "A10, H100-80GB-HBM3"


def test_a_tainted_card_is_no_card_of_an_unschedulable_node() -> None:
    tainted = capacity(*on_node(card("gpu-0") | {"taints": [TAINT]}, card("gpu-1")))
    cordoned = capacity(make_node("n", {}) | {"spec": {"unschedulable": True}}, *CUT[1:])
    _, total, row = capacity_table([tainted])[:3]
    assert [each.endswith("  1 unused on tainted devices") for each in (total, row)] == [True, True]
    _, both, *_ = capacity_table([tainted, cordoned])
    assert both.endswith("  2 unused on unschedulable nodes, 1 unused on tainted devices")


def test_the_largest_island_of_all_nodes_is_unknown_if_that_of_a_node_with_free_gpus_is() -> None:
    full = capacity(*on_node(card("gpu-0") | {"taints": [TAINT]}))
    unknown = capacity(*on_node(card("gpu-0")))
    assert [total_capacity(each).largest_island for each in ([full], [full, unknown], [])] == [0, None, 0]


def test_devices_of_other_drivers_are_no_gpus() -> None:
    placement = placement_input(*on_node({"name": "port-0"}, driver="dra.net"))
    assert node_capacities(placement.snapshot, placement.mix, placement.devices) == []


NETWORK = [make_node(name, {}) for name in ("a", "b", "c")]
NETWORK[0]["spec"] = {"unschedulable": True}
OF_SEVERAL = {
    "all nodes": {"allNodes": True, "devices": [card("gpu-0"), card("gpu-1")]},
    "nodes by label": {
        "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}]},
        "devices": [card("gpu-0"), card("gpu-1")],
    },
    "all nodes for each device": {
        "perDeviceNodeSelection": True,
        "devices": [card(name) | {"allNodes": True} for name in ("gpu-0", "gpu-1")],
    },
}


@pytest.mark.parametrize("spec", OF_SEVERAL.values(), ids=OF_SEVERAL)
def test_gpus_that_several_nodes_can_use_count_once(spec: Json) -> None:
    claim = resource_claim("x", allocated("net", "gpu-1"))
    own = resource_slice("c", NVIDIA, "c", nodeName="c", devices=[card("gpu-0")])
    placement = placement_input(*NETWORK, resource_slice("net", NVIDIA, "net", **spec), own, claim)
    found = node_capacities(placement.snapshot, placement.mix, placement.devices)
    assert [(each.name, each.installed_gpus, each.free_milli) for each in found] == [("b", 2, 1000), ("c", 1, 1000)]
    assert "b: shares the GPUs of pool gpu.nvidia.com/net with a, c: they count here only" in capacity_table(found)
    assert len(published_cards(placement)) == 3


def test_the_table_says_that_links_are_not_known() -> None:
    assert "? ResourceSlices do not say which GPUs NVLink connects" in capacity_table([capacity(*CUT)])


def test_one_node_lists_its_cards() -> None:
    placement = placement_input(*CUT, resource_claim("a", allocated("n", "gpu-1-mig-1g10gb-1-0")))
    cards = cards_on_node(placement.devices, 0)
    lines = node_lines(placement.snapshot, 0, [], cards)
    parts = str(len(CUT[-1]["spec"]["devices"]))
    assert [line.split()[:6] for line in lines] == [
        ["CARD", "PRODUCT", "MEMORY", "DEVICES", "ALLOCATED", "FREE"],
        ["gpu.nvidia.com/n/gpu-0", "NVIDIA-H100-80GB-HBM3", "81559Mi", parts, "0", "1"],
        ["gpu.nvidia.com/n/gpu-1", "NVIDIA-H100-80GB-HBM3", "81559Mi", parts, "0.14", "0.86"],
    ]
    document = node_document(placement.snapshot, 0, None, [], cards)
    found = document["publishedCards"][1]
    assert found["fits"] == {"1g.10gb": 6, "1g.20gb": 3, "2g.20gb": 2, "3g.40gb": 1}
    assert [found[key] for key in ("driver", "pool", "card")] == [NVIDIA, "n", "gpu-1"]


def test_devices_of_one_name_in_two_pools_are_told_apart() -> None:
    more = resource_slice("m", NVIDIA, "extra", nodeName="n", devices=[card("gpu-0")])
    placement = placement_input(*on_node(card("gpu-0")), more)
    lines = node_lines(placement.snapshot, 0, [], cards_on_node(placement.devices, 0))
    assert sorted(line.split()[0] for line in lines[1:]) == ["gpu.nvidia.com/extra/gpu-0", "gpu.nvidia.com/n/gpu-0"]


def tables(*objects: Json) -> Json:
    """Return what `capacity NODE -o json` prints of the first node."""
    placement = placement_input(*objects)
    cards = cards_on_node(placement.devices, 0)
    allocated = allocated_in_pools(placement.devices, {card.pool for card in cards})
    return node_document(placement.snapshot, 0, None, [], cards, allocated)


@pytest.mark.parametrize(("objects", "amounts"), [case[:2] for case in FOUND.values()], ids=FOUND)
def test_the_tables_of_a_node_add_up_to_its_capacity(objects: list[Json], amounts: tuple[int, ...]) -> None:
    found, (installed, allocated_milli, free, unschedulable) = tables(*objects), amounts
    cards = found["publishedCards"]
    assert len(cards) == installed
    for rows in (cards, found["allocatedDevices"]):
        assert sum(each["allocatedMilli"] for each in rows) == allocated_milli
    tainted = 1000 if any("taints" in each for one in objects for each in one["spec"].get("devices", ())) else 0
    assert sum(each["freeMilli"] for each in cards) == free + unschedulable - tainted
    published = [each["name"] for one in objects for each in one.get("spec", {}).get("devices", ()) if "name" in each]
    assert sorted(name for each in cards for name in each["devices"]) == sorted(published)


STATIC = [mig_device("gpu-2-mig-9-0-4", "3g.40gb", "GPU-x", memory=40192), *(
    mig_device(name, "1g.10gb", "GPU-x") for name in ("gpu-2-mig-19-4-1", "gpu-2-mig-19-5-1")
)]  # fmt: skip
OWN_NAMES: dict[str, tuple[list[Json], tuple[str, str, str]]] = {
    "of MIG devices only": (on_node(*STATIC), ("gpu-2", "GPU-x", "81559Mi")),
    "of MIG devices with names of another form": (
        on_node(*(each | {"name": f"part-{i}"} for i, each in enumerate(STATIC))),
        ("GPU-x", "GPU-x", "81559Mi"),
    ),
    "of MIG devices of a product whose memory is unknown": (
        on_node(*(mig_device(each["name"], "1g.10gb", "GPU-x", "NVIDIA Z900") for each in STATIC[:1])),
        ("gpu-2", "GPU-x", ""),
    ),
    "of a MIG device without a profile": (on_node(without_profile(STATIC[1])), ("gpu-2", "GPU-x", "81559Mi")),
    "of MIG devices that could be made": ([make_node("n", {}), *partitionable_gpus("n")], ("gpu-0", "", "81559Mi")),
    "of AMD": (on_node(*EIGHTHS, driver=AMD), ("0000:75:00.0", "0000:75:00.0", "196512Mi")),
    "without parts": (on_node(card("gpu-0", uuid="GPU-y")), ("gpu-0", "GPU-y", "81559Mi")),
}


@pytest.mark.parametrize(("objects", "expected"), OWN_NAMES.values(), ids=OWN_NAMES)
def test_a_card_has_its_own_name_and_memory(objects: list[Json], expected: tuple[str, str, str]) -> None:
    (found,) = tables(*objects)["publishedCards"]
    uuid = next(
        (each["attributes"]["uuid"]["string"] for one in objects[2:] for each in one["spec"]["devices"][:1]), ""
    )
    assert (found["card"], found["identity"], found["memory"]) == (expected[0], expected[1] or uuid, expected[2])


def test_equal_cards_of_two_nodes_have_their_own_identities() -> None:
    slices = [
        resource_slice(name, NVIDIA, name, nodeName=name, devices=[mig_device("gpu-0-mig-0", "3g.40gb", f"GPU-{name}")])
        for name in ("a", "b")
    ]
    placement = placement_input(make_node("a", {}), make_node("b", {}), *slices)
    found = [card.identity for node in (0, 1) for card in cards_on_node(placement.devices, node)]
    assert found == ["GPU-a", "GPU-b"]


def test_the_card_of_an_allocated_device_has_the_allocation_and_the_device_has_the_claim() -> None:
    claim = resource_claim("c", allocated("n", "gpu-2-mig-19-4-1"))
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": "trainer-0"},
        {"apiGroup": "example.com", "resource": "jobs", "name": "no-pod"},
        {"resource": "pods", "name": "trainer-1"},
    ]
    found = tables(*on_node(card("gpu-0"), *STATIC), claim)
    assert {each["card"]: each["allocatedMilli"] for each in found["publishedCards"]} == {"gpu-0": 0, "gpu-2": 143}
    (row,) = found["allocatedDevices"]
    assert (row["device"], row["card"], row["profile"]) == ("gpu-2-mig-19-4-1", "gpu-2", "1g.10gb")
    assert (row["namespace"], row["claim"], row["pods"]) == ("team", "c", ["trainer-0", "trainer-1"])


@pytest.mark.parametrize(
    ("device", "profile", "cell"),
    [(STATIC[1], "1g.10gb", "1g.10gb"), (without_profile(STATIC[1]), None, "unknown"), (card("gpu-0"), "", "whole")],
)
def test_the_profile_of_an_allocated_part_is_shown_or_unknown(device: Json, profile: str | None, cell: str) -> None:
    objects = *on_node(device), resource_claim("c", allocated("n", device["name"]))
    (row,) = tables(*objects)["allocatedDevices"]
    assert row["profile"] == profile
    placement = placement_input(*objects)
    cards = cards_on_node(placement.devices, 0)
    found = allocated_in_pools(placement.devices, {cards[0].pool})
    assert node_lines(placement.snapshot, 0, [], cards, found)[-1].split()[2] == cell


@pytest.mark.parametrize(
    ("part", "product", "milli"),
    [
        (STATIC[1], H100, 143),
        (mig_device("gpu-2-mig-0", "2g.20gb", "GPU-x", memory=19968), H100, 286),  # or 1g.20gb, which is 250
        (STATIC[1], "NVIDIA Z900", 1000),  # the only part of its card
    ],
)
def test_a_part_without_a_profile_is_as_much_of_its_card_as_its_memory_says(
    part: Json, product: str, milli: int
) -> None:
    attributes = part["attributes"] | {"productName": {"string": product}}
    objects = on_node(without_profile(part | {"attributes": attributes}))
    (row,) = tables(*objects, resource_claim("c", allocated("n", part["name"])))["allocatedDevices"]
    assert row["allocatedMilli"] == milli


def test_a_row_names_some_of_the_pods_that_share_a_claim() -> None:
    claim, pods = resource_claim("c", allocated("n", "gpu-0")), [f"trainer-{i}" for i in range(256)]
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": name} for name in pods]
    placement = placement_input(*on_node(card("gpu-0")), claim)
    cards = cards_on_node(placement.devices, 0)
    lines = node_lines(placement.snapshot, 0, [], cards, allocated_in_pools(placement.devices, {cards[0].pool}))
    assert lines[-1].endswith("  trainer-0, trainer-1, trainer-2 and 253 more")
    assert tables(*on_node(card("gpu-0")), claim)["allocatedDevices"][0]["pods"] == pods


def test_only_allocated_gpus_that_are_published_have_a_claim_in_the_table() -> None:
    port = resource_slice("p", "dra.net", "n", nodeName="n", devices=[{"name": "port-0"}])
    claim = resource_claim("c", allocated("n", "gone"), allocated("n", "port-0", "dra.net"))
    assert tables(*on_node(card("gpu-0")), port, claim)["allocatedDevices"] == []


def test_each_claim_that_shares_a_card_has_its_part_of_it() -> None:
    shares = [
        resource_claim(name, allocated("n", "gpu-0", share=SHARE[:-1] + name, memory=memory))
        for name, memory in (("1", "20Gi"), ("2", "10Gi"))
    ]
    found = tables(*on_node(SHARED), *shares)["allocatedDevices"]
    assert [(each["claim"], each["allocatedMilli"]) for each in found] == [("1", 252), ("2", 126)]
