"""A real scheduler allows pods on the nodes on which the program of `tests/filters` does.

An extender receives the nodes that pass all filters, and rejects them, so no pod gets a node, and the scheduler says of
each where it fits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

import pytest

from tests.builders import Json
from tests.cluster.nodes import add_nodes
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import create_pods
from tests.cluster.polling import eventually
from tests.controlplane.build import control_plane, wanted_version
from tests.filters.random_clusters import NAMESPACES, PRIORITIES, RandomCluster, random_cluster
from tests.filters.scheduler import SchedulerFilters

CLUSTERS = 4
REASON = "recorded by the extender"
CORE, STORAGE = "/api/v1", "/apis/storage.k8s.io/v1"
PATHS = {
    "Node": f"{CORE}/nodes",
    "PersistentVolume": f"{CORE}/persistentvolumes",
    "StorageClass": f"{STORAGE}/storageclasses",
    "CSIDriver": f"{STORAGE}/csidrivers",
    "CSINode": f"{STORAGE}/csinodes",
}
NAMESPACED = {
    "Pod": (CORE, "pods"),
    "PersistentVolumeClaim": (CORE, "persistentvolumeclaims"),
    "CSIStorageCapacity": (STORAGE, "csistoragecapacities"),
}
FIELDS_OF_ADMISSION = ("overhead", "priority")
"""Fields of a pod that the API server only sets itself."""


class RecordingExtender(ThreadingHTTPServer):
    """An extender that records the nodes of each pod, by its name, and rejects all of them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.nodes: dict[str, set[str]] = {}


class _Handler(BaseHTTPRequestHandler):
    server: RecordingExtender

    def do_POST(self) -> None:
        arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        names = arguments["NodeNames"]
        self.server.nodes[arguments["Pod"]["metadata"]["name"]] = set(names)
        body = json.dumps({"NodeNames": [], "FailedAndUnresolvableNodes": dict.fromkeys(names, REASON)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serve_recording_extender() -> Iterator[tuple[RecordingExtender, Json]]:
    """Yield an extender and its entry in the configuration of the scheduler."""
    with RecordingExtender() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        yield server, {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True, "httpTimeout": "30s"}
        server.shutdown()


@pytest.fixture(scope="module")
def empty_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane of its own: nodes and volumes of other tests would change the verdicts."""
    with Plane(control_plane(wanted_version()), tmp_path_factory.mktemp("plane")) as plane:
        for name in NAMESPACES:
            if not plane.api.exists(f"{CORE}/namespaces/{name}"):
                plane.add_namespace(name)
        for value in PRIORITIES:
            metadata = {"name": f"priority-{value}"}
            body = {"metadata": metadata, "value": value, "preemptionPolicy": "Never"}
            plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        plane.controllers.kill()  # they would bind claims, and delete volumes whose claim has another UID
        yield plane


def test_a_real_scheduler_agrees(empty_plane: Plane, scheduler_filters: SchedulerFilters) -> None:
    clusters = [_without_status(random_cluster(Random(f"process {number}"))) for number in range(CLUSTERS)]
    with (
        serve_recording_extender() as (extender, entry),
        empty_plane.scheduler_with(extenders=[entry]),
    ):
        for cluster, rejections in zip(clusters, scheduler_filters.rejections(clusters), strict=True):
            nodes = {node["metadata"]["name"] for node in cluster.of_kind("Node")}
            expected = {pod: {node for node in nodes if node not in found} for pod, found in rejections.items()}
            _create_objects(empty_plane, cluster)
            get_verdicts = partial(_verdicts, empty_plane, cluster.pods, extender)
            assert any(eventually(get_verdicts, until=expected.__eq__).values())
            _delete_objects(empty_plane, cluster)
            extender.nodes.clear()


def _without_status(cluster: RandomCluster) -> RandomCluster:
    """Return the part of a cluster that can be created as it is: no pods or claims that end or have ended.

    Pods are not nominated either, because the scheduler clears that of a pod that fits nowhere, and have no controller.
    """
    kinds = {"Namespace", *PATHS, *NAMESPACED}
    ended = ("Succeeded", "Failed")
    found = (each for each in cluster.objects if each["kind"] in kinds)
    objects = [each for each in found if each.get("status", {}).get("phase") not in ended]
    for each in objects:
        each["metadata"].pop("deletionTimestamp", None)
        each.get("status", {}).pop("nominatedNodeName", None)
    for pod in [*cluster.pods, *(each for each in objects if each["kind"] == "Pod")]:
        pod["spec"].pop("overhead", None)
        pod["metadata"].pop("ownerReferences", None)
        pod["spec"]["volumes"] = [each for each in pod["spec"].get("volumes", ()) if "ephemeral" not in each]
    return RandomCluster(objects, cluster.pods)


def _as_created(pod: Json) -> Json:
    """Return a pod without what admission plugins of the API server set, and with the class of its priority."""
    spec = {key: value for key, value in pod["spec"].items() if key not in FIELDS_OF_ADMISSION}
    return pod | {"spec": spec | {"priorityClassName": f"priority-{pod['spec']['priority']}"}}


def _create_objects(plane: Plane, cluster: RandomCluster) -> None:
    for namespace in cluster.of_kind("Namespace"):
        labels = {"tenant": None} | namespace["metadata"]["labels"]
        plane.api.patch(f"{CORE}/namespaces/{namespace['metadata']['name']}", {"metadata": {"labels": labels}})
    add_nodes(plane, cluster.of_kind("Node"))
    for each in cluster.objects:
        if each["kind"] in ("Namespace", "Node"):
            continue
        path = _collection(each)
        plane.api.create(path, _as_created(each) if each["kind"] == "Pod" else each)
        if each["kind"].startswith("PersistentVolume"):
            plane.api.patch(f"{path}/{each['metadata']['name']}/status", {"status": each["status"]})
    assert [answer for answer in create_pods(plane, map(_as_created, cluster.pods)) if not answer.created] == []


def _collection(item: Json) -> str:
    if item["kind"] in PATHS:
        return PATHS[item["kind"]]
    group, kind = NAMESPACED[item["kind"]]
    return f"{group}/namespaces/{item['metadata']['namespace']}/{kind}"


def _verdicts(plane: Plane, pods: list[Json], extender: RecordingExtender) -> dict[str, set[str]]:
    """Return the nodes of the last attempt for each pod; {} before the first one."""
    stored = {pod["metadata"]["name"]: pod for pod in plane.api.get(f"{CORE}/pods")["items"]}
    found = {}
    for name in (pod["metadata"]["name"] for pod in pods):
        conditions = {each["type"]: each for each in stored[name]["status"].get("conditions", ())}
        if "PodScheduled" not in conditions:
            return {}
        passed = REASON in conditions["PodScheduled"].get("message", "")
        found[name] = extender.nodes[name] if passed else set()
    return found


def _delete_objects(plane: Plane, cluster: RandomCluster) -> None:
    for each in reversed([*cluster.objects, *cluster.pods]):
        if each["kind"] != "Namespace":
            path = f"{_collection(each)}/{each['metadata']['name']}"
            if each["kind"].startswith("PersistentVolume"):
                plane.api.patch(path, {"metadata": {"finalizers": None}})
            plane.api.delete(path, gracePeriodSeconds="0")
