"""policies_as_audit: policies in audit mode deny and change nothing."""

from __future__ import annotations

from hypothesis import given, settings

from tests.builders import Json, make_pod
from tests.engine.invariants import VIEWS, any_pods, decision, everything
from tests.example_cluster import policies_of, view_of
from tests.policy.policy_texts import load_texts, policy_text
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.policy.policy_set import SECTIONS, Policy, policies_as_audit

ENFORCED = policies_of(everything("enforce"))
AUDITED = policies_as_audit(ENFORCED)


def test_every_section_is_in_audit_mode() -> None:
    (policy,) = AUDITED.policies

    assert {getattr(policy, name).mode for name in SECTIONS} == {policy.mode} == {PolicyMode.AUDIT}
    assert {name for name in Policy.__struct_fields__ if hasattr(getattr(policy, name), "mode")} == set(SECTIONS)


def test_everything_else_is_unchanged() -> None:
    assert (AUDITED.digest, AUDITED.exemptions, AUDITED.sources) == (
        ENFORCED.digest,
        ENFORCED.exemptions,
        ENFORCED.sources,
    )


@settings(max_examples=60)
@given(any_pods())
def test_nothing_is_denied_warned_or_changed(pod: Json) -> None:
    for view in VIEWS.values():
        decided = decision(pod, view, AUDITED)

        assert decided.patch == ()
        assert {found.mode for found in decided.findings} <= {PolicyMode.AUDIT}


def test_a_failing_condition_does_not_deny() -> None:
    conditions = [{"name": "fails", "expression": "object.spec.missing == 1"}]
    match = {"matchConditions": conditions}
    strict = load_texts(policy_text(mode="enforce", match=match, security={"deny": ["visibleDevicesEnv"]}))
    pod = make_pod().gpus(1).build()

    def modes(findings: tuple[Finding, ...]) -> set[PolicyMode]:
        return {found.mode for found in findings if found.code == "GPU-P201"}

    assert modes(decision(pod, view_of(), strict).findings) == {PolicyMode.ENFORCE}
    assert modes(decision(pod, view_of(), policies_as_audit(strict)).findings) == {PolicyMode.AUDIT}
