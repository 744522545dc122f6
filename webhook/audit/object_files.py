"""Reads Kubernetes objects from files, folders and standard input, with the position of every field.

Everything is reported: what is not an object is returned as `SkippedDocument`, with the reason.

Objects whose pods are not known here: they name GPUs where the table of kinds has no pods.

Their pods are still checked at admission, but nothing can be said about them before. The only objects said to run no
pods are those of API groups that are known to have no workloads.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from typing import Any, NamedTuple

import msgspec

from webhook.cache.bundled_files import shown_name
from webhook.cache.folder_documents import folder_files, is_folder, list_folder
from webhook.documents.document import MANIFEST_BOUNDS, Document
from webhook.documents.reader import iter_documents
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.engine.templates import PodTemplate, find_values
from webhook.errors import DocumentError, SourceLocation, TemplateError, read_problem
from webhook.model.admission import AdmissionRequest
from webhook.model.field_paths import FieldPath, format_path
from webhook.policy.workload_kinds import PODLESS_GROUPS, WorkloadKinds
from webhook.well_known import Json

SHELL_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Paths that a shell passes: standard input, and the pipes of `<(...)`, which always have a writer."""

STDIN = "-"
STDIN_NAME = "stdin"
MAX_FILE_BYTES = MANIFEST_BOUNDS.size + 1
"""Bytes to read of a file: one more than is accepted, so that no file fills the memory."""


class SourceObject(msgspec.Struct, frozen=True):
    """A Kubernetes object and its position in a file.

    Attributes:
        prefix: Its path in the document: () or ("items", 3).
    """

    data: Json
    document: Document
    prefix: FieldPath = ()

    def locate(self, path: FieldPath = ()) -> SourceLocation:
        """Return the position of a field of the object, or of its nearest written parent."""
        return self.document.locate((*self.prefix, *path))


class SkippedDocument(msgspec.Struct, frozen=True):
    """A document or file that is not a Kubernetes object.

    Attributes:
        reason: Why, and what to do about it.
        invalid: It is invalid input, such as a missing file or invalid YAML.
    """

    location: SourceLocation
    reason: str
    invalid: bool = False


STDIN_TWICE = SkippedDocument(SourceLocation(STDIN_NAME), "named twice: standard input can be read once", invalid=True)
STDIN_EMPTY = SkippedDocument(
    SourceLocation(STDIN_NAME), "no input; the previous program in the pipe may have failed", invalid=True
)
NOT_AN_OBJECT = "not a Kubernetes object: it must be a map with apiVersion and kind"


def read_objects(paths: Iterable[str]) -> Iterator[SourceObject | SkippedDocument]:
    """Read files, folders (their YAML and JSON files, sorted by name) and "-" for standard input."""
    read_stdin = False
    for path in paths:
        if path == STDIN:
            yield from [STDIN_TWICE] if read_stdin else _read_stdin()
            read_stdin = True
        elif is_folder(Path(path)):
            yield from _read_folder(path)
        else:
            yield from _read_file(path)


def _read_stdin() -> Iterator[SourceObject | SkippedDocument]:
    try:
        text = sys.stdin.buffer.read(MAX_FILE_BYTES)
    except OSError as error:
        yield _unreadable(STDIN_NAME, error)
    else:
        yield from parse_objects(STDIN_NAME, text) if text.strip() else [STDIN_EMPTY]


def _read_folder(path: str) -> Iterator[SourceObject | SkippedDocument]:
    entries = list_folder(Path(path))
    if all(entry.reason and entry.error is None for entry in entries):
        yield SkippedDocument(SourceLocation(path), "a folder without YAML or JSON files: name another", invalid=True)
    for entry in entries:
        if not entry.reason:
            yield from _read_file(str(entry.path))
    for entry in entries:
        if entry.reason:
            yield SkippedDocument(SourceLocation(str(entry.path)), entry.reason, invalid=entry.error is not None)


def _read_file(file: str) -> Iterator[SourceObject | SkippedDocument]:
    try:
        text = read_content(file, MAX_FILE_BYTES)
    except OSError as error:
        yield _unreadable(file, error)
    else:
        yield from parse_objects(shown_name(file), text)


def _unreadable(file: str, error: OSError) -> SkippedDocument:
    return SkippedDocument(SourceLocation(file), read_problem(error), invalid=True)


def parse_objects(file: str, text: bytes) -> Iterator[SourceObject | SkippedDocument]:
    """Parse the objects of one file. An invalid document does not affect the others."""
    empty = True
    for found in iter_documents(text, file, aliases=True):
        empty = False
        if isinstance(found, DocumentError):
            yield SkippedDocument(found.location, found.message, invalid=not isinstance(found, TemplateError))
        elif reason := _reject_reason(found):
            yield SkippedDocument(found.locate(()), reason)
        else:
            yield from _expand_list(SourceObject(found.data, found))
    if empty:
        yield SkippedDocument(SourceLocation(file), "an empty file")


def _reject_reason(document: Document) -> str:
    data, name = document.data, Path(document.file).name
    if not isinstance(data, dict):
        return NOT_AN_OBJECT
    if data.get("kind") == "Kustomization" or name in ("kustomization.yaml", "kustomization.yml"):
        return "a kustomization: build it first, for example kustomize build . | rightslice check -"
    missing = [key for key in ("apiVersion", "kind") if not isinstance(data.get(key), str)]
    return f"not a Kubernetes object: it has no {' and no '.join(missing)}" if missing else ""


