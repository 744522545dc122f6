"""Read the owners of pods and the images of their containers from kube-state-metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from webhook.model.workloads import workload_name
from webhook.usage import queries
from webhook.usage.prometheus import PrometheusClient
from webhook.usage.queries import LabelScheme

OwnedKey = tuple[str, str]
"""Namespace and name of a pod, ReplicaSet or Job."""


class ControllerRef(NamedTuple):
    """The controller of an object."""

    kind: str
    name: str


class OwnerChains(NamedTuple):
    """The controllers of pods, ReplicaSets and Jobs that have one."""

    pods: Mapping[OwnedKey, ControllerRef] = {}
    replica_sets: Mapping[OwnedKey, ControllerRef] = {}
    jobs: Mapping[OwnedKey, ControllerRef] = {}

    def workload(self, namespace: str, pod: str) -> str:
        """Return the top-level owner of a pod, such as "Deployment/serve"; "Pod/NAME" if it has none."""
        owner = self.pods.get((namespace, pod))
        if owner is None:
            return f"Pod/{pod}"
        parents = {"ReplicaSet": self.replica_sets, "Job": self.jobs}.get(owner.kind, {})
        return workload_name(*parents.get((namespace, owner.name), owner))


async def read_owner_chains(
    prometheus: PrometheusClient, scheme: LabelScheme, pods: Iterable[str], moment: float, window: str
) -> OwnerChains:
    """Read the owners of pods by name, within a window that ends at a moment.

    Raises:
        UsageError: See `PrometheusClient.query`.
    """
    selector = prometheus.source.selector
    pod_queries = queries.pod_owner_queries(scheme, pods, selector, window)
    direct = await _query_owners(prometheus, pod_queries, scheme.pod, scheme, moment)

    async def read_parents(metric: str, label: str, kind: str) -> Mapping[OwnedKey, ControllerRef]:
        names = {owner.name for owner in direct.values() if owner.kind == kind}
        parent_queries = queries.owner_queries(metric, label, scheme, names, selector, window)
        return await _query_owners(prometheus, parent_queries, label, scheme, moment)

    replica_sets = await read_parents("kube_replicaset_owner", "replicaset", "ReplicaSet")
    return OwnerChains(direct, replica_sets, await read_parents("kube_job_owner", "job_name", "Job"))


async def _query_owners(
    prometheus: PrometheusClient, owner_queries: Iterable[str], label: str, scheme: LabelScheme, moment: float
) -> dict[OwnedKey, ControllerRef]:
    owners: dict[OwnedKey, ControllerRef] = {}
    for query in owner_queries:
        for series in await prometheus.query(query, moment):
            labels = series.metric
            kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
            if kind and name and not kind.startswith("<"):
                owners[labels.get(scheme.namespace, ""), labels.get(label, "")] = ControllerRef(kind, name)
    return owners


async def read_container_images(
    prometheus: PrometheusClient, scheme: LabelScheme, pods: Iterable[str], moment: float, window: str
) -> dict[tuple[str, str, str], str]:
    """Read the image of each container of pods by name.

    Raises:
        UsageError: See `PrometheusClient.query`.
    """
    images = {}
    for query in queries.image_queries(scheme, pods, prometheus.source.selector, window):
        for series in await prometheus.query(query, moment):
            labels = series.metric
            key = labels.get(scheme.namespace, ""), labels.get(scheme.pod, ""), labels.get(scheme.container, "")
            images[key] = labels.get("image", "")
    return images
