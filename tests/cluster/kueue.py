"""Kueue and JobSet on a control plane: their controllers, without a cluster and without their own webhooks.

Jobs and JobSets are created as these webhooks would have made them: suspended, with the label of their queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.cluster.client import Json
from tests.cluster.operator_crds import serve_operator_kinds
from tests.cluster.plane import Plane
from tests.cluster.processes import Process, free_port, mount_namespace
from tests.controlplane.build import jobset_program, kueue_program
from tests.controlplane.definitions import definitions

API = "/apis/kueue.x-k8s.io/v1beta2"
KINDS = {"resourceflavors": "ResourceFlavor", "clusterqueues": "ClusterQueue", "localqueues": "LocalQueue"}
GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"

_IN_NAMESPACE = (
    'mount -t tmpfs tmpfs /etc && mkdir -p /etc/kueue/metrics && ln -s "$0" /etc/kueue/metrics/certs && exec "$@"'
)
"""Kueue reads the certificate of its metrics from a fixed folder of /etc: it gets a mount namespace with its own."""


@contextmanager
def run_kueue(plane: Plane, folder: Path) -> Iterator[None]:
    """Run Kueue for the block, with an empty folder for its files."""
    kinds = sorted(f"{file.stem.partition('_')[2]}.kueue.x-k8s.io" for file in definitions("kueue").iterdir())
    with serve_operator_kinds(plane, "kueue", *kinds), plane.namespace_called("kueue-system"):
        process = _kueue_process(plane, folder)
        process.start()
        try:
            yield
        finally:
            process.kill()


@contextmanager
def run_jobset(plane: Plane, folder: Path) -> Iterator[None]:
    """Run the controller of JobSets for the block, with an empty folder for its files."""
    with serve_operator_kinds(plane, "jobset", "jobsets.jobset.x-k8s.io"), plane.namespace_called("jobset-system"):
        process = _jobset_process(plane, folder)
        process.start()
        try:
            yield
        finally:
            process.kill()


def _jobset_process(plane: Plane, folder: Path) -> Process:
    health, config = free_port(), folder / "config.json"
    for name in ("crt", "key"):
        (folder / f"tls.{name}").write_bytes((plane.ca.parent / f"server.{name}").read_bytes())
    settings = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": free_port(), "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    command = [str(jobset_program()), f"--config={config}", f"--kubeconfig={plane.kubeconfig}"]
    return Process("jobset", command, folder / "jobset.log", lambda: _is_up(f"http://127.0.0.1:{health}/readyz"))


def _kueue_process(plane: Plane, folder: Path) -> Process:
    health = free_port()
    credentials = plane.ca.parent
    for name in ("crt", "key"):
        (folder / f"tls.{name}").write_bytes((credentials / f"server.{name}").read_bytes())
    (folder / "ca.crt").write_bytes(plane.ca.read_bytes())
    config = folder / "config.json"
    config.write_text(json.dumps(configuration(health, folder)), encoding="utf-8")
    program = [str(kueue_program()), f"--config={config}", f"--kubeconfig={plane.kubeconfig}"]
    command = [*mount_namespace(), "sh", "-c", _IN_NAMESPACE, str(folder), *program]
    return Process("kueue", command, folder / "kueue.log", lambda: _is_up(f"http://127.0.0.1:{health}/readyz"))


def configuration(health: int, folder: Path) -> Json:
    """Return Kueue's Configuration."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": free_port(), "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "featureGates": {"VisibilityOnDemand": False},
        "clientConnection": {"qps": 500, "burst": 1000},
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob"]},
    }


def _is_up(url: str) -> bool:
    with urlopen(url, timeout=5) as response:
        return bool(response.status == 200)


@contextmanager
def serve_queue(
    plane: Plane, namespace: str, quotas: dict[str, int], labels: dict[str, str] | None = None
) -> Iterator[None]:
    """Serve a LocalQueue of a namespace for the block, with a ClusterQueue and a flavor.

    Args:
        quotas: The nominal quota of each resource.
        labels: Labels of the nodes of the flavor; None for all nodes.
    """
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quotas.items()]
    group = {"coveredResources": list(quotas), "flavors": [{"name": namespace, "resources": resources}]}
    objects: dict[str, Json] = {
        f"{API}/resourceflavors": {"metadata": {"name": namespace}, "spec": {"nodeLabels": labels or {}}},
        f"{API}/clusterqueues": {
            "metadata": {"name": namespace},
            "spec": {"resourceGroups": [group], "namespaceSelector": {}},
        },
        f"{API}/namespaces/{namespace}/localqueues": {
            "metadata": {"name": "team"},
            "spec": {"clusterQueue": namespace},
        },
    }
    for path, one in objects.items():
        kind = KINDS[path.rpartition("/")[2]]
        plane.api.create(path, {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, **one})
    try:
        yield
    finally:
        for path, one in reversed(objects.items()):
            plane.api.delete(f"{path}/{one['metadata']['name']}")


def reserved_amounts(plane: Plane, queue: str) -> dict[str, int]:
    """Return what a ClusterQueue is charged for, without zeros."""
    status: Json = plane.api.get(f"{API}/clusterqueues/{queue}").get("status", {})
    return {
        one["name"]: int(one["total"])
        for flavor in status.get("flavorsReservation", [])
        for one in flavor["resources"]
        if int(one["total"])
    }
