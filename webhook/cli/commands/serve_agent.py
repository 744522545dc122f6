"""`serve agent`: the flags of what runs on each node with GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.cli.cluster_flags import Context, Kubeconfig
from webhook.cli.output import exit_with_error
from webhook.cli.processes.agent import AgentError, AgentFlags, exec_agent

LOG_LEVELS = ("debug", "info", "warning", "error")

KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


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
    ] = KUBELET_SOCKET,
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
        host, port = parse_listen_address(listen)
        level = parse_log_level(log_level)
    except AgentError as error:
        exit_with_error(str(error))
    exec_agent(AgentFlags(node, kubeconfig, context, host, port, socket, poll, gpu_milli, level))


def parse_log_level(level: str) -> str:
    """A log level.

    Raises:
        AgentError: there is no such level.
    """
    if level not in LOG_LEVELS:
        raise AgentError(f"--log-level: must be one of {', '.join(LOG_LEVELS)}, found {level!r}")
    return level


def parse_listen_address(text: str) -> tuple[str, int]:
    """Host and port of ADDRESS:PORT.

    Raises:
        AgentError: it is no such thing.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise AgentError(f"--listen: must be ADDRESS:PORT, for example 0.0.0.0:8081, found {text!r}")
    return host.strip("[]"), int(port)
