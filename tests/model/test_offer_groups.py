"""offer_groups: which nodes form one offer, and the labels that select it."""

from __future__ import annotations

from tests.builders import Json, make_node
from tests.model.nodes import A100, GPU, SHARED, SMALL, names, node, reachable_nodes, read_node
from webhook.model.fleet import Fleet

CARD = {"gpu.product": A100, "gpu.memory": "81920", "gpu.count": "8"}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def _tainted(one: Json, *taints: Json) -> Json:
    return one | {"spec": {"taints": list(taints)}}


def _reached(fleet: Fleet) -> list[tuple[set[str], set[str]]]:
    """Return the nodes of each offer, and the advertising nodes that its selector matches."""
    return [(names(fleet, o.nodes), names(fleet, reachable_nodes(fleet, o))) for o in fleet.offers]


def test_equal_nodes_form_one_offer() -> None:
    (offer,) = Fleet([node("a", CARD, **{GPU: "8"}), node("b", CARD, **{GPU: "4"})]).offers
    assert (offer.nodes, offer.capacity) == (0b11, 12)


def test_taints_separate_offers_and_their_order_does_not() -> None:
    other = {"key": "dedicated", "value": "vision", "effect": "NoSchedule"}
    soft = {"key": "warm", "value": "", "effect": "PreferNoSchedule"}
    labels = {f"nvidia.com/{key}": value for key, value in CARD.items()}
    make = [
        _tainted(make_node("a", labels, **{GPU: 8}), GPU_TAINT, other),
        _tainted(make_node("b", labels, **{GPU: 8}), other, GPU_TAINT, soft),
        _tainted(make_node("c", labels, **{GPU: 8}), GPU_TAINT),
    ]
    fleet = Fleet([read_node(data) for data in make])
    assert [(sorted(names(fleet, o.nodes)), [t.key for t in o.taints]) for o in fleet.offers] == [
        (["a", "b"], ["dedicated", "nvidia.com/gpu"]),
        (["c"], ["nvidia.com/gpu"]),
    ]
    assert {o.selector for o in fleet.offers} == {(("nvidia.com/gpu.product", A100),)}


def test_memory_sizes_of_driver_branches_become_the_lower_one() -> None:
    (offer,) = Fleet([node("a", CARD, **{GPU: "8"}), node("b", CARD | {"gpu.memory": "81251"}, **{GPU: "8"})]).offers
    assert (offer.memory_mib, offer.selector) == (81251, (("nvidia.com/gpu.product", A100),))


def test_two_sizes_of_one_product_are_selected_by_memory() -> None:
    desk, rack = (
        {"gpu.product": "NVIDIA-GB300", "gpu.memory": "256703"},
        {"gpu.product": "NVIDIA-GB300", "gpu.memory": "284208"},
    )
    fleet = Fleet([node("desk", desk, **{GPU: "1"}), node("rack", rack, **{GPU: "4"})])
    assert sorted(o.memory_mib or 0 for o in fleet.offers) == [256703, 284208]
    assert all(lives == reached for lives, reached in _reached(fleet))
    assert all(dict(o.selector).keys() == {"nvidia.com/gpu.product", "nvidia.com/gpu.memory"} for o in fleet.offers)


def test_one_resource_of_two_products_forms_two_offers_selected_by_product() -> None:
    fleet = Fleet(
        [node("large", CARD, **{SMALL: "7"}), node("small", {"gpu.product": "NVIDIA-A100-SXM4-40GB"}, **{SMALL: "4"})]
    )
    assert [(o.gpu_milli, dict(o.selector)["nvidia.com/gpu.product"]) for o in fleet.offers] == [
        (143, A100),
        (250, "NVIDIA-A100-SXM4-40GB"),
    ]
    assert fleet.by_resource[SMALL] == fleet.offers


def test_mps_and_time_slicing_of_one_product_are_selected_by_strategy() -> None:
    share = CARD | {"gpu.product": f"{A100}-SHARED", "gpu.replicas": "4"}
    fleet = Fleet(
        [
            node("mps", share | {"gpu.sharing-strategy": "mps"}, **{GPU: "32"}),
            node("time", share | {"gpu.sharing-strategy": "time-slicing"}, **{GPU: "32"}),
        ]
    )
    assert len(fleet.offers) == 2
    assert all(lives == reached for lives, reached in _reached(fleet))


def test_gke_partitions_are_selected_by_label() -> None:
    key = "cloud.google.com/gke-"
    card = {f"{key}accelerator": "nvidia-tesla-a100"}
    fleet = Fleet(
        [
            node("whole", card | {f"{key}gpu-partition-size": ""}, **{GPU: "8"}),
            node("cut", card | {f"{key}gpu-partition-size": "1g.5gb"}, **{GPU: "56"}),
        ]
    )
    assert len(fleet.offers) == 2
    assert all(lives == reached for lives, reached in _reached(fleet))


def test_offers_without_distinguishing_labels_have_no_selector() -> None:
    fleet = Fleet([node("bare", **{GPU: "8"}), node("known", CARD, **{GPU: "8"})])
    selectors = {tuple(sorted(names(fleet, o.nodes))): o.selector for o in fleet.offers}
    assert selectors == {("bare",): (), ("known",): (("nvidia.com/gpu.product", A100),)}


def test_an_offer_has_the_oldest_known_driver() -> None:
    key = "cuda.driver-version.full"
    (offer,) = Fleet(
        [
            node("old", CARD | {key: "535.230.02"}, **{GPU: "8"}),
            node("new", CARD | {key: "580.95.05"}, **{GPU: "8"}),
            node("silent", CARD, **{GPU: "8"}),
        ]
    ).offers
    assert offer.driver == (535, 230, 2)


def test_a_missing_label_does_not_separate_an_offer() -> None:
    known = CARD | {"gpu.compute.major": "8", "gpu.compute.minor": "0", "mig-1g.10gb.multiprocessors": "13"}
    (offer,) = Fleet([node("new", known, **{SMALL: "7"}), node("old", CARD, **{SMALL: "7"})]).offers
    assert (offer.compute_capability, offer.compute_milli) == ((8, 0), 120)
    assert offer.selector == (("nvidia.com/gpu.product", A100),)


def test_a_selector_excludes_nodes_that_advertise_units_without_an_offer() -> None:
    broken = node("broken", CARD | {"gpu.product": f"{A100}-MIG-INVALID", "site": "x"}, **{GPU: "8"})
    fleet = Fleet([broken, node("bare", {"site": "x"}, **{GPU: "8"})])
    (offer,) = fleet.offers
    assert (offer.selector, names(fleet, reachable_nodes(fleet, offer))) == ((), {"bare", "broken"})


def test_the_smallest_share_of_a_gpu_comes_first() -> None:
    shares = CARD | {"gpu.replicas": "4"}
    fleet = Fleet(
        [node("whole", CARD, **{GPU: "8"}), node("mig", CARD, **{SMALL: "7"}), node("shared", shares, **{SHARED: "32"})]
    )
    assert [o.resource for o in fleet.offers] == [SMALL, SHARED, GPU]
