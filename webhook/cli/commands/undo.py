"""`undo`: print the resources that a pod requested before Rightslice changed it."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.audit.evaluate import DEFAULT_NAMESPACE, invalid_pod
from webhook.audit.object_files import SkippedDocument, SourceObject, read_objects
from webhook.audit.pod_audit import is_pod
from webhook.cli import flags
from webhook.cli.cluster_access import ClusterFlags, open_live_cluster
from webhook.cli.commands.explain import read_live_pod
from webhook.cli.inputs import report_broken_files
from webhook.cli.output import (
    EXIT_FINDINGS,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    exit_with_error,
    print_note,
    print_result,
)
from webhook.report.undo import UnknownOriginal, original_yaml

RECREATE_HINT = (
    "Resources of a running pod cannot be restored. Copy these into its manifest, or the template of its workload, "
    "and create it again; the annotation keeps Rightslice from right-sizing it."
)
NOTHING_TO_UNDO = "None of these pods has a record that Rightslice changed its GPUs."
PodName = Annotated[str | None, typer.Argument(metavar="POD", help="A pod of the cluster.", show_default=False)]
UndoFiles = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Pods, as written by kubectl get -o yaml."),
]


def undo_command(
    pod: PodName = None,
    file: UndoFiles = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: flags.NamespaceFlag = DEFAULT_NAMESPACE,
) -> None:
    """Print the original resources of a changed pod.

    The output is YAML for its manifest. Nothing is changed in the cluster.

    Exit code: 0 printed, 1 Rightslice changed no GPUs or the original request is unknown, 2 invalid input or no such
    pod, 3 the cluster did not answer.
    """
    if (pod is None) == (not file):
        exit_with_error("undo takes a pod of the cluster or -f FILE: rightslice undo notebook-0 -n team-vision")
    if pod is not None:
        with open_live_cluster(ClusterFlags(kubeconfig, context)) as cluster:
            sources = [read_live_pod(cluster, namespace, pod.removeprefix("pod/"))]
        broken = False
    else:
        documents = list(map(check_pod_document, read_objects(file or [])))
        sources = [each for each in documents if isinstance(each, SourceObject) and is_pod(each.data)]
        broken = report_broken_files(documents)
    originals = [original for source in sources if (original := original_yaml(source.data))]
    texts = [each for each in originals if isinstance(each, str)]
    unknown = [each for each in originals if isinstance(each, UnknownOriginal)]
    print_result("---\n".join(texts))
    for each in unknown:
        print_note(str(each))
    if texts or not unknown:
        print_note(RECREATE_HINT if texts else NOTHING_TO_UNDO)
    raise typer.Exit(EXIT_INVALID_INPUT if broken else EXIT_FINDINGS if unknown or not texts else EXIT_OK)


def check_pod_document(document: SourceObject | SkippedDocument) -> SourceObject | SkippedDocument:
    """Return the document, or the reason why it is a Pod that cannot be read."""
    error = invalid_pod(document) if isinstance(document, SourceObject) and is_pod(document.data) else None
    return error or document
