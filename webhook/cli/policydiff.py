"""`policy diff`: what a change of policies would do to the pods that run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from webhook.audit.checking import World
from webhook.audit.comparing import compare_all
from webhook.audit.manifests import Entry, Passed, objects_in
from webhook.audit.views import with_labels
from webhook.cli import flags
from webhook.cli.auditing import pods_once, progress, snapshot_of, sources
from webhook.cli.console import CLEAN, FINDINGS, WRONG_INPUT, stop, tell
from webhook.cli.inputs import (
    LIVE,
    Reach,
    labels_of,
    live_cluster,
    live_view,
    moment_of,
    policies_of,
    refuse_reach,
    usage_of,
)
from webhook.cli.output import lines, targets, write
from webhook.policy.compiled import PolicySet
from webhook.report.comparisons import Compared, changes_of, comparison_document, comparison_table
from webhook.report.data import as_json, as_yaml
from webhook.report.results import Checked
from webhook.report.words import shown

FORMATS = ("table", "json", "yaml")
Old = Annotated[str, typer.Argument(metavar="OLD", help="A policy file, or a folder of them; an empty one is none.")]
New = Annotated[str, typer.Argument(metavar="NEW", help="The same after the change.")]
DiffOutput = Annotated[list[str] | None, flags.output("table, json or yaml")]


def diff(
    old: Old,
    new: New,
    cluster: flags.ClusterToJudge = None,
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
    wanted = targets(output, FORMATS)
    before, after = (policies_or_none(path, verbose=verbose) for path in (old, new))
    labels, reach, moment = labels_of(namespace_labels), Reach(kubeconfig, context), moment_of(now)
    seen = usage_of(usage, moment, verbose=verbose)
    if cluster == LIVE:
        with live_cluster(reach) as live:
            world = World(before, live_view(live, labels, verbose=verbose), moment, seen)
            found = _compared(live.pods(), world, after, live.pods_unended)
    else:
        refuse_reach(reach)
        objects = list(objects_in(sources(None, cluster)))
        world = World(before, with_labels(snapshot_of(objects, verbose=verbose).view, labels), moment, seen)
        pods = pods_once(objects)
        found = _compared(pods, world, after, len(pods))
    broken = [each for each in found if isinstance(each, Checked)]
    for each in broken:
        tell(shown(f"{each.place}: {each.reason}"))
    names, changes = list(differing(before, after)), changes_of(each for each in found if isinstance(each, Compared))
    write(
        wanted,
        {
            "table": lambda: lines(list(comparison_table(names, changes))),
            "json": lambda: as_json(comparison_document(names, changes)),
            "yaml": lambda: as_yaml(comparison_document(names, changes)),
        },
    )
    newly_denied = any(change.kind == "denied" for change in changes)
    raise typer.Exit(WRONG_INPUT if broken else FINDINGS if newly_denied else CLEAN)


def policies_or_none(path: str, *, verbose: bool) -> PolicySet:
    """Load policies; none of a folder with nothing in it but hidden files, where others say what is missing."""
    return PolicySet() if _is_empty(Path(path)) else policies_of([path], verbose=verbose)


def _is_empty(folder: Path) -> bool:
    try:
        return folder.is_dir() and all(each.name.startswith(".") for each in folder.iterdir())
    except OSError as error:
        stop(f"{shown(str(folder))}: cannot be read: {error.strerror or error}")


def _compared(
    found: Iterable[Entry | Passed], world: World, changed: PolicySet, length: int
) -> list[Compared | Checked]:
    """What is of note: faults, and pods for which something differs."""
    with progress(found, length) as coming:
        return [each for each in compare_all(coming, world, changed) if _matters(each)]


def _matters(each: Compared | Checked) -> bool:
    return isinstance(each, Checked) or each.differs


def differing(before: PolicySet, after: PolicySet) -> Iterator[str]:
    """The policies that are new, gone, or say something else, one a line, with the rollout where that is other."""
    one = {policy.name: policy.digest for policy in before.policies}
    other = {policy.name: policy.digest for policy in after.policies}
    for name in sorted(one | other):
        if name not in one:
            yield f"{name}: new"
        elif name not in other:
            yield f"{name}: gone"
        elif one[name] != other[name]:
            yield f"{name}: changed{_rollout(before, after, name)}"
    if not one.keys() ^ other.keys() and one == other:
        yield "the policies say the same"


def _rollout(before: PolicySet, after: PolicySet, name: str) -> str:
    one, other = (_percent(policies, name) for policies in (before, after))
    return f", its rollout from {one}% to {other}% of the workloads" if one != other else ""


def _percent(policies: PolicySet, name: str) -> int:
    """The part of the workloads that a policy is enforced for; without a rollout that is all."""
    return next((one.rollout.percent for one in policies.policies if one.name == name and one.rollout), 100)
