"""`audit`: what every pod of a snapshot would become, and what that would save."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from webhook.audit.auditing import audit_all
from webhook.audit.checking import World
from webhook.audit.manifests import Entry, objects_in
from webhook.audit.views import with_labels
from webhook.cache.objects import Found
from webhook.cache.shipped import shipped
from webhook.cache.snapshot import gather
from webhook.cli import flags
from webhook.cli.check import FORMATS, exit_code, renders
from webhook.cli.console import paint_for, stop, tell
from webhook.cli.inputs import (
    LIVE,
    Judged,
    Reach,
    judged_by,
    labels_of,
    live_cluster,
    live_view,
    moment_of,
    nearby,
    policies_in_force,
    policies_of,
    tell_of,
)
from webhook.cli.output import lines, targets, write
from webhook.errors import RightsliceError
from webhook.model.cluster import ClusterView
from webhook.model.modes import Mode
from webhook.report.audits import audit_document, audit_line, by_namespace, trials_line
from webhook.report.data import as_json, as_yaml
from webhook.report.results import Checked, summary_of
from webhook.report.table import notes_line, table
from webhook.report.words import Paint

if TYPE_CHECKING:
    from webhook.audit.cluster import Cluster

AuditPaths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE|DIR|-]",
        help="The snapshot whose pods are judged. Default: the cluster that --cluster names.",
        show_default=False,
    ),
]


def audit(
    paths: AuditPaths = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.Cluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = flags.OUR_NAMESPACE,
    namespace_labels: flags.NamespaceLabels = "",
    now: flags.Now = "",
    output: flags.Output = None,
    fail_on: flags.FailOnFlag = flags.FailOn.DENY,
    no_color: flags.NoColor = False,
    quiet: flags.Quiet = False,
    verbose: flags.Verbose = False,
) -> None:
    """Judge every pod of a cluster as if it were created again now, and add up the GPUs by namespace.

    With --cluster live the cluster is listed page by page, and nothing in it is changed. A snapshot is what
    `kubectl get nodes,namespaces,limitranges,resourcequotas,pods -A -o yaml` prints. Each pod is judged by itself,
    without its node and its status, in the cluster as it stands: its own GPUs still count as in use. Pods that
    have ended are left out.

    GPUS is what a pod holds now, priced by its own node: under the name nvidia.com/gpu a node may give whole
    cards, MIG instances or shares. SAVED counts only pods that would be let in, and get less than they hold.
    ON TRIAL is what right-sizing of mode audit or warn would save beside, were it enforced.

    Exit code: 0 nothing to act on, 1 findings, 2 a file, flag or policy is wrong, 3 the cluster did not answer.
    """
    wanted = targets(output, FORMATS)
    labels, reach = labels_of(namespace_labels), Reach(kubeconfig, context)
    moment = moment_of(now)
    if cluster == LIVE and not paths:
        with live_cluster(reach) as live:
            known = policies_in_force(live, policies, policy_namespace, verbose=verbose)
            world = World(known, live_view(live, labels, verbose=verbose), moment)
            results = [slim(each) for each in audit_all(progress(live), world)]
    else:
        found = list(objects_in(sources(paths, cluster)))
        if cluster:
            by = judged_by(cluster, policies, labels, reach, policy_namespace, verbose=verbose)
        else:
            by = Judged(policies_of(policies, verbose=verbose), view_of(found, labels, verbose=verbose))
        world = World(by.policies, by.view, moment)
        results = list(audit_all(found, world))
    if not world.view.fleet.nodes:
        tell("note: no nodes are known, so nvidia.com/gpu counts as whole cards and nothing is right-sized")
    paint = paint_for(no_color=no_color)
    reports = renders(results, paint, fail_on) | {
        "table": lambda: lines(people(results, paint, quiet=quiet, verbose=verbose)),
        "json": lambda: as_json(audit_document(results)),
        "yaml": lambda: as_yaml(audit_document(results)),
    }
    write(wanted, reports)
    raise typer.Exit(exit_code(results, fail_on))


def progress(cluster: Cluster) -> Iterator[Entry]:
    """The pods of a live cluster; on a terminal with a bar on stderr."""
    with typer.progressbar(
        cluster.pods(), length=cluster.pods_unended, label="pods", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as pods:
        yield from pods


def slim(result: Checked) -> Checked:
    """The result without the object: no report of an audit shows it, and a cluster has many."""
    return msgspec.structs.replace(result, stored={})


def sources(paths: Sequence[str] | None, cluster: str | None) -> list[str]:
    """The files whose pods are judged. Stops the program where none are named."""
    if paths:
        return list(paths)
    if cluster is None:
        stop("which cluster? Name one: --cluster live, a snapshot (rightslice audit FILE), or --cluster demo")
    return [demo_snapshot() if cluster == "demo" else cluster]


def demo_snapshot() -> str:
    """The folder of the shipped snapshot."""
    return nearby(shipped("examples") / "cluster")


def view_of(found: Sequence[object], labels: Mapping[str, str], *, verbose: bool) -> ClusterView:
    """The cluster that these objects describe. Stops the program where they cannot."""
    try:
        snapshot = gather(Found(each.data, each.place) for each in found if isinstance(each, Entry))
    except RightsliceError as error:
        stop(str(error))
    if verbose:
        tell_of("the files given", snapshot)
    return with_labels(snapshot.view, labels)


def people(results: Sequence[Checked], paint: Paint, *, quiet: bool, verbose: bool) -> list[str]:
    """Namespaces, then findings, then the totals; with `quiet` the findings only."""
    found = list(table(results, paint, least=Mode.AUDIT if verbose else Mode.WARN))
    if quiet:
        return found
    notes = notes_line(summary_of(results)) if not verbose else ""
    after = [line for line in (audit_line(results), trials_line(results), notes) if line]
    return [*by_namespace(results, paint), "", *found, *([""] if found else []), *after]
