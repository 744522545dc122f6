"""`explain_command`: what a code means, or what would become of an object in a file, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

import typer

from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import Json, SourceObject, read_objects
from webhook.audit.pod_audit import audit_pod, evaluate_for_explain, find_pod, without_right_sizing
from webhook.cli import flags
from webhook.cli.commands.check import exit_code_of_checks
from webhook.cli.inputs import (
    LIVE,
    ClusterFlags,
    load_cluster_policies,
    open_live_cluster,
    parse_labels,
    parse_now,
    read_live_view,
    read_policies_and_view,
    read_usage_view,
)
from webhook.cli.output import exit_with_error, paint_for, print_result
from webhook.errors import ApiError
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.codes import CODES
from webhook.report.code_pages import closest_code, code_list, code_page, codes_markdown
from webhook.report.explain import KnownUids, event_lines, explain_lines
from webhook.report.text import sanitize
from webhook.well_known import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader

CodeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CODE|POD",
        help="A finding code, for example GPU-L102; with --cluster the name of a pod there.",
        show_default=False,
    ),
]
ExplainedFiles = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Explain the objects of these files."),
]
AllCodes = Annotated[bool, typer.Option("--all", help="Every code's page, as docs/codes.md has them.")]


def explain_command(
    code: CodeArgument = None,
    file: ExplainedFiles = None,
    every: AllCodes = False,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.Cluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = SYSTEM_NAMESPACE,
    namespace: flags.NamespaceFlag = "default",
    namespace_labels: flags.NamespaceLabels = None,
    usage: flags.Usage = None,
    now: flags.Now = "",
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Explain a finding code, or with -f what would become of objects, and why; or so a pod of a cluster.

    Exit code: 0, 2 where the code is not known or a file cannot be judged, 3 where the cluster did not answer.
    """
    if every:
        print_result(codes_markdown())
        return
    names_pod = cluster is not None and code is not None and code.upper() not in CODES
    if not file and not names_pod:
        print_result(code_page_lines(code))
        return
    if file and code is not None:
        exit_with_error(
            f"explain takes a code or -f FILE, found both. For the file: rightslice explain -f {sanitize(file[0])}"
        )
    reach, labels, moment = ClusterFlags(kubeconfig, context), parse_labels(namespace_labels), parse_now(now)
    seen = read_usage_view(usage, moment, verbose=verbose)
    events: list[str] = []
    if names_pod and cluster == LIVE:
        with open_live_cluster(reach) as live:
            entry = read_live_pod(live, namespace, str(code).removeprefix("pod/"))
            events = pod_event_lines(live, entry)
            known = load_cluster_policies(live, policies, policy_namespace, verbose=verbose)
            world = EvaluationContext(known, read_live_view(live, labels, verbose=verbose), moment, seen, namespace)
        results = [audit_pod(entry, world, without_right_sizing(world.policies))]
    else:
        by = read_policies_and_view(cluster, policies, labels, reach, policy_namespace, verbose=verbose)
        world = EvaluationContext(by.policies, by.view, moment, seen, namespace)
        if names_pod:
            entry = read_snapshot_pod(str(cluster), namespace, str(code).removeprefix("pod/"))
            results = [audit_pod(entry, world, without_right_sizing(world.policies))]
        else:
            results = list(evaluate_for_explain(read_objects(file or []), world))
    paint = paint_for(no_color=no_color)
    for i, result in enumerate(results):
        print_result([*([""] if i else []), *explain_lines(result, paint, events)])
    raise typer.Exit(exit_code_of_checks(results, flags.FailOn.NEVER))


def read_live_pod(cluster: ClusterReader, namespace: str, name: str) -> SourceObject:
    """A pod of a live cluster. Stops the program where there is none of this name."""
    try:
        return cluster.pod(namespace, name)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        where = f"in namespace {sanitize(namespace)!r} of this cluster"
        exit_with_error(f"no pod is called {sanitize(name)!r} {where}. Name another namespace with -n")


def read_snapshot_pod(cluster: str, namespace: str, name: str) -> SourceObject:
    """A pod of a snapshot. Stops the program where there is none of this name."""
    from webhook.cli.audit_inputs import audit_sources

    entry = find_pod(list(read_objects(audit_sources(None, cluster))), namespace, name)
    if entry is None:
        where = f"in namespace {sanitize(namespace)!r} of {sanitize(cluster)}"
        also = "; nor is it a finding code, which rightslice explain lists"
        exit_with_error(f"no pod is called {sanitize(name)!r} {where}{also}. Name another namespace with -n")
    return entry


def pod_event_lines(cluster: ClusterReader, pod: SourceObject) -> list[str]:
    """What Events say about a pod and its controller; that they may not be read, where they may not."""
    metadata = pod.data["metadata"]
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    names = [metadata["name"], *(each["name"] for each in owners)]
    try:
        return list(event_lines(cluster.events(metadata["namespace"], names), involved_uids(metadata, owners)))
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return [f"{'Events':<10}not known: {sanitize(str(error))}"]


def involved_uids(metadata: Json, owners: Iterable[Json]) -> KnownUids:
    """What a pod and its controllers go by in Events. Of a static pod the kubelet speaks by the digest of its file."""
    own = {str(metadata.get("uid", "")), str((metadata.get("annotations") or {}).get(MIRROR_ANNOTATION, ""))} - {""}
    return {("Pod", str(metadata["name"])): own} | {(each["kind"], each["name"]): {each["uid"]} for each in owners}


def code_page_lines(code: str | None) -> list[str]:
    """The page of a code; the list of all where none is named. Stops the program where there is no such code."""
    if code is None:
        return code_list()
    if code.upper() not in CODES:
        meant = closest_code(code)
        hint = f"Did you mean {meant}?" if meant else "rightslice explain lists them."
        ways = "A file is explained with -f FILE, a pod of a cluster with --cluster live or a snapshot."
        exit_with_error(f"{sanitize(code)!r} is not a finding code. {hint} {ways}")
    return code_page(code.upper())
