"""Evaluation of objects from files: verdicts, positions, and invalid input."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from tests.builders import Json, make_namespace, make_pod
from tests.engine.test_claim_review import CLUSTER, listed
from tests.example_cluster import mig_node, view_of, whole_node
from webhook.audit.evaluate import EvaluationContext, build_admission_request, evaluate_all, evaluate_object
from webhook.audit.object_files import SourceObject, parse_objects, read_objects
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import read_snapshot, view_of_objects
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.report.object_diff import apply_json_patch
from webhook.report.results import CheckResult, CheckVerdict

NOW = datetime(2026, 6, 1, tzinfo=UTC)
POLICY = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: limits}
spec:
  mode: enforce
  limits:
    perPod:
      - {resource: nvidia.com/gpu, allowed: [1, 2]}
    limitRanges: ignore
  security:
    deny: [privileged]
"""


def policies(text: str = POLICY) -> PolicySet:
    loaded = load_policies([("p.yaml", text)])
    assert loaded.policies is not None, loaded.errors
    return loaded.policies


@pytest.fixture(scope="module")
def context() -> EvaluationContext:
    return EvaluationContext(policies=policies(), view=view_of_objects(()), now=NOW)


@pytest.fixture(scope="module")
def library() -> EvaluationContext:
    """Return a context with the shipped policies and the shipped cluster."""
    files = sorted(bundled_folder("policies").glob("*.yaml"))
    loaded = load_policies((file.name, file.read_text()) for file in files)
    assert loaded.policies is not None, loaded.errors
    return EvaluationContext(policies=loaded.policies, view=read_snapshot("demo").view, now=NOW)


def evaluate_data(data: Any, context: EvaluationContext) -> CheckResult:
    """Evaluate one object as if it were in a JSON file."""
    [entry] = parse_objects("f.json", orjson.dumps(data))
    [result] = evaluate_all([entry], context)
    return result


def yaml(text: str, context: EvaluationContext) -> list[CheckResult]:
    return list(evaluate_all(parse_objects("f.yaml", text.encode()), context))


def test_finding_is_located_at_its_field(context: EvaluationContext) -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n    - name: m\n"
        "      resources:\n        limits:\n          nvidia.com/gpu: 3\n"
    )
    [result] = yaml(text, context)
    [found] = result.findings
    assert (str(found.location), found.finding.code) == ("f.yaml:9:27", "GPU-L102")
    assert str(found.policy_location) == "p.yaml:6:3"
    assert (result.namespace, result.verdict) == ("default", CheckVerdict.DENIED)


def test_defaulted_field_is_located_at_its_source(context: EvaluationContext) -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n    - name: m\n"
        "      resources:\n        limits: {nvidia.com/gpu: 0.5}\n"
    )
    [result] = yaml(text, context)
    assert result.findings
    assert {found.location.line for found in result.findings} == {8}


INVALID_AMOUNTS: dict[str, tuple[Any, str]] = {
    "half a GPU": (make_pod().gpus("0.5").build(), "GPU-L104"),
    "a thousand GPUs with a suffix": (make_pod().gpus("1k").build(), "GPU-L102"),
    "a GPU amount with an exponent": (make_pod().requests("nvidia.com/gpu", 1e3).build(), "GPU-L102"),
    "a negative amount": (make_pod().gpus("-1").build(), "GPU-L104"),
}


@pytest.mark.parametrize(("pod", "code"), INVALID_AMOUNTS.values(), ids=INVALID_AMOUNTS)
def test_invalid_gpu_amount_is_denied(pod: Any, code: str, context: EvaluationContext) -> None:
    result = evaluate_data(pod, context)
    codes = {found.finding.code for found in result.findings}
    assert result.verdict is CheckVerdict.DENIED
    assert code in codes
    assert all(len(found.finding.message.split()) > 3 for found in result.findings)


NOT_QUANTITIES: dict[str, tuple[Any, str]] = {
    "a byte after the suffix": ("16GB", "Write 16Gi (powers of 1024) or 16G (powers of 1000)"),
    "a small letter": ("16gi", "Write 16Gi (powers of 1024) or 16G (powers of 1000)"),
    "an e without exponent": ("1e", "Write a number and at most one suffix"),
    "a blank before the suffix": ("16 Gi", "Write 16Gi"),
    "nothing": ("", "Write a number and at most one suffix"),
}


