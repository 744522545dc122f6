"""Reviews that the server benchmark posts: training and serving pods of about 6 KB, as an API server sends them.

`copies` yields replicas of several workloads, each pod as its controller creates it: with a token volume and, in a
Job, an index. `strangers` yields pods of different workloads.
"""

from __future__ import annotations

import random

from benchmarks.api_objects import Json, as_stored, review_bytes
from benchmarks.controller_pods import indexed, uid_by, with_owner_reference

NAMESPACE = "team-vision"
"""A namespace of the demo cluster that has opted in to right-sizing."""

WORKLOADS = 40
COPIES = 25
STRANGERS = 2000

_NEEDS = ("4Gi", "8Gi", "16Gi", "30Gi", "")
_ENV: list[Json] = [
    {"name": "NCCL_DEBUG", "value": "INFO"},
    {"name": "OMP_NUM_THREADS", "value": "8"},
    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
]
_GPUS = (1, 1, 1, 2, 1, 1, 4, 8)


def copies(workloads: int = WORKLOADS, each: int = COPIES) -> list[bytes]:
    """Yield reviews of the pods of this many workloads, `each` times each, in the order of a simultaneous scale-up."""
    return [review(workload, number) for number in range(each) for workload in range(workloads)]


def strangers(count: int = STRANGERS) -> list[bytes]:
    """Yield reviews of pods of this many workloads, one of each."""
    return [review(workload, 0) for workload in range(count)]


def review(workload: int = 0, number: int = 0) -> bytes:
    """Return the review of one pod of a workload."""
    chance = random.Random(f"{workload}/{number}")
    suffix = "".join(chance.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
    pod = _of_job(workload, number) if workload % 2 else _of_deployment(workload)
    return review_bytes(as_stored(pod, NAMESPACE, suffix=suffix), uid_by(chance))


def _of_job(workload: int, number: int) -> Json:
    """Return a pod of an indexed Job."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"train-{workload}"}}
    template = {"metadata": _metadata(workload), "spec": _spec(workload) | {"restartPolicy": "Never"}}
    return indexed(with_owner_reference(template, job), number)


def _of_deployment(workload: int) -> Json:
    """Return a pod of a Deployment's ReplicaSet."""
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"serve-{workload}"}}
    return with_owner_reference({"metadata": _metadata(workload), "spec": _spec(workload)}, deployment)


def _metadata(workload: int) -> Json:
    return {"labels": {"app": f"app-{workload}", "team": "vision"}, "annotations": _declared(workload)}


def _declared(workload: int) -> Json:
    need = _NEEDS[workload % len(_NEEDS)]
    return {"rightslice.dev/gpu-memory": need} if need else {"example.com/owner": "vision"}


def _spec(workload: int) -> Json:
    gpus = _GPUS[workload % len(_GPUS)]
    amounts = {"cpu": str(8 * gpus), "memory": f"{64 * gpus}Gi", "nvidia.com/gpu": str(gpus)}
    image = f"registry.example.com/vision/model-{workload}:12.4-runtime"
    return {
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
        "initContainers": [_container("fetch", "registry.example.com/tools/fetch:1.4", {"cpu": "1", "memory": "1Gi"})],
        "containers": [
            _container("main", image, amounts) | {"command": ["python", "-m", "train", "--epochs", "90"], "env": _ENV},
            _container("metrics", "registry.example.com/tools/statsd:2.0", {"cpu": "100m", "memory": "128Mi"}),
        ],
        "securityContext": {"runAsNonRoot": True, "fsGroup": 1000},
    }


def _container(name: str, image: str, amounts: Json) -> Json:
    return {
        "name": name,
        "image": image,
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
