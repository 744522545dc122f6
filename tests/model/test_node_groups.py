"""Node groups: what a new node offers, and the nodes that cluster-autoscaler misjudges."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, make_node
from tests.device_builders import NVIDIA, card, resource_slice
from tests.model.autoscaler_rules import VENDOR_GPUS, counts_as_unready, utilization
from webhook.cache.informers import empty_view
from webhook.cache.live_view import ViewPublisher
from webhook.cache.snapshot import read_node_groups
from webhook.errors import SnapshotError
from webhook.model.fleet import Fleet, fleet_node
from webhook.model.node_groups import (
    AUTOSCALER_GPU_LABELS,
    AZURE_GPU_LABEL,
    AZURE_POOL,
    NO_SOURCES,
    GroupSources,
    NodeGroupSpec,
    NodeOverlay,
    find_node_groups,
    hides_gpus_from_autoscaler,
)
from webhook.model.objects import Node

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
OF_NEW_NODE = {"kubernetes.io/hostname": "new node of mig"}
"""Its name is not known, but that of no other node."""

EKS, KARPENTER = "eks.amazonaws.com/nodegroup", "karpenter.sh/nodepool"


def node(name: str, labels: dict[str, str], **amounts: int) -> Node:
    """Return a node."""
    return msgspec.convert(make_node(name, labels, **amounts), Node)


def offered(group: Any) -> dict[str, object]:
    """Return what a new node of a group offers, without CPU, memory and pods."""
    resources = group.new_node.status.allocatable
    return {name: amount for name, amount in resources.items() if name not in ("cpu", "memory", "pods")}


def test_a_new_node_has_what_all_siblings_have_in_common() -> None:
    one = node("a", {EKS: "mig", "zone": "a", "team": "x"}, **{SMALL: 7, "x.com/nic": 2})
    other = node("b", {EKS: "mig", "zone": "b", "team": "x"}, **{SMALL: 5})
    (group,) = find_node_groups(Fleet([one, other]), NO_SOURCES)
    assert (group.name, group.source, offered(group)) == ("mig", EKS, {SMALL: "5"})
    assert group.new_node.metadata.labels == {EKS: "mig", "team": "x"} | OF_NEW_NODE
    assert group.new_node.status.allocatable["cpu"] == "57600m"


STARTING = {
    "one that is not ready": {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
    "one that Karpenter has not registered": {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
    "one without labels of its GPUs": None,
}


@pytest.mark.parametrize("taint", STARTING.values(), ids=STARTING)
def test_a_sibling_that_is_starting_does_not_hide_what_a_new_node_offers(taint: Json | None) -> None:
    product = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    starting = make_node("b", {EKS: "mig"} | (product if taint else {}), **{SMALL: 1})
    starting["spec"] = {"taints": [taint]} if taint else {}
    ready = node("a", {EKS: "mig"} | product, **{SMALL: 7})
    (group,) = find_node_groups(Fleet([ready, msgspec.convert(starting, Node)]), NO_SOURCES)
    assert offered(group) == {SMALL: "7"}
    assert group.new_node.metadata.labels == {EKS: "mig"} | product | OF_NEW_NODE
    assert group.new_node.spec.taints == ()


def test_karpenter_does_not_know_slices_and_labels_of_agents() -> None:
    labels = {KARPENTER: "gpus", EKS: "x", "nvidia.com/gpu.product": "NVIDIA-L4"}
    (group,) = find_node_groups(Fleet([node("a", labels, **{GPU: 1, SMALL: 7})]), NO_SOURCES)
    assert (group.source, offered(group), group.unknown_gpus) == (KARPENTER, {GPU: "1"}, (SMALL,))
    assert group.unknown_labels == {"nvidia.com/gpu.product"}


def test_settings_replace_what_nodes_show() -> None:
    live = Fleet([node("a", {EKS: "mig"}, **{SMALL: 7})])
    (group,) = find_node_groups(live, GroupSources((NodeGroupSpec("mig", resources={SMALL: "3"}),)))
    assert offered(group) == {SMALL: "3"}


gpu_names = st.sampled_from([*VENDOR_GPUS, SMALL])
AZURE = {AZURE_POOL: "a", AZURE_GPU_LABEL: "nvidia"}
recognized = st.sampled_from([(label, {label: "x"}) for label in AUTOSCALER_GPU_LABELS] + [(AZURE_GPU_LABEL, AZURE)])


@given(recognized, st.dictionaries(gpu_names, st.integers(0, 8)))
def test_hidden_gpus_are_those_that_make_a_node_unready_and_idle(
    recognized: tuple[str, dict[str, str]], gpus: dict[str, int]
) -> None:
    label, labels = recognized
    made, allocatable = node("a", labels, **gpus), {"cpu": 64, "memory": 512 << 30} | gpus
    unready = counts_as_unready(labels, allocatable, label)
    assert hides_gpus_from_autoscaler(fleet_node(made)) == unready
    if unready:
        assert utilization(labels, allocatable, [{SMALL: gpus.get(SMALL, 0), "cpu": 60}], label) == 0.0


@pytest.mark.parametrize("labels", [{}, {AZURE_GPU_LABEL: "nvidia"}, {AZURE_POOL: "a"}])
def test_a_node_without_the_gpu_label_is_judged_by_its_cpu(labels: dict[str, str]) -> None:
    allocatable = {"cpu": 64, "memory": 512 << 30, SMALL: 7}
    assert not hides_gpus_from_autoscaler(fleet_node(node("a", labels, **{SMALL: 7})))
    assert utilization(labels, allocatable, [{"cpu": 32}], AUTOSCALER_GPU_LABELS[0]) == 0.5


def node_overlay(name: str) -> NodeOverlay:
    """Return a NodeOverlay that adds slices to every node."""
    return msgspec.convert({"metadata": {"name": name}, "spec": {"capacity": {SMALL: "7"}}}, NodeOverlay)


async def test_a_live_view_follows_node_overlays_and_keeps_the_settings() -> None:
    written = (NodeGroupSpec("mig"),)
    holder = SimpleNamespace(view=empty_view().with_group_sources(GroupSources(written)))
    publisher = ViewPublisher(holder, fleet_seconds=0.0)
    seen = []
    for name in ("a", "b"):
        publisher.overlays.upsert(node_overlay(name))
        await publisher.publish()
        seen.append(holder.view.group_sources)
    assert [(each.groups, len(each.overlays)) for each in seen] == [(written, 1), (written, 2)]


GROUPS = {
    "apiVersion": "rightslice.dev/v1alpha1",
    "kind": "NodeGroups",
    "metadata": {"name": "groups"},
    "nodeGroups": [{"name": "a"}],
}


def sliced(node: str | None, count: int = 1, **spec: Any) -> Json:
    """Return a slice of a pool."""
    return resource_slice("s", NVIDIA, "p", count, **({"nodeName": node} if node else {"allNodes": True}), **spec)


INVALID = {
    "a misspelled field": (
        {"nodeGroups": [{"name": "a", "resource": {}}]},
        "NodeGroups groups: nodeGroups[0]: Object contains unknown field `resource`",
    ),
    "no name": ({"nodeGroups": [{"grows": True}]}, "NodeGroups groups: nodeGroups[0]: Object missing required field"),
    "an amount that is none": (
        {"nodeGroups": [{"name": "a", "resources": {SMALL: "a"}}]},
        "must be a quantity such as 1, 500m or 8Gi (found 'a')",
    ),
    "slices of two nodes": (
        {"nodeGroups": [{"name": "a", "resourceSlices": [sliced("a"), sliced("b")]}]},
        "nodeGroups[0]: resourceSlices must be those of one node, which spec.nodeName of each names",
    ),
    "slices that no node has": (
        {"nodeGroups": [{"name": "a", "resourceSlices": [sliced(None)]}]},
        "nodeGroups[0]: resourceSlices must be those of one node, which spec.nodeName of each names",
    ),
    "a pool with a slice missing": (
        {"nodeGroups": [{"name": "a", "resourceSlices": [sliced("a", 2)]}]},
        "must have all slices of pool p of gpu.nvidia.com (found 1, its resourceSliceCount is 2)",
    ),
    "a capacity that is none": (
        {"nodeGroups": [{"name": "a", "resourceSlices": [sliced("a", devices=[card("gpu-0", memory="a")])]}]},
        "must be a quantity such as 1, 500m or 8Gi (found 'a')",
    ),
    "no group": ({"nodeGroups": []}, "must be a NodeGroups of rightslice.dev/v1alpha1 with nodeGroups, found none"),
}


@pytest.mark.parametrize(("change", "message"), INVALID.values(), ids=INVALID)
def test_an_invalid_settings_file_has_a_message(tmp_path: Path, change: Json, message: str) -> None:
    file = tmp_path / "groups.json"
    file.write_bytes(msgspec.json.encode(GROUPS | change))
    with pytest.raises(SnapshotError) as caught:
        read_node_groups(str(file))
    assert message in str(caught.value)


def test_the_settings_file_of_the_docs_can_be_read(tmp_path: Path) -> None:
    page = Path("docs/autoscalers.md").read_text(encoding="utf-8")
    texts = [block.partition("```")[0] for block in page.split("```yaml\n") if "kind: NodeGroups" in block]
    read = []
    for text in texts:
        file = tmp_path / "groups.yaml"
        file.write_text(text, encoding="utf-8")
        read += [(group.name, group.grows, len(group.resource_slices)) for group in read_node_groups(str(file))]
    assert read == [("a100-slices", True, 0), ("leased", False, 0), ("l4", True, 1)]
