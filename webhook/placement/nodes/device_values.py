"""Rank nodes for pods that need devices of ResourceSlices, by what these devices leave of the cards of each node.

The order of a claim's choices comes first, as in the scheduler's own score. Then, as with slices by name, a node whose
cards are worth most with the devices allocated that the scheduler would take there, then the one whose cards are
fuller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import numpy as np

from webhook.model.bounded_cache import BoundedCache
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import ClaimSpec, DeviceClasses
from webhook.model.derived_values import derived_value
from webhook.model.dra.allocator import AllocationOutcome, NodeAllocation
from webhook.model.dra.device_pools import DevicePools, PoolId
from webhook.model.dra.device_selectors import SelectorRuntimeError
from webhook.model.dra.device_view import NOTHING_ALLOCATED, DeviceView, PoolAllocations
from webhook.model.dra.gpu_devices import share_milli
from webhook.model.dra.pod_devices import PodClaims, allocate_for_pod, claim_specs
from webhook.model.dra.pool_kinds import SIZE_KEYS, gpu_parts
from webhook.model.dra.published_devices import slice_kinds
from webhook.model.dra.resource_slices import DIGEST_BYTES, Device, PackedSlice
from webhook.model.dra.selector_advice import DeviceKey
from webhook.model.dra.selector_cache import keys_told_apart, select_device
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.node_masks import union_masks
from webhook.model.pods import Pod
from webhook.placement.capacity import FloatArray
from webhook.placement.mig import mig_card_value, mig_geometry

MEMORY_SLICE = "memory-slice-"
"""Start of the names of counters that say which part of a card's memory a MIG device uses up."""

FULL_MEMORY_MIB = 80 * 1024
"""Memory of a card that is worth 1000 thousandths."""

ProfileWeights = tuple[tuple[str, float], ...]
"""Requested MIG profiles, with weights."""


class DeviceValue(NamedTuple):
    """The value of one node for a pod.

    Attributes:
        choice: How far down the choices of `firstAvailable` the scheduler would have to go: 0 if it takes the first.
        loss: How much less its cards are worth with the pod's devices allocated.
        fullness: Which part of its cards claims have.
        whole: 1 if the pod would get whole cards alone, else 0.
    """

    choice: float
    loss: float
    fullness: float
    whole: float = 0.0


NO_VALUE = DeviceValue(1e9, 0.0, 0.0)
"""Value of a node that comes after all others."""

MAX_SEARCHES = 128
"""Nodes for which devices are searched for one pod: about 50 ms."""

MAX_KNOWN_VALUES = 16_384
MAX_KINDS_OF_NODES = 16
"""Sets of keys by which nodes are compared."""


class DeviceValues(NamedTuple):
    """The values of all nodes, each of shape (nodes,)."""

    choice: FloatArray
    loss: FloatArray
    fullness: FloatArray
    whole: FloatArray


def values_by_node(values: Mapping[int, DeviceValue], nodes: int) -> DeviceValues:
    """Return the values of some nodes among all; the others come last."""
    found = np.tile(np.array(NO_VALUE), (nodes, 1))
    if values:
        found[list(values)] = list(values.values())
    return DeviceValues(*found.T)


def find_device_value(
    found: NodeAllocation,
    specs: Sequence[ClaimSpec],
    pools: Collection[PoolId],
    view: DeviceView,
    profiles: ProfileWeights,
) -> DeviceValue:
    """Return what devices of claims leave of a node, whose pools are given."""
    loss, fullness = _value_loss(found, view, profiles), _fullness(pools, view)
    return DeviceValue(_choice_index(found, specs), loss, fullness, _are_whole_cards(found, view.pools))


def _are_whole_cards(found: NodeAllocation, pools: DevicePools) -> bool:
    """Return whether devices are whole cards that nobody else may use."""
    devices = [each for some in found.claims for each in some if not each.admin_access]
    parts = [
        gpu_parts(pools, PoolId(each.device.driver, each.device.pool)).get(each.device.device)
        for each in devices
        if each.consumed is None
    ]
    return len(parts) == len(devices) > 0 and all(part is not None and not part.is_partition for part in parts)


def _choice_index(found: NodeAllocation, specs: Sequence[ClaimSpec]) -> int:
    """Return the sum of the positions of the choices that requests would get."""
    taken = {(claim, each.request) for claim, some in enumerate(found.claims) for each in some}
    position = {
        (claim, f"{request.name}/{choice.name}"): index
        for claim, spec in enumerate(specs)
        for request in spec.devices.requests
        for index, choice in enumerate(request.first_available)
    }
    return sum(position.get(each, 0) for each in taken)


