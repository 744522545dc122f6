"""What users write about a pod switches no check off: names, labels, owners, schedulers, deletion, odd amounts."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.cpu_timer import CpuTimer
from tests.engine.invariants import Scenario, any_pods, scenarios
from tests.example_cluster import (
    NO_USAGE,
    NOW,
    codes,
    policies_of,
    policy,
    request_of,
    review,
    view_of,
    whole_node,
)
from webhook.cache.bundled_files import bundled_folder
from webhook.engine.decide import decide
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import DECISION_ANNOTATION
from webhook.model.cluster_view import ClusterView
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "gpus", "namespace": "team"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "2"}},
    "status": {"hard": {"requests.nvidia.com/gpu": "2"}, "used": {"requests.nvidia.com/gpu": "2"}},
}
STRICT = (
    "mode: enforce\n"
    "security: {deny: [visibleDevicesEnv, privileged, hostPathDevices, cdiAnnotations, forgedAnnotations]}\n"
    "limits: {perPod: [{resource: nvidia.com/gpu, max: 4}]}"
)
EXEMPT = """mode: enforce
security: {deny: [visibleDevicesEnv]}
exemptions:
  - name: agents
    codes: [GPU-S101]
    match: {namespaces: [gpu-agents]}
    reason: their own nodes
    expirationTime: '2026-12-01T00:00:00Z'
