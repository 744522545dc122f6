"""The agent's round: look at the GPUs, ask who holds them, and write what changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from threading import Thread
from typing import Protocol

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from webhook.agent.device_owners import DeviceOwners, KubeletUnavailableError, with_device_owners
from webhook.agent.gpunode_publisher import GpuNodePublisher
from webhook.agent.node_advertiser import NodeAdvertiser
from webhook.agent.nvml import DriverReplacedError
from webhook.errors import ApiError
from webhook.kube.backoff import RandomSource
from webhook.model.gpu_node import GPUNodeStatus
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.metrics import counter_family, gauge_family
from webhook.web.health import HealthCheck


class AgentMetrics(Collector):
    """Metrics of one agent.

    Attributes:
        discoveries, kubelet_calls, writes: By result: of reading NVML, of calling the kubelet, of writing the GPUNode.
        discovery_seconds: Duration of the last discovery.
        status: The last discovered state.
    """

    def __init__(self) -> None:
        self.discoveries: Counter[str] = Counter()
        self.kubelet_calls: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        self.discovery_seconds = 0.0
        self.status = GPUNodeStatus()

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        gpus = self.status.gpus
        yield counter_family("rightslice_agent_discoveries_total", self.discoveries)
        yield gauge_family("rightslice_agent_discovery_duration_seconds", self.discovery_seconds)
        yield counter_family("rightslice_agent_kubelet_calls_total", self.kubelet_calls)
        yield counter_family("rightslice_agent_gpunode_writes_total", self.writes)
        yield gauge_family("rightslice_agent_gpus", len(gpus))
        yield gauge_family("rightslice_agent_gpus_unhealthy", sum(not gpu.healthy for gpu in gpus))
        yield gauge_family("rightslice_agent_gpus_allocated", sum(map(_is_allocated, gpus)))
        yield gauge_family("rightslice_agent_nvlinks_down", sum(gpu.nvlinks_down for gpu in gpus))


NVML_TIMEOUT_SECONDS = 30.0
"""After which a look counts as hung. No second one begins before it ends."""

PARTS = ("nvml", "kubelet", "GPUNode", "Node", "Lease")

NVML_HUNG = "NVML does not answer"
NVML_UNREADABLE = "NVML cannot be read"


class GpuSource(Protocol):
    """What is used of `Machine`."""

    def discover(self) -> GPUNodeStatus:
        """What is there now."""


class DeviceOwnerSource(Protocol):
    """What is used of `PodResourcesClient`."""

    async def device_owners(self) -> DeviceOwners:
        """Who holds which device now."""


class LeaseRenewer(Protocol):
    """What is used of `AgentLease`."""

    async def renew(self) -> bool:
        """Renew it if it is time."""


class NodeAgent:
    """The agent of one node.

    Attributes:
        counts: Its figures.
        replaced: Set once the driver is another version than this process has loaded: it has to end.
    """

    def __init__(
        self,
        machine: GpuSource,
        kubelet: DeviceOwnerSource,
        publisher: GpuNodePublisher,
        advertiser: NodeAdvertiser | None,
        log: StructuredLogger,
        random: RandomSource,
        *,
        poll: float = 10.0,
        patience: float = NVML_TIMEOUT_SECONDS,
        heartbeat: LeaseRenewer | None = None,
    ) -> None:
        """Prepare.

        Args:
            machine: The GPUs.
            kubelet: Who holds them.
            publisher: Where it is written.
            advertiser: What the Node itself says; None: nothing.
            log: Who is told.
            random: Spreads the rounds of many nodes.
            poll: Seconds between two rounds.
            patience: Seconds after which a look counts as hung.
            heartbeat: Renewed while what is written holds; None: nobody is told.
        """
        self._gpus, self._kubelet, self._publisher, self._advertiser = machine, kubelet, publisher, advertiser
        self._log, self._random, self._poll, self._nvml_timeout = log, random, poll, patience
        self._lease = heartbeat
        self._pending_discovery: asyncio.Future[GPUNodeStatus] | None = None
        self._last_status: GPUNodeStatus | None = None
        self._device_owners: DeviceOwners | None = None
        self._problems: dict[str, str] = {}
        self.metrics = AgentMetrics()
        self.driver_replaced = asyncio.Event()

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(self._poll * self._random.uniform(0.9, 1.1))

    async def run_once(self) -> None:
        """One look, one question, and at most one write each."""
        status = await self._discover()
        await self._query_kubelet()
        if status is None or self._device_owners is None:
            return  # without holders nobody could tell what is free
        whole = with_device_owners(status, self._device_owners)
        self.metrics.status = whole
        await self._write_part("GPUNode", lambda: self._publisher.publish(whole))
        if self._advertiser is not None:
            advertiser = self._advertiser
            await self._write_part("Node", lambda: advertiser.advertise(whole))
        if not self._publisher.is_published(whole):
            return
        self._report_problem("GPUNode", "")
        if self._lease is not None and not self._problems.get("kubelet"):
            await self._write_part("Lease", self._lease.renew)

    def checks(self) -> Sequence[HealthCheck]:
        """What the agent says of itself. It is ready without any of it: there may be no GPU here."""
        status = self._last_status
        seen = f"{len(status.gpus)} seen" if status is not None else "not looked at yet"
        gpus = HealthCheck(
            "gpus", ok=status is not None, message=(status.message if status else "") or seen, required=False
        )
        parts = ((part, self._problems.get(part, "")) for part in PARTS)
        return [gpus, *(HealthCheck(part, ok=not why, message=why or "ok", required=False) for part, why in parts)]

    async def _discover(self) -> GPUNodeStatus | None:
        """What NVML sees; while it hangs or cannot be read, what it saw last, and that it is so."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        if self._pending_discovery is None:
            self._pending_discovery = run_in_daemon_thread(loop, self._gpus.discover)
        try:
            self._last_status = await asyncio.wait_for(asyncio.shield(self._pending_discovery), self._nvml_timeout)
        except TimeoutError:
            self.metrics.discoveries["timeout"] += 1
            return self._last_known_status(NVML_HUNG)
        except DriverReplacedError as error:
            self._pending_discovery = None
            self._report_problem("nvml", f"the driver was replaced: {error}")
            self.metrics.discoveries["driver_replaced"] += 1
            self.driver_replaced.set()
            return self._last_status
        except Exception as error:
            self._pending_discovery = None
            self.metrics.discoveries["error"] += 1
            return self._on_nvml_crash(error)
        self._pending_discovery = None
        self.metrics.discoveries["success" if not self._last_status.message else "partial"] += 1
        self.metrics.discovery_seconds = loop.time() - start
        self._report_problem("nvml", self._last_status.message)
        return self._last_status

    def _on_nvml_crash(self, error: Exception) -> GPUNodeStatus:
        """Tell of a fault that nobody foresaw, by its kind alone: its text may be another each time, or long."""
        why = f"{NVML_UNREADABLE}: {type(error).__name__}"
        if self._problems.get("nvml") != why:
            self._log.error("crashed", part="nvml", exc_info=error)
        return self._last_known_status(why)

    def _last_known_status(self, why: str) -> GPUNodeStatus:
        """What was seen last, and why no more is seen."""
        self._report_problem("nvml", why)
        return msgspec.structs.replace(self._last_status or GPUNodeStatus(), message=why)

    async def _query_kubelet(self) -> None:
        """Who holds what. While the kubelet is away, its pods run on with what they have."""
        try:
            self._device_owners = await self._kubelet.device_owners()
        except KubeletUnavailableError as error:
            self.metrics.kubelet_calls["error"] += 1
            self._report_problem("kubelet", str(error))
            return
        self.metrics.kubelet_calls["success"] += 1
        self._report_problem("kubelet", "")

    async def _write_part(self, what: str, write: Callable[[], Awaitable[bool]]) -> None:
        try:
            written = await write()
        except ApiError as error:
            self.metrics.writes["error"] += 1
            self._report_problem(what, str(error))
            return
        if written:
            self.metrics.writes["success"] += 1
            self._report_problem(what, "")

    def _report_problem(self, part: str, why: str) -> None:
        """Say each trouble once, and when it is over."""
        if self._problems.get(part, "") == why:
            return
        self._problems[part] = why
        if why:
            self._log.warning("trouble", part=part, why=why)
        else:
            self._log.info("well again", part=part)


def run_in_daemon_thread(
    loop: asyncio.AbstractEventLoop, look: Callable[[], GPUNodeStatus]
) -> asyncio.Future[GPUNodeStatus]:
    """Call something that may hang for good, in a thread that the end of the process does not wait for."""
    found: asyncio.Future[GPUNodeStatus] = loop.create_future()

    def tell(error: Exception | None, status: GPUNodeStatus | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        elif status is not None:
            found.set_result(status)

    def run() -> None:
        outcome: tuple[Exception | None, GPUNodeStatus | None]
        try:
            outcome = None, look()
        except Exception as error:
            outcome = error, None
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(tell, *outcome)

    Thread(target=run, name="nvml", daemon=True).start()
    return found


def _is_allocated(gpu: object) -> bool:
    return bool(getattr(gpu, "pods", ())) or any(one.pod for one in getattr(gpu, "instances", ()))
