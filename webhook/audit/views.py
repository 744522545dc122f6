"""Cluster views that differ from another in one thing: the labels of namespaces, or what a quota has counted."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from webhook.errors import QuantityError
from webhook.model.cluster import NAMESPACE_NAME, Assumed, ClusterView
from webhook.model.objects import LimitRange, Namespace, ResourceQuota
from webhook.model.offers import Offer
from webhook.model.pods import Metadata
from webhook.model.quantity import nano, written


class OtherView(ClusterView):
    """The same as another view; what is different is overridden."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.fleet, self.complete, self.current = view.fleet, view.complete, view.current

    def namespace(self, name: str) -> Namespace | None:
        """As in the other view."""
        return self._view.namespace(name)

    def limit_ranges(self, namespace: str) -> tuple[LimitRange, ...]:
        """As in the other view."""
        return self._view.limit_ranges(namespace)

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...]:
        """As in the other view."""
        return self._view.quotas(namespace)

    def free(self, offer: Offer, nodes: int) -> int:
        """As in the other view."""
        return self._view.free(offer, nodes)

    def has_room(self, resource: str, count: int, nodes: int, *, cpu_milli: int, memory: int) -> bool:
        """As in the other view."""
        return self._view.has_room(resource, count, nodes, cpu_milli=cpu_milli, memory=memory)

    def assume(self, pod: Assumed, now: float) -> ClusterView:
        """Files hold no pods that were admitted a moment ago."""
        raise NotImplementedError


class LabelledView(OtherView):
    """Every namespace exists, and has these labels.

    Args:
        beside: True: beside those that it has, and these win on equal keys; False: these alone.
    """

    def __init__(self, view: ClusterView, labels: Mapping[str, str], *, beside: bool = True) -> None:
        super().__init__(view)
        self._labels = dict(labels)
        self._beside = beside

    def namespace(self, name: str) -> Namespace | None:
        """The namespace with all its labels."""
        known = self._view.namespace(name) if self._beside else None
        own = known.metadata.labels if known is not None else {}
        return Namespace(metadata=Metadata(name=name, labels={**own, **self._labels, NAMESPACE_NAME: name}))


class VacatedView(OtherView):
    """What one pod asks for is taken out of the quotas of its namespace: the pod is about to be created again."""

    def __init__(self, view: ClusterView, namespace: str, totals: Mapping[str, int]) -> None:
        super().__init__(view)
        self._namespace = namespace
        self._totals = totals

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...]:
        """The quotas, without the pod's own use where it is its namespace."""
        found = self._view.quotas(namespace)
        return tuple(map(self._without, found)) if namespace == self._namespace else found

    def _without(self, quota: ResourceQuota) -> ResourceQuota:
        used = dict(quota.status.used)
        for resource, count in self._totals.items():
            key = f"requests.{resource}"
            try:
                used[key] = written(max(0, nano(used.get(key, 0)) - nano(count)))
            except QuantityError:
                continue
        return msgspec.structs.replace(quota, status=msgspec.structs.replace(quota.status, used=used))


def with_labels(view: ClusterView, labels: Mapping[str, str]) -> ClusterView:
    """The view itself where there are no labels to add."""
    return LabelledView(view, labels) if labels else view
