"""GPUs of equal pools: read once for all pools whose slices share their content.

Thousands of nodes have equal cards. What their pools offer depends on the content of slices, on the texts that say what
a part of a card is, and on what claims have of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from webhook.model.bounded_cache import BoundedCache
from webhook.model.derived_values import derived_value
from webhook.model.dra.device_pools import DevicePools, NodePool, PoolId
from webhook.model.dra.device_view import NOTHING_ALLOCATED, DeviceView
from webhook.model.dra.gpu_devices import (
    GPU_DRIVERS,
    CardUsage,
    GpuPart,
    card_identity,
    cards_of_pool,
    gpu_parts_of_pool,
)
from webhook.model.dra.published_devices import slice_kinds
from webhook.model.dra.resource_slices import PackedSlice
from webhook.model.dra.selector_advice import DeviceKey
from webhook.model.fleet import Fleet

MAX_KNOWN_CARDS = 1024
"""Kinds of pools, with their allocated devices, whose cards are cached."""

SIZE_KEYS = tuple(
    DeviceKey("attributes", domain, name)
    for domain, names in GPU_DRIVERS.items()
    for name in ("type", "productName", names.profile)
)
_CARD_KEYS = tuple(
    DeviceKey("attributes", *(names.parent.split("/") if "/" in names.parent else (domain, names.parent)))
    for domain, names in GPU_DRIVERS.items()
)

GpuParts = Mapping[str, GpuPart]
"""Parts of cards by the name of the device."""


class _KnownParts(NamedTuple):
    """The parts of cards in some pools, and those in pools of one kind, which share them."""

    of_pool: dict[PoolId, GpuParts]
    of_kind: dict[Hashable, GpuParts]
    kind_of_slice: Callable[[PackedSlice], Hashable]
    kind_with_card: Callable[[PackedSlice], Hashable]


@derived_value()
def _known_parts(_pools: DevicePools) -> _KnownParts:
    return _KnownParts({}, {}, slice_kinds(SIZE_KEYS), slice_kinds((*SIZE_KEYS, *_CARD_KEYS)))


def gpu_parts(pools: DevicePools, pool: PoolId) -> GpuParts:
    """Return the parts of cards in a pool; {} if it is incomplete or invalid."""
    known = _known_parts(pools)
    if (found := known.of_pool.get(pool)) is None:
        kind = _pool_kind(pools, pool)
        if kind not in known.of_kind:
            whole = pools.whole_pool(pool)
            known.of_kind[kind] = gpu_parts_of_pool(whole) if whole is not None else {}
        found = known.of_pool[pool] = known.of_kind[kind]
    return found


def _pool_kind(pools: DevicePools, pool: PoolId) -> Hashable:
    """Return what decides about the cards of a pool, names of its devices included."""
    known, slices = _known_parts(pools), pools.slices.get(pool, ())
    # Without counters, what a part is of its card depends on the other parts, which may be in another slice.
    is_plain = len(slices) > 1 and not any(one.counters for one in slices)
    kind_of = known.kind_with_card if is_plain else known.kind_of_slice
    each = ((one.spec.pool.generation, one.spec.pool.resource_slice_count, kind_of(one)) for one in slices)
    return (pool.driver, *each)


class PublishedCard(NamedTuple):
    """A card, and its pool: names of devices are unique in a pool only.

    Attributes:
        identity: Its UUID or PCI address; "" if its driver does not publish it.
    """

    pool: PoolId
    usage: CardUsage
    identity: str

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.usage.name or self.identity or self.usage.devices[0]


def cards_on_node(devices: DeviceView, node: int) -> list[PublishedCard]:
    """Return the cards that ResourceSlices publish for a node, in published order."""
    return [card for pool in devices.pools.pools_of_node(node) for card in _published_cards(pool, devices)]


def _published_cards(pool: NodePool, devices: DeviceView) -> list[PublishedCard]:
    by_name = {each.device.name: each.device for each in pool.devices}
    cards = _cards_on_node(pool, devices)
    return [PublishedCard(pool.id, card, card_identity(pool, by_name[card.devices[0]])) for card in cards]


class NodeCards(NamedTuple):
    """Cards that count on a node.

    Attributes:
        cards: Those of its own, and those that it shares with other nodes and that do not count on one of these.
        sharing: The other nodes as a mask, by the pool that they share.
        unusable: Pools that the node sees and of which nothing can be allocated.
    """

    cards: list[CardUsage]
    sharing: dict[PoolId, int]
    unusable: Sequence[NodePool]


def cards_by_node(devices: DeviceView, nodes: Iterable[int]) -> dict[int, NodeCards]:
    """Return the published cards of some nodes. A card for several nodes counts on the first of them."""
    several, counted_on = devices.pools.names_of_any_node, dict[tuple[PoolId, str], int]()
    found = dict[int, NodeCards]()
    for node in nodes:
        pools = devices.pools.pools_of_node(node)
        found[node] = NodeCards([], {}, [pool for pool in pools if pool.incomplete or pool.invalid])
        published = [(pool.id, card) for pool in pools for card in _cards_on_node(pool, devices)]
        for pool_id, card in published:
            first = counted_on.setdefault((pool_id, card.devices[0]), node) if pool_id in several else node
            if first == node:
                found[node].cards.append(card)
            else:
                sharing = found[first].sharing
                sharing[pool_id] = sharing.get(pool_id, 0) | 1 << node
    return found


def product_by_node(view: DeviceView, fleet: Fleet) -> dict[str, str]:
    """Return the product of the first card that ResourceSlices publish on each node."""
    empty = view._replace(allocated={})
    pools = ((node.name, view.pools.pools_of_node(i)) for i, node in enumerate(fleet.nodes))
    cards = ((name, [card for pool in some for card in _cards_on_node(pool, empty)]) for name, some in pools)
    return {name: some[0].product for name, some in cards if some}


def _cards_on_node(pool: NodePool, devices: DeviceView) -> tuple[CardUsage, ...]:
    cards = _cards_by_claims(pool, devices)
    return cards if devices.knows_claims else tuple([card.with_unknown_claims() for card in cards])


def _cards_by_claims(pool: NodePool, devices: DeviceView) -> tuple[CardUsage, ...]:
    allocated = devices.allocated.get(pool.id, NOTHING_ALLOCATED)
    if allocated.consumed or pool.unreachable or not all(each.usable for each in pool.devices):
        return tuple(cards_of_pool(pool, allocated))
    known = _known_cards(devices.pools)
    key = (_pool_kind(devices.pools, pool.id), allocated.whole, allocated.shared)
    found = known.get(key)
    return found if found is not None else known.store(key, tuple(cards_of_pool(pool, allocated)))


@derived_value()
def _known_cards(_pools: DevicePools) -> BoundedCache[Hashable, tuple[CardUsage, ...]]:
    return BoundedCache(MAX_KNOWN_CARDS)
