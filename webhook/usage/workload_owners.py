"""Whose pods they are: the owner chain as kube-state-metrics tells it, and the images of their containers."""

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
    """What controls an object."""

    kind: str
    name: str


class OwnerChains(NamedTuple):
    """What controls pods, ReplicaSets and Jobs; those that nothing controls are left out."""

    pods: Mapping[OwnedKey, ControllerRef] = {}
    replica_sets: Mapping[OwnedKey, ControllerRef] = {}
    jobs: Mapping[OwnedKey, ControllerRef] = {}

    def workload(self, namespace: str, pod: str) -> str:
        """The workload of a pod, up the chain: "Deployment/serve", "Pod/NAME" where nothing owns it."""
        owner = self.pods.get((namespace, pod))
        if owner is None:
            return f"Pod/{pod}"
        above = {"ReplicaSet": self.replica_sets, "Job": self.jobs}.get(owner.kind, {})
        return workload_name(*above.get((namespace, owner.name), owner))


async def read_owner_chains(
    prometheus: PrometheusClient, form: LabelScheme, pods: Iterable[str], moment: float, window: str
) -> OwnerChains:
    """The chain above pods of these names, as it was within a window that ends at a moment.

    Raises:
        UsageError: see `PrometheusClient.instant`.
    """
    selector = prometheus.source.selector
    direct = await _query_owners(
        prometheus, queries.pod_owner_queries(form, pods, selector, window), form.pod, form, moment
    )

    async def above(metric: str, label: str, kind: str) -> Mapping[OwnedKey, ControllerRef]:
        names = {owner.name for owner in direct.values() if owner.kind == kind}
        asked = queries.owner_queries(metric, label, form, names, selector, window)
        return await _query_owners(prometheus, asked, label, form, moment)

    replica_sets = await above("kube_replicaset_owner", "replicaset", "ReplicaSet")
    return OwnerChains(direct, replica_sets, await above("kube_job_owner", "job_name", "Job"))


async def _query_owners(
    prometheus: PrometheusClient, asked: Iterable[str], label: str, form: LabelScheme, moment: float
) -> dict[OwnedKey, ControllerRef]:
    found: dict[OwnedKey, ControllerRef] = {}
    for query in asked:
        for series in await prometheus.query(query, moment):
            labels = series.metric
            kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
            if kind and name and not kind.startswith("<"):
                found[labels.get(form.namespace, ""), labels.get(label, "")] = ControllerRef(kind, name)
    return found


async def read_container_images(
    prometheus: PrometheusClient, form: LabelScheme, pods: Iterable[str], moment: float, window: str
) -> dict[tuple[str, str, str], str]:
    """The image of each container of pods of these names.

    Raises:
        UsageError: see `PrometheusClient.instant`.
    """
    found = {}
    for query in queries.image_queries(form, pods, prometheus.source.selector, window):
        for series in await prometheus.query(query, moment):
            labels = series.metric
            key = labels.get(form.namespace, ""), labels.get(form.pod, ""), labels.get(form.container, "")
            found[key] = labels.get("image", "")
    return found
