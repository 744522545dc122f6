"""`explain -l` and `undo -l` on a live cluster: of the pods that the API server selects."""

from __future__ import annotations

import pytest
import yaml

from tests.cluster.end_to_end.test_pods import GPU, container_requests, notebook
from tests.cluster.installation import Installation, rightslice

LABELS = {"nb-0": "jupyter", "nb-1": "jupyter", "other": "serve"}
"""The label app of each pod, by name."""


@pytest.fixture
def pods(site: Installation, team: str) -> str:
    """Create pods that are right-sized; return their namespace."""
    for name, app in LABELS.items():
        pod = notebook(name, team)
        pod["metadata"]["labels"] = {"app": app}
        site.plane.api.create(f"/api/v1/namespaces/{team}/pods", pod)
    return team


def test_explain_and_undo_take_the_selected_pods(site: Installation, pods: str) -> None:
    explained = rightslice(site.plane, "explain", "-n", pods, "-l", "app=jupyter", "--cluster", "live")
    undone = rightslice(site.plane, "undo", "-n", pods, "-l", "app in (jupyter)")

    assert (explained.returncode, undone.returncode) == (0, 0), explained.stderr + undone.stderr
    titles = [line.split()[1] for line in explained.stdout.splitlines() if line.startswith("Pod ")]
    assert titles == [f"{pods}/nb-0", f"{pods}/nb-1"]
    names = [line.split()[2] for line in undone.stdout.splitlines() if line.startswith("# Pod ")]
    assert names == titles
    assert [container_requests(each) for each in yaml.safe_load_all(undone.stdout)] == [{GPU: "1"}] * 2


@pytest.mark.parametrize("command", [("explain", "--cluster", "live"), ("undo",)], ids=" ".join)
def test_a_selector_of_no_pods_is_an_error(site: Installation, pods: str, command: tuple[str, ...]) -> None:
    ran = rightslice(site.plane, *command, "-n", pods, "-l", "app=none")

    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"no pods in namespace {pods} with labels app=none" in ran.stderr
