"""`undo`: what a pod asked for before Rightslice changed it."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.audit.auditing import is_pod
from webhook.audit.checking import not_a_pod
from webhook.audit.manifests import Entry, Passed, objects_in
from webhook.cli import flags
from webhook.cli.console import CLEAN, FINDINGS, WRONG_INPUT, say, stop, tell
from webhook.cli.explain import pod_of
from webhook.cli.faults import tell_faults
from webhook.cli.inputs import Reach, live_cluster
from webhook.report.undone import Unknown, undone

HOW = (
    "Resources of a pod that exists cannot be put back. Write these into its manifest, or into the template of its "
    "workload, and create it again; the annotation keeps Rightslice from shrinking it."
)
Name = Annotated[str | None, typer.Argument(metavar="POD", help="A pod of the cluster.", show_default=False)]
File = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Pods as kubectl get -o yaml has them."),
]


def undo(
    pod: Name = None,
    file: File = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: flags.NamespaceFlag = "default",
) -> None:
    """Print as YAML what a pod asked for before Rightslice changed it. Nothing is changed.

    Exit code: 0 printed, 1 Rightslice changed the GPUs of none, or what one asked for is not known, 2 there is no such
    pod or file, 3 the cluster did not answer.
    """
    if (pod is None) == (not file):
        stop("undo takes a pod of the cluster or -f FILE: rightslice undo notebook-0 -n team-vision")
    if pod is not None:
        with live_cluster(Reach(kubeconfig, context)) as cluster:
            entries = [pod_of(cluster, namespace, pod.removeprefix("pod/"))]
        broken = False
    else:
        found = list(map(read, objects_in(file or [])))
        entries = [each for each in found if isinstance(each, Entry) and is_pod(each.data)]
        broken = tell_faults(found)
    told = [each for entry in entries if (each := undone(entry.data))]
    texts = [each for each in told if isinstance(each, str)]
    unknown = [each for each in told if isinstance(each, Unknown)]
    say("---\n".join(texts))
    for each in unknown:
        tell(str(each))
    if texts or not unknown:
        tell(HOW if texts else "Rightslice changed the GPUs of none of these pods, or they carry no record of it.")
    raise typer.Exit(WRONG_INPUT if broken else FINDINGS if unknown or not texts else CLEAN)


def read(found: Entry | Passed) -> Entry | Passed:
    """What was found; where it is a Pod that cannot be read as one, that as a fault."""
    fault = not_a_pod(found) if isinstance(found, Entry) and is_pod(found.data) else None
    return fault or found
