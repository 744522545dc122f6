"""`fairshare`: who has used more of the GPUs' time than its share, and who less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from webhook.audit.auditing import is_pod
from webhook.audit.manifests import Entry, objects_in
from webhook.audit.using import uses_of
from webhook.cli import flags
from webhook.cli.auditing import pods_once, snapshot_of, sources
from webhook.cli.console import paint_for, stop, tell
from webhook.cli.faults import refuse_faults
from webhook.cli.inputs import (
    LIVE,
    Reach,
    live_cluster,
    live_view,
    moment_of,
    policies_in_force,
    policies_of,
    refuse_reach,
)
from webhook.cli.output import lines, targets, write
from webhook.cli.shares import rule_of
from webhook.engine.fairness import standings
from webhook.report.data import as_json, as_yaml
from webhook.report.fairness import fairness_csv, fairness_document, fairness_lines
from webhook.report.words import count, shown

FORMATS = ("table", "json", "yaml", "csv")
MOST_SKIPPED = 10
"""Pods that are named where they are not counted, or not for their time."""

ShareOutput = Annotated[list[str] | None, flags.output("table, json, yaml or csv")]
Policy = Annotated[str, typer.Option("--policy", metavar="NAME", help="Whose fairShare, where several have one.")]


def fairshare(
    policies: flags.PoliciesOrLive = None,
    policy: Policy = "",
    cluster: flags.ClusterToJudge = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = flags.OUR_NAMESPACE,
    now: flags.Now = "",
    output: ShareOutput = None,
    no_color: flags.NoColor = False,
) -> None:
    """Say who has used more GPU time than its share, and who less: by namespace, or by a label of pods.

    GPU time is what pods hold, in thousandths of a card, from their start to their end; what is long past counts less.
    Only pods that the cluster still has are counted, those that ended too. Nothing is refused or moved by it.

    Exit code: 0, 2 where a file, flag or policy is wrong, 3 where the cluster did not answer.
    """
    wanted, moment, reach = targets(output, FORMATS), moment_of(now), Reach(kubeconfig, context)
    if cluster is None:
        stop("which cluster? Name a snapshot: --cluster FILE, or --cluster live or demo")
    skipped: list[str] = []
    if cluster == LIVE:
        with live_cluster(reach) as live:
            rule = rule_of(policies_in_force(live, policies, policy_namespace), policy)
            fleet = live_view(live, {}).fleet
            uses = list(uses_of((entry.data for entry in live.pods(ended=True)), fleet, rule.by, skipped.append))
    else:
        refuse_reach(reach)
        rule = rule_of(policies_of(policies), policy)
        found = list(objects_in(sources(None, cluster)))
        refuse_faults(found)
        pods = (each.data for each in pods_once(found) if isinstance(each, Entry) and is_pod(each.data))
        uses = list(uses_of(pods, snapshot_of(found, verbose=False).view.fleet, rule.by, skipped.append))
    tell_skipped(skipped)
    standing = standings(uses, rule, moment.timestamp())
    paint = paint_for(no_color=no_color)
    write(
        wanted,
        {
            "table": lambda: lines(list(fairness_lines(standing, rule, paint))),
            "json": lambda: as_json(fairness_document(standing, rule)),
            "yaml": lambda: as_yaml(fairness_document(standing, rule)),
            "csv": lambda: fairness_csv(standing),
        },
    )


def tell_skipped(skipped: Sequence[str]) -> None:
    """Say which pods are not counted, or not for their time, and why."""
    for each in skipped[:MOST_SKIPPED]:
        tell(f"note: {shown(each)}")
    if len(skipped) > MOST_SKIPPED:
        more = count(len(skipped) - MOST_SKIPPED, "more pod")
        tell(f"note: and {more} that cannot be read, or does not say when it ended")
