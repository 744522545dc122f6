"""A policy rollout on the real plane: a share is right-sized, and out-of-memory pods stop the rollout."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.end_to_end.test_pods import SLICE, container_requests, wait_until_running
from tests.cluster.installation import Installation
from tests.cluster.polling import eventually
from tests.policy.policy_texts import policy_text

ROLLOUT = {"percent": 50, "seed": "end-to-end", "haltOn": {"oom": 10}}
NAMES = [f"train-{number}" for number in range(6)]


@pytest.fixture
def rolled_out(site: Installation) -> Iterator[str]:
    """A namespace, and a policy of the same name that right-sizes half of its workloads and has a rollout."""
    name = site.plane.add_namespace(f"rolled-out-{secrets.token_hex(3)}")
    spec = {"mode": "enforce", "match": {"namespaces": [name]}, "rollout": ROLLOUT, "rightSizing": {}}
    site.plane.kubectl("apply", "-f", "-", stdin=policy_text(name, **spec))
    eventually(lambda: condition(site, name)["status"] == "False")
    yield name
    site.plane.kubectl("delete", "gpupolicy", name)
    site.plane.api.delete(f"/api/v1/namespaces/{name}")


def condition(site: Installation, policy: str) -> Json:
    """Return the rollout condition of the policy's status; empty before it is written."""
    found = site.plane.api.get(f"/apis/rightslice.dev/v1alpha1/gpupolicies/{policy}")
    conditions: list[Json] = found.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == "RolloutHalted"), {"status": ""})


def right_sized_workloads(site: Installation, team: str) -> set[str]:
    """Return the workloads whose pods would now get a slice."""
    path = f"/api/v1/namespaces/{team}/pods"
    pods = {name: make_pod(name).namespace(team).needs("8Gi").gpus(1).build() for name in NAMES}
    answers = {name: site.plane.api.create(path, pod, dryRun="All") for name, pod in pods.items()}
    return {name for name, pod in answers.items() if container_requests(pod) == {SLICE: "1"}}


def test_half_is_right_sized_until_a_pod_runs_out_of_memory(site: Installation, rolled_out: str) -> None:
    team = rolled_out
    # Pods of earlier tests that are still being deleted count as waiting for slices.
    share = eventually(lambda: right_sized_workloads(site, team), within=600)
    assert 0 < len(share) < len(NAMES)
    assert right_sized_workloads(site, team) == share

    name = min(share)
    pod = make_pod(name).namespace(team).needs("8Gi").gpus(1).build()
    site.plane.api.create(f"/api/v1/namespaces/{team}/pods", pod)
    assert container_requests(wait_until_running(site, team, name)) == {SLICE: "1"}
    site.plane.kubectl("label", "pod", name, "simulate=out-of-memory", "-n", team)

    halted = eventually(lambda: condition(site, team), until=lambda found: found["status"] == "True")
    assert halted["reason"] == "OutOfMemory"
    assert halted["message"].startswith("1 of 1 pods in the share were OOMKilled within 60 min")
    site.plane.kubectl("delete", "pod", name, "-n", team)
    eventually(lambda: right_sized_workloads(site, team), until=lambda found: not found)
    assert eventually(lambda: site.metric_values(f'rollout_halted{{policy="{team}"}}')) == [1]
    recorded = eventually(lambda: events(site, team))
    assert [event["reason"] for event in recorded] == ["RolloutHalted"]

    site.plane.kubectl("patch", "gpupolicy", team, "--type=merge", "-p", '{"spec":{"rollout":{"percent":100}}}')
    eventually(lambda: right_sized_workloads(site, team), until=lambda found: found == set(NAMES))


def events(site: Installation, policy: str) -> list[Json]:
    """Return the Events on a policy."""
    found = site.plane.api.get("/api/v1/namespaces/default/events", fieldSelector=f"involvedObject.name={policy}")
    items: list[Json] = found["items"]
    return items
