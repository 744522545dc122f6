"""kueue config: the transformations of one budget, which Rightslice itself reads back."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.cli.conftest import Run
from webhook.cache.snapshot import read_charging
from webhook.model.quantity import NANO
from webhook.model.queues import ClusterQueue, WorkloadQueue


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
    queue = WorkloadQueue("team", ClusterQueue(), {}, read_charging(str(file)))

    assert queue.charge("nvidia.com/gpu", 2) == {"example.com/gpu-milli": 2000 * NANO}


def test_an_invalid_name_and_a_cluster_without_gpus_are_errors(rightslice: Run, tmp_path: Path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text("{apiVersion: v1, kind: Node, metadata: {name: node}}", encoding="utf-8")
    wrong = rightslice("kueue", "config", "--cluster", "room/cluster.yaml", "--resource", "gpus")
    empty = rightslice("kueue", "config", "--cluster", str(node))

    assert (wrong.code, "must be DOMAIN/NAME" in wrong.err) == (2, True)
    assert (empty.code, "no node of the cluster advertises a GPU" in empty.err) == (1, True)
