"""`usage`: record GPU usage from Prometheus to a file, for commands and servers without access to Prometheus."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.output import EXIT_NO_ANSWER, exit_with_error, print_note, print_result
from webhook.cli.usage_inputs import read_usage_history
from webhook.errors import UsageError
from webhook.report.text import pluralize, sanitize
from webhook.usage.prometheus import PrometheusClient
from webhook.usage.prometheus_source import DEFAULT_DAYS, PrometheusSource
from webhook.usage.record_file import UsageRecord, check_record_writable, write_record

usage = typer.Typer(help="Record GPU usage.", no_args_is_help=True)


@usage.callback()
def usage_callback() -> None:
    """Record GPU usage."""


@usage.command("record")
def record_usage(
    prometheus: Annotated[str, typer.Option("--prometheus", metavar="URL", help="URL of Prometheus, without /api/v1.")],
    file: Annotated[
        Path, typer.Option("--file", metavar="FILE", help="The file to write; compressed if it ends in .gz.")
    ],
    ca: flags.PrometheusCa = None,
    token_file: flags.PrometheusTokenFile = None,
    user: flags.PrometheusUser = None,
    password_file: flags.PrometheusPasswordFile = None,
    selector: flags.PrometheusSelector = None,
    days: flags.PrometheusDays = None,
) -> None:
    """Save GPU usage from Prometheus to a file.

    The file is for --usage of check, audit, explain, rightsize, policy diff and serve.

    Exit code: 0, 2 invalid input, 3 Prometheus did not answer.
    """
    try:
        source = PrometheusSource(
            url=prometheus,
            ca=str(ca or ""),
            token=str(token_file or ""),
            user=user or "",
            password=str(password_file or ""),
            selector=selector or "",
            days=DEFAULT_DAYS if days is None else days,
        )
        source.check()
        client = PrometheusClient(source)
        check_record_writable(file)
    except UsageError as error:
        exit_with_error(sanitize(str(error)))
    except OSError as error:
        exit_with_error(f"{sanitize(str(file))}: cannot be written: {error.strerror or error}")
    try:
        reading = asyncio.run(read_usage_history(client))
    except UsageError as error:
        exit_with_error(sanitize(str(error)), EXIT_NO_ANSWER)
    for note in reading.notes:
        print_note(f"note: {sanitize(note)}")
    try:
        write_record(file, UsageRecord(reading.histories, reading.now))
    except OSError as error:
        exit_with_error(f"{sanitize(str(file))}: cannot be written: {error.strerror or error}")
    containers = pluralize(len(reading.histories), "container")
    print_result([f"{containers} of pods, {pluralize(source.days, 'day')}, written to {sanitize(str(file))}"])
