"""The review that the server benchmark posts: about 6 KB, as an API server sends one for a training pod."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def review_bytes(uid: str = "705ab4f5-6393-11e8-b7cc-42010a800002") -> bytes:
    """One CREATE review of a GPU pod with a sidecar, an init container and managedFields, as compact JSON."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request = {
        "uid": uid,
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": "train-0",
        "namespace": "team-vision",
        "operation": "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:kube-system:job-controller",
            "uid": "1f1c2d3e-6393-11e8-b7cc-42010a800002",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
        },
        "object": pod(),
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(review, separators=(",", ":")).encode()


def pod() -> Json:
    """A training pod as the Job controller writes it, defaults filled in."""
    labels = {
        "app": "resnet",
        "batch.kubernetes.io/controller-uid": "9a3b1c1e-52d2-4f4c-a8ff-0d5c9d3a7f11",
        "batch.kubernetes.io/job-name": "train",
        "team": "vision",
    }
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "train",
        "uid": "9a3b1c1e-52d2-4f4c-a8ff-0d5c9d3a7f11",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": "train-0",
        "generateName": "train-",
        "namespace": "team-vision",
        "uid": "c5c9f1ce-3f5f-4a0c-9b51-4c7c7f6a0a55",
        "creationTimestamp": "2026-06-01T09:12:43Z",
        "labels": labels,
        "annotations": {"rightslice.dev/gpu-memory": "8Gi", "example.com/commit": "4c7c7f6a0a55c5c9f1ce"},
        "ownerReferences": [owner],
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "managedFields": [_managed_fields()],
    }
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": _spec(), "status": {}}


def _spec() -> Json:
    token = {
        "name": "kube-api-access-x7k2p",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            ],
            "defaultMode": 420,
        },
    }
    wait = {
        "key": "node.kubernetes.io/not-ready",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    return {
        "volumes": [token, {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
        "initContainers": [_container("fetch", "registry.example.com/tools/fetch:1.4", {"cpu": "1", "memory": "1Gi"})],
        "containers": [
            _container(
                "main",
                "registry.example.com/vision/train:12.4-runtime",
                {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
            ),
            _container("metrics", "registry.example.com/tools/statsd:2.0", {"cpu": "100m", "memory": "128Mi"}),
        ],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {"runAsNonRoot": True, "fsGroup": 1000},
        "schedulerName": "default-scheduler",
        "tolerations": [wait, {**wait, "key": "node.kubernetes.io/unreachable"}],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _container(name: str, image: str, amounts: Json) -> Json:
    return {
        "name": name,
        "image": image,
        "command": ["python", "-m", "train", "--config", "/etc/train/config.yaml", "--epochs", "90"],
        "env": [
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "OMP_NUM_THREADS", "value": "8"},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
        ],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {
                "name": "kube-api-access-x7k2p",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _managed_fields() -> Json:
    container: Json = {
        ".": {},
        "f:command": {},
        "f:env": {".": {}, 'k:{"name":"NCCL_DEBUG"}': {".": {}, "f:name": {}, "f:value": {}}},
        "f:image": {},
        "f:imagePullPolicy": {},
        "f:name": {},
        "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}, "f:nvidia.com/gpu": {}}, "f:requests": {}},
        "f:volumeMounts": {".": {}, 'k:{"mountPath":"/dev/shm"}': {".": {}, "f:mountPath": {}, "f:name": {}}},
    }
    labels: Json = {".": {}, "f:app": {}, "f:batch.kubernetes.io/controller-uid": {}, "f:team": {}}
    fields = {
        "f:metadata": {"f:generateName": {}, "f:labels": labels, "f:finalizers": {}},
        "f:spec": {
            "f:containers": {'k:{"name":"main"}': container, 'k:{"name":"metrics"}': container},
            "f:dnsPolicy": {},
            "f:restartPolicy": {},
            "f:schedulerName": {},
            "f:volumes": {".": {}, 'k:{"name":"shm"}': {".": {}, "f:emptyDir": {}, "f:name": {}}},
        },
    }
    return {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-06-01T09:12:43Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
