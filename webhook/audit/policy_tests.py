"""Runs GPUPolicyTest files: evaluates each case in the cluster that its file describes, and compares the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from webhook.audit.adjusted_view import with_only_namespace_labels
from webhook.audit.evaluate import EvaluationContext, evaluate_object, written_namespace
from webhook.audit.object_files import (
    MAX_FILE_BYTES,
    SkippedDocument,
    SourceObject,
    document_files,
    read_content,
    read_objects,
)
from webhook.cache.snapshot import read_snapshot, view_of_objects
from webhook.documents.document import Document
from webhook.errors import LocatedError, SourceLocation, read_problem
from webhook.model.cluster_view import ClusterView
from webhook.model.defaulting import default_object
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import map_at
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.pods import DEFAULT_NAMESPACE
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.policy.policy_tests import (
    POLICY_TEST_KIND,
    ExpectSpec,
    PathOrManifest,
    PolicyTestCase,
    PolicyTestFile,
    load_test_files,
)
from webhook.report.object_diff import apply_json_patch, diff_lines, object_without_records
from webhook.report.policy_tests import CaseResult, FileResult
from webhook.report.results import CheckResult, CheckVerdict
from webhook.well_known import DEMO, Json


class PolicyTestError(LocatedError):
    """A test cannot be run: a file that it names is missing or invalid."""


def find_test_files(paths: Iterable[str]) -> Iterator[str]:
    """Yield the files under some paths that contain policy tests."""
    for path in paths:
        for file in _list_test_files(path, SourceLocation(path)):
            if POLICY_TEST_KIND.encode() in read_test_bytes(file, SourceLocation(file)):
                yield file


def run_test_file(file: str, now: datetime) -> FileResult:
    """Run every case of a file; `now` is the time of cases that set none."""
    try:
        tests, errors = load_test_files(read_test_bytes(file, SourceLocation(file)), file)
        if errors:
            return FileResult(file, (), errors)
        results = []
        for test in tests:
            folder = Path(test.location.file).parent
            policies, view = load_test_policies(test, folder), view_of_objects(())
            if test.cluster:
                name = DEMO if test.cluster == DEMO else str(_resolve_path(folder, test.cluster))
                view = read_snapshot(name).view
            results += [run_test_case(case, folder, policies, view, now) for case in test.cases]
        return FileResult(file, tuple(results), tests=tuple([test.name for test in tests]))
    except LocatedError as error:
        return FileResult(file, (), (error,))


def run_test_case(
    case: PolicyTestCase, folder: Path, policies: PolicySet, view: ClusterView, now: datetime
) -> CaseResult:
    """Run one case. Paths are relative to the folder of the test file."""
    spec = case.spec
    source = load_case_object(spec.pod, folder, case.location)
    if spec.namespace is not None:
        metadata = {**(source.data.get("metadata") or {}), "namespace": spec.namespace.name}
        source = SourceObject({**source.data, "metadata": metadata}, source.document, source.prefix)
    namespace = written_namespace(source.data) or DEFAULT_NAMESPACE
    labels = spec.namespace.labels if spec.namespace is not None else None
    context = EvaluationContext(
        policies=policies,
        view=view if labels is None else with_only_namespace_labels(view, namespace, labels),
        now=case.now or now,
        user=spec.user,
    )
    result = evaluate_object(source, context, operation=spec.operation)
    patched = spec.expect.patched
    expected = load_case_object(patched, folder, case.location).data if patched is not None else None
    return CaseResult(spec.name, case.location, tuple(case_problems(result, spec.expect, expected)))


def load_test_policies(test: PolicyTestFile, folder: Path) -> PolicySet:
    """Load the policies of a test; raises the first error if they cannot be used."""
    paths = [str(_resolve_path(folder, path)) for path in test.policies]
    files = [file for path in paths for file in _list_test_files(path, test.location)]
    loaded = load_policies((file, read_test_bytes(file, test.location)) for file in files)
    if loaded.policies is None:
        raise loaded.errors[0]
    return loaded.policies


def load_case_object(given: PathOrManifest, folder: Path, place: SourceLocation) -> SourceObject:
    """Load the object of a case: written inline, or the only object of a file."""
    if isinstance(given, Mapping):
        for key in ("apiVersion", "kind"):
            if not isinstance(given.get(key), str):
                raise PolicyTestError(place, f"pod must be a Kubernetes object, found none with {key}. Write {key}")
        return SourceObject(dict(given), Document(given, place.file, (place.line, place.column)))
    file = str(_resolve_path(folder, given))
    found: Sequence[SourceObject | SkippedDocument] = list(read_objects([file]))
    if len(found) == 1 and isinstance(found[0], SourceObject):
        return found[0]
    reason = next((each.reason for each in found if isinstance(each, SkippedDocument)), f"{len(found)} objects")
    raise PolicyTestError(place, f"must name a file with one Kubernetes object, found {file}: {reason}")


def _resolve_path(folder: Path, path: str) -> Path:
    """Return a path of a test file relative to the current directory, if it is below it."""
    joined = folder / path
    try:
        return joined.resolve().relative_to(Path.cwd())
    except ValueError:
        return joined


def read_test_bytes(file: str, place: SourceLocation) -> bytes:
    """Read a file that a test needs; raises PolicyTestError if it cannot be read."""
    try:
        return read_content(file, MAX_FILE_BYTES)
    except OSError as error:
        raise _unreadable(file, place, error) from error


def _list_test_files(path: str, place: SourceLocation) -> list[str]:
    try:
        return document_files(path)
    except OSError as error:
        raise _unreadable(str(error.filename or path), place, error) from error


def _unreadable(file: str, place: SourceLocation, error: OSError) -> PolicyTestError:
    named = "" if place.file == file else f"{file} "
    return PolicyTestError(place, f"{named}{read_problem(error)}")


def case_problems(result: CheckResult, expect: ExpectSpec, patched: Json | None) -> Iterator[str]:
    """Yield every difference from the expected result and patched object, as "want …, got …"."""
    if result.verdict is CheckVerdict.SKIPPED:
        yield f"want a verdict, got none: {result.reason}"
        return
    yield from _verdict_problems(result, expect)
    actual = apply_json_patch(result.stored, result.decision.patch)
    if expect.unchanged is not None and expect.unchanged == bool(result.decision.patch):
        changed = "; ".join(diff_lines(result.stored, object_without_records(actual, result.stored)))
        yield f"want {'no change' if expect.unchanged else 'a change'}, got {changed or 'none'}"
    yield from _limits_problems(actual, expect.limits or {})
    if patched is not None:
        expected = default_object(patched, result.namespace)
        yield from (f"patched: {line}" for line in diff_lines(expected, object_without_records(actual, expected)))


def _verdict_problems(result: CheckResult, expect: ExpectSpec) -> Iterator[str]:
    decision = result.decision
    allowed = not decision.denials
    if allowed != expect.allowed:
        denials = _format_codes(finding.code for finding in decision.denials)
        exempted = ", ".join(f"{each.finding.code} exempted by {each.exemption}" for each in decision.exempted)
        got = f"allowed{f' ({exempted})' if exempted else ''}" if allowed else f"denied {denials}"
        yield f"want {'allowed' if expect.allowed else 'denied'}, got {got}"
    reported = _format_codes(each.code for each in decision.findings if each.mode is not PolicyMode.AUDIT)
    audited = _format_codes(each.code for each in decision.findings if each.mode is PolicyMode.AUDIT)
    if expect.codes is not None and _format_codes(expect.codes) != reported:
        yield f"want codes {_format_codes(expect.codes)}, got {reported}"
    if expect.audited is not None and _format_codes(expect.audited) != audited:
        yield f"want audited {_format_codes(expect.audited)}, got {audited}"


def _format_codes(codes: Iterable[str]) -> str:
    return ", ".join(sorted(set(codes))) or "none"


def _limits_problems(pod: Any, expected: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Compare all GPU resources, and of the other resources those that are named."""
    containers = {each.get("name"): each for each in all_containers(pod)}
    for name, limits in expected.items():
        if name not in containers:
            yield f"want limits of container {name}, got containers {', '.join(map(str, containers)) or 'none'}"
            continue
        written = map_at(containers[name], "resources", "limits")
        compared = {
            key: str(value) for key, value in written.items() if key in limits or parse_gpu_resource(key) is not None
        }
        if compared != dict(limits):
            yield f"want limits of {name} {_format_limits(limits)}, got {_format_limits(compared)}"


def all_containers(data: Any) -> Iterator[Json]:
    """Yield the containers of a pod, init containers first."""
    for key in ("initContainers", "containers"):
        found = map_at(data, "spec").get(key)
        yield from (each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _format_limits(limits: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(limits.items())) or "none"
