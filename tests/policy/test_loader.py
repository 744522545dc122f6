"""load_policies: files to a PolicySet, all or nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policy.policy_texts import exception_text, load_policy, load_texts, policy_text
from webhook.cli.commands.policy import render_starter_policy
from webhook.errors import SourceLocation
from webhook.model.enums import EvidenceSource, FullCapacityAction, GpuForm, IsolationLevel, PolicyMode
from webhook.model.pods import NodeSelectorRequirement, Toleration
from webhook.model.quantity import NANO
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import NvlinkMode, SpreadMode

WHOLE = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata:
  name: whole
  labels: {app.kubernetes.io/part-of: rightslice}
  annotations: {example.com/runbook: "https://example.com/?a=b"}
  creationTimestamp: null
  managedFields: [{manager: kubectl}]
spec:
  description: Everything at once.
  mode: enforce
  failurePolicy: Fail
  match:
    operations: [CREATE]
    resources: [nvidia.com/gpu, "nvidia.com/mig-*"]
    namespaces: ["team-*"]
    excludeNamespaces: [team-free]
    namespaceSelector: {matchLabels: {tier: research}}
    objectSelector: {matchExpressions: [{key: skip, operator: DoesNotExist}]}
    matchConditions: [{name: named, expression: "object.metadata.name != ''"}]
    templates: [{apiGroup: example.com, kind: Trainer, paths: [spec.template, "spec.roles.*.template"]}]
  rightSizing:
    mode: warn
    isolation: memory
    forms: [mps, mig]
    evidence: [declared, default]
    default: {memory: 8Gi, compute: "12.5%"}
    marginPercent: 10
    risk: "0.25%"
    minSavingPercent: 30
    whenFull: wait
  limits:
    perPod: [{resource: nvidia.com/gpu, allowed: [8, 1, 2]}]
    perContainer: [{resource: memory, max: 500Gi}]
    perGPU: [{resource: cpu, default: 1500m, max: "24"}]
    limitRanges: ignore
    resourceQuotas: ignore
    accounting: native
  injection:
    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]
    nodeAffinity: {required: [{key: nvidia.com/gpu.memory, operator: Gt, values: ["40000"]}]}
    runtimeClassName: nvidia
    spread: required
    labels: {b: c, a: ""}
  topology: {nvlink: required, whenGPUsAtLeast: 4, multiNodeDomain: nvidia.com/gpu.clique}
  cuda: {driver: ignore, mode: audit}
  security: {deny: [privileged], allowedRuntimeClasses: [nvidia], allowedDriverCapabilities: [video]}
  exemptions:
    - name: nccl
      codes: [GPU-S201]
      match: {namespaces: [ml-infra], serviceAccounts: [bench], objectSelector: {matchLabels: {app: nccl}}}
      reason: "INC-4711: ptrace"
      expirationTime: "2026-12-01T02:00:00+02:00"
status: {conditions: null}
"""


