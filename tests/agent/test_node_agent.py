"""The agent's loop: what it writes and when, and how it handles failures."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from tests.agent.library import Library, install_library
from tests.agent.recorded import bridged
from tests.conftest import ROOT
from webhook.agent import gpunode_publisher
from webhook.agent.device_owners import DeviceOwners, KubeletUnavailableError
from webhook.agent.discovery import GpuDiscovery
from webhook.agent.gpunode_publisher import (
    MILLI_PER_GPU,
    MIN_WRITE_SECONDS,
    GpuNodePublisher,
    NodeAdvertiser,
    build_advertisement,
)
from webhook.agent.node_agent import NVML_HUNG, NodeAgent
from webhook.errors import ApiError
from webhook.model.gpu_node import GPUNode, GPUNodeStatus
from webhook.model.node_labels import ISLAND_LABEL
from webhook.telemetry.logs import make_logger

NODE = "/api/v1/nodes/gpu-1"
GPU_NODE = "/apis/rightslice.dev/v1alpha1/gpunodes/gpu-1"


class Cluster:
    """The parts of the API server that an agent calls. `failing` is raised by the next calls."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {NODE: {"metadata": {"uid": "u-1", "labels": {}}, "status": {}}}
        self.writes = 0
        self.reads: Counter[str] = Counter()
        self.failing: list[ApiError] = []

    async def get(self, path: str) -> dict[str, Any]:
        self._fail()
        self.reads[path] += 1
        if path not in self.objects:
            raise ApiError(f"GET {path}", 404, "NotFound", "")
        return self.objects[path]

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._fail()
        self.objects[f"{path}/{body['metadata']['name']}"] = dict(body)
        return dict(body)

    async def patch(self, path: str, body: Any, kind: Any, params: Mapping[str, str] = {}) -> dict[str, Any]:
        self._fail()
        name = path.removesuffix("/status")
        if name not in self.objects:
            raise ApiError(f"PATCH {path}", 404, "NotFound", "")
        found = self.objects[name]
        for key, value in body.items():
            found[key] = _merged(found.get(key), value) if kind == "merge" or key == "metadata" else value
        self.writes += 1
        return found

    @property
    def node(self) -> GPUNodeStatus:
        return msgspec.convert(self.objects[GPU_NODE], GPUNode).status

    def _fail(self) -> None:
        if self.failing:
            raise self.failing.pop(0)


