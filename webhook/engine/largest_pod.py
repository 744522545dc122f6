"""The largest pod that is usual: about the 2,000 JSON values to which the pods of real clusters come."""

from __future__ import annotations

from functools import cache
from typing import Any

from webhook.model.admission import AdmissionRequest
from webhook.model.pods import parse_pod

CONTAINERS, VARIABLES, VOLUMES, LABELS = 15, 27, 8, 40


@cache
def largest_pod_request() -> AdmissionRequest:
    """Return the request to create a pod of that size with one GPU."""
    labels = {f"example.com/label-{number}": "value" for number in range(LABELS)}
    metadata = {"name": "largest", "namespace": "default", "labels": labels, "annotations": labels}
    volumes = [{"name": f"volume-{number}", "emptyDir": {}} for number in range(VOLUMES)]
    containers = [_container(number) for number in range(CONTAINERS)]
    containers[0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    spec = {"containers": containers, "volumes": volumes, "tolerations": [{"operator": "Exists"}]}
    data = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return AdmissionRequest("CREATE", "", "Pod", "default", "largest", parse_pod(data), lambda: data)


def _container(number: int) -> dict[str, Any]:
    return {
        "name": f"container-{number}",
        "image": "registry.example.com/team/application:1.0",
        "command": ["python", "-m", "application", "--port", "8080"],
        "env": [{"name": f"VARIABLE_{each}", "value": "value"} for each in range(VARIABLES)],
        "ports": [{"containerPort": 8080}],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
        "volumeMounts": [{"name": f"volume-{each}", "mountPath": f"/data/{each}"} for each in range(VOLUMES)],
        "securityContext": {"runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}},
    }
