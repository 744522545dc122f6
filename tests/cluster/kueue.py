"""Kueue and JobSet on a control plane: their controllers, without a cluster and without their own webhooks.

Jobs and JobSets are created as these webhooks would have made them: suspended, with the label of their queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.client import Json
from tests.cluster.operator_crds import serve_operator_kinds
from tests.cluster.operators import operator_process
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import mount_namespace
from tests.controlplane.build import jobset_program, kueue_program
from tests.controlplane.definitions import definitions

API = "/apis/kueue.x-k8s.io/v1beta2"
KINDS = {"resourceflavors": "ResourceFlavor", "clusterqueues": "ClusterQueue", "localqueues": "LocalQueue"}
QUEUE_PARTS = ("clusterqueues", "resourceflavors")
GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"

_IN_NAMESPACE = (
    'mount -t tmpfs tmpfs /etc && mkdir -p /etc/kueue/metrics && ln -s "$0" /etc/kueue/metrics/certs && exec "$@"'
)
"""Kueue reads the certificate of its metrics from a fixed folder of /etc: it gets a mount namespace with its own."""


_KUEUE_SETTINGS = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "namespace": "kueue-system",
    "internalCertManagement": {"enable": False},
    "featureGates": {"VisibilityOnDemand": False},
    "clientConnection": {"qps": 500, "burst": 1000},
    "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob"]},
}
_JOBSET_SETTINGS = {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "internalCertManagement": {"enable": False}}


@contextmanager
def run_kueue(plane: Plane, folder: Path) -> Iterator[None]:
    """Run Kueue for the block, with an empty folder for its files."""
    kinds = sorted(f"{file.stem.partition('_')[2]}.kueue.x-k8s.io" for file in definitions("kueue").iterdir())
    prefix = [*mount_namespace(), "sh", "-c", _IN_NAMESPACE, str(folder)]
    process = operator_process(plane, kueue_program(), folder, _KUEUE_SETTINGS, prefix=prefix)
    with serve_operator_kinds(plane, "kueue", *kinds), plane.namespace_called("kueue-system"), process.run():
        yield
        # It releases what is being deleted; without it, their definitions could not be deleted.
        eventually(lambda: not any(plane.api.get(f"{API}/{kind}")["items"] for kind in QUEUE_PARTS))


@contextmanager
def run_jobset(plane: Plane, folder: Path) -> Iterator[None]:
    """Run the controller of JobSets for the block, with an empty folder for its files."""
    kinds, process = "jobsets.jobset.x-k8s.io", operator_process(plane, jobset_program(), folder, _JOBSET_SETTINGS)
    with serve_operator_kinds(plane, "jobset", kinds), plane.namespace_called("jobset-system"), process.run():
        yield


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
