"""Tells arguments that name a pod from files, and finds the pod of POD, NAMESPACE/POD, KIND/NAME or all three."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from webhook.audit.evaluate import written_namespace
from webhook.audit.object_files import STDIN, SourceObject, read_objects
from webhook.audit.pod_audit import is_active_pod, is_pod
from webhook.cli.cluster_access import LIVE, ClusterFlags, open_live_cluster
from webhook.cli.output import exit_with_error, print_note
from webhook.cli.selection import ALL_NAMESPACES, ObjectSelection, select_objects
from webhook.documents.reader import DOCUMENT_SUFFIXES
from webhook.errors import ApiError
from webhook.model.field_paths import map_at
from webhook.model.pods import DEFAULT_NAMESPACE, parse_pod
from webhook.model.workloads import workload_of
from webhook.report.text import pluralize, sanitize

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader

FILE_ENDS = (STDIN, *DOCUMENT_SUFFIXES)
"""Ends of an argument that names a file or standard input."""

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

    def full_name(self) -> str:
        """Return NAMESPACE/KIND/NAME."""
        return f"{self.namespace or 'NAMESPACE'}/{self.kind}/{self.name}"

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


def split_arguments(
    arguments: Sequence[str] | None, full_name: Callable[[str], str], files: Sequence[str] | None = None
) -> tuple[list[str], list[str]]:
    """Return the arguments that name objects, and the files: the other arguments, and those of -f.

    Exits if the name of an object is that of a file too.

    Args:
        full_name: Returns the name of an object that is never taken for a file; "" for what can only be a file.
    """
    paths = [each for each in arguments or () if _is_path(each, full_name)]
    names = [each for each in arguments or () if each not in paths]
    for each in names:
        if each != (full := full_name(each)) and Path(each).exists():
            both = "must be a file or an object, found the name of a file that may be the name of an object too"
            exit_with_error(sanitize(f"{each}: {both}. Write ./{each} for the file, or {full} for the object"))
    return names, [*paths, *(files or ())]


def _is_path(text: str, full_name: Callable[[str], str]) -> bool:
    has_form_of_path = text.startswith((".", "/")) or text.endswith(FILE_ENDS)
    return has_form_of_path or (not full_name(text) and Path(text).exists())


def split_pods_and_files(
    arguments: Sequence[str] | None, namespace: str | None, files: Sequence[str] | None
) -> tuple[list[PodReference], list[str]]:
    """Return the pods that arguments name, in the namespace of -n, and the files. Exits if one may be either."""
    pods, paths = split_arguments(arguments, lambda each: full_pod_name(each, namespace), files)
    return [parse_reference(each, namespace) for each in pods], paths


def full_pod_name(text: str, namespace: str | None) -> str:
    """Return what an argument names as NAMESPACE/KIND/NAME; "" if it has none of the forms of a name."""
    *before, name = text.split("/")
    has_form = len(before) < 2 or (len(before) == 2 and _parse_kind(before[1]))
    return parse_reference(text, namespace).full_name() if name and has_form else ""


def parse_reference(text: str, namespace: str | None) -> PodReference:
    """Return what an argument names, in the namespace of -n. Exits if both name different ones.

    Args:
        namespace: None for the default one, ALL_NAMESPACES for -A.
    """
    *before, name = text.split("/")
    kind = _parse_kind(before[-1]) if before else POD
    if kind:
        before = before[:-1]
    if len(before) > 1 or not name:
        forms = "POD, NAMESPACE/POD, KIND/NAME or NAMESPACE/KIND/NAME"
        exit_with_error(f"{sanitize(text)}: must be {forms}. Write deployment/serve -n research")
    if namespace == ALL_NAMESPACES and not before:
        exit_with_error(f"-A: must be used with -l, found {sanitize(text)} too. Write NAMESPACE/{sanitize(text)}")
    if before and namespace not in (None, ALL_NAMESPACES, before[0]):
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
    selection = select_objects(cluster.namespace if namespace is None else namespace, selector=selector)
    found = selection.choose(cluster.pods(selection.namespace))
    return _some_pods([each for each in found if isinstance(each, SourceObject)], selection)


def select_snapshot_pods(cluster: str, namespace: str | None, selector: str) -> list[SourceObject]:
    """Return the pods of a snapshot that -l selects. Exits if there is none."""
    from webhook.cli.audit_inputs import audit_sources  # reports are slow to import

    selection = select_objects(DEFAULT_NAMESPACE if namespace is None else namespace, selector=selector)
    found = selection.choose(read_objects(audit_sources(None, cluster)))
    return _some_pods([each for each in found if isinstance(each, SourceObject) and is_pod(each.data)], selection)


def _some_pods(pods: list[SourceObject], selection: ObjectSelection) -> list[SourceObject]:
    if not pods:
        hint = "Name another namespace with -n" if selection.namespace else "Write other labels"
        exit_with_error(sanitize(f"no pods {selection}. {hint}"))
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
