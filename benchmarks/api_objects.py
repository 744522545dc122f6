"""Objects as an API server sends them: with defaults, managedFields, and the AdmissionReview around them.

Manifests are shorter than what a webhook receives, and a comparison with `json.loads` must use the latter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.defaulting import containers, spec_defaulted
from benchmarks.managed_fields import managed_fields
from webhook.model import defaulting

Json = dict[str, Any]

ADMITTED: Json = {
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
}
"""Fields that the API server's own plug-ins add to every pod, before webhooks."""

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
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
    """Return a pod as the API server sends it to a mutating webhook.

    Args:
        pod: Its `metadata` and `spec`.
        suffix: What the name of the pod's token volume ends in; every pod has its own.
    """
    token = f"kube-api-access-{suffix}"
    spec = {"enableServiceLinks": True} | spec_defaulted(pod["spec"])
    data = defaulting.default_object({"kind": "Pod", "apiVersion": "v1", **pod, "spec": spec}, namespace)
    managed = managed_fields(data, "kube-controller-manager")
    spec = ADMITTED | data["spec"]
    for container in containers(spec):
        mount = {"name": token, "readOnly": True, "mountPath": TOKEN_PATH}
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
    spec["volumes"] = [*(spec.get("volumes") or []), {"name": token, "projected": TOKEN}]
    spec["tolerations"] = [*(spec.get("tolerations") or []), *WAITS]
    return {**data, "metadata": data["metadata"] | {"managedFields": [managed]}, "spec": spec, "status": {}}


def as_applied(workload: Json, places: Iterable[Sequence[str | int]]) -> Json:
    """Return a workload as a webhook receives it after `kubectl apply`.

    Args:
        workload: As it is written.
        places: Where specs of pods stand that the API server fills in.
    """
    written = workload | {"metadata": {"annotations": {}} | workload["metadata"]}
    text = json.dumps(written, separators=(",", ":"), sort_keys=True)
    applied: Json = json.loads(text)
    for place in places:
        parent: Any = applied
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = spec_defaulted(parent[place[-1]])
    metadata = applied["metadata"]
    metadata["annotations"] |= {LAST_APPLIED: f"{text}\n"}
    metadata["managedFields"] = [managed_fields(applied, "kubectl-client-side-apply")]
    return applied


def review_bytes(data: Json, uid: str = "705ab4f5-6393-11e8-b7cc-42010a800002") -> bytes:
    """Return the CREATE review of an object as compact JSON."""
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
