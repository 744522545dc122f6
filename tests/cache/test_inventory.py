"""The inventory reflects its objects, whatever the order of watch events."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json
from tests.placement.clusters import BRIDGED, gpu_node, gpu_node_report, running_gpu_pod
from webhook.cache.inventory import NodeInventory, build_inventory
from webhook.model.fleet import fleet_node
from webhook.model.gpu_node import GPUNode
from webhook.model.objects import Node
from webhook.model.pods import Pod
from webhook.placement.nodes.snapshot import NodeReservation

NAMES = ("a", "b")
KINDS: dict[str, Any] = {"pods": Pod, "nodes": Node, "gpunodes": GPUNode}


def pod(name: str, node: str, count: int) -> Json:
    made = running_gpu_pod(name, node, count=count) if count else running_gpu_pod(name, node, "cpu", 2)
    return made | {"metadata": {**made["metadata"], "uid": f"u-{name}"}}


pods = st.builds(pod, st.sampled_from(["p1", "p2", "p3"]), st.sampled_from(["a", "b", ""]), st.integers(0, 2))
reports = st.builds(
    lambda name, devices_held: gpu_node_report(name, 4, BRIDGED, devices_held),
    st.sampled_from(NAMES),
    st.dictionaries(st.integers(0, 3), st.sampled_from(["team/p1", "team/p2", "team/gone"])),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("pods"), st.sampled_from(["upsert", "remove", "list"]), pods),
        st.tuples(st.just("gpunodes"), st.sampled_from(["upsert", "remove", "list"]), reports),
    ),
    max_size=15,
)


def write(inventory: NodeInventory, kind: str, action: str, item: Any) -> None:
    writer = getattr(inventory, kind)
    if action == "list":
        writer.begin()
        writer.upsert(item)
        writer.swap()
    else:
        (writer.remove if action == "remove" else writer.upsert)(item)


def apply_event(objects: dict[tuple[str, str], Any], kind: str, action: str, item: Any) -> None:
    """Apply an event to the objects of the API server."""
    if action == "list":
        for key in [key for key in objects if key[0] == kind]:
            del objects[key]
    key = (kind, item.metadata.name)
    objects.pop(key, None)
    if action != "remove":
        objects[key] = item


@settings(max_examples=150)
@given(steps)
def test_any_events_lead_to_the_inventory_of_the_remaining_objects(events: list[tuple[str, str, Json]]) -> None:
    nodes = [msgspec.convert(gpu_node(name), Node) for name in NAMES]
    live = build_inventory(nodes)
    objects: dict[tuple[str, str], Any] = {}
    live.take_changed_nodes(10)
    before = {node.metadata.name: live.free_on_node(fleet_node(node)) for node in nodes}
    for kind, action, data in events:
        item = msgspec.convert(data, KINDS[kind])
        write(live, kind, action, item)
        apply_event(objects, kind, action, item)

    fresh = build_inventory([*nodes, *objects.values()])
    changed = live.take_changed_nodes(10)
    for node in map(fleet_node, nodes):
        free, devices = live.free_on_node(node)
        assert (free, _known(devices)) == (fresh.free_on_node(node)[0], _known(fresh.free_on_node(node)[1]))
        assert node.name in changed or live.free_on_node(node) == before[node.name]


def _known(devices: Any) -> Any:
    """Return what does not depend on the order of arrival: the number of free GPUs, not which ones."""
    return None if devices is None else devices.free.bit_count()


def test_node_change_outdates_the_index_and_a_heartbeat_does_not() -> None:
    inventory = build_inventory([msgspec.convert(gpu_node("a"), Node)])
    inventory.index_outdated = False

    inventory.nodes.upsert(msgspec.convert(gpu_node("a"), Node))
    assert not inventory.index_outdated
    inventory.nodes.upsert(msgspec.convert(gpu_node("a", 8), Node))

    assert inventory.index_outdated


def test_pods_without_gpus_are_counted_once_on_arrival() -> None:
    inventory = build_inventory([])
    one = msgspec.convert(pod("p", "a", 0), Pod)

    inventory.pods.upsert(one)
    inventory.pods.upsert(one)
    inventory.pods.upsert(msgspec.convert(pod("q", "a", 1), Pod))

    assert list(inventory.arrivals.values()) == [1]


def test_pod_that_is_twice_in_a_list_is_counted_once() -> None:
    inventory = build_inventory([])
    one = msgspec.convert(pod("p", "a", 0), Pod)

    inventory.pods.begin()
    inventory.pods.upsert(one)
    inventory.pods.upsert(one)
    inventory.pods.swap()

    assert list(inventory.arrivals.values()) == [1]


def test_reservation_of_a_pod_on_the_node_does_not_count_twice() -> None:
    node = msgspec.convert(gpu_node("a"), Node)
    inventory = build_inventory([node, msgspec.convert(pod("p", "a", 2), Pod)])
    reservation = NodeReservation("u-p", "team/p", "a", {"nvidia.com/gpu": 2 * 10**9}, 10.0)
    other = NodeReservation("u-q", "team/q", "a", {"nvidia.com/gpu": 1 * 10**9}, 10.0)

    free, _ = inventory.free_on_node(fleet_node(node), [reservation, other])

    assert free.gpus == {"nvidia.com/gpu": 1}
