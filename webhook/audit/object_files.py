"""Kubernetes objects out of files, folders and standard input, each with the place of every field.

Nothing that is found is dropped in silence: what is no object comes out as `SkippedDocument`, with the reason.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from pathlib import Path as FilePath
from stat import S_ISFIFO, S_ISREG
from typing import Any

import msgspec

from webhook.documents.decode import MANIFEST_BOUNDS
from webhook.documents.document import Document
from webhook.documents.reader import DOCUMENT_SUFFIXES, is_document_file, iter_documents
from webhook.errors import DocumentError, SourceLocation, TemplateError
from webhook.model.field_paths import FieldPath

SHELL_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What a shell hands over: standard input, and the pipes of `<(...)`. Somebody writes to them for sure."""


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
STDIN_EMPTY = SkippedDocument(
    SourceLocation(STDIN_NAME), "nothing came: did the program that writes to it fail?", broken=True
)


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
            yield SkippedDocument(
                SourceLocation(path), "a folder without YAML or JSON files: name another", broken=True
            )
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


def read_content(file: str, most: int) -> bytes:
    """The beginning of a file, at most so many bytes.

    Raises:
        OSError: it cannot be read, or is no file: a pipe that nobody writes to would be waited for without end.
    """
    if not file.startswith(SHELL_STREAMS):
        _reject_special_file(file, Path(file).stat().st_mode)
    with Path(file).open("rb") as stream:
        return stream.read(most)


def _reject_special_file(file: str, mode: int) -> None:
    if S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "a pipe, and no file. Give what it holds on standard input, as -", file)
    if not S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", file)


def document_files(path: str) -> list[str]:
    """The file itself, or every YAML and JSON file under a folder; hidden folders and files are left out."""
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    found = sorted(folder.rglob("*"))
    return [str(file) for file in found if is_document_file(file.relative_to(folder).parts) and file.is_file()]


def skipped_paths(path: str) -> Iterator[tuple[str, str]]:
    """What is under a folder as if it were a file to read and is none, with the reason: links and pipes."""
    folder = Path(path)
    for file in _visible_paths(folder) if folder.is_dir() else ():
        reason = _skip_reason(file)
        if reason:
            yield str(file), reason


def _visible_paths(folder: Path) -> list[Path]:
    found = folder.rglob("*")
    return sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(folder).parts))


def _skip_reason(file: Path) -> str:
    if file.is_symlink() and file.is_dir():
        return "a link to a folder: links are not followed, name the folder itself"
    if (file.suffix and file.suffix not in DOCUMENT_SUFFIXES) or file.is_dir() or file.is_file():
        return ""
    if not file.is_symlink():
        return "no regular file" if file.suffix else ""
    try:
        file.stat()
    except OSError as error:
        circles = error.errno == errno.ELOOP
        return "a link that leads round in a circle" if circles else "a link to what is not there"
    return "a link to no regular file"
