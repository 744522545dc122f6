"""Jobs and JobSets in the queue of a namespace, what Kueue charges for them, and their pods."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.kueue import API, SLICE
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually

JOBS, JOBSETS = "/apis/batch/v1/namespaces/{}/jobs", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets"


def queued_job(name: str, team: str, **annotations: str) -> Json:
    """Return a Job in the queue of a namespace whose pod runs until it is deleted and needs 8 GiB of one GPU."""
    pod = make_pod().needs("8Gi").gpus(1).requests("cpu", "1").build()
    metadata = {"annotations": pod["metadata"]["annotations"] | annotations}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": team, "labels": {"kueue.x-k8s.io/queue-name": "team"}},
        "spec": {
            "suspend": True,
            "template": {"metadata": metadata, "spec": pod["spec"] | {"restartPolicy": "Never"}},
        },
    }


def queued_jobset(name: str, team: str) -> Json:
    """Return a JobSet of one Job with one pod, which says that it is the only worker, as JobSet's webhook stores it."""
    job = queued_job(name, team, **{"rightslice.dev/gang-size": "1"})
    spec = {"template": job["spec"]["template"], "completionMode": "Indexed", "completions": 1, "parallelism": 1}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": job["metadata"],
        "spec": {
            "suspend": True,
            "successPolicy": {"operator": "All"},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": "main", "replicas": 1, "template": {"spec": spec}}],
        },
    }


def create_job(plane: Plane, job: Json, **params: str) -> Json:
    """Create a Job, and return it as stored."""
    return plane.api.create(f"/apis/batch/v1/namespaces/{job['metadata']['namespace']}/jobs", job, **params)


def admitted_amounts(plane: Plane, team: str) -> Json:
    """Return what each admitted Workload of a namespace is charged for, by the name of its Job."""
    workloads: Any = plane.api.get(f"{API}/namespaces/{team}/workloads")["items"]
    return {
        one["metadata"]["ownerReferences"][0]["name"]: assignment["resourceUsage"]
        for one in workloads
        for assignment in one.get("status", {}).get("admission", {}).get("podSetAssignments", [])
    }


def pods_of_job(plane: Plane, team: str, name: str) -> list[Json]:
    """Return the pods of a Job."""
    path = f"/api/v1/namespaces/{team}/pods"
    pods: list[Json] = plane.api.get(path, labelSelector=f"batch.kubernetes.io/job-name={name}")["items"]
    return pods


def limits_of(pod: Json) -> Json:
    """Return the limits of the GPUs of a pod or of a template."""
    limits: Json = pod["spec"]["containers"][0]["resources"]["limits"]
    return {name: amount for name, amount in limits.items() if name.startswith("nvidia.com/")}


def wait_until_right_sized(plane: Plane, job: Json) -> None:
    """Wait until the webhook would give a Job a slice: it learns of nodes, queues and policies by watches."""
    tried = partial(create_job, plane, job, dryRun="All")
    eventually(tried, until=lambda created: limits_of(created["spec"]["template"]) == {SLICE: "1"})