@pytest.mark.parametrize(("amount", "fix"), NOT_QUANTITIES.values(), ids=NOT_QUANTITIES)
@pytest.mark.parametrize("side", ["limits", "requests"])
def test_an_amount_that_is_no_quantity_is_invalid(amount: str, fix: str, side: str, context: EvaluationContext) -> None:
    pod = make_pod().gpus(1).build()
    pod["spec"]["containers"][0]["resources"].setdefault(side, {})["memory"] = amount
    template = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    for data in (pod, {**template, "spec": {"template": {"spec": pod["spec"]}}}):
        result = evaluate_data(data, context)
        assert result.invalid
        assert f"spec.containers[0].resources.{side}.memory: must be a quantity" in result.reason
        assert f"(found {amount!r}). {fix}" in result.reason


@pytest.mark.parametrize("replicas", ["40", 40.5, "many", -3, 2**31, True])
def test_a_number_of_replicas_that_the_api_server_rejects_is_invalid(replicas: Any, context: EvaluationContext) -> None:
    template = {"spec": make_pod().gpus(1).build()["spec"]}
    data = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    result = evaluate_data({**data, "spec": {"replicas": replicas, "template": template}}, context)
    assert result.invalid
    assert "spec.replicas: must be a whole number from 0 to 2147483647, found " in result.reason


REJECTED_RESOURCES: dict[str, tuple[Json, str]] = {
    "a name without a domain": ({"limits": {"foo": 1}}, "limits.foo: the API server rejects it: the name must be cpu"),
    "a domain in upper case": (
        {"limits": {"NVIDIA.com/gpu": 1}},
        "limits['NVIDIA.com/gpu']: the API server rejects it",
    ),
    "a part of a huge page": ({"limits": {"cpu": 1, "hugepages-2Mi": "3Mi"}}, "3Mi is not positive integer multiple"),
    "a request above its limit": (
        {"requests": {"cpu": 2}, "limits": {"cpu": 1}},
        "2 must be less than or equal to cpu",
    ),
    "a request of a device without a limit": (
        {"requests": {"rdma/hca": 1}},
        "Limit must be set for non overcommitable",
    ),
    "a misspelled field": ({"limit": {"nvidia.com/gpu": 1}}, "resources.limit: must be a known field: kubectl rejects"),
}


@pytest.mark.parametrize(("resources", "sentence"), REJECTED_RESOURCES.values(), ids=REJECTED_RESOURCES)
def test_resources_that_the_api_server_rejects_are_invalid(
    resources: Json, sentence: str, context: EvaluationContext
) -> None:
    pod = make_pod().container("helper", resources=resources).build()
    template = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    for data, prefix in ((pod, ""), ({**template, "spec": {"template": {"spec": pod["spec"]}}}, "spec.template.")):
        result = evaluate_data(data, context)
        assert result.invalid
        assert result.reason.startswith(f"{prefix}spec.containers[1].resources."), result.reason
        assert sentence in result.reason


