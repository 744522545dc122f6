"""Service accounts whose permissions a test chooses."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.plane import Plane

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def bind_account(plane: Plane, namespace: str, role: str, file: Path) -> str:
    """Give a namespace's default account a ClusterRole, and write its kubeconfig; return the path of the binding."""
    name = f"{role}-{namespace}"
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    plane.api.create(f"{RBAC}/clusterrolebindings", binding)
    token = plane.kubectl("create", "token", "default", "-n", namespace).stdout.strip()
    config = json.loads(plane.kubectl("config", "view", "--raw", "--flatten", "-o", "json").stdout)
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    file.write_text(json.dumps(config), encoding="utf-8")
    return f"{RBAC}/clusterrolebindings/{name}"
