"""The process of the agent, without the command line: typer and what it brings are 10 MiB, and this runs on every node.

`rightslice serve agent` reads the flags and becomes this program.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from random import SystemRandom
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

import msgspec

from webhook.errors import RightsliceError
from webhook.kube.api import KubeClient
from webhook.telemetry.logs import StructuredLogger, make_logger
from webhook.telemetry.metrics import MetricsPage
from webhook.web.connection_registry import ConnectionRegistry
from webhook.web.health import health_routes
from webhook.web.limits import ServerLimits
from webhook.web.listener import HttpListener, NoParserError
from webhook.web.shutdown import serve_until_signal

if TYPE_CHECKING:
    from webhook.agent.node_agent import NodeAgent

AGENT_HTTP_LIMITS = ServerLimits(body=64 * 1024, connections=64, in_flight=16, buffered=1024 * 1024)
"""Probes and a scraper."""

EXIT_INVALID_INPUT = 2

AGENT_PROGRAM = "import sys; sys.modules['rich'] = None; from webhook.cli.processes.agent import run; run()"
"""structlog loads rich where it finds it, to draw on a terminal: 3 MiB more, and an agent has none."""


class AgentError(Exception):
    """The agent cannot start, or has to end; the message says why."""


class AgentFlags(msgspec.Struct, frozen=True):
    """What `serve agent` was told.

    Attributes:
        host, port: Where health and metrics are served.
        socket: The kubelet's.
        poll: Seconds between two looks.
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
    """Put the agent in the place of this process: the same number, the same files, another program."""
    paths = os.pathsep.join(filter(None, sys.path))
    program = [sys.executable, "-P", "-c", AGENT_PROGRAM, msgspec.json.encode(flags).decode()]
    os.execve(sys.executable, program, {**os.environ, "PYTHONPATH": paths})  # noqa: S606  # no shell is wanted


def run_agent() -> None:
    """Serve until told to end."""
    flags = msgspec.json.decode(sys.argv[1], type=AgentFlags)
    try:
        asyncio.run(_run_agent_process(flags, make_logger(flags.log_level)))
    except (RightsliceError, AgentError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(EXIT_INVALID_INPUT)


async def _run_agent_process(flags: AgentFlags, log: StructuredLogger) -> None:
    host, port = flags.host, flags.port
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(await KubeClient.connect(flags.kubeconfig, flags.context))
        agent = await _build_agent(stack, api, flags, log)
        _release_compile_memory()
        page = MetricsPage(agent.metrics)
        lobby = ConnectionRegistry(health_routes(agent.checks, page.render), AGENT_HTTP_LIMITS, lambda _reason: None)
        listener = HttpListener(lobby, None, lambda error: log.error("crashed", exc_info=error), tasks=[agent.run])
        try:
            port = await listener.listen(host, port)
        except (NoParserError, OSError) as error:
            raise AgentError(f"--listen {host}:{port}: {error}") from error
        log.info("serving", listen=f"{host}:{port}", node=flags.node, server=api.server)
        told = asyncio.ensure_future(serve_until_signal(listener, 0.0, log))
        replaced = asyncio.ensure_future(agent.driver_replaced.wait())
        await asyncio.wait([told, replaced], return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            told.cancel()
            await listener.close()
            raise AgentError("the driver was replaced by another version: a new process has to load its library")
        replaced.cancel()


async def _build_agent(stack: AsyncExitStack, api: KubeClient, flags: AgentFlags, log: StructuredLogger) -> NodeAgent:
    """The agent and its parts; what has to be closed is pushed to the stack."""
    try:
        from webhook.agent.device_owners import PodResourcesClient
        from webhook.agent.discovery import GpuDiscovery
        from webhook.agent.gpunode_publisher import GpuNodePublisher
        from webhook.agent.lease import AgentLease
        from webhook.agent.node_advertiser import NodeAdvertiser
        from webhook.agent.node_agent import NodeAgent
    except ModuleNotFoundError as error:
        raise AgentError(f"{error.name} is not installed: pip install 'rightslice[agent]'") from error
    random = SystemRandom()
    machine = GpuDiscovery(monotonic)
    kubelet = await stack.enter_async_context(PodResourcesClient(flags.socket))
    publisher = GpuNodePublisher(api, flags.node, monotonic, random)
    advertiser = NodeAdvertiser(api, flags.node, monotonic, random, milli=flags.gpu_milli)
    heartbeat = AgentLease(api, flags.node, monotonic, lambda: datetime.now(UTC), random)
    return NodeAgent(machine, kubelet, publisher, advertiser, log, random, poll=flags.poll, heartbeat=heartbeat)


def _release_compile_memory() -> None:
    """Give back what compiling modules took: 9 MiB where their bytecode cannot be kept, as in an image."""
    with suppress(AttributeError):  # a C library that has no such function
        ctypes.CDLL(None).malloc_trim(0)
