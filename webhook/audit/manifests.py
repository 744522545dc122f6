"""Kubernetes objects out of files, folders and standard input, each with the place of every field.

Nothing that is found is dropped in silence: what is no object comes out as `Passed`, with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import Any

import msgspec

from webhook.audit.files import content_of, files_under, left_out
from webhook.documents.bounds import MANIFEST
from webhook.documents.places import Document
from webhook.documents.reading import read_each
from webhook.errors import DocumentError, Place, TemplateError
from webhook.model.paths import Path

STDIN = "-"
STDIN_NAME = "stdin"

ENOUGH = MANIFEST.size + 1
"""Bytes to read of a file: one more than is accepted, so that no file fills the memory."""

Json = dict[str, Any]


class Entry(msgspec.Struct, frozen=True):
    """One Kubernetes object, and where it stands.

    Attributes:
        data: The object.
        document: The document that holds it.
        prefix: The way to the object inside the document: () or ("items", 3).
    """

    data: Json
    document: Document
    prefix: Path = ()

    def place(self, path: Path = ()) -> Place:
        """Where a field of the object stands, or its nearest parent that is written."""
        return self.document.place((*self.prefix, *path))


class Passed(msgspec.Struct, frozen=True):
    """A document or file that is no Kubernetes object.

    Attributes:
        reason: Why, and what to do about it.
        broken: True if it is a fault: a file that is not there, or is not YAML.
    """

    place: Place
    reason: str
    broken: bool = False


TWICE = Passed(Place(STDIN_NAME), "named twice: standard input can be read once", broken=True)
NOTHING_CAME = Passed(Place(STDIN_NAME), "nothing came: did the program that writes to it fail?", broken=True)


def objects_in(paths: Iterable[str]) -> Iterator[Entry | Passed]:
    """Read files, folders (their YAML and JSON files, in the order of their names) and "-" for standard input."""
    read_stdin = False
    for path in paths:
        if path == STDIN:
            yield from [TWICE] if read_stdin else _entries_of_stdin()
            read_stdin = True
            continue
        files = files_under(path)
        if not files:
            yield Passed(Place(path), "a folder without YAML or JSON files: name another", broken=True)
        for file in files:
            yield from _entries_of_file(file)
        for file, reason in left_out(path):
            yield Passed(Place(file), reason)


def _entries_of_stdin() -> Iterator[Entry | Passed]:
    """The objects of standard input. That nothing comes is a fault: the program before us in the pipe failed."""
    text = sys.stdin.buffer.read(ENOUGH)
    yield from entries_of(STDIN_NAME, text) if text.strip() else [NOTHING_CAME]


def _entries_of_file(file: str) -> Iterator[Entry | Passed]:
    try:
        text = content_of(file, ENOUGH)
    except OSError as error:
        yield Passed(Place(file), f"cannot be read: {error.strerror or error}", broken=True)
        return
    yield from entries_of(file, text)


def entries_of(file: str, text: bytes) -> Iterator[Entry | Passed]:
    """Read the objects of one file. Those around a fault are as good as if it were not there."""
    empty = True
    for found in read_each(text, file, aliases=True):
        empty = False
        if isinstance(found, DocumentError):
            yield Passed(found.place, found.sentence, broken=not isinstance(found, TemplateError))
        else:
            yield from _entries_of_document(found)
    if empty:
        yield Passed(Place(file), "an empty file")


def _entries_of_document(document: Document) -> Iterator[Entry | Passed]:
    reason = _why_not(document)
    if reason:
        yield Passed(document.place(()), reason)
    else:
        yield from _unfolded(Entry(document.data, document))


def _why_not(document: Document) -> str:
    data, name = document.data, FilePath(document.file).name
    if not isinstance(data, dict):
        return "not a Kubernetes object: it must be a map with apiVersion and kind"
    if data.get("kind") == "Kustomization" or name in ("kustomization.yaml", "kustomization.yml"):
        return "a kustomization: build it first, for example kustomize build . | rightslice check -"
    missing = [key for key in ("apiVersion", "kind") if not isinstance(data.get(key), str)]
    return f"not a Kubernetes object: it has no {' and no '.join(missing)}" if missing else ""


def _unfolded(entry: Entry) -> Iterator[Entry | Passed]:
    """The object, or the objects of a List; items of a typed list take their kind from it, as in the API."""
    kind, items = entry.data["kind"], entry.data.get("items")
    if kind == "List" and not isinstance(items, list):
        yield Passed(entry.place(("items",)), "must be a list, as items of a List are", broken=True)
        return
    if not kind.endswith("List") or not isinstance(items, list):
        yield entry
        return
    head = {} if kind == "List" else {"apiVersion": entry.data["apiVersion"], "kind": kind.removesuffix("List")}
    for i, item in enumerate(items):
        prefix: Path = (*entry.prefix, "items", i)
        whole = {**head, **item} if isinstance(item, dict) else {}
        if not all(isinstance(whole.get(key), str) for key in ("apiVersion", "kind")):
            yield Passed(
                entry.document.place(prefix), "not a Kubernetes object: it must be a map with apiVersion and kind"
            )
        else:
            yield from _unfolded(Entry(whole, entry.document, prefix))
