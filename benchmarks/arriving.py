"""Objects as an API server sends them: defaults filled in, managedFields, and the AdmissionReview around them.

Manifests are terse; what arrives at a webhook is not. A measure against `json.loads` must read what arrives.
"""

from __future__ import annotations

import copy
import json
from typing import Any

Json = dict[str, Any]

POD_DEFAULTS: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "priority": 0,
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
}
CONTAINER_DEFAULTS: Json = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # a path, no password
TOKEN: Json = {
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
            }
        },
    ],
    "defaultMode": 420,
}
WAITS: list[Json] = [
    {
        "key": f"node.kubernetes.io/{state}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for state in ("not-ready", "unreachable")
]


def as_stored(pod: Json, namespace: str, *, suffix: str = "x7k2p") -> Json:
    """A pod as the API server hands it to a mutating webhook.

    Args:
        suffix: What the name of the pod's token volume ends in; every pod has its own.
    """
    token = f"kube-api-access-{suffix}"
    stored: Json = copy.deepcopy(pod)
    metadata, spec = stored.setdefault("metadata", {}), stored.setdefault("spec", {})
    metadata["namespace"] = namespace
    metadata["managedFields"] = [_managed(pod)]
    stored |= {"apiVersion": "v1", "kind": "Pod", "status": {}}
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or []:
            _fill(container, token)
    stored["spec"] = POD_DEFAULTS | spec
    stored["spec"]["volumes"] = [*(spec.get("volumes") or []), {"name": token, "projected": TOKEN}]
    stored["spec"]["tolerations"] = [*(spec.get("tolerations") or []), *WAITS]
    return stored


def _fill(container: Json, token: str) -> None:
    resources = container.setdefault("resources", {})
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    for key, value in CONTAINER_DEFAULTS.items():
        container.setdefault(key, value)
    mount = {"name": token, "readOnly": True, "mountPath": TOKEN_PATH}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]


def _managed(pod: Json) -> Json:
    return {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-06-01T09:12:43Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": _fields(pod.get("metadata")), "f:spec": _fields(pod.get("spec"))},
    }


def _fields(value: Any) -> Json:
    """The field set of a value, as server-side apply writes it."""
    if isinstance(value, dict):
        return {f"f:{key}": _fields(inner) for key, inner in value.items()}
    if isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value):
        return {f'k:{{"name":"{item["name"]}"}}': {".": {}} | _fields(item) for item in value}
    return {}


def review_bytes(data: Json, uid: str = "705ab4f5-6393-11e8-b7cc-42010a800002") -> bytes:
    """The CREATE review of an object, as compact JSON."""
    group, _, version = data.get("apiVersion", "v1").rpartition("/")
    kind = {"group": group, "version": version, "kind": data.get("kind", "")}
    resource = {"group": group, "version": version, "resource": f"{kind['kind'].lower()}s"}
    request = {
        "uid": uid,
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": data.get("metadata", {}).get("name", ""),
        "namespace": data.get("metadata", {}).get("namespace", ""),
        "operation": "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:kube-system:job-controller",
            "uid": "1f1c2d3e-6393-11e8-b7cc-42010a800002",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
        },
        "object": data,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(review, separators=(",", ":")).encode()
