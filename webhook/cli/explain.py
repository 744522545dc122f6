"""`explain`: what a code means, or what would become of an object in a file, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

import typer

from webhook.audit.auditing import audit_pod, explain_all, pod_among, without_sizing
from webhook.audit.checking import World
from webhook.audit.manifests import Entry, Json, objects_in
from webhook.cli import flags
from webhook.cli.check import exit_code
from webhook.cli.console import paint_for, say, stop
from webhook.cli.inputs import (
    LIVE,
    Reach,
    judged_by,
    labels_of,
    live_cluster,
    live_view,
    moment_of,
    policies_in_force,
    usage_of,
)
from webhook.errors import ApiError
from webhook.model.codes import CODES
from webhook.model.records import MIRROR
from webhook.report.codes_page import code_list, code_page, codes_page, nearest
from webhook.report.events import Known, event_lines
from webhook.report.explained import explained
from webhook.report.words import shown

if TYPE_CHECKING:
    from webhook.audit.cluster import Cluster

CodeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CODE|POD",
        help="A finding code, for example GPU-L102; with --cluster the name of a pod there.",
        show_default=False,
    ),
]
File = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Explain the objects of these files."),
]
All = Annotated[bool, typer.Option("--all", help="Every code's page, as docs/codes.md has them.")]


def explain(
    code: CodeArgument = None,
    file: File = None,
    every: All = False,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.Cluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = flags.OUR_NAMESPACE,
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
        say(codes_page())
        return
    names_pod = cluster is not None and code is not None and code.upper() not in CODES
    if not file and not names_pod:
        say(page_of(code))
        return
    if file and code is not None:
        stop(f"explain takes a code or -f FILE, found both. For the file: rightslice explain -f {shown(file[0])}")
    reach, labels, moment = Reach(kubeconfig, context), labels_of(namespace_labels), moment_of(now)
    seen = usage_of(usage, moment, verbose=verbose)
    events: list[str] = []
    if names_pod and cluster == LIVE:
        with live_cluster(reach) as live:
            entry = pod_of(live, namespace, str(code).removeprefix("pod/"))
            events = events_of(live, entry)
            known = policies_in_force(live, policies, policy_namespace, verbose=verbose)
            world = World(known, live_view(live, labels, verbose=verbose), moment, seen, namespace)
        results = [audit_pod(entry, world, without_sizing(world.policies))]
    else:
        by = judged_by(cluster, policies, labels, reach, policy_namespace, verbose=verbose)
        world = World(by.policies, by.view, moment, seen, namespace)
        if names_pod:
            entry = pod_in(str(cluster), namespace, str(code).removeprefix("pod/"))
            results = [audit_pod(entry, world, without_sizing(world.policies))]
        else:
            results = list(explain_all(objects_in(file or []), world))
    paint = paint_for(no_color=no_color)
    for i, result in enumerate(results):
        say([*([""] if i else []), *explained(result, paint, events)])
    raise typer.Exit(exit_code(results, flags.FailOn.NEVER))


def pod_of(cluster: Cluster, namespace: str, name: str) -> Entry:
    """A pod of a live cluster. Stops the program where there is none of this name."""
    try:
        return cluster.pod(namespace, name)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        where = f"in namespace {shown(namespace)!r} of this cluster"
        stop(f"no pod is called {shown(name)!r} {where}. Name another namespace with -n")


def pod_in(cluster: str, namespace: str, name: str) -> Entry:
    """A pod of a snapshot. Stops the program where there is none of this name."""
    from webhook.cli.auditing import sources  # reports take their time: only who needs them pays

    entry = pod_among(list(objects_in(sources(None, cluster))), namespace, name)
    if entry is None:
        where = f"in namespace {shown(namespace)!r} of {shown(cluster)}"
        also = "; nor is it a finding code, which rightslice explain lists"
        stop(f"no pod is called {shown(name)!r} {where}{also}. Name another namespace with -n")
    return entry


def events_of(cluster: Cluster, pod: Entry) -> list[str]:
    """What Events say about a pod and its controller; that they may not be read, where they may not."""
    metadata = pod.data["metadata"]
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    names = [metadata["name"], *(each["name"] for each in owners)]
    try:
        return list(event_lines(cluster.events(metadata["namespace"], names), uids_of(metadata, owners)))
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return [f"{'Events':<10}not known: {shown(str(error))}"]


def uids_of(metadata: Json, owners: Iterable[Json]) -> Known:
    """What a pod and its controllers go by in Events. Of a static pod the kubelet speaks by the digest of its file."""
    own = {str(metadata.get("uid", "")), str((metadata.get("annotations") or {}).get(MIRROR, ""))} - {""}
    return {("Pod", str(metadata["name"])): own} | {(each["kind"], each["name"]): {each["uid"]} for each in owners}


def page_of(code: str | None) -> list[str]:
    """The page of a code; the list of all where none is named. Stops the program where there is no such code."""
    if code is None:
        return code_list()
    if code.upper() not in CODES:
        meant = nearest(code)
        hint = f"Did you mean {meant}?" if meant else "rightslice explain lists them."
        ways = "A file is explained with -f FILE, a pod of a cluster with --cluster live or a snapshot."
        stop(f"{shown(code)!r} is not a finding code. {hint} {ways}")
    return code_page(code.upper())