def test_every_field_is_compiled() -> None:
    policies = load_texts(WHOLE)
    (policy,) = policies.policies
    assert (policy.name, policy.mode, policy.description) == ("whole", PolicyMode.ENFORCE, "Everything at once.")
    assert policy.location == SourceLocation("0.yaml", 1, 1)
    assert policy.section_locations["limits"] == SourceLocation("0.yaml", 32, 3)
    assert policy.section_locations["security.deny"] == SourceLocation("0.yaml", 47, 14)

    sizing = policy.right_sizing
    assert sizing is not None
    assert (sizing.mode, sizing.isolation, sizing.forms) == (
        PolicyMode.WARN,
        IsolationLevel.MEMORY,
        (GpuForm.MPS, GpuForm.MIG),
    )
    assert sizing.evidence == (EvidenceSource.DECLARED, EvidenceSource.DEFAULT)
    assert (sizing.default_memory_mib, sizing.default_compute_milli) == (8192, 125)
    assert (sizing.margin_percent, sizing.min_saving_percent, sizing.when_full) == (10, 30, FullCapacityAction.WAIT)
    assert sizing.risk_ppm == 2500

    limits = policy.limits
    assert limits is not None
    assert limits.mode is PolicyMode.ENFORCE
    assert limits.per_pod.rules[0].allowed == (NANO, 2 * NANO, 8 * NANO)
    assert limits.per_container.rules[0].max == 500 * 2**30 * NANO
    assert (limits.per_gpu.rules[0].default, limits.per_gpu.rules[0].max) == (1_500_000_000, 24 * NANO)
    assert (limits.limit_ranges, limits.resource_quotas, limits.accounting) == (False, False, True)

    added = policy.injection
    assert added is not None
    assert added.tolerations == (
        Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoExecute", toleration_seconds=60),
    )
    assert (added.tolerations_auto, added.node_affinity_auto) == (False, True)
    assert added.node_affinity == (
        NodeSelectorRequirement(key="nvidia.com/gpu.memory", operator="Gt", values=("40000",)),
    )
    assert (added.runtime_class_name, added.spread) == ("nvidia", SpreadMode.REQUIRED)
    assert added.labels == (("a", ""), ("b", "c"))

    assert policy.topology is not None
    assert policy.topology.nvlink is NvlinkMode.REQUIRED
    assert (policy.topology.when_gpus_at_least, policy.topology.multi_node_domain) == (4, "nvidia.com/gpu.clique")
    assert policy.cuda is not None
    assert (policy.cuda.mode, policy.cuda.driver) == (PolicyMode.AUDIT, False)
    assert policy.security is not None
    assert policy.security.deny == {"privileged"}
    assert policy.security.allowed_runtime_classes == {"nvidia"}
    assert policy.security.allowed_capabilities == {"video"}
    assert [one.path for one in policies.workload_kinds["example.com", "Trainer"].sources] == [
        ("spec", "template"),
        ("spec", "roles", "*", "template"),
    ]


def test_match() -> None:
    match = load_texts(WHOLE).policies[0].match
    assert match.operations == {"CREATE"}
    assert match.fail_closed
    assert match.resource is not None
    assert [match.resource(name) for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "cpu")] == [True, True, False]
    research = {"tier": "research"}
    assert match.namespace("team-a", research)
    assert not match.namespace("team-a", {})
    assert not match.namespace("team-free", research)
    assert not match.namespace("ml", research)
    assert match.labels is not None
    assert match.labels({})
    assert not match.labels({"skip": "x"})
    assert match.conditions[0].evaluate({"object": {"metadata": {"name": "a"}}})


def test_an_exemption_in_a_policy() -> None:
    (exemption,) = load_texts(WHOLE).exemptions
    assert (exemption.name, exemption.policy, sorted(exemption.codes)) == ("nccl", "whole", ["GPU-S201"])
    assert exemption.expires == datetime(2026, 12, 1, tzinfo=UTC)
    assert exemption.scope.namespace("ml-infra")
    assert not exemption.scope.namespace("ml-infra-2")
    assert exemption.scope.service_accounts == {"bench"}
    assert exemption.scope.labels({"app": "nccl"})
    assert not exemption.scope.labels({})


def test_an_empty_policy_is_in_audit_mode_and_excludes_system_namespaces() -> None:
    policy = load_policy(security={"deny": ["privileged"]})
    assert policy.mode is PolicyMode.AUDIT
    assert policy.security is not None
    assert policy.security.mode is PolicyMode.AUDIT
    assert policy.match.operations == {"CREATE", "UPDATE"}
    assert policy.match.resource is None
    assert policy.match.labels is None
    assert policy.match.fail_closed
    excluded = ("kube-system", "gpu-operator", "rightslice-system", "rightslice-agent")
    assert not any(policy.match.namespace(name, {}) for name in excluded)
    assert policy.match.namespace("kube-system-2", {})
    assert [policy.limits, policy.right_sizing, policy.injection, policy.topology, policy.cuda] == [None] * 5


@pytest.mark.parametrize(
    ("affinity", "auto"), [("auto", True), ({}, True), ({"offer": "ignore"}, False), ({"offer": "auto"}, True)]
)
def test_node_affinity_uses_the_offer_by_default(affinity: object, auto: bool) -> None:
    policy = load_policy(injection={"nodeAffinity": affinity, "tolerations": "auto"})
    assert policy.injection is not None
    assert policy.injection.node_affinity_auto is auto
    assert policy.injection.tolerations_auto


