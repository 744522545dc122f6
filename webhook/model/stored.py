"""What the API server makes of an object before admission sees it, as far as it matters to GPUs.

Files hold objects as people write them. The API server sets defaults while it decodes them, and its own
plug-ins run before webhooks: the namespace is filled in, and a Pod's requests follow its limits.

Source: kubernetes, `pkg/apis/core/v1/defaults.go`, SetDefaults_Pod. Defaults of a LimitRange are the engine's
matter, and are not filled in here.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
_CONTAINERS = ("containers", "initContainers")


def as_stored(data: Json, namespace: str) -> Json:
    """Give the object as admission sees it; the one given stays as it is.

    Only a Pod's requests are filled in: the API server leaves the templates of workloads as they are.
    """
    metadata = data.get("metadata")
    stored = {**data, "metadata": {**(metadata if isinstance(metadata, dict) else {}), "namespace": namespace}}
    spec = data.get("spec")
    if data.get("kind") != "Pod" or not isinstance(spec, dict):
        return stored
    lists = {key: [_filled(each) for each in spec[key]] for key in _CONTAINERS if isinstance(spec.get(key), list)}
    return stored | {"spec": {**spec, **lists}}


def _filled(container: Any) -> Any:
    """Requests := limits, for each resource that only limits name. What is no container stays as it is."""
    if not isinstance(container, dict) or not isinstance(container.get("resources"), dict):
        return container
    resources: Json = container["resources"]
    limits, requests = resources.get("limits"), resources.get("requests") or {}
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **requests}}}
