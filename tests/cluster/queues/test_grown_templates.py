"""Kueue admits a template that was right-sized for nodes that a group still has to add, and the pods run on them.

The test adds the node that an autoscaler would add: a copy of a live one.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.client import Json
from tests.cluster.installation import Installation
from tests.cluster.kueue import API, GPU, SLICE, serve_queue
from tests.cluster.nodes import NODES, add_nodes, demo_nodes, remove_nodes
from tests.cluster.polling import eventually
from tests.cluster.queues.conftest import POLICIES, policy_of
from tests.cluster.queues.jobs import (
    admitted_amounts,
    create_job,
    limits_of,
    pods_of_job,
    queued_job,
    wait_until_right_sized,
)

PODS, SLOTS = 4, 2
"""Pods of the Job, and slices of a node of the group."""


@pytest.fixture(params=["keep", "grow"])
def pool(site: Installation, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A namespace whose queue has a flavor of one group with one node, and its action when nothing is free."""
    plane, name = site.plane, f"grown-{secrets.token_hex(3)}"
    plane.add_namespace(name)
    added = add_nodes(plane, [pool_node(f"{name}-0", name)])
    with serve_queue(plane, name, {"cpu": 100, GPU: PODS, SLICE: PODS}, {"pool": name}):
        plane.api.create(POLICIES, policy_of(name, request.param))
        path = f"{POLICIES}/{name}"
        eventually(lambda: plane.api.get(path).get("status", {}).get("conditions"))
        yield name, request.param
        plane.api.delete(path)
        # Kueue releases the queue once no Workload uses it.
        plane.api.delete(f"/apis/batch/v1/namespaces/{name}/jobs", propagationPolicy="Background")
        eventually(lambda: not plane.api.get(f"{API}/namespaces/{name}/workloads")["items"])
    plane.api.delete(f"/api/v1/namespaces/{name}")
    remove_nodes(plane, [*added, f"{name}-1"] if request.param == "grow" else added)


def pool_node(name: str, group: str) -> Json:
    """Return a node of a node group of EKS with few slices."""
    node = copy.deepcopy(next(one for one in demo_nodes() if one["metadata"]["name"] == "a100-mixed-2"))
    labels = node["metadata"]["labels"] | {"kubernetes.io/hostname": name, "pool": group}
    node["metadata"] = {"name": name, "labels": labels | {"eks.amazonaws.com/nodegroup": group}}
    amounts = {key: amount for key, amount in node["status"]["allocatable"].items() if not key.startswith("nvidia.com")}
    node["spec"] = {}
    node["status"] = {"allocatable": amounts | {SLICE: str(SLOTS)}, "capacity": amounts | {SLICE: str(SLOTS)}}
    return node


def test_a_job_gets_slices_of_nodes_that_its_group_adds(site: Installation, pool: tuple[str, str]) -> None:
    (team, when_full), plane = pool, site.plane
    job = queued_job("many", team, **{"rightslice.dev/gang-size": "1", "test/runs-on": "true"})
    job["spec"] |= {"parallelism": PODS, "completions": PODS}
    if when_full == "keep":
        assert limits_of(create_job(plane, job)["spec"]["template"]) == {GPU: "1"}
        return

    wait_until_right_sized(plane, job)
    assert limits_of(create_job(plane, job)["spec"]["template"]) == {SLICE: "1"}
    charged = eventually(lambda: admitted_amounts(plane, team))
    assert charged == {"many": {"cpu": str(PODS), SLICE: str(PODS)}}
    assert eventually(lambda: bound_pods(site, team), until=lambda bound: bound == SLOTS)
    add_nodes(plane, [pool_node(f"{team}-1", team)])
    assert eventually(lambda: bound_pods(site, team), until=lambda bound: bound == PODS)
    assert plane.api.get(f"{NODES}/{team}-1")["metadata"]["labels"]["pool"] == team


def bound_pods(site: Installation, team: str) -> int:
    """Return how many pods of the Job have a node."""
    return sum(bool(pod["spec"].get("nodeName")) for pod in pods_of_job(site.plane, team, "many"))