def test_an_exception_applies_only_to_its_namespaces() -> None:
    """Its scope is a list that is never empty, so it cannot affect other namespaces."""
    policies = load_texts(policy_text(), exception_text())
    (exemption,) = policies.exemptions
    assert exemption.policy == "p"
    assert exemption.scope.namespace("team")
    assert not any(exemption.scope.namespace(name) for name in ("team-2", "other", "admin", "", "rightslice-system"))
    assert exemption.scope.labels({"any": "thing"})


def test_an_exception_of_an_unknown_policy() -> None:
    loaded = load_policies([("p.yaml", policy_text("guard")), ("e.yaml", exception_text(policyName="gard"))])
    (error,) = loaded.errors
    assert "spec.policyName: must be the name of a policy in this set, found 'gard'. Write guard" in str(error)
    (alone,) = load_policies([("e.yaml", exception_text())]).errors
    assert "Write a policy, and load both together: rightslice policy lint policies/ exceptions/" in str(alone)


def test_two_policies_with_one_name() -> None:
    loaded = load_policies([("a.yaml", policy_text()), ("b.yaml", policy_text())])
    (error,) = loaded.errors
    assert error.code == "GPU-P105"
    assert "must be unique, found 'p' again (first at a.yaml:1:" in str(error)
    assert error.location.file == "b.yaml"
    assert loaded.policies is None


def test_policy_tests_are_ignored() -> None:
    test = "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicyTest\nanything: [at, all]\n"
    assert [policy.name for policy in load_texts(test + "---\n" + policy_text("a"), policy_text("b")).policies] == [
        "a",
        "b",
    ]


FOREIGN = {
    "a kustomization without a kind": ("kustomization.yaml", "resources: [guard.yaml]", "kustomization"),
    "a kustomization with a kind": (
        "kustomization.yml", "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n", "Kustomization"
    ),
    "a ConfigMap": ("a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}", "ConfigMap"),
    "a HelmRelease with an anchor, which policies may not have": (
        "a.yaml",
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec: {values: {a: &x 1, b: *x}}",
        "HelmRelease",
    ),
    "a policy of another program": ("a.yaml", "apiVersion: kyverno.io/v1\nkind: ClusterPolicy", "ClusterPolicy"),
    "a price list": ("a.yaml", "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPriceList", "GPUPriceList"),
}  # fmt: skip


@pytest.mark.parametrize(("file", "text", "kind"), FOREIGN.values(), ids=FOREIGN)
def test_objects_of_other_programs_are_skipped_with_a_note(file: str, text: str, kind: str) -> None:
    loaded = load_policies([(file, text), ("guard.yaml", policy_text("guard"))])
    assert loaded.errors == ()
    assert loaded.policies is not None
    assert [each.name for each in loaded.policies.policies] == ["guard"]
    assert loaded.skipped == (f"{file}:1:1: skipped: {kind} is not a policy",)


def test_a_policy_beside_an_object_of_another_program_in_one_file() -> None:
    loaded = load_policies([("a.yaml", f"apiVersion: v1\nkind: ConfigMap\n---\n{policy_text('guard')}")])
    assert loaded.policies is not None
    assert [each.name for each in loaded.policies.policies] == ["guard"]


MEANT_AS_POLICY = {
    "another version": "apiVersion: rightslice.dev/v1\nkind: GPUPolicy",
    "a misspelled kind": "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicies",
    "a misspelled group": "apiVersion: rightslice.io/v1alpha1\nkind: GPUPolicy",
    "the kind of a policy in the core group": "apiVersion: v1\nkind: GpuPolicy",
    "a list, which may contain policies": "apiVersion: v1\nkind: List\nitems: []",
    "no kind": "apiVersion: v1",
    "no apiVersion": "kind: ConfigMap",
    "neither, in a file of another name": "resources: [guard.yaml]",
    "an anchor in a policy": "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: &a b}",
}