MISSPELLED: dict[str, tuple[Json, str, str]] = {
    "the case of a field of the pod": ({"spec": {"nodeselector": {}}}, "spec.nodeselector", "nodeSelector"),
    "a singular": ({"spec": {"toleration": []}}, "spec.toleration", "tolerations"),
    "a field of a container": (
        {"spec": {"containers": [{"name": "a"}, {"name": "b", "imagePullPolcy": "Always"}]}},
        "spec.containers[1].imagePullPolcy",
        "imagePullPolicy",
    ),
    "a field of an init container": (
        {"spec": {"initContainers": [{"name": "a", "enviroment": [], "volumeMount": []}]}},
        "spec.initContainers[0].volumeMount",
        "volumeMounts",
    ),
    "a field deep in affinity": (
        {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecutions": {}}}}},
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecutions",
        "requiredDuringSchedulingIgnoredDuringExecution",
    ),
    "a field of its metadata": ({"spec": {}, "metadata": {"label": {}}}, "metadata.label", "labels"),
    "a field of a volume's source": (
        {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimname": "data"}}]}},
        "spec.volumes[0].persistentVolumeClaim.claimname",
        "claimName",
    ),
    "a field of a volume claim's template": (
        {"spec": {"volumes": [{"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessMode": []}}}}]}},
        "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.accessMode",
        "accessModes",
    ),
    "a field of a reference to a Secret": (
        {
            "spec": {
                "containers": [{"name": "a", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"names": "s"}}}]}]
            }
        },
        "spec.containers[0].env[0].valueFrom.secretKeyRef.names",
        "name",
    ),
    "a field of a reference in a volume's source": (
        {"spec": {"volumes": [{"name": "a", "csi": {"driver": "d", "nodePublishSecretRef": {"nme": "s"}}}]}},
        "spec.volumes[0].csi.nodePublishSecretRef.nme",
        "name",
    ),
    "a field of a projected source": (
        {"spec": {"volumes": [{"name": "a", "projected": {"sources": [{"clusterTrustBundle": {"pth": "a"}}]}}]}},
        "spec.volumes[0].projected.sources[0].clusterTrustBundle.pth",
        "path",
    ),
    "a field of the source of a volume claim's template": (
        {
            "spec": {
                "volumes": [{"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSource": {"knd": "a"}}}}}]
            }
        },
        "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.dataSource.knd",
        "kind",
    ),
    "a field of a security profile": (
        {"spec": {"securityContext": {"seccompProfile": {"localhostprofile": "a"}}}},
        "spec.securityContext.seccompProfile.localhostprofile",
        "localhostProfile",
    ),
}


@pytest.mark.parametrize(("template", "path", "meant"), MISSPELLED.values(), ids=MISSPELLED)
def test_misspelled_fields_of_a_template_are_invalid(
    template: Json, path: str, meant: str, context: EvaluationContext
) -> None:
    template["spec"].setdefault("containers", [{"name": "main", "image": "x"}])
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    result = evaluate_data({**deployment, "spec": {"template": template}}, context)
    assert result.invalid
    assert result.reason.startswith(f"spec.template.{path}: must be a known field"), result.reason
    assert result.reason.endswith(f"Write {meant}"), result.reason


WRONG_VALUES: dict[str, tuple[Json, str, str]] = {
    "of spread": (
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DontSchedule"}]},
        "topologySpreadConstraints[0].whenUnsatisfiable",
        "must be DoNotSchedule or ScheduleAnyway, found 'DontSchedule'",
    ),
    "of a container, by its case": (
        {"containers": [{"name": "main", "image": "x", "imagePullPolicy": "always"}]},
        "containers[0].imagePullPolicy",
        "must be Always, IfNotPresent or Never, found 'always'",
    ),
    "of a toleration": (
        {"tolerations": [{"key": "nvidia.com/gpu", "operator": "exists"}]},
        "tolerations[0].operator",
        "must be Equal, Exists, Gt or Lt, found 'exists'",
    ),
    "of its effect": (
        {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedul"}]},
        "tolerations[0].effect",
        "must be NoExecute, NoSchedule or PreferNoSchedule, found 'NoSchedul'",
    ),
    "of a list of values": (
        {"volumes": [{"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["RWO"]}}}}]},
        "volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes[0]",
        "must be ReadOnlyMany, ReadWriteMany, ReadWriteOnce or ReadWriteOncePod, found 'RWO'",
    ),
    "of a node affinity": (
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is", "values": ["b"]}]}]
                    }
                }
            }
        },
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].operator",
        "must be DoesNotExist, Exists, Gt, In, Lt or NotIn, found 'Is'",
    ),
    "empty, where it has no default": (
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": ""}]},
        "topologySpreadConstraints[0].whenUnsatisfiable",
        "must be DoNotSchedule or ScheduleAnyway, found ''",
    ),
    "empty in a container, where only a pod has a default": (
        {"containers": [{"name": "main", "image": "x", "restartPolicy": ""}]},
        "containers[0].restartPolicy",
        "must be Always, Never or OnFailure, found ''",
    ),
    "of a security profile": (
        {"securityContext": {"seccompProfile": {"type": "runtimeDefault"}}},
        "securityContext.seccompProfile.type",
        "must be Localhost, RuntimeDefault or Unconfined, found 'runtimeDefault'",
    ),
    "of an operating system": ({"os": {"name": "Linux"}}, "os.name", "must be linux or windows, found 'Linux'"),
    "of a container's resize policy": (
        {
            "containers": [
                {"name": "main", "image": "x", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "Restart"}]}
            ]
        },
        "containers[0].resizePolicy[0].restartPolicy",
        "must be NotRequired or RestartContainer, found 'Restart'",
    ),
}
"""Fields of a pod's spec with a value that no Kubernetes knows."""


