"""PolicySet: which policies a namespace meets, remembered; and where templates stand."""

from __future__ import annotations

import pytest

from tests.policy.written import exception_text, load_texts, policy_text
from webhook.policy.policy_set import MAX_CACHE_ENTRIES, CandidatePolicies, PolicySet
from webhook.policy.template_paths import WORKLOAD_TEMPLATES


@pytest.fixture
def policies() -> PolicySet:
    return load_texts(
        policy_text("b", match={"namespaceSelector": {"matchLabels": {"tier": "research"}}}),
        policy_text("a", match={"namespaces": ["team-*"]}),
        exception_text(policyName="a"),
    )


GPU = ("nvidia.com/gpu",)


NOBODY = CandidatePolicies(0, ())


def certain(policies: PolicySet, found: CandidatePolicies) -> list[str]:
    return [policy.name for index, policy in enumerate(policies.policies) if found.certain >> index & 1]


def names(policies: PolicySet, namespace: str, **labels: str) -> list[str]:
    return certain(policies, policies.candidates_for(namespace, labels, "CREATE", GPU))


def test_policies_come_in_the_order_of_their_names(policies: PolicySet) -> None:
    assert [policy.name for policy in policies.policies] == ["a", "b"]
    assert policies.candidates_for("team-x", {"tier": "research"}, "CREATE", GPU) == CandidatePolicies(0b11, ())


def test_those_that_look_at_the_object_have_still_to_be_asked() -> None:
    policies = load_texts(
        policy_text("any"),
        policy_text("by-condition", match={"matchConditions": [{"name": "n", "expression": "true"}]}),
        policy_text("by-label", match={"objectSelector": {"matchLabels": {"app": "train"}}}),
    )

    found = policies.candidates_for("team", {}, "CREATE", GPU)

    assert certain(policies, found) == ["any"]
    assert [(index, policy.name) for index, policy in found.conditional] == [(1, "by-condition"), (2, "by-label")]


def test_a_namespace_meets_those_that_let_it_in(policies: PolicySet) -> None:
    assert names(policies, "team-x") == ["a"]
    assert names(policies, "ml", tier="research") == ["b"]
    assert names(policies, "ml", tier="other") == []


def test_an_operation_and_a_resource_meet_those_that_are_about_them() -> None:
    policies = load_texts(
        policy_text("any", match={"operations": ["CREATE"]}),
        policy_text("slices", match={"resources": ["nvidia.com/mig-*"]}),
    )

    def met(operation: str, *resources: str) -> list[str]:
        return certain(policies, policies.candidates_for("team", {}, operation, resources))

    assert met("CREATE") == ["any"]
    assert met("CREATE", "cpu", "nvidia.com/mig-1g.5gb") == ["any", "slices"]
    assert met("UPDATE", "nvidia.com/mig-1g.5gb") == ["slices"]
    assert met("UPDATE", "nvidia.com/gpu") == []


def test_labels_that_change_are_seen_at_once(policies: PolicySet) -> None:
    assert names(policies, "ml", tier="other") == []
    assert names(policies, "ml", tier="research") == ["b"]


def test_what_is_remembered_is_bounded_and_stays_right(policies: PolicySet) -> None:
    for number in range(MAX_CACHE_ENTRIES + 10):
        assert names(policies, f"team-{number}") == ["a"]
    assert len(policies._candidates_by_request) <= MAX_CACHE_ENTRIES
    assert names(policies, "team-0") == ["a"]


def test_an_empty_set_lets_nothing_speak() -> None:
    empty = PolicySet()
    assert empty.candidates_for("team", {}, "CREATE", GPU) == NOBODY
    assert empty.template_paths is WORKLOAD_TEMPLATES
    assert len(empty.digest) == 12


def test_a_policys_own_templates_join_the_shipped_ones() -> None:
    own = {"apiGroup": "batch", "kind": "Job", "paths": ["spec.extra", "spec.template"]}
    policies = load_texts(policy_text(match={"templates": [own]}))
    assert policies.template_paths["batch", "Job"] == (("spec", "template"), ("spec", "extra"))
    assert policies.template_paths["apps", "Deployment"] == (("spec", "template"),)
    assert WORKLOAD_TEMPLATES["batch", "Job"] == (("spec", "template"),)
