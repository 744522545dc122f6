"""`serve webhook`: the one place where the server's parts are built and handed over."""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from webhook.cache.snapshot import load_snapshot
from webhook.certs.issuing import end_of
from webhook.certs.selfsigned import self_signed as make_pair
from webhook.cli.certificates import manage_certificate
from webhook.cli.console import stop
from webhook.errors import RightsliceError
from webhook.model.usage import UsageView
from webhook.policy.loading import load
from webhook.server.app import NoParserError, Server
from webhook.server.collecting import settle_collector
from webhook.server.draining import serve_until_told
from webhook.server.limits import Limits
from webhook.server.policyfiles import PolicyFiles
from webhook.server.reloading import CertificateWatch, NoPoliciesError, PolicyWatch, read_policies
from webhook.server.tls import CertificateError, PairFiles, PemPair, server_context
from webhook.server.world import PolicyStatus, World
from webhook.settings import Settings, SettingsError, settings_from
from webhook.telemetry.logs import Logger, make_logger
from webhook.telemetry.telemetry import Telemetry


def serve_webhook(
    policies: Annotated[
        Path | None, typer.Option("--policies", metavar="DIR|FILE", help="Policies; read again when they change.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="SNAPSHOT|demo", help="The cluster to judge against.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="ADDRESS:PORT", help="Default: 127.0.0.1:8443.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM; read again on change.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")] = None,
    self_signed: Annotated[
        bool | None, typer.Option("--self-signed", help="Make a certificate for this run instead.")
    ] = None,
    tls_secret: Annotated[
        str | None,
        typer.Option(
            "--tls-secret",
            metavar="NAMESPACE/NAME",
            help="Keep certificates in this Secret: made, trusted, renewed.",
        ),
    ] = None,
    tls_names: Annotated[
        str | None,
        typer.Option("--tls-names", metavar="NAME,...", help="What they stand for: SERVICE.NAMESPACE.svc, say."),
    ] = None,
    webhook_configurations: Annotated[
        str | None,
        typer.Option(
            "--webhook-configurations",
            metavar="NAME,...|SELECTOR",
            help="Those that must trust them, mutating and validating. Default: rightslice.",
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None, typer.Option("--kubeconfig", metavar="FILE", help="How to reach the API server.")
    ] = None,
    context: Annotated[str | None, typer.Option("--context", metavar="NAME", help="A context of it.")] = None,
    drain_seconds: Annotated[
        float | None,
        typer.Option("--drain-seconds", help="Serve on after SIGTERM. Default: 10, on a loopback address 0."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info (default), warning or error.")
    ] = None,
    max_connections: Annotated[int | None, typer.Option("--max-connections", help="Default: 2000.")] = None,
    max_in_flight: Annotated[int | None, typer.Option("--max-in-flight", help="Default: 256.")] = None,
) -> None:
    """Serve admission reviews over HTTPS: POST /mutate and /validate. Flags can be RIGHTSLICE_ variables too."""
    try:
        settings = settings_from(
            policies=policies,
            cluster=cluster,
            listen=listen,
            tls_cert=tls_cert,
            tls_key=tls_key,
            self_signed=self_signed,
            tls_secret=tls_secret,
            tls_names=tls_names,
            webhook_configurations=webhook_configurations,
            kubeconfig=kubeconfig,
            context=context,
            drain_seconds=drain_seconds,
            log_level=log_level,
            max_connections=max_connections,
            max_in_flight=max_in_flight,
        )
    except SettingsError as error:
        stop(str(error))
    try:
        uvloop.run(_serve(settings))
    except (StartError, RightsliceError) as error:
        stop(str(error))


class StartError(Exception):
    """The server cannot start; the message says what to change."""


async def _serve(settings: Settings) -> None:
    log = make_logger(settings.log_level)
    async with AsyncExitStack() as parts:
        server = await build(settings, log, parts)
        await _listen(server, settings, log)


async def _listen(server: Server, settings: Settings, log: Logger) -> None:
    try:
        port = await server.listen(settings.host, settings.port)
    except (NoParserError, OSError) as error:
        raise StartError(f"--listen {settings.listen}: {error}") from error
    settle_collector()
    policies = server.world.policies
    log.info("serving", listen=f"{settings.host}:{port}", policies=len(policies.policies), digest=policies.digest)
    await serve_until_told(server, settings.drain, log)


async def build(settings: Settings, log: Logger, parts: AsyncExitStack) -> Server:
    """Build the server and everything it is handed; what has to be closed in the end is pushed to `parts`.

    Raises:
        StartError, RightsliceError: policies, cluster, certificate or kubeconfig cannot be used.
    """
    files = PolicyFiles(settings.policies)
    telemetry = Telemetry(log)
    now = clock()
    try:
        policies = read_policies(files, load)
    except NoPoliciesError as error:
        raise StartError(str(error)) from error
    world = World(policies, load_snapshot(settings.cluster), UsageView(), PolicyStatus(now))
    telemetry.policies_loaded(policies.digest, now)
    looks = [PolicyWatch(files, load, world, clock, telemetry).look]
    pair = _first_pair(settings)
    context = _context(settings, pair)
    limits = Limits(connections=settings.max_connections, in_flight=settings.max_in_flight)
    server = Server(world, telemetry, clock, context, limits, looks)
    if settings.tls_secret is not None:
        managed = await manage_certificate(settings, context, telemetry, clock, parts)
        server.tasks, server.checks = (managed.leading.run, managed.run), (managed.checks,)
        return server
    telemetry.certificate_ends(end_of(pair.certificate))
    if settings.tls_cert is not None and settings.tls_key is not None:
        looks.append(CertificateWatch(PairFiles(settings.tls_cert, settings.tls_key), context, telemetry).look)
    return server


def clock() -> datetime:
    """The moment."""
    return datetime.now(UTC)


def _first_pair(settings: Settings) -> PemPair:
    """The pair to begin with. One that is made here is trusted by nobody but who was told to."""
    if settings.tls_cert is None or settings.tls_key is None:
        made = make_pair(settings.names or [settings.host, "localhost"], clock())
        return PemPair(made.certificate, made.key)
    try:
        return PairFiles(settings.tls_cert, settings.tls_key).read()
    except OSError as error:
        raise StartError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _context(settings: Settings, pair: PemPair) -> ssl.SSLContext:
    try:
        return server_context(pair)
    except CertificateError as error:
        raise StartError(f"{settings.tls_cert}, {settings.tls_key}: {error}") from error
