"""From what nodes advertise to the fleet's offers: equal things become one offer with a mask of nodes.

Memory that differs by less than a driver branch or ECC makes it differ is one size, the lowest of them: a
pod that is pinned to `gpu.memory: 81251` would wait for ever after the next driver upgrade. What a missing
label makes unlike, and no label could tell apart, is one offer too, and the least of it is promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.model.deriving import Advert
from webhook.model.masks import LabelIndex, bits, union
from webhook.model.nodelabels import (
    EC2_PREFIXES,
    GKE_ACCELERATOR,
    GKE_CLIENTS,
    GKE_PARTITION,
    GKE_SHARING,
    MEMORY,
    PRODUCT,
    REPLICAS,
    SHARING,
    compute_capability,
    cuda,
    driver,
)
from webhook.model.objects import Taint
from webhook.model.offers import Offer
from webhook.model.resources import SHARED_SUFFIX

SAME_SIZE_PERCENT = 8
"""How far one card's memory differs by driver branch and ECC."""

ANCHORS = (PRODUCT, GKE_ACCELERATOR, *(f"{prefix}name" for prefix in EC2_PREFIXES))
"""Labels that name the product: the first that all nodes of an offer share is always selected by."""

Pairs = tuple[tuple[str, str], ...]


class Standing(NamedTuple):
    """One advert, and the node and taints it stands on."""

    node: int
    taints: tuple[Taint, ...]
    advert: Advert


def offers_of(
    standings: Sequence[Standing],
    advertising: Mapping[str, int],
    index: LabelIndex,
    labels: Sequence[Mapping[str, str]],
) -> list[Offer]:
    """Merge what nodes advertise. Least GPU share first, then by resource, product and taints.

    Args:
        standings: What stands where.
        advertising: Mask of the nodes that have units of a resource, by its name.
        index: Every label of the fleet.
        labels: The labels of each node.
    """
    by_shape: dict[Advert, list[Standing]] = {}
    for standing, shape in zip(standings, _shapes([standing.advert for standing in standings]), strict=True):
        by_shape.setdefault(shape, []).append(standing)

    offers = []
    for shape, members in by_shape.items():
        selector = selector_of(shape.resource, _mask(members), advertising[shape.resource], index)
        offers += [_offer(shape, selector, taints, some, labels) for taints, some in _by_taints(members)]
    return sorted(offers, key=_order)


def selector_of(resource: str, nodes: int, advertising: int, index: LabelIndex) -> Pairs:
    """Labels that reach these nodes and no other node that advertises the resource; () if none do."""
    block = resource.removesuffix(SHARED_SUFFIX)
    narrowing = (f"{block}.product", SHARING, REPLICAS, MEMORY, f"{block}.memory", f"{block}.replicas")
    chosen: dict[str, str] = {}
    reached = advertising
    for key in (*ANCHORS, *narrowing, GKE_PARTITION, GKE_SHARING, GKE_CLIENTS):
        if chosen and reached == nodes:
            break
        value = index.common(key, nodes)
        if value is None or key in chosen:
            continue
        narrowed = reached & index.mask(key, value)
        if narrowed != reached or (key in ANCHORS and not chosen):
            chosen[key] = value
            reached = narrowed
    return tuple(chosen.items()) if reached == nodes else ()


def _shapes(adverts: Sequence[Advert]) -> Iterable[Advert]:
    """What makes each advert unlike others: its compute and units left out, its memory the lowest of its size."""
    plain = [msgspec.structs.replace(advert, units=0, compute_milli=0) for advert in adverts]
    sizes: dict[Advert, set[int]] = {}
    for advert in plain:
        if advert.memory_mib is not None:
            sizes.setdefault(_sizeless(advert), set()).add(advert.memory_mib)
    settled = {kind: _settle(sorted(found)) for kind, found in sizes.items()}
    for advert in plain:
        if advert.memory_mib is None:
            yield advert
        else:
            yield msgspec.structs.replace(advert, memory_mib=settled[_sizeless(advert)][advert.memory_mib])


def _sizeless(advert: Advert) -> Advert:
    return msgspec.structs.replace(advert, memory_mib=None)


def _settle(sizes: Sequence[int]) -> dict[int, int]:
    """The lowest of its group for each size; sizes rise."""
    settled: dict[int, int] = {}
    lowest = 0
    for size in sizes:
        if not lowest or size * 100 > lowest * (100 + SAME_SIZE_PERCENT):
            lowest = size
        settled[size] = lowest
    return settled


def _by_taints(members: Iterable[Standing]) -> Iterable[tuple[tuple[Taint, ...], list[Standing]]]:
    groups: dict[tuple[Taint, ...], list[Standing]] = {}
    for standing in members:
        groups.setdefault(standing.taints, []).append(standing)
    return groups.items()


def _offer(
    shape: Advert,
    selector: Pairs,
    taints: tuple[Taint, ...],
    members: Sequence[Standing],
    labels: Sequence[Mapping[str, str]],
) -> Offer:
    nodes = _mask(members)
    on = [labels[node] for node in bits(nodes)]
    return Offer(
        resource=shape.resource,
        form=shape.form,
        product=shape.product,
        profile=shape.profile,
        memory_mib=shape.memory_mib,
        compute_milli=min(standing.advert.compute_milli for standing in members),
        gpu_milli=shape.gpu_milli,
        isolation=shape.isolation,
        replicas=shape.replicas,
        selector=selector,
        taints=taints,
        nodes=nodes,
        capacity=sum(standing.advert.units for standing in members),
        compute_capability=min(filter(None, map(compute_capability, on)), default=None),
        driver=min(filter(None, map(driver, on)), default=()),
        cuda=min(filter(None, map(cuda, on)), default=()),
    )


def _mask(members: Iterable[Standing]) -> int:
    return union(1 << standing.node for standing in members)


def _order(offer: Offer) -> tuple[object, ...]:
    taints = tuple((taint.key, taint.value, taint.effect) for taint in offer.taints)
    return (
        offer.gpu_milli,
        offer.resource,
        offer.product,
        taints,
        offer.form.value,
        offer.replicas,
        offer.memory_mib or 0,
        offer.compute_milli,
        offer.nodes,
    )
