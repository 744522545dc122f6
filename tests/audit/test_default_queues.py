"""Workloads that name no queue: Kueue's webhook gives them the LocalQueue `default` of their namespace."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit.test_evaluate import evaluate_data
from tests.builders import Json, make_namespace, make_pod
from tests.engine.decisions import NODES, SIZING
from tests.engine.test_forecasts import JOB, QUEUE, TEMPLATE, workload
from tests.example_cluster import NOW, policies_of, policy, view_of
from webhook.audit.evaluate import EvaluationContext
from webhook.model.decisions import KeepReason, KeepRequest


def of_kueue(kind: str, name: str, **spec: Any) -> Json:
    """Return an object of Kueue."""
    about = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind}
    return about | {"metadata": {"name": name, "namespace": "team"}, "spec": spec}


RESOURCES = [{"name": "nvidia.com/gpu", "nominalQuota": 8}]
GROUP = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "f", "resources": RESOURCES}]}
SHARED = [of_kueue("ResourceFlavor", "f"), of_kueue("ClusterQueue", "c", resourceGroups=[GROUP], namespaceSelector={})]
DEFAULT = of_kueue("LocalQueue", "default", clusterQueue="c")
OTHER = of_kueue("LocalQueue", "other", clusterQueue="c")
OWNER = [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "s", "uid": "1", "controller": True}]

WORKLOADS: dict[str, tuple[Json, Json, bool]] = {
    "a Job is queued": (JOB, DEFAULT, True),
    "the Jobs of a CronJob are queued": (
        workload("batch/v1", "CronJob", {"schedule": "@daily", "jobTemplate": {"spec": {"template": TEMPLATE}}}),
        DEFAULT,
        True,
    ),
    "a Deployment is queued": (workload("apps/v1", "Deployment", {"template": TEMPLATE}), DEFAULT, True),
    "a namespace without a LocalQueue of that name has no default": (JOB, OTHER, False),
    "a LocalQueue of another namespace is no default": (
        JOB,
        DEFAULT | {"metadata": {"name": "default", "namespace": "elsewhere"}},
        False,
    ),
    "a stored Job keeps its labels": (JOB | {"metadata": JOB["metadata"] | {"uid": "1"}}, DEFAULT, False),
    "an owned Job is left to its owner": (
        JOB | {"metadata": JOB["metadata"] | {"ownerReferences": OWNER}},
        DEFAULT,
        False,
    ),
    "a label on a CronJob itself is not one of its Jobs": (
        workload("batch/v1", "CronJob", {"jobTemplate": {"spec": {"template": TEMPLATE}}}, labels=QUEUE),
        OTHER,
        False,
    ),
    "a bare pod needs a label": (make_pod().gpus(1).needs("8Gi").build(), DEFAULT, False),
}


@pytest.mark.parametrize(("data", "queue", "is_queued"), WORKLOADS.values(), ids=WORKLOADS)
def test_a_workload_without_a_queue_is_evaluated_in_the_default_one(data: Json, queue: Json, is_queued: bool) -> None:
    view = view_of(make_namespace("team"), *NODES, *SHARED, queue)
    context = EvaluationContext(policies=policies_of(policy(SIZING)), view=view, now=NOW)
    outcome = evaluate_data(data, context).decision.outcome
    assert (outcome == KeepRequest(KeepReason.QUEUED, "label kueue.x-k8s.io/queue-name")) is is_queued
