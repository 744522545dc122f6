"""What the API server makes of an object before admission sees it, as far as it matters to GPUs.

Files hold objects as people write them. The API server sets defaults while it decodes them, and its own
plug-ins run before webhooks: the namespace is filled in, a Pod's requests follow its limits, and on its host's network
a port of a container is one of the host.

Source: kubernetes, `pkg/apis/core/v1/defaults.go`, SetDefaults_Pod. Defaults of a LimitRange are the engine's
matter, and are not filled in here.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
_CONTAINERS = ("containers", "initContainers")


def default_object(data: Json, namespace: str) -> Json:
    """Give the object as admission sees it; the one given stays as it is.

    Only a Pod's are filled in: the API server leaves the templates of workloads as they are.
    """
    metadata = data.get("metadata")
    stored = {**data, "metadata": {**(metadata if isinstance(metadata, dict) else {}), "namespace": namespace}}
    spec = data.get("spec")
    if data.get("kind") != "Pod" or not isinstance(spec, dict):
        return stored
    on_host = spec.get("hostNetwork") is True
    lists = {
        key: [_default_container_requests(_default_host_ports(each) if on_host else each) for each in spec[key]]
        for key in _CONTAINERS
        if isinstance(spec.get(key), list)
    }
    return stored | {"spec": {**spec, **lists}}


def _default_container_requests(container: Any) -> Any:
    """Requests := limits, for each resource that only limits name. What is no container stays as it is."""
    if not isinstance(container, dict) or not isinstance(container.get("resources"), dict):
        return container
    resources: Json = container["resources"]
    limits, requests = resources.get("limits"), resources.get("requests") or {}
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **requests}}}


def _default_host_ports(container: Any) -> Any:
    """Host port := container port, where none is named. What is no container stays as it is."""
    ports = container.get("ports") if isinstance(container, dict) else None
    if not isinstance(ports, list):
        return container
    return {**container, "ports": [_default_host_port(port) for port in ports]}


def _default_host_port(port: Any) -> Any:
    if not isinstance(port, dict) or port.get("hostPort") or not port.get("containerPort"):
        return port
    return {**port, "hostPort": port["containerPort"]}
