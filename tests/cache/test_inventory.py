"""The inventory: whatever watches write, and in whatever order, it says what its objects say."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.make import Json
from tests.placement.kube import BRIDGED, gpu_node, report, running
from webhook.cache.inventory import Inventory, stocked
from webhook.model.fleet import fleet_node
from webhook.model.gpunodes import GPUNode
from webhook.model.objects import Node
from webhook.model.pods import Pod
from webhook.placement.nodes.reserving import Reserved

NAMES = ("a", "b")
KINDS: dict[str, Any] = {"pods": Pod, "nodes": Node, "gpunodes": GPUNode}


def pod(name: str, node: str, count: int) -> Json:
    made = running(name, node, count=count) if count else running(name, node, "cpu", 2)
    return made | {"metadata": {**made["metadata"], "uid": f"u-{name}"}}


pods = st.builds(pod, st.sampled_from(["p1", "p2", "p3"]), st.sampled_from(["a", "b", ""]), st.integers(0, 2))
reports = st.builds(
    lambda name, held: report(name, 4, BRIDGED, held),
    st.sampled_from(NAMES),
    st.dictionaries(st.integers(0, 3), st.sampled_from(["team/p1", "team/p2", "team/gone"])),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("pods"), st.sampled_from(["put", "remove", "list"]), pods),
        st.tuples(st.just("gpunodes"), st.sampled_from(["put", "remove", "list"]), reports),
    ),
    max_size=15,
)


def write(inventory: Inventory, kind: str, action: str, item: Any) -> None:
    writer = getattr(inventory, kind)
    if action == "list":
        writer.begin()
        writer.put(item)
        writer.swap()
    else:
        (writer.remove if action == "remove" else writer.put)(item)


def keep(objects: dict[tuple[str, str], Any], kind: str, action: str, item: Any) -> None:
    """What the API server then has."""
    if action == "list":
        for key in [key for key in objects if key[0] == kind]:
            del objects[key]
    key = (kind, item.metadata.name)
    objects.pop(key, None)
    if action != "remove":
        objects[key] = item


@settings(max_examples=150)
@given(steps)
def test_any_events_give_what_is_free_with_the_objects_that_are_left(events: list[tuple[str, str, Json]]) -> None:
    nodes = [msgspec.convert(gpu_node(name), Node) for name in NAMES]
    live = stocked(nodes)
    objects: dict[tuple[str, str], Any] = {}
    live.touched(10)
    seen = {node.metadata.name: live.on(fleet_node(node)) for node in nodes}
    for kind, action, data in events:
        item = msgspec.convert(data, KINDS[kind])
        write(live, kind, action, item)
        keep(objects, kind, action, item)

    fresh = stocked([*nodes, *objects.values()])
    told = live.touched(10)
    for node in map(fleet_node, nodes):
        room, devices = live.on(node)
        assert (room, _known(devices)) == (fresh.on(node)[0], _known(fresh.on(node)[1]))
        assert node.name in told or live.on(node) == seen[node.name]


def _known(devices: Any) -> Any:
    """How many are free; which of them depends on who came first."""
    return None if devices is None else devices.free.bit_count()


def test_a_node_that_changes_asks_for_a_new_index_and_a_heartbeat_does_not() -> None:
    inventory = stocked([msgspec.convert(gpu_node("a"), Node)])
    inventory.outdated = False

    inventory.nodes.put(msgspec.convert(gpu_node("a"), Node))
    assert not inventory.outdated
    inventory.nodes.put(msgspec.convert(gpu_node("a", 8), Node))

    assert inventory.outdated


def test_pods_without_gpus_are_counted_when_they_come_and_once() -> None:
    inventory = stocked([])
    one = msgspec.convert(pod("p", "a", 0), Pod)

    inventory.pods.put(one)
    inventory.pods.put(one)
    inventory.pods.put(msgspec.convert(pod("q", "a", 1), Pod))

    assert list(inventory.arrivals.values()) == [1]


def test_a_pod_that_one_list_tells_twice_is_counted_once() -> None:
    inventory = stocked([])
    one = msgspec.convert(pod("p", "a", 0), Pod)

    inventory.pods.begin()
    inventory.pods.put(one)
    inventory.pods.put(one)
    inventory.pods.swap()

    assert list(inventory.arrivals.values()) == [1]


def test_a_place_promised_to_a_pod_that_is_there_does_not_count_twice() -> None:
    node = msgspec.convert(gpu_node("a"), Node)
    inventory = stocked([node, msgspec.convert(pod("p", "a", 2), Pod)])
    place = Reserved("u-p", "team/p", "a", {"nvidia.com/gpu": 2 * 10**9}, 10.0)
    other = Reserved("u-q", "team/q", "a", {"nvidia.com/gpu": 1 * 10**9}, 10.0)

    room, _ = inventory.on(fleet_node(node), [place, other])

    assert room.gpus == {"nvidia.com/gpu": 1}
