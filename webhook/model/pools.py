"""Quota pools: namespaces that share a quota, their pods' weights, and reservations of pods that are not observed yet.

Weights are thousandths of a whole GPU. A pod weighs what its GPUs weigh on its node. Without a node it weighs the most
that it may hold, under every product that it may get: what is unknown counts. A reservation is known by its pod's uid,
which the API server sets before the last webhook: a repeated request counts once, and the pod observed later is the
admitted one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile

import msgspec

from webhook.model.derived_values import derived_value
from webhook.model.fleet import MAX_CACHED_ANSWERS, Fleet
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.pod_summary import PodSummary, allowed_nodes


class QuotaReservation(msgspec.Struct, frozen=True, gc=False):
    """One admitted pod.

    Attributes:
        admitted_at: Seconds of the caller's clock.
        claims: Names of claims in its weight that other pods may use too.
    """

    uid: str
    namespace: str
    weight: GpuWeight
    admitted_at: float
    claims: tuple[str, ...] = ()


class QuotaReservations:
    """Reservations, the earliest admission first. Immutable."""

    __slots__ = ("_by_uid", "_claims", "_weights")

    def __init__(
        self,
        by_uid: Mapping[str, QuotaReservation],
        weights: Mapping[str, GpuWeight],
        claims: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        """Take all as they are: pods by uid, weights by namespace, and claims of pods without uid."""
        self._by_uid, self._weights, self._claims = by_uid, weights, claims

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def weights(self, but: str = "") -> Mapping[str, GpuWeight]:
        """Return the reserved weights by namespace, without those of one pod."""
        return self.without((but,))._weights if but else self._weights

    def has_claim(self, namespace: str, name: str, but: str = "") -> bool:
        """Return whether the weights have a claim, without those of one pod."""
        pods = (pod for pod in self._by_uid.values() if pod.claims and pod.uid != but)
        return (namespace, name) in self._claims or any(
            pod.namespace == namespace and name in pod.claims for pod in pods
        )

    def with_pod(self, pod: QuotaReservation) -> QuotaReservations:
        """Add a pod; itself if the pod is known."""
        if pod.uid in self._by_uid:
            return self
        weight = sum_weights((self._weights.get(pod.namespace, ()), pod.weight))
        return QuotaReservations({**self._by_uid, pod.uid: pod}, {**self._weights, pod.namespace: weight}, self._claims)

    def with_weight(self, namespace: str, weight: GpuWeight, claims: Iterable[str] = ()) -> QuotaReservations:
        """Add weight of pods without uid, in a view that is used once: `without` may drop it.

        Args:
            claims: Names of claims in the weight that other pods may use too.
        """
        total = sum_weights((self._weights.get(namespace, ()), weight))
        known = self._claims | {(namespace, name) for name in claims}
        return QuotaReservations(self._by_uid, {**self._weights, namespace: total}, known)

    def without(self, uids: Collection[str]) -> QuotaReservations:
        """Remove pods; itself if none of them is known."""
        known = frozenset(uid for uid in uids if uid in self._by_uid) if self._by_uid else ()
        if not known:
            return self
        left = {uid: pod for uid, pod in self._by_uid.items() if uid not in known}
        weights: dict[str, list[GpuWeight]] = {}
        for pod in left.values():
            weights.setdefault(pod.namespace, []).append(pod.weight)
        return QuotaReservations(left, {namespace: sum_weights(each) for namespace, each in weights.items()})

    def admitted_after(self, before: float) -> QuotaReservations:
        """Return the reservations after a time; itself if all are."""
        return self.without(
            [pod.uid for pod in takewhile(lambda pod: pod.admitted_at <= before, self._by_uid.values())]
        )


NO_QUOTA_RESERVATIONS = QuotaReservations({}, {})


ProductNames = tuple[str, ...]
"""Products that GPUs may be of, as node labels name them; () for any."""

GpuWeight = tuple[tuple[ProductNames, int], ...]
"""Thousandths of a whole GPU, by the products that they may be of."""


class QuotaPool(msgspec.Struct, frozen=True):
    """Namespaces that share a quota.

    Attributes:
        includes_namespace: Tests a namespace by name and labels.
        includes_product: Tests a product; None: all count.
    """

    includes_namespace: Callable[[str, Mapping[str, str]], bool]
    includes_product: Callable[[str], bool] | None = None

    def counted_milli(self, weight: GpuWeight) -> int:
        """Return the part of a weight that counts."""
        test = self.includes_product
        if test is None:
            return sum([milli for _, milli in weight])
        return sum([milli for products, milli in weight if not products or any(map(test, products))])


def total_milli(totals: Mapping[str, int], fleet: Fleet) -> int:
    """Return the thousandths of a whole GPU that a pod's totals take."""
    return sum([count * fleet.unit_milli(name) for name, count in totals.items()])


@derived_value(MAX_CACHED_ANSWERS, of_requests=True)
def weigh_units(fleet: Fleet, units: tuple[tuple[str, int], ...], nodes: int, product: str) -> GpuWeight:
    """Return the weight of GPU units on the nodes of a mask.

    Args:
        units: Resource names and counts.
        product: Expected product if no node of the mask offers a name yet; "" for any.
    """
    found: dict[ProductNames, int] = {}
    for name, count in units:
        known, milli = fleet.unit_weight(name, nodes)
        products = known or ((product,) if product else ())
        found[products] = found.get(products, 0) + count * milli
    return tuple(found.items())


def pod_weight(pod: PodSummary, fleet: Fleet) -> GpuWeight:
    """Return the weight of a pod of the cluster."""
    units = pod.gpu_units()
    if not units:
        return ()
    if pod.constraints is not None:
        product = dict(pod.constraints.labels).get(PRODUCT_LABEL, "")
        return weigh_units(fleet, units, allowed_nodes(pod.constraints, fleet), product)
    return weigh_on_node(units, fleet, pod.node)


def weigh_on_node(units: Sequence[tuple[str, int]], fleet: Fleet, node: str) -> GpuWeight:
    """Return the weight of GPU units on a node; under every product if the node is unknown or offers none."""
    index = fleet.by_name.get(node, -1)
    if len(units) == 1:
        return _weigh_resource(*units[0], index, fleet)
    return sum_weights([_weigh_resource(name, count, index, fleet) for name, count in units])


def _weigh_resource(name: str, count: int, node: int, fleet: Fleet) -> GpuWeight:
    offer = fleet.offer_on(name, node)
    if offer is None:
        return (((), count * fleet.unit_milli(name)),)
    return (((offer.product,) if offer.product else (), count * offer.gpu_milli),)


def sum_weights(weights: Iterable[GpuWeight]) -> GpuWeight:
    """Return the sum of weights."""
    found: dict[ProductNames, int] = {}
    for weight in weights:
        for products, milli in weight:
            found[products] = found.get(products, 0) + milli
    return tuple(found.items())


def scale_weight(weight: GpuWeight, factor: int) -> GpuWeight:
    """Return a weight several times."""
    return tuple((products, milli * factor) for products, milli in weight)
