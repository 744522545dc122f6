"""Fleet: nodes that accept pods, and the figures of messages."""

from __future__ import annotations

import pytest

from tests.builders import make_node
from tests.model.nodes import A100, GPU, SMALL, names, node, read_node
from webhook.model.fleet import Fleet
from webhook.model.pods import Toleration

UNUSABLE: dict[str, dict[str, str]] = {
    "MIG is being changed": {"mig.config": "all-1g.10gb", "mig.config.state": "pending"},
    "MIG change needs a reboot": {"mig.config": "all-1g.10gb", "mig.config.state": "rebooting"},
    "MIG change failed": {"mig.config.state": "failed"},
    "MIG configuration is requested but not started": {"mig.config": "all-1g.10gb"},
    "the driver is being upgraded": {"gpu-driver-upgrade-state": "drain-required"},
    "the plugin is paused for MIG": {"gpu.deploy.device-plugin": "paused-for-mig-change"},
    "the plugin is paused for the driver": {"gpu.deploy.device-plugin": "paused-for-driver-upgrade"},
    "the operator finds no GPU": {"gpu.present": "false"},
}
USABLE: dict[str, dict[str, str]] = {
    "no labels": {},
    "MIG is configured": {"mig.config": "all-1g.10gb", "mig.config.state": "success"},
    "the driver is upgraded": {"gpu-driver-upgrade-state": "upgrade-done"},
    "never upgraded": {"gpu-driver-upgrade-state": ""},
    "the plugin runs": {"gpu.deploy.device-plugin": "true"},
}


@pytest.mark.parametrize("labels", UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_nodes(labels: dict[str, str]) -> None:
    assert Fleet([node("n", labels, **{GPU: "8"})]).usable_nodes == 0


@pytest.mark.parametrize("labels", USABLE.values(), ids=USABLE)
def test_usable_nodes(labels: dict[str, str]) -> None:
    assert Fleet([node("n", labels, **{GPU: "8"})]).usable_nodes == 1


def test_gpu_labels_do_not_block_a_node_without_gpus() -> None:
    assert Fleet([node("n", {"gpu.present": "false"})]).usable_nodes == 1


def test_cordoned_and_unready_nodes_accept_no_pod() -> None:
    cordoned, unready, unknown, silent = make_node("a"), make_node("b"), make_node("c"), make_node("d")
    cordoned["spec"]["unschedulable"] = True
    unready["status"]["conditions"][0]["status"] = "False"
    unknown["status"]["conditions"][0]["status"] = "Unknown"
    del silent["status"]["conditions"]
    fleet = Fleet([read_node(data) for data in (cordoned, unready, unknown, silent)])
    assert names(fleet, fleet.usable_nodes) == {"d"}


def test_caches_are_bounded() -> None:
    fleet = Fleet([node()])
    for number in range(3000):
        fleet.tolerated_nodes((Toleration(key=str(number), operator="Exists"),))
    assert max(map(len, fleet.derived.values())) <= 1024


def test_figures_for_messages() -> None:
    large = node("a", {"gpu.product": A100}, **{GPU: "8", SMALL: "7"})
    fleet = Fleet([large, node("b", {"gpu.product": "NVIDIA-L4"}, **{GPU: "2"}), node("cpu")])
    assert fleet.resources() == (GPU, SMALL)
    assert fleet.products_of_nodes(fleet.all_nodes) == (A100, "NVIDIA-L4")
    assert fleet.products_of_nodes(0b110) == ("NVIDIA-L4",)
    assert (fleet.max_units(GPU, fleet.all_nodes), fleet.max_units(GPU, 0b110), fleet.max_units(GPU, 0b100)) == (
        8,
        2,
        0,
    )
    assert fleet.max_units("nvidia.com/mig-9g.9gb", fleet.all_nodes) == 0
    assert fleet.nodes_advertising(GPU) == 0b011


def test_empty_fleet() -> None:
    fleet = Fleet([])
    assert (
        fleet.offers,
        fleet.all_nodes,
        fleet.usable_nodes,
        fleet.select_nodes({"a": "b"}, None),
        fleet.tolerated_nodes(()),
    ) == (
        (),
        0,
        0,
        0,
        0,
    )
