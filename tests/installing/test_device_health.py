"""doctor about GPUs that are published twice, and about clusters with many ResourceSlices."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.builders import Json, make_node
from tests.device_builders import NVIDIA, card, device_class, partitionable_gpus, resource_slice
from tests.installing.test_doctor import FORBIDDEN, HEALTHY, NOW
from webhook.cli.commands.doctor import diagnose
from webhook.installing.facts import CheckState, DiagnosticResult
from webhook.model.dra.published_devices import MANY_SLICES
from webhook.model.dra.resource_slices import ResourceSlice, pack_slices

OTHER = "gpus.example.com"
SAME_CARD = card("gpu-0", uuid="GPU-other")
ONLY_NVIDIA = device_class("gpu", f"device.driver == '{NVIDIA}'")
OPEN = device_class("any", f"device.attributes['{NVIDIA}'].type == 'gpu'")


def device_results(nodes: list[Json], slices: list[Json], classes: list[Json] | None = None) -> list[DiagnosticResult]:
    """Return the results about devices, without the name of their check."""
    packed = pack_slices(msgspec.convert(one, ResourceSlice) for one in slices)
    facts = replace(HEALTHY, nodes=nodes, slices=packed, device_classes=classes or [])
    return [each._replace(check="") for each in diagnose(facts, NOW) if "published" in each.summary]


def plugin_node(name: str, **resources: int) -> Json:
    """Return a node on which a device plugin advertises resources."""
    return make_node(name, {"nvidia.com/gpu.product": "NVIDIA-H100"}, **resources)


def test_gpus_of_device_plugin_and_driver_are_reported_with_their_nodes() -> None:
    nodes = [plugin_node("a", **{"nvidia.com/gpu": 1}), plugin_node("b", **{"nvidia.com/mig-1g.10gb": 7})]
    found = device_results(nodes, [*partitionable_gpus("a"), *partitionable_gpus("b")])
    assert found == [
        DiagnosticResult.warn(
            f"GPUs of 2 nodes are published twice, by the device plugin and by {NVIDIA}",
            "a pod and a claim can get the same GPU: remove one of the two from a, b "
            "(NVIDIA: label nvidia.com/gpu.deploy.device-plugin=false for the GPU operator's device plugin, or "
            "resources.gpus.enabled=false of the DRA driver's chart)",
        )
    ]


def test_devices_of_two_drivers_are_reported_with_the_classes_that_take_both() -> None:
    slices = [
        resource_slice("a-1", NVIDIA, "a", nodeName="a", devices=[card("gpu-0")]),
        resource_slice("a-2", OTHER, "a", nodeName="a", devices=[SAME_CARD]),
    ]
    [found] = device_results([plugin_node("a")], slices, [ONLY_NVIDIA, OPEN])
    assert found == DiagnosticResult.warn(
        f"devices of 1 node are published twice, by {NVIDIA} and by {OTHER}",
        "two claims can get the same device: remove one of the drivers from a; "
        f"class any may take devices of both: write device.driver == '{NVIDIA}' in a selector",
    )


ONCE: dict[str, tuple[list[Json], list[Json]]] = {
    "only the driver": ([plugin_node("a")], partitionable_gpus("a")),
    "the plugin on another node": (
        [plugin_node("a"), plugin_node("b", **{"nvidia.com/gpu": 1})],
        partitionable_gpus("a"),
    ),
    "a plugin that advertises none any more": ([plugin_node("a", **{"nvidia.com/gpu": 0})], partitionable_gpus("a")),
    "another driver with other devices": (
        [plugin_node("a", **{"nvidia.com/gpu": 1})],
        [resource_slice("a", "nic.example.com", "a", nodeName="a", devices=[{"name": "nic-0"}])],
    ),
}


@pytest.mark.parametrize(("nodes", "slices"), ONCE.values(), ids=ONCE)
def test_gpus_that_are_published_once(nodes: list[Json], slices: list[Json]) -> None:
    assert [each.state for each in device_results(nodes, slices)] == [CheckState.OK] * len(
        device_results(nodes, slices)
    )


def test_of_many_slices_doctor_says_what_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.installing.cluster_health.MAX_SLICES", 1)
    [found] = device_results([plugin_node("a")], partitionable_gpus("a"))
    assert (found.state, found.advice) == (CheckState.OK, MANY_SLICES)


def test_slices_that_may_not_be_read_are_named() -> None:
    facts = replace(HEALTHY, slices=None, refused={"slices": FORBIDDEN})
    unread = DiagnosticResult.skip("slices cannot be read", FORBIDDEN.message)
    assert unread._replace(check="devices") in diagnose(facts, NOW)
