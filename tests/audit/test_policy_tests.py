"""Errors of policy tests and their positions; the output is a snapshot test."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from webhook.audit.policy_tests import run_test_file
from webhook.cache.bundled_files import bundled_folder

NOW = datetime(2026, 6, 1, tzinfo=UTC)
HEAD = "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicyTest\nmetadata: {name: t}\n"
POLICY = "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: p}\nspec: {mode: enforce}\n"
POD = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: []}}"
USES = "policies: [p.yaml]\n"


def case(pod: str, expect: str = "{allowed: true}", head: str = USES) -> str:
    return f"{HEAD}{head}cases:\n  - name: one\n    pod: {pod}\n    expect: {expect}\n"


INVALID_TESTS = {
    "a missing file": (case("nowhere.yaml"), "t.yaml:6:5", "nowhere.yaml: cannot be read"),
    "a file without an object": (case("empty.yaml"), "t.yaml:6:5", "an empty file"),
    "a file with two objects": (case("two.yaml"), "t.yaml:6:5", "2 objects"),
    "an object without a kind": (case("{apiVersion: v1}"), "t.yaml:6:5", "Write kind"),
    "missing policies": (case(POD, head="policies: [no.yaml]\n"), "t.yaml:1:1", "no.yaml"),
    "invalid policies": (case(POD, head="policies: [bad.yaml]\n"), "bad.yaml:4:14", "found 'Enforce'"),
    "a missing cluster": (case(POD, head=f"{USES}given: {{cluster: lost}}\n"), "lost", "no such file"),
    "an unknown field": (case(POD, "{allowed: true, cods: []}"), "t.yaml:8:29", "Did you mean codes?"),
    "invalid YAML": ("\t", "t.yaml:1:1", "tab"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(POLICY)
    (tmp_path / "bad.yaml").write_text(POLICY.replace("enforce", "Enforce"))
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    (tmp_path / "two.yaml").write_text(f"{POD}\n---\n{POD}\n")
    return tmp_path


@pytest.mark.parametrize(("text", "place", "sentence"), INVALID_TESTS.values(), ids=INVALID_TESTS)
def test_test_that_cannot_be_run_has_a_reason(
    text: str, place: str, sentence: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "t.yaml").write_text(text)
    monkeypatch.chdir(folder)
    result = run_test_file("t.yaml", NOW)
    assert result.cases == ()
    assert str(result.errors[0].location) == place
    assert sentence in result.errors[0].message


def test_object_that_is_not_evaluated_is_a_failure(folder: Path) -> None:
    file = folder / "t.yaml"
    file.write_text(case("{apiVersion: v1, kind: Service}"))
    [result] = run_test_file(str(file), NOW).cases
    assert result.problems == ("want a verdict, got none: not a workload: it runs no pods",)


def test_unexpected_denial_names_its_codes(folder: Path) -> None:
    (folder / "p.yaml").write_text(POLICY.replace("{mode: enforce}", "{mode: enforce, security: {deny: [nodeName]}}"))
    file = folder / "t.yaml"
    spec = "{nodeName: node-1, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}"
    pod = f"{{apiVersion: v1, kind: Pod, spec: {spec}}}"
    file.write_text(case(pod, "{allowed: true, unchanged: false}"))
    [result] = run_test_file(str(file), NOW).cases
    assert result.problems == ("want allowed, got denied GPU-S305", "want a change, got none")


LABELED = """\
apiVersion: v1
kind: Namespace
metadata: {name: team, labels: {tier: gold}}
"""
NAMESPACES = {
    "labels of the cluster are the default": ("{name: team}", False),
    "an empty map clears the labels of the cluster": ("{name: team, labels: {}}", True),
    "labels replace those of the cluster": ("{name: team, labels: {tier: lead}}", True),
    "labels of a new namespace": ("{name: other, labels: {tier: gold}}", False),
    "another namespace has no labels": ("{name: other}", True),
}


@pytest.mark.parametrize(("namespace", "allowed"), NAMESPACES.values(), ids=NAMESPACES)
def test_labels_of_a_case(namespace: str, allowed: bool, folder: Path) -> None:
    (folder / "cluster.yaml").write_text(LABELED)
    match = "{namespaceSelector: {matchLabels: {tier: gold}}}"
    deny = f"{{mode: enforce, match: {match}, security: {{deny: [nodeName]}}}}"
    (folder / "p.yaml").write_text(POLICY.replace("{mode: enforce}", deny))
    spec = "{nodeName: node-1, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}"
    pod = f"{{apiVersion: v1, kind: Pod, spec: {spec}}}\n    namespace: {namespace}"
    file = folder / "t.yaml"
    file.write_text(case(pod, f"{{allowed: {str(allowed).lower()}}}", head=f"{USES}given: {{cluster: cluster.yaml}}\n"))
    assert [result.problems for result in run_test_file(str(file), NOW).cases] == [()]


def test_default_time_is_the_callers(folder: Path) -> None:
    file = folder / "t.yaml"
    file.write_text(case(POD))
    assert [result.problems for result in run_test_file(str(file), NOW).cases] == [()]


def test_shipped_policies_pass_their_tests() -> None:
    files = sorted(str(file) for file in (bundled_folder("policies") / "tests").glob("*.yaml"))
    assert files
    results = [run_test_file(file, NOW) for file in files]
    assert [fault for result in results for fault in result.errors] == []
    assert [(case.name, case.problems) for result in results for case in result.cases if case.problems] == []
