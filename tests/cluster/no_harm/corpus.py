"""Pods of real manifests, without references to objects that the test cluster lacks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from tests.builders import Json
from tests.engine.test_templates import templates_of
from tests.engine.test_templates_odd import manifests

REFERENCE_FIELDS = ("serviceAccount", "serviceAccountName", "priorityClassName", "runtimeClassName", "nodeName")
"""Fields that reference missing objects; an API server rejects such a pod with or without the webhook."""

DECLARED_MEMORY = {"rightslice.dev/gpu-memory": "8Gi"}


def corpus_pods(shared: Path) -> list[Json]:
    """Return every pod and pod template of the corpus, unchanged and with declared memory."""
    found = [item for _, data in manifests(shared / "corpus" / "manifests") for item in _pods_of(data)]
    pods = [_pod(f"real-{n}", metadata, spec) for n, (metadata, spec) in enumerate(found)]
    return pods + [_with_declared_memory(pod) for pod in pods]


def _pods_of(data: Json) -> Iterator[tuple[Json, Json]]:
    """Yield metadata and spec of every pod of an object."""
    if data["kind"] == "Pod":
        yield data.get("metadata", {}), data["spec"]
        return
    for template in templates_of(data["apiVersion"].rpartition("/")[0], data["kind"], data):
        spec, pod_template = _value_at(data, template.spec_path), _value_at(data, template.path)
        if isinstance(spec, dict) and "containers" in spec:
            yield pod_template.get("metadata") or {}, spec


def _value_at(data: Any, path: tuple[str | int, ...]) -> Any:
    return reduce(lambda value, key: value[key], path, data)


def _pod(name: str, metadata: Json, spec: Json) -> Json:
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {
        "metadata": {"name": name, **kept},
        "spec": {key: value for key, value in spec.items() if key not in REFERENCE_FIELDS},
    }


def _with_declared_memory(pod: Json) -> Json:
    metadata = pod["metadata"]
    annotations = {**metadata.get("annotations", {}), **DECLARED_MEMORY}
    return {**pod, "metadata": {**metadata, "name": f"{metadata['name']}-declared", "annotations": annotations}}
