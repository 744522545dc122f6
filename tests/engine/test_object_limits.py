"""Objects that are too large to evaluate while the API server waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json, make_pod
from tests.policy.policy_texts import load_texts, policy_text
from webhook.engine.object_limits import MAX_COUNTS, TEXT_LENGTH, find_exceeded_limit
from webhook.model.admission import AdmissionRequest
from webhook.model.pods import parse_pod

POLICIES = load_texts(policy_text(cuda={}))


def pod(**spec: Any) -> Json:
    built = make_pod("a").gpus(1).build()
    return {**built, "spec": {**built["spec"], **spec}}


def containers(count: int, **fields: Any) -> list[Json]:
    return [{"name": f"c{index}", **fields} for index in range(count)]


def terms(count: int) -> Json:
    each = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [each] * count}}}


PODS = {
    "one container": (pod(), ""),
    "300 containers": (pod(containers=containers(300)), ""),
    "the maximum number of containers": (pod(containers=containers(500)), ""),
    "one more": (pod(containers=containers(501)), "500 containers"),
    "50,000 containers": (pod(containers=containers(50_000)), "500 containers"),
    "main, init and ephemeral containers": (
        pod(
            containers=containers(200),
            initContainers=containers(200),
            ephemeralContainers=containers(200),
        ),
        "500 containers",
    ),
    "volumes": (pod(volumes=[{"name": "v"}] * 1001), "1000 volumes"),
    "environment variables of all containers": (
        pod(containers=containers(201, env=[{"name": "A"}] * 100)),
        "20000 environment variables",
    ),
    "a realistic number of environment variables": (pod(containers=containers(20, env=[{"name": "A"}] * 100)), ""),
    "mounts": (pod(containers=containers(1, volumeMounts=[{"mountPath": "/a"}] * 20_001)), "20000 volume mounts"),
    "amounts": (
        pod(containers=containers(1, resources={"limits": {f"r{number}/x": "1" for number in range(5_001)}})),
        "5000 resource amounts",
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
    "tolerations": (pod(tolerations=[{"key": "a"}] * 1001), "1000 tolerations"),
    "affinity terms": (pod(affinity=terms(1001)), "1000 node affinity terms"),
}


@pytest.mark.parametrize(("obj", "words"), PODS.values(), ids=PODS)
def test_a_pod(obj: Json, words: str) -> None:
    assert (
        find_exceeded_limit(AdmissionRequest("CREATE", "", "Pod", "team", "a", parse_pod(obj), lambda: obj), POLICIES)
        == words
    )


def test_an_old_pod_is_counted_separately() -> None:
    large, larger = parse_pod(pod(containers=containers(500))), parse_pod(pod(containers=containers(501)))
    assert find_exceeded_limit(AdmissionRequest("UPDATE", "", "Pod", "team", "a", large, dict, large), POLICIES) == ""
    assert (
        find_exceeded_limit(AdmissionRequest("UPDATE", "", "Pod", "team", "a", large, dict, larger), POLICIES)
        == "500 containers"
    )


def jobs(count: int, each: int) -> Json:
    template = {"spec": {"template": {"spec": {"containers": containers(each)}}}}
    return {"spec": {"replicatedJobs": [{"name": f"j{index}", "template": template} for index in range(count)]}}


WORKLOADS = {
    "a few templates": (jobs(10, 3), ""),
    "many templates": (jobs(201, 1), "200 pod templates"),
    "many containers in all": (jobs(100, 6), "500 containers"),
    "many invalid templates": (
        {"spec": {"replicatedJobs": [{"template": {"spec": {"template": 7}}} for _ in range(201)]}},
        "200 pod templates",
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