def _merged(before: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    whole = dict(before or {})
    for key, value in patch.items():
        whole[key] = _merged(whole.get(key), value)
    return whole


class Kubelet:
    """Returns these device owners; raises an error if they are None."""

    def __init__(self) -> None:
        self.owners: DeviceOwners | None = {}

    async def device_owners(self) -> DeviceOwners:
        if self.owners is None:
            raise KubeletUnavailableError("UNAVAILABLE: connection refused")
        return self.owners


class Clock:
    """A clock that a test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class CountingLease:
    """A Lease that counts its renewals."""

    def __init__(self) -> None:
        self.count = 0

    async def renew(self) -> bool:
        self.count += 1
        return True


class Node:
    """An agent and its environment."""

    def __init__(self, library: Library, *, nvml_timeout: float = 10.0, milli: bool = False) -> None:
        self.library, self.cluster, self.kubelet, self.clock = library, Cluster(), Kubelet(), Clock()
        self.log, self.lease = io.StringIO(), CountingLease()
        self.agent = self.start_agent(nvml_timeout=nvml_timeout, milli=milli)

    def start_agent(self, *, nvml_timeout: float = 10.0, milli: bool = False) -> NodeAgent:
        """Return a newly started agent."""
        publisher = GpuNodePublisher(self.cluster, "gpu-1", self.clock, Random(1))
        advertiser = NodeAdvertiser(self.cluster, "gpu-1", self.clock, Random(1), milli=milli)
        log = make_logger("info", self.log)
        return NodeAgent(
            GpuDiscovery(self.clock).discover,
            self.kubelet.device_owners,
            publisher,
            advertiser,
            log,
            Random(1),
            nvml_timeout=nvml_timeout,
            renew_lease=self.lease.renew,
        )

    async def round(self, seconds: float = 60.0) -> None:
        self.clock.now += seconds
        await self.agent.run_once()


@pytest.fixture
def node() -> Iterator[Node]:
    with install_library(bridged((0, 1), (2, 3))) as library:
        yield Node(library)


async def test_first_round_creates_the_gpunode_owned_by_its_node(node: Node) -> None:
    node.kubelet.owners = {node.library.cards[1].uuid: ("team/eval",)}
    await node.round()

    owner = node.cluster.objects[GPU_NODE]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("Node", "u-1")
    assert [gpu.pods for gpu in node.cluster.node.gpus] == [(), ("team/eval",), (), ()]
    assert node.cluster.objects[NODE]["metadata"]["labels"] == {ISLAND_LABEL: "2"}


async def test_unchanged_status_is_not_written(node: Node) -> None:
    await node.round()
    before = node.cluster.writes
    for _ in range(5):
        await node.round()

    assert node.cluster.writes == before


async def test_restarted_agent_does_not_write_an_equal_status(node: Node) -> None:
    await node.round()
    before = node.cluster.writes
    node.agent = node.start_agent()
    await node.round()

    assert node.cluster.writes == before


async def test_rapid_changes_are_written_together(node: Node) -> None:
    await node.round()
    before = node.cluster.writes
    uuids = [card.uuid for card in node.library.cards]
    for count in range(1, 4):
        node.kubelet.owners = dict.fromkeys(uuids[:count], ("team/a",))
        await node.round(MIN_WRITE_SECONDS / 10)
    assert node.cluster.writes == before

    await node.round(MIN_WRITE_SECONDS * 2)
    assert node.cluster.writes == before + 1
    assert [bool(gpu.pods) for gpu in node.cluster.node.gpus] == [True, True, True, False]


async def test_label_follows_the_links_and_is_removed_with_the_last_gpu(node: Node) -> None:
    await node.round()
    for card in (node.library.cards[0], node.library.cards[2]):
        card.xids.append(74)  # healthy, but its NVLinks are degraded
    await node.round()
    assert node.cluster.objects[NODE]["metadata"]["labels"] == {ISLAND_LABEL: "1"}
    for card in node.library.cards:
        card.xids.append(79)
    await node.round()
    assert node.cluster.objects[NODE]["metadata"]["labels"].get(ISLAND_LABEL) is None


async def test_removed_label_is_restored(node: Node) -> None:
    await node.round()
    node.cluster.objects[NODE]["metadata"]["labels"] = {}
    await node.round(gpunode_publisher.NODE_RECHECK_SECONDS)
    assert node.cluster.objects[NODE]["metadata"]["labels"] == {ISLAND_LABEL: "2"}


async def test_lease_is_renewed_while_the_gpunode_is_valid(node: Node) -> None:
    node.cluster.failing = [ApiError("GET", 503, "Unavailable", "later")]
    await node.round()
    assert node.lease.count == 0, "the GPUNode was not written yet"
    await node.round(120)
    assert node.lease.count == 1
    node.kubelet.owners = None
    await node.round()
    assert node.lease.count == 1, "device owners are unknown"
    node.kubelet.owners = {}
    await node.round()
    assert node.lease.count == 2


async def test_problem_ends_when_the_stored_status_is_right(node: Node) -> None:
    await node.round()
    node.agent = node.start_agent()
    node.cluster.failing = [ApiError("GET", 503, "Unavailable", "later")]
    await node.round()
    await node.round(120)
    assert all(check.ok for check in node.agent.checks() if check.name == "GPUNode")


async def test_owners_are_kept_while_the_kubelet_restarts(node: Node) -> None:
    node.kubelet.owners = {node.library.cards[0].uuid: ("team/a",)}
    await node.round()
    node.kubelet.owners = None
    node.library.cards[3].xids.append(48)
    await node.round()

    first, *_, last = node.cluster.node.gpus
    assert first.pods == ("team/a",)
    assert not last.healthy


async def test_nothing_is_written_before_the_kubelet_answers(node: Node) -> None:
    node.kubelet.owners = None
    await node.round()

    assert GPU_NODE not in node.cluster.objects
    assert "UNAVAILABLE" in next(check.message for check in node.agent.checks() if check.name == "kubelet")


async def test_failing_api_server_is_retried_with_backoff(node: Node) -> None:
    node.cluster.failing = [ApiError("GET", 503, "Unavailable", "later", 30.0)] * 2
    await node.round(1)
    await node.round(MIN_WRITE_SECONDS)
    assert len(node.cluster.failing) == 0  # one for the GPUNode, one for the Node; the second round calls neither
    assert GPU_NODE not in node.cluster.objects

    await node.round(120)
    assert len(node.cluster.node.gpus) == 4


async def test_deleted_gpunode_is_created_again(node: Node) -> None:
    await node.round()
    del node.cluster.objects[GPU_NODE]
    await node.round(gpunode_publisher.RECHECK_SECONDS)

    assert len(node.cluster.node.gpus) == 4


async def test_edited_gpunode_is_restored(node: Node) -> None:
    await node.round()
    node.cluster.objects[GPU_NODE]["status"] = {"gpus": []}
    await node.round(gpunode_publisher.RECHECK_SECONDS)

    assert len(node.cluster.node.gpus) == 4


async def test_recreated_gpunode_is_owned_by_the_current_node(node: Node) -> None:
    await node.round()
    node.cluster.objects[NODE] = {"metadata": {"uid": "u-2", "labels": {}}, "status": {}}
    del node.cluster.objects[GPU_NODE]  # as the garbage collector does once the owner is gone
    await node.round(gpunode_publisher.RECHECK_SECONDS)

    assert node.cluster.objects[GPU_NODE]["metadata"]["ownerReferences"][0]["uid"] == "u-2"


async def test_lease_is_not_renewed_while_the_gpunode_cannot_be_read(node: Node) -> None:
    await node.round()
    node.cluster.failing = [ApiError("GET", 503, "Unavailable", "later")]
    await node.round(gpunode_publisher.RECHECK_SECONDS)

    assert node.lease.count == 1


async def test_unchanged_gpunode_is_checked_but_not_written(node: Node) -> None:
    await node.round()
    before = node.cluster.writes, node.cluster.reads[GPU_NODE]
    for _ in range(24 * 60):
        await node.round()

    assert node.cluster.writes == before[0]
    assert 240 <= node.cluster.reads[GPU_NODE] - before[1] <= 480


async def test_node_without_gpus_is_ready() -> None:
    with install_library(Library(loaded=False)):
        node = Node(Library())
        await node.round()

    assert node.cluster.node == GPUNodeStatus(message="no NVIDIA driver: Driver Not Loaded")
    assert all(check.ok or not check.required for check in node.agent.checks())
    assert node.cluster.objects[NODE]["metadata"]["labels"] == {}


async def test_hanging_nvml_does_not_block_the_agent() -> None:
    gate, hang = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        if hang.is_set() and name == "nvmlDeviceGetCount_v2":
            gate.wait(30)

    with install_library(bridged((0, 1))) as library:
        library.before = wait
        node = Node(library)
        await node.round()
        hang.set()
        node.agent._nvml_timeout = 0.2
        await node.round()
        await node.round()
        assert node.cluster.node.message == NVML_HUNG
        assert library.calls["nvmlDeviceGetCount_v2"] <= 2, "no second discovery starts while one hangs"
        hang.clear()
        gate.set()
        await _run_until(lambda: node.agent.metrics.discoveries["success"] == 2, node)

    assert node.cluster.node.message == ""


def raise_error(name: str) -> None:
    """Raise an unexpected error with a long text that changes each time."""
    raise ZeroDivisionError(f"{name} {object()!r}" * 1000)


async def test_failed_discovery_is_reported_until_one_succeeds(node: Node) -> None:
    await node.round()
    node.library.before = raise_error
    for _ in range(3):
        await node.round()
    assert node.cluster.node.message == "NVML cannot be read: ZeroDivisionError"
    assert len(node.cluster.node.gpus) == 4, "the last known GPUs"
    assert check_message(node, "nvml") == "NVML cannot be read: ZeroDivisionError"

    node.library.before = lambda name: None
    await node.round()
    assert (node.cluster.node.message, check_message(node, "nvml")) == ("", "ok")


async def test_failed_first_discovery_is_reported(node: Node) -> None:
    node.library.before = raise_error
    await node.round()

    assert node.cluster.node == GPUNodeStatus(message="NVML cannot be read: ZeroDivisionError")


async def test_stack_trace_is_logged_once(node: Node) -> None:
    node.library.before = raise_error
    for _ in range(3):
        await node.round()
    node.library.before = lambda name: None
    await node.round()

    events = [json.loads(line)["event"] for line in node.log.getvalue().splitlines() if '"nvml"' in line]
    assert events == ["internal error", "part failed", "recovered"]


def check_message(node: Node, part: str) -> str:
    """Return the message of a status line."""
    return next(check.message for check in node.agent.checks() if check.name == part)


HANGS = """
import asyncio, io, threading
from tests.agent.library import install_library
from tests.agent.recorded import bridged
from tests.conftest import ROOT
from tests.agent.test_node_agent import Node

with install_library(bridged((0, 1))) as library:
    library.before = lambda name: name.startswith("nvmlInit") or threading.Event().wait()
    asyncio.run(Node(library, nvml_timeout=0.1).round())
    print("ended")
"""


def test_process_exits_while_nvml_hangs() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], cwd=ROOT, capture_output=True, text=True, timeout=600)

    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


async def _run_until(condition: Callable[[], bool], node: Node) -> None:
    for _ in range(1200):
        await node.round()
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the condition was not true within a minute")


async def test_replaced_driver_ends_the_process(node: Node) -> None:
    await node.round()
    node.library.replaced = True
    await node.round()

    assert node.agent.driver_replaced.is_set()


async def test_each_problem_is_logged_once(node: Node) -> None:
    node.kubelet.owners = None
    for _ in range(3):
        await node.round()
    node.kubelet.owners = {}
    await node.round()

    lines = [line for line in node.log.getvalue().splitlines() if '"kubelet"' in line]
    assert ["part failed" in line for line in lines] == [True, False]


async def test_accounting_resource_is_advertised_for_healthy_gpus() -> None:
    with install_library(bridged((0, 1))) as library:
        node = Node(library, milli=True)
        await node.round()
        assert node.cluster.objects[NODE]["status"]["allocatable"] == {"rightslice.dev/gpu-milli": "4000000"}
        library.cards[0].xids.append(48)
        await node.round()

    assert node.cluster.objects[NODE]["status"]["capacity"] == {"rightslice.dev/gpu-milli": "3000000"}


@pytest.mark.parametrize(
    ("case", "pairs", "count", "unhealthy", "island"),
    [
        ("two bridged pairs", [(0, 1), (2, 3)], 4, [], 2),
        ("a pair with an unhealthy GPU", [(0, 1)], 2, [1], 1),
        ("three linked GPUs, and one linked to one of them", [(0, 1), (1, 2), (0, 2), (2, 3)], 4, [], 3),
        ("four linked GPUs", [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4, [], 4),
        ("four linked GPUs, one of them unhealthy", [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4, [0], 3),
        ("no links", [], 3, [], 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_largest_island(case: str, pairs: list[tuple[int, int]], count: int, unhealthy: list[int], island: int) -> None:
    with install_library(bridged(*pairs, count=count)) as library:
        discovery = GpuDiscovery(Clock())
        discovery.discover()
        for index in unhealthy:
            library.cards[index].xids.append(79)
        advertisement = build_advertisement(discovery.discover())

    assert advertisement.island == island, case
    assert advertisement.milli == MILLI_PER_GPU * (count - len(unhealthy))
