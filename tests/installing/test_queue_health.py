"""doctor under Kueue: pods that hold other GPUs than their Workload was charged for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import Json, make_pod
from tests.installing.test_doctor import ABSENT, FORBIDDEN, HEALTHY
from tests.kube.scripted import error_answer, json_answer, scripted_api
from webhook.installing.facts import CheckState, ClusterFacts, list_workloads
from webhook.installing.scheduling_health import check_charges

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def workload(resource: str) -> Json:
    """Return a Workload of one pod set that was charged for a unit of a resource."""
    pod_set = {"name": "main", "count": 1, "template": {"spec": make_pod().requests(resource, "1").build()["spec"]}}
    return {"metadata": {"name": "job-train", "namespace": "team"}, "spec": {"podSets": [pod_set]}}


def queued_pod(resource: str, of: str = "job-train") -> Json:
    """Return a pod that Kueue started for a Workload."""
    pod = make_pod("train-x").label("kueue.x-k8s.io/podset", "main").annotate("kueue.x-k8s.io/workload", of)
    return pod.requests(resource, "1").build()


def facts_with(pods: list[Json], *workloads: Json) -> ClusterFacts:
    """Return the facts of a cluster with Kueue."""
    return replace(HEALTHY, workloads=list(workloads), queued_pods=pods)


CASES = {
    "Kueue is not installed": (replace(HEALTHY, workloads=None, refused={"workloads": ABSENT}), []),
    "its Workloads cannot be read": (
        replace(HEALTHY, workloads=None, refused={"workloads": FORBIDDEN}),
        [(CheckState.SKIP, "workloads cannot be read")],
    ),
    "nothing was charged": (facts_with([]), []),
    "pods hold what was charged": (
        facts_with([queued_pod(SLICE)], workload(SLICE)),
        [(CheckState.OK, "pods under Kueue hold the GPUs that it charged")],
    ),
    "a pod was made smaller after the charge": (
        facts_with([queued_pod(SLICE)], workload(GPU)),
        [(CheckState.WARN, "1 pod holds other GPUs than Kueue charged")],
    ),
    "a pod of an unknown Workload": (
        facts_with([queued_pod(SLICE, of="other")], workload(GPU)),
        [(CheckState.OK, "pods under Kueue hold the GPUs that it charged")],
    ),
}


@pytest.mark.parametrize(("facts", "want"), CASES.values(), ids=CASES)
def test_charges_are_compared_with_pods(facts: ClusterFacts, want: list[tuple[CheckState, str]]) -> None:
    assert [(found.state, found.summary) for found in check_charges(facts)] == want


def test_drift_names_the_pod_and_both_amounts() -> None:
    [result] = check_charges(facts_with([queued_pod(SLICE)], workload(GPU)))

    assert result.advice.startswith(f"team/train-x (1 {SLICE}, charged 1 {GPU}): ")


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
async def test_workloads_are_read_in_the_version_that_the_api_server_has(tmp_path: Path, version: str) -> None:
    found = json_answer({"items": [workload(GPU)], "metadata": {}})
    answers = [found] if version == "v1beta2" else [error_answer(404, "NotFound"), found]
    async with scripted_api(tmp_path, *answers) as (server, api):
        assert await list_workloads(api) == [workload(GPU)]
    assert server.requests[-1].path == f"/apis/kueue.x-k8s.io/{version}/workloads"
