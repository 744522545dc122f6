"""A cluster view whose namespaces carry more labels: what `--namespace-labels` and policy tests say of them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from webhook.model.cluster import Assumed, ClusterView
from webhook.model.objects import LimitRange, Namespace, ResourceQuota
from webhook.model.offers import Offer
from webhook.model.pods import Metadata

NAME_LABEL = "kubernetes.io/metadata.name"
"""The label that the API server gives to every namespace."""


class LabelledView(ClusterView):
    """Another view, in which every namespace exists and has these labels beside its own; on equal keys these win."""

    def __init__(self, view: ClusterView, labels: Mapping[str, str]) -> None:
        self._view = view
        self._labels = dict(labels)
        self.fleet = view.fleet
        self.complete = view.complete
        self.current = view.current

    def namespace(self, name: str) -> Namespace | None:
        """The namespace with all its labels."""
        known = self._view.namespace(name) or Namespace(metadata=Metadata(name=name, labels={NAME_LABEL: name}))
        labels = {**known.metadata.labels, **self._labels}
        return Namespace(metadata=msgspec.structs.replace(known.metadata, labels=labels))

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
        """The other view with the pod assumed, and the same labels."""
        return LabelledView(self._view.assume(pod, now), self._labels)


def with_labels(view: ClusterView, labels: Mapping[str, str]) -> ClusterView:
    """The view itself where there are no labels to add."""
    return LabelledView(view, labels) if labels else view