def _value_loss(found: NodeAllocation, view: DeviceView, profiles: ProfileWeights) -> float:
    """Return how much less the cards of a node are worth with some devices allocated.

    A device without a place on its card, such as one that exists already, is worth its part of the card. A card counts
    by its memory, because claims may get cards of different sizes.
    """
    pools, loss = view.pools, 0.0
    used: dict[tuple[PoolId, str], int] = {}
    for chosen in (each for some in found.claims for each in some if not each.admin_access):
        pool = PoolId(chosen.device.driver, chosen.device.pool)
        part = gpu_parts(pools, pool).get(chosen.device.device)
        if part is None:
            continue
        geometry, mask = mig_geometry(part.product), _memory_slices(part.device)
        if geometry is None or not mask or mask >> geometry.units or part.milli >= CARD_MILLI:
            consumed = chosen.consumed
            milli = part.milli if consumed is None else share_milli(part.milli, part.device, consumed)
            loss += worth_by_memory(milli, part.memory_mib, part.milli)
            continue
        value, card = mig_card_value(geometry, profiles), (pool, part.card)
        before = used[card] if card in used else _used_slices(pool, part.card, view)
        used[card] = before | mask
        lost = value.value_of(before) - value.value_of(used[card])
        loss += worth_by_memory(lost, part.card_memory_mib, CARD_MILLI)
    return round(loss, 1)


def worth_by_memory(milli: float, memory_mib: int | None, total: int) -> float:
    """Return what thousandths of a card are worth if all of `total` have some memory; themselves if it is unknown."""
    return milli if memory_mib is None or not total else CARD_MILLI * memory_mib / FULL_MEMORY_MIB * milli / total


def _used_slices(pool: PoolId, card: str, view: DeviceView) -> int:
    """Return the memory slices of a card that claims have, as a mask."""
    allocated, parts = view.allocated.get(pool, NOTHING_ALLOCATED), gpu_parts(view.pools, pool)
    found = (parts[name] for name in (*allocated.whole, *allocated.shared) if name in parts)
    return union_masks(_memory_slices(part.device) for part in found if part.card == card)


def _memory_slices(device: Device) -> int:
    """Return the memory slices that a device of NVIDIA's driver uses up, as a mask; 0 if it names none."""
    names = [name for each in device.consumes_counters for name in each.counters if name.startswith(MEMORY_SLICE)]
    numbers = [name.removeprefix(MEMORY_SLICE) for name in names]
    return union_masks(1 << int(number) for number in numbers if number.isdecimal() and len(number) < 3)


def _fullness(pools: Collection[PoolId], view: DeviceView) -> float:
    cards, taken = 0, 0
    for pool in pools:
        allocated, parts = view.allocated.get(pool, NOTHING_ALLOCATED), gpu_parts(view.pools, pool)
        cards += len({part.card for part in parts.values()})
        taken += sum(parts[name].milli for name in (*allocated.whole, *allocated.shared) if name in parts)
    return min(1.0, taken / (CARD_MILLI * cards)) if cards else 0.0


class NodeKinds(NamedTuple):
    """Nodes between which some selectors cannot tell while nothing is allocated.

    Attributes:
        pools: The pools of each node, in order.
        kinds: The first node of the same kind, by node.
    """

    pools: Sequence[tuple[PoolId, ...]]
    kinds: Sequence[int]


@derived_value(max_entries=MAX_KINDS_OF_NODES)
def node_kinds(pools: DevicePools, fleet: Fleet, keys: tuple[DeviceKey, ...] | None) -> NodeKinds:
    """Return the kinds of nodes by the keys that selectors read; None if they read more."""
    nodes, common = range(len(fleet.nodes)), pools.names_of_any_node
    of_node = [tuple(sorted({*pools.names_of_node(node), *common})) for node in nodes]
    if not pools.are_local:
        return NodeKinds(of_node, nodes)
    kind_of, first = slice_kinds(keys), dict[Hashable, int]()
    about = ([_pool_kind(name, pools, kind_of) for name in names] for names in of_node)
    return NodeKinds(of_node, [first.setdefault(tuple(each), node) for node, each in zip(nodes, about, strict=True)])


def _pool_kind(name: PoolId, pools: DevicePools, kind_of: Callable[[PackedSlice], Hashable]) -> Hashable:
    each = ((one.spec.pool.generation, one.spec.pool.resource_slice_count, kind_of(one)) for one in pools.slices[name])
    return (name.driver, *each)


class NeededDevices(NamedTuple):
    """The devices that a pod needs.

    Attributes:
        claims: The claims to allocate.
        view: The devices, and what is allocated.
    """

    pod: Pod
    claims: PodClaims
    view: DeviceView

    def find_on_node(self, node: int, fleet: Fleet) -> NodeAllocation:
        """Return the devices that the scheduler would take on a node."""
        return allocate_for_pod(self.pod, self.claims, node, self.view, fleet, select_device)


