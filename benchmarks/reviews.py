"""The reviews that the server benchmark posts: training and serving pods of about 6 KB, as an API server sends them.

Pods come in copies. `copies` gives those of several workloads, each pod as its controller makes it: with a name, a
uid, a number and a token volume of its own. `strangers` gives pods of which no two have a workload in common.
"""

from __future__ import annotations

import random
from uuid import UUID

from benchmarks.arriving import Json, as_stored, review_bytes

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
    """Reviews of the pods of so many workloads, `each` of them so often, as they come when all scale up at once."""
    return [review(workload, number) for number in range(each) for workload in range(workloads)]


def strangers(count: int = STRANGERS) -> list[bytes]:
    """Reviews of pods of so many workloads, one of each."""
    return [review(workload, 0) for workload in range(count)]


def review(workload: int = 0, number: int = 0) -> bytes:
    """The review of one pod of a workload."""
    chance = random.Random(f"{workload}/{number}")
    suffix = "".join(chance.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
    pod = _of_job(workload, number, suffix) if workload % 2 else _of_deployment(workload, suffix)
    pod["metadata"] |= {"uid": _uuid(chance), "creationTimestamp": "2026-06-01T09:12:43Z"}
    return review_bytes(as_stored(pod, NAMESPACE, suffix=suffix), _uuid(chance))


def _uuid(chance: random.Random) -> str:
    return str(UUID(int=chance.getrandbits(128), version=4))


def _of_job(workload: int, number: int, suffix: str) -> Json:
    """A pod of an indexed Job."""
    name, owner = f"train-{workload}", _uuid(random.Random(workload))
    number_key = "batch.kubernetes.io/job-completion-index"
    labels = {
        "team": "vision",
        "batch.kubernetes.io/controller-uid": owner,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": owner,
        "job-name": name,
        number_key: str(number),
    }
    metadata = {
        "name": f"{name}-{number}-{suffix}",
        "generateName": f"{name}-{number}-",
        "labels": labels,
        "annotations": {number_key: str(number)} | _declared(workload),
        "ownerReferences": [_owner("batch/v1", "Job", name, owner)],
        "finalizers": ["batch.kubernetes.io/job-tracking"],
    }
    return {"metadata": metadata, "spec": _spec(workload) | {"restartPolicy": "Never"}}


def _of_deployment(workload: int, suffix: str) -> Json:
    """A pod of a Deployment's ReplicaSet."""
    template_hash = f"{workload:08x}"
    name = f"serve-{workload}-{template_hash}"
    metadata = {
        "name": f"{name}-{suffix}",
        "generateName": f"{name}-",
        "labels": {"app": f"serve-{workload}", "team": "vision", "pod-template-hash": template_hash},
        "annotations": _declared(workload),
        "ownerReferences": [_owner("apps/v1", "ReplicaSet", name, _uuid(random.Random(workload)))],
    }
    return {"metadata": metadata, "spec": _spec(workload)}


def _declared(workload: int) -> Json:
    need = _NEEDS[workload % len(_NEEDS)]
    return {"rightslice.dev/gpu-memory": need} if need else {"example.com/owner": "vision"}


def _owner(api_version: str, kind: str, name: str, uid: str) -> Json:
    controls = {"controller": True, "blockOwnerDeletion": True}
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid} | controls


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
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