@pytest.mark.parametrize(("spec", "path", "sentence"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_a_value_that_a_field_cannot_have_is_invalid(
    spec: Json, path: str, sentence: str, context: EvaluationContext
) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}], **spec}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    result = evaluate_data({**deployment, "spec": {"template": template}}, context)
    assert result.invalid
    assert result.reason.startswith(f"spec.template.spec.{path}: {sentence}"), result.reason


@pytest.mark.parametrize(
    ("api_version", "kind", "meant"),
    [("v1", "pod", "Pod"), ("apps/v1", "deployment", "Deployment"), ("batch/v1", "Cronjob", "CronJob")],
)
def test_a_kind_in_another_case_is_invalid(api_version: str, kind: str, meant: str, context: EvaluationContext) -> None:
    result = evaluate_data({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}}, context)
    assert result.invalid
    assert result.reason == f"kind: must be {meant}, found {kind!r}: the API server knows no such kind. Write {meant}"


@pytest.mark.parametrize(
    ("api_version", "kind", "meant"),
    [
        ("v1", "Deployment", "apps/v1"),
        ("apps/v1", "Job", "batch/v1"),
        ("batch/v1", "Pod", "v1"),
        ("Apps/v1", "deployment", "apps/v1"),
        ("apps/v1beta1", "StatefulSet", "apps/v1"),
        ("batch/v1beta1", "CronJob", "batch/v1"),
        ("v2", "Pod", "v1"),
    ],
)
def test_a_kind_of_kubernetes_in_another_group_or_version_is_invalid(
    api_version: str, kind: str, meant: str, context: EvaluationContext
) -> None:
    result = evaluate_data({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}}, context)
    assert result.invalid
    assert result.reason.startswith(f"apiVersion: must be {meant}, found {api_version!r}: "), result.reason


def test_a_custom_resource_may_have_the_name_of_a_kind_of_kubernetes(context: EvaluationContext) -> None:
    job = {"apiVersion": "batch.example.com/v1", "kind": "Job", "metadata": {"name": "a"}}
    assert not evaluate_data(job, context).invalid


EMPTY_VALUES: Json = {
    "restartPolicy": "",
    "dnsPolicy": "",
    "tolerations": [{"key": "a", "operator": "", "effect": ""}],
    "volumes": [{"name": "a", "hostPath": {"path": "/a", "type": ""}}],
    "containers": [
        {
            "name": "main",
            "image": "x",
            "imagePullPolicy": "",
            "terminationMessagePolicy": "",
            "ports": [{"containerPort": 80, "protocol": ""}],
            "livenessProbe": {"httpGet": {"port": 80, "scheme": ""}},
        }
    ],
}
"""A pod's spec in which each field of a fixed set of values that has a default is empty."""


def test_an_empty_value_is_the_default(context: EvaluationContext) -> None:
    assert not evaluate_data(make_pod().spec(**EMPTY_VALUES).build(), context).invalid


def test_a_custom_resource_may_have_fields_of_its_own(context: EvaluationContext) -> None:
    step = {"container": {"name": "a"}, "containers": [{"name": "a", "image": "x"}]}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j"}}
    replicas = {"Worker": {"replicas": 1, "template": {"spec": step}}}
    assert not evaluate_data({**job, "spec": {"pytorchReplicaSpecs": replicas}}, context).invalid


def test_fields_of_a_newer_kubernetes_are_no_misspelled_ones(context: EvaluationContext) -> None:
    pod = make_pod().gpus(1).build()
    pod["spec"] |= {"quantumEntanglement": {"qubits": 2}}
    pod["spec"]["containers"][0] |= {"teleport": True}
    assert not evaluate_data(pod, context).invalid


