"""A cluster view that differs from another in what is said on the command line or by an audit."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from webhook.engine.quota.admission import compute_claims_charge
from webhook.engine.quota.charges import release_pod_usage
from webhook.model.cluster_view import NAMESPACE_NAME, ClusterView
from webhook.model.objects import Namespace, ResourceQuota
from webhook.model.pods import ObjectMeta, Pod


class AdjustedView(ClusterView):
    """Another view, of which it takes everything but namespaces and quotas."""

    _labels: Mapping[str, str] = {}
    _relabelled_namespace: tuple[str, Mapping[str, str]] | None = None
    _recreated_pod: tuple[str, Pod, bool] | None = None
    _released_quotas: tuple[ResourceQuota, ...] | None = None

    def __init__(self, view: ClusterView) -> None:
        self.__dict__.update(view.__dict__)  # a view never changes, so two may share what they know
        self._usage = self._usage.with_changed_labels()

    def namespace(self, name: str) -> Namespace | None:
        """The namespace; where labels were given for it, one that exists and has them."""
        known = super().namespace(name)
        alone = self._relabelled_namespace is not None and self._relabelled_namespace[0] == name
        if not alone and not self._labels:
            return known
        metadata = known.metadata if known is not None else ObjectMeta(name=name)
        labels = (
            self._relabelled_namespace[1]
            if self._relabelled_namespace is not None and alone
            else {**metadata.labels, **self._labels}
        )
        named = msgspec.structs.replace(metadata, labels={**labels, NAMESPACE_NAME: name})
        return Namespace(metadata=named)

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...]:
        """The quotas, without what the pod that is created again uses of them; reckoned once."""
        found = super().quotas(namespace)
        if self._recreated_pod is None or namespace != self._recreated_pod[0] or not found:
            return found
        if self._released_quotas is None:
            _, pod, runs = self._recreated_pod
            self._released_quotas = release_pod_usage(
                found, pod, compute_claims_charge(pod, self.claim_context(namespace)) if runs else {}
            )
        return self._released_quotas


def with_namespace_labels(view: ClusterView, labels: Mapping[str, str]) -> ClusterView:
    """The view in which every namespace exists and has these labels beside its own; on equal keys these win."""
    if not labels:
        return view
    adjusted = AdjustedView(view)
    adjusted._labels = dict(labels)
    return adjusted


def with_only_namespace_labels(view: ClusterView, name: str, labels: Mapping[str, str]) -> ClusterView:
    """The view in which one namespace exists and has these labels and no others; all else stays."""
    adjusted = AdjustedView(view)
    adjusted._relabelled_namespace = (name, dict(labels))
    return adjusted


def without_pod_usage(view: ClusterView, namespace: str, pod: Pod, *, runs: bool) -> ClusterView:
    """The view in which a pod's own use is taken out of the quotas: the pod is about to be created again.

    Args:
        namespace: The pod's namespace.
        pod: The pod as the API server has it stored.
        runs: Does it have a node? Then the claims were made that it names templates for.
    """
    adjusted = AdjustedView(view)
    adjusted._usage = adjusted._usage.without_pod(namespace, pod.metadata.name)
    adjusted._recreated_pod, adjusted._released_quotas = (namespace, pod, runs), None
    return adjusted
