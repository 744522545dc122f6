"""The pods that the default topology spread of a scheduler counts: those that Services and the controller select.

The selectors of all Services that select a pod are merged, and that of its ReplicaSet or StatefulSet is added. Of a
ReplicaSet only the label is known that its pods have of their own.

Source: `DefaultSelector` of kube-scheduler, `pkg/scheduler/framework/plugins/helper/spread.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from webhook.model.api_struct import ApiStruct
from webhook.model.pod_groups import UNKNOWN_KEY
from webhook.model.pods import (
    DEFAULT_NAMESPACE,
    NodeSelectorRequirement,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodLabelSelector,
)

TEMPLATE_HASH = "pod-template-hash"
SELECTING_CONTROLLERS = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""Kinds of controllers by whose selectors default constraints count pods."""

UNKNOWN_SELECTOR = PodLabelSelector(match_expressions=(NodeSelectorRequirement(UNKNOWN_KEY, "Exists"),))
"""Stands for a selector that is not known."""


class ServiceSpec(ApiStruct, frozen=True):
    """The pods of a Service; none without a selector."""

    selector: dict[str, str] = {}


class Service(ApiStruct, frozen=True):
    """A Service."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class StatefulSetSpec(ApiStruct, frozen=True):
    """The pods of a StatefulSet."""

    selector: PodLabelSelector = PodLabelSelector()


class StatefulSet(ApiStruct, frozen=True):
    """A StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()


class PeerSelectors:
    """The selectors of a cluster. Immutable.

    Attributes:
        are_known: False if Services or StatefulSets are not known.
    """

    __slots__ = ("_services", "_stateful_sets", "are_known")

    def __init__(
        self, services: Iterable[Service] = (), stateful_sets: Iterable[StatefulSet] = (), *, are_known: bool = True
    ) -> None:
        """Index the selectors by namespace."""
        self.are_known = are_known
        self._services: dict[str, list[dict[str, str]]] = {}
        for each in services:
            if each.spec.selector:
                self._services.setdefault(each.metadata.namespace or DEFAULT_NAMESPACE, []).append(each.spec.selector)
        self._stateful_sets = {
            (each.metadata.namespace or DEFAULT_NAMESPACE, each.metadata.name): each.spec.selector
            for each in stateful_sets
        }

    def find(self, namespace: str, labels: Mapping[str, str], owner: OwnerReference | None) -> PodLabelSelector | None:
        """Return what selects the peers of a pod; None if nothing does, so that default constraints do not apply.

        Args:
            labels: Its labels as they are stored.
            owner: Its controller.
        """
        kind, merged = owner.kind if owner is not None else "", dict[str, str]()
        for selector in self._services.get(namespace, ()):
            if selector.items() <= labels.items():
                merged |= selector
        if kind == "ReplicaSet" and TEMPLATE_HASH in labels:
            return PodLabelSelector(merged | {TEMPLATE_HASH: labels[TEMPLATE_HASH]})
        if not self.are_known:
            return UNKNOWN_SELECTOR if labels or kind in SELECTING_CONTROLLERS else None
        if kind not in SELECTING_CONTROLLERS or owner is None:
            return PodLabelSelector(merged) if merged else None
        own = self._stateful_sets.get((namespace, owner.name)) if kind == "StatefulSet" else None
        return (
            PodLabelSelector(merged | own.match_labels, own.match_expressions) if own is not None else UNKNOWN_SELECTOR
        )

    def find_of_pod(self, pod: Pod) -> PodLabelSelector | None:
        """Return what selects the peers of a pod with the labels and the namespace that it has."""
        return self.find(pod.metadata.namespace or DEFAULT_NAMESPACE, pod.metadata.labels, controller_of(pod))


def controller_of(pod: Pod) -> OwnerReference | None:
    """Return the controller of a pod; None without one."""
    return next((each for each in pod.metadata.owner_references if each.controller), None)


NO_PEERS = PeerSelectors(are_known=False)
