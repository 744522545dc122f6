"""`serve webhook`: its flags, and its way from the first connection to the last."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from webhook.cli import flags
from webhook.cli import prometheus_flags as asking
from webhook.cli import serving_flags as serving
from webhook.cli.output import exit_with_error
from webhook.cli.processes.tls import StartError
from webhook.cli.processes.webhook import (
    build_webhook_server,
    follow_cluster,
    follow_usage,
    join_leader_election,
    manage_certificate,
    update_policy_statuses,
    watch_rollouts,
    write_pod_events,
)
from webhook.errors import RightsliceError
from webhook.kube.api import KubeClient
from webhook.server.app import AdmissionServer
from webhook.settings import SettingsError, WebhookSettings, load_webhook_settings
from webhook.telemetry.logs import StructuredLogger, make_logger
from webhook.web.listener import NoParserError
from webhook.web.process_tuning import freeze_and_tune_gc
from webhook.web.shutdown import serve_until_signal


def serve_webhook(
    policies: Annotated[
        list[Path] | None,
        typer.Option(
            "--policies",
            metavar="FILE|DIR",
            help="Policies, read again when they change; may be given more than once.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="live|SNAPSHOT|demo",
            help="The cluster to judge against: live (the default in a pod), or a snapshot.",
        ),
    ] = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", metavar="NAME", help="Where GPUPolicyExceptions count. Default: rightslice-system."
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="ADDRESS:PORT", help="Default: 127.0.0.1:8443.")
    ] = None,
    tls_cert: serving.TlsCert = None,
    tls_key: serving.TlsKey = None,
    self_signed: serving.SelfSigned = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="MODE", help="audit: deny and change nothing. Default: enforce.")
    ] = None,
    managed_tls: Annotated[
        bool | None,
        typer.Option("--managed-tls", help="Let the replicas make, trust and renew certificates in a Secret instead."),
    ] = None,
    tls_secret: Annotated[
        str | None,
        typer.Option(
            "--tls-secret",
            metavar="NAMESPACE/NAME",
            help="Where. Default: rightslice-tls in our namespace.",
        ),
    ] = None,
    tls_names: Annotated[
        str | None,
        typer.Option("--tls-names", metavar="NAME,...", help="What it is called by. Default: the name of our Service."),
    ] = None,
    webhook_configurations: Annotated[
        str | None,
        typer.Option(
            "--webhook-configurations",
            metavar="NAME,...|SELECTOR",
            help="Those that must trust managed certificates, mutating and validating. Default: rightslice.",
        ),
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="FILE", help="Judge only for clients with a certificate of this CA, PEM."),
    ] = None,
    client_name: serving.ClientName = None,
    drain_seconds: serving.DrainSeconds = None,
    log_level: serving.LogLevel = None,
    max_connections: serving.MaxConnections = None,
    max_in_flight: serving.MaxInFlight = None,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="URL", help="Learn from here what workloads use of their GPUs."),
    ] = None,
    prometheus_ca: asking.PrometheusCa = None,
    prometheus_token_file: asking.PrometheusTokenFile = None,
    prometheus_user: asking.PrometheusUser = None,
    prometheus_password_file: asking.PrometheusPasswordFile = None,
    prometheus_selector: asking.PrometheusSelector = None,
    prometheus_days: asking.PrometheusDays = None,
    usage: Annotated[
        Path | None,
        typer.Option("--usage", metavar="FILE", help="Or from what `rightslice usage record` wrote; read again."),
    ] = None,
    usage_minutes: Annotated[float | None, typer.Option("--usage-minutes", help="How often. Default: 30.")] = None,
) -> None:
    """Serve admission reviews over HTTPS: POST /mutate and /validate. Flags can be RIGHTSLICE_ variables too."""
    try:
        settings = load_webhook_settings(
            policies=policies or None,
            cluster=cluster,
            kubeconfig=kubeconfig,
            context=context,
            namespace=namespace,
            listen=listen,
            tls_cert=tls_cert,
            tls_key=tls_key,
            self_signed=self_signed,
            mode=mode,
            managed_tls=managed_tls,
            tls_secret=tls_secret,
            tls_names=tls_names,
            webhook_configurations=webhook_configurations,
            client_ca=client_ca,
            client_name=client_name,
            drain_seconds=drain_seconds,
            log_level=log_level,
            max_connections=max_connections,
            max_in_flight=max_in_flight,
            prometheus=prometheus,
            prometheus_ca=prometheus_ca,
            prometheus_token_file=prometheus_token_file,
            prometheus_user=prometheus_user,
            prometheus_password_file=prometheus_password_file,
            prometheus_selector=prometheus_selector,
            prometheus_days=prometheus_days,
            usage=usage,
            usage_minutes=usage_minutes,
        )
    except SettingsError as error:
        exit_with_error(str(error))
    try:
        uvloop.run(_run_webhook(settings))
    except (StartError, RightsliceError) as error:
        exit_with_error(str(error))


async def _run_webhook(settings: WebhookSettings) -> None:
    log = make_logger(settings.log_level)
    server = build_webhook_server(settings, log)
    follow_usage(server, settings)
    async with AsyncExitStack() as stack:
        if settings.uses_api_server:
            await _join_cluster(server, settings, stack)
        await _serve_until_stopped(server, settings, log)


async def _join_cluster(server: AdmissionServer, settings: WebhookSettings, stack: AsyncExitStack) -> None:
    """Connect the server to its cluster: what it follows there, and what it keeps there with other replicas."""
    api = await stack.enter_async_context(await KubeClient.connect(settings.kubeconfig, settings.context))
    following = follow_cluster(server, api, settings) if settings.is_live else None
    if not settings.is_cluster_replica:
        return
    leading = join_leader_election(server, api, settings)
    stack.push_async_callback(leading.release)
    if settings.manages_tls:
        manage_certificate(server, api, settings, leading)
    if following is not None:
        update_policy_statuses(server, api, following.policies, leading)
        watch_rollouts(server, api, following.policies, leading)
        write_pod_events(server, api)


async def _serve_until_stopped(server: AdmissionServer, settings: WebhookSettings, log: StructuredLogger) -> None:
    try:
        port = await server.listen(settings.host, settings.port)
    except (NoParserError, OSError) as error:
        raise StartError(f"--listen {settings.listen}: {error}") from error
    freeze_and_tune_gc()
    policies = server.state.policies
    log.info("serving", listen=f"{settings.host}:{port}", policies=len(policies.policies), digest=policies.digest)
    await serve_until_signal(server, settings.drain_period, log)
