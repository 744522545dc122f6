"""A policy that is rolled out to a share of the workloads: which are included, and that they stay included."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, make_namespace
from tests.engine.decisions import ENV, bad
from tests.example_cluster import NO_USAGE, NOW, codes, policies_of, policy, request_of, review, view_of
from webhook.engine.decide import decide
from webhook.engine.decision_cache import DecisionCache
from webhook.model.pods import parse_pod
from webhook.model.workloads import rollout_workload
from webhook.policy.rollout import Rollout

NAMES = [f"train-{number}" for number in range(200)]


def rolled(percent: int, **more: Any) -> str:
    words = "".join(f", {key}: {value}" for key, value in more.items())
    return f"rollout: {{percent: {percent}{words}}}\n{ENV}"


def controller_reference(kind: str, name: str) -> Json:
    pod = bad().build()
    pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    return pod


def rejected_workloads(percent: int, **more: Any) -> set[str]:
    """Return the StatefulSets whose pods are denied; the policy is in audit mode for all others."""
    found = {name: codes(review(controller_reference("StatefulSet", name), rolled(percent, **more))) for name in NAMES}
    assert set(map(tuple, found.values())) <= {("enforce GPU-S101",), ("audit GPU-S101",)}
    return {name for name, said in found.items() if said == ["enforce GPU-S101"]}


def test_zero_partial_and_full_share() -> None:
    assert rejected_workloads(0) == set()
    assert 25 < len(rejected_workloads(25)) < 75
    assert rejected_workloads(100) == set(NAMES)


def test_a_decision_names_the_policies_that_are_in_audit_mode_for_it() -> None:
    assert [review(bad(), rolled(percent)).audit_policies for percent in (0, 100)] == [("test-0",), ()]


def test_a_growing_share_keeps_its_workloads() -> None:
    assert rejected_workloads(10) <= rejected_workloads(20) <= rejected_workloads(60)


def test_another_seed_chooses_others() -> None:
    assert rejected_workloads(30, seed="one") != rejected_workloads(30, seed="two")
    assert rejected_workloads(30, seed="one") == rejected_workloads(30, seed="one")


BELONGS: dict[str, tuple[Json, str]] = {
    "a pod of a Deployment": (
        {"labels": {"pod-template-hash": "abc"}, "ownerReferences": [{"kind": "ReplicaSet", "name": "serve-abc"}]},
        "Deployment/serve",
    ),
    "a run of a CronJob": ({"ownerReferences": [{"kind": "Job", "name": "nightly-29412345"}]}, "CronJob/nightly"),
    "a Job with a number": ({"ownerReferences": [{"kind": "Job", "name": "train-7"}]}, "Job/train-7"),
    "a pod without owner": ({"name": "shell"}, "Pod/shell"),
    "a pod with a generated name, before generation": ({"generateName": "shell-"}, "Pod/shell-"),
    "a pod with a generated name, after generation": ({"generateName": "shell-", "name": "shell-x7f"}, "Pod/shell-"),
}


@pytest.mark.parametrize(("metadata", "workload"), BELONGS.values(), ids=BELONGS)
def test_the_rollout_workload_of_a_pod(metadata: Json, workload: str) -> None:
    for owner in metadata.get("ownerReferences", ()):
        owner["controller"] = True
    assert rollout_workload(parse_pod({"metadata": metadata, "spec": {}})) == workload


@given(st.integers(0, 100), st.text(max_size=8), st.text(max_size=20), st.text(max_size=20))
def test_a_workload_of_a_share_is_in_every_larger_share(percent: int, seed: str, namespace: str, workload: str) -> None:
    taken = [Rollout(size, seed).includes(namespace, workload) for size in range(101)]
    assert taken == sorted(taken)
    assert not taken[0]
    assert taken[100]


@pytest.mark.parametrize("name", ["shell-a", "shell-b", "shell-c", "shell-d"])
def test_copies_of_one_generated_name_are_cached_as_decided(name: str) -> None:
    cache, policies, view = DecisionCache(), policies_of(policy(rolled(50))), view_of(make_namespace("team"))
    for called in ({"generateName": "shell-"}, {"generateName": "shell-", "name": name}, {"name": name}):
        pod = bad().build()
        pod["metadata"] = {"namespace": "team", **called}
        arguments = (request_of(pod), policies, view, NO_USAGE, NOW)
        assert cache.decide(*arguments) == decide(*arguments)


def test_a_condition_that_fails_rejects_no_pod_outside_the_share() -> None:
    match = "failurePolicy: Fail\nmatch: {matchConditions: [{name: c, expression: 'object.spec.nope == 1'}]}\n"
    assert codes(review(bad(), match + rolled(100))) == ["enforce GPU-P201"]
    assert codes(review(bad(), match + rolled(0))) == ["audit GPU-P201"]


def test_a_template_has_the_findings_of_its_pods() -> None:
    template = bad().build()
    for number in range(8):
        name = f"serve-{number}"
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"replicas": 1, "template": {"metadata": {}, "spec": template["spec"]}},
        }
        pod = controller_reference("ReplicaSet", f"{name}-abc")
        pod["metadata"]["labels"] = {"pod-template-hash": "abc"}
        reported = codes(review(deployment, rolled(50)))
        for_pod = codes(review(pod, rolled(50)))
        assert [re.sub("enforce", "warn", each) for each in for_pod] == reported
