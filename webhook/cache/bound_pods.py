"""Who has come, and who is on a node now: what was reserved or assumed for a pod that was admitted ends with that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from webhook.cache.build_view import object_namespace
from webhook.cache.node_usage import NodeUsage, NodeUsageWriter
from webhook.cache.snapshot_objects import created_at
from webhook.model.assumed_pods import BoundPod
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.pod_resources import effective_requests
from webhook.model.pod_summary import PodSummary
from webhook.model.pods import Pod

PodNameKey = tuple[str, str]
"""Namespace and name, or the beginning of a name that the API server made."""


class BoundPodWriter:
    """What the one task has that writes: pods in, sums out, and who came."""

    def __init__(
        self,
        holdings: NodeUsage,
        touched: Callable[[str, str], None],
        landed: Callable[[Iterable[BoundPod]], None],
        arrived: Callable[[Iterable[str]], None],
        relisted: Callable[[], None],
    ) -> None:
        """Take the sums in charge.

        Args:
            holdings: Written by nobody else.
            touched: Told the namespace in which a pod changed, and the node, "" for none.
            landed: Told of each pod that was not on a node before, or not known; of those of a list when it is whole.
            arrived: Told the uids of pods that were not known before; of a list, those of all when it is whole.
            relisted: Told that all nodes may have changed.
        """
        self._usage_writer = NodeUsageWriter(holdings, touched, relisted)
        self._on_bound, self._on_arrival = landed, arrived
        self._listing = False
        self._newly_bound: list[BoundPod] = []
        self._arriving_uids: list[str] = []

    def begin(self) -> None:
        """A list begins."""
        self._listing, self._newly_bound, self._arriving_uids = True, [], []
        self._usage_writer.begin()

    def upsert(self, pod: Pod) -> None:
        """A pod is there."""
        self._set_summary(pod, self._usage_writer.summarize(pod))

    def remove(self, pod: Pod) -> None:
        """A pod is gone."""
        self._set_summary(pod, None)

    def swap(self) -> None:
        """The list is whole."""
        self._usage_writer.swap()
        self._on_bound(self._newly_bound)
        self._on_arrival(self._arriving_uids)
        self._listing, self._newly_bound, self._arriving_uids = False, [], []

    def _set_summary(self, pod: Pod, after: PodSummary | None) -> None:
        before = self._usage_writer.set_summary(pod, after)
        landing = _newly_bound_pods(pod, before, after)
        if self._listing:
            self._newly_bound += landing
            self._arriving_uids += [pod.metadata.uid]
            return
        self._on_bound(landing)
        if before is None:
            self._on_arrival((pod.metadata.uid,))


def names_at_admission(pod: Pod) -> tuple[PodNameKey, ...]:
    """What a pod may have been called when it was admitted: by its name, or before it was given one."""
    namespace, metadata = object_namespace(pod), pod.metadata
    made = metadata.generate_name and metadata.name.startswith(metadata.generate_name)
    return ((namespace, metadata.name), *([(namespace, f"{metadata.generate_name}*")] if made else []))


def _newly_bound_pods(pod: Pod, before: PodSummary | None, after: PodSummary | None) -> list[BoundPod]:
    """What a pod releases that is on a node now and was on none, or not known."""
    lands = after is not None and after.node and (before is None or not before.node)
    return bound_pods_of(pod) if lands else []


def bound_pods_of(pod: Pod) -> list[BoundPod]:
    """What a pod may release that was assumed for it: each name by each GPU resource.

    Pods of one template begin with the same name: which of them it is, its own making tells.
    """
    made, (own, *begun) = created_at(pod), names_at_admission(pod)
    gpus = [name for name in effective_requests(pod) if parse_gpu_resource(name)]
    return [
        landing
        for name in gpus
        for landing in (BoundPod(own, name), *(BoundPod(called, name, made) for called in begun))
    ]
