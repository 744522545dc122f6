"""on_trial: policies that are enforced elsewhere deny and change nothing."""

from __future__ import annotations

from hypothesis import given, settings

from tests.engine.lawful import VIEWS, any_pods, decision, everything
from tests.make import Json, make_pod
from tests.policy.written import load_texts, policy_text
from tests.world import policies_of, view_of
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.policy.policy_set import SECTIONS, Policy, policies_as_audit

ENFORCED = policies_of(everything("enforce"))
TRIED = policies_as_audit(ENFORCED)


def test_every_section_is_on_trial() -> None:
    (policy,) = TRIED.policies

    assert {getattr(policy, name).mode for name in SECTIONS} == {policy.mode} == {PolicyMode.AUDIT}
    assert {name for name in Policy.__struct_fields__ if hasattr(getattr(policy, name), "mode")} == set(SECTIONS)


def test_it_is_the_same_set_otherwise() -> None:
    assert (TRIED.digest, TRIED.exemptions, TRIED.sources) == (ENFORCED.digest, ENFORCED.exemptions, ENFORCED.sources)


@settings(max_examples=60)
@given(any_pods())
def test_nothing_is_denied_warned_of_or_changed(pod: Json) -> None:
    for view in VIEWS.values():
        tried = decision(pod, view, TRIED)

        assert tried.patch == ()
        assert {found.mode for found in tried.findings} <= {PolicyMode.AUDIT}


def test_a_condition_that_fails_denies_nothing() -> None:
    conditions = [{"name": "fails", "expression": "object.spec.missing == 1"}]
    strict = load_texts(policy_text(mode="enforce", failurePolicy="Fail", match={"matchConditions": conditions}))
    pod = make_pod().gpus(1).build()

    def modes(findings: tuple[Finding, ...]) -> set[PolicyMode]:
        return {found.mode for found in findings if found.code == "GPU-P201"}

    assert modes(decision(pod, view_of(), strict).findings) == {PolicyMode.ENFORCE}
    assert modes(decision(pod, view_of(), policies_as_audit(strict)).findings) == {PolicyMode.AUDIT}
