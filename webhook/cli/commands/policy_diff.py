"""`policy diff`: what a change of policies would do to the pods that run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from webhook.audit.adjusted_view import with_namespace_labels
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject, read_objects
from webhook.audit.policy_diff import compare_policies
from webhook.cli import flags
from webhook.cli.audit_inputs import audit_sources, build_snapshot, show_progress, without_duplicate_pods
from webhook.cli.inputs import (
    LIVE,
    ClusterFlags,
    load_policy_set,
    open_live_cluster,
    parse_labels,
    parse_now,
    read_live_view,
    read_usage_view,
    reject_access_flags,
)
from webhook.cli.output import (
    CLEAN,
    FINDINGS,
    WRONG_INPUT,
    exit_with_error,
    join_lines,
    parse_targets,
    print_note,
    write_reports,
)
from webhook.policy.policy_set import PolicySet
from webhook.report.policy_diff import PodPolicyDiff, policy_diff_document, policy_diff_table, policy_diffs_by_workload
from webhook.report.results import CheckResult
from webhook.report.serialization import json_text, yaml_text
from webhook.report.text import sanitize

FORMATS = ("table", "json", "yaml")
OldPolicies = Annotated[
    str, typer.Argument(metavar="OLD", help="A policy file, or a folder of them; an empty one is none.")
]
NewPolicies = Annotated[str, typer.Argument(metavar="NEW", help="The same after the change.")]
DiffOutput = Annotated[list[str] | None, flags.output_option("table, json or yaml")]


def diff_policies(
    old: OldPolicies,
    new: NewPolicies,
    cluster: flags.AuditedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    usage: flags.Usage = None,
    namespace_labels: flags.NamespaceLabels = None,
    now: flags.Now = "",
    output: DiffOutput = None,
    verbose: flags.Verbose = False,
) -> None:
    """Show which pods of a cluster a change of policies would newly deny, newly allow, patch anew, or newly warn.

    Each pod is judged as `audit` does, once by the old policies and once by the new ones.

    Exit code: 0 nobody is newly denied, 1 somebody is, 2 a file, flag or policy is wrong, 3 the cluster did not answer.
    """
    wanted = parse_targets(output, FORMATS)
    before, after = (load_policies_or_empty(path, verbose=verbose) for path in (old, new))
    labels, reach, moment = parse_labels(namespace_labels), ClusterFlags(kubeconfig, context), parse_now(now)
    seen = read_usage_view(usage, moment, verbose=verbose)
    if cluster == LIVE:
        with open_live_cluster(reach) as live:
            world = EvaluationContext(before, read_live_view(live, labels, verbose=verbose), moment, seen)
            found = _relevant_comparisons(live.pods(), world, after, live.active_pods)
    else:
        reject_access_flags(reach)
        objects = list(read_objects(audit_sources(None, cluster)))
        world = EvaluationContext(
            before, with_namespace_labels(build_snapshot(objects, verbose=verbose).view, labels), moment, seen
        )
        pods = without_duplicate_pods(objects)
        found = _relevant_comparisons(pods, world, after, len(pods))
    broken = [each for each in found if isinstance(each, CheckResult)]
    for each in broken:
        print_note(sanitize(f"{each.place}: {each.reason}"))
    names, changes = (
        list(policy_change_lines(before, after)),
        policy_diffs_by_workload(each for each in found if isinstance(each, PodPolicyDiff)),
    )
    write_reports(
        wanted,
        {
            "table": lambda: join_lines(list(policy_diff_table(names, changes))),
            "json": lambda: json_text(policy_diff_document(names, changes)),
            "yaml": lambda: yaml_text(policy_diff_document(names, changes)),
        },
    )
    newly_denied = any(change.kind == "denied" for change in changes)
    raise typer.Exit(WRONG_INPUT if broken else FINDINGS if newly_denied else CLEAN)


def load_policies_or_empty(path: str, *, verbose: bool) -> PolicySet:
    """Load policies; none of a folder with nothing in it but hidden files, where others say what is missing."""
    return PolicySet() if _is_empty_folder(Path(path)) else load_policy_set([path], verbose=verbose)


def _is_empty_folder(folder: Path) -> bool:
    try:
        return folder.is_dir() and all(each.name.startswith(".") for each in folder.iterdir())
    except OSError as error:
        exit_with_error(f"{sanitize(str(folder))}: cannot be read: {error.strerror or error}")


def _relevant_comparisons(
    found: Iterable[SourceObject | SkippedDocument], world: EvaluationContext, changed: PolicySet, length: int
) -> list[PodPolicyDiff | CheckResult]:
    """What is of note: faults, and pods for which something differs."""
    with show_progress(found, length) as coming:
        return [each for each in compare_policies(coming, world, changed) if _is_relevant_comparison(each)]


def _is_relevant_comparison(each: PodPolicyDiff | CheckResult) -> bool:
    return isinstance(each, CheckResult) or each.differs


def policy_change_lines(before: PolicySet, after: PolicySet) -> Iterator[str]:
    """The policies that are new, gone, or say something else, one a line, with the rollout where that is other."""
    one = {policy.name: policy.digest for policy in before.policies}
    other = {policy.name: policy.digest for policy in after.policies}
    for name in sorted(one | other):
        if name not in one:
            yield f"{name}: new"
        elif name not in other:
            yield f"{name}: gone"
        elif one[name] != other[name]:
            yield f"{name}: changed{_rollout_change(before, after, name)}"
    if not one.keys() ^ other.keys() and one == other:
        yield "the policies say the same"


def _rollout_change(before: PolicySet, after: PolicySet, name: str) -> str:
    one, other = (_rollout_percent(policies, name) for policies in (before, after))
    return f", its rollout from {one}% to {other}% of the workloads" if one != other else ""


def _rollout_percent(policies: PolicySet, name: str) -> int:
    """The part of the workloads that a policy is enforced for; without a rollout that is all."""
    return next((one.rollout.percent for one in policies.policies if one.name == name and one.rollout), 100)
