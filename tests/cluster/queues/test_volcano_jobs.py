"""A Job of Volcano is stored with templates for slices, by a webhook that reads its queue from the API server.

Volcano itself does not run: its kinds are served with the fields that its API has, of any shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.installation import Installation
from tests.cluster.kueue import GPU, SLICE
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.test_crds import is_served

QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


def definition(group: str, version: str, plural: str, kind: str, scope: str) -> Json:
    """Return the definition of a kind whose spec may have any fields."""
    any_fields = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": any_fields}}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    versions = [{"name": version, "served": True, "storage": True, "schema": schema}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": scope, "versions": versions},
    }


KINDS = (
    definition("scheduling.volcano.sh", "v1beta1", "queues", "Queue", "Cluster"),
    definition("batch.volcano.sh", "v1alpha1", "jobs", "Job", "Namespaced"),
)


@pytest.fixture
def volcano(site: Installation, tmp_path: Path) -> Iterator[Plane]:
    """Serve the kinds of Volcano."""
    plane, file = site.plane, tmp_path / "kinds.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": KINDS}), encoding="utf-8")
    plane.kubectl("apply", "--server-side", "-f", str(file))
    eventually(lambda: is_served(plane, QUEUES))
    yield plane
    plane.kubectl("delete", "-f", str(file))


def job(name: str, team: str, queue: str) -> Json:
    """Return a Job with one pod that needs 8 GiB of one GPU."""
    pod = make_pod().needs("8Gi").gpus(1).build()
    template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    tasks = [{"name": "main", "replicas": 1, "template": template}]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": team},
        "spec": {"schedulerName": "volcano", "queue": queue, "minAvailable": 1, "tasks": tasks},
    }


def stored_limits(plane: Plane, team: str, queue: str) -> Json:
    """Create a Job, and return the limits of its template as stored."""
    path = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{team}/jobs"
    stored = plane.api.create(path, job("train", team, queue))
    plane.api.delete(f"{path}/train")
    [container] = stored["spec"]["tasks"][0]["template"]["spec"]["containers"]
    limits: Json = container["resources"]["limits"]
    return limits


def test_a_job_gets_a_slice_if_its_queue_has_some(volcano: Plane, team: str) -> None:
    kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    for name, capability in {"slices": {GPU: "4", SLICE: "4"}, "cards": {GPU: "4"}}.items():
        volcano.api.create(QUEUES, kind | {"metadata": {"name": name}, "spec": {"capability": capability}})

    limits_in = partial(stored_limits, volcano, team)
    assert eventually(lambda: limits_in("slices"), until=lambda limits: limits == {SLICE: "1"})
    assert limits_in("cards") == {GPU: "1"}
    assert limits_in("none") == {GPU: "1"}
