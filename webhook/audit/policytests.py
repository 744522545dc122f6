"""Run GPUPolicyTest files: each case is one `check` in the world that the file describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path as FilePath
from typing import Any

from webhook.audit.checking import DEFAULT_NAMESPACE, World, check, namespace_of
from webhook.audit.expecting import problems
from webhook.audit.files import content_of, files_under
from webhook.audit.manifests import ENOUGH, Entry, Passed, objects_in
from webhook.audit.views import with_namespace
from webhook.cache.snapshot import DEMO, load_snapshot, snapshot_of
from webhook.documents.places import Document
from webhook.errors import Place, PlacedError
from webhook.model.cluster import ClusterView
from webhook.policy.cases import KIND, Case, PathOrObject, TestFile, read_tests
from webhook.policy.compiled import PolicySet
from webhook.policy.loading import load
from webhook.report.cases import CaseResult, FileResult


class CannotRunError(PlacedError):
    """A test cannot be run: a file it names is not there, or is not what it must be."""


def files_with_tests(paths: Iterable[str]) -> Iterator[str]:
    """The files under some paths in which there are policy tests."""
    for path in paths:
        for file in files_under(path):
            if KIND.encode() in read_bytes(file, Place(file)):
                yield file


def run_file(file: str, now: datetime) -> FileResult:
    """Run every case of a file.

    Args:
        now: The moment for cases that give none.
    """
    try:
        tests, faults = read_tests(read_bytes(file, Place(file)), file)
        if faults:
            return FileResult(file, (), faults)
        return FileResult(file, tuple(result for test in tests for result in _run(test, now)))
    except PlacedError as fault:
        return FileResult(file, (), (fault,))


def _run(test: TestFile, now: datetime) -> Iterator[CaseResult]:
    beside = FilePath(test.place.file).parent
    policies, view = policies_of(test, beside), cluster_of(test, beside)
    for case in test.cases:
        yield run_case(case, beside, policies, view, now)


def run_case(case: Case, beside: FilePath, policies: PolicySet, view: ClusterView, now: datetime) -> CaseResult:
    """Run one case.

    Args:
        beside: The folder of the test file, which paths are relative to.
    """
    entry = _in_namespace(object_of(case.pod, beside, case.place), case.namespace)
    namespace = namespace_of(entry.data) or DEFAULT_NAMESPACE
    labels = case.namespace_labels
    world = World(
        policies=policies,
        view=view if labels is None else with_namespace(view, namespace, labels),
        now=case.now or now,
        user=case.user,
    )
    result = check(entry, world, operation=case.operation)
    patched = case.expect.patched
    want = object_of(patched, beside, case.place).data if patched is not None else None
    return CaseResult(case.name, case.place, tuple(problems(result, case.expect, want)))


def policies_of(test: TestFile, beside: FilePath) -> PolicySet:
    """The policies a test is about.

    Raises:
        PlacedError: they cannot be used; the first fault.
    """
    files = [file for path in test.policies for file in files_under(str(_joined(beside, path)))]
    loaded = load((file, read_bytes(file, test.place)) for file in files)
    if loaded.policies is None:
        raise loaded.errors[0]
    return loaded.policies


def cluster_of(test: TestFile, beside: FilePath) -> ClusterView:
    """The cluster a test happens in; one of which nothing is known where none is given.

    Raises:
        SnapshotError: it cannot be used.
    """
    if not test.cluster:
        return snapshot_of(())
    return load_snapshot(DEMO if test.cluster == DEMO else str(_joined(beside, test.cluster)))


def object_of(given: PathOrObject, beside: FilePath, place: Place) -> Entry:
    """The object of a case: written there, or the one object of a file.

    Raises:
        CannotRunError: the file has no object, or more than one.
    """
    if isinstance(given, Mapping):
        return _inline(given, place)
    file = str(_joined(beside, given))
    found: Sequence[Entry | Passed] = list(objects_in([file]))
    if len(found) == 1 and isinstance(found[0], Entry):
        return found[0]
    reason = next((each.reason for each in found if isinstance(each, Passed)), f"{len(found)} objects")
    raise CannotRunError(place, f"must name a file with one Kubernetes object, found {file}: {reason}")


def _inline(given: Mapping[str, Any], place: Place) -> Entry:
    for key in ("apiVersion", "kind"):
        if not isinstance(given.get(key), str):
            raise CannotRunError(place, f"pod must be a Kubernetes object, found none with {key}. Write {key}")
    return Entry(dict(given), Document(given, place.file, (place.line, place.column)))


def _in_namespace(entry: Entry, namespace: str) -> Entry:
    if not namespace:
        return entry
    metadata = entry.data.get("metadata") or {}
    return Entry({**entry.data, "metadata": {**metadata, "namespace": namespace}}, entry.document, entry.prefix)


def _joined(beside: FilePath, path: str) -> FilePath:
    """A path as a test file writes it, without the way up and down again."""
    joined = beside / path
    try:
        return joined.resolve().relative_to(FilePath.cwd())
    except ValueError:
        return joined


def read_bytes(file: str, place: Place) -> bytes:
    """Read a file that a test needs.

    Raises:
        CannotRunError: it cannot be read.
    """
    try:
        return content_of(file, ENOUGH)
    except OSError as error:
        raise CannotRunError(place, f"must be able to read {file}, found: {error.strerror or error}") from error