@pytest.mark.parametrize("text", MEANT_AS_POLICY.values(), ids=MEANT_AS_POLICY)
def test_what_may_be_meant_as_a_policy_is_an_error(text: str) -> None:
    loaded = load_policies([("a.yaml", text), ("guard.yaml", policy_text("guard"))])
    assert loaded.policies is None
    assert loaded.skipped == ()


NO_POLICY = {
    "an empty file": [("a.yaml", "")],
    "only comments": [("a.yaml", "# later\n---\n# more\n")],
    "only a test": [("a.yaml", "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicyTest\n")],
}


@pytest.mark.parametrize("files", NO_POLICY.values(), ids=NO_POLICY)
def test_files_without_a_policy_are_an_error(files: list[tuple[str, str]]) -> None:
    loaded = load_policies(files)
    assert [str(error) for error in loaded.errors] == [
        "a.yaml:1:1: must contain at least one GPUPolicy, found none. Write one: rightslice policy new NAME"
    ]
    assert loaded.policies is None


def test_an_empty_file_beside_a_policy_is_not_an_error() -> None:
    assert load_policies([("a.yaml", ""), ("b.yaml", policy_text())]).errors == ()
    (error,) = load_policies([("a.yaml", ""), ("b.yaml", "")]).errors
    assert "found none in 2 files" in str(error)


def test_no_files_are_an_empty_set() -> None:
    loaded = load_policies([])
    assert loaded.policies is not None
    assert loaded.policies.policies == ()


def test_one_invalid_file_rejects_the_set() -> None:
    loaded = load_policies([("good.yaml", policy_text()), ("bad.yaml", "a: [")])
    assert loaded.policies is None
    assert len(loaded.errors) == 1


def test_the_digest_ignores_formatting() -> None:
    one = load_texts(
        "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: p}\nspec: {mode: warn, cuda: {}}"
    )
    two = load_texts(policy_text(cuda={}, mode="warn"))
    three = load_texts(policy_text(cuda={}, mode="audit"))
    assert one.policies[0].digest == two.policies[0].digest
    assert len(one.policies[0].digest) == 12
    assert one.digest == two.digest != three.digest
    assert load_texts(policy_text("p")).digest != load_texts(policy_text("q")).digest
    assert load_texts(policy_text(), exception_text()).digest != load_texts(policy_text()).digest


def test_the_starter_policy_loads_in_audit_mode() -> None:
    (policy,) = load_texts(render_starter_policy("my-first")).policies
    assert policy.name == "my-first"
    sections = [policy.right_sizing, policy.limits, policy.injection, policy.topology, policy.cuda, policy.security]
    assert [section.mode for section in sections if section is not None] == [PolicyMode.AUDIT] * 6


def test_the_exemption_in_the_starter_policy_is_valid() -> None:
    text = render_starter_policy("my-first")
    before, _, after = text.partition("  # exemptions:")
    shown = "  exemptions:" + after.replace("  # ", "  ")
    assert [exemption.name for exemption in load_texts(before + shown).exemptions] == ["driver-debugging"]


KEYS = st.sampled_from(
    [
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        "name",
        "mode",
        "match",
        "limits",
        "perPod",
        "resource",
        "max",
        "default",
        "injection",
        "tolerations",
        "nodeAffinity",
        "required",
        "key",
        "exemptions",
        "codes",
        "matchConditions",
        "expression",
        "rightSizing",
        "memory",
        "labels",
        "security",
        "deny",
        "namespaces",
        "expirationTime",
        "x.y/z",
    ]
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
SECTIONS = st.sampled_from(
    [
        "mode",
        "match",
        "rightSizing",
        "limits",
        "injection",
        "topology",
        "cuda",
        "security",
        "exemptions",
        "failurePolicy",
    ]
)
SPECS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(SECTIONS, VALUES, max_size=3)


@given(st.one_of(st.text(), SPECS.map(lambda spec: policy_text(**spec))))
def test_any_text_is_loaded_or_an_error(text: str) -> None:
    """The result is a set, or errors with their locations; no other exception is raised."""
    loaded = load_policies([("p.yaml", text)])
    assert (loaded.policies is None) == bool(loaded.errors)
    assert all(str(error).startswith("p.yaml") and error.code.startswith("GPU-P1") for error in loaded.errors)
