"""`doctor_command`: is this installation well?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.console import paint_for, print_result, exit_with_error
from webhook.cli.diagnosis import diagnosis_exit_code, diagnosis_table
from webhook.cli.live import call_api
from webhook.installing.checks import diagnose
from webhook.installing.facts import read_cluster_facts
from webhook.report.data import json_text

DoctorOutput = Annotated[str, typer.Option("-o", "--output", metavar="diagnosis_table|json", help="Default: diagnosis_table.")]


def doctor_command(
    output: DoctorOutput = "table",
    no_color: flags.NoColor = False,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Look at an installation: hooks, certificates, replicas, policies, nodes, quotas. Each line says what to do.

    Exit code: 0 nothing to act on, 1 something is, 2 a flag or the kubeconfig is wrong, 3 the cluster did not answer.
    """
    if output not in ("table", "json"):
        exit_with_error(f"-o: must be table or json, found {output!r}. Write -o table")
    lines = diagnose(call_api(kubeconfig, context, read_cluster_facts), datetime.now(UTC))
    print_result(json_text([line._asdict() for line in lines]) if output == "json" else diagnosis_table(lines, paint_for(no_color=no_color)))
    raise typer.Exit(diagnosis_exit_code(lines))
