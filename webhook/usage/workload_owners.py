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

    async def read_owners(
        metric: str, form: LabelScheme, label: str, names: Iterable[str]
    ) -> dict[OwnedKey, ControllerRef]:
        owners: dict[OwnedKey, ControllerRef] = {}
        for query in queries.queries_by_name(metric, form, label, names, selector, window, "owner_kind, owner_name"):
            for series in await prometheus.query(query, moment):
                labels = series.metric
                kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
                if kind and name and not kind.startswith("<"):
                    owners[labels.get(form.namespace, ""), labels.get(label, "")] = ControllerRef(kind, name)
        return owners

    direct = await read_owners(queries.POD_OWNER, scheme, scheme.pod, pods)
    any_series = scheme._replace(matchers="")
    replica_set_names = {owner.name for owner in direct.values() if owner.kind == "ReplicaSet"}
    replica_sets = await read_owners("kube_replicaset_owner", any_series, "replicaset", replica_set_names)
    job_names = {owner.name for owner in direct.values() if owner.kind == "Job"}
    return OwnerChains(direct, replica_sets, await read_owners("kube_job_owner", any_series, "job_name", job_names))


async def read_container_images(
    prometheus: PrometheusClient, scheme: LabelScheme, pods: Iterable[str], moment: float, window: str
) -> dict[tuple[str, str, str], str]:
    """Read the image of each container of pods by name.

    Raises:
        UsageError: See `PrometheusClient.query`.
    """
    images = {}
    also, selector = f"{scheme.container}, image", prometheus.source.selector
    for query in queries.queries_by_name(queries.POD_INFO, scheme, scheme.pod, pods, selector, window, also):
        for series in await prometheus.query(query, moment):
            labels = series.metric
            key = labels.get(scheme.namespace, ""), labels.get(scheme.pod, ""), labels.get(scheme.container, "")
            images[key] = labels.get("image", "")
    return images
