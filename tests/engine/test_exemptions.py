"""Exemptions: which findings they cover, where, for whom and until when."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from tests.builders import PodMaker, make_pod
from tests.engine.decisions import ENV, FOUR, bad, exempt
from tests.example_cluster import NO_USAGE, NOW, codes, policies_of, policy, request_of, review, view_of
from webhook.engine.decide import decide
from webhook.model.enums import PolicyMode


class Taken(NamedTuple):
    exemption: str
    applies: bool
    pod: PodMaker = bad()
    now: datetime = NOW


EXEMPTIONS = {
    "in its namespace": Taken(exempt(), True),
    "by a glob": Taken(exempt(match="{namespaces: ['te*']}"), True),
    "in another namespace": Taken(exempt(match="{namespaces: [other]}"), False),
    "for another code": Taken(exempt("[GPU-S102]"), False),
    "for one of several codes": Taken(exempt("[GPU-S102, GPU-S101]"), True),
    "expired": Taken(exempt(until="2026-05-31T23:59:59Z"), False),
    "a second before its end": Taken(
        exempt(until="2026-06-01T00:00:01Z"), True, now=datetime(2026, 6, 1, 0, 0, 0, tzinfo=UTC)
    ),
    "exactly at its end": Taken(exempt(until="2026-06-01T00:00:00Z"), False),
    "exactly at its end in another time zone": Taken(exempt(until="2026-06-01T02:00:00+02:00"), False),
    "for the pod's service account": Taken(
        exempt(match="{namespaces: [team], serviceAccounts: [bench]}"), True, bad().spec(serviceAccountName="bench")
    ),
    "for another service account": Taken(
        exempt(match="{namespaces: [team], serviceAccounts: [bench]}"), False, bad().spec(serviceAccountName="web")
    ),
    "a pod without an account has the default one": Taken(
        exempt(match="{namespaces: [team], serviceAccounts: [default]}"), True
    ),
    "for the pod's labels": Taken(
        exempt(match="{namespaces: [team], objectSelector: {matchLabels: {app: bench}}}"),
        True,
        bad().label("app", "bench"),
    ),
    "for other labels": Taken(exempt(match="{namespaces: [team], objectSelector: {matchLabels: {app: bench}}}"), False),
}


@pytest.mark.parametrize("case", EXEMPTIONS.values(), ids=EXEMPTIONS)
def test_an_exemption_applies(case: Taken) -> None:
    decision = review(case.pod, ENV + case.exemption, now=case.now)
    assert codes(decision) == ([] if case.applies else ["enforce GPU-S101"])
    assert [taken.exemption for taken in decision.exempted] == (["here"] if case.applies else [])


def test_exempted_findings_are_reported_with_their_expiration() -> None:
    (taken,) = review(bad(), ENV + exempt()).exempted
    assert (taken.finding.code, taken.finding.mode) == ("GPU-S101", PolicyMode.ENFORCE)
    assert taken.expires == "2026-12-01T00:00:00+00:00"


def test_an_exemption_applies_to_findings_of_its_own_policy_only() -> None:
    decision = review(bad(), ENV + exempt(), ENV)
    assert [(found.code, found.policy) for found in decision.denials] == [("GPU-S101", "test-1")]
    assert [taken.finding.policy for taken in decision.exempted] == ["test-0"]


def test_an_exempted_pod_without_gpus_still_counts_as_involving_them() -> None:
    pod = make_pod().env("NVIDIA_VISIBLE_DEVICES", "all")
    assert review(pod, ENV + exempt()).involves_gpus
    assert not review(make_pod(), ENV + exempt()).involves_gpus


EXCEPTION = """
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicyException
metadata: {{name: incident, namespace: {namespace}}}
spec:
  policyName: {policy}
  codes: [GPU-S101]
  match: {{namespaces: [{namespace}]}}
  reason: INC-2
  expirationTime: "2026-12-01T00:00:00Z"
"""


@pytest.mark.parametrize(
    ("policy_name", "namespace", "applies"),
    [
        pytest.param("guard", "team", True, id="of this policy, here"),
        pytest.param("other", "team", False, id="of another policy"),
        pytest.param("guard", "far", False, id="in another namespace"),
    ],
)
def test_an_exception_object_exempts_findings(policy_name: str, namespace: str, applies: bool) -> None:
    exception = EXCEPTION.format(policy=policy_name, namespace=namespace)
    policies = policies_of(policy(ENV, "guard"), policy(FOUR, "other"), exception)
    decision = decide(request_of(bad().build()), policies, view_of(), NO_USAGE, NOW)
    remaining = [] if applies else ["enforce GPU-S101"]
    assert codes(decision) == [*remaining, "enforce GPU-L103"]
    assert [taken.exemption for taken in decision.exempted] == (["incident"] if applies else [])
