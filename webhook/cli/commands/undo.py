"""`undo`: print the resources that a pod requested before Rightslice changed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer

from webhook.audit.evaluate import invalid_pod
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
from webhook.model.annotations import (
    DECISION_ANNOTATION,
    KEEP_ANNOTATION,
    ORIGINAL_ANNOTATION,
    DecisionRecord,
    FractionRecord,
    parse_decision_record,
    parse_original_resources,
)
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU
from webhook.model.pods import DEFAULT_NAMESPACE, ResourceRequirements, without_nulls
from webhook.model.preallocation import fraction_argument
from webhook.model.quantity import parse_whole_number
from webhook.report.serialization import yaml_text
from webhook.report.text import sanitize

CONTAINER_LISTS = ("containers", "initContainers")
RECREATE_HINT = (
    "Resources of a running pod cannot be restored. Copy these into its manifest, or the template of its workload, "
    "and create it again; the annotation keeps Rightslice from right-sizing it."
)

NOTHING_TO_UNDO = "None of these pods has a record that Rightslice changed its GPUs."

PodName = Annotated[str | None, typer.Argument(metavar="POD", help="A pod of the cluster.", show_default=False)]

UndoFiles = Annotated[list[str] | None, flags.filename_option("Pods, as written by kubectl get -o yaml.")]


def undo_command(
    pod: PodName = None,
    file: UndoFiles = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: flags.PodNamespace = DEFAULT_NAMESPACE,
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


class UnknownOriginal(NamedTuple):
    """A right-sized pod whose original request is unknown."""

    name: str
    offer: str

    def __str__(self) -> str:
        reason = f"{ORIGINAL_ANNOTATION} is missing or was changed"
        return f"Pod {self.name} was right-sized to {self.offer}; its original request is unknown: {reason}."


def check_pod_document(document: SourceObject | SkippedDocument) -> SourceObject | SkippedDocument:
    """Return the document, or the reason why it is a Pod that cannot be read."""
    error = invalid_pod(document) if isinstance(document, SourceObject) and is_pod(document.data) else None
    return error or document


def original_yaml(pod: Mapping[str, Any]) -> str | UnknownOriginal:
    """Return the changed part of a pod as it was; "" if there is no record that its GPUs were changed."""
    pod = without_nulls(pod)
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    record = parse_decision_record(str(annotations.get(DECISION_ANNOTATION, "")))
    if record is None or not record.resource:
        return ""
    name, offer = (
        sanitize(f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"),
        sanitize(record.resource),
    )
    before = parse_original_resources(str(annotations.get(ORIGINAL_ANNOTATION, ""))) or {}
    state = "as it was before right-sizing"
    if record.resource == WHOLE_GPU and ORIGINAL_ANNOTATION not in annotations:
        state = f"requests {offer} as before; right-sizing only selected nodes where it is a slice"
    elif not _is_valid_original(before, pod, record.resource):
        return UnknownOriginal(name, offer)
    fields: dict[str, Any] = {"metadata": {"annotations": {KEEP_ANNOTATION: "true"}}}
    if spec := _restored_spec(pod, record, before):
        fields["spec"] = spec
    return f"# Pod {name} {state} (policies: {sanitize(', '.join(record.policies))})\n{yaml_text(fields)}"


def _is_valid_original(before: Mapping[str, ResourceRequirements], pod: Mapping[str, Any], offer: str) -> bool:
    """Return whether the record names whole GPUs, and only of containers that were changed."""
    containers = [each for kind in CONTAINER_LISTS for each in (pod.get("spec") or {}).get(kind) or []]
    changed = {
        str(container.get("name", ""))
        for container in containers
        if any(offer in amounts for amounts in (container.get("resources") or {}).values())
    }
    for original in before.values():
        amounts = [side[WHOLE_GPU] for side in (original.limits, original.requests) if WHOLE_GPU in side]
        if not amounts or not all((parse_whole_number(amount) or 0) > 0 for amount in amounts):
            return False
    return bool(before) and set(before) <= changed


def _restored_spec(
    pod: Mapping[str, Any], record: DecisionRecord, before: Mapping[str, ResourceRequirements]
) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for kind in CONTAINER_LISTS:
        for container in (pod.get("spec") or {}).get(kind) or []:
            name, restored = container.get("name"), {}
            if name in before:
                restored["resources"] = _restored_resources(container, record.resource, before[name])
            if name in record.memory_fractions:
                restored |= _restored_fraction(container, record.memory_fractions[name])
            if restored:
                spec.setdefault(kind, []).append({"name": name, **restored})
    return spec


def _restored_fraction(container: Mapping[str, Any], change: FractionRecord) -> dict[str, Any]:
    """Return the field with the original memory fraction; nothing if a variable was added, or it was changed since."""
    if not change.before:
        return {}
    if {"name": change.setting, "value": change.after} in (container.get("env") or ()):
        return {"env": [{"name": change.setting, "value": change.before}]}
    for field in ("args", "command"):
        arguments = list(container.get(field) or ())
        found = fraction_argument(arguments, change.setting)
        if found is not None and arguments[found[0]] == found[1] + change.after:
            arguments[found[0]] = found[1] + change.before
            return {field: arguments}
    return {}


def _restored_resources(
    container: Mapping[str, Any], offer: str, before: ResourceRequirements
) -> dict[str, dict[str, Any]]:
    """Return limits and requests with the original GPU amounts in place of the injected ones."""
    resources = container.get("resources") or {}
    injected = (offer, ACCOUNTING_RESOURCE)
    return {
        side: {key: amount for key, amount in (resources.get(side) or {}).items() if key not in injected}
        | dict(original)
        for side, original in (("limits", before.limits), ("requests", before.requests))
    }
