"""Reservations: what pods weigh that were admitted a moment ago and are not seen in the cluster yet.

Each is known by its pod's uid, which the API server gives before the last webhook is asked: an answer that is asked
for twice counts once, and the pod that is seen later is the one that was admitted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import takewhile

import msgspec

from webhook.model.pools import GpuWeight, sum_weights


class QuotaReservation(msgspec.Struct, frozen=True, gc=False):
    """One admitted pod.

    Attributes:
        uid: The pod's uid.
        namespace: Its namespace.
        weight: What it weighs.
        at: When it was admitted, seconds of the caller's clock.
    """

    uid: str
    namespace: str
    weight: GpuWeight
    admitted_at: float


class QuotaReservations:
    """Immutable. Those of earlier admissions stand first."""

    __slots__ = ("_by_uid", "_weights")

    def __init__(self, by_uid: Mapping[str, QuotaReservation], weights: Mapping[str, GpuWeight]) -> None:
        """Take both as they are: the pods by uid, and what they weigh by namespace."""
        self._by_uid, self._weights = by_uid, weights

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def weights(self, but: str = "") -> Mapping[str, GpuWeight]:
        """What is reserved, by namespace; without what one pod has reserved itself."""
        return self.without((but,))._weights if but else self._weights

    def with_pod(self, pod: QuotaReservation) -> QuotaReservations:
        """One more; itself where the pod is known."""
        if pod.uid in self._by_uid:
            return self
        weight = sum_weights((self._weights.get(pod.namespace, ()), pod.weight))
        return QuotaReservations({**self._by_uid, pod.uid: pod}, {**self._weights, pod.namespace: weight})

    def without(self, uids: Collection[str]) -> QuotaReservations:
        """Those whose pods are not among these; itself where none is."""
        gone = [uid for uid in uids if uid in self._by_uid] if self._by_uid else ()
        if not gone:
            return self
        leaving = frozenset(gone)
        left = {uid: pod for uid, pod in self._by_uid.items() if uid not in leaving}
        return QuotaReservations(left, _weights_by_namespace(left.values()))

    def admitted_after(self, moment: float) -> QuotaReservations:
        """Those admitted after a moment; itself where all were."""
        return self.without([pod.uid for pod in takewhile(lambda pod: pod.admitted_at <= moment, self._by_uid.values())])


def _weights_by_namespace(pods: Collection[QuotaReservation]) -> dict[str, GpuWeight]:
    found: dict[str, list[GpuWeight]] = {}
    for pod in pods:
        found.setdefault(pod.namespace, []).append(pod.weight)
    return {namespace: sum_weights(weights) for namespace, weights in found.items()}


NO_QUOTA_RESERVATIONS = QuotaReservations({}, {})
