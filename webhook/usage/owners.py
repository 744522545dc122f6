"""Whose pods they are: the owner chain as kube-state-metrics tells it, and the images of their containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from webhook.model.workloads import named
from webhook.usage import queries
from webhook.usage.prometheus import Prometheus
from webhook.usage.queries import Form

Owned = tuple[str, str]
"""Namespace and name of a pod, ReplicaSet or Job."""


class Owner(NamedTuple):
    """What controls an object."""

    kind: str
    name: str


class Owners(NamedTuple):
    """What controls pods, ReplicaSets and Jobs; those that nothing controls are left out."""

    pods: Mapping[Owned, Owner] = {}
    replica_sets: Mapping[Owned, Owner] = {}
    jobs: Mapping[Owned, Owner] = {}

    def workload(self, namespace: str, pod: str) -> str:
        """The workload of a pod, up the chain: "Deployment/serve", "Pod/NAME" where nothing owns it."""
        owner = self.pods.get((namespace, pod))
        if owner is None:
            return f"Pod/{pod}"
        above = {"ReplicaSet": self.replica_sets, "Job": self.jobs}.get(owner.kind, {})
        return named(*above.get((namespace, owner.name), owner))


async def read_owners(prometheus: Prometheus, form: Form, pods: Iterable[str], moment: float, window: str) -> Owners:
    """The chain above pods of these names, as it was within a window that ends at a moment.

    Raises:
        UsageError: see `Prometheus.instant`.
    """
    selector = prometheus.source.selector
    direct = await _owners(prometheus, queries.pod_owners(form, pods, selector, window), form.pod, form, moment)

    async def above(metric: str, label: str, kind: str) -> Mapping[Owned, Owner]:
        names = {owner.name for owner in direct.values() if owner.kind == kind}
        asked = queries.owners(metric, label, form, names, selector, window)
        return await _owners(prometheus, asked, label, form, moment)

    replica_sets = await above("kube_replicaset_owner", "replicaset", "ReplicaSet")
    return Owners(direct, replica_sets, await above("kube_job_owner", "job_name", "Job"))


async def _owners(
    prometheus: Prometheus, asked: Iterable[str], label: str, form: Form, moment: float
) -> dict[Owned, Owner]:
    found: dict[Owned, Owner] = {}
    for query in asked:
        for series in await prometheus.instant(query, moment):
            labels = series.metric
            kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
            if kind and name and not kind.startswith("<"):
                found[labels.get(form.namespace, ""), labels.get(label, "")] = Owner(kind, name)
    return found


async def read_images(
    prometheus: Prometheus, form: Form, pods: Iterable[str], moment: float, window: str
) -> dict[tuple[str, str, str], str]:
    """The image of each container of pods of these names.

    Raises:
        UsageError: see `Prometheus.instant`.
    """
    found = {}
    for query in queries.images(form, pods, prometheus.source.selector, window):
        for series in await prometheus.instant(query, moment):
            labels = series.metric
            key = labels.get(form.namespace, ""), labels.get(form.pod, ""), labels.get(form.container, "")
            found[key] = labels.get("image", "")
    return found
