"""A real scheduler binds all pods of a template that is right-sized although its pods have volumes with a limit.

All pods of a template in a queue start together, each with a volume that is created for it. The nodes with slices
attach few volumes, and the nodes with whole cards many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.builders import Json
from tests.cluster.nodes import add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.engine.test_queued_templates import TEMPLATES, job, queues, small_pod
from tests.example_cluster import apply_patch, mig_node, review, whole_node
from tests.storage_builders import ephemeral_volume, make_class, make_csi_node, make_driver, make_volume
from webhook.model.cluster_view import ClusterView

CORE, STORAGE = "/api/v1", "/apis/storage.k8s.io/v1"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
HERE = {"rightslice.test/siblings": "true"}
"""Label of the nodes, which the pods select."""

SLICE_NODES, CARD_NODES = ("sibling-slices-0", "sibling-slices-1"), ("sibling-cards",)
MANY_VOLUMES = 30
REJECT_SECONDS = 15

LIMITS = {1: (1, 2), 4: (4, 5)}
"""Numbers of pods to try, by the volumes that each node with slices attaches."""


def nodes() -> list[Json]:
    """Return the nodes."""
    found = [*map(mig_node, SLICE_NODES), *map(whole_node, CARD_NODES)]
    for node in found:
        node["metadata"]["labels"] |= HERE | {"kubernetes.io/hostname": node["metadata"]["name"]}
    return found


def storage(limit: int) -> list[tuple[str, Json]]:
    """Return the objects about storage, each with its resource."""
    limits = dict.fromkeys(SLICE_NODES, limit) | dict.fromkeys(CARD_NODES, MANY_VOLUMES)
    return [
        ("storageclasses", make_class()),
        ("csidrivers", make_driver(capacity=False)),
        *(("csinodes", make_csi_node(node, limit=most)) for node, most in limits.items()),
    ]


def job_with_volumes(pods: int) -> Json:
    """Return a Job whose pods need 8 GiB of one GPU and a volume each, and run until they are deleted."""
    pod = (
        small_pod()
        .annotate("test/runs-on", "true")
        .spec(volumes=[ephemeral_volume("scratch")], nodeSelector=HERE, restartPolicy="Never")
    )
    return job(pod, parallelism=pods, completions=pods)


def view_of_queue(limit: int) -> ClusterView:
    """Return the cluster as a snapshot, with a queue for it."""
    return queues(nodes=(*nodes(), *(each for _, each in storage(limit))))


@contextmanager
def cluster_with_limit(plane: Plane, limit: int) -> Iterator[None]:
    """Add the nodes, which attach so many volumes if they have slices."""
    names = add_nodes(plane, nodes())
    for resource, each in storage(limit):
        plane.api.create(f"{STORAGE}/{resource}", each)
    try:
        yield
    finally:
        for resource, each in storage(limit):
            plane.api.delete(f"{STORAGE}/{resource}/{each['metadata']['name']}")
        remove_nodes(plane, names)


def provision_volumes(plane: Plane, team: str) -> None:
    """Create a volume for each claim for which the scheduler has chosen a node, as a provisioner does."""
    claims: list[Any] = plane.api.get(f"{CORE}/namespaces/{team}/persistentvolumeclaims")["items"]
    for claim in claims:
        node, name = claim["metadata"].get("annotations", {}).get(SELECTED_NODE), f"pv-{claim['metadata']['uid']}"
        if node and not plane.api.exists(f"{CORE}/persistentvolumes/{name}"):
            volume = make_volume(name, nodes=(node,))
            volume["spec"]["claimRef"] = {"namespace": team, "name": claim["metadata"]["name"]}
            plane.api.create(f"{CORE}/persistentvolumes", volume)


@contextmanager
def running_job(plane: Plane, team: str, workload: Json, name: str) -> Iterator[Callable[[], int]]:
    """Run a Job without our webhook; yield what returns how many of its pods have a node."""
    jobs, pods = f"/apis/batch/v1/namespaces/{team}/jobs", f"{CORE}/namespaces/{team}/pods"
    plane.api.create(jobs, workload | {"metadata": {"name": name, "namespace": team}})

    def count_bound() -> int:
        provision_volumes(plane, team)
        return sum(bool(each["spec"].get("nodeName")) for each in plane.api.get(pods)["items"])

    try:
        yield count_bound
    finally:
        plane.api.delete(f"{jobs}/{name}", propagationPolicy="Background")
        plane.api.delete(pods, gracePeriodSeconds="0")
        eventually(lambda: plane.api.get(pods)["items"], until=lambda found: not found)


@pytest.mark.parametrize("limit", LIMITS)
def test_all_pods_of_a_template_get_a_node_with_us_and_without_us(plane: Plane, namespace: str, limit: int) -> None:
    view = view_of_queue(limit)
    with cluster_with_limit(plane, limit):
        for pods in LIMITS[limit]:
            submitted = job_with_volumes(pods)
            decision = review(submitted, TEMPLATES, view=view)
            assert bool(decision.patch) is (pods <= limit), decision.outcome
            for form in (submitted, apply_patch(submitted, decision)):
                with running_job(plane, namespace, form, f"pods-{pods}") as count_bound:
                    eventually(count_bound, until=pods.__eq__)


def test_a_template_that_keeps_its_request_would_have_left_pods_without_a_node(plane: Plane, namespace: str) -> None:
    pods = len(SLICE_NODES) + 1
    sized = apply_patch(job_with_volumes(1), review(job_with_volumes(1), TEMPLATES, view=view_of_queue(1)))
    sized["spec"] |= {"parallelism": pods, "completions": pods}

    assert not review(job_with_volumes(pods), TEMPLATES, view=view_of_queue(1)).patch
    with cluster_with_limit(plane, 1), running_job(plane, namespace, sized, "forced") as count_bound:
        eventually(count_bound, until=len(SLICE_NODES).__eq__)
        with pytest.raises(AssertionError, match="not met"):
            eventually(count_bound, until=pods.__eq__, within=REJECT_SECONDS)