"""
VIEW = view_of(make_namespace("team"), make_namespace("gpu-agents"), QUOTA, whole_node())


def sees_every_gpu() -> PodMaker:
    return make_pod().env("NVIDIA_VISIBLE_DEVICES", "all")


def privileged() -> PodMaker:
    pod = make_pod().gpus(1)
    pod.main["securityContext"] = {"privileged": True}
    return pod


BYPASSES = {
    "a variable": sees_every_gpu(),
    "a privileged container": privileged(),
    "eight GPUs": make_pod().gpus(8),
    "a host path": make_pod().gpus(1).spec(volumes=[{"name": "d", "hostPath": {"path": "/dev/nvidia0"}}]),
    "a forged record": make_pod().gpus(1).annotate(DECISION_ANNOTATION, json.dumps({"changed": ["resources"]})),
}
LABELS = {
    "app": "rightslice",
    "app.kubernetes.io/name": "rightslice",
    "app.kubernetes.io/component": "agent",
    "app.kubernetes.io/part-of": "gpu-operator",
    "admission.gatekeeper.sh/ignore": "true",
    "config.linkerd.io/admission-webhooks": "disabled",
    "hami.io/webhook": "ignore",
    "sidecar.istio.io/inject": "false",
    "rightslice.dev/ignore": "true",
    "openshift.io/run-level": "0",
}


def labeled(pod: PodMaker) -> PodMaker:
    for key, value in LABELS.items():
        pod.label(key, value).annotate(key, value)
    return pod


def owned(pod: PodMaker) -> PodMaker:
    pod.owned_by("DaemonSet", "nvidia-device-plugin-daemonset")
    pod.data["metadata"]["ownerReferences"].append(
        {"apiVersion": "batch/v1", "kind": "Job", "name": "of-another-team", "uid": "u2"}
    )
    return pod


def being_deleted(pod: PodMaker) -> PodMaker:
    pod.data["metadata"] |= {"deletionTimestamp": "2026-06-01T00:00:00Z", "finalizers": ["example.com/keep"]}
    return pod


CLAIMS = {
    "another scheduler": lambda pod: pod.spec(schedulerName="mine"),
    "the default scheduler by name": lambda pod: pod.spec(schedulerName="default-scheduler"),
    "labels and annotations of components and of those to ignore": labeled,
    "owners that are exempt or belong to others": owned,
    "a deletion in progress": being_deleted,
    "a service account that sounds trusted": lambda pod: pod.spec(serviceAccountName="rightslice-agent"),
    "a priority that sounds trusted": lambda pod: pod.spec(priorityClassName="system-node-critical"),
}


def denied_codes(pod: PodMaker, **request: Any) -> list[str]:
    decision = review(pod, STRICT, EXEMPT, view=VIEW, **request)
    return sorted(finding.code for finding in decision.denials)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("pod", BYPASSES.values(), ids=BYPASSES)
def test_no_claim_of_a_user_changes_a_denial(pod: PodMaker, claim: Any) -> None:
    wanted = denied_codes(copy.deepcopy(pod))

    assert wanted
    assert denied_codes(claim(copy.deepcopy(pod))) == wanted


def test_an_update_of_a_pod_that_is_being_deleted_is_evaluated() -> None:
    before, after = being_deleted(make_pod().gpus(1)), being_deleted(make_pod().gpus(1).env("LD_PRELOAD", "x"))
    after.container("debug", kind="ephemeralContainers", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    old = request_of(before.build()).pod

    assert denied_codes(after, operation="UPDATE", old_pod=old) == ["GPU-S101"]
    assert denied_codes(before, operation="UPDATE", old_pod=old) == []


def test_each_version_of_a_kind_has_the_same_findings() -> None:
    template = {"spec": sees_every_gpu().build()["spec"]}
    group = {"groupName": "workers", "replicas": 2, "rayStartParams": {}, "template": template}
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": template}, "workerGroupSpecs": [group]}

    def found(version: str) -> list[str]:
        metadata = {"name": "ray", "namespace": "team"}
        data = {"apiVersion": f"ray.io/{version}", "kind": "RayCluster", "metadata": metadata, "spec": spec}
        return codes(review(data, STRICT, view=VIEW))

    assert "GPU-S101" in "".join(found("v1"))
    assert found("v1alpha1") == found("v1")


AMOUNTS = ["1e400", "1e2000000", "1e2147483647", "9" * 4000, "9e18", "9223372036854775808", "0." + "9" * 4000]
MAX_DECISION_SECONDS = 0.005


@pytest.mark.parametrize("amount", AMOUNTS, ids=lambda amount: amount[:12])
def test_an_absurd_number_of_gpus_is_denied_within_milliseconds(amount: str) -> None:
    policies, spent = policies_of(policy(STRICT)), []
    for _ in range(20):
        request = request_of(make_pod().gpus(amount).build())
        with CpuTimer() as timer:
            assert decide(request, policies, VIEW, NO_USAGE, NOW).denials
        spent.append(timer.seconds)
    assert min(spent) < MAX_DECISION_SECONDS


PATCHED = (
    "/metadata/annotations",
    "/metadata/labels",
    "/spec/affinity",
    "/spec/tolerations",
    "/spec/topologySpreadConstraints",
    "/spec/runtimeClassName",
)
MAX_OPERATIONS, MAX_PATCH_BYTES = 100, 64 * 1024


def is_owned(path: str) -> bool:
    """Return whether Rightslice may write a path of a pod."""
    parts = path.split("/")
    of_container = len(parts) > 4 and parts[2] in ("containers", "initContainers") and parts[4] == "resources"
    return path.startswith(PATCHED) or of_container


@settings(max_examples=120)
@given(any_pods(), scenarios())
def test_a_patch_is_small_and_writes_known_fields_only(pod: Json, scenario: Scenario) -> None:
    patch: Any = list(scenario.decide(pod).patch)

    assert [operation["path"] for operation in patch if not is_owned(operation["path"])] == []
    assert len(patch) <= MAX_OPERATIONS
    assert len(json.dumps(patch)) <= MAX_PATCH_BYTES


def many_policies(count: int, match: str) -> PolicySet:
    """Return the shipped policies, and so many more for a namespace each."""
    texts = [(str(file), file.read_text()) for file in sorted(bundled_folder("policies").glob("*.yaml"))]
    spec = "mode: enforce\nmatch: {{namespaces: [{}]}}\nlimits: {{perPod: [{{resource: nvidia.com/gpu, max: 4}}]}}"
    texts += [(f"{index}.yaml", policy(spec.format(match.format(index)), f"more-{index}")) for index in range(count)]
    loaded = load_policies(texts)
    assert loaded.policies is not None, loaded.errors
    return loaded.policies


def seconds_for(policies: PolicySet, view: ClusterView, request: AdmissionRequest) -> float:
    """Return the CPU of a decision."""
    start = time.thread_time()
    decide(request, policies, view, NO_USAGE, NOW)
    return time.thread_time() - start


def median_seconds(cases: Sequence[tuple[PolicySet, ClusterView]], requests: list[AdmissionRequest]) -> list[float]:
    """Return the median CPU of a decision in each case; they take turns, as a machine may become busy meanwhile."""
    spent = [[seconds_for(*case, request) for case in cases] for _ in range(2) for request in requests]
    return [sorted(each)[len(requests) // 2] for each in zip(*spent[len(requests) :], strict=True)]


def unlike_pods(count: int, namespace: str = "team") -> list[AdmissionRequest]:
    return [request_of(make_pod(f"p{index}").gpus(1).namespace(namespace).build()) for index in range(count)]


def test_500_policies_cost_at_most_twice_as_much_as_10() -> None:
    view, requests = view_of(make_namespace("team"), whole_node()), unlike_pods(300)
    few, many = (many_policies(count, "team-{}") for count in (10, 500))

    of_few, of_many = median_seconds([(few, view), (many, view)], requests)
    assert of_many <= 2 * of_few


def test_one_abusive_namespace_of_10000_slows_no_other() -> None:
    namespaces = [make_namespace(f"n{index}") for index in range(10_000)]
    objects = [QUOTA | {"metadata": {"name": "gpus", "namespace": f"n{index}"}} for index in range(1000)]
    node, policies = make_node("n", {}, **{"nvidia.com/gpu": 8}), many_policies(0, "")
    quiet = view_of(*namespaces, *objects, node)
    pods = [make_pod(f"p{index}").gpus(1).namespace("n0").build() for index in range(10_000)]
    abused = view_of(*namespaces, *objects, node, *pods)
    others = unlike_pods(300, "n777")

    undisturbed, disturbed = median_seconds([(policies, quiet), (policies, abused)], others)
    assert disturbed <= 2 * undisturbed
