"""quota_matching: a quota counts the pods that match its scopes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.builders import PodMaker, make_pod
from webhook.model.objects import ResourceQuota
from webhook.model.pods import parse_pod
from webhook.model.quota_matching import quota_matches_pod


def _priority(operator: str, *values: str) -> dict[str, Any]:
    expression = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [expression]}}


PLAIN = make_pod().gpus(1)
BATCH = make_pod().gpus(1).spec(activeDeadlineSeconds=60, priorityClassName="low")
SIZED = make_pod().gpus(1).requests("cpu", "1")
NEAR = make_pod().spec(
    affinity={
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"namespaces": ["other"], "topologyKey": "zone"}}
            ]
        }
    }
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ALONE = make_pod().spec(affinity={"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}})
ON_A_NODE = make_pod().spec(affinity={"nodeAffinity": {}})

CASES: dict[str, tuple[dict[str, Any], PodMaker, bool]] = {
    "no scope counts every pod": ({}, PLAIN, True),
    "Terminating matches a pod with a deadline": ({"scopes": ["Terminating"]}, BATCH, True),
    "Terminating does not match a pod without a deadline": ({"scopes": ["Terminating"]}, PLAIN, False),
    "NotTerminating matches a pod without a deadline": ({"scopes": ["NotTerminating"]}, PLAIN, True),
    "a pod that requests only GPUs is best effort": ({"scopes": ["BestEffort"]}, PLAIN, True),
    "a pod with CPU is not matched by BestEffort": ({"scopes": ["BestEffort"]}, SIZED, False),
    "NotBestEffort matches a pod with CPU": ({"scopes": ["NotBestEffort"]}, SIZED, True),
    "every scope must match": ({"scopes": ["NotTerminating", "NotBestEffort"]}, PLAIN, False),
    "a priority class": ({"scopes": ["PriorityClass"]}, BATCH, True),
    "no priority class": ({"scopes": ["PriorityClass"]}, PLAIN, False),
    "this priority class": (_priority("In", "low"), BATCH, True),
    "another priority class": (_priority("In", "high"), BATCH, False),
    "not this priority class": (_priority("NotIn", "low"), BATCH, False),
    "the absence of a priority class": (_priority("DoesNotExist"), PLAIN, True),
    "an unknown operator matches no pod": (_priority("Near", "low"), BATCH, False),
    "a scope and an expression": ({"scopes": ["NotTerminating"], **_priority("In", "low")}, BATCH, False),
    "affinity across namespaces": ({"scopes": ["CrossNamespacePodAffinity"]}, NEAR, True),
    "affinity within the namespace": ({"scopes": ["CrossNamespacePodAffinity"]}, ALONE, False),
    "affinity to nodes": ({"scopes": ["CrossNamespacePodAffinity"]}, ON_A_NODE, False),
    "any priority class": (_priority("Exists"), BATCH, True),
    "no affinity": ({"scopes": ["CrossNamespacePodAffinity"]}, PLAIN, False),
    "an unknown scope matches no pod": ({"scopes": ["Odd"]}, PLAIN, False),
}


@pytest.mark.parametrize(("spec", "pod", "want"), CASES.values(), ids=CASES)
def test_quota_matches_pod(spec: dict[str, Any], pod: PodMaker, want: bool) -> None:
    assert quota_matches_pod(msgspec.convert({"spec": spec}, ResourceQuota), parse_pod(pod.build())) is want
