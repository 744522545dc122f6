"""Pools: namespaces that share a ceiling, and what their pods weigh against it, in thousandths of a whole GPU.

A pod weighs what its GPUs weigh on its node. While it has none, it weighs the most that it may come to hold, under
every product that it may come to hold: what is not known counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile

import msgspec

from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.pod_summary import PodSummary, allowed_nodes, selected_product


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
        return self.without(
            [pod.uid for pod in takewhile(lambda pod: pod.admitted_at <= moment, self._by_uid.values())]
        )


def _weights_by_namespace(pods: Collection[QuotaReservation]) -> dict[str, GpuWeight]:
    found: dict[str, list[GpuWeight]] = {}
    for pod in pods:
        found.setdefault(pod.namespace, []).append(pod.weight)
    return {namespace: sum_weights(weights) for namespace, weights in found.items()}


NO_QUOTA_RESERVATIONS = QuotaReservations({}, {})


DEFAULT_SLICES = 7
"""Compute slices of most MIG cards; used only for a profile that no node of the cluster offers."""

ProductNames = tuple[str, ...]
"""The products that GPUs may be of, as labels of nodes name them; () where any may come."""

GpuWeight = tuple[tuple[ProductNames, int], ...]
"""Thousandths of a whole GPU, by the products that they may be of."""


class QuotaPool(msgspec.Struct, frozen=True):
    """Who shares a ceiling.

    Attributes:
        holds: True for the namespaces, by name and labels.
        product: True for the products that count; None: all do.
    """

    includes_namespace: Callable[[str, Mapping[str, str]], bool]
    includes_product: Callable[[str], bool] | None = None

    def counted_milli(self, weight: GpuWeight) -> int:
        """What counts of a weight."""
        test = self.includes_product
        if test is None:
            return sum([milli for _, milli in weight])
        return sum([milli for products, milli in weight if not products or any(map(test, products))])


def unit_milli(name: str, fleet: Fleet) -> int:
    """Thousandths of a whole card that one unit of a resource takes.

    `nvidia.com/gpu` counts as a whole card: that is what was asked for, whatever a node makes of it.
    """
    if name == WHOLE_GPU:
        return 1000
    offers = fleet.by_resource.get(name)
    if offers:
        return max(offer.gpu_milli for offer in offers)
    resource = parse_gpu_resource(name)
    if resource is not None and resource.mig:
        return min(1000, -(-1000 * resource.slices // DEFAULT_SLICES))
    return 1000


def max_unit_milli(name: str, fleet: Fleet, nodes: int) -> int:
    """The most that one unit of a name weighs on the nodes of a mask; by its name alone where none offers it."""
    milli = fleet.unit_weight(name, nodes).milli
    return unit_milli(name, fleet) if milli is None else milli


def weigh_units(units: Iterable[tuple[str, int]], fleet: Fleet, nodes: int, product: str = "") -> GpuWeight:
    """What units of GPU resources weigh on the nodes of a mask.

    Args:
        units: Resource names and counts.
        product: The product that is meant where no node of the mask offers a name yet; "" for any.
    """
    found: dict[ProductNames, int] = {}
    for name, count in units:
        known, milli = fleet.unit_weight(name, nodes)
        products = known or ((product,) if product else ())
        found[products] = found.get(products, 0) + count * (unit_milli(name, fleet) if milli is None else milli)
    return tuple(found.items())


def pod_weight(line: PodSummary, fleet: Fleet) -> GpuWeight:
    """What a pod of the cluster weighs."""
    units = line.gpu_units()
    if not units:
        return ()
    if line.constraints is not None:
        return weigh_units(units, fleet, allowed_nodes(line.constraints, fleet), selected_product(line.constraints))
    return weigh_on_node(units, fleet, line.node)


def weigh_on_node(units: Sequence[tuple[str, int]], fleet: Fleet, node: str) -> GpuWeight:
    """What units of GPU resources weigh on a node; under every product where it is not known, or offers none."""
    place = fleet.by_name.get(node, -1)
    if len(units) == 1:
        return _weigh_resource(*units[0], place, fleet)
    return sum_weights([_weigh_resource(name, count, place, fleet) for name, count in units])


def _weigh_resource(name: str, count: int, node: int, fleet: Fleet) -> GpuWeight:
    offer = fleet.offer_on(name, node)
    if offer is None:
        return (((), count * unit_milli(name, fleet)),)
    return (((offer.product,) if offer.product else (), count * offer.gpu_milli),)


def sum_weights(weights: Iterable[GpuWeight]) -> GpuWeight:
    """Weights added up."""
    found: Counter[ProductNames] = Counter()
    for weight in weights:
        for products, milli in weight:
            found[products] += milli
    return tuple(found.items())
