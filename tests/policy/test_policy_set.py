"""PolicySet: candidate policies, their cache, and template paths."""

from __future__ import annotations

import pytest

from tests.policy.policy_texts import exception_text, load_texts, policy_text
from webhook.policy.policy_set import MAX_CACHE_ENTRIES, CandidatePolicies, PolicySet
from webhook.policy.workload_kinds import WORKLOAD_KINDS


@pytest.fixture
def policies() -> PolicySet:
    return load_texts(
        policy_text("b", match={"namespaceSelector": {"matchLabels": {"tier": "research"}}}),
        policy_text("a", match={"namespaces": ["team-*"]}),
        exception_text(policyName="a"),
    )


GPU = ("nvidia.com/gpu",)


NO_CANDIDATES = CandidatePolicies(0, 0)


def certain(policies: PolicySet, found: CandidatePolicies) -> list[str]:
    mask = found.matching & ~found.conditional
    return [policy.name for index, policy in enumerate(policies.policies) if mask >> index & 1]


def names(policies: PolicySet, namespace: str, **labels: str) -> list[str]:
    return certain(policies, policies.candidates_for(namespace, labels, "CREATE", GPU))


def test_policies_are_sorted_by_name(policies: PolicySet) -> None:
    assert [policy.name for policy in policies.policies] == ["a", "b"]
    assert policies.candidates_for("team-x", {"tier": "research"}, "CREATE", GPU) == CandidatePolicies(0b11, 0)


def test_policies_with_object_conditions_are_conditional() -> None:
    policies = load_texts(
        policy_text("any"),
        policy_text("by-condition", match={"matchConditions": [{"name": "n", "expression": "true"}]}),
        policy_text("by-label", match={"objectSelector": {"matchLabels": {"app": "train"}}}),
    )

    found = policies.candidates_for("team", {}, "CREATE", GPU)

    assert certain(policies, found) == ["any"]
    assert found == CandidatePolicies(0b111, 0b110)
    of_pod = {label: policies.candidates_for("team", {}, "CREATE", GPU, {"app": label}) for label in ("train", "serve")}
    assert of_pod == {"train": CandidatePolicies(0b111, 0b010), "serve": CandidatePolicies(0b011, 0b010)}


def test_candidates_by_namespace(policies: PolicySet) -> None:
    assert names(policies, "team-x") == ["a"]
    assert names(policies, "ml", tier="research") == ["b"]
    assert names(policies, "ml", tier="other") == []


def test_candidates_by_operation_and_resource() -> None:
    policies = load_texts(
        policy_text("any", match={"operations": ["CREATE"]}),
        policy_text("slices", match={"resources": ["nvidia.com/mig-*"]}),
    )

    def matching(operation: str, *resources: str) -> list[str]:
        return certain(policies, policies.candidates_for("team", {}, operation, resources))

    assert matching("CREATE") == ["any"]
    assert matching("CREATE", "cpu", "nvidia.com/mig-1g.5gb") == ["any", "slices"]
    assert matching("UPDATE", "nvidia.com/mig-1g.5gb") == ["slices"]
    assert matching("UPDATE", "nvidia.com/gpu") == []


def test_changed_labels_are_not_served_from_the_cache(policies: PolicySet) -> None:
    assert names(policies, "ml", tier="other") == []
    assert names(policies, "ml", tier="research") == ["b"]


def test_the_cache_is_bounded_and_correct(policies: PolicySet) -> None:
    for number in range(MAX_CACHE_ENTRIES + 10):
        assert names(policies, f"team-{number}") == ["a"]
    assert len(policies._by_request) <= MAX_CACHE_ENTRIES
    assert names(policies, "team-0") == ["a"]


def test_an_empty_set_has_no_candidates() -> None:
    empty = PolicySet()
    assert empty.candidates_for("team", {}, "CREATE", GPU) == NO_CANDIDATES
    assert empty.workload_kinds is WORKLOAD_KINDS
    assert len(empty.digest) == 12


def test_template_paths_of_policies_are_added() -> None:
    own = {"apiGroup": "batch", "kind": "Job", "paths": ["spec.extra", "spec.template"]}
    policies = load_texts(policy_text(match={"templates": [own]}))
    assert [one.path for one in policies.workload_kinds["batch", "Job"].sources] == [
        ("spec", "template"),
        ("spec", "extra"),
    ]
    assert policies.workload_kinds["apps", "Deployment"] is WORKLOAD_KINDS["apps", "Deployment"]
    assert [one.path for one in WORKLOAD_KINDS["batch", "Job"].sources] == [("spec", "template")]
