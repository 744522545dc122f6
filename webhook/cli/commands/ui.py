"""`ui`: serve the console, pages about a cluster for a browser on this machine."""

from __future__ import annotations

import asyncio
import errno
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from webhook.cli import flags
from webhook.cli.audit_inputs import AuditFlags, PriceFile
from webhook.cli.cluster_access import LIVE, ClusterFlags, choose_cluster
from webhook.cli.commands.serve import parse_listen_address
from webhook.cli.inputs import parse_labels, parse_now
from webhook.cli.output import exit_with_error, print_result
from webhook.report.text import sanitize
from webhook.settings import is_loopback
from webhook.web.daemon_threads import exit_if_threads_run

if TYPE_CHECKING:
    from webhook.cli.console_inputs import ConsoleReader
    from webhook.console.reading import ClusterReading

LISTEN = "127.0.0.1:8080"
Listen = Annotated[
    str, typer.Option("--listen", metavar="ADDRESS:PORT", help="Address of the console; only loopback is accepted.")
]


def ui_command(
    policies: flags.PoliciesOrLive = None,
    cluster: flags.ReadCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    namespace_labels: flags.NamespaceLabels = None,
    usage: flags.Usage = None,
    prometheus: flags.Prometheus = None,
    now: flags.Now = "",
    prices: PriceFile = "",
    listen: Listen = LISTEN,
    verbose: flags.Verbose = False,
) -> None:
    """Show a cluster in a browser on this machine.

    Pages show what is used and wasted, and what to do next, with the values of audit, rightsize, capacity and layout. A
    live cluster is read again while the console runs, with the permissions of the kubeconfig's user, and is not
    changed. A snapshot is read once.

    Everyone who can log in to this machine can open the pages while the console runs, as with kubectl proxy.

    Exit code: 0 after Ctrl-C, 2 invalid input, 3 the cluster did not answer.
    """
    from webhook.cli.console_inputs import ConsoleReader  # numpy and the HTTP server are slow to import

    try:
        host, port = parse_listen_address(listen, LISTEN)
    except ValueError as error:
        exit_with_error(str(error))
    if not is_loopback(host):
        must = f"--listen: must be an address of loopback, found {sanitize(host)!r}"
        exit_with_error(f"{must}: the console has no login. Write --listen 127.0.0.1:{port}")
    chosen = str(choose_cluster(cluster))
    reader = ConsoleReader(
        AuditFlags(
            paths=(),
            policies=policies,
            cluster=chosen,
            access=ClusterFlags(kubeconfig, context),
            policy_namespace=policy_namespace,
            labels=parse_labels(namespace_labels),
            now=parse_now(now),
            prices=prices,
            usage=usage,
            prometheus=prometheus,
            verbose=verbose,
        )
    )
    first = reader.read()
    try:
        asyncio.run(_serve_until_signal(reader, first, host, port, follows=chosen == LIVE))
    except OSError as error:
        other = ". Write another port; 0 takes any that is free" if error.errno == errno.EADDRINUSE else ""
        exit_with_error(f"--listen {sanitize(listen)}: {error.strerror or error}{other}")
    exit_if_threads_run()


async def _serve_until_signal(
    reader: ConsoleReader, first: ClusterReading, host: str, port: int, *, follows: bool
) -> None:
    from webhook.console.listener import serve_console
    from webhook.console.reading import NewestReading

    reading, ended, loop = NewestReading(first), asyncio.Event(), asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, ended.set)
    async with serve_console(reading, host, port) as address:
        print_result(f"{address}\n")
        following = loop.create_task(reading.follow(reader.read_again)) if follows else None
        await ended.wait()
        if following is not None:
            following.cancel()
