"""policies_as_audit: policies in audit mode deny, change and warn about nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.builders import Json, make_pod
from tests.engine.invariants import VIEWS, any_pods, decision, everything
from tests.engine.test_claim_review import CLUSTER, claim, device_quota, pod_with_claim, request, template
from tests.engine.test_workload_review import workload
from tests.example_cluster import NO_USAGE, NOW, policies_of, request_of, view_of
from tests.policy.policy_texts import load_texts, policy_text
from webhook.engine.decide import decide
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


OVER_10_GI = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('10Gi')) >= 0"
DEVICE_QUOTA = device_quota("gpu.deviceclass.resource.k8s.io/devices")
CLAIMS: dict[str, tuple[Json, str]] = {
    "a claim that matches nothing": (claim(request("device.driver == 'other'")), "GPU-D101"),
    "a key that a device lacks": (claim(request("device.attributes['gpu.nvidia.com'].x == 1")), "GPU-D102"),
    "a bound above a slice": (claim(request(OVER_10_GI, name="mig")), "GPU-D103"),
    "too many devices": (claim(request(count=9)), "GPU-D104"),
    "a class that does not exist": (template(request(name="none")), "GPU-D106"),
    "a selector that does not compile": (template(request("device.x")), "GPU-D107"),
    "a quota that is full": (template(request(count=2)), "GPU-D109"),
    "a template that does not exist": (pod_with_claim(resourceClaimTemplateName="none").build(), "GPU-D110"),
    "all devices": (claim(request(allocationMode="All")), "GPU-D111"),
    "a pod whose claim gets too many devices": (pod_with_claim(resourceClaimTemplateName="c").build(), "GPU-D104"),
    "a workload with such pods": (workload("Deployment", pod_with_claim(resourceClaimTemplateName="c")), "GPU-D104"),
    "an annotation that cannot be read": (make_pod().annotate("rightslice.dev/typo", "1").build(), "GPU-R104"),
}
"""Facts about objects, whatever policies say."""


@pytest.mark.parametrize("match", [{}, {"namespaces": ["other"]}], ids=["policies match", "no policy matches"])
@pytest.mark.parametrize(("data", "code"), CLAIMS.values(), ids=CLAIMS)
def test_facts_about_claims_are_recorded_only(data: Json, code: str, match: Json) -> None:
    view = view_of(*CLUSTER, DEVICE_QUOTA, template(request(count=9)))
    text = policy_text(mode="enforce", match=match, limits={"resourceQuotas": "evaluate"})
    enforced = load_texts(text)

    sets = (enforced, policies_as_audit(enforced), policies_of())
    found = [decide(request_of(data), policies, view, NO_USAGE, NOW).findings for policies in sets]

    modes = [{one.mode for one in each if one.code == code} for each in found]
    assert modes == [{PolicyMode.WARN}, {PolicyMode.AUDIT}, {PolicyMode.WARN}]
    assert {one.mode for one in found[1]} == {PolicyMode.AUDIT}


def test_a_failing_condition_does_not_deny() -> None:
    conditions = [{"name": "fails", "expression": "object.spec.missing == 1"}]
    match = {"matchConditions": conditions}
    strict = load_texts(policy_text(mode="enforce", match=match, security={"deny": ["visibleDevicesEnv"]}))
    pod = make_pod().gpus(1).build()

    def modes(findings: tuple[Finding, ...]) -> set[PolicyMode]:
        return {found.mode for found in findings if found.code == "GPU-P201"}

    assert modes(decision(pod, view_of(), strict).findings) == {PolicyMode.ENFORCE}
    assert modes(decision(pod, view_of(), policies_as_audit(strict)).findings) == {PolicyMode.AUDIT}
