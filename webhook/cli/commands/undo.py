"""`undo`: print what a pod or a resource claim requested before Rightslice changed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from webhook.audit.evaluate import invalid_object
from webhook.audit.object_files import SkippedDocument, SourceObject, read_objects
from webhook.audit.pod_audit import is_pod
from webhook.cli import flags
from webhook.cli.cluster_access import ClusterFlags, open_live_cluster
from webhook.cli.inputs import report_broken_files
from webhook.cli.output import (
    EXIT_FINDINGS,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    exit_with_error,
    join_lines,
    parse_targets,
    print_note,
    write_reports,
)
from webhook.cli.references import read_live_object, select_live_pods, split_pods_and_files
from webhook.cli.selection import choose_namespace, select_objects
from webhook.model.annotations import (
    DECISION_ANNOTATION,
    KEEP_ANNOTATION,
    ORIGINAL_ANNOTATION,
    DecisionRecord,
    FractionRecord,
    parse_decision_record,
    parse_original_resources,
)
from webhook.model.claims import CLAIM_KINDS
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU
from webhook.model.pods import DEFAULT_NAMESPACE, ResourceRequirements, without_nulls
from webhook.model.preallocation import fraction_argument
from webhook.model.quantity import parse_whole_number
from webhook.report.serialization import json_text, yaml_text
from webhook.report.text import sanitize

AS_BEFORE = "as it was before right-sizing"
CONTAINER_LISTS = ("containers", "initContainers")
RECREATE_HINT = (
    "Requests of existing pods and claims cannot be restored. Copy these into the manifest, or the template of the "
    "workload, and create it again; the annotation keeps Rightslice from right-sizing it."
)

NOTHING_TO_UNDO = "None of these objects has a record that Rightslice changed its GPUs."

FORMATS = ("yaml", "json", "name")
UndoOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]
ChangedObjects = Annotated[
    list[str] | None,
    flags.paths_argument(
        "Pods of the cluster, also as NAMESPACE/POD, one of the pods of a workload (deployment/serve), or claims "
        "(resourceclaim/large); or files with pods and claims, as written by kubectl get -o yaml.",
        "POD|KIND/NAME|FILE|DIR|-",
    ),
]


def undo_command(
    changed: ChangedObjects = None,
    filename: flags.Filenames = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: flags.PodNamespace = None,
    all_namespaces: flags.SelectedNamespaces = False,
    selector: flags.Selector = "",
    output: UndoOutput = None,
) -> None:
    """Print the original resources of a changed pod or claim.

    The output is YAML for its manifest; as JSON also the object and the policies; -o name prints the changed objects.
    Nothing is changed in the cluster.

    Exit code: 0 printed, 1 Rightslice changed no GPUs or the original request is unknown, 2 invalid input or no such
    pod, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    namespace = choose_namespace(namespace, all_namespaces)
    pods, file = split_pods_and_files(changed, namespace, filename)
    if bool(pods) + bool(file) + bool(selector and not file) != 1:
        found = "several" if pods else "none"
        must = "undo takes pods of the cluster, -l or files"
        exit_with_error(f"{must}, found {found}. Write undo team-vision/notebook-0")
    if not file:
        with open_live_cluster(ClusterFlags(kubeconfig, context)) as cluster:
            sources = (
                [read_live_object(cluster, each) for each in pods]
                if pods
                else select_live_pods(cluster, namespace, selector)
            )
        broken = False
    else:
        chosen = select_objects(selector=selector).choose(read_objects(file))
        documents = list(map(read_changed_document, chosen))
        sources = [each for each in documents if isinstance(each, SourceObject) and _may_be_changed(each.data)]
        broken = report_broken_files(documents)
    requests = [original for source in sources if (original := original_request(source.data))]
    originals = [each for each in requests if isinstance(each, OriginalRequest)]
    unknown = [each for each in requests if isinstance(each, UnknownOriginal)]
    reports = {
        "yaml": lambda: "---\n".join(map(str, originals)),
        "name": lambda: join_lines(sanitize(f"{each.kind.lower()}/{each.name}") for each in originals),
        "json": lambda: json_text({"objects": [each.to_document() for each in originals]}),
    }
    write_reports(targets, reports)
    for each in unknown:
        print_note(str(each))
    if originals or not unknown:
        print_note(RECREATE_HINT if originals else NOTHING_TO_UNDO)
    raise typer.Exit(EXIT_INVALID_INPUT if broken else EXIT_FINDINGS if unknown or not originals else EXIT_OK)


