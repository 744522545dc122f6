"""`fairshare`: show which namespaces have had more GPU time than their share, and which less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from webhook.audit.gpu_time import gpu_time_of_pods
from webhook.audit.object_files import SourceObject, read_objects
from webhook.audit.pod_audit import is_pod
from webhook.cli import flags
from webhook.cli.audit_inputs import audit_sources, build_snapshot, without_duplicate_pods
from webhook.cli.cluster_access import LIVE, ClusterFlags, open_live_cluster, reject_access_flags
from webhook.cli.inputs import (
    choose_fair_share,
    load_cluster_policies,
    load_policy_set,
    note_demo,
    parse_now,
    read_live_view,
    reject_broken_files,
)
from webhook.cli.output import (
    RowFlags,
    document_reports,
    exit_with_error,
    paint_for,
    parse_targets,
    print_note,
    write_reports,
)
from webhook.cli.selection import ObjectSelection, select_objects
from webhook.model.cluster_view import ClusterView
from webhook.policy.fair_share import BY_NAMESPACE, FairShare, GroupShare, rank_fair_shares
from webhook.report.tables import Column, Table, gpu_column
from webhook.report.text import format_percent, pluralize, sanitize

FORMATS = ("table", "wide", "name", "json", "yaml", "csv")
MAX_SKIPPED_NOTES = 10
"""Pods to name that are not counted, or whose time is not."""

ShareOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]
SharePaths = Annotated[
    list[str] | None,
    flags.paths_argument(
        "The cluster as files: what `kubectl get -o yaml` prints. Default: the cluster that --cluster names."
    ),
]
NamespaceSelector = Annotated[str, flags.selector_option("rows of namespaces")]
SharesNamespace = Annotated[
    str | None, flags.namespace_option("Only the row of this namespace; shares are computed among all. Default: all.")
]
PolicyName = Annotated[
    str, typer.Option("--policy", metavar="NAME", help="The policy whose fairShare to use, if several have one.")
]


def fairshare_command(
    called: typer.Context,
    paths: SharePaths = None,
    filename: flags.Filenames = None,
    policies: flags.PoliciesOrLive = None,
    policy: PolicyName = "",
    cluster: flags.ReadCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    namespace: SharesNamespace = None,
    all_namespaces: flags.AllNamespaces = False,
    selector: NamespaceSelector = "",
    now: flags.Now = "",
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: ShareOutput = None,
    no_color: flags.NoColor = False,
) -> None:
    """Compare allocated GPU time with fair shares.

    Shows which namespaces, or values of a pod label, have had more than their share, and which less.

    GPU time counts the GPUs that are allocated to pods, used or not, in thousandths of a card, from their start to
    their end; older time counts less. Only pods that still exist are counted, including ended ones. No pod is denied or
    moved.

    Exit code: 0, 2 invalid input, 3 the cluster did not answer.
    """
    targets, moment, access = parse_targets(output, FORMATS), parse_now(now), ClusterFlags(kubeconfig, context)
    selection = select_objects(namespace, all_namespaces, selector)
    files = flags.join_paths(paths, filename)
    cluster = flags.files_or_cluster(called, files, cluster)
    skipped: list[str] = []
    if cluster == LIVE:
        with open_live_cluster(access) as live:
            rule = choose_fair_share(load_cluster_policies(live, policies, policy_namespace), policy)
            view = read_live_view(live, {})
            pods = (source.data for source in live.pods(ended=True))
            periods = list(gpu_time_of_pods(pods, view.fleet, rule.by, skipped.append, view.all_claims))
    else:
        reject_access_flags(access)
        note_demo(cluster)
        rule = choose_fair_share(load_policy_set(policies), policy)
        documents = list(read_objects(audit_sources(files, cluster)))
        reject_broken_files(documents)
        sources = (each for each in without_duplicate_pods(documents) if isinstance(each, SourceObject))
        view = build_snapshot("", documents, verbose=False).view
        pods = (source.data for source in sources if is_pod(source.data))
        periods = list(gpu_time_of_pods(pods, view.fleet, rule.by, skipped.append, view.all_claims))
    note_skipped_pods(skipped)
    rows, is_namespace = RowFlags(sort_by, no_headers), rule.by == BY_NAMESPACE
    table = fair_share_columns("Namespace" if is_namespace else "Queue")
    shares = rows.sort(table, rank_fair_shares(periods, rule, moment.timestamp()))
    if selection.is_partial and not is_namespace:
        exit_with_error(f"-n and -l: select namespaces, found a fairShare by {sanitize(rule.by)}. Leave them out")
    shares = [row for row in shares if not is_namespace or _selects_namespace(selection, row.group, view)]
    if selection.is_partial and not shares:
        selection.note_nothing("GPU time", view.all_namespaces())
    reports = {
        **rows.reports(
            table,
            shares,
            lambda row: f"namespace/{row.group}" if is_namespace else row.group,
            paint_for(no_color=no_color),
            around=lambda lines: [fair_share_line(rule), *lines],
        ),
        **document_reports(lambda: fair_share_document(shares, rule)),
        "csv": lambda: table.to_csv(shares),
    }
    write_reports(targets, reports)


def _selects_namespace(selection: ObjectSelection, name: str, view: ClusterView) -> bool:
    return selection.namespace in ("", name) and selection.selects_labels(dict(view.labels_of(name)))


def note_skipped_pods(skipped: Sequence[str]) -> None:
    """Print the pods that are not counted, or whose time is not, and the reasons."""
    for reason in skipped[:MAX_SKIPPED_NOTES]:
        print_note(f"note: {sanitize(reason)}")
    if len(skipped) > MAX_SKIPPED_NOTES:
        more = pluralize(len(skipped) - MAX_SKIPPED_NOTES, "more pod")
        print_note(f"note: and {more} that cannot be read or have no end time")


def fair_share_columns(header: str = "Namespace") -> Table[GroupShare]:
    """Return the columns; the header is that of the groups."""
    return Table(
        (
            Column("name", lambda row: row.group, header, empty="(none)"),
            Column(
                "gpuMilliHours", lambda row: row.milli_hours, "GPU-hours", lambda row: f"{row.milli_hours / 1000:.1f}"
            ),
            Column(
                "allocatedTimeMilli",
                lambda row: row.allocated,
                "Allocated time",
                lambda row: format_percent(row.allocated),
            ),
            Column("entitledMilli", lambda row: row.entitled, "Share", lambda row: format_percent(row.entitled)),
            Column(
                "excessMilli",
                lambda row: row.excess_share,
                "Over",
                lambda row: f"{'+' if row.excess_share > 0 else ''}{format_percent(row.excess_share)}",
            ),
            gpu_column("gpuMilliAllocated", lambda row: row.holds_milli, "Allocated"),
        )
    )


def fair_share_line(rule: FairShare) -> str:
    """Return the rule that the rows follow."""
    shares = (
        f"Shares of policy {sanitize(rule.policy)}, per" if rule.policy else "No policy has fairShare: equal shares per"
    )
    return f"{shares} {sanitize(rule.by)}; half-life {rule.half_life_hours} h"


def fair_share_document(groups: Sequence[GroupShare], rule: FairShare) -> dict[str, Any]:
    """Return the rule and the groups as plain data, in thousandths."""
    return {
        "policy": rule.policy,
        "by": rule.by,
        "halfLifeHours": rule.half_life_hours,
        "groups": list(map(fair_share_columns().to_document, groups)),
    }
