"""The pods of the manifests, created in the namespaces as shipped: Pod Security and the other plugins admit them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cluster.client import Json, RefusedError
from tests.cluster.plane import Plane
from tests.cluster.test_manifests import MANIFESTS, OVERLAYS, as_list, kustomize_build
from webhook.manifests.objects import api_path
from webhook.well_known import AGENT_NAMESPACE, SYSTEM_NAMESPACE

FOLDERS = (*(f"overlays/{overlay}" for overlay in OVERLAYS), "agent", "scheduler/extender", "scheduler/second")
REQUIRED_KINDS = ("Namespace", "PriorityClass", "ServiceAccount")
"""Kinds that must exist before a pod can be created, even by a dry run."""
POD_OWNERS = ("Deployment", "DaemonSet", "StatefulSet", "Job")


@pytest.fixture(scope="module")
def builds(plane: Plane) -> Iterator[dict[str, list[Json]]]:
    """The objects of each folder, after everything that their pods need was created as shipped."""
    found = {folder: kustomize_build(plane, folder) for folder in FOLDERS}
    every = {api_path(one): one for objects in found.values() for one in objects if one["kind"] in REQUIRED_KINDS}
    for namespace in (SYSTEM_NAMESPACE, AGENT_NAMESPACE):
        plane.wait_until_gone(namespace)
    plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(as_list([*every.values()]))
    )
    yield found
    for path, one in every.items():
        if one["kind"] != "ServiceAccount":
            plane.api.delete(path)


def pods_of(objects: list[Json]) -> list[Json]:
    """Return a pod of each template, in its namespace."""
    owners = [one for one in objects if one["kind"] in POD_OWNERS]
    return [make_pod_from(one["spec"]["template"], one["metadata"]) for one in owners]


def make_pod_from(template: Json, owner: Json) -> Json:
    metadata = {**template["metadata"], "name": owner["name"], "namespace": owner["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def create_dry(plane: Plane, pod: Json) -> Json:
    return plane.api.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod, dryRun="All")


@pytest.mark.parametrize("folder", [each for each in FOLDERS if not each.endswith("out-of-cluster")])
def test_every_pod_is_admitted_to_its_namespace_as_shipped(
    plane: Plane, builds: dict[str, list[Json]], folder: str
) -> None:
    pods = pods_of(builds[folder])

    assert pods
    for pod in pods:
        create_dry(plane, pod)


def test_no_manifest_has_pods_that_the_test_above_misses() -> None:
    named = {str(file.parent.relative_to(MANIFESTS)) for file in MANIFESTS.rglob("*.yaml") for kind in POD_OWNERS
             if f"\nkind: {kind}\n" in f"\n{file.read_text(encoding='utf-8')}"}  # fmt: skip

    assert named - {"."} == {"base", "agent", "scheduler/extender", "scheduler/second"}


def test_only_the_agents_namespace_admits_the_agent(plane: Plane, builds: dict[str, list[Json]]) -> None:
    [agent] = pods_of(builds["agent"])
    account = {"metadata": {"name": agent["spec"]["serviceAccountName"]}}
    plane.api.create(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts", account)
    moved = {**agent, "metadata": {**agent["metadata"], "namespace": SYSTEM_NAMESPACE}}

    with pytest.raises(RefusedError, match='violates PodSecurity "restricted'):
        create_dry(plane, moved)
