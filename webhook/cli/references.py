"""Names a pod of a cluster: POD, NAMESPACE/POD, KIND/NAME or NAMESPACE/KIND/NAME, and finds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from webhook.audit.evaluate import written_namespace
from webhook.audit.object_files import STDIN, SourceObject, read_objects
from webhook.audit.pod_audit import is_active_pod, is_pod
from webhook.cli.cluster_access import LIVE, ClusterFlags, open_live_cluster
from webhook.cli.output import exit_with_error, print_note
from webhook.cli.selection import ObjectSelection, select_objects
from webhook.documents.reader import DOCUMENT_SUFFIXES
from webhook.errors import ApiError
from webhook.model.field_paths import map_at
from webhook.model.pods import DEFAULT_NAMESPACE, parse_pod
from webhook.model.workloads import workload_of
from webhook.report.text import pluralize, sanitize

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader

POD = "pod"
SHORT_KINDS = {
    "po": POD,
    "deploy": "deployment",
    "sts": "statefulset",
    "ds": "daemonset",
    "rs": "replicaset",
    "cj": "cronjob",
}
CLAIMS = ("resourceclaim", "resourceclaimtemplate")
WORKLOADS = ("deployment", "statefulset", "daemonset", "replicaset", "job", "cronjob", "jobset", "rollout")
KINDS = frozenset({POD, *WORKLOADS, *CLAIMS})
"""Kinds that are no namespace in `KIND/NAME`; others are written with their group, as in rayclusters.ray.io/NAME."""


class PodReference(NamedTuple):
    """A pod, or the workload that one of its pods is wanted of.

    Attributes:
        namespace: "" for the default one.
        kind: In lower case and singular.
    """

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return sanitize(f"{self.kind}/{self.name}")

    def selects(self, pod: SourceObject) -> bool:
        """Return whether this is the pod, or one of the workload's pods."""
        metadata = map_at(pod.data, "metadata")
        if not is_pod(pod.data) or (written_namespace(pod.data) or DEFAULT_NAMESPACE) != self.namespace:
            return False
        return metadata.get("name") == self.name if self.kind == POD else self._is_owner(pod)

    def _is_owner(self, pod: SourceObject) -> bool:
        owners = map_at(pod.data, "metadata").get("ownerReferences") or ()
        names = {f"{each.get('kind')}/{each.get('name')}" for each in owners} | {workload_of(parse_pod(pod.data))}
        return is_active_pod(pod.data) and f"{self.kind}/{self.name}" in {_lower_kind(each) for each in names}


def _lower_kind(name: str) -> str:
    kind, slash, rest = name.partition("/")
    return f"{kind.lower()}{slash}{rest}"


def parse_reference(text: str, namespace: str | None) -> PodReference:
    """Return what an argument names, in the namespace of -n. Exits if both name different ones."""
    *before, name = text.split("/")
    kind = _parse_kind(before[-1]) if before else POD
    if kind:
        before = before[:-1]
    if len(before) > 1 or not name:
        forms = "POD, NAMESPACE/POD, KIND/NAME or NAMESPACE/KIND/NAME"
        exit_with_error(f"{sanitize(text)}: must be {forms}. Write deployment/serve -n research")
    if before and namespace not in (None, before[0]):
        must = f"must be the namespace of {sanitize(text)}, found {sanitize(str(namespace))}"
        exit_with_error(f"-n: {must}. Write only one of them")
    return PodReference(before[0] if before else namespace or "", kind or POD, name)


def _parse_kind(word: str) -> str:
    """Return the kind that a word names, in lower case and singular; "" if it is no kind."""
    kind, group, _ = word.lower().partition(".")
    kind = SHORT_KINDS.get(kind, kind)
    singular = kind.removesuffix("s") if kind.removesuffix("s") in KINDS or group else kind
    return singular if singular in KINDS or group else ""


def read_live_pod(cluster: ClusterReader, reference: PodReference) -> SourceObject:
    """Read a pod of a live cluster, by default in the namespace of the context. Exits if it does not exist."""
    reference = reference._replace(namespace=reference.namespace or cluster.namespace)
    if reference.kind != POD:
        return _only_pod(filter(reference.selects, cluster.pods(reference.namespace)), reference, "this cluster")
    try:
        return cluster.pod(reference.namespace, reference.name)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return _only_pod((), reference, "this cluster")


