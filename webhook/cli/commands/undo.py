"""`undo_command`: what a pod asked for before Rightslice changed it."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.audit.evaluate import invalid_pod
from webhook.audit.object_files import SkippedDocument, SourceObject, read_objects
from webhook.audit.pod_audit import is_pod
from webhook.cli import flags
from webhook.cli.commands.explain import read_live_pod
from webhook.cli.inputs import ClusterFlags, open_live_cluster, report_broken_files
from webhook.cli.output import CLEAN, FINDINGS, WRONG_INPUT, exit_with_error, print_note, print_result
from webhook.report.undo import UnknownOriginal, original_yaml

RECREATE_HINT = (
    "Resources of a pod that exists cannot be put back. Write these into its manifest, or into the template of its "
    "workload, and create it again; the annotation keeps Rightslice from shrinking it."
)
PodName = Annotated[str | None, typer.Argument(metavar="POD", help="A pod of the cluster.", show_default=False)]
UndoFiles = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Pods as kubectl get -o yaml has them."),
]


def undo_command(
    pod: PodName = None,
    file: UndoFiles = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: flags.NamespaceFlag = "default",
) -> None:
    """Print as YAML what a pod asked for before Rightslice changed it. Nothing is changed.

    Exit code: 0 printed, 1 Rightslice changed the GPUs of none, or what one asked for is not known, 2 there is no such
    pod or file, 3 the cluster did not answer.
    """
    if (pod is None) == (not file):
        exit_with_error("undo takes a pod of the cluster or -f FILE: rightslice undo notebook-0 -n team-vision")
    if pod is not None:
        with open_live_cluster(ClusterFlags(kubeconfig, context)) as cluster:
            entries = [read_live_pod(cluster, namespace, pod.removeprefix("pod/"))]
        broken = False
    else:
        found = list(map(as_readable_pod, read_objects(file or [])))
        entries = [each for each in found if isinstance(each, SourceObject) and is_pod(each.data)]
        broken = report_broken_files(found)
    told = [each for entry in entries if (each := original_yaml(entry.data))]
    texts = [each for each in told if isinstance(each, str)]
    unknown = [each for each in told if isinstance(each, UnknownOriginal)]
    print_result("---\n".join(texts))
    for each in unknown:
        print_note(str(each))
    if texts or not unknown:
        print_note(
            RECREATE_HINT
            if texts
            else "Rightslice changed the GPUs of none of these pods, or they carry no record of it."
        )
    raise typer.Exit(WRONG_INPUT if broken else FINDINGS if unknown or not texts else CLEAN)


def as_readable_pod(found: SourceObject | SkippedDocument) -> SourceObject | SkippedDocument:
    """What was found; where it is a Pod that cannot be read as one, that as a fault."""
    fault = invalid_pod(found) if isinstance(found, SourceObject) and is_pod(found.data) else None
    return fault or found
