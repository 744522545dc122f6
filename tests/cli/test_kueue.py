"""kueue config: the transformations of one budget, which Rightslice itself reads back."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.builders import make_node
from tests.cli.conftest import Run
from tests.example_cluster import mig_node, whole_node
from webhook.cache.snapshot import read_kueue_configuration
from webhook.model.quantity import NANO
from webhook.model.queue_quotas import ClusterQueue
from webhook.model.queues import WorkloadQueue

GKE = {"cloud.google.com/gke-accelerator": "nvidia-a100-80gb"}


def test_every_form_of_gpu_is_charged_to_one_budget(rightslice: Run) -> None:
    result = rightslice("kueue", "config", "--cluster", "room/cluster.yaml", "--resource", "example.org/gpus")
    found = {one["input"]: one for one in yaml.safe_load(result.out)["resources"]["transformations"]}

    assert result.code == 0
    assert found["nvidia.com/gpu"]["outputs"] == {"example.org/gpus": 1000}
    slices = {name: one["outputs"]["example.org/gpus"] for name, one in found.items() if "mig" in name}
    assert slices
    assert all(0 < milli < 1000 for milli in slices.values())
    assert {one["strategy"] for one in found.values()} == {"Replace"}


def test_what_is_printed_can_be_read_as_the_configuration_of_kueue(rightslice: Run, tmp_path: Path) -> None:
    result = rightslice("kueue", "config", "--cluster", "room/cluster.yaml")
    file = tmp_path / "kueue.yaml"
    file.write_text(f"apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n{result.out}", encoding="utf-8")
    queue = WorkloadQueue("team", ClusterQueue(), {}, read_kueue_configuration(str(file)).resources)

    assert queue.charge("nvidia.com/gpu", 2) == {"example.com/gpu-milli": 2000 * NANO}


def test_the_slices_of_one_card_fit_into_the_budget_of_one_card(rightslice: Run, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(yaml.safe_dump_all([whole_node(), mig_node()]), encoding="utf-8")
    result = rightslice("kueue", "config", "--cluster", str(nodes))
    found = {one["input"]: one["outputs"] for one in yaml.safe_load(result.out)["resources"]["transformations"]}

    assert found["nvidia.com/mig-1g.10gb"] == {"example.com/gpu-milli": 142}
    assert found["nvidia.com/mig-3g.40gb"] == {"example.com/gpu-milli": 500}
    assert "slice or share" not in result.out


def test_slices_with_the_name_of_a_whole_gpu_are_explained(rightslice: Run, tmp_path: Path) -> None:
    node = make_node("part", {"cloud.google.com/gke-gpu-partition-size": "1g.10gb"} | GKE, **{"nvidia.com/gpu": 7})
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(yaml.safe_dump_all([whole_node(), node]), encoding="utf-8")
    result = rightslice("kueue", "config", "--cluster", str(nodes))

    assert "# On 1 node, nvidia.com/gpu is a slice or share." in result.out


def test_an_invalid_name_and_a_cluster_without_gpus_are_errors(rightslice: Run, tmp_path: Path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text("{apiVersion: v1, kind: Node, metadata: {name: node}}", encoding="utf-8")
    wrong = rightslice("kueue", "config", "--cluster", "room/cluster.yaml", "--resource", "gpus")
    empty = rightslice("kueue", "config", "--cluster", str(node))

    assert (wrong.code, "must be DOMAIN/NAME" in wrong.err) == (2, True)
    assert (empty.code, "no node of the cluster advertises a GPU" in empty.err) == (1, True)
