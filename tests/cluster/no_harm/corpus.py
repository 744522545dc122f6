"""Pods of real manifests, as an API server without the rest of their cluster can take them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from tests.builders import Json
from tests.engine.test_templates import templates_of
from tests.engine.test_templates_odd import manifests

ELSEWHERE = ("serviceAccount", "serviceAccountName", "priorityClassName", "runtimeClassName", "nodeName")
"""Fields that reference objects which do not exist; an API server rejects such a pod with or without the webhook."""

NEEDS = {"rightslice.dev/gpu-memory": "8Gi"}


def corpus_pods(shared: Path) -> list[Json]:
    """Each pod and each pod template of the corpus, as it stands there and once more with a need that is declared."""
    found = [one for _, data in manifests(shared / "corpus" / "manifests") for one in _pods_of(data)]
    pods = [_pod(f"real-{n}", metadata, spec) for n, (metadata, spec) in enumerate(found)]
    return pods + [_declaring(pod) for pod in pods]


def _pods_of(data: Json) -> Iterator[tuple[Json, Json]]:
    """Metadata and spec of every pod of an object."""
    if data["kind"] == "Pod":
        yield data.get("metadata", {}), data["spec"]
        return
    for template in templates_of(data["apiVersion"].rpartition("/")[0], data["kind"], data):
        spec, whole = _at(data, template.spec_path), _at(data, template.path)
        if isinstance(spec, dict) and "containers" in spec:
            yield whole.get("metadata") or {}, spec


def _at(data: Any, path: tuple[str | int, ...]) -> Any:
    return reduce(lambda value, key: value[key], path, data)


def _pod(name: str, metadata: Json, spec: Json) -> Json:
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {
        "metadata": {"name": name, **kept},
        "spec": {key: value for key, value in spec.items() if key not in ELSEWHERE},
    }


def _declaring(pod: Json) -> Json:
    metadata = pod["metadata"]
    annotations = {**metadata.get("annotations", {}), **NEEDS}
    return {**pod, "metadata": {**metadata, "name": f"{metadata['name']}-declared", "annotations": annotations}}
