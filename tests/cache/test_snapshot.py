"""Snapshots: valid and invalid files of a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.builders import Json, make_namespace, make_node, make_pod
from tests.device_builders import resource_slice
from webhook.cache.snapshot import read_snapshot, view_of_objects
from webhook.errors import SnapshotError, SourceLocation
from webhook.model.cluster_view import ClusterView
from webhook.model.pods import parse_pod

GPU = "nvidia.com/gpu"
NODE = make_node("gpu-1", {"nvidia.com/gpu.product": "NVIDIA-L4"}, **{GPU: 4})


def _documents(objects: Sequence[Any]) -> str:
    return "---\n".join(json.dumps(item, indent=2) + "\n" for item in objects)


def _file(folder: Path, *objects: Any, name: str = "cluster.yaml") -> Path:
    file = folder / name
    file.write_text(_documents(objects), encoding="utf-8")
    return file


def deep(levels: int) -> Json:
    """Return a node with annotations nested this deep."""
    inside: Json = {}
    for _ in range(levels):
        inside = {"a": inside}
    return {"kind": "Node", "metadata": {"name": "deep", "odd": inside}}


def _view(*objects: Json) -> ClusterView:
    return view_of_objects((item, SourceLocation("test.yaml")) for item in objects)


def _bound(name: str, gpus: int = 1, node: str = "gpu-1", phase: str = "Running") -> Json:
    pod = make_pod(name).gpus(gpus).requests("cpu", "2").requests("memory", "4Gi").spec(nodeName=node).build()
    return pod | {"status": {"phase": phase}}


def _free(view: ClusterView) -> int:
    (offer,) = view.fleet.offers
    return view.free_units(offer, view.fleet.all_nodes)


WRITTEN = {
    "documents in one file": _documents,
    "a List": lambda objects: "kind: List\nitems:\n" + "".join(f"- {json.dumps(item)}\n" for item in objects),
    "a List in JSON": lambda objects: json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    "Lists in a List": lambda objects: json.dumps({"kind": "List", "items": [{"kind": "List", "items": objects}]}),
    "a large List in JSON": lambda objects: (
        json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}) + " " * (3 << 20)
    ),
}


@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
def test_all_file_layouts_give_the_same_view(write: Any, tmp_path: Path) -> None:
    file = tmp_path / "cluster"
    file.write_text(write([NODE, make_namespace("team", tier="research"), _bound("p", 3)]), encoding="utf-8")
    view = read_snapshot(str(file)).view
    assert [node.name for node in view.fleet.nodes] == ["gpu-1"]
    assert _free(view) == 1
    found = view.namespace("team")
    assert found is not None
    assert found.metadata.labels["tier"] == "research"


def test_typed_list_has_the_kind_of_its_items(tmp_path: Path) -> None:
    bare = {key: value for key, value in NODE.items() if key not in ("apiVersion", "kind")}
    file = _file(tmp_path, {"apiVersion": "v1", "kind": "NodeList", "items": [bare]})
    assert [node.name for node in read_snapshot(str(file)).view.fleet.nodes] == ["gpu-1"]


def test_folder_includes_all_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    _file(tmp_path, NODE, name="a.yaml")
    _file(tmp_path / "deep", _bound("p"), name="b.yml")
    (tmp_path / "c.json").write_text(json.dumps(_bound("q")))
    (tmp_path / "README.md").write_text("not: [a cluster")
    (tmp_path / "..2026_06_01").mkdir()
    _file(tmp_path / "..2026_06_01", NODE, name="a.yaml")
    assert _free(read_snapshot(str(tmp_path)).view) == 2


def test_active_pods_use_their_requests() -> None:
    pods = [_bound("a"), _bound("b", phase="Succeeded"), _bound("c", phase="Failed"), _bound("e")]
    view = _view(NODE, *pods)
    assert _free(view) == 2
    assert view.has_free_node(GPU, 2, 1, cpu_milli=60_000, memory=504 << 30)
    assert not view.has_free_node(GPU, 2, 1, cpu_milli=60_001, memory=0)
    assert not view.has_free_node(GPU, 2, 1, cpu_milli=0, memory=(504 << 30) + 1)


def test_a_pod_without_a_node_may_get_what_is_free_unless_it_needs_more() -> None:
    waiting, gated = _bound("w", node="", phase="Pending"), _bound("g", node="", phase="Pending")
    gated["spec"]["schedulingGates"] = [{"name": "wait"}]
    view = _view(NODE, _bound("a"), waiting, gated, _bound("too large", gpus=4, node="", phase="Pending"))
    assert _free(view) == 2
    assert view.has_free_node(GPU, 1, 1, cpu_milli=60_000, memory=504 << 30)
    assert not view.has_free_node(GPU, 1, 1, cpu_milli=60_001, memory=0)
    assert not view.has_free_node(GPU, 3, 1, cpu_milli=0, memory=0)


def test_overcommitted_node_has_nothing_free() -> None:
    view = _view(NODE, _bound("a", 3), _bound("b", 3))
    assert _free(view) == 0


def test_pod_on_an_unknown_node_uses_nothing() -> None:
    assert _free(_view(NODE, _bound("a", node="gone"))) == 4


def test_nulls_count_as_absent() -> None:
    node = make_node("gpu-1", {}, **{GPU: 1})
    node["spec"]["taints"] = None
    node["metadata"]["annotations"] = None
    assert _view(node, make_namespace("a") | {"spec": None}).fleet.nodes[0].taints == ()


def test_a_node_without_labels_is_valid(tmp_path: Path) -> None:
    file = _file(tmp_path, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare"}})
    assert read_snapshot(str(file)).view.fleet.nodes[0].gpus == {}


def test_an_empty_snapshot_is_a_cluster_without_nodes() -> None:
    assert _view().fleet.nodes == ()


def test_skipped_kinds_are_counted(tmp_path: Path) -> None:
    secret, config = {"apiVersion": "v1", "kind": "Secret"}, {"apiVersion": "v1", "kind": "ConfigMap"}
    other = {"apiVersion": "management.example.com/v3", "kind": "Node", "metadata": {"name": "m"}}
    ours = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "n"}}
    file = _file(tmp_path, NODE, config, config, secret, other, ours, ["a list"], {"apiVersion": "v1"})
    snapshot = read_snapshot(str(file))
    assert [note.partition(": ")[2] for note in snapshot.skipped] == [
        "2 of kind ConfigMap skipped",
        "1 of kind Secret skipped",
        "1 of kind Node (management.example.com/v3) skipped",
        "2 of kind (no kind) skipped",
    ]
    assert [node.name for node in snapshot.view.fleet.nodes] == ["gpu-1"]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_queues_of_both_versions_of_kueue_are_read(version: str) -> None:
    cohort = "cohort" if version == "v1beta1" else "cohortName"
    flavors = [{"name": "f", "resources": [{"name": GPU, "nominalQuota": 0}]}]
    lent = [{"name": "f", "resources": [{"name": GPU, "nominalQuota": 8}]}]
    specs = {
        ("ResourceFlavor", "f"): {},
        ("ClusterQueue", "borrower"): {cohort: "all", "resourceGroups": [_group(flavors)]},
        ("ClusterQueue", "lender"): {cohort: "all", "resourceGroups": [_group(lent)]},
        ("LocalQueue", "q"): {"clusterQueue": "borrower"},
    }
    api = f"kueue.x-k8s.io/{version}"
    queues = _view(
        *({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "team"}, "spec": spec}
          for (kind, name), spec in specs.items())
    ).queues  # fmt: skip
    assert queues.serves("team")
    queue = queues.find("team", "q")
    assert queue is not None
    choice = queue.choose_flavors(GPU, 1, parse_pod(make_pod().build()))
    assert choice is not None
    assert [each.metadata.name for each in choice.flavors] == ["f"]


def _group(flavors: list[Json]) -> Json:
    return {"coveredResources": [GPU], "flavors": flavors}


def test_later_duplicate_is_used(tmp_path: Path) -> None:
    file = _file(tmp_path, NODE, make_node("gpu-1", {"nvidia.com/gpu.product": "NVIDIA-L4"}, **{GPU: 2}))
    snapshot = read_snapshot(str(file))
    assert _free(snapshot.view) == 2
    (note,) = snapshot.skipped
    assert note.endswith("Node gpu-1 appears twice; this one is used")


def test_pods_without_names_are_distinct() -> None:
    pod = _bound("p")
    pod["metadata"] = {"generateName": "p-"}
    assert _free(_view(NODE, pod, pod)) == 2


KUEUE_BAD = {
    "an unknown strategy": (
        {"transformations": [{"input": GPU, "strategy": "Drop"}]},
        "resources.transformations[0].strategy: must be Replace or Retain, found 'Drop'",
    ),
    "a misspelled key": ({"transformation": []}, "resources.transformation: must be one of quotaCheckStrategy, "),
    "a misspelled key of a transformation": (
        {"transformations": [{"input": GPU, "output": {}}]},
        "resources.transformations[0].output: must be one of input, strategy, multiplyBy, outputs, found 'output'",
    ),
    "a wrong amount": (
        {"transformations": [{"input": GPU, "outputs": {"x": "abc"}}]},
        "resources.transformations[0].outputs.x: must be a quantity",
    ),
    "an unknown check of quotas": (
        {"quotaCheckStrategy": "None"},
        "resources.quotaCheckStrategy: must be BlockUndeclared or IgnoreUndeclared, found 'None'",
    ),
}


@pytest.mark.parametrize(("section", "message"), KUEUE_BAD.values(), ids=KUEUE_BAD)
def test_a_configuration_with_which_kueue_would_not_start_is_an_error(section: Json, message: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        _view({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "resources": section})
    assert message in str(caught.value)


def test_a_quota_that_is_no_quantity_is_an_error() -> None:
    flavors = [{"name": "f", "resources": [{"name": GPU, "nominalQuota": "lots"}]}]
    spec = {"resourceGroups": [_group(flavors)]}
    with pytest.raises(SnapshotError) as caught:
        _view({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": spec})
    path = "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
    assert f"ClusterQueue q: {path}: must be a quantity" in str(caught.value)
    assert "'lots'" in str(caught.value)


OPTIONAL: dict[str, tuple[Json, str]] = {
    "a text": (
        {"constraints": [{"matchAttribute": 5}]},
        'constraints[0].matchAttribute: must be text, found a whole number. Write it in quotes, as in "8"',
    ),
    "a map": (
        {"requests": [{"name": "g", "exactly": 5}]},
        "requests[0].exactly: must be a map, found a whole number. Write a map",
    ),
}


@pytest.mark.parametrize(("devices", "message"), OPTIONAL.values(), ids=OPTIONAL)
def test_a_field_that_may_be_absent_is_no_amount(devices: Json, message: str) -> None:
    claim = {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": devices}}
    with pytest.raises(SnapshotError) as caught:
        _view({"apiVersion": "resource.k8s.io/v1", **claim})
    assert f"ResourceClaim c: spec.devices.{message}" in str(caught.value)


BAD = {
    "a boolean amount": (
        "status:\n  allocatable:\n    cpu: 8\n    memory: yes\n",
        ":8:13: Node gpu-1: status.allocatable.memory: must be text or a number, "
        "found true or false. Write text or a number",
    ),
    "a negative amount": (
        "status:\n  allocatable:\n    nvidia.com/gpu: '-1'\n",
        ":7:21: Node gpu-1: status.allocatable['nvidia.com/gpu']: must be zero or more, found -1. Write \"0\" or more",
    ),
    "half a GPU": (
        "status:\n  allocatable:\n    nvidia.com/gpu: '1.5'\n",
        ":7:21: Node gpu-1: status.allocatable['nvidia.com/gpu']: must be a whole number of GPUs, found 1.5. "
        'Write "1"',
    ),
    "not a quantity": (
        "status:\n  allocatable:\n    cpu: many\n",
        ":7:10: Node gpu-1: status.allocatable.cpu: must be a quantity such as 1, 500m or 8Gi (found 'many'). "
        'Write a quantity such as "8" or 512Gi',
    ),
    "a label that is a number": (
        "  labels:\n    a: x\n    nvidia.com/gpu.count: 8\nspec: {}\n",
        ":7:27: Node gpu-1: metadata.labels['nvidia.com/gpu.count']: must be text, found a whole number. "
        'Write it in quotes, as in "8"',
    ),
    "taints that are not a list": (
        "spec:\n  taints: none\n",
        ":6:11: Node gpu-1: spec.taints: must be a list, found text. Write a list",
    ),
    "a taint that is not a map": (
        "spec:\n  taints:\n    - none\n",
        ":7:7: Node gpu-1: spec.taints[0]: must be a map, found text. Write a map",
    ),
}


@pytest.mark.parametrize(("rest", "want"), BAD.values(), ids=BAD)
def test_invalid_object_is_an_error_with_location_and_fix(rest: str, want: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(f"apiVersion: v1\nkind: Node\nmetadata:\n  name: gpu-1\n{rest}", encoding="utf-8")
    with pytest.raises(SnapshotError) as caught:
        read_snapshot(str(file))
    assert str(caught.value) == f"{file}{want}"


def test_error_in_a_list_has_the_location_of_the_item(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    item = "- {apiVersion: v1, kind: Node, metadata: {name: gpu-1}, status: {allocatable: {cpu: -1}}}"
    file.write_text(f"apiVersion: v1\nkind: List\nitems:\n{item}\n", encoding="utf-8")
    with pytest.raises(SnapshotError, match="must be zero or more") as caught:
        read_snapshot(str(file))
    assert caught.value.location == SourceLocation(str(file), 4, item.rindex("-1") + 1)


def test_a_slice_may_publish_amounts_below_zero(tmp_path: Path) -> None:
    """The API server stores any amount there: "Any parsed quantity is valid." """
    counters = {"counterSet": "c", "counters": {"memory": {"value": "-2"}}}
    device = {"name": "d", "capacity": {"decoders": {"value": "-1"}}, "consumesCounters": [counters]}
    file = _file(tmp_path, resource_slice("s", "gpu.example.com", "node", devices=[device]))
    assert read_snapshot(str(file)).view.devices.pools


FAULTS: dict[str, tuple[Json, str]] = {
    "a node without a name": ({"kind": "Node", "metadata": {}}, "metadata.name must be given"),
    "a node with a name of two parts": ({"kind": "Node", "metadata": {"name": "a/b"}}, "must not contain /, found"),
    "metadata that is a list": ({"kind": "Node", "metadata": []}, "must be a map, found a list"),
    "a pod without a spec": ({"kind": "Pod", "metadata": {"name": "p"}}, "Object missing required field `spec`. Write"),
    "a node that is nested too deeply": (deep(2000), "is nested too deeply"),
    "an invalid pod": (
        {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": "one"}},
        "must be a list, found text",
    ),
    "a negative quota": (
        {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "-1"}}},
        "ResourceQuota q: spec.hard.pods: must be zero or more",
    ),
    "a limit that is not a quantity": (
        {"kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [{"maxLimitRequestRatio": {"cpu": "x"}}]}},
        "LimitRange l: spec.limits[0].maxLimitRequestRatio.cpu: must be a quantity",
    ),
}


@pytest.mark.parametrize(("data", "sentence"), FAULTS.values(), ids=FAULTS)
def test_invalid_objects(data: Json, sentence: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        _view(data)
    assert sentence in str(caught.value)
    assert caught.value.location == SourceLocation("test.yaml")


def test_invalid_pod_amounts_are_reported_at_evaluation() -> None:
    assert _free(_view(NODE, make_pod("p").gpus("many").spec(nodeName="gpu-1").build())) == 4


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="found no such file"):
        read_snapshot(str(tmp_path / "gone"))
    with pytest.raises(SnapshotError, match="found a folder without any of these"):
        read_snapshot(str(tmp_path))


def test_invalid_yaml_is_a_snapshot_error(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("kind: Node\n\tname: n\n", encoding="utf-8")
    with pytest.raises(SnapshotError) as caught:
        read_snapshot(str(file))
    assert caught.value.location.line == 2


def test_unreadable_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SnapshotError, match="must be readable"):
        read_snapshot(str(tmp_path))


def test_ten_thousand_pods_are_read_quickly(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    pods = [_bound(f"p{number}", 0) for number in range(10_000)]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE, *pods]}))
    view = read_snapshot(str(file)).view
    assert not view.has_free_node(GPU, 1, 1, cpu_milli=1, memory=0), "20000 of 64 CPUs are requested"


@pytest.mark.parametrize("text", ["hello\n", "", "a: b\n", "[]"], ids=["text", "empty", "another map", "a list"])
def test_a_file_without_kubernetes_objects_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(SnapshotError, match="must contain Kubernetes objects, found none"):
        read_snapshot(str(tmp_path / "file.yaml"))


def test_an_empty_list_of_kubectl_is_an_empty_cluster(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("{apiVersion: v1, kind: List, items: []}")
    assert read_snapshot(str(tmp_path / "file.yaml")).view.fleet.nodes == ()
