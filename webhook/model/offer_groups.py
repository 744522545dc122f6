"""From what nodes advertise to the fleet's offers: equal things become one offer with a mask of nodes.

Memory that differs by less than a driver branch or ECC makes it differ is one size, the lowest of them: a
pod that is pinned to `gpu.memory: 81251` would wait for ever after the next driver upgrade. What a missing
label makes unlike, and no label could tell apart, is one offer too, and the least of it is promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.model.advertised_resources import AdvertisedResource
from webhook.model.gpu_resources import SHARED_SUFFIX
from webhook.model.node_labels import (
    EC2_PREFIXES,
    GKE_ACCELERATOR,
    GKE_CLIENTS,
    GKE_PARTITION,
    GKE_SHARING,
    MEMORY_LABEL,
    PRODUCT_LABEL,
    REPLICAS_LABEL,
    SHARING_LABEL,
    compute_capability,
    cuda_version,
    driver_version,
)
from webhook.model.node_masks import LabelIndex, bit_positions, union_masks
from webhook.model.objects import Taint
from webhook.model.offers import GpuOffer

SAME_SIZE_PERCENT = 8
"""How far one card's memory differs by driver branch and ECC."""

PRODUCT_LABELS = (PRODUCT_LABEL, GKE_ACCELERATOR, *(f"{prefix}name" for prefix in EC2_PREFIXES))
"""Labels that name the product: the first that all nodes of an offer share is always selected by."""

LabelPairs = tuple[tuple[str, str], ...]


class AdvertOnNode(NamedTuple):
    """One advert, and the node and taints it stands on."""

    node: int
    taints: tuple[Taint, ...]
    advert: AdvertisedResource


def build_offers(
    standings: Sequence[AdvertOnNode],
    advertising: Mapping[str, int],
    index: LabelIndex,
    labels: Sequence[Mapping[str, str]],
) -> list[GpuOffer]:
    """Merge what nodes advertise. Least GPU share first, then by resource, product and taints.

    Args:
        standings: What stands where.
        advertising: Mask of the nodes that have units of a resource, by its name.
        index: Every label of the fleet.
        labels: The labels of each node.
    """
    by_shape: dict[AdvertisedResource, list[AdvertOnNode]] = {}
    for standing, shape in zip(standings, _normalize_adverts([standing.advert for standing in standings]), strict=True):
        by_shape.setdefault(shape, []).append(standing)

    offers = []
    for shape, members in by_shape.items():
        selector = derive_selector(shape.resource, _mask_of_adverts(members), advertising[shape.resource], index)
        offers += [_merge_adverts(shape, selector, taints, some, labels) for taints, some in _group_by_taints(members)]
    return sorted(offers, key=_offer_sort_key)


def derive_selector(resource: str, nodes: int, advertising: int, index: LabelIndex) -> LabelPairs:
    """Labels that reach these nodes and no other node that advertises the resource; () if none do."""
    block = resource.removesuffix(SHARED_SUFFIX)
    narrowing = (
        f"{block}.product",
        SHARING_LABEL,
        REPLICAS_LABEL,
        MEMORY_LABEL,
        f"{block}.memory",
        f"{block}.replicas",
    )
    chosen: dict[str, str] = {}
    reached = advertising
    for key in (*PRODUCT_LABELS, *narrowing, GKE_PARTITION, GKE_SHARING, GKE_CLIENTS):
        if chosen and reached == nodes:
            break
        value = index.common_value(key, nodes)
        if value is None or key in chosen:
            continue
        narrowed = reached & index.nodes_with(key, value)
        if narrowed != reached or (key in PRODUCT_LABELS and not chosen):
            chosen[key] = value
            reached = narrowed
    return tuple(chosen.items()) if reached == nodes else ()


def _normalize_adverts(adverts: Sequence[AdvertisedResource]) -> Iterable[AdvertisedResource]:
    """What makes each advert unlike others: its compute and units left out, its memory the lowest of its size."""
    plain = [msgspec.structs.replace(advert, units=0, compute_milli=0) for advert in adverts]
    sizes: dict[AdvertisedResource, set[int]] = {}
    for advert in plain:
        if advert.memory_mib is not None:
            sizes.setdefault(_without_memory(advert), set()).add(advert.memory_mib)
    settled = {kind: _lowest_of_each_size(sorted(found)) for kind, found in sizes.items()}
    for advert in plain:
        if advert.memory_mib is None:
            yield advert
        else:
            yield msgspec.structs.replace(advert, memory_mib=settled[_without_memory(advert)][advert.memory_mib])


def _without_memory(advert: AdvertisedResource) -> AdvertisedResource:
    return msgspec.structs.replace(advert, memory_mib=None)


def _lowest_of_each_size(sizes: Sequence[int]) -> dict[int, int]:
    """The lowest of its group for each size; sizes rise."""
    settled: dict[int, int] = {}
    lowest = 0
    for size in sizes:
        if not lowest or size * 100 > lowest * (100 + SAME_SIZE_PERCENT):
            lowest = size
        settled[size] = lowest
    return settled


def _group_by_taints(members: Iterable[AdvertOnNode]) -> Iterable[tuple[tuple[Taint, ...], list[AdvertOnNode]]]:
    groups: dict[tuple[Taint, ...], list[AdvertOnNode]] = {}
    for standing in members:
        groups.setdefault(standing.taints, []).append(standing)
    return groups.items()


def _merge_adverts(
    shape: AdvertisedResource,
    selector: LabelPairs,
    taints: tuple[Taint, ...],
    members: Sequence[AdvertOnNode],
    labels: Sequence[Mapping[str, str]],
) -> GpuOffer:
    nodes = _mask_of_adverts(members)
    on = [labels[node] for node in bit_positions(nodes)]
    return GpuOffer(
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
        driver=min(filter(None, map(driver_version, on)), default=()),
        cuda=min(filter(None, map(cuda_version, on)), default=()),
    )


def _mask_of_adverts(members: Iterable[AdvertOnNode]) -> int:
    return union_masks(1 << standing.node for standing in members)


def _offer_sort_key(offer: GpuOffer) -> tuple[object, ...]:
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
