"""The template paths of workload kinds, checked on real manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from webhook.documents.reader import read_documents
from webhook.policy.template_paths import WORKLOAD_TEMPLATES, TemplatePath

NO_TEMPLATE_IN_CORPUS = {("", "Pod")}
NOT_TEMPLATES = {"ConfigMap", "Service", "Namespace", "ServiceAccount"}


def follow(data: Any, path: TemplatePath) -> Iterator[Any]:
    """Yield every value at a path."""
    if not path:
        yield data
    elif path[0] == "*":
        members = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
        for member in members:
            yield from follow(member, path[1:])
    elif isinstance(data, dict) and path[0] in data:
        yield from follow(data[path[0]], path[1:])


def gpu_containers(data: Any) -> int:
    """Count maps anywhere inside that have an image and GPU resources."""
    if isinstance(data, list):
        return sum(map(gpu_containers, data))
    if not isinstance(data, dict):
        return 0
    requests_gpus = "image" in data and "nvidia.com/" in str(data.get("resources"))
    return requests_gpus + sum(map(gpu_containers, data.values()))


def test_every_gpu_container_of_a_workload_is_below_a_template(shared: Path) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for file in sorted((shared / "corpus/manifests").iterdir()):
        for document in read_documents(file.read_bytes(), file.name, aliases=True):
            group, _, _ = document.data["apiVersion"].rpartition("/")
            kind = (group, document.data["kind"])
            if kind not in WORKLOAD_TEMPLATES:
                assert kind in NO_TEMPLATE_IN_CORPUS, file.name
                continue
            found = [value for path in WORKLOAD_TEMPLATES[kind] for value in follow(document.data, path)]
            assert gpu_containers(found) == gpu_containers(document.data), file.name
            counts[kind] += 1
    assert {kind for _, kind in counts} >= {
        "Deployment",
        "PyTorchJob",
        "MPIJob",
        "RayService",
        "LeaderWorkerSet",
        "JobSet",
    }
