"""`fairshare_command`: who has used more of the GPUs' time than its share, and who less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from webhook.audit.gpu_time import gpu_time_of_pods
from webhook.audit.object_files import SourceObject, read_objects
from webhook.audit.pod_audit import is_pod
from webhook.cli import flags
from webhook.cli.audit_inputs import audit_sources, build_snapshot, without_duplicate_pods
from webhook.cli.inputs import (
    LIVE,
    ClusterFlags,
    choose_fair_share,
    load_cluster_policies,
    load_policy_set,
    open_live_cluster,
    parse_now,
    read_live_view,
    reject_access_flags,
    reject_broken_files,
)
from webhook.cli.output import exit_with_error, join_lines, paint_for, parse_targets, print_note, write_reports
from webhook.engine.fair_share import rank_fair_shares
from webhook.report.fair_share import fair_share_columns, fair_share_document, fair_share_table
from webhook.report.serialization import json_text, yaml_text
from webhook.report.text import pluralize, sanitize
from webhook.well_known import SYSTEM_NAMESPACE

FORMATS = ("table", "json", "yaml", "csv")
MAX_SKIPPED_NOTES = 10
"""Pods that are named where they are not counted, or not for their time."""

ShareOutput = Annotated[list[str] | None, flags.output_option("table, json, yaml or csv")]
PolicyName = Annotated[str, typer.Option("--policy", metavar="NAME", help="Whose fairShare, where several have one.")]


def fairshare_command(
    policies: flags.PoliciesOrLive = None,
    policy: PolicyName = "",
    cluster: flags.AuditedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = SYSTEM_NAMESPACE,
    now: flags.Now = "",
    output: ShareOutput = None,
    no_color: flags.NoColor = False,
) -> None:
    """Say who has used more GPU time than its share, and who less: by namespace, or by a label of pods.

    GPU time is what pods hold, in thousandths of a card, from their start to their end; what is long past counts less.
    Only pods that the cluster still has are counted, those that ended too. Nothing is refused or moved by it.

    Exit code: 0, 2 where a file, flag or policy is wrong, 3 where the cluster did not answer.
    """
    wanted, moment, reach = parse_targets(output, FORMATS), parse_now(now), ClusterFlags(kubeconfig, context)
    if cluster is None:
        exit_with_error("which cluster? Name a snapshot: --cluster FILE, or --cluster live or demo")
    skipped: list[str] = []
    if cluster == LIVE:
        with open_live_cluster(reach) as live:
            rule = choose_fair_share(load_cluster_policies(live, policies, policy_namespace), policy)
            fleet = read_live_view(live, {}).fleet
            uses = list(
                gpu_time_of_pods((entry.data for entry in live.pods(ended=True)), fleet, rule.by, skipped.append)
            )
    else:
        reject_access_flags(reach)
        rule = choose_fair_share(load_policy_set(policies), policy)
        found = list(read_objects(audit_sources(None, cluster)))
        reject_broken_files(found)
        pods = (
            each.data for each in without_duplicate_pods(found) if isinstance(each, SourceObject) and is_pod(each.data)
        )
        uses = list(gpu_time_of_pods(pods, build_snapshot(found, verbose=False).view.fleet, rule.by, skipped.append))
    note_skipped_pods(skipped)
    standing = rank_fair_shares(uses, rule, moment.timestamp())
    paint = paint_for(no_color=no_color)
    write_reports(
        wanted,
        {
            "table": lambda: join_lines(fair_share_table(standing, rule, paint)),
            "json": lambda: json_text(fair_share_document(standing, rule)),
            "yaml": lambda: yaml_text(fair_share_document(standing, rule)),
            "csv": lambda: fair_share_columns().to_csv(standing),
        },
    )


def note_skipped_pods(skipped: Sequence[str]) -> None:
    """Say which pods are not counted, or not for their time, and why."""
    for each in skipped[:MAX_SKIPPED_NOTES]:
        print_note(f"note: {sanitize(each)}")
    if len(skipped) > MAX_SKIPPED_NOTES:
        more = pluralize(len(skipped) - MAX_SKIPPED_NOTES, "more pod")
        print_note(f"note: and {more} that cannot be read, or does not say when it ended")
