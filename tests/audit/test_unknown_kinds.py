"""Objects whose pods are not known: they are named, and never said to run no pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tests.builders import Json, make_pod
from webhook.audit.evaluate import EvaluationContext, evaluate_all
from webhook.audit.object_files import parse_objects
from webhook.audit.pod_audit import audit_pods
from webhook.cache.snapshot import view_of_objects
from webhook.cli.commands.check import exit_code_of_checks
from webhook.cli.flags import FailOn
from webhook.policy.policy_set import PolicySet
from webhook.report.results import CheckResult, CheckVerdict

CONTEXT = EvaluationContext(PolicySet(), view_of_objects(()), datetime(2026, 6, 1, tzinfo=UTC))
POD_SPEC = make_pod().gpus(1).build()["spec"]
GPU = {"nvidia.com/gpu": 1}


def evaluate_one(data: Json) -> CheckResult:
    [result] = evaluate_all(parse_objects("f.json", orjson.dumps(data)), CONTEXT)
    return result


def custom(spec: Any, kind: str = "Trainer", group: str = "example.com", **fields: Any) -> Json:
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "a"}, "spec": spec, **fields}


def component(kind: str, spec: Json) -> Json:
    return {"components": [{"template": {"apiVersion": "example.com/v1", "kind": kind, "spec": spec}}]}


UNKNOWN = {
    "an amount of an unknown kind": (custom({"a": [{"resources": {"limits": GPU}}]}), "spec.a[0].resources.limits"),
    "a resource name as a text": (custom({"gpu": "nvidia.com/mig-1g.5gb"}), "it names GPUs at spec.gpu"),
    "an annotation": (custom({}, metadata={"annotations": {"nvidia.com/x": ""}}), "metadata.annotations"),
    "an unknown kind with a list of containers": (custom({"t": {"containers": []}}), "it has containers at spec.t"),
    "an old version of Deployment": (
        custom({"template": {"spec": POD_SPEC}}, "Deployment", "extensions"),
        "Deployment is an unknown kind",
    ),
    "an unknown kind in an AppWrapper": (
        custom(component("Trainer", {"resources": GPU}), "AppWrapper", "workload.codeflare.dev"),
        "spec.components[0].template.spec.resources['nvidia.com/gpu'] names GPUs, but Rightslice knows no",
    ),
    "a TrainJob that takes all from its runtime": (
        custom({"runtimeRef": {"name": "torch"}}, "TrainJob", "trainer.kubeflow.org"),
        "spec.runtimeRef may give its pods GPUs; Rightslice does not read this field",
    ),
    "an MPIJob that says how many GPUs it needs in all": (
        custom({"gpus": 8, "template": {"spec": {"containers": [{"image": "x"}]}}}, "MPIJob", "kubeflow.org"),
        "spec.gpus may give its pods GPUs",
    ),
    "a role that refers to a shared template": (
        custom(
            {
                "roles": [{"name": "a", "templateRef": {"name": "t"}}],
                "roleTemplates": [{"template": {"spec": POD_SPEC}}],
            },
            "RoleBasedGroup",
            "workloads.x-k8s.io",
        ),
        "spec.roleTemplates[0].template.spec.containers[0]",
    ),
}


@pytest.mark.parametrize(("data", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_pods_are_said_to_be_unknown(data: Json, reason: str) -> None:
    result = evaluate_one(data)
    assert (result.verdict, result.quiet, result.invalid) == (CheckVerdict.SKIPPED, False, False)
    assert reason in result.reason
    assert "its pods are still checked at admission" in result.reason
    assert "runs no pods" not in result.reason


SILENT = {
    "a quota on GPUs": ({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "nvidia.com/gpu"}}, "it runs no pods"),
    "a queue with GPUs": (custom({"resources": GPU}, "ClusterQueue", "kueue.x-k8s.io"), "it runs no pods"),
    "an unknown kind without GPUs": (custom({"replicas": 1}), "it names no GPUs"),
    "an unknown kind whose status names GPUs": (custom({}, status=GPU), "it names no GPUs"),
}


@pytest.mark.parametrize(("data", "reason"), SILENT.values(), ids=SILENT)
def test_other_objects_are_not_worth_a_line(data: Json, reason: str) -> None:
    result = evaluate_one(data)
    assert (result.verdict, result.quiet) == (CheckVerdict.SKIPPED, True)
    assert reason in result.reason


WITHOUT_GPUS = {
    "a Deployment with a toleration for GPU nodes": custom(
        {"template": {"spec": {"containers": [{"image": "x"}], "tolerations": [{"key": "nvidia.com/gpu"}]}}},
        "Deployment",
        "apps",
    ),
    "a TrainJob with its own resources": custom(
        {"runtimeRef": {"name": "t"}, "trainer": {"resourcesPerNode": {"limits": {"cpu": "1"}}}},
        "TrainJob",
        "trainer.kubeflow.org",
    ),
}


@pytest.mark.parametrize("data", WITHOUT_GPUS.values(), ids=WITHOUT_GPUS)
def test_a_known_workload_without_gpus_is_known(data: Json) -> None:
    assert evaluate_one(data).verdict is CheckVerdict.NO_GPU


@pytest.mark.parametrize(("fail_on", "code"), [(FailOn.SKIPPED, 1), (FailOn.DENY, 0), (FailOn.NEVER, 0)])
def test_fail_on_skipped_fails_for_unknown_kinds(fail_on: FailOn, code: int) -> None:
    unknown, quiet = (evaluate_one(custom(spec)) for spec in (GPU, {}))
    assert exit_code_of_checks([unknown], fail_on) == code
    assert exit_code_of_checks([quiet], fail_on) == 0


def test_an_audit_names_unknown_kinds_with_gpus() -> None:
    objects = [custom(GPU), custom({}), custom({"template": {"spec": POD_SPEC}}, "Deployment", "apps")]
    found = parse_objects("f.json", orjson.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    results = list(audit_pods(found, CONTEXT))
    assert [each.kind for each in results] == ["Trainer"]
    assert exit_code_of_checks(results, FailOn.SKIPPED) == 1
