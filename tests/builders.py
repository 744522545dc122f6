"""Builders for the objects that tests are about.

>>> make_pod().gpus(4).label("app", "train").build()["spec"]["containers"][0]["resources"]["limits"]
{'nvidia.com/gpu': '4'}
"""

from __future__ import annotations

import copy
from typing import Any, Self

from webhook.policy.workload_kinds import GROUPS_BY_KIND

Json = dict[str, Any]


class PodMaker:
    """A pod as an API server sends it, with requests equal to limits for GPUs."""

    def __init__(self, name: str) -> None:
        self.data: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"containers": [{"name": "main", "image": "example/app:1", "resources": {}}]},
            "status": {},
        }

    @property
    def main(self) -> Json:
        """Return the first container."""
        container: Json = self.data["spec"]["containers"][0]
        return container

    def namespace(self, name: str) -> Self:
        """Set another namespace than "team"."""
        self.data["metadata"]["namespace"] = name
        return self

    def requests(self, resource: str, amount: object, *, container: Json | None = None) -> Self:
        """Request an amount of one resource, in limits and requests."""
        resources = (container or self.main).setdefault("resources", {})
        resources.setdefault("limits", {})[resource] = amount
        resources.setdefault("requests", {})[resource] = amount
        return self

    def requests_without_limit(self, resource: str, amount: object) -> Self:
        """Request an amount of one resource in the first container, in requests only."""
        self.main.setdefault("resources", {}).setdefault("requests", {})[resource] = amount
        return self

    def gpus(self, count: object = "1") -> Self:
        """Request whole GPUs in the first container."""
        return self.requests("nvidia.com/gpu", count if not isinstance(count, int) else str(count))

    def needs(self, memory: str = "", compute: str = "") -> Self:
        """Declare the need in annotations."""
        if memory:
            self.annotate("rightslice.dev/gpu-memory", memory)
        if compute:
            self.annotate("rightslice.dev/gpu-compute", compute)
        return self

    def annotate(self, key: str, value: str) -> Self:
        """Add an annotation."""
        self.data["metadata"].setdefault("annotations", {})[key] = value
        return self

    def label(self, key: str, value: str) -> Self:
        """Add a label."""
        self.data["metadata"].setdefault("labels", {})[key] = value
        return self

    def env(self, name: str, value: str) -> Self:
        """Set a variable in the first container."""
        self.main.setdefault("env", []).append({"name": name, "value": value})
        return self

    def image(self, image: str) -> Self:
        """Set the first container's image."""
        self.main["image"] = image
        return self

    def command(self, *words: str) -> Self:
        """Set the main container's command."""
        self.main["command"] = list(words)
        return self

    def container(self, name: str, *, kind: str = "containers", **fields: Any) -> Self:
        """Add a container: kind is containers, initContainers or ephemeralContainers."""
        self.data["spec"].setdefault(kind, []).append({"name": name, "image": "example/app:1", **fields})
        return self

    def spec(self, **fields: Any) -> Self:
        """Set fields of the spec, by their JSON names."""
        self.data["spec"].update(fields)
        return self

    def claims(self, *claims: Json) -> Self:
        """Use claims in the first container."""
        self.main.setdefault("resources", {})["claims"] = [{"name": each["name"]} for each in claims]
        return self.spec(resourceClaims=list(claims))

    def owned_by(self, kind: str, name: str, version: str = "") -> Self:
        """Set the controller; without a version it is of the first known group with this kind."""
        version = version or f"{GROUPS_BY_KIND.get(kind, 'apps')}/v1".removeprefix("/")
        owner = {"apiVersion": version, "kind": kind, "name": name, "controller": True, "uid": "u"}
        self.data["metadata"]["ownerReferences"] = [owner]
        return self

    def build(self) -> Json:
        """Return a copy of the pod as plain data."""
        return copy.deepcopy(self.data)


def make_pod(name: str = "pod") -> PodMaker:
    """Return a pod with one container and no GPU."""
    return PodMaker(name)


def make_node(name: str, labels: dict[str, str] | None = None, **gpus: int) -> Json:
    """Return a ready node with 64 CPUs and 512Gi. GPU resources by name: `**{"nvidia.com/gpu": 8}`."""
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110"} | {key: str(n) for key, n in gpus.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "spec": {},
        "status": {
            "allocatable": allocatable,
            "capacity": dict(allocatable),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def make_namespace(name: str, **labels: str) -> Json:
    """Return a namespace with labels."""
    all_labels = {"kubernetes.io/metadata.name": name} | labels
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": all_labels}}