def test_a_gpu_at_pod_level_is_invalid(context: EvaluationContext) -> None:
    result = evaluate_data(make_pod().spec(resources={"limits": {"nvidia.com/gpu": 1}}).build(), context)
    assert "the name must be cpu, memory or hugepages-<size>" in result.reason


def test_a_limit_that_a_limit_range_sets_is_not_missing() -> None:
    item = {"type": "Container", "default": {"rdma/hca": "1"}}
    metadata = {"name": "devices", "namespace": "team"}
    limit_range = {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [item]}}
    pod = make_pod().container("helper", resources={"requests": {"rdma/hca": "1"}}).build()
    without, within = (
        evaluate_data(pod, EvaluationContext(policies=policies(), view=view_of(*objects), now=NOW))
        for objects in ((), (limit_range,))
    )
    assert (without.invalid, within.invalid) == (True, False)


HUGE_AMOUNTS = ("1e150", "1e402", "1e2147483647", "9" * 65)


@pytest.mark.parametrize("amount", HUGE_AMOUNTS)
def test_an_amount_that_cannot_be_computed_passes_no_limit(amount: str, context: EvaluationContext) -> None:
    pod = make_pod().gpus(1).requests("memory", amount).build()
    result = evaluate_data(pod, context)
    assert result.verdict is CheckVerdict.DENIED
    assert "GPU-L106" in {found.finding.code for found in result.findings}


def test_a_null_amount_is_zero(context: EvaluationContext) -> None:
    pod = make_pod().gpus(1).build()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": None, "nvidia.com/gpu": 1}}
    request = build_admission_request(pod, context)
    assert request.pod is not None
    resources = request.pod.spec.containers[0].resources
    assert (resources.limits["memory"], resources.requests["memory"]) == ("0", "0")


def test_requests_unlike_limits_are_denied(context: EvaluationContext) -> None:
    pod = make_pod().gpus(1).build()
    pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "2"
    assert "GPU-L105" in {found.finding.code for found in evaluate_data(pod, context).findings}


UNUSUAL_PODS: dict[str, dict[str, Any]] = {
    "300 containers": {"containers": [{"name": f"c{i}", "resources": {"limits": {}}} for i in range(300)]},
    "unknown fields": {"containers": [{"name": "a", "wings": 2}], "color": "red"},
    "nulls instead of lists": {
        "containers": [{"name": "a"}],
        "initContainers": None,
        "tolerations": None,
        "volumes": None,
    },
    "nulls in lists": {"containers": [None, {"name": "a", "env": [None], "resources": None}]},
}


@pytest.mark.parametrize("spec", UNUSUAL_PODS.values(), ids=UNUSUAL_PODS)
def test_unusual_pod_has_a_verdict(spec: dict[str, Any], library: EvaluationContext) -> None:
    result = evaluate_data({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}, library)
    assert result.verdict is CheckVerdict.NO_GPU


NO_CONTAINERS = "spec.containers: must have at least one container, found none"
INVALID_PODS: dict[str, tuple[dict[str, Any], str]] = {
    "containers that are text": ({"spec": {"containers": "main"}}, "spec.containers: must be a list, found text"),
    "a container that is a number": ({"spec": {"containers": [1]}}, "spec.containers[0]: must be a map"),
    "limits that are a list": (
        {"spec": {"containers": [{"resources": {"limits": [1]}}]}},
        "spec.containers[0].resources.limits: must be a map, found a list",
    ),
    "no containers": ({"spec": {"containers": []}}, NO_CONTAINERS),
    "a null container": ({"spec": {"containers": [None]}}, NO_CONTAINERS),
    "null containers": ({"spec": {"containers": None}}, NO_CONTAINERS),
    "no containers field": ({"spec": {"initContainers": [{"name": "a"}]}}, NO_CONTAINERS),
    "no spec": ({}, "spec: must be a map"),
    "a spec that is text": ({"spec": "x"}, "spec: must be a map"),
    "metadata that is a list": ({"metadata": [], "spec": {"containers": [{"name": "a"}]}}, "metadata must be a map"),
    "labels that are numbers": (
        {"metadata": {"labels": {"a": 1}}, "spec": {"containers": [{"name": "a"}]}},
        "metadata.labels",
    ),
}


