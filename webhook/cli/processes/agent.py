"""Builds and runs the node agent.

The agent runs on every GPU node, so it is a program of its own: typer and its dependencies would take 10 MiB.
`rightslice serve agent` parses the flags and replaces itself by this program.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from random import SystemRandom
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

import msgspec

from webhook.errors import RightsliceError
from webhook.kube.api import KubeClient
from webhook.telemetry.logs import StructuredLogger, make_logger
from webhook.telemetry.metrics import MetricsPage
from webhook.web.connection import ConnectionRegistry
from webhook.web.health import health_routes
from webhook.web.limits import ServerLimits, return_free_memory
from webhook.web.listener import HttpListener, NoParserError, serve_until_signal

if TYPE_CHECKING:
    from webhook.agent.node_agent import NodeAgent

AGENT_HTTP_LIMITS = ServerLimits(body=64 * 1024, connections=64, in_flight=16, buffered=1024 * 1024)
"""Enough for probes and a scraper."""

EXIT_INVALID_INPUT = 2

AGENT_PROGRAM = "import sys; sys.modules['rich'] = None; from webhook.cli.processes.agent import run_agent; run_agent()"
"""Without rich, which structlog imports if it can to print to terminals: 3 MiB."""


class AgentError(Exception):
    """The agent cannot start, or must stop; the message gives the reason."""


class AgentFlags(msgspec.Struct, frozen=True):
    """The flags of `serve agent`.

    Attributes:
        host, port: Address of health and metrics.
        socket: The kubelet's PodResources socket.
        poll: Seconds between two discoveries.
    """

    node: str
    kubeconfig: str | None
    context: str | None
    host: str
    port: int
    socket: str
    poll: float
    gpu_milli: bool
    log_level: str


def exec_agent(flags: AgentFlags) -> NoReturn:
    """Replace this process by the agent, with the same PID and open files."""
    paths = os.pathsep.join(filter(None, sys.path))
    program = [sys.executable, "-P", "-c", AGENT_PROGRAM, msgspec.json.encode(flags).decode()]
    os.execve(sys.executable, program, {**os.environ, "PYTHONPATH": paths})  # noqa: S606  # no shell is wanted


def run_agent() -> None:
    """Serve until a signal."""
    flags = msgspec.json.decode(sys.argv[1], type=AgentFlags)
    try:
        asyncio.run(_serve_agent(flags, make_logger(flags.log_level)))
    except (RightsliceError, AgentError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(EXIT_INVALID_INPUT)


async def _serve_agent(flags: AgentFlags, log: StructuredLogger) -> None:
    host, port = flags.host, flags.port
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(await KubeClient.connect(flags.kubeconfig, flags.context))
        agent = await _build_agent(stack, api, flags, log)
        return_free_memory()  # of compiling modules: 9 MiB where bytecode cannot be cached, as in the image
        page = MetricsPage(agent.metrics)
        connections = ConnectionRegistry(
            health_routes(agent.checks, page.render), AGENT_HTTP_LIMITS, lambda _reason: None
        )
        listener = HttpListener(
            connections, None, lambda error: log.error("crashed", exc_info=error), tasks=[agent.run]
        )
        try:
            port = await listener.listen(host, port)
        except (NoParserError, OSError) as error:
            raise AgentError(f"--listen {host}:{port}: {error}") from error
        log.info("serving", listen=f"{host}:{port}", node=flags.node, server=api.server)
        stopped = asyncio.ensure_future(serve_until_signal(listener, 0.0, log))
        replaced = asyncio.ensure_future(agent.driver_replaced.wait())
        await asyncio.wait([stopped, replaced], return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            stopped.cancel()
            await listener.close()
            raise AgentError("the driver was replaced by another version; the agent must restart to load its library")
        replaced.cancel()


async def _build_agent(stack: AsyncExitStack, api: KubeClient, flags: AgentFlags, log: StructuredLogger) -> NodeAgent:
    """Build the agent; what must be closed is pushed to the stack."""
    try:
        from webhook.agent.device_owners import PodResourcesClient
        from webhook.agent.discovery import GpuDiscovery
        from webhook.agent.gpunode_publisher import AgentLease, GpuNodePublisher, NodeAdvertiser
        from webhook.agent.node_agent import NodeAgent
    except ModuleNotFoundError as error:
        raise AgentError(
            f"{error.name} is not installed. Install the wheel of Rightslice with its extra agent"
        ) from error
    random = SystemRandom()
    discover = GpuDiscovery(monotonic).discover
    kubelet = await stack.enter_async_context(PodResourcesClient(flags.socket))
    publisher = GpuNodePublisher(api, flags.node, monotonic, random)
    advertiser = NodeAdvertiser(api, flags.node, monotonic, random, milli=flags.gpu_milli)
    lease = AgentLease(api, flags.node, monotonic, lambda: datetime.now(UTC), random)
    owners = kubelet.device_owners
    return NodeAgent(discover, owners, publisher, advertiser, log, random, poll=flags.poll, renew_lease=lease.renew)
