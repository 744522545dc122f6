"""Read a cluster from files, as `kubectl get -o yaml` prints it, into the same view that a live cluster gives.

Nodes, Namespaces, LimitRanges, ResourceQuotas, Pods, GPUNodes, ResourceSlices, ResourceClaims, ResourceClaimTemplates,
DeviceClasses, RuntimeClasses, PriorityClasses, the objects about storage and about node groups are read; other kinds
are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath

import msgspec

from webhook.cache.build_view import build_view
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.folder_documents import is_folder, list_folder
from webhook.cache.snapshot_objects import (
    ClusterScoped,
    RawObject,
    SnapshotObject,
    expand_lists,
    read_snapshot_object,
    skipped_kind,
    snapshot_groups,
    snapshot_peers,
    snapshot_schedulers,
)
from webhook.cache.stored_objects import object_namespace
from webhook.documents.reader import DOCUMENT_SUFFIXES, read_documents
from webhook.errors import DocumentError, SnapshotError, SourceLocation
from webhook.model.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.device_taint_rules import DeviceTaintRule
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.fleet import kubelet_minor
from webhook.model.node_groups import NodeGroupSpec
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pod_classes import PriorityClass, RuntimeClass
from webhook.model.pods import Pod
from webhook.model.queues import (
    KUEUE_API_VERSION,
    UNKNOWN_CONFIGURATION,
    KueueConfiguration,
    KueueQueues,
)
from webhook.model.schedulers import (
    SCHEDULER_API_VERSION,
    Schedulers,
)
from webhook.model.storage_objects import StorageObject
from webhook.model.volcano_queues import VolcanoQueue, VolcanoQueues
from webhook.well_known import API_VERSION, DEMO


class ClusterSnapshot(msgspec.Struct, frozen=True):
    """A cluster read from files.

    Attributes:
        view: The cluster.
        skipped: What is not in the view: one sentence per skipped kind or duplicate object.
        objects: The objects themselves.
        duplicate_nodes: Names of nodes that appear again, with the place of the copy that is used.
    """

    view: ClusterView
    skipped: tuple[str, ...] = ()
    objects: tuple[SnapshotObject, ...] = ()
    duplicate_nodes: tuple[str, ...] = ()


def read_snapshot(source: str) -> ClusterSnapshot:
    """Read a file, a folder, or the example snapshot ("demo").

    Raises:
        SnapshotError: There is nothing to read, or an object is invalid; with place and fix.
    """
    documents = (raw for file in _snapshot_files(source) for raw in _read_documents(file))
    return collect_snapshot(_require_objects(source, documents))


def read_kueue_configuration(source: str) -> KueueConfiguration:
    """Read Kueue's Configuration from a file.

    Raises:
        SnapshotError: There is none, or it is invalid.
    """
    return _require_configuration(source, read_snapshot(source).objects)


def parse_kueue_configuration(text: str, name: str) -> KueueConfiguration:
    """Parse Kueue's Configuration; `name` is for errors.

    Raises:
        SnapshotError: There is none, or it is invalid.
    """
    return _require_configuration(name, collect_snapshot(_parse_documents(text.encode(), name)).objects)


def _require_configuration(source: str, objects: Iterable[SnapshotObject]) -> KueueConfiguration:
    configuration = next((each for each in objects if isinstance(each, KueueConfiguration)), None)
    if configuration is None:
        must = f"must be a Configuration of config.{KUEUE_API_VERSION}, found none"
        write = "Write controller_manager_config.yaml of Kueue's ConfigMap to it"
        raise SnapshotError(SourceLocation(source), f"{must}. {write}")
    return configuration


def read_node_groups(source: str) -> tuple[NodeGroupSpec, ...]:
    """Read the node groups of a settings file.

    Raises:
        SnapshotError: There are none, or one is invalid.
    """
    snapshot = read_snapshot(source)
    if not snapshot.view.group_sources.groups:
        must = f"must be a NodeGroups of {API_VERSION} with nodeGroups, found none"
        raise SnapshotError(SourceLocation(source), f"{must}. Write kind: NodeGroups, and a list nodeGroups")
    return snapshot.view.group_sources.groups


def read_schedulers(source: str) -> Schedulers:
    """Read the rules of schedulers from a file with a KubeSchedulerConfiguration.

    Raises:
        SnapshotError: There is none, or it is invalid.
    """
    snapshot = read_snapshot(source)
    schedulers = snapshot.view.schedulers
    if not schedulers:
        found = "; ".join(snapshot.skipped) or "none"
        must = f"must be a KubeSchedulerConfiguration of {SCHEDULER_API_VERSION}, found {found}"
        raise SnapshotError(SourceLocation(source), f"{must}. Write the file that kube-scheduler gets as --config")
    return schedulers


def _require_objects(source: str, documents: Iterable[RawObject]) -> Iterator[RawObject]:
    """Yield the documents of a snapshot.

    Raises:
        SnapshotError: None of them is a Kubernetes object, so the cluster would be unknown without a word.
    """
    found = False
    for raw in documents:
        found = found or (isinstance(raw.data, dict) and isinstance(raw.data.get("kind"), str))
        yield raw
    if not found:
        sentence = "must contain Kubernetes objects, found none. Write what kubectl get -o yaml prints to it"
        raise SnapshotError(SourceLocation(source), sentence)


def view_of_objects(objects: Iterable[tuple[object, SourceLocation]]) -> ClusterView:
    """Build the view of objects that are already decoded, each with its place. Lists are expanded.

    Raises:
        SnapshotError: An object is invalid.
    """
    return collect_snapshot(_raw_object_at(data, place) for data, place in objects).view


def _raw_object_at(data: object, place: SourceLocation) -> RawObject:
    return RawObject(data, lambda _path: place)


def collect_snapshot(documents: Iterable[RawObject]) -> ClusterSnapshot:
    """Build a snapshot from documents. Of two objects with one identity, the later one is used."""
    by_identity: dict[tuple[str, ...], SnapshotObject] = {}
    skipped: dict[str, list[SourceLocation]] = {}
    notes: list[str] = []
    nodes: dict[str, str] = {}
    for raw in (member for document in documents for member in expand_lists(document)):
        if kind := skipped_kind(raw):
            skipped.setdefault(kind, []).append(raw.place_at(()))
            continue
        item = read_snapshot_object(raw)
        namespace = "" if isinstance(item, ClusterScoped) else object_namespace(item)
        key = type(item).__name__, namespace, item.metadata.name or f"#{len(by_identity)}"  # pods may have no name
        if key in by_identity:
            notes.append(f"{raw.place_at(())}: {' '.join(filter(None, key))} appears twice; this one is used")
            if isinstance(item, Node):
                nodes[item.metadata.name] = f"{item.metadata.name} ({raw.place_at(())})"
        by_identity[key] = item
    counts = (f"{places[0]}: {len(places)} of kind {kind} skipped" for kind, places in skipped.items())
    objects = tuple(by_identity.values())
    return ClusterSnapshot(_snapshot_view(objects), (*counts, *notes), objects, tuple(nodes.values()))


def _snapshot_view(objects: tuple[SnapshotObject, ...]) -> ClusterView:
    nodes = [item for item in objects if isinstance(item, Node)]
    view = build_view(
        nodes=nodes,
        namespaces=[item for item in objects if isinstance(item, Namespace)],
        limit_ranges=[item for item in objects if isinstance(item, LimitRange)],
        quotas=[item for item in objects if isinstance(item, ResourceQuota)],
        pods=[item for item in objects if isinstance(item, Pod)],
        claim_templates=[item for item in objects if isinstance(item, ResourceClaimTemplate)],
        device_classes=[item for item in objects if isinstance(item, DeviceClass)],
        runtime_classes=[item for item in objects if isinstance(item, RuntimeClass)],
        priority_classes=[item for item in objects if isinstance(item, PriorityClass)],
        storage=[item for item in objects if isinstance(item, StorageObject)],
        resource_slices=[item for item in objects if isinstance(item, ResourceSlice)],
        resource_claims=[item for item in objects if isinstance(item, ResourceClaim)],
        taint_rules=[item for item in objects if isinstance(item, DeviceTaintRule)],
        queues=_snapshot_queues(objects),
        volcano_queues=VolcanoQueues([item for item in objects if isinstance(item, VolcanoQueue)]),
        group_sources=snapshot_groups(objects),
        schedulers=snapshot_schedulers(objects),
        peers=snapshot_peers(objects),
    )
    return view.with_api_minor(max(map(kubelet_minor, nodes), default=0))


def _snapshot_queues(objects: tuple[SnapshotObject, ...]) -> KueueQueues:
    configured = next((item for item in objects if isinstance(item, KueueConfiguration)), UNKNOWN_CONFIGURATION)
    return KueueQueues(objects, configured)


def _snapshot_files(source: str) -> list[FilePath]:
    path = bundled_folder("examples") / "cluster" if source == DEMO else FilePath(source)
    if not is_folder(path):
        return [path]  # reading it says why it cannot be read
    entries = [entry for entry in list_folder(path) if entry.error or entry.path.suffix in DOCUMENT_SUFFIXES]
    for entry in entries:
        if entry.reason:
            raise _unreadable(entry.path, entry.error or entry.reason)
    if not entries:
        raise _missing_snapshot(path, "a folder without any of these")
    return [entry.path for entry in entries]


def _missing_snapshot(path: FilePath, found: str) -> SnapshotError:
    must = "must be a YAML or JSON file, a folder of them, or demo"
    return SnapshotError(
        SourceLocation(str(path)), f"{must}, found {found}. Write what kubectl get -o yaml prints to it"
    )


def _unreadable(file: FilePath, found: OSError | str) -> SnapshotError:
    reason = found.strerror or found if isinstance(found, OSError) else found
    sentence = f"must be readable, found: {reason}. Give it to this user or name another file"
    return SnapshotError(SourceLocation(str(file)), sentence)


def _read_documents(file: FilePath) -> Iterator[RawObject]:
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        raise _missing_snapshot(file, "no such file or directory") from error
    except OSError as error:
        raise _unreadable(file, error) from error
    return _parse_documents(content, str(file))


def _parse_documents(content: bytes, name: str) -> Iterator[RawObject]:
    try:
        for document in read_documents(content, name, aliases=True):
            yield RawObject(document.data, document.locate)
    except DocumentError as error:
        raise SnapshotError(error.location, error.message) from error
