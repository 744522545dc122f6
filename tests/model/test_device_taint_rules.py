"""Devices that DeviceTaintRules taint, in snapshots and in a live cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.builders import Json, make_node
from tests.device_builders import NVIDIA, card, device_class, resource_slice
from tests.engine.test_claim_review import claim, findings, request
from tests.example_cluster import view_of
from webhook.cache.device_index import DeviceIndex
from webhook.model.dra.device_pools import DevicePools
from webhook.model.dra.device_taint_rules import DeviceTaintRule
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.fleet import Fleet
from webhook.model.objects import Node

CARDS = [card("gpu-0"), card("gpu-1", minor=1)]
NODES = [make_node("n"), make_node("m")]
SLICES = [resource_slice(name, NVIDIA, name, nodeName=name, devices=CARDS) for name in ("n", "m")]
EVERY = ["n/gpu-0", "n/gpu-1", "m/gpu-0", "m/gpu-1"]


def rule(selector: Json | None, version: str = "v1", effect: str = "NoSchedule") -> Json:
    """Return a rule that taints the devices that a selector names."""
    spec: Json = {"taint": {"key": "broken", "effect": effect}}
    spec |= {} if selector is None else {"deviceSelector": selector}
    about = {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceTaintRule", "metadata": {"name": "r"}}
    return about | {"spec": spec}


def tainted(pools: DevicePools) -> list[str]:
    """Return the tainted devices, each with its pool."""
    some = [pool for node in (0, 1) for pool in pools.pools_of_node(node)]
    return [f"{pool.id.pool}/{each.device.name}" for pool in some for each in pool.devices if each.device.taints]


RULES: dict[str, tuple[Json, list[str]]] = {
    "an empty selector selects all": (rule({}), EVERY),
    "no selector selects none": (rule(None), []),
    "a driver": (rule({"driver": NVIDIA}), EVERY),
    "another driver": (rule({"driver": "gpu.amd.com"}), []),
    "a pool": (rule({"pool": "m"}), ["m/gpu-0", "m/gpu-1"]),
    "a device of a pool": (rule({"driver": NVIDIA, "pool": "n", "device": "gpu-1"}), ["n/gpu-1"]),
    "v1beta2": (rule({"pool": "n"}, "v1beta2"), ["n/gpu-0", "n/gpu-1"]),
    "v1alpha3": (rule({"pool": "n"}, "v1alpha3"), ["n/gpu-0", "n/gpu-1"]),
    "a class, which is not evaluated": (rule({"deviceClassName": "gpu"}, "v1alpha3"), []),
}


@pytest.mark.parametrize(("written", "expected"), RULES.values(), ids=RULES)
def test_a_rule_taints_the_devices_that_it_selects(written: Json, expected: list[str]) -> None:
    assert tainted(view_of(*NODES, *SLICES, written).devices.pools) == expected


@pytest.mark.parametrize(("effect", "codes"), [("NoSchedule", ["GPU-D104"]), ("NoExecute", ["GPU-D104"]), ("None", [])])
def test_a_claim_gets_no_device_that_a_rule_taints(effect: str, codes: list[str]) -> None:
    cluster = [*NODES, *SLICES, device_class("gpu", f"device.driver == '{NVIDIA}'")]
    two = claim(request(count=2))
    assert [each.code for each in findings(two, *cluster, rule({"device": "gpu-0"}, effect=effect))] == codes


async def test_a_live_cluster_follows_rules() -> None:
    def decode(data: Json, kind: type[Any]) -> Any:
        return msgspec.convert(data, kind)

    index, fleet = DeviceIndex(lambda: None), Fleet([decode(each, Node) for each in NODES])
    for each in SLICES:
        index.slices.upsert(decode(each, ResourceSlice))
    seen, of_m = [], decode(rule({"pool": "m"}), DeviceTaintRule)
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: index.taint_rules.upsert(of_m),
        lambda: index.taint_rules.remove(of_m),
    ]
    for change in changes:
        change()
        await index.update_pools(fleet)
        seen.append(tainted(index.take_view(()).pools))
    assert seen == [[], ["m/gpu-0", "m/gpu-1"], []]
