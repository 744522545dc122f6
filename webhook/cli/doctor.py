"""`doctor`: is this installation well?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.console import paint_for, say, stop
from webhook.cli.diagnosis import code_of, table
from webhook.cli.live import with_api
from webhook.installing.checks import diagnose
from webhook.installing.facts import read_facts
from webhook.report.data import as_json

Form = Annotated[str, typer.Option("-o", "--output", metavar="table|json", help="Default: table.")]


def doctor(
    output: Form = "table",
    no_color: flags.NoColor = False,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Look at an installation: hooks, certificates, replicas, policies, nodes, quotas. Each line says what to do.

    Exit code: 0 nothing to act on, 1 something is, 2 a flag or the kubeconfig is wrong, 3 the cluster did not answer.
    """
    if output not in ("table", "json"):
        stop(f"-o: must be table or json, found {output!r}. Write -o table")
    lines = diagnose(with_api(kubeconfig, context, read_facts), datetime.now(UTC))
    say(as_json([line._asdict() for line in lines]) if output == "json" else table(lines, paint_for(no_color=no_color)))
    raise typer.Exit(code_of(lines))