def _may_be_changed(data: dict[str, Any]) -> bool:
    return is_pod(data) or data.get("kind") in CLAIM_KINDS


class OriginalRequest(NamedTuple):
    """The request of a pod or a claim before it was changed.

    Attributes:
        state: How that compares with its present request.
        fields: The changed part of the object as it was, with the annotation that keeps it so.
    """

    kind: str
    namespace: str
    name: str
    state: str
    policies: tuple[str, ...]
    fields: dict[str, Any]

    def to_document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return self._asdict()

    def __str__(self) -> str:
        """Return the fields as YAML, after a comment that names the object."""
        head = f"{self.kind} {self.namespace}/{self.name} {self.state} (policies: {', '.join(self.policies)})"
        return f"# {sanitize(head)}\n{yaml_text(self.fields)}"


class UnknownOriginal(NamedTuple):
    """A right-sized pod or claim whose original request is unknown; the name includes the kind."""

    name: str
    offer: str

    def __str__(self) -> str:
        reason = f"{ORIGINAL_ANNOTATION} is missing or was changed"
        return f"{self.name} was right-sized to {self.offer}; its original request is unknown: {reason}."


def read_changed_document(document: SourceObject | SkippedDocument) -> SourceObject | SkippedDocument:
    """Return the document, or the reason why it is a Pod or a claim that cannot be read."""
    if isinstance(document, SourceObject) and _may_be_changed(document.data):
        return invalid_object(document) or document
    return document


def original_request(changed: Mapping[str, Any]) -> OriginalRequest | UnknownOriginal | None:
    """Return the changed part of a pod or a claim as it was; None if there is no record that its GPUs were changed."""
    changed = without_nulls(changed)
    metadata = changed.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    record = parse_decision_record(str(annotations.get(DECISION_ANNOTATION, "")))
    if record is None or not record.resource:
        return None
    kind = str(changed.get("kind", "Pod"))
    namespace, name = str(metadata.get("namespace", DEFAULT_NAMESPACE)), str(metadata.get("name", ""))
    original = str(annotations.get(ORIGINAL_ANNOTATION, ""))
    restore = _restore_pod if kind == "Pod" else _restore_claim
    restored = restore(changed, record, original)
    if restored is None:
        return UnknownOriginal(sanitize(f"{kind} {namespace}/{name}"), sanitize(record.resource))
    state, spec = restored
    fields: dict[str, Any] = {"metadata": {"annotations": {KEEP_ANNOTATION: "true"}}}
    if spec:
        fields["spec"] = spec
    return OriginalRequest(kind, namespace, name, state, tuple(record.policies), fields)


def _restore_claim(
    claim: Mapping[str, Any], _record: DecisionRecord, original: str
) -> tuple[str, dict[str, Any]] | None:
    """Return the state of a claim or template, and its requests before; None if they are unknown."""
    try:
        before = msgspec.json.decode(original, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    spec = claim.get("spec") or {}
    is_template = "devices" not in spec
    requests = ((spec.get("spec") or {} if is_template else spec).get("devices") or {}).get("requests") or []
    if [each.get("name") for each in requests] != [before.get("name")] or not before.get("exactly"):
        return None
    restored = {"devices": {"requests": [before]}}
    return AS_BEFORE, {"spec": restored} if is_template else restored


def _restore_pod(pod: Mapping[str, Any], record: DecisionRecord, original: str) -> tuple[str, dict[str, Any]] | None:
    """Return the state of a pod, and the changed part of its specification as it was; None if that is unknown."""
    before = parse_original_resources(original) or {}
    if record.resource == WHOLE_GPU and not original:
        offer = sanitize(record.resource)
        state = f"requests {offer} as before; right-sizing only selected nodes where it is a slice"
    elif _is_valid_original(before, pod, record.resource):
        state = AS_BEFORE
    else:
        return None
    return state, _restored_spec(pod, record, before)


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
    """Return limits and requests with the injected GPU amounts replaced by the original ones."""
    resources = container.get("resources") or {}
    injected = (offer, ACCOUNTING_RESOURCE)
    return {
        side: {key: amount for key, amount in (resources.get(side) or {}).items() if key not in injected}
        | dict(original)
        for side, original in (("limits", before.limits), ("requests", before.requests))
    }
