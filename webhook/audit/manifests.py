"""Kubernetes objects out of files, folders and standard input, each with the place of every field.

Nothing that is found is dropped in silence: what is no object comes out as `SkippedDocument`, with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import Any

import msgspec

from webhook.audit.files import read_content, document_files, skipped_paths
from webhook.documents.bounds import MANIFEST_BOUNDS
from webhook.documents.places import Document
from webhook.documents.reading import iter_documents
from webhook.errors import DocumentError, SourceLocation, TemplateError
from webhook.model.paths import FieldPath

STDIN = "-"
STDIN_NAME = "stdin"

MAX_FILE_BYTES = MANIFEST_BOUNDS.size + 1
"""Bytes to read of a file: one more than is accepted, so that no file fills the memory."""

Json = dict[str, Any]


class SourceObject(msgspec.Struct, frozen=True):
    """One Kubernetes object, and where it stands.

    Attributes:
        data: The object.
        document: The document that holds it.
        prefix: The way to the object inside the document: () or ("items", 3).
    """

    data: Json
    document: Document
    prefix: FieldPath = ()

    def place(self, path: FieldPath = ()) -> SourceLocation:
        """Where a field of the object stands, or its nearest parent that is written."""
        return self.document.locate((*self.prefix, *path))


class SkippedDocument(msgspec.Struct, frozen=True):
    """A document or file that is no Kubernetes object.

    Attributes:
        reason: Why, and what to do about it.
        broken: True if it is a fault: a file that is not there, or is not YAML.
    """

    place: SourceLocation
    reason: str
    broken: bool = False


STDIN_TWICE = SkippedDocument(SourceLocation(STDIN_NAME), "named twice: standard input can be read once", broken=True)
STDIN_EMPTY = SkippedDocument(SourceLocation(STDIN_NAME), "nothing came: did the program that writes to it fail?", broken=True)


def read_objects(paths: Iterable[str]) -> Iterator[SourceObject | SkippedDocument]:
    """Read files, folders (their YAML and JSON files, in the order of their names) and "-" for standard input."""
    read_stdin = False
    for path in paths:
        if path == STDIN:
            yield from [STDIN_TWICE] if read_stdin else _objects_of_stdin()
            read_stdin = True
            continue
        files = document_files(path)
        if not files:
            yield SkippedDocument(SourceLocation(path), "a folder without YAML or JSON files: name another", broken=True)
        for file in files:
            yield from _objects_of_file(file)
        for file, reason in skipped_paths(path):
            yield SkippedDocument(SourceLocation(file), reason)


def _objects_of_stdin() -> Iterator[SourceObject | SkippedDocument]:
    """The objects of standard input. That nothing comes is a fault: the program before us in the pipe failed."""
    text = sys.stdin.buffer.read(MAX_FILE_BYTES)
    yield from parse_objects(STDIN_NAME, text) if text.strip() else [STDIN_EMPTY]


def _objects_of_file(file: str) -> Iterator[SourceObject | SkippedDocument]:
    try:
        text = read_content(file, MAX_FILE_BYTES)
    except OSError as error:
        yield SkippedDocument(SourceLocation(file), f"cannot be read: {error.strerror or error}", broken=True)
        return
    yield from parse_objects(file, text)


def parse_objects(file: str, text: bytes) -> Iterator[SourceObject | SkippedDocument]:
    """Read the objects of one file. Those around a fault are as good as if it were not there."""
    empty = True
    for found in iter_documents(text, file, aliases=True):
        empty = False
        if isinstance(found, DocumentError):
            yield SkippedDocument(found.location, found.message, broken=not isinstance(found, TemplateError))
        else:
            yield from _objects_of_document(found)
    if empty:
        yield SkippedDocument(SourceLocation(file), "an empty file")


def _objects_of_document(document: Document) -> Iterator[SourceObject | SkippedDocument]:
    reason = _reject_reason(document)
    if reason:
        yield SkippedDocument(document.locate(()), reason)
    else:
        yield from _expand_list(SourceObject(document.data, document))


def _reject_reason(document: Document) -> str:
    data, name = document.data, FilePath(document.file).name
    if not isinstance(data, dict):
        return "not a Kubernetes object: it must be a map with apiVersion and kind"
    if data.get("kind") == "Kustomization" or name in ("kustomization.yaml", "kustomization.yml"):
        return "a kustomization: build it first, for example kustomize build . | rightslice check -"
    missing = [key for key in ("apiVersion", "kind") if not isinstance(data.get(key), str)]
    return f"not a Kubernetes object: it has no {' and no '.join(missing)}" if missing else ""


def _expand_list(entry: SourceObject) -> Iterator[SourceObject | SkippedDocument]:
    """The object, or the objects of a List; items of a typed list take their kind from it, as in the API."""
    kind, items = entry.data["kind"], entry.data.get("items")
    if kind == "List" and not isinstance(items, list):
        yield SkippedDocument(entry.place(("items",)), "must be a list, as items of a List are", broken=True)
        return
    if not kind.endswith("List") or not isinstance(items, list):
        yield entry
        return
    head = {} if kind == "List" else {"apiVersion": entry.data["apiVersion"], "kind": kind.removesuffix("List")}
    for i, item in enumerate(items):
        prefix: FieldPath = (*entry.prefix, "items", i)
        whole = {**head, **item} if isinstance(item, dict) else {}
        if not all(isinstance(whole.get(key), str) for key in ("apiVersion", "kind")):
            yield SkippedDocument(
                entry.document.locate(prefix), "not a Kubernetes object: it must be a map with apiVersion and kind"
            )
        else:
            yield from _expand_list(SourceObject(whole, entry.document, prefix))
