"""--scheduler-config: commands evaluate pods under the configuration of the scheduler, like the webhook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import Json, make_pod
from tests.cli.conftest import JUNE, Run
from tests.example_cluster import mig_node, whole_node

POLICY = {
    "apiVersion": "rightslice.dev/v1alpha1",
    "kind": "GPUPolicy",
    "metadata": {"name": "small"},
    "spec": {"mode": "enforce", "rightSizing": {}},
}
KIND = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
OTHER_PLUGIN = KIND | {"profiles": [{"plugins": {"filter": {"enabled": [{"name": "Capacity"}]}}}]}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A cluster with free slices, a policy, a pod that needs one, and a configuration with a plugin of others."""
    pod = make_pod("small").gpus(1).needs("8Gi").build()
    objects: dict[str, Json] = {
        "cluster": {"apiVersion": "v1", "kind": "List", "items": [whole_node(), mig_node()]},
        "policy": POLICY,
        "pod": pod,
        "scheduler": OTHER_PLUGIN,
    }
    for name, data in objects.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    return tmp_path


def arguments_of(command: str, files: Path) -> list[str]:
    """Return the arguments by which a command evaluates the pod."""
    nodes = ["--nodes" if command == "simulate" else "--cluster", str(files / "cluster.json")]
    pods = {"check": [], "simulate": ["--pods"]}.get(command, ["-f"])
    return [
        command, *pods, str(files / "pod.json"), *nodes, "--policies", str(files / "policy.json"), "--now", JUNE
    ]  # fmt: skip


NOTED = {
    "check": ("right-sized to nvidia.com/mig-1g.10gb", "it might wait for a slice: plugin Capacity"),
    "explain": ("right-sized to nvidia.com/mig-1g.10gb", "it might wait for a slice: plugin Capacity"),
    "place": ("nvidia.com/mig-1g.10gb", "plugin Capacity"),
    "simulate": ("", "plugin Capacity"),
}


@pytest.mark.parametrize("command", NOTED)
def test_a_plugin_of_the_configuration_keeps_the_request(rightslice: Run, files: Path, command: str) -> None:
    before, after = NOTED[command]
    without = rightslice(*arguments_of(command, files))
    configured = rightslice(*arguments_of(command, files), "--scheduler-config", str(files / "scheduler.json"))

    assert before in " ".join(without.out.split())
    assert "Capacity" not in without.out + without.err
    assert after in " ".join((configured.out + configured.err).split())


@pytest.mark.parametrize("command", NOTED)
def test_a_file_without_a_configuration_is_invalid_input(rightslice: Run, files: Path, command: str) -> None:
    result = rightslice(*arguments_of(command, files), "--scheduler-config", str(files / "pod.json"))

    assert result.code == 2
    assert "--scheduler-config" in result.err
    assert "must be a KubeSchedulerConfiguration" in result.err


def test_a_trace_has_no_scheduler(rightslice: Run, files: Path) -> None:
    trace = ["simulate", "--nodes", "room/nodes.csv", "--pods", "room/pods.csv"]
    result = rightslice(*trace, "--scheduler-config", str(files / "scheduler.json"))

    assert result.code == 2
    assert "must be used with Kubernetes pods" in result.err
