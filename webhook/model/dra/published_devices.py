"""The devices of a cluster between which some selectors can tell, one of each kind.

Slices of equal cards share their content, apart from texts such as UUIDs, which few selectors read. So slices are of
one kind if their content is one and the texts of the attributes that are read are equal, and so are nodes with such
slices. Slices that are being replaced count too. What was found is kept with the pools: it changes when a slice does.

Most selectors read nothing in which equal cards differ, and share their kinds: those are found once, in a live cluster
before a review needs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.derived_values import derived_value
from webhook.model.dra.device_pools import DevicePools, PoolId
from webhook.model.dra.gpu_devices import GPU_DRIVERS
from webhook.model.dra.resource_slices import Device, PackedSlice, SliceContent
from webhook.model.dra.selector_advice import DeviceKey
from webhook.model.fleet import Fleet
from webhook.model.node_masks import ALL_NODES

MAX_SLICES = 10_000
"""Slices that are compared one by one, if selectors tell equal cards apart: more take longer than a review may."""

MANY_SLICES = f"above {MAX_SLICES}, claims whose selectors tell equal cards apart are not compared with devices"

MAX_KINDS = 512
"""Kinds of slices, or of nodes, that are looked at: more take too long."""

MAX_DEVICES = 4_096
"""Devices of these slices: more take too long."""

MAX_CACHED_KEYS = 64
"""Sets of keys for which kinds are kept."""


CARD_KEYS = tuple(
    DeviceKey("attributes", driver, name)
    for driver, names in GPU_DRIVERS.items()
    for name in ("type", "productName", "brand", "architecture", names.profile)
)
"""Attributes that may differ between cards whose slices are otherwise equal."""


class PublishedDevice(NamedTuple):
    """A device, and its pool.

    Attributes:
        nodes: Mask of the nodes whose slices have such a device; 0 if a slice does not name its node.
        named_nodes: Mask of the nodes that slices with such a device name, whatever other slices have it.
    """

    pool: PoolId
    device: Device
    nodes: int
    named_nodes: int


class PublishedDevices(NamedTuple):
    """One device of each kind.

    Attributes:
        kinds: The devices.
        total: How many devices the cluster has.
        values: How many attributes and capacities the kinds have.
        nodes: A node of each kind, by index; None if slices without the name of a node belong to many of them.
    """

    kinds: tuple[PublishedDevice, ...]
    total: int
    values: int
    nodes: tuple[int, ...] | None

    def on_nodes(self, mask: int) -> PublishedDevices:
        """Return these with only the kinds that nodes of a mask have, or that slices without a node have."""
        if mask == ALL_NODES:
            return self
        return self._replace(kinds=tuple(one for one in self.kinds if one.nodes & mask or not one.nodes))


SliceKind = tuple[object, ...]


@derived_value(max_entries=MAX_CACHED_KEYS)
def published_devices(pools: DevicePools, fleet: Fleet, keys: tuple[DeviceKey, ...] | None) -> PublishedDevices:
    """Return one device of each kind, by the keys that selectors read; None if they read more.

    Raises:
        UnmodeledExpressionError: There are too many kinds, or too many slices that differ in these keys alone.
    """
    cards = cards_by_kind(pools, fleet)
    if cards is not None and keys is not None and cards.are_alike_in(keys):
        return cards.devices
    if pools.slice_count > MAX_SLICES:
        raise UnmodeledExpressionError(f"there are more than {MAX_SLICES} slices")
    kind_of = slice_kinds(keys)
    every = ((pool.driver, *kind_of(one)) for pool, some in pools.slices.items() for one in some)
    return _devices_by_kind(pools, fleet, every)


@derived_value(max_entries=MAX_CACHED_KEYS)
def nodes_by_equal_values(
    pools: DevicePools, fleet: Fleet, keys: tuple[DeviceKey, ...] | None, compared: tuple[DeviceKey, ...]
) -> tuple[int, ...] | None:
    """Return a node of each kind, by keys that selectors read and by which devices have equal values of other keys.

    None if slices without the name of a node belong to many of them, or if there are too many kinds.

    Raises:
        UnmodeledExpressionError: There are too many slices.
    """
    if pools.slice_count > MAX_SLICES:
        raise UnmodeledExpressionError(f"there are more than {MAX_SLICES} slices")
    kind_of, values_of = slice_kinds(keys), slice_kinds(compared)
    of_node: defaultdict[str, list[tuple[SliceKind, SliceKind]]] = defaultdict(list)
    for pool, one in ((pool, one) for pool, some in pools.slices.items() for one in some):
        if not (one.spec.node_name or one.counters):
            return None
        of_node[one.spec.node_name or ""].append(((pool.driver, *kind_of(one)), values_of(one)))
    first: dict[tuple[object, ...], int] = {}
    for index, node in enumerate(fleet.nodes):
        if node.name in of_node:
            numbers: dict[object, int] = {}
            kinds, values = zip(*of_node[node.name], strict=True)
            equal = [numbers.setdefault(value, len(numbers)) for some in values for value in some]
            first.setdefault((*kinds, *equal), index)
    return tuple(first.values()) if len(first) <= MAX_KINDS else None


class CardKinds(NamedTuple):
    """One device of each kind, by content and what names a card's product, and what slices of one kind have in common.

    Attributes:
        slices: A slice of each kind, and the positions of the texts that all slices of that kind share.
    """

    devices: PublishedDevices
    slices: tuple[tuple[PackedSlice, frozenset[int]], ...]

    def are_alike_in(self, keys: Sequence[DeviceKey]) -> bool:
        """Return whether slices of one kind have the same values under some keys."""
        return all(
            common.issuperset(_positions_read(one.content, keys, one.spec.driver)) for one, common in self.slices
        )


@derived_value()
def cards_by_kind(pools: DevicePools, fleet: Fleet) -> CardKinds | None:
    """Return the kinds of cards, which hardly any selector tells apart further; None if there are too many.

    That looks at every slice once, and at none again for other selectors.
    """
    kind_of = slice_kinds(CARD_KEYS)
    kinds = [(pool.driver, *kind_of(one)) for pool, some in pools.slices.items() for one in some]
    try:
        devices = _devices_by_kind(pools, fleet, kinds)
    except UnmodeledExpressionError:
        return None
    slices: dict[SliceKind, _AlikeSlices] = {}
    for kind, one in zip(kinds, (one for some in pools.slices.values() for one in some), strict=True):
        known = slices.get(kind)
        if known is None:
            slices[kind] = _AlikeSlices(one, range(len(one.texts)))
        else:
            known.compare(one.texts)
    return CardKinds(devices, tuple((each.first, frozenset(each.common)) for each in slices.values()))


class _AlikeSlices:
    """Slices of one kind, and the positions of the texts that all of them share.

    Attributes:
        first: One of them.
        common: The positions.
    """

    def __init__(self, first: PackedSlice, common: Iterable[int]) -> None:
        self.first = first
        self._set_common(list(common))

    def _set_common(self, common: Sequence[int]) -> None:
        self.common = common
        # Twice the first, so that a single one gives a tuple too.
        self._read = itemgetter(common[0], *common) if common else None
        self._texts = self._read(self.first.texts) if self._read is not None else ()

    def compare(self, texts: tuple[str, ...]) -> None:
        """Remove the positions of texts in which another slice differs."""
        if self._read is not None and self._read(texts) != self._texts:
            self._set_common([i for i in self.common if texts[i] == self.first.texts[i]])


def _devices_by_kind(pools: DevicePools, fleet: Fleet, kinds_of_slices: Iterable[SliceKind]) -> PublishedDevices:
    """Return one device of each kind of slices.

    Args:
        pools: The slices.
        fleet: The nodes.
        kinds_of_slices: The kind of each slice.

    Raises:
        UnmodeledExpressionError: There are too many kinds.
    """
    slices: dict[SliceKind, tuple[PoolId, PackedSlice]] = {}
    of_node: defaultdict[str, list[SliceKind]] = defaultdict(list)
    total, are_local = 0, True
    every = ((pool, one) for pool, some in pools.slices.items() for one in some)
    for kind, (pool, one) in zip(kinds_of_slices, every, strict=True):
        slices.setdefault(kind, (pool, one))
        if len(slices) > MAX_KINDS:
            raise UnmodeledExpressionError(f"there are more than {MAX_KINDS} kinds of slices")
        total += len(one.content.devices)
        are_local = are_local and bool(one.spec.node_name or one.counters)
        of_node[one.spec.node_name or ""].append(kind)
    if sum(len(one.content.devices) for _, one in slices.values()) > MAX_DEVICES:
        raise UnmodeledExpressionError(f"there are more than {MAX_DEVICES} kinds of devices")
    masks, unnamed = _nodes_by_kind(of_node, fleet), frozenset(of_node.get("", ()))
    kinds = tuple(
        PublishedDevice(pool, device, 0 if kind in unnamed else masks[kind], masks[kind])
        for kind, (pool, one) in slices.items()
        for device in one.devices()
    )
    values = sum(len(each.device.attributes) + len(each.device.capacity) for each in kinds)
    return PublishedDevices(kinds, total, values, _node_kinds(of_node, fleet) if are_local else None)


def slice_kinds(keys: tuple[DeviceKey, ...] | None) -> Callable[[PackedSlice], SliceKind]:
    """Return a function that returns the kind of a slice: its content, and the texts that are read."""
    positions: dict[int, list[int]] = {}

    def kind_of(one: PackedSlice) -> SliceKind:
        content = one.content
        if keys is None:
            return (id(content), one.texts)
        if id(content) not in positions:
            positions[id(content)] = sorted(set(_positions_read(content, keys, one.spec.driver)))
        return (id(content), *[one.texts[position] for position in positions[id(content)]])

    return kind_of


def _positions_read(content: SliceContent, keys: Sequence[DeviceKey], driver: str) -> Iterator[int]:
    names = [name for key in keys if key.group == "attributes" for name in key.published_names(driver)]
    for device in content.devices:
        for name in names:
            attribute = device.attributes.get(name)
            if attribute is not None and attribute.string_value is not None:
                yield int(attribute.string_value)


def _nodes_by_kind(of_node: Mapping[str, Sequence[SliceKind]], fleet: Fleet) -> Mapping[SliceKind, int]:
    """Return the mask of the nodes that the slices of each kind name."""
    masks: dict[SliceKind, int] = {}
    for name, kinds in of_node.items():
        for kind in kinds:
            masks[kind] = masks.get(kind, 0) | (1 << fleet.by_name[name] if name in fleet.by_name else 0)
    return masks


def _node_kinds(of_node: dict[str, list[SliceKind]], fleet: Fleet) -> tuple[int, ...] | None:
    """Return the first node with each set of slices; None if there are too many."""
    first: dict[tuple[SliceKind, ...], int] = {}
    for index, node in enumerate(fleet.nodes):
        if node.name in of_node:
            first.setdefault(tuple(of_node[node.name]), index)
    return tuple(first.values()) if len(first) <= MAX_KINDS else None
