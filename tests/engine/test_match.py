"""Match: which policies match an object, and the effect of a condition that fails."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.builders import PodMaker, make_namespace
from tests.engine.decisions import ENV, FOUR, bad
from tests.example_cluster import codes, request_of, review, view_of
from webhook.engine.match import condition_variables
from webhook.model.cluster_view import ClusterView
from webhook.policy.match_conditions import KNOWN_FIELDS

LABELED = make_namespace("team", tier="research")


class Matched(NamedTuple):
    match: str
    applies: bool
    pod: PodMaker = bad()


MATCHES = {
    "everything that is not excluded": Matched("{}", True),
    "a label that the object has": Matched(
        "{objectSelector: {matchLabels: {app: train}}}", True, bad().label("app", "train")
    ),
    "a label of another value": Matched(
        "{objectSelector: {matchLabels: {app: train}}}", False, bad().label("app", "serve")
    ),
    "an object without labels": Matched("{objectSelector: {matchLabels: {app: train}}}", False),
    "an object without the excluded label": Matched(
        "{objectSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}}", True
    ),
    "the namespace's name": Matched("{namespaces: ['te*']}", True),
    "another namespace's name": Matched("{namespaces: ['other']}", False),
    "a namespace that is omitted": Matched("{excludeNamespaces: [team]}", False),
    "kube-system is omitted by default": Matched("{}", False, bad().namespace("kube-system")),
    "the namespace's label": Matched("{namespaceSelector: {matchLabels: {tier: research}}}", True),
    "a label that the namespace lacks": Matched("{namespaceSelector: {matchLabels: {tier: batch}}}", False),
    "an unknown namespace has its name label": Matched(
        "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: far}}}", True, bad().namespace("far")
    ),
    "a resource that is requested": Matched("{resources: ['nvidia.com/*']}", True),
    "a resource that is not requested": Matched("{resources: ['nvidia.com/mig-*']}", False),
    "a condition that holds": Matched("{matchConditions: [{name: a, expression: 'object.kind == \"Pod\"'}]}", True),
    "a condition that does not hold": Matched(
        "{matchConditions: [{name: a, expression: 'request.namespace == \"x\"'}]}", False
    ),
    "two conditions, and one does not hold": Matched(
        "{matchConditions: [{name: a, expression: 'true'}, {name: b, expression: 'request.dryRun'}]}", False
    ),
    "a condition on the namespace's labels": Matched(
        "{matchConditions: [{name: a, expression: 'namespaceObject.metadata.labels.tier == \"research\"'}]}", True
    ),
}


FACTS = {
    "the version of the kind": "request.kind.version == 'v1' && request.kind.group == '' && request.kind.kind == 'Pod'",
    "the resource": "request.resource.resource == 'pods' && request.resource.version == 'v1'",
    "the kind and resource that were requested": "request.requestKind == request.kind && "
    "request.requestResource == request.resource && request.requestSubResource == request.subResource",
    "the requester": "request.userInfo.uid == 'u-1' && request.userInfo.username == 'ann' && "
    "request.userInfo.groups == ['g']",
    "the review": "request.uid == 'r-1' && request.operation == 'CREATE' && !request.dryRun",
    "the namespace's annotations": "namespaceObject.metadata.annotations['team/cost'] == '7'",
    "the namespace's name": "namespaceObject.metadata.name == request.namespace && request.name == 'pod'",
}


@pytest.mark.parametrize("expression", FACTS.values(), ids=FACTS)
def test_a_condition_may_request(expression: str) -> None:
    annotated = LABELED | {"metadata": LABELED["metadata"] | {"annotations": {"team/cost": "7"}}}
    match = f"match: {{matchConditions: [{{name: a, expression: {json.dumps(expression)}}}]}}\n"
    decision = review(bad(), match + ENV, view=view_of(annotated), user="ann", user_uid="u-1", groups=("g",), uid="r-1")
    assert codes(decision) == ["enforce GPU-S101"]


def test_every_field_that_a_condition_may_use_exists() -> None:
    data = bad().build()
    facts = condition_variables(request_of(data), view_of(LABELED).view_namespace("team"))
    assert {name: shape_of(facts[name], tree) for name, tree in KNOWN_FIELDS.items()} == KNOWN_FIELDS


def shape_of(value: Any, tree: Any) -> Any:
    """Return the names of the fields of a map, as deep as `tree`."""
    return {key: shape_of(below, tree.get(key)) for key, below in value.items()} if tree is not None else None


@pytest.mark.parametrize("case", MATCHES.values(), ids=MATCHES)
def test_a_policy_matches(case: Matched) -> None:
    decision = review(case.pod, f"match: {case.match}\n{ENV}", view=view_of(LABELED))
    assert bool(decision.policies) is case.applies
    assert codes(decision) == (["enforce GPU-S101"] if case.applies else [])


def test_a_namespace_missing_from_the_view_still_has_its_name() -> None:
    live = ClusterView(view_of().fleet, complete=True)
    match = "match: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team}}}\n"
    assert codes(review(bad(), match + ENV, view=live)) == ["enforce GPU-S101"]


FAILING = "match: {matchConditions: [{name: a, expression: 'object.spec.nodeName == \"n\"'}]}\n"


class Failed(NamedTuple):
    policy: str
    said: list[str]
    then: str


SILENT = "so the policy is ignored"
ON_TRIAL = "so the policy would deny it if it were enforced"
REFUSED = "so the policy denies it"
SECTION = "security: {deny: [visibleDevicesEnv]"
TOPOLOGY = "topology: {nvlink: ignored, mode: enforce}"
FAILURES = {
    "an enforced policy rejects by default": Failed(ENV, ["enforce GPU-P201"], REFUSED),
    "an enforced policy with Ignore does not apply": Failed(f"failurePolicy: Ignore\n{ENV}", ["warn GPU-P201"], SILENT),
    "an enforced policy with Fail rejects": Failed(f"failurePolicy: Fail\n{ENV}", ["enforce GPU-P201"], REFUSED),
    "enforced limits reject": Failed(FOUR, ["enforce GPU-P201"], REFUSED),
    "an enforced topology rejects": Failed(TOPOLOGY, ["enforce GPU-P201"], REFUSED),
    "a policy that only changes pods does not apply": Failed(
        "mode: enforce\nrightSizing: {isolation: hardware}", ["warn GPU-P201"], SILENT
    ),
    "security in audit mode does not reject if a change is enforced": Failed(
        f"mode: enforce\ninjection: {{tolerations: auto}}\n{SECTION}, mode: audit}}", ["warn GPU-P201"], ON_TRIAL
    ),
    "a policy in warn mode warns": Failed(f"mode: warn\n{SECTION}}}", ["warn GPU-P201"], ON_TRIAL),
    "a policy in audit mode records it": Failed(f"{SECTION}}}", ["audit GPU-P201"], ON_TRIAL),
    "a policy in audit mode records that it does not apply": Failed(
        f"failurePolicy: Ignore\n{SECTION}}}", ["audit GPU-P201"], SILENT
    ),
    "an enforced section makes it reject": Failed(f"{SECTION}, mode: enforce}}", ["enforce GPU-P201"], REFUSED),
    "a policy without sections rejects nothing": Failed("mode: enforce", ["warn GPU-P201"], SILENT),
}


@pytest.mark.parametrize("case", FAILURES.values(), ids=FAILURES)
def test_a_policy_whose_condition_fails(case: Failed) -> None:
    decision = review(bad(), FAILING + case.policy)
    assert codes(decision) == case.said
    assert "policy test-0 failed on this object" in decision.findings[0].message
    assert decision.findings[0].message.endswith(case.then)
    assert decision.policies == ()


def test_a_failing_condition_does_not_affect_other_policies() -> None:
    decision = review(bad(), f"failurePolicy: Ignore\n{FAILING}{ENV}", FOUR)
    assert codes(decision) == ["warn GPU-P201", "enforce GPU-L103"]
    assert decision.policies == ("test-1",)


@pytest.mark.parametrize("conditions", [("fails", "false"), ("false", "fails")], ids=" before ".join)
def test_a_false_condition_outweighs_one_that_fails(conditions: tuple[str, ...]) -> None:
    """As in the API server: the policy is not meant for this object, whatever the other condition is."""
    texts = {"fails": "object.spec.nodeName == 'n'", "false": "object.kind == 'Node'"}
    match = {"matchConditions": [{"name": name, "expression": texts[name]} for name in conditions]}
    assert codes(review(bad(), f"match: {json.dumps(match)}\n{ENV}")) == []


@pytest.mark.parametrize("count", [0, 9_000, 9_999, 10_000, 15_000])
def test_padding_does_not_admit_a_pod(count: int) -> None:
    """More variables than CEL evaluates make the condition fail, which rejects the pod too."""
    unlabeled = "!object.spec.containers.exists(c, has(c.env) && c.env.exists(e, e.name == 'EXEMPT'))"
    match = f"match: {{matchConditions: [{{name: a, expression: {json.dumps(unlabeled)}}}]}}\n"
    padded = bad()
    for number in range(count):
        padded.env(f"PAD_{number}", "x")
    assert codes(review(padded, match + ENV)) in (["enforce GPU-S101"], ["enforce GPU-P201"])
