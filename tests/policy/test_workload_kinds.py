"""The table of workload kinds, checked on real manifests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.house.checkout import read_checkout_file
from webhook.documents.reader import read_documents
from webhook.engine.templates import read_templates
from webhook.model.admission import AdmissionRequest
from webhook.policy.loader import load_policies
from webhook.policy.workload_kinds import WORKLOAD_KINDS, TemplatePath, with_sources

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
            if kind not in WORKLOAD_KINDS:
                assert kind in NO_TEMPLATE_IN_CORPUS, file.name
                continue
            found = [value for one in WORKLOAD_KINDS[kind].sources for value in follow(document.data, one.path)]
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


def test_the_page_lists_every_kind() -> None:
    page = read_checkout_file("docs/workload-kinds.md")
    rows = page.partition("## Known kinds")[2].partition("A slice is predicted")[0]
    words = set(re.findall(r"\w+", rows))
    assert {kind for _, kind in WORKLOAD_KINDS} <= words
    assert {group for group, _ in WORKLOAD_KINDS if "." in group} <= set(re.findall(r"`([\w.-]+)`", rows))


KIND = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: kind-trainer}
spec:
  match:
    templates:
      - apiGroup: example.com
        kind: Trainer
        paths: ["spec.roles.*"]
        replicas: [count, "shape.hosts"]
        fields:
          spec.containers.0.image: image
          "spec.containers.0.resources.limits[nvidia.com/gpu]": gpus
"""


def test_a_kind_is_added_by_a_file() -> None:
    policies = load_policies([("kind.yaml", KIND)]).policies
    assert policies is not None
    roles = {"a": {"count": 2, "shape": {"hosts": 3}, "gpus": 4, "image": "x"}, "b": {"gpus": 1}}
    request = AdmissionRequest(
        "CREATE", "example.com", "Trainer", "team", "t", None, lambda: {"spec": {"replicas": 9, "roles": roles}}
    )
    found = list(read_templates(request, policies.workload_kinds))
    assert [(each.replicas, each.pod.spec.containers[0].resources.limits) for each in found] == [
        (6, {"nvidia.com/gpu": 4}),
        (1, {"nvidia.com/gpu": 1}),
    ]
    path = ("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu")
    assert found[0].field_path(path) == ("spec", "roles", "a", "gpus")


def test_counts_of_a_known_path_can_be_replaced() -> None:
    known = WORKLOAD_KINDS["apps", "Deployment"]
    changed = with_sources(known, ["spec.template"], ["count"], {})
    assert [(each.path, each.counts) for each in changed.sources] == [(("spec", "template"), (("count",),))]
    assert with_sources(known, ["spec.template"], [], {}) == known


def test_other_counts_of_a_known_path_keep_its_gang() -> None:
    known = WORKLOAD_KINDS["leaderworkerset.x-k8s.io", "LeaderWorkerSet"]
    changed = with_sources(known, ["spec.leaderWorkerTemplate.workerTemplate"], ["replicas", "size", "shards"], {})
    before, after = known.sources[1], changed.sources[1]
    assert after.counts == (("replicas",), ("size",), ("shards",))
    assert after._replace(counts=before.counts) == before


def test_other_counts_of_a_known_path_keep_its_unknown_parts_and_fields() -> None:
    known = WORKLOAD_KINDS["trainer.kubeflow.org", "TrainJob"]
    (changed,) = with_sources(known, ["spec.trainer"], ["numNodes"], {}).sources
    assert changed == known.sources[0]._replace(counts=(("numNodes",),))
