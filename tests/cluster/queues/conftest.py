"""Kueue and one installation for all tests of this folder, and a queue and a policy for each."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.client import Json
from tests.cluster.installation import Installation, install_from_page
from tests.cluster.kueue import GPU, SLICE, run_jobset, run_kueue, serve_queue
from tests.cluster.nodes import add_nodes, demo_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.queues.jobs import queued_job, wait_until_right_sized
from tests.cluster.trainer import run_trainer

POLICIES = "/apis/rightslice.dev/v1alpha1/gpupolicies"


@pytest.fixture(scope="package")
def site(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Install everything with Kueue, JobSet and Trainer, and the example cluster's nodes."""
    nodes = add_nodes(plane, demo_nodes())
    try:
        with (
            run_jobset(plane, tmp_path_factory.mktemp("jobset")),
            run_trainer(plane, tmp_path_factory.mktemp("trainer")),
            run_kueue(plane, tmp_path_factory.mktemp("kueue")),
            install_from_page(plane, tmp_path_factory.mktemp("installed")) as installation,
        ):
            yield installation
    finally:
        remove_nodes(plane, nodes)


@pytest.fixture
def team(site: Installation) -> Iterator[str]:
    """A namespace with a queue for four cards and four slices, whose policy right-sizes templates that may wait."""
    plane, name = site.plane, f"queued-{secrets.token_hex(3)}"
    plane.add_namespace(name)
    with serve_queue(plane, name, {"cpu": 100, GPU: 4, SLICE: 4}):
        plane.api.create(POLICIES, policy_of(name, "wait"))
        path = f"{POLICIES}/{name}"
        eventually(lambda: plane.api.get(path).get("status", {}).get("conditions"))
        wait_until_right_sized(plane, queued_job("tried", name))
        yield name
        plane.api.delete(path)
        plane.api.delete(f"/api/v1/namespaces/{name}")
        plane.api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds="0")


def policy_of(namespace: str, when_full: str) -> Json:
    """Return a policy that right-sizes pods and templates of a namespace, with its action when nothing is free."""
    spec = {
        "mode": "enforce",
        "match": {"namespaces": [namespace]},
        "rightSizing": {"templates": "enforce", "whenFull": when_full},
        "injection": {"tolerations": "auto"},
    }
    return {"apiVersion": "rightslice.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": namespace}, "spec": spec}