@pytest.mark.parametrize(("data", "reason"), INVALID_PODS.values(), ids=INVALID_PODS)
def test_invalid_pod_is_invalid_input(data: dict[str, Any], reason: str, context: EvaluationContext) -> None:
    result = evaluate_data({"apiVersion": "v1", "kind": "Pod", **data}, context)
    assert (result.verdict, result.invalid) == (CheckVerdict.SKIPPED, True)
    assert reason in result.reason


def test_invalid_pod_template_is_an_error_at_its_position(context: EvaluationContext) -> None:
    spec = {"containers": [{"name": "a", "image": "i", "resources": {"limits": {"nvidia.com/gpu": [1]}}}]}
    result = evaluate_data(
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": spec}}}, context
    )
    assert (result.verdict, result.invalid) == (CheckVerdict.SKIPPED, True)
    assert "spec.containers[0].resources.limits['nvidia.com/gpu']: must be a number or text" in result.reason


OTHERS = {
    "a Service": ({"apiVersion": "v1", "kind": "Service", "spec": {}}, "not a workload", True),
    "a Node": ({"apiVersion": "v1", "kind": "Node"}, "not a workload", True),
    "a Pod of another group": ({"apiVersion": "example.com/v1", "kind": "Pod"}, "it names no GPUs", True),
    "a workload of an unknown kind": (
        {"apiVersion": "example.com/v1", "kind": "Trainer", "spec": {"t": [{"spec": {"containers": []}}]}},
        "spec.match.templates",
        False,
    ),
}


@pytest.mark.parametrize(("data", "reason", "quiet"), OTHERS.values(), ids=OTHERS)
def test_object_without_pods_is_skipped(
    data: dict[str, Any], reason: str, quiet: bool, context: EvaluationContext
) -> None:
    result = evaluate_data(data, context)
    assert (result.verdict, result.invalid, result.quiet) == (CheckVerdict.SKIPPED, False, quiet)
    assert reason in result.reason


def test_policy_can_name_the_pod_templates_of_a_kind() -> None:
    trainer = "  match: {templates: [{apiGroup: example.com, kind: Trainer, paths: [spec.template]}]}\n  limits:"
    context = EvaluationContext(
        policies=policies(POLICY.replace("  limits:", trainer)), view=view_of_objects(()), now=NOW
    )
    template = make_pod().gpus(3).build()
    result = evaluate_data({"apiVersion": "example.com/v1", "kind": "Trainer", "spec": {"template": template}}, context)
    assert result.verdict is CheckVerdict.DENIED


def test_evaluating_the_patched_pod_again_adds_no_denials(library: EvaluationContext) -> None:
    """`evaluate_object` calls `decide` once, on the patched pod."""
    for entry in read_objects([str(bundled_folder("examples") / "pods")]):
        assert isinstance(entry, SourceObject)
        result = evaluate_object(entry, library)
        if result.kind != "Pod":
            continue
        shaped = apply_json_patch(result.stored, result.decision.patch)
        again = evaluate_object(SourceObject(shaped, entry.document, entry.prefix), library)
        assert {found.code for found in again.decision.denials} == {found.code for found in result.decision.denials}
        assert again.decision.patch == ()


def test_whole_corpus_has_verdicts(shared: Path, library: EvaluationContext) -> None:
    results = list(evaluate_all(read_objects([str(shared / "corpus/manifests")]), library))
    assert len(results) >= 174
    invalid = [(str(result.location), result.reason) for result in results if result.invalid]
    placeholder = re.compile(
        "must be a quantity|must be a whole number .*found '__NUM_NODES__'|limits.FILLED_BY_VALIDATOR"
        "|found 'apps/v1beta1'|Kubernetes 1.31 removed source"
    )
    assert [each for each in invalid if not placeholder.search(each[1])] == []
    assert len(invalid) < 14, "only placeholders of templates and old versions, which the API server rejects too"
    judged_ones = [result for result in results if result.verdict is not CheckVerdict.SKIPPED]
    assert len(judged_ones) > 100
    assert all(found.location.line > 0 for result in judged_ones for found in result.findings)


RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "trap", "namespace": "team"},
    "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "2"}, "default": {"cpu": "500m"}}]},
}


@pytest.fixture(scope="module")
def bounded() -> EvaluationContext:
    """A namespace whose LimitRange defaults two GPUs, and a policy that right-sizes."""
    text = POLICY.replace("limitRanges: ignore", "limitRanges: evaluate") + "  rightSizing: {}\n"
    view = view_of(make_namespace("team"), RANGE, mig_node(), whole_node())
    return EvaluationContext(policies=policies(text), view=view, now=NOW, namespace="team")


def with_helper() -> Json:
    """A pod that requests one GPU, with a helper container without requests."""
    return make_pod("a").gpus(1).needs("8Gi").container("helper", image="i").namespace("team").build()


def test_pod_is_evaluated_after_limit_range_defaults(bounded: EvaluationContext) -> None:
    result = evaluate_data(with_helper(), bounded)

    assert "GPU-L202" in {found.finding.code for found in result.findings}
    assert result.decision.gpu_milli_before == 3000
    resources = result.stored["spec"]["containers"][1]["resources"]
    assert resources == {
        "limits": {"cpu": "500m", "nvidia.com/gpu": "2"},
        "requests": {"cpu": "500m", "nvidia.com/gpu": "2"},
    }


def test_pods_of_a_template_are_evaluated_after_limit_range_defaults(bounded: EvaluationContext) -> None:
    pod = with_helper()
    spec = {"template": {"metadata": pod["metadata"], "spec": pod["spec"]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "team"}, "spec": spec}

    result = evaluate_data(job, bounded)

    [missing] = [found for found in result.findings if found.finding.code == "GPU-L202"]
    assert missing.finding.path[:6] == ("spec", "template", "spec", "containers", 1, "resources")
    assert result.decision.gpu_milli_before == 3000


def test_pod_with_all_amounts_is_not_defaulted(bounded: EvaluationContext) -> None:
    pod = make_pod("a").requests("cpu", "1000m").gpus(1).namespace("team").build()
    assert evaluate_data(pod, bounded).stored["spec"] == pod["spec"]


NETWORK_CLAIM = """
kind: Pod
apiVersion: v1
metadata: {name: rdma}
spec:
  containers: [{name: a, image: a}]
  resourceClaims: [{name: nic, resourceClaimTemplateName: nic}]
"""
NETWORK_CLASS = """
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: nic}
spec: {spec: {devices: {requests: [{name: nic, exactly: {deviceClassName: rdma}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: rdma}
spec: {selectors: [{cel: {expression: 'device.driver == "dra.net"'}}]}
"""


@pytest.mark.parametrize(
    ("text", "reported"),
    [(NETWORK_CLAIM, True), (NETWORK_CLAIM + NETWORK_CLASS, False), (NETWORK_CLASS + "---" + NETWORK_CLAIM, False)],
)
def test_claim_templates_and_device_classes_of_the_files_are_known(
    text: str, reported: bool, library: EvaluationContext
) -> None:
    devices = library.view.devices._replace(unlisted=frozenset())  # those of the cluster were read
    context = replace(library, view=library.view.with_devices(devices))
    results = evaluate_all(parse_objects("a.yaml", text.encode()), context)
    [pod] = [each for each in results if each.kind == "Pod"]
    codes = [each.code for each in pod.decision.findings]
    assert ("GPU-D110" in codes) == reported, codes


def test_classes_of_a_cluster_that_is_not_known_are_not_missing() -> None:
    """The files have one class, and a claim of another."""
    claim = "---\n" + NETWORK_CLASS.split("---")[1].replace("rdma", "gpu.nvidia.com")
    for view, reported in ((view_of(), False), (listed(view_of(*CLUSTER)), True)):
        context = EvaluationContext(PolicySet(()), view, datetime(2026, 6, 1, tzinfo=UTC))
        results = evaluate_all(parse_objects("a.yaml", (NETWORK_CLASS + claim).encode()), context)
        codes = [each.code for result in results for each in result.decision.findings]
        assert ("GPU-D106" in codes) == reported
