"""A cluster view with other namespace labels, or without the usage of one pod."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from webhook.engine.quota.admission import compute_claims_charge
from webhook.engine.quota.charges import release_pod_usage
from webhook.model.cluster_view import NAMESPACE_NAME, ClusterView
from webhook.model.objects import Namespace, ResourceQuota
from webhook.model.pods import ObjectMeta, Pod


class AdjustedView(ClusterView):
    """A view that differs from another one in its namespaces and quotas."""

    _labels: Mapping[str, str] = {}
    _relabeled_namespace: tuple[str, Mapping[str, str]] | None = None
    _recreated_pod: tuple[str, Pod, bool] | None = None
    _released_quotas: tuple[ResourceQuota, ...] | None = None

    def __init__(self, view: ClusterView) -> None:
        self.__dict__.update(view.__dict__)  # views are immutable, so they can share their state
        self._usage = self._usage.with_changed_labels()

    def namespace(self, name: str) -> Namespace | None:
        """Return the namespace; one with given labels exists."""
        known = super().namespace(name)
        metadata = known.metadata if known is not None else ObjectMeta(name=name)
        if self._relabeled_namespace is not None and self._relabeled_namespace[0] == name:
            labels = self._relabeled_namespace[1]
        elif self._labels:
            labels = {**metadata.labels, **self._labels}
        else:
            return known
        return Namespace(metadata=msgspec.structs.replace(metadata, labels={**labels, NAMESPACE_NAME: name}))

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...]:
        """Return the quotas without the usage of the pod that is recreated; computed once."""
        found = super().quotas(namespace)
        if self._recreated_pod is None or namespace != self._recreated_pod[0] or not found:
            return found
        if self._released_quotas is None:
            _, pod, runs = self._recreated_pod
            claims = compute_claims_charge(pod, self.claim_context(namespace)) if runs else {}
            self._released_quotas = release_pod_usage(found, pod, claims)
        return self._released_quotas


def with_namespace_labels(view: ClusterView, labels: Mapping[str, str]) -> ClusterView:
    """Return a view in which every namespace exists and has these labels, which override its own."""
    if not labels:
        return view
    adjusted = AdjustedView(view)
    adjusted._labels = dict(labels)
    return adjusted


def with_only_namespace_labels(view: ClusterView, name: str, labels: Mapping[str, str]) -> ClusterView:
    """Return a view in which one namespace exists and has only these labels."""
    adjusted = AdjustedView(view)
    adjusted._relabeled_namespace = (name, dict(labels))
    return adjusted


def without_pod_usage(view: ClusterView, namespace: str, pod: Pod, *, runs: bool) -> ClusterView:
    """Return a view without a stored pod's usage in the quotas, because the pod is about to be recreated.

    If it runs, the claims of its claim templates exist and are charged too.
    """
    adjusted = AdjustedView(view)
    adjusted._usage = adjusted._usage.without_pod(namespace, pod.metadata.name)
    adjusted._recreated_pod, adjusted._released_quotas = (namespace, pod, runs), None
    return adjusted
