"""Rank nodes for pods that need devices of ResourceSlices, by what these devices leave of the cards of each node.

As with slices by name, a node comes first whose cards are worth most with the devices allocated that the scheduler
would take there, then the one whose cards are fuller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from webhook.model.dra.allocated_devices import NOTHING_ALLOCATED
from webhook.model.dra.allocator import NodeAllocation
from webhook.model.dra.device_pools import PoolId
from webhook.model.dra.device_view import DeviceView
from webhook.model.dra.devices import Device
from webhook.model.dra.gpu_devices import CARD_MILLI, share_milli
from webhook.model.dra.pool_kinds import gpu_parts
from webhook.model.fleet import Fleet
from webhook.model.node_masks import union_masks
from webhook.placement.capacity import FloatArray
from webhook.placement.mig import mig_card_value, mig_geometry
from webhook.placement.nodes.pod_requirements import PodRequirements

MEMORY_SLICE = "memory-slice-"
"""Start of the names of counters that say which part of a card's memory a MIG device uses up."""

ProfileWeights = tuple[tuple[str, float], ...]
"""Requested MIG profiles, with weights."""


class DeviceValue(NamedTuple):
    """The value of one node for a pod.

    Attributes:
        loss: How much less its cards are worth with the pod's devices allocated.
        fullness: Which part of its cards claims have.
    """

    loss: float
    fullness: float


class DeviceValues(NamedTuple):
    """The values of all nodes, each of shape (nodes,)."""

    loss: FloatArray
    fullness: FloatArray


def values_by_node(values: Mapping[int, DeviceValue], nodes: int) -> DeviceValues:
    """Return the values of some nodes among all; the others have none."""
    loss, fullness = np.zeros(nodes), np.zeros(nodes)
    some = np.array(list(values), np.int64)
    loss[some], fullness[some] = ([each[part] for each in values.values()] for part in (0, 1))
    return DeviceValues(loss, fullness)


def find_device_value(
    found: NodeAllocation, pools: Collection[PoolId], view: DeviceView, profiles: ProfileWeights
) -> DeviceValue:
    """Return what devices leave of a node, whose pools are given."""
    return DeviceValue(_value_loss(found, view, profiles), _fullness(pools, view))


def _value_loss(found: NodeAllocation, view: DeviceView, profiles: ProfileWeights) -> float:
    """Return how much less the cards of a node are worth with some devices allocated.

    A device without a place on its card, such as one that exists already, is worth its part of the card.
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
            loss += part.milli if chosen.consumed is None else share_milli(part.milli, part.device, chosen.consumed)
            continue
        value, card = mig_card_value(geometry, profiles), (pool, part.card)
        before = used[card] if card in used else _used_slices(pool, part.card, view)
        used[card] = before | mask
        loss += value.value_of(before) - value.value_of(used[card])
    return round(loss, 1)


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


def without_served_resources(required: PodRequirements, view: DeviceView, fleet: Fleet) -> PodRequirements:
    """Return what a pod requires of device plugins: not what only device classes serve in this cluster."""
    served = view.class_by_resource
    left = [each for each in required.gpu_resources if each[0] not in served or fleet.nodes_advertising(each[0])]
    if len(left) == len(required.gpu_resources):
        return required
    resource, count = left[0] if left else ("", 0)
    return replace(required, resource=resource, count=count, other_gpus=tuple(left[1:]), container_requests=())