class DeviceValueFinder:
    """Finds the values of nodes for pods, and remembers those of nodes that are alike.

    Devices are searched once for all nodes with equal devices and equal allocations. What was found counts until
    slices, classes or the weights of profiles change.
    """

    def __init__(self) -> None:
        self._known: BoundedCache[Hashable, DeviceValue] = BoundedCache(MAX_KNOWN_VALUES)
        self._basis: tuple[object, ...] = ()

    def find(self, needed: NeededDevices, nodes: Iterable[int], fleet: Fleet, profiles: ProfileWeights) -> DeviceValues:
        """Return the values of nodes for a pod; those without devices for it come last.

        If there are more than `MAX_SEARCHES` different nodes, the emptiest also come last. The next pod of the
        same shape finds them.
        """
        view = needed.view
        self._forget_unless((view.pools, view.classes, profiles))
        specs = claim_specs(needed.pod, needed.claims, view.class_by_resource)
        shape = blake2b(
            msgspec.msgpack.encode((specs, sorted(needed.claims.extended))), digest_size=DIGEST_BYTES
        ).digest()
        kinds = node_kinds(view.pools, fleet, _keys_read(specs, view.classes))
        found, unknown = dict[int, DeviceValue](), dict[Hashable, list[int]]()
        plugins = [mask for name in sorted(needed.claims.extended) if (mask := fleet.nodes_advertising(name))]
        for node in nodes:
            state = tuple([_state_of(view.allocated.get(pool, NOTHING_ALLOCATED)) for pool in kinds.pools[node]])
            key: Hashable = (shape, kinds.kinds[node], _offered_by_plugins(node, plugins), state)
            if (value := self._known.get(key)) is not None:
                found[node] = value
            else:
                unknown.setdefault(key, []).append(node)
        fullest = sorted(unknown, key=lambda key: -_taken_count(kinds.pools[unknown[key][0]], view))
        for key in fullest[:MAX_SEARCHES]:
            node = unknown[key][0]
            first = kinds.kinds[node]
            alike = first if _offered_by_plugins(first, plugins) == _offered_by_plugins(node, plugins) else node
            value = self._known.store(key, _search_node(needed, node, alike, kinds, fleet, profiles))
            found.update(dict.fromkeys(unknown[key], value))
        return values_by_node(found, len(fleet.nodes))

    def _forget_unless(self, basis: tuple[object, ...]) -> None:
        """Forget all values unless they were found on this basis."""
        if len(self._basis) != len(basis) or any(a is not b for a, b in zip(basis, self._basis, strict=True)):
            self._known.clear()
            self._basis = basis


def _offered_by_plugins(node: int, masks: Iterable[int]) -> tuple[int, ...]:
    """Return which of some resources device plugins offer on a node; the masks are the nodes that offer each."""
    return tuple([mask >> node & 1 for mask in masks])


def _search_node(
    needed: NeededDevices, node: int, first: int, kinds: NodeKinds, fleet: Fleet, profiles: ProfileWeights
) -> DeviceValue:
    """Return the value of a node, by the devices of the first that is alike, because unpacking them takes long."""
    view = needed.view
    taken = [view.allocated.get(pool, NOTHING_ALLOCATED) for pool in kinds.pools[node]]
    alike = view._replace(allocated=dict(zip(kinds.pools[first], taken, strict=True)))
    anywhere = needed.claims._replace(nodes=fleet.all_nodes)
    found = needed._replace(claims=anywhere, view=alike).find_on_node(first, fleet)
    is_served = found.outcome is AllocationOutcome.ALLOCATED
    specs = claim_specs(needed.pod, needed.claims, view.class_by_resource)
    return find_device_value(found, specs, kinds.pools[first], alike, profiles) if is_served else NO_VALUE


def _keys_read(specs: Iterable[ClaimSpec], classes: DeviceClasses) -> tuple[DeviceKey, ...] | None:
    """Return the keys by which claims, and the values of devices, can tell devices apart; None if they read more."""
    choices = [choice for spec in specs for request in spec.devices.requests for choice in request.choices]
    selectors = [
        *[each.selectors for each in choices],
        *[classes[each.device_class_name].selectors for each in choices],
    ]
    constraints = [each for spec in specs for each in spec.devices.constraints]
    names = [name for each in constraints for name in (each.match_attribute, each.distinct_attribute) if name]
    attributes = [DeviceKey("attributes", *name.split("/", 1)) for name in names if "/" in name]
    try:
        read = keys_told_apart(each.cel.expression for some in selectors for each in some)
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return ()  # no node has a value
    return None if read is None else tuple(sorted({*read, *attributes, *SIZE_KEYS}))


def _state_of(allocated: PoolAllocations) -> Hashable:
    if not allocated.shared:
        return allocated.whole
    consumed = frozenset((name, frozenset(each.items())) for name, each in allocated.consumed.items())
    return (allocated.whole, allocated.shared, consumed)


def _taken_count(pools: Iterable[PoolId], view: DeviceView) -> int:
    taken = [view.allocated.get(pool, NOTHING_ALLOCATED) for pool in pools]
    return sum(len(each.whole) + len(each.shared) for each in taken)
