"""Pods as controllers create them from a template: a generated name, labels of the controller, and an owner.

Deployments and Jobs do so. What DaemonSets and StatefulSets add beyond that is left out.
"""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

Json = dict[str, Any]

JOB = "batch/v1", "Job"
MAKES = {"Deployment": ("apps/v1", "ReplicaSet"), "CronJob": JOB, "JobSet": JOB}
"""Kinds that make another which makes the pods."""
ORDINAL = "batch.kubernetes.io/job-completion-index"


def with_owner_reference(template: Json, workload: Json) -> Json:
    """Return the metadata and spec of a pod of a workload.

    Args:
        template: Its `metadata`, where it has any, and its `spec`.
        workload: Whose `apiVersion`, `kind` and name say how its pods are made.
    """
    metadata = {key: value for key, value in (template.get("metadata") or {}).items() if value}
    called = workload["metadata"].get("name") or workload["metadata"].get("generateName", "")
    version, kind = MAKES.get(workload["kind"], (workload["apiVersion"], workload["kind"]))
    name = called if kind == workload["kind"] else f"{called}-5d8c7b9f64"
    uid, of_job = uid_of(called), (version, kind) == JOB
    return {
        "metadata": {
            "generateName": f"{name}-",
            **metadata,
            "labels": (metadata.get("labels") or {}) | (_of_job(name, uid) if of_job else _of_replicas(kind, name)),
            "ownerReferences": [owner(version, kind, name, uid)],
            **({"finalizers": ["batch.kubernetes.io/job-tracking"]} if of_job else {}),
        },
        "spec": dict(template["spec"]),
    }


def indexed(pod: Json, number: int) -> Json:
    """Return a pod of a Job with its completion index, if the Job is indexed."""
    metadata = pod["metadata"]
    noted = {ORDINAL: str(number)}
    metadata |= {key: (metadata.get(key) or {}) | noted for key in ("labels", "annotations")}
    spec = pod["spec"]
    field = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{ORDINAL}']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [one | {"env": [*(one.get("env") or []), variable]} for one in spec[kind]]
    spec["hostname"] = metadata["generateName"] + str(number)
    metadata["generateName"] += f"{number}-"
    return pod


def owner(version: str, kind: str, name: str, uid: str) -> Json:
    """Return the owner reference by which a controller finds its pods."""
    controls = {"controller": True, "blockOwnerDeletion": True}
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid} | controls


def uid_of(name: object) -> str:
    """Return a uid that is the same for the same name."""
    return uid_by(random.Random(str(name)))


def uid_by(chance: random.Random) -> str:
    """Return a random uid."""
    return str(UUID(int=chance.getrandbits(128), version=4))


def _of_replicas(kind: str, name: str) -> dict[str, str]:
    return {"pod-template-hash": name.rpartition("-")[2]} if kind == "ReplicaSet" else {}


def _of_job(name: str, uid: str) -> dict[str, str]:
    called = {"controller-uid": uid, "job-name": name}
    return called | {f"batch.kubernetes.io/{key}": value for key, value in called.items()}
