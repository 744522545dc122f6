"""Run GPUPolicyTest files: each case is one `evaluate_object` in the world that the file describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path as FilePath
from typing import Any

from webhook.audit.checking import DEFAULT_NAMESPACE, EvaluationContext, evaluate_object, written_namespace
from webhook.audit.expecting import case_problems
from webhook.audit.files import read_content, document_files
from webhook.audit.manifests import MAX_FILE_BYTES, SourceObject, SkippedDocument, read_objects
from webhook.audit.views import with_only_namespace_labels
from webhook.cache.snapshot import DEMO, read_snapshot_view, view_of_objects
from webhook.documents.places import Document
from webhook.errors import SourceLocation, LocatedError
from webhook.model.cluster import ClusterView
from webhook.policy.cases import POLICY_TEST_KIND, PolicyTestCase, PathOrManifest, PolicyTestFile, load_test_files
from webhook.policy.compiled import PolicySet
from webhook.policy.loading import load_policies
from webhook.report.cases import CaseResult, FileResult


class PolicyTestError(LocatedError):
    """A test cannot be run: a file it names is not there, or is not what it must be."""


def find_test_files(paths: Iterable[str]) -> Iterator[str]:
    """The files under some paths in which there are policy tests."""
    for path in paths:
        for file in document_files(path):
            if POLICY_TEST_KIND.encode() in read_test_bytes(file, SourceLocation(file)):
                yield file


def run_test_file(file: str, now: datetime) -> FileResult:
    """Run every case of a file.

    Args:
        now: The moment for cases that give none.
    """
    try:
        tests, faults = load_test_files(read_test_bytes(file, SourceLocation(file)), file)
        if faults:
            return FileResult(file, (), faults)
        return FileResult(file, tuple(result for test in tests for result in _run_test(test, now)))
    except LocatedError as fault:
        return FileResult(file, (), (fault,))


def _run_test(test: PolicyTestFile, now: datetime) -> Iterator[CaseResult]:
    beside = FilePath(test.location.file).parent
    policies, view = load_test_policies(test, beside), load_test_cluster(test, beside)
    for case in test.cases:
        yield run_test_case(case, beside, policies, view, now)


def run_test_case(case: PolicyTestCase, beside: FilePath, policies: PolicySet, view: ClusterView, now: datetime) -> CaseResult:
    """Run one case.

    Args:
        beside: The folder of the test file, which paths are relative to.
    """
    entry = _with_namespace(load_case_object(case.pod, beside, case.location), case.namespace)
    namespace = written_namespace(entry.data) or DEFAULT_NAMESPACE
    labels = case.namespace_labels
    world = EvaluationContext(
        policies=policies,
        view=view if labels is None else with_only_namespace_labels(view, namespace, labels),
        now=case.now or now,
        user=case.user,
    )
    result = evaluate_object(entry, world, operation=case.operation)
    patched = case.expect.patched
    want = load_case_object(patched, beside, case.location).data if patched is not None else None
    return CaseResult(case.name, case.location, tuple(case_problems(result, case.expect, want)))


def load_test_policies(test: PolicyTestFile, beside: FilePath) -> PolicySet:
    """The policies a test is about.

    Raises:
        PlacedError: they cannot be used; the first fault.
    """
    files = [file for path in test.policies for file in document_files(str(_resolve_path(beside, path)))]
    loaded = load_policies((file, read_test_bytes(file, test.location)) for file in files)
    if loaded.policies is None:
        raise loaded.errors[0]
    return loaded.policies


def load_test_cluster(test: PolicyTestFile, beside: FilePath) -> ClusterView:
    """The cluster a test happens in; one of which nothing is known where none is given.

    Raises:
        SnapshotError: it cannot be used.
    """
    if not test.cluster:
        return view_of_objects(())
    return read_snapshot_view(DEMO if test.cluster == DEMO else str(_resolve_path(beside, test.cluster)))


def load_case_object(given: PathOrManifest, beside: FilePath, place: SourceLocation) -> SourceObject:
    """The object of a case: written there, or the one object of a file.

    Raises:
        CannotRunError: the file has no object, or more than one.
    """
    if isinstance(given, Mapping):
        return _inline_object(given, place)
    file = str(_resolve_path(beside, given))
    found: Sequence[SourceObject | SkippedDocument] = list(read_objects([file]))
    if len(found) == 1 and isinstance(found[0], SourceObject):
        return found[0]
    reason = next((each.reason for each in found if isinstance(each, SkippedDocument)), f"{len(found)} objects")
    raise PolicyTestError(place, f"must name a file with one Kubernetes object, found {file}: {reason}")


def _inline_object(given: Mapping[str, Any], place: SourceLocation) -> SourceObject:
    for key in ("apiVersion", "kind"):
        if not isinstance(given.get(key), str):
            raise PolicyTestError(place, f"pod must be a Kubernetes object, found none with {key}. Write {key}")
    return SourceObject(dict(given), Document(given, place.file, (place.line, place.column)))


def _with_namespace(entry: SourceObject, namespace: str) -> SourceObject:
    if not namespace:
        return entry
    metadata = entry.data.get("metadata") or {}
    return SourceObject({**entry.data, "metadata": {**metadata, "namespace": namespace}}, entry.document, entry.prefix)


def _resolve_path(beside: FilePath, path: str) -> FilePath:
    """A path as a test file writes it, without the way up and down again."""
    joined = beside / path
    try:
        return joined.resolve().relative_to(FilePath.cwd())
    except ValueError:
        return joined


def read_test_bytes(file: str, place: SourceLocation) -> bytes:
    """Read a file that a test needs.

    Raises:
        CannotRunError: it cannot be read.
    """
    try:
        return read_content(file, MAX_FILE_BYTES)
    except OSError as error:
        raise PolicyTestError(place, f"must be able to read {file}, found: {error.strerror or error}") from error