def is_reference(text: str) -> bool:
    """Return whether an argument that may be a file names an object of the cluster instead."""
    return text != STDIN and not text.endswith(DOCUMENT_SUFFIXES) and not Path(text).exists()


def read_pods(cluster: str, access: ClusterFlags, references: Sequence[PodReference]) -> list[SourceObject]:
    """Read pods of a live cluster or of a snapshot. Exits if one does not exist."""
    if not references:
        return []
    if cluster != LIVE:
        return [read_snapshot_pod(cluster, each) for each in references]
    with open_live_cluster(access) as live:
        return [read_live_pod(live, each) for each in references]


def read_selected_pods(cluster: str, access: ClusterFlags, namespace: str | None, selector: str) -> list[SourceObject]:
    """Read the pods of a live cluster or of a snapshot that -l selects. Exits if there is none."""
    if cluster != LIVE:
        return select_snapshot_pods(cluster, namespace, selector)
    with open_live_cluster(access) as live:
        return select_live_pods(live, namespace, selector)


def select_live_pods(cluster: ClusterReader, namespace: str | None, selector: str) -> list[SourceObject]:
    """Return the pods that -l selects, by default in the namespace of the context. Exits if there is none."""
    selection = select_objects(namespace or cluster.namespace, selector=selector)
    found = selection.choose(cluster.pods(selection.namespace))
    return _some_pods([each for each in found if isinstance(each, SourceObject)], selection)


def select_snapshot_pods(cluster: str, namespace: str | None, selector: str) -> list[SourceObject]:
    """Return the pods of a snapshot that -l selects. Exits if there is none."""
    from webhook.cli.audit_inputs import audit_sources  # reports are slow to import

    selection = select_objects(namespace or DEFAULT_NAMESPACE, selector=selector)
    found = selection.choose(read_objects(audit_sources(None, cluster)))
    return _some_pods([each for each in found if isinstance(each, SourceObject) and is_pod(each.data)], selection)


def _some_pods(pods: list[SourceObject], selection: ObjectSelection) -> list[SourceObject]:
    if not pods:
        exit_with_error(sanitize(f"no pods {selection}. Name another namespace with -n"))
    return pods


def read_live_object(cluster: ClusterReader, reference: PodReference) -> SourceObject:
    """Read a pod, or a resource claim or template of claims, of a live cluster. Exits if it does not exist."""
    if reference.kind not in CLAIMS:
        return read_live_pod(cluster, reference)
    namespace = reference.namespace or cluster.namespace
    try:
        return cluster.claim(namespace, f"{reference.kind}s", reference.name)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        exit_with_error(f"no {reference} in namespace {sanitize(namespace)!r} of this cluster. Name another with -n")


def read_snapshot_pod(cluster: str, reference: PodReference) -> SourceObject:
    """Read a pod of a snapshot. Exits if it does not exist."""
    from webhook.cli.audit_inputs import audit_sources  # reports are slow to import

    reference = reference._replace(namespace=reference.namespace or DEFAULT_NAMESPACE)
    objects = [each for each in read_objects(audit_sources(None, cluster)) if isinstance(each, SourceObject)]
    others = {written_namespace(each.data) or DEFAULT_NAMESPACE for each in objects if is_pod(each.data)}
    elsewhere = [name for name in sorted(others) if any(map(reference._replace(namespace=name).selects, objects))]
    return _only_pod(filter(reference.selects, objects), reference, sanitize(cluster), elsewhere)


def _only_pod(
    found: Iterable[SourceObject], reference: PodReference, cluster: str, elsewhere: Iterable[str] = ()
) -> SourceObject:
    """Return the first pod by name, with a note if there are several. Exits if there is none."""
    pods = {str(map_at(each.data, "metadata").get("name")): each for each in found}
    if not pods:
        where = f"in namespace {sanitize(reference.namespace)!r} of {cluster}"
        named = sanitize(repr(reference.name)) if reference.kind == POD else f"of {reference}"
        other = (sanitize(f"Write {each}/{str(reference).removeprefix('pod/')}") for each in elsewhere)
        hint = next(other, "Name another namespace with -n, a file with -f, or a workload as KIND/NAME")
        exit_with_error(f"no pod {'named ' if reference.kind == POD else ''}{named} {where}. {hint}")
    name = min(pods)
    if len(pods) > 1:
        print_note(f"note: found {pluralize(len(pods), 'pod')} of {reference}, using pod/{sanitize(name)}")
    return pods[name]
