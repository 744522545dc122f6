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
from webhook.kube.api import Api
from webhook.telemetry.logs import Logger, make_logger
from webhook.telemetry.page import PAGE_TYPE, MetricsPage
from webhook.web.draining import serve_until_told
from webhook.web.limits import Limits
from webhook.web.listening import Listener, NoParserError
from webhook.web.lobby import Lobby
from webhook.web.probes import probes

if TYPE_CHECKING:
    from webhook.agent.agent import Agent

LIMITS = Limits(body=64 * 1024, connections=64, in_flight=16, buffered=1024 * 1024)
"""Probes and a scraper."""

WRONG_INPUT = 2

PROGRAM = "import sys; sys.modules['rich'] = None; from webhook.cli.agenting import run; run()"
"""structlog loads rich where it finds it, to draw on a terminal: 3 MiB more, and an agent has none."""


class AgentError(Exception):
    """The agent cannot start, or has to end; the message says why."""


class Flags(msgspec.Struct, frozen=True):
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


def become(flags: Flags) -> NoReturn:
    """Put the agent in the place of this process: the same number, the same files, another program."""
    paths = os.pathsep.join(filter(None, sys.path))
    program = [sys.executable, "-P", "-c", PROGRAM, msgspec.json.encode(flags).decode()]
    os.execve(sys.executable, program, {**os.environ, "PYTHONPATH": paths})  # noqa: S606  # no shell is wanted


def run() -> None:
    """Serve until told to end."""
    flags = msgspec.json.decode(sys.argv[1], type=Flags)
    try:
        asyncio.run(_serve(flags, make_logger(flags.log_level)))
    except (RightsliceError, AgentError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(WRONG_INPUT)


async def _serve(flags: Flags, log: Logger) -> None:
    host, port = flags.host, flags.port
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(await Api.connect(flags.kubeconfig, flags.context))
        agent = await _agent(stack, api, flags, log)
        _trim()
        page = MetricsPage(agent.counts)
        lobby = Lobby(probes(agent.checks, page.text, PAGE_TYPE), LIMITS, lambda _reason: None)
        listener = Listener(lobby, None, lambda error: log.error("crashed", exc_info=error), companions=[agent.run])
        try:
            port = await listener.listen(host, port)
        except (NoParserError, OSError) as error:
            raise AgentError(f"--listen {host}:{port}: {error}") from error
        log.info("serving", listen=f"{host}:{port}", node=flags.node, server=api.server)
        told = asyncio.ensure_future(serve_until_told(listener, 0.0, log))
        replaced = asyncio.ensure_future(agent.replaced.wait())
        await asyncio.wait([told, replaced], return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            told.cancel()
            await listener.close()
            raise AgentError("the driver was replaced by another version: a new process has to load its library")
        replaced.cancel()


async def _agent(stack: AsyncExitStack, api: Api, flags: Flags, log: Logger) -> Agent:
    """The agent and its parts; what has to be closed is pushed to the stack."""
    try:
        from webhook.agent.advertising import Advertiser
        from webhook.agent.agent import Agent
        from webhook.agent.beating import Heartbeat
        from webhook.agent.machine import Machine
        from webhook.agent.podresources import PodResources
        from webhook.agent.publishing import Publisher
    except ModuleNotFoundError as error:
        raise AgentError(f"{error.name} is not installed: pip install 'rightslice[agent]'") from error
    random = SystemRandom()
    machine = Machine(monotonic)
    kubelet = await stack.enter_async_context(PodResources(flags.socket))
    publisher = Publisher(api, flags.node, monotonic, random)
    advertiser = Advertiser(api, flags.node, monotonic, random, milli=flags.gpu_milli)
    heartbeat = Heartbeat(api, flags.node, monotonic, lambda: datetime.now(UTC), random)
    return Agent(machine, kubelet, publisher, advertiser, log, random, poll=flags.poll, heartbeat=heartbeat)


def _trim() -> None:
    """Give back what compiling modules took: 9 MiB where their bytecode cannot be kept, as in an image."""
    with suppress(AttributeError):  # a C library that has no such function
        ctypes.CDLL(None).malloc_trim(0)
