"""The objects that an audit is kept in: printed, and stored in the cluster that was judged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from webhook.cli.console import NO_ANSWER, exit_with_error, print_note
from webhook.cli.inputs import LIVE, ClusterFlags
from webhook.report.data import yaml_text
from webhook.report.policyreports import NO_KIND, ReportApi, build_policy_reports
from webhook.report.workloads import WorkloadReport

WriteReports = Annotated[
    bool,
    typer.Option(
        "--write",
        help="With --cluster live: also store the objects that -o policyreport prints, and remove those of ours that "
        "have nothing left to say.",
    ),
]
DryRunWrite = Annotated[
    bool, typer.Option("--dry-run", help="With --write: the API server checks, stores nothing, and stderr says what.")
]


def report_objects_yaml(apis: Sequence[ReportApi], rows: Sequence[WorkloadReport], moment: datetime) -> str:
    """Report objects as YAML, of the API that the cluster has; nothing, and a word, where it has none."""
    if not apis:
        print_note(f"note: {NO_KIND}")
        return ""
    return "---\n".join(map(yaml_text, build_policy_reports(rows, moment, apis[0])))


def reject_partial_write(
    cluster: str | None, paths: Sequence[str] | None, since: str, *, to_write: bool, dry_run: bool
) -> None:
    """Stops the program where report objects would be written of less than a whole live cluster."""
    if dry_run and not to_write:
        exit_with_error("--dry-run: says what --write would do. Write --write --dry-run, or leave it out: an audit stores nothing")
    if to_write and (cluster != LIVE or paths):
        exit_with_error("--write: stores what was found in the cluster itself. Write --cluster live, and no files")
    if to_write and since:
        exit_with_error("--write: what a part of the pods came to would replace what all came to. Leave out --since")


def store_reports(
    apis: Sequence[ReportApi], rows: Sequence[WorkloadReport], moment: datetime, reach: ClusterFlags, *, dry_run: bool
) -> None:
    """Store report objects in the cluster that was judged, and say on stderr what became of each.

    Stops the program where another tool has one of their name: what could be stored then is.
    """
    from webhook.audit.publishing import publish_reports  # the HTTP client takes its time: only who needs it pays
    from webhook.cli.live import call_api

    reports = build_policy_reports(rows, moment, apis[0])
    if not call_api(*reach, lambda api: publish_reports(api, reports, apis, print_note, dry_run=dry_run)):
        raise typer.Exit(NO_ANSWER)
