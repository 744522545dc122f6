"""`usage`: record what GPUs were seen to do, for commands and servers that have no Prometheus."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from webhook.cli import prometheus as flags
from webhook.cli.console import NO_ANSWER, say, stop, tell
from webhook.errors import UsageError
from webhook.report.words import count, shown
from webhook.usage.files import Recorded, check_writable, write
from webhook.usage.prometheus import Prometheus
from webhook.usage.reading import Reading, read
from webhook.usage.source import DEFAULT_DAYS, Source

usage = typer.Typer(help="Record what GPUs were seen to do.", no_args_is_help=True)


@usage.callback()
def about() -> None:
    """Record what GPUs were seen to do."""


@usage.command("record")
def record(
    prometheus: Annotated[str, typer.Option("--prometheus", metavar="URL", help="Prometheus, without /api/v1.")],
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="What to write; compressed if it ends in .gz.")],
    ca: flags.CA = None,
    token_file: flags.TokenFile = None,
    user: flags.User = None,
    password_file: flags.PasswordFile = None,
    selector: flags.Selector = None,
    days: flags.Days = None,
) -> None:
    """Read use of GPUs from a Prometheus and write it to a file, for --usage of check, audit, explain and serve.

    Exit code: 0, 2 where a flag or file cannot be used, 3 where Prometheus did not answer as it should.
    """
    try:
        source = Source(
            url=prometheus,
            ca=str(ca or ""),
            token=str(token_file or ""),
            user=user or "",
            password=str(password_file or ""),
            selector=selector or "",
            days=DEFAULT_DAYS if days is None else days,
        )
        source.check()
        asked = Prometheus(source)
        check_writable(file)
    except UsageError as error:
        stop(shown(str(error)))
    except OSError as error:
        stop(f"{shown(str(file))}: cannot be written: {error.strerror or error}")
    if sys.stderr.isatty():
        tell(f"reading {count(source.days, 'day')} of use from {source.base}; this may take minutes")
    try:
        reading = asyncio.run(_read(asked))
    except (UsageError, TimeoutError) as error:
        late = f"{source.base}: must answer within {source.seconds:g} s in all, did not"
        stop(shown(str(error)) or late, NO_ANSWER)
    for note in reading.notes:
        tell(f"note: {shown(note)}")
    try:
        write(file, Recorded(reading.histories, reading.now))
    except OSError as error:
        stop(f"{shown(str(file))}: cannot be written: {error.strerror or error}")
    days_read = count(source.days, "day")
    say([f"{count(len(reading.histories), 'container')} of pods, {days_read}, written to {shown(str(file))}"])


async def _read(asked: Prometheus) -> Reading:
    async with asked, asyncio.timeout(asked.source.seconds):
        return await read(asked, time.time)
