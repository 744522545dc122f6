"""Snapshots: a cluster in files, as `kubectl get -o yaml` prints it, read into the view that a live one gives.

Nodes, Namespaces, LimitRanges, ResourceQuotas, Pods, GPUNodes, ResourceClaimTemplates and DeviceClasses count; other
kinds may be there, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath

import msgspec

from webhook.cache.gathering import namespace_of, view_of
from webhook.cache.objects import Found, Kept, kind_of, members, read_object
from webhook.cache.shipped import shipped
from webhook.documents.names import is_document
from webhook.documents.reading import read
from webhook.errors import DocumentError, Place, SnapshotError
from webhook.model.claims import DeviceClass, ResourceClaimTemplate
from webhook.model.cluster import ClusterView
from webhook.model.gpunodes import GPUNode
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pods import Pod

DEMO = "demo"
"""The name of the snapshot that comes with the program."""


class Snapshot(msgspec.Struct, frozen=True):
    """A cluster read from files.

    Attributes:
        view: The cluster.
        skipped: What was in the files and is not in the view: one sentence a kind, or an object given twice.
        kept: The objects themselves.
    """

    view: ClusterView
    skipped: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()


def load_snapshot(source: str) -> ClusterView:
    """Read a file, a folder, or the shipped snapshot ("demo").

    Raises:
        SnapshotError: there is nothing to read, or what is there is no cluster; with place and fix.
    """
    return read_snapshot(source).view


def read_snapshot(source: str) -> Snapshot:
    """The same, with a word on what was left out.

    Raises:
        SnapshotError: see `load_snapshot`.
    """
    return gather(found for file in _files(source) for found in _documents(file))


def snapshot_of(objects: Iterable[tuple[object, Place]]) -> ClusterView:
    """The view of objects that are already plain data, each with its place; Lists are opened.

    Raises:
        SnapshotError: an object is not what its kind says.
    """
    return gather(_standing(data, place) for data, place in objects).view


def _standing(data: object, place: Place) -> Found:
    return Found(data, lambda _path: place)


def gather(documents: Iterable[Found]) -> Snapshot:
    """Sort out what documents hold. Of an object that is given twice, the later one counts."""
    kept: dict[tuple[str, ...], Kept] = {}
    skipped: dict[str, list[Place]] = {}
    notes: list[str] = []
    for found in (member for document in documents for member in members(document)):
        if stranger := kind_of(found):
            skipped.setdefault(stranger, []).append(found.at(()))
            continue
        item = read_object(found)
        key = _identity(item, len(kept))
        if key in kept:
            notes.append(f"{found.at(())}: {' '.join(filter(None, key))} is given twice; this one counts")
        kept[key] = item
    counts = (f"{places[0]}: {len(places)} of kind {kind} left out" for kind, places in skipped.items())
    objects = tuple(kept.values())
    return Snapshot(_view(objects), (*counts, *notes), objects)


def _identity(item: Kept, position: int) -> tuple[str, ...]:
    """Kind, namespace and name; a pod that has no name yet is told apart by its position."""
    namespace = "" if isinstance(item, Node | Namespace | GPUNode | DeviceClass) else namespace_of(item)
    return type(item).__name__, namespace, item.metadata.name or f"#{position}"


def _view(kept: tuple[Kept, ...]) -> ClusterView:
    return view_of(
        nodes=[item for item in kept if isinstance(item, Node)],
        namespaces=[item for item in kept if isinstance(item, Namespace)],
        limit_ranges=[item for item in kept if isinstance(item, LimitRange)],
        quotas=[item for item in kept if isinstance(item, ResourceQuota)],
        pods=[item for item in kept if isinstance(item, Pod)],
        claim_templates=[item for item in kept if isinstance(item, ResourceClaimTemplate)],
        device_classes=[item for item in kept if isinstance(item, DeviceClass)],
    )


def _files(source: str) -> list[FilePath]:
    path = shipped("examples") / "cluster" if source == DEMO else FilePath(source)
    files = _under(path) if path.is_dir() else [path]
    if not files or not path.exists():
        found = "no such file" if not path.exists() else "a folder without any of these"
        must = "must be a YAML or JSON file, a folder of them, or demo"
        raise SnapshotError(Place(str(path)), f"{must}, found {found}. Write what kubectl get -o yaml prints to it")
    return files


def _under(folder: FilePath) -> list[FilePath]:
    return sorted(file for file in folder.rglob("*") if is_document(file.relative_to(folder).parts))


def _documents(file: FilePath) -> Iterator[Found]:
    try:
        for document in read(file.read_bytes(), str(file), aliases=True):
            yield Found(document.data, document.place)
    except DocumentError as error:
        raise SnapshotError(error.place, error.sentence) from error
    except OSError as error:
        sentence = f"must be readable, found: {error.strerror}. Give it to this user or name another file"
        raise SnapshotError(Place(str(file)), sentence) from error
