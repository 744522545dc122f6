"""Service accounts whose permissions a test chooses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.house.checkout import read_checkout_file

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def documented_role(page: str) -> Json:
    """Return the ClusterRole that a page shows."""
    blocks = re.findall(r"```yaml\n(.*?)```", read_checkout_file(page), re.DOTALL)
    (text,) = [each for each in blocks if "kind: ClusterRole\n" in each]
    role: Json = yaml.safe_load(text)
    return role


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
