"""`serve`: run the webhook, the scheduler extender, or the node agent.

Flags are named as the settings; `webhook.settings` reads RIGHTSLICE_ variables for those that are not given. Only the
process that is run is imported: an agent runs on every GPU node and should not hold the policy engine in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.output import exit_with_error

serve = typer.Typer(help="Run the webhook, the scheduler extender, or the node agent.", no_args_is_help=True)

LOG_LEVELS = ("debug", "info", "warning", "error")
KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"

ServedPolicies = Annotated[list[Path] | None, flags.policies_option("Policies; reloaded when they change. Repeatable.")]
ServedCluster = Annotated[
    str | None,
    flags.cluster_option("The cluster to evaluate against: live (the default in a pod), a snapshot, or demo."),
]
ExceptionNamespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", metavar="NAMESPACE", help="The namespace of GPUPolicyExceptions. Default: rightslice-system."
    ),
]
WebhookListen = Annotated[
    str | None,
    typer.Option("--listen", metavar="ADDRESS:PORT", help="Address of the webhook, HTTPS. Default: 127.0.0.1:8443."),
]
ServedMode = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="audit: nothing is changed or denied. enforce, the default: policies apply in their own modes.",
    ),
]
ManagedTls = Annotated[
    bool | None,
    typer.Option("--managed-tls", help="Create, distribute and renew certificates in a Secret, instead of --tls-cert."),
]
TlsSecret = Annotated[
    str | None,
    typer.Option(
        "--tls-secret",
        metavar="NAMESPACE/NAME",
        help="The Secret of managed certificates. Default: rightslice-tls in the namespace of exceptions.",
    ),
]
TlsNames = Annotated[
    str | None,
    typer.Option(
        "--tls-names", metavar="NAME,...", help="DNS names in managed certificates. Default: the name of the Service."
    ),
]
WebhookConfigurations = Annotated[
    str | None,
    typer.Option(
        "--webhook-configurations",
        metavar="NAME,...|SELECTOR",
        help="Mutating and validating webhook configurations that must trust managed certificates. Default: "
        "rightslice.",
    ),
]
PrometheusUrl = Annotated[
    str | None, typer.Option("--prometheus", metavar="URL", help="Read GPU usage from this Prometheus.")
]
UsageFile = Annotated[
    Path | None,
    typer.Option("--usage", metavar="FILE", help="Read GPU usage from a file of `rightslice usage record` instead."),
]
UsageMinutes = Annotated[
    float | None,
    typer.Option("--usage-minutes", metavar="MINUTES", help="Minutes between two reads of GPU usage. Default: 30."),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        metavar="NUMBER",
        help="Number of webhook replicas outside the cluster; replicas in the cluster are counted automatically. "
        "Default: 1.",
    ),
]

KueueConfig = Annotated[
    Path | None,
    typer.Option(
        "--kueue-config",
        metavar="FILE",
        help="Kueue's Configuration, for its resource transformations. Default: none.",
    ),
]

NodeGroupsFile = Annotated[
    Path | None,
    typer.Option(
        "--node-groups",
        metavar="FILE",
        help="File of kind NodeGroups: what new nodes of node groups offer. Default: none.",
    ),
]


@serve.command("webhook")
def serve_webhook(
    policies: ServedPolicies = None,
    cluster: ServedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: ExceptionNamespace = None,
    listen: WebhookListen = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    self_signed: flags.SelfSigned = None,
    mode: ServedMode = None,
    managed_tls: ManagedTls = None,
    tls_secret: TlsSecret = None,
    tls_names: TlsNames = None,
    webhook_configurations: WebhookConfigurations = None,
    client_ca: flags.ClientCa = None,
    client_name: flags.ClientName = None,
    drain_seconds: flags.DrainSeconds = None,
    log_level: flags.LogLevel = None,
    max_connections: flags.MaxConnections = None,
    max_in_flight: flags.MaxInFlight = None,
    prometheus: PrometheusUrl = None,
    prometheus_ca: flags.PrometheusCa = None,
    prometheus_token_file: flags.PrometheusTokenFile = None,
    prometheus_user: flags.PrometheusUser = None,
    prometheus_password_file: flags.PrometheusPasswordFile = None,
    prometheus_selector: flags.PrometheusSelector = None,
    prometheus_days: flags.PrometheusDays = None,
    usage: UsageFile = None,
    usage_minutes: UsageMinutes = None,
    replicas: Replicas = None,
    kueue_config: KueueConfig = None,
    node_groups: NodeGroupsFile = None,
    scheduler_config: flags.SchedulerConfig = None,
) -> None:
    """Serve admission reviews over HTTPS.

    Routes: POST /mutate and /validate. Flags can also be set as RIGHTSLICE_ variables.

    Exit code: 0 after SIGTERM, 2 invalid input.
    """
    given = {**locals(), "policies": policies or None}
    from webhook.cli.processes.webhook import run_webhook
    from webhook.settings import WebhookSettings, load_settings

    _exit_on_start_errors(lambda: run_webhook(load_settings(WebhookSettings, **given)))


ExtenderCluster = Annotated[
    str | None,
    flags.cluster_option("The cluster whose nodes are ranked: live (the default in a pod), a snapshot, or demo."),
]
ExtenderListen = Annotated[
    str | None,
    typer.Option("--listen", metavar="ADDRESS:PORT", help="Address of the extender, HTTPS. Default: 127.0.0.1:8444."),
]
ExtenderStrategy = Annotated[
    str | None,
    typer.Option(
        "--strategy", metavar="STRATEGY", help="How nodes are scored: tab (default), fgd, most-allocated, default."
    ),
]
ExtenderFill = Annotated[
    str | None,
    typer.Option("--fill", metavar="ORDER", help="Among equal nodes: pack (default) or spread."),
]
ExtenderFairShare = Annotated[
    Path | None,
    typer.Option(
        "--fair-share",
        metavar="FILE",
        help="Policies, one with a fairShare: pods of namespaces over their share are placed on fuller nodes first. "
        "Off by default.",
    ),
]


@serve.command("extender")
def serve_extender(
    cluster: ExtenderCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    listen: ExtenderListen = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    self_signed: flags.SelfSigned = None,
    client_ca: flags.ClientCa = None,
    client_name: flags.ClientName = None,
    strategy: ExtenderStrategy = None,
    fill: ExtenderFill = None,
    fair_share: ExtenderFairShare = None,
    drain_seconds: flags.DrainSeconds = None,
    log_level: flags.LogLevel = None,
    max_connections: flags.MaxConnections = None,
    max_in_flight: flags.MaxInFlight = None,
) -> None:
    """Rank nodes for kube-scheduler over HTTPS.

    Routes: POST /filter, /prioritize, /prioritize-claims and /preempt. Flags can also be set as RIGHTSLICE_ variables.

    Exit code: 0 after SIGTERM, 2 invalid input.
    """
    given = dict(locals())
    from webhook.cli.processes.extender import run_extender
    from webhook.settings import ExtenderSettings, load_settings

    _exit_on_start_errors(lambda: run_extender(load_settings(ExtenderSettings, **given)))


def _exit_on_start_errors(run: Callable[[], None]) -> None:
    from webhook.cli.processes.tls import StartError
    from webhook.errors import RightsliceError
    from webhook.settings import SettingsError

    try:
        run()
    except (SettingsError, StartError, RightsliceError) as error:
        exit_with_error(str(error))


AgentNode = Annotated[
    str, typer.Option("--node", envvar="RIGHTSLICE_NODE", metavar="NAME", help="The node that the agent runs on.")
]
AgentListen = Annotated[
    str,
    typer.Option(
        "--listen", envvar="RIGHTSLICE_LISTEN", metavar="ADDRESS:PORT", help="Address of health and metrics, HTTP."
    ),
]
KubeletSocket = Annotated[
    str, typer.Option("--kubelet-socket", metavar="FILE", help="The kubelet's PodResources socket.")
]
PollSeconds = Annotated[
    float, typer.Option("--poll", metavar="SECONDS", min=1, max=600, help="Seconds between two discoveries.")
]
GpuMilli = Annotated[
    bool,
    typer.Option(
        "--gpu-milli",
        help="Advertise rightslice.dev/gpu-milli on the node, if the scheduler cannot be configured to ignore it.",
    ),
]
AgentLogLevel = Annotated[str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]


@serve.command("agent")
def serve_agent(
    node: AgentNode,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    listen: AgentListen = "127.0.0.1:8081",
    socket: KubeletSocket = KUBELET_SOCKET,
    poll: PollSeconds = 10.0,
    gpu_milli: GpuMilli = False,
    log_level: AgentLogLevel = "info",
) -> None:
    """Report the GPUs of a node as a GPUNode.

    The GPUNode includes links between GPUs, and the pods that hold them.

    Exit code: 0 after SIGTERM, 2 invalid input.
    """
    from webhook.cli.processes.agent import AgentFlags, exec_agent

    try:
        host, port = parse_listen_address(listen)
        level = parse_log_level(log_level)
    except ValueError as error:
        exit_with_error(str(error))
    exec_agent(AgentFlags(node, kubeconfig, context, host, port, socket, poll, gpu_milli, level))


def parse_log_level(level: str) -> str:
    """Return the level; ValueError if it does not exist."""
    if level not in LOG_LEVELS:
        raise ValueError(f"--log-level: must be one of {', '.join(LOG_LEVELS)}, found {level!r}")
    return level


def parse_listen_address(text: str, example: str = "0.0.0.0:8081") -> tuple[str, int]:
    """Split ADDRESS:PORT; ValueError if it is something else."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"--listen: must be ADDRESS:PORT, for example {example}, found {text!r}")
    return host.strip("[]"), int(port)
