"""Objects that are too large to evaluate while the API server waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json, make_pod
from tests.policy.policy_texts import load_texts, policy_text
from webhook.engine.object_limits import find_exceeded_limit
from webhook.model.admission import AdmissionRequest
from webhook.model.object_bounds import MAX_COUNTS, TEXT_LENGTH
from webhook.model.pods import parse_pod

POLICIES = load_texts(policy_text(cuda={}))


def pod(**spec: Any) -> Json:
    built = make_pod("a").gpus(1).build()
    return {**built, "spec": {**built["spec"], **spec}}


def containers(count: int, **fields: Any) -> list[Json]:
    return [{"name": f"c{index}", **fields} for index in range(count)]


def term(*expressions: Json) -> Json:
    required = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def terms(count: int) -> Json:
    each = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [each] * count}}}


PODS = {
    "one container": (pod(), ""),
    "60 containers": (pod(containers=containers(60)), ""),
    "the maximum number of containers": (pod(containers=containers(150)), ""),
    "one more": (pod(containers=containers(151)), "150 containers"),
    "50,000 containers": (pod(containers=containers(50_000)), "150 containers"),
    "main, init and ephemeral containers": (
        pod(
            containers=containers(60),
            initContainers=containers(60),
            ephemeralContainers=containers(60),
        ),
        "150 containers",
    ),
    "volumes": (pod(volumes=[{"name": "v"}] * 501), "500 volumes"),
    "environment variables of all containers": (
        pod(containers=containers(51, env=[{"name": "A"}] * 100)),
        "5000 environment variables",
    ),
    "a realistic number of environment variables": (pod(containers=containers(20, env=[{"name": "A"}] * 100)), ""),
    "mounts": (pod(containers=containers(1, volumeMounts=[{"mountPath": "/a"}] * 5_001)), "5000 volume mounts"),
    "amounts": (
        pod(containers=containers(1, resources={"limits": {f"r{number}/x": "1" for number in range(1_001)}})),
        "1000 resource amounts",
    ),
    "a very long resource name": (
        pod(containers=containers(1, resources={"limits": {"nvidia.com/" + "g" * 100_000: "1"}})),
        f"100000 {TEXT_LENGTH}",
    ),
    "a very long image name": (pod(containers=containers(1, image="a" * 100_001)), f"100000 {TEXT_LENGTH}"),
    "very long host paths": (
        pod(volumes=[{"name": "v", "hostPath": {"path": "/" * 60_000}}] * 2),
        f"100000 {TEXT_LENGTH}",
    ),
    "tolerations": (pod(tolerations=[{"key": "a"}] * 501), "500 tolerations"),
    "affinity terms": (pod(affinity=terms(501)), "500 node affinity terms"),
    "expressions of affinity": (
        pod(affinity=term(*[{"key": "a", "operator": "Exists"}] * 1_001)),
        "1000 node affinity expressions",
    ),
    "values of affinity": (
        pod(affinity=term({"key": "a", "operator": "In", "values": ["b"] * 5_001})),
        "5000 node affinity values",
    ),
    "terms of affinity between pods": (
        pod(affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}] * 501}}),
        "500 pod affinity terms",
    ),
    "different resource names": (
        pod(containers=[*containers(1, resources={"limits": {f"r{n}/x": "1" for n in range(101)}})]),
        "100 different resource names",
    ),
    "overhead": (pod(overhead={f"r{number}": "1" for number in range(1_001)}), "1000 resource amounts"),
    "amounts of the pod": (
        pod(resources={"limits": {f"r{number}": "1" for number in range(1_001)}}),
        "1000 resource amounts",
    ),
    "node selector keys": (pod(nodeSelector={f"k{number}": "v" for number in range(501)}), "500 node selector keys"),
    "claims": (pod(resourceClaims=[{"name": "a"}] * 501), "500 resource claims"),
    "a realistic number of claims that containers use": (
        pod(containers=containers(150, resources={"claims": [{"name": "a"}] * 3})),
        "",
    ),
    "claims that containers use": (
        pod(containers=containers(51, resources={"claims": [{"name": "a"}] * 10})),
        "500 uses of resource claims",
    ),
    "spread constraints": (pod(topologySpreadConstraints=[{}] * 501), "500 spread constraints"),
    "scheduling gates": (pod(schedulingGates=[{"name": "a"}] * 501), "500 scheduling gates"),
    "ports": (pod(containers=containers(1, ports=[{"hostPort": 1}] * 2_001)), "2000 ports"),
    "capabilities": (
        pod(initContainers=containers(1, securityContext={"capabilities": {"add": ["A"] * 2_001}})),
        "2000 capabilities",
    ),
    "annotations": (
        {**pod(), "metadata": {"annotations": {f"k{number}": "v" for number in range(2_001)}}},
        "2000 annotations",
    ),
    "labels": ({**pod(), "metadata": {"labels": {f"k{number}": "v" for number in range(2_001)}}}, "2000 labels"),
    "owner references": ({**pod(), "metadata": {"ownerReferences": [{"name": "a"}] * 501}}, "500 owner references"),
}


@pytest.mark.parametrize(("obj", "words"), PODS.values(), ids=PODS)
def test_a_pod(obj: Json, words: str) -> None:
    assert (
        find_exceeded_limit(AdmissionRequest("CREATE", "", "Pod", "team", "a", parse_pod(obj), lambda: obj), POLICIES)
        == words
    )


def test_an_old_pod_is_counted_separately() -> None:
    large, larger = parse_pod(pod(containers=containers(150))), parse_pod(pod(containers=containers(151)))
    assert find_exceeded_limit(AdmissionRequest("UPDATE", "", "Pod", "team", "a", large, dict, large), POLICIES) == ""
    assert (
        find_exceeded_limit(AdmissionRequest("UPDATE", "", "Pod", "team", "a", large, dict, larger), POLICIES)
        == "150 containers"
    )


def jobs(count: int, each: int) -> Json:
    template = {"spec": {"template": {"spec": {"containers": containers(each)}}}}
    return {"spec": {"replicatedJobs": [{"name": f"j{index}", "template": template} for index in range(count)]}}


WORKLOADS = {
    "a few templates": (jobs(10, 3), ""),
    "many templates": (jobs(65, 1), "64 pod templates"),
    "many containers in all": (jobs(60, 3), "150 containers"),
    "many invalid templates": (
        {"spec": {"replicatedJobs": [{"template": {"spec": {"template": 7}}} for _ in range(65)]}},
        "64 pod templates",
    ),
    "no templates": ({"spec": []}, ""),
    "nothing": (None, ""),
}


@pytest.mark.parametrize(("obj", "words"), WORKLOADS.values(), ids=WORKLOADS)
def test_a_workload(obj: Any, words: str) -> None:
    assert (
        find_exceeded_limit(
            AdmissionRequest("CREATE", "jobset.x-k8s.io", "JobSet", "team", "a", None, lambda: obj), POLICIES
        )
        == words
    )


def test_templates_beyond_the_maximum_are_not_read() -> None:
    read = 0

    class Job(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal read
            read += 1
            return super().get(key, default)

    template = {"spec": {"containers": containers(1)}}
    groups = [Job(template=template) for _ in range(50_000)]
    obj = {"spec": {"headGroupSpec": {"template": template}, "workerGroupSpecs": groups}}
    assert find_exceeded_limit(
        AdmissionRequest("CREATE", "ray.io", "RayCluster", "team", "a", None, lambda: obj), POLICIES
    )
    once_each = len(groups)
    assert read < once_each + 10 * MAX_COUNTS["pod templates"]


NAMESPACE_LIMITS = {
    "a usual quota": ("ResourceQuota", {"hard": {"pods": "1"}}, ""),
    "a quota of 1,001 keys": (
        "ResourceQuota",
        {"hard": dict.fromkeys(map(str, range(1_001)), "1")},
        "1000 keys of a quota",
    ),
    "a range of 501 items": ("LimitRange", {"limits": [7] * 501}, "500 entries of a LimitRange"),
    "a range with 501 defaults": (
        "LimitRange",
        {"limits": [{"type": "Container", "default": dict.fromkeys(map(str, range(501)), "1")}]},
        "500 entries of a LimitRange",
    ),
    "an object of another form": ("LimitRange", ["limits"], ""),
}


@pytest.mark.parametrize(("kind", "spec", "words"), NAMESPACE_LIMITS.values(), ids=NAMESPACE_LIMITS)
def test_the_limits_of_a_namespace(kind: str, spec: Any, words: str) -> None:
    obj = {"kind": kind, "spec": spec}
    request = AdmissionRequest("CREATE", "", kind, "team", "a", None, lambda: obj)
    assert find_exceeded_limit(request, POLICIES) == words
