"""`policy diff`: show the effect of a policy change on the pods of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from webhook.audit.adjusted_view import with_namespace_labels
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject, read_objects
from webhook.audit.policy_diff import (
    PodPolicyDiff,
    compare_policies,
    policy_change_lines,
    policy_diff_document,
    policy_diff_table,
    policy_diffs_by_workload,
)
from webhook.cli import flags
from webhook.cli.audit_inputs import audit_sources, build_snapshot, without_duplicate_pods
from webhook.cli.cluster_access import LIVE, ClusterFlags, open_live_cluster, reject_access_flags
from webhook.cli.inputs import load_policy_set, parse_labels, parse_now, read_live_view, read_recorded_usage
from webhook.cli.output import (
    EXIT_FINDINGS,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    document_reports,
    exit_with_error,
    join_lines,
    parse_targets,
    print_note,
    show_progress,
    text_reports,
    write_reports,
)
from webhook.cli.selection import ObjectSelection, select_objects
from webhook.cli.usage_records import estimate_view
from webhook.errors import read_problem
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.report.results import CheckResult
from webhook.report.text import sanitize

FORMATS = ("table", "wide", "name", "json", "yaml")
OldPolicies = Annotated[
    str, typer.Argument(metavar="OLD", help="A policy file or folder; an empty folder means no policies.")
]
NewPolicies = Annotated[str, typer.Argument(metavar="NEW", help="The policies after the change.")]
DiffOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]


def diff_policies(
    called: typer.Context,
    old: OldPolicies,
    new: NewPolicies,
    filename: flags.ClusterFiles = None,
    cluster: flags.ReadCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    usage: flags.Usage = None,
    namespace: flags.OnlyNamespace = None,
    all_namespaces: flags.AllNamespaces = False,
    selector: flags.Selector = "",
    namespace_labels: flags.NamespaceLabels = None,
    now: flags.Now = "",
    output: DiffOutput = None,
    verbose: flags.Verbose = False,
) -> None:
    """Show what a policy change would do to a cluster's pods.

    Shows which pods it would newly deny, newly allow, patch differently, or newly warn about.

    Each pod is evaluated as in `audit`, once with the old policies and once with the new ones.

    Exit code: 0 no pod is newly denied, 1 some are, 2 invalid input, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    before, after = (load_policies_or_empty(path, verbose=verbose) for path in (old, new))
    labels, access, moment = parse_labels(namespace_labels), ClusterFlags(kubeconfig, context), parse_now(now)
    selection = select_objects(namespace, all_namespaces, selector)
    files = list(filename or ())
    cluster = flags.files_or_cluster(called, files, cluster)
    record = read_recorded_usage(usage, cluster, moment)
    observed = estimate_view(record, verbose=verbose) if record else UsageView()
    if cluster == LIVE:
        with open_live_cluster(access) as live:
            view = read_live_view(live, labels, verbose=verbose)
            evaluation = EvaluationContext(before, view, moment, observed)
            diffs = _relevant_diffs(live.pods(), selection, evaluation, after, live.active_pods)
    else:
        reject_access_flags(access)
        documents = list(read_objects(audit_sources(files, cluster)))
        name = ", ".join(files) or str(cluster)
        view = with_namespace_labels(build_snapshot(name, documents, verbose=verbose).view, labels)
        pods = list(without_duplicate_pods(documents))
        evaluation = EvaluationContext(before, view, moment, observed)
        diffs = _relevant_diffs(pods, selection, evaluation, after, len(pods))
    broken = [each for each in diffs if isinstance(each, CheckResult)]
    for each in broken:
        print_note(sanitize(f"{each.location}: {each.reason}"))
    names = list(policy_change_lines(before, after))
    changes = policy_diffs_by_workload(each for each in diffs if isinstance(each, PodPolicyDiff))
    reports = {
        **text_reports(lambda: policy_diff_table(names, changes)),
        "name": lambda: join_lines(dict.fromkeys(sanitize(change.object_name) for change in changes)),
        **document_reports(lambda: policy_diff_document(names, changes)),
    }
    write_reports(targets, reports)
    newly_denied = any(change.kind == "denied" for change in changes)
    raise typer.Exit(EXIT_INVALID_INPUT if broken else EXIT_FINDINGS if newly_denied else EXIT_OK)


def load_policies_or_empty(path: str, *, verbose: bool) -> PolicySet:
    """Load policies; an empty folder, or one with only hidden files, means none."""
    folder = Path(path)
    try:
        empty = folder.is_dir() and all(each.name.startswith(".") for each in folder.iterdir())
    except OSError as error:
        exit_with_error(f"{sanitize(path)}: {read_problem(error)}")
    return PolicySet() if empty else load_policy_set([path], verbose=verbose)


def _relevant_diffs(
    documents: Iterable[SourceObject | SkippedDocument],
    selection: ObjectSelection,
    evaluation: EvaluationContext,
    after: PolicySet,
    length: int,
) -> list[PodPolicyDiff | CheckResult]:
    """Return the selected pods with a difference, and the documents that cannot be read."""
    relevant, has_pods = [], False
    with show_progress(documents, length) as shown:
        for each in compare_policies(selection.choose(shown), evaluation, after):
            has_pods = True
            if isinstance(each, CheckResult) or each.differs:
                relevant.append(each)
    if selection.is_partial and not has_pods:
        selection.note_nothing("active pods", evaluation.view.all_namespaces())
    return relevant
