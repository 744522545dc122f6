"""Workload names: equal for successive runs, and for recording and looking up usage."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.builders import make_pod
from webhook.model.pods import parse_pod
from webhook.model.workloads import workload_name, workload_of


class Case(NamedTuple):
    """Owners of a pod (kind, name, controller), and the expected workload."""

    owners: tuple[tuple[str, str, bool], ...]
    want: str
    labels: tuple[tuple[str, str], ...] = ()


HASH = (("pod-template-hash", "5d4f"),)
POD_CASES = {
    "a pod on its own": Case((), "Pod/pod"),
    "a Job's": Case((("Job", "train", True),), "Job/train"),
    "a Deployment's": Case((("ReplicaSet", "serve-5d4f", True),), "Deployment/serve", HASH),
    "an Argo Rollout's": Case(
        (("ReplicaSet", "serve-5d4f", True),), "Rollout/serve", (("rollouts-pod-template-hash", "5d4f"),)
    ),
    "a ReplicaSet without a Deployment": Case((("ReplicaSet", "serve", True),), "ReplicaSet/serve", HASH),
    "a ReplicaSet, with no labels on the pod": Case((("ReplicaSet", "serve-", True),), "ReplicaSet/serve-"),
    "an owner that is not the controller": Case((("Trial", "a", False),), "Pod/pod"),
    "several owners, one of them the controller": Case((("Trial", "a", False), ("Job", "b", True)), "Job/b"),
    "a CronJob's": Case((("Job", "nightly-29912345", True),), "CronJob/nightly"),
    "a JobSet's, and so a Kubeflow TrainJob's": Case(
        (("Job", "llm-node-0", True),), "JobSet/llm", (("jobset.sigs.k8s.io/jobset-name", "llm"),)
    ),
    "an Argo Workflow's": Case((("Workflow", "train-x7k2p", True),), "Workflow/train-x7k2p"),
    "a Kubeflow PyTorchJob's": Case((("PyTorchJob", "llm", True),), "PyTorchJob/llm"),
}


@pytest.mark.parametrize("case", POD_CASES.values(), ids=POD_CASES)
def test_workload_of_a_pod(case: Case) -> None:
    data = make_pod().build()
    data["metadata"]["labels"] = dict(case.labels)
    data["metadata"]["ownerReferences"] = [
        {"kind": kind, "name": name, "controller": controls} for kind, name, controls in case.owners
    ]

    assert workload_of(parse_pod(data)) == case.want


NAMES = {
    "a Job that ends in a date is not from a CronJob": (("Job", "train-20261121"), "Job/train-20261121"),
    "a Job with another number": (("Job", "train-12"), "Job/train-12"),
    "a CronWorkflow's run": (("Workflow", "etl-1793000000"), "CronWorkflow/etl"),
    "a Workflow with its own name": (("Workflow", "train-small"), "Workflow/train-small"),
    "a Workflow whose name looks generated": (("Workflow", "finetune-llm9b"), "Workflow/finetune-llm9b"),
    "a Job whose name looks generated": (("Job", "train-x7k2p"), "Job/train-x7k2p"),
    "a StatefulSet that looks like a run": (("StatefulSet", "db-29912345"), "StatefulSet/db-29912345"),
}


@pytest.mark.parametrize(("owner", "want"), NAMES.values(), ids=NAMES)
def test_workload_of_a_controller(owner: tuple[str, str], want: str) -> None:
    assert workload_name(*owner) == want
