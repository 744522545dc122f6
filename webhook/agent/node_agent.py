"""The agent's loop: discover the GPUs, ask the kubelet for their pods, and write what changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from webhook.agent.device_owners import DeviceOwners, KubeletUnavailableError, with_device_owners
from webhook.agent.gpunode_publisher import GpuNodePublisher, NodeAdvertiser
from webhook.agent.nvml import DriverReplacedError
from webhook.errors import ApiError
from webhook.kube.reflector import RandomSource
from webhook.model.gpu_node import GPUNodeStatus
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.metrics import count_results, counter_family, gauge_family
from webhook.web.daemon_threads import run_in_daemon_thread
from webhook.web.health import HealthCheck


class AgentMetrics(Collector):
    """Metrics of one agent.

    Attributes:
        discoveries, kubelet_calls, writes: By result: of reading NVML, of calling the kubelet, of writing the GPUNode.
        discovery_seconds: Duration of the last discovery.
        status: The last discovered state.
    """

    def __init__(self) -> None:
        self.discoveries: Counter[str] = count_results()
        self.kubelet_calls: Counter[str] = count_results()
        self.writes: Counter[str] = count_results()
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
        allocated = sum(bool(gpu.pods) or any(one.pod for one in gpu.instances) for gpu in gpus)
        yield gauge_family("rightslice_agent_gpus_allocated", allocated)
        yield gauge_family("rightslice_agent_nvlinks_down", sum(gpu.nvlinks_down for gpu in gpus))


NVML_TIMEOUT_SECONDS = 30.0
"""A discovery that takes longer counts as hung. The next one starts only after it has ended."""

PARTS = ("nvml", "kubelet", "GPUNode", "Node", "Lease")

NVML_HUNG = "NVML does not answer"
NVML_UNREADABLE = "NVML cannot be read"


class NodeAgent:
    """The agent of one node.

    Attributes:
        driver_replaced: Set when the driver has another version than the loaded library: the process must exit.
    """

    def __init__(
        self,
        discover: Callable[[], GPUNodeStatus],
        list_owners: Callable[[], Awaitable[DeviceOwners]],
        publisher: GpuNodePublisher,
        advertiser: NodeAdvertiser | None,
        log: StructuredLogger,
        random: RandomSource,
        *,
        poll: float = 10.0,
        nvml_timeout: float = NVML_TIMEOUT_SECONDS,
        renew_lease: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Prepare.

        Args:
            discover: Returns the GPUs; it may block.
            list_owners: Returns the pods of each device.
            advertiser: Writes the Node's label and resource; None to leave them alone.
            random: Spreads the rounds of many nodes.
            poll: Seconds between two rounds.
            nvml_timeout: Seconds after which a discovery counts as hung.
            renew_lease: Renews the Lease if it is due; called while the GPUNode is valid.
        """
        self._discover_gpus, self._list_owners, self._renew_lease = discover, list_owners, renew_lease
        self._publisher, self._advertiser = publisher, advertiser
        self._log, self._random, self._poll, self._nvml_timeout = log, random, poll, nvml_timeout
        self._pending_discovery: asyncio.Future[GPUNodeStatus] | None = None
        self._last_status: GPUNodeStatus | None = None
        self._device_owners: DeviceOwners | None = None
        self._problems: dict[str, str] = {}
        self.metrics = AgentMetrics()
        self.driver_replaced = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(self._poll * self._random.uniform(0.9, 1.1))

    async def run_once(self) -> None:
        """Discover, ask the kubelet, and write each object at most once."""
        discovered = await self._discover()
        await self._query_kubelet()
        if discovered is None or self._device_owners is None:
            return  # without owners all GPUs would look free
        status = with_device_owners(discovered, self._device_owners)
        self.metrics.status = status
        await self._write_part("GPUNode", lambda: self._publisher.publish(status))
        if self._advertiser is not None:
            advertiser = self._advertiser
            await self._write_part("Node", lambda: advertiser.advertise(status))
        if not self._publisher.is_published(status):
            return
        self._report_problem("GPUNode", "")
        if self._renew_lease is not None and not self._problems.get("kubelet"):
            await self._write_part("Lease", self._renew_lease)

    def checks(self) -> Sequence[HealthCheck]:
        """Return the status lines. None is required: a node without GPUs is ready too."""
        status = self._last_status
        found = f"{len(status.gpus)} found" if status is not None else "not discovered yet"
        message = (status.message if status else "") or found
        problems = ((part, self._problems.get(part, "")) for part in PARTS)
        return [
            HealthCheck("gpus", ok=status is not None, message=message, required=False),
            *(HealthCheck(part, ok=not text, message=text or "ok", required=False) for part, text in problems),
        ]

    async def _discover(self) -> GPUNodeStatus | None:
        """Return what NVML reports; if it hangs or fails, the last status with a message."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        if self._pending_discovery is None:
            self._pending_discovery = run_in_daemon_thread(self._discover_gpus)
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
            reason = f"{NVML_UNREADABLE}: {type(error).__name__}"  # the text may be long, or change each time
            if self._problems.get("nvml") != reason:
                self._log.error("internal error", part="nvml", exc_info=error)
            return self._last_known_status(reason)
        self._pending_discovery = None
        self.metrics.discoveries["success" if not self._last_status.message else "partial"] += 1
        self.metrics.discovery_seconds = loop.time() - start
        self._report_problem("nvml", self._last_status.message)
        return self._last_status

    def _last_known_status(self, reason: str) -> GPUNodeStatus:
        self._report_problem("nvml", reason)
        return msgspec.structs.replace(self._last_status or GPUNodeStatus(), message=reason)

    async def _query_kubelet(self) -> None:
        """Update the owners. While the kubelet is unavailable its pods keep running with their devices."""
        try:
            self._device_owners = await self._list_owners()
        except KubeletUnavailableError as error:
            self.metrics.kubelet_calls["error"] += 1
            self._report_problem("kubelet", str(error))
            return
        self.metrics.kubelet_calls["success"] += 1
        self._report_problem("kubelet", "")

    async def _write_part(self, part: str, write: Callable[[], Awaitable[bool]]) -> None:
        try:
            written = await write()
        except ApiError as error:
            self.metrics.writes["error"] += 1
            self._report_problem(part, str(error))
            return
        if written:
            self.metrics.writes["success"] += 1
            self._report_problem(part, "")

    def _report_problem(self, part: str, reason: str) -> None:
        """Log each problem once, and its end ("")."""
        if self._problems.get(part, "") == reason:
            return
        self._problems[part] = reason
        if reason:
            self._log.warning("part failed", part=part, reason=reason)
        else:
            self._log.info("recovered", part=part)
