"""A cluster view that differs from another in what is said on the command line or by an audit."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from webhook.errors import QuantityError
from webhook.model.cluster import NAMESPACE_NAME, ClusterView
from webhook.model.objects import Namespace, ResourceQuota
from webhook.model.pods import Metadata
from webhook.model.quantity import nano, written


class AdjustedView(ClusterView):
    """Another view, of which it takes everything but namespaces and quotas."""

    _labels: Mapping[str, str] = {}
    _one: tuple[str, Mapping[str, str]] | None = None
    _vacated: tuple[str, Mapping[str, int]] = ("", {})

    def __init__(self, view: ClusterView) -> None:
        self.__dict__.update(view.__dict__)  # a view never changes, so two may share what they know
        self._holders = self._holders.relabelled()

    def namespace(self, name: str) -> Namespace | None:
        """The namespace; where labels were given for it, one that exists and has them."""
        known = super().namespace(name)
        alone = self._one is not None and self._one[0] == name
        if not alone and not self._labels:
            return known
        metadata = known.metadata if known is not None else Metadata(name=name)
        labels = self._one[1] if self._one is not None and alone else {**metadata.labels, **self._labels}
        named = msgspec.structs.replace(metadata, labels={**labels, NAMESPACE_NAME: name})
        return Namespace(metadata=named)

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...]:
        """The quotas, without what the vacated pod uses of them."""
        found = super().quotas(namespace)
        vacated, totals = self._vacated
        return tuple(_without(quota, totals) for quota in found) if totals and namespace == vacated else found


def with_labels(view: ClusterView, labels: Mapping[str, str]) -> ClusterView:
    """The view in which every namespace exists and has these labels beside its own; on equal keys these win."""
    if not labels:
        return view
    adjusted = AdjustedView(view)
    adjusted._labels = dict(labels)
    return adjusted


def with_namespace(view: ClusterView, name: str, labels: Mapping[str, str]) -> ClusterView:
    """The view in which one namespace exists and has these labels and no others; all else stays."""
    adjusted = AdjustedView(view)
    adjusted._one = (name, dict(labels))
    return adjusted


def without_use(view: ClusterView, namespace: str, name: str, totals: Mapping[str, int]) -> ClusterView:
    """The view in which a pod's own use is taken out of the quotas: the pod is about to be created again.

    Args:
        namespace: The pod's namespace.
        name: Its name.
        totals: What it asks for, units by resource name.
    """
    adjusted = AdjustedView(view)
    adjusted._holders = adjusted._holders.without_pod(namespace, name)
    adjusted._vacated = (namespace, totals)
    return adjusted


def _without(quota: ResourceQuota, totals: Mapping[str, int]) -> ResourceQuota:
    used = dict(quota.status.used)
    for resource, count in totals.items():
        key = f"requests.{resource}"
        try:
            used[key] = written(max(0, nano(used.get(key, 0)) - nano(count)))
        except QuantityError:
            continue
    return msgspec.structs.replace(quota, status=msgspec.structs.replace(quota.status, used=used))
