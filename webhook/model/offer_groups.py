"""Group the GPUs that nodes advertise into offers: equal ones become one offer with a mask of nodes.

Memory sizes that differ only by driver branch or ECC become the lowest of them: a pod pinned to `gpu.memory: 81251`
would stay Pending after the next driver upgrade. Offers that no label distinguishes are grouped too, with the smallest
compute and driver of the group.
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
from webhook.model.objects import Taint, taint_sort_key
from webhook.model.offers import GpuOffer

SAME_SIZE_PERCENT = 8
"""Variation of one GPU's memory size with driver branch and ECC."""

PRODUCT_LABELS = (PRODUCT_LABEL, GKE_ACCELERATOR, *(f"{prefix}name" for prefix in EC2_PREFIXES))
"""Labels that name the product. A selector always contains the first that all nodes of an offer share."""

LabelPairs = tuple[tuple[str, str], ...]


class AdvertOnNode(NamedTuple):
    """One advertised resource, and the node that advertises it."""

    node: int
    taints: tuple[Taint, ...]
    advert: AdvertisedResource


def build_offers(
    adverts: Sequence[AdvertOnNode],
    advertising: Mapping[str, int],
    index: LabelIndex,
    labels: Sequence[Mapping[str, str]],
) -> list[GpuOffer]:
    """Return the offers of a fleet: smallest share of a GPU first, then by resource, product and taints.

    Args:
        adverts: The resources that nodes advertise.
        advertising: Mask of the nodes that advertise a resource, by its name.
        index: Every label of the fleet.
        labels: The labels of each node.
    """
    by_kind: dict[AdvertisedResource, list[AdvertOnNode]] = {}
    for one, kind in zip(adverts, _normalize_adverts([one.advert for one in adverts]), strict=True):
        by_kind.setdefault(kind, []).append(one)

    offers = []
    for kind, members in by_kind.items():
        selector = derive_selector(kind.resource, _mask_of_adverts(members), advertising[kind.resource], index)
        by_taints: dict[tuple[Taint, ...], list[AdvertOnNode]] = {}
        for one in members:
            by_taints.setdefault(one.taints, []).append(one)
        offers += [_merge_adverts(kind, selector, taints, some, labels) for taints, some in by_taints.items()]
    return sorted(offers, key=_offer_sort_key)


def derive_selector(resource: str, nodes: int, advertising: int, index: LabelIndex) -> LabelPairs:
    """Return labels that select these nodes and no other node that advertises the resource; () if none do."""
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
    """Yield what distinguishes each advert: without compute and units, and with the lowest memory of its size."""
    plain = [msgspec.structs.replace(advert, units=0, compute_milli=0) for advert in adverts]
    sizes: dict[AdvertisedResource, set[int]] = {}
    for advert in plain:
        if advert.memory_mib is not None:
            sizes.setdefault(_without_memory(advert), set()).add(advert.memory_mib)
    lowest = {kind: _lowest_of_each_size(sorted(found)) for kind, found in sizes.items()}
    for advert in plain:
        if advert.memory_mib is None:
            yield advert
        else:
            yield msgspec.structs.replace(advert, memory_mib=lowest[_without_memory(advert)][advert.memory_mib])


def _without_memory(advert: AdvertisedResource) -> AdvertisedResource:
    return msgspec.structs.replace(advert, memory_mib=None)


def _lowest_of_each_size(sizes: Sequence[int]) -> dict[int, int]:
    """Return the lowest size of its group for each size; `sizes` is ascending."""
    lowest_of: dict[int, int] = {}
    lowest = 0
    for size in sizes:
        if not lowest or size * 100 > lowest * (100 + SAME_SIZE_PERCENT):
            lowest = size
        lowest_of[size] = lowest
    return lowest_of


def _merge_adverts(
    kind: AdvertisedResource,
    selector: LabelPairs,
    taints: tuple[Taint, ...],
    members: Sequence[AdvertOnNode],
    labels: Sequence[Mapping[str, str]],
) -> GpuOffer:
    nodes = _mask_of_adverts(members)
    node_labels = [labels[node] for node in bit_positions(nodes)]
    return GpuOffer(
        resource=kind.resource,
        form=kind.form,
        product=kind.product,
        profile=kind.profile,
        memory_mib=kind.memory_mib,
        compute_milli=min(one.advert.compute_milli for one in members),
        gpu_milli=kind.gpu_milli,
        isolation=kind.isolation,
        replicas=kind.replicas,
        selector=selector,
        taints=taints,
        nodes=nodes,
        capacity=sum(one.advert.units for one in members),
        compute_capability=min(filter(None, map(compute_capability, node_labels)), default=None),
        driver=min(filter(None, map(driver_version, node_labels)), default=()),
        cuda=min(filter(None, map(cuda_version, node_labels)), default=()),
    )


def _mask_of_adverts(members: Iterable[AdvertOnNode]) -> int:
    return union_masks(1 << one.node for one in members)


def _offer_sort_key(offer: GpuOffer) -> tuple[object, ...]:
    return (
        offer.gpu_milli,
        offer.resource,
        offer.product,
        tuple(map(taint_sort_key, offer.taints)),
        offer.form.value,
        offer.replicas,
        offer.memory_mib or 0,
        offer.compute_milli,
        offer.nodes,
    )