def _expand_list(source: SourceObject) -> Iterator[SourceObject | SkippedDocument]:
    """Yield the object, or the items of a List. Items of a typed list get their kind from it, as in the API."""
    kind, items = source.data["kind"], source.data.get("items")
    if kind == "List" and not isinstance(items, list):
        yield SkippedDocument(source.locate(("items",)), "must be a list, as items of a List are", invalid=True)
        return
    if not kind.endswith("List") or not isinstance(items, list):
        yield source
        return
    head = {} if kind == "List" else {"apiVersion": source.data["apiVersion"], "kind": kind.removesuffix("List")}
    for i, item in enumerate(items):
        prefix: FieldPath = (*source.prefix, "items", i)
        whole = {**head, **item} if isinstance(item, dict) else {}
        if not all(isinstance(whole.get(key), str) for key in ("apiVersion", "kind")):
            yield SkippedDocument(source.document.locate(prefix), NOT_AN_OBJECT)
        else:
            yield from _expand_list(SourceObject(whole, source.document, prefix))


def read_content(file: str, most: int) -> bytes:
    """Return the first bytes of a file.

    Raises:
        OSError: it cannot be read, or is a special file: reading a pipe without a writer would never end.
    """
    if not file.startswith(SHELL_STREAMS):
        mode = Path(file).stat().st_mode
        if S_ISFIFO(mode):
            raise OSError(errno.EINVAL, "a pipe, not a file. Pass its content on standard input, as -", file)
        if not S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", file)
    with Path(file).open("rb") as stream:
        return stream.read(most)


def document_files(path: str) -> list[str]:
    """Return the file itself, or all YAML and JSON files in a folder except hidden ones.

    Raises:
        OSError: Some of the folder cannot be read, or vanished meanwhile.
    """
    folder = Path(path)
    return list(map(str, folder_files(folder))) if is_folder(folder) else [path]


NOT_A_WORKLOAD = "not a workload: it runs no pods"
NAMES_NO_GPUS = "not a known workload, and it names no GPUs"
STILL_CHECKED = "its pods are still checked at admission"

GPU_PREFIX = "nvidia.com/"
_IGNORED = (("apiVersion",), ("kind",), ("status",), ("metadata", "managedFields"))


class UnknownPods(NamedTuple):
    """The reason why the pods of an object are not evaluated.

    Attributes:
        path: The field from which they would be.
        reason: For people.
        quiet: The reason is not worth a line.
    """

    path: FieldPath
    reason: str
    quiet: bool = False


def describe_unknown_kind(data: Any, group: str) -> UnknownPods:
    """Return what is known about an object of a kind that is not in the table."""
    if group in PODLESS_GROUPS:
        return UnknownPods((), NOT_A_WORKLOAD, quiet=True)
    if (path := next(_gpu_mentions(data), None)) is not None:
        found = f"it names GPUs at {format_path(path)}"
    elif (path := next(_container_lists(data), None)) is not None:
        found = f"it has containers at {format_path(path)}"
    else:
        return UnknownPods((), NAMES_NO_GPUS, quiet=True)
    fix = "Add it to spec.match.templates of a policy"
    return UnknownPods(path, f"{data['kind']} is an unknown kind: {found}; {STILL_CHECKED}. {fix}")


def find_unread_pods(
    request: AdmissionRequest, templates: Sequence[PodTemplate], kinds: WorkloadKinds
) -> UnknownPods | None:
    """Return where a workload of a known kind gets GPUs in a way that is not read; None if its templates name GPUs."""
    if request.pod is not None or any(_requests_gpus(each) for each in templates):
        return None
    data, known = request.load_object(), kinds[request.group, request.kind]
    incomplete = [each for each in templates if not all(one.resources.limits for one in each.pod.spec.containers)]
    for keys in known.unread if incomplete or not templates else ():
        for path in find_values(data, keys):
            return UnknownPods(
                path,
                f"{format_path(path)} may give its pods GPUs; Rightslice does not read this field; {STILL_CHECKED}",
            )
    places = [each.path for each in templates]
    for path in _gpu_mentions({"spec": data.get("spec")}):
        if not any(path[: len(place)] == place for place in places):
            where = f"{format_path(path)} names GPUs, but Rightslice knows no pod template there"
            return UnknownPods(path, f"{where}; {STILL_CHECKED}")
    return None


def _requests_gpus(template: PodTemplate) -> bool:
    found = gpu_requests_of_pod(template.pod)
    return bool(found.requests or found.unknown_resources)


def _gpu_mentions(data: Any) -> Iterator[FieldPath]:
    """Yield the fields whose name or text contains nvidia.com/."""
    for path, key, value in _walk(data):
        if GPU_PREFIX in key or (isinstance(value, str) and GPU_PREFIX in value):
            yield path


def _container_lists(data: Any) -> Iterator[FieldPath]:
    for path, key, value in _walk(data):
        if key == "containers" and isinstance(value, list):
            yield path


def _walk(data: Any) -> Iterator[tuple[FieldPath, str, Any]]:
    """Yield every field of an object with its path and name, without those that the API server maintains."""
    stack: list[tuple[FieldPath, str, Any]] = [((), "", data)]
    while stack:
        path, key, value = stack.pop()
        if path in _IGNORED:
            continue
        yield path, key, value
        if isinstance(value, dict):
            stack += [((*path, name), str(name), member) for name, member in reversed(value.items())]
        elif isinstance(value, list):
            stack += [((*path, i), "", member) for i, member in reversed(list(enumerate(value)))]
