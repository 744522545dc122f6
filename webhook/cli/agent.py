"""`serve agent`: what runs on each node with GPUs, built and handed over."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from random import SystemRandom
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from webhook.cli.console import stop
from webhook.cli.reaching import Context, Kubeconfig
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

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"

LIMITS = Limits(body=64 * 1024, connections=64, in_flight=16, buffered=1024 * 1024)
"""Probes and a scraper."""


class AgentError(Exception):
    """The agent cannot start, or has to end; the message says why."""


def serve_agent(
    node: Annotated[
        str, typer.Option("--node", envvar="RIGHTSLICE_NODE", metavar="NAME", help="The node that this runs on.")
    ],
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    listen: Annotated[
        str,
        typer.Option("--listen", envvar="RIGHTSLICE_LISTEN", metavar="ADDRESS:PORT", help="Health and metrics, HTTP."),
    ] = "127.0.0.1:8081",
    socket: Annotated[
        str, typer.Option("--kubelet-socket", metavar="FILE", help="The kubelet's PodResources socket.")
    ] = SOCKET,
    poll: Annotated[float, typer.Option("--poll", min=1, max=600, help="Seconds between two looks.")] = 10.0,
    gpu_milli: Annotated[
        bool,
        typer.Option(
            "--gpu-milli",
            help="Advertise rightslice.dev/gpu-milli on the node, where the scheduler cannot be told to ignore it.",
        ),
    ] = False,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Report the GPUs of one node, their links and who holds them, as a GPUNode."""
    try:
        host, port = address(listen)
        log = make_logger(log_level)
        asyncio.run(_serve(node, kubeconfig, context, host, port, socket, poll, gpu_milli, log))
    except (RightsliceError, AgentError) as error:
        raise stop(str(error)) from error


def address(text: str) -> tuple[str, int]:
    """Host and port of ADDRESS:PORT.

    Raises:
        AgentError: it is no such thing.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise AgentError(f"--listen: must be ADDRESS:PORT, for example 0.0.0.0:8081, found {text!r}")
    return host.strip("[]"), int(port)


async def _serve(
    node: str,
    kubeconfig: str | None,
    context: str | None,
    host: str,
    port: int,
    socket: str,
    poll: float,
    gpu_milli: bool,
    log: Logger,
) -> None:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(await Api.connect(kubeconfig, context))
        agent = await _agent(stack, api, node, socket, poll, gpu_milli, log)
        page = MetricsPage(agent.counts)
        lobby = Lobby(probes(agent.checks, page.text, PAGE_TYPE), LIMITS, lambda _reason: None)
        listener = Listener(lobby, None, lambda error: log.error("crashed", exc_info=error), companions=[agent.run])
        try:
            port = await listener.listen(host, port)
        except (NoParserError, OSError) as error:
            raise AgentError(f"--listen {host}:{port}: {error}") from error
        log.info("serving", listen=f"{host}:{port}", node=node, server=api.server)
        told = asyncio.ensure_future(serve_until_told(listener, 0.0, log))
        replaced = asyncio.ensure_future(agent.replaced.wait())
        await asyncio.wait([told, replaced], return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            told.cancel()
            await listener.close()
            raise AgentError("the driver was replaced by another version: a new process has to load its library")
        replaced.cancel()


async def _agent(
    stack: AsyncExitStack, api: Api, node: str, socket: str, poll: float, gpu_milli: bool, log: Logger
) -> Agent:
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
    kubelet = await stack.enter_async_context(PodResources(socket))
    publisher = Publisher(api, node, monotonic, random)
    advertiser = Advertiser(api, node, monotonic, random, milli=gpu_milli)
    heartbeat = Heartbeat(api, node, monotonic, lambda: datetime.now(UTC), random)
    return Agent(machine, kubelet, publisher, advertiser, log, random, poll=poll, heartbeat=heartbeat)
