"""load_test_files: cases, or all errors, of GPUPolicyTest files."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.policy.policy_texts import policy_text
from webhook.errors import SourceLocation
from webhook.policy.policy_tests import CaseNamespaceSpec, CaseSpec, ExpectSpec, PolicyTestCase, load_test_files

HEAD = "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicyTest\nmetadata: {name: t}\npolicies: [../p.yaml]\n"
WHOLE = (
    HEAD
    + """\
given: {now: "2026-06-01T00:00:00Z", cluster: demo}
cases:
  - name: three GPUs are rejected
    pod: pods/three.yaml
    namespace: {name: vision-dev, labels: {tier: research}}
    expect: {allowed: false, codes: [GPU-L102, GPU-S101], audited: []}
  - name: the exemption has ended
    given: {now: "2026-12-02T00:00:00+01:00"}
    operation: UPDATE
    user: alice
    pod: {apiVersion: v1, kind: Pod}
    expect:
      allowed: true
      patched: pods/after.yaml
      limits: {main: {nvidia.com/mig-1g.10gb: "1"}}
      unchanged: false
"""
)


def test_a_complete_file() -> None:
    (test,), errors = load_test_files(WHOLE, "t.yaml")
    assert errors == ()
    assert (test.name, test.policies, test.cluster) == ("t", ("../p.yaml",), "demo")
    first, second = test.cases
    spec = CaseSpec(
        name="three GPUs are rejected",
        pod="pods/three.yaml",
        namespace=CaseNamespaceSpec(name="vision-dev", labels={"tier": "research"}),
        expect=ExpectSpec(allowed=False, codes=("GPU-L102", "GPU-S101"), audited=()),
    )
    assert first == PolicyTestCase(spec, SourceLocation("t.yaml", 7, 5), datetime(2026, 6, 1, tzinfo=UTC))
    assert first.spec.operation == "CREATE"
    assert second.now == datetime(2026, 12, 1, 23, tzinfo=UTC)
    assert (second.spec.operation, second.spec.user) == ("UPDATE", "alice")
    assert (second.spec.pod, second.spec.namespace) == ({"apiVersion": "v1", "kind": "Pod"}, None)
    assert second.spec.expect == ExpectSpec(
        allowed=True,
        patched="pods/after.yaml",
        limits={"main": {"nvidia.com/mig-1g.10gb": "1"}},
        unchanged=False,
    )


ERRORS = {
    "no cases": (HEAD + "cases: []", "t.yaml:5:8: cases: must not be empty"),
    "no expectation": (
        HEAD + "cases: [{name: a, pod: b}]",
        "t.yaml:5:9: cases[0]: must have the field expect, found none. Write expect: {allowed: true}",
    ),
    "an empty expectation": (
        HEAD + "cases: [{name: a, pod: b, expect: {}}]",
        "t.yaml:5:35: cases[0].expect: must have the field allowed, found none. Write allowed: true or allowed: false",
    ),
    "a misspelled expectation": (
        HEAD + "cases: [{name: a, pod: b, expect: {allowed: true, code: [GPU-S101]}}]",
        "t.yaml:5:51: cases[0].expect.code: must be a field of expect, found 'code'. Did you mean codes? Write codes",
    ),
    "text instead of a boolean": (
        HEAD + 'cases: [{name: a, pod: b, expect: {allowed: "true"}}]',
        "t.yaml:5:45: cases[0].expect.allowed: must be true or false, found 'true'. "
        "Write true or false, without quotes",
    ),
    "a list instead of the pod": (
        HEAD + "cases: [{name: a, pod: [b], expect: {allowed: true}}]",
        "t.yaml:5:24: cases[0].pod: must be the path of a file, or an object written here, found [b]. "
        "Write a path such as pods/one-gpu.yaml",
    ),
    "two cases with the same name": (
        HEAD + "cases: [{name: a, pod: b, expect: {allowed: true}}, {name: a, pod: b, expect: {allowed: true}}]",
        "t.yaml:5:60: cases[1].name: must be unique among the cases, found 'a'. Write another name",
    ),
    "no policies": (
        HEAD.replace("policies: [../p.yaml]", "given: {}") + "cases: [{name: a, pod: b, expect: {allowed: true}}]",
        "t.yaml:1:1: GPUPolicyTest: must have the field policies, found none. Write policies: [../my-policy.yaml]",
    ),
    "a pod instead of a test": (
        "apiVersion: v1\nkind: Pod",
        "t.yaml:1:13: apiVersion: must be rightslice.dev/v1alpha1, found 'v1'",
    ),
    "invalid YAML": ("a: [", "t.yaml:2:1: must be YAML, found a syntax error"),
}


@pytest.mark.parametrize(("text", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_have_a_location_and_a_fix(text: str, message: str) -> None:
    tests, (error,) = load_test_files(text, "t.yaml")
    assert tests == ()
    assert str(error)[: len(message)] == message


def test_policies_in_the_file_are_ignored() -> None:
    tests, errors = load_test_files(policy_text() + "\n", "t.yaml")
    assert (tests, errors) == ((), ())
