"""Pods of the cluster that were built to cost a replica time or memory.

The API server stores pods of 1.5 MB. Those without GPUs are never reviewed, and a
webhook that fails open admits others.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks.hostile_reviews import KINDS, hostile_review
from tests.builders import Json, make_node, make_pod
from tests.cpu_timer import CpuTimer
from webhook.cache.informers import empty_view
from webhook.cache.live_view import ViewPublisher
from webhook.cache.stored_objects import StoredPod
from webhook.model.cluster_view import ClusterView
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.objects import Node

STORED_BYTES = 1_500_000
"""The largest object that etcd stores."""

GPU = "nvidia.com/gpu"
NEVER_STORED = ("nulls", "a long status", "overhead")
"""An API server drops nulls and the status of new pods, and rejects overhead of no RuntimeClass."""


def _is_pod(kind: str) -> bool:
    return bool(msgspec.json.decode(hostile_review(kind, "a", 9000))["request"]["kind"]["kind"] == "Pod")


POD_KINDS = [kind for kind in KINDS if _is_pod(kind) and kind not in NEVER_STORED]


def hostile_pod(kind: str, text: str, on: str = "") -> Json:
    """Return a pod of one kind of padding, on a node unless `on` is ""."""
    pod: Json = msgspec.json.decode(hostile_review(kind, text, STORED_BYTES))["request"]["object"]
    pod["metadata"] |= {"name": text, "uid": text}
    pod["spec"]["nodeName"] = on
    return pod


def stored(pod: Json) -> StoredPod:
    return msgspec.json.decode(msgspec.json.encode(pod), type=StoredPod)


async def published(*pods: Json) -> tuple[ViewPublisher, Any]:
    """Return a publisher with pods on 20 nodes, and the holder of its view."""
    holder = SimpleNamespace(view=empty_view())
    publisher = ViewPublisher(holder, fleet_seconds=0.0)
    for number in range(20):
        node = make_node(f"n{number}", {"nvidia.com/gpu.memory": "81920"}, **{GPU: 8})
        publisher.nodes.upsert(msgspec.convert(node, Node))
    await publisher.publish()
    for pod in pods:
        publisher.pods.upsert(stored(pod))
    await publisher.publish()
    return publisher, holder


def view_of_pods(*pods: Json) -> ClusterView:
    _, holder = asyncio.run(published(*pods))
    view: ClusterView = holder.view
    return view


async def seconds_to_store(pod: Json) -> float:
    publisher, _ = await published()
    item = stored(pod)
    with CpuTimer() as timer:
        publisher.pods.upsert(item)
        await publisher.publish()
        publisher.pods.remove(item)
        await publisher.publish()
    return timer.seconds


@pytest.mark.parametrize("on", ["n1", ""])
@pytest.mark.parametrize("kind", POD_KINDS)
def test_a_pod_of_any_kind_is_stored_and_removed_in_time(kind: str, on: str) -> None:
    """Reviews wait meanwhile."""
    assert asyncio.run(seconds_to_store(hostile_pod(kind, "a", on))) < 0.15


async def bytes_left(kind: str) -> int:
    """Return the memory that ten pods have left that no longer exist."""
    publisher, _ = await published()
    tracemalloc.start()
    try:
        before = _traced_bytes()
        for number in range(10):
            item = stored(hostile_pod(kind, f"pod{number}", f"n{number}"))
            publisher.pods.upsert(item)
            await publisher.publish()
            publisher.pods.remove(item)
            await publisher.publish()
            del item
        return _traced_bytes() - before
    finally:
        tracemalloc.stop()


def pod_with_anti_affinity(number: int) -> Json:
    """Return a pod on a node with as many terms as are kept, which no other pod has."""
    values = [f"{number}-{each}-{'x' * 40}" for each in range(60)]
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
    terms: list[Json] = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return make_pod(f"p{number}").spec(affinity=affinity, nodeName="n1").build()


async def bytes_left_by_anti_affinity(pods: int) -> int:
    publisher, _ = await published()
    tracemalloc.start()
    try:
        before = _traced_bytes()
        for number in range(pods):
            item = stored(pod_with_anti_affinity(number))
            publisher.pods.upsert(item)
            publisher.pods.remove(item)
        await publisher.publish()
        return _traced_bytes() - before
    finally:
        tracemalloc.stop()


def test_small_pods_that_no_longer_exist_leave_no_memory() -> None:
    assert asyncio.run(bytes_left_by_anti_affinity(1500)) < 5_000_000


def _traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("kind", ["resource names", "MIG names", "containers", "node selector keys", "affinity terms"])
def test_pods_that_no_longer_exist_leave_no_memory(kind: str) -> None:
    assert asyncio.run(bytes_left(kind)) < 2_000_000


def waiting_pod(number: int) -> Json:
    """Return a pod that waits for 20 resources which no node has."""
    pod = make_pod(f"p{number}").gpus(1)
    for each in range(10, 20):
        pod.requests(f"nvidia.com/mig-1g.{number}{each}gb", "1").requests(f"{DEVICE_CLASS_PREFIX}{number}-{each}", "1")
    return pod.build()


def test_pods_that_wait_for_what_no_node_has_cost_other_pods_no_time() -> None:
    """Anyone can create thousands of such pods, each with names of its own."""
    view = view_of_pods(*map(waiting_pod, range(1000)))
    with CpuTimer() as timer:
        for _ in range(100):
            assert not view.has_free_node(GPU, view.fleet.all_nodes, 1, 1000, 1 << 30)
    assert timer.seconds < 0.05


def pod_with_terms(number: int) -> Json:
    """Return a pod that waits for a GPU, with terms that no other pod has."""
    names = [f"{number}-{each}" for each in range(20)]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": names}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * 10}}
    return make_pod(f"p{number}").gpus(1).spec(affinity={"nodeAffinity": required}).build()


async def seconds_to_add_pods(count: int) -> float:
    publisher, _ = await published(*map(pod_with_terms, range(2000)))
    more = [stored(pod_with_terms(number)) for number in range(2000, 2000 + count)]
    with CpuTimer() as timer:
        for pod in more:
            publisher.pods.upsert(pod)
            await publisher.publish()
    return timer.seconds


def test_a_pod_with_many_terms_costs_no_more_beside_thousands() -> None:
    assert asyncio.run(seconds_to_add_pods(20)) < 0.06
