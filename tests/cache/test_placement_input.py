"""What placement is told of nodes and pods, whatever the order in which they were read."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from tests.builders import Json
from tests.placement.clusters import BRIDGED, gpu_node, gpu_node_report, placement_input, running_gpu_pod
from webhook.cache.placement_input import GpuPods, build_scheduling_snapshot
from webhook.cache.stored_objects import StoredPod
from webhook.model.gpu_node import GPUNode


def created(pod: Json, minute: int) -> Json:
    pod["metadata"]["creationTimestamp"] = f"2026-01-01T00:{minute:02}:00Z"
    return pod


PODS = (
    created(running_gpu_pod("newest", "n", count=1), 3),
    created(running_gpu_pod("oldest", "n", count=1), 1),
    created(running_gpu_pod("a-pair", "n", count=2), 2),
)


@pytest.mark.parametrize("order", list(permutations(PODS)))
def test_cards_are_assigned_to_the_oldest_pod_first(order: tuple[Json, ...]) -> None:
    report, listed = gpu_node_report("n", 4, BRIDGED), GpuPods()
    snapshot = placement_input(gpu_node("n"), report, *PODS).snapshot
    for pod in order:
        listed.add(msgspec.convert(pod, StoredPod))
    live = build_scheduling_snapshot(snapshot.fleet, {}, [msgspec.convert(report, GPUNode)], listed)
    [devices], [other] = live.devices, snapshot.devices
    assert devices.holders == other.holders
    assert devices.holders == {0: ("team/oldest",), 1: ("team/newest",), 2: ("team/a-pair",), 3: ("team/a-pair",)}
