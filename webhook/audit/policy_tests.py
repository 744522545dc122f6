"""Run GPUPolicyTest files: each case is one `evaluate_object` in the world that the file describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path as FilePath
from typing import Any

from webhook.audit.adjusted_view import with_only_namespace_labels
from webhook.audit.evaluate import DEFAULT_NAMESPACE, EvaluationContext, evaluate_object, written_namespace
from webhook.audit.object_files import (
    MAX_FILE_BYTES,
    SkippedDocument,
    SourceObject,
    document_files,
    read_content,
    read_objects,
)
from webhook.cache.snapshot import DEMO, read_snapshot_view, view_of_objects
from webhook.documents.document import Document
from webhook.errors import LocatedError, SourceLocation
from webhook.model.cluster_view import ClusterView
from webhook.model.defaulting import default_object
from webhook.model.enums import PolicyMode
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.policy.policy_tests import (
    POLICY_TEST_KIND,
    PathOrManifest,
    PolicyTestCase,
    PolicyTestFile,
    load_test_files,
)
from webhook.policy.written.policy_test import ExpectSpec
from webhook.report.object_diff import apply_json_patch, diff_lines, object_without_records
from webhook.report.policy_tests import CaseResult, FileResult
from webhook.report.results import CheckResult, CheckVerdict

Json = dict[str, Any]


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


def run_test_case(
    case: PolicyTestCase, beside: FilePath, policies: PolicySet, view: ClusterView, now: datetime
) -> CaseResult:
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


def case_problems(result: CheckResult, expect: ExpectSpec, patched: Json | None) -> Iterator[str]:
    """Everything that came out otherwise, as "want …, got …".

    Args:
        patched: The object that is wanted after the patch; None: not compared.
    """
    if result.verdict is CheckVerdict.SKIPPED:
        yield f"want a verdict, got none: {result.reason}"
        return
    yield from _verdict_problems(result, expect)
    shaped = apply_json_patch(result.stored, result.decision.patch)
    if expect.unchanged is not None and expect.unchanged == bool(result.decision.patch):
        changed = "; ".join(diff_lines(result.stored, object_without_records(shaped, result.stored)))
        yield f"want {'no change' if expect.unchanged else 'a change'}, got {changed or 'none'}"
    yield from _limits_problems(shaped, expect.limits or {})
    if patched is not None:
        wanted = default_object(patched, result.namespace)
        yield from (f"patched: {line}" for line in diff_lines(wanted, object_without_records(shaped, wanted)))


def _verdict_problems(result: CheckResult, expect: ExpectSpec) -> Iterator[str]:
    decision = result.decision
    allowed = not decision.denials
    if allowed != expect.allowed:
        reasons = _format_codes(found.code for found in decision.denials)
        by = ", ".join(f"{taken.finding.code} taken back by {taken.exemption}" for taken in decision.exempted)
        got = f"allowed{f' ({by})' if by else ''}" if allowed else f"denied {reasons}"
        yield f"want {'allowed' if expect.allowed else 'denied'}, got {got}"
    said = _format_codes(found.code for found in decision.findings if found.mode is not PolicyMode.AUDIT)
    noted = _format_codes(found.code for found in decision.findings if found.mode is PolicyMode.AUDIT)
    if expect.codes is not None and _format_codes(expect.codes) != said:
        yield f"want codes {_format_codes(expect.codes)}, got {said}"
    if expect.audited is not None and _format_codes(expect.audited) != noted:
        yield f"want audited {_format_codes(expect.audited)}, got {noted}"


def _format_codes(codes: Iterable[str]) -> str:
    return ", ".join(sorted(set(codes))) or "none"


def _limits_problems(shaped: Any, wanted: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """GPU resources must be exactly those wanted; of the others, those that are named."""
    containers = {each.get("name"): each for each in all_containers(shaped)}
    for name, limits in wanted.items():
        if name not in containers:
            yield f"want limits of container {name}, got containers {', '.join(map(str, containers)) or 'none'}"
            continue
        found = _map_or_empty(_map_or_empty(containers[name].get("resources")).get("limits"))
        counted = {
            key: str(value) for key, value in found.items() if key in limits or parse_gpu_resource(key) is not None
        }
        if counted != dict(limits):
            yield f"want limits of {name} {_format_limits(limits)}, got {_format_limits(counted)}"


def all_containers(data: Any) -> Iterator[Json]:
    """The containers of a pod, init containers first."""
    spec = _map_or_empty(_map_or_empty(data).get("spec"))
    for key in ("initContainers", "containers"):
        found = spec.get(key)
        yield from (each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _format_limits(limits: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(limits.items())) or "none"


def _map_or_empty(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
