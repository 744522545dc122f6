"""TrainJobs with their real controller: which pods it creates, and what a queue charges for them.

The controller counts the processes of a pod by the names of resources that contain "gpu". So right-sizing changes the
pod, for which the count is written, and not the TrainJob.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.client import Json
from tests.cluster.installation import Installation
from tests.cluster.kueue import GPU, SLICE
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.queues.jobs import admitted_amounts, limits_of

API = "/apis/trainer.kubeflow.org/v1alpha1"
CPUS = "4"
ALONE = {"rightslice.dev/gpu-memory": "8Gi", "rightslice.dev/gang-size": "1"}


@pytest.fixture
def runtime(site: Installation, team: str) -> Iterator[str]:
    """A runtime of PyTorch, whose pods say what they need and that they are the only worker.

    Its JobSet has what JobSet's webhook would add.
    """
    container = {"name": "node", "image": "pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime"}
    pod = {"metadata": {"annotations": ALONE}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job = {"metadata": {"labels": labels}, "spec": {"template": pod, "completionMode": "Indexed"}}
    job_set = {
        "replicatedJobs": [{"name": "node", "template": job}],
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
    }
    spec = {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": job_set}}
    about = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime"}
    path = f"{API}/clustertrainingruntimes"
    site.plane.api.create(path, {**about, "metadata": {"name": team}, "spec": spec})
    yield team
    site.plane.api.delete(f"{path}/{team}")


def create_train_job(plane: Plane, runtime: str, resource: str, **spec: object) -> Json:
    """Create a TrainJob with one unit of a resource on its only node, and return it as stored."""
    queue = {"labels": {"kueue.x-k8s.io/queue-name": "team"}} if spec.get("suspend") else {}
    amounts = {resource: "1", "cpu": CPUS}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "train", "namespace": runtime, **queue},
        "spec": {
            "runtimeRef": {"name": runtime},
            "trainer": {"numNodes": 1, "resourcesPerNode": {"limits": amounts, "requests": amounts}},
            **spec,
        },
    }
    return plane.api.create(f"{API}/namespaces/{runtime}/trainjobs", job)


def pod_of_train_job(plane: Plane, team: str) -> Json:
    """Return the only pod of the TrainJob, once it exists."""
    path, selector = f"/api/v1/namespaces/{team}/pods", "jobset.sigs.k8s.io/jobset-name=train"
    [pod] = eventually(lambda: plane.api.get(path, labelSelector=selector)["items"])
    found: Json = pod
    return found


def processes_of(pod: Json) -> str:
    """Return how many processes torchrun starts in a pod."""
    variables = {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}
    return str(variables["PET_NPROC_PER_NODE"])


def test_the_pod_of_a_train_job_gets_a_slice_and_as_many_processes_as_with_a_card(
    site: Installation, runtime: str
) -> None:
    create_train_job(site.plane, runtime, GPU)
    pod = pod_of_train_job(site.plane, runtime)
    assert (limits_of(pod), processes_of(pod)) == ({SLICE: "1"}, "auto")


def test_a_train_job_that_requests_a_slice_starts_a_process_for_each_cpu(site: Installation, runtime: str) -> None:
    """So a TrainJob is not changed when it is created."""
    create_train_job(site.plane, runtime, SLICE)
    pod = pod_of_train_job(site.plane, runtime)
    assert (limits_of(pod), processes_of(pod)) == ({SLICE: "1"}, CPUS)


def test_a_queued_train_job_is_charged_for_the_card_that_its_pod_keeps(site: Installation, runtime: str) -> None:
    patch: Json = {"template": {"spec": {}}}
    stored = create_train_job(
        *(site.plane, runtime, GPU),
        suspend=True,
        runtimePatches=[{"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": patch}],
    )
    assert GPU in stored["spec"]["trainer"]["resourcesPerNode"]["limits"]
    pod = pod_of_train_job(site.plane, runtime)
    assert limits_of(pod) == {GPU: "1"}
    assert admitted_amounts(site.plane, runtime) == {"train": {"cpu": CPUS, GPU: "1"}}
