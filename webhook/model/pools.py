"""Pools: namespaces that share a ceiling, and what their pods weigh against it, in thousandths of a whole GPU.

A pod weighs what its GPUs weigh on its node. While it has none, it weighs the most that it may come to hold, under
every product that it may come to hold: what is not known counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from webhook.model.fleet import Fleet
from webhook.model.lines import PodSummary, allowed_nodes, selected_product
from webhook.model.resources import WHOLE_GPU, parse_gpu_resource

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
