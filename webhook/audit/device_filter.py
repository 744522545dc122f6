"""The nodes that have devices for the claims of a pod, as the scheduler's plugin DynamicResources filters them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from webhook.cache.placement_input import PlacementInput
from webhook.cache.stored_objects import object_namespace
from webhook.model.dra.allocated_devices import NOTHING_ALLOCATED
from webhook.model.dra.allocator import CANNOT_ALLOCATE, AllocationOutcome, NodeAllocation
from webhook.model.dra.device_pools import NodePool, PoolId
from webhook.model.dra.device_view import NO_DEVICES, DeviceView, NamespaceClaims
from webhook.model.dra.devices import Device
from webhook.model.dra.gpu_devices import CARD_MILLI, CardUsage, chosen_milli, share_milli
from webhook.model.dra.pod_devices import (
    CANNOT_FIT,
    NOT_ON_NODE,
    PodClaims,
    allocate_for_pod,
    resolve_claims,
    with_devices_bound,
)
from webhook.model.dra.pool_kinds import cards_on_node, gpu_parts
from webhook.model.dra.selector_cache import select_device
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import Pod
from webhook.placement.mig import mig_card_value, mig_geometry
from webhook.placement.nodes.filtering import FilterReason
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.ranking import FULLNESS, SCORE, FillOrder, RankedNode

RESOURCE_CLAIMS = "resource claims"
MEMORY_SLICE = "memory-slice-"
"""Start of the names of counters that say which part of a card's memory a MIG device uses up."""

PARTLY_SERVED = "extended resources that device plugins offer on some nodes, and device classes on others"
ENDS_SCHEDULING = "running DynamicResources filter plugin"
DETAILS = {
    CANNOT_ALLOCATE: "it has too few free devices that match the pod's claims",
    CANNOT_FIT: "neither a device plugin nor a device class offers an extended resource of the pod here",
    NOT_ON_NODE: "a claim of the pod has devices of another node",
}
"""Our words for messages of the scheduler; the others name what is wrong."""

NO_REASONS: Mapping[int, FilterReason] = {}


class DeviceFilterResult(NamedTuple):
    """The devices that a pod needs.

    Attributes:
        reasons: Reasons against nodes by their position.
        unevaluated: Conditions that could not be evaluated; "" for none.
        claims: Its claims; None if it needs no devices, or nothing is known about them.
        allocations: The devices that they would get, by the position of the node.
    """

    reasons: Mapping[int, FilterReason] = NO_REASONS
    unevaluated: str = ""
    claims: PodClaims | None = None
    allocations: Mapping[int, NodeAllocation] = MappingProxyType({})


NO_DEVICES_NEEDED = DeviceFilterResult()


def find_device_reasons(pod: Pod, placement: PlacementInput, open_nodes: Callable[[], int]) -> DeviceFilterResult:
    """Return why nodes have no devices for a pod.

    Args:
        pod: The pod.
        placement: The cluster.
        open_nodes: Returns the mask of the nodes that no other filter excludes: the scheduler looks at the devices of
            these only. An error on one of them ends scheduling on all.
    """
    devices, fleet = placement.devices, placement.snapshot.fleet
    claims, unevaluated = _claims_of_pod(pod, placement)
    if claims is None:
        return DeviceFilterResult(unevaluated=unevaluated)
    found = {
        node: allocate_for_pod(pod, claims, node, devices, fleet, select_device) for node in bit_positions(open_nodes())
    }
    return _filter_result(found, fleet)._replace(claims=claims, allocations=found)


def _claims_of_pod(pod: Pod, placement: PlacementInput) -> tuple[PodClaims | None, str]:
    """Return the claims of a pod, None without any, and what cannot be evaluated about its devices."""
    devices, fleet, namespace = placement.devices, placement.snapshot.fleet, object_namespace(pod)
    if devices is NO_DEVICES:
        return None, RESOURCE_CLAIMS if names_devices(pod) else ""
    known = NamespaceClaims(devices.claims.get(namespace, {}), placement.claim_templates.get(namespace, {}))
    claims = resolve_claims(pod, known, devices, fleet)
    if claims.is_empty() and claims.nodes == fleet.all_nodes:
        return None, ""
    if claims.extended and _is_partly_served(claims, fleet):
        return None, PARTLY_SERVED
    return claims, ""


def unevaluated_devices(pod: Pod, placement: PlacementInput) -> str:
    """Return what cannot be evaluated about the devices of a pod, on any node; "" for nothing."""
    return _claims_of_pod(pod, placement)[1]


def requested_device_milli(pod: Pod, placement: PlacementInput) -> int:
    """Return the thousandths of GPUs that a pod would get on the first node that could serve it if it were empty."""
    claims, _ = _claims_of_pod(pod, placement)
    if claims is None:
        return 0
    fleet, empty = placement.snapshot.fleet, placement.devices._replace(allocated={})
    for node in bit_positions(claims.nodes):
        found = allocate_for_pod(pod, claims, node, empty, fleet, select_device)
        if found.outcome is AllocationOutcome.ALLOCATED:
            return chosen_milli(found, empty.pools.pools_of_node(node))
    return 0


def with_devices_of_pod(
    pod: Pod, placement: PlacementInput, result: DeviceFilterResult, node: int
) -> tuple[PlacementInput, int]:
    """Return the cluster after a pod got its devices on a node, and the thousandths of GPUs that these are."""
    found = result.allocations.get(node)
    if result.claims is None or found is None:
        return placement, 0
    before, name = placement.devices, placement.snapshot.fleet.nodes[node].name
    after = with_devices_bound(before, object_namespace(pod), result.claims, found, name)
    return replace(placement, devices=after), chosen_milli(found, before.pools.pools_of_node(node))


def rank_by_devices(
    ranked: Sequence[RankedNode], result: DeviceFilterResult, placement: PlacementInput, fill: FillOrder
) -> list[RankedNode]:
    """Return ranked nodes by what the devices that a pod would get leave of their cards, as slices by name are ranked.

    Of equal nodes the one whose cards are fuller comes first, or the emptier one.
    """
    sign = 1 if fill is FillOrder.PACK else -1
    found: list[RankedNode] = []
    for each in ranked:
        pools = placement.devices.pools.pools_of_node(each.node)
        key = list(each.key)
        key[SCORE] -= _value_loss(result.allocations[each.node], placement)
        key[FULLNESS] += sign * _fullness(pools, placement.devices)
        found.append(replace(each, score=key[SCORE], key=tuple(key)))
    return sorted(found, key=lambda each: each.key, reverse=True)


def _value_loss(found: NodeAllocation, placement: PlacementInput) -> float:
    """Return how much less the cards of a node are worth with some devices allocated.

    A device without a place on its card, such as one that exists already, is worth its part of the card.
    """
    pools, loss = placement.devices.pools, 0.0
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
        value, card = mig_card_value(geometry, placement.profiles), (pool, part.card)
        before = used[card] if card in used else _used_slices(pool, part.card, placement.devices)
        used[card] = before | mask
        loss += value.value_of(before) - value.value_of(used[card])
    return round(loss, 1)


def _used_slices(pool: PoolId, card: str, devices: DeviceView) -> int:
    """Return the memory slices of a card that claims have, as a mask."""
    allocated, parts = devices.allocated.get(pool, NOTHING_ALLOCATED), gpu_parts(devices.pools, pool)
    found = (parts[name] for name in (*allocated.whole, *allocated.shared) if name in parts)
    return union_masks(_memory_slices(part.device) for part in found if part.card == card)


def _memory_slices(device: Device) -> int:
    """Return the memory slices that a device of NVIDIA's driver uses up, as a mask; 0 if it names none."""
    names = [name for each in device.consumes_counters for name in each.counters if name.startswith(MEMORY_SLICE)]
    numbers = [name.removeprefix(MEMORY_SLICE) for name in names]
    return union_masks(1 << int(number) for number in numbers if number.isdecimal() and len(number) < 3)


def _fullness(pools: Sequence[NodePool], devices: DeviceView) -> float:
    """Return which part of a node's cards claims have."""
    cards, taken = 0, 0
    for pool in pools:
        allocated, parts = devices.allocated.get(pool.id, NOTHING_ALLOCATED), gpu_parts(devices.pools, pool.id)
        cards += len({part.card for part in parts.values()})
        taken += sum(parts[name].milli for name in (*allocated.whole, *allocated.shared) if name in parts)
    return min(1.0, taken / (CARD_MILLI * cards)) if cards else 0.0


def names_devices(pod: Pod) -> bool:
    """Return whether a pod has claims, or requests devices of a class by its implicit name."""
    named = any(name.startswith(DEVICE_CLASS_PREFIX) for name in effective_requests(pod))
    return bool(pod.spec.resource_claims) or named


def _is_partly_served(claims: PodClaims, fleet: Fleet) -> bool:
    return any(fleet.nodes_advertising(name) or name in fleet.extended_resources for name in claims.extended)


def _filter_result(found: Mapping[int, NodeAllocation], fleet: Fleet) -> DeviceFilterResult:
    for node, allocation in found.items():
        if allocation.outcome is AllocationOutcome.FAILED:
            text = f"{allocation.reason}, on node {fleet.nodes[node].name}: this ends scheduling on all nodes"
            reason = FilterReason(ENDS_SCHEDULING, text)
            return DeviceFilterResult(dict.fromkeys(range(len(fleet.nodes)), reason))
    reasons = {
        node: FilterReason(allocation.reason, DETAILS.get(allocation.reason, allocation.reason))
        for node, allocation in found.items()
        if allocation.outcome is AllocationOutcome.REJECTED
    }
    unknown = [each.reason for each in found.values() if each.outcome is AllocationOutcome.UNKNOWN]
    return DeviceFilterResult(reasons, f"{RESOURCE_CLAIMS}: {unknown[0]}" if unknown else "")


def without_served_resources(required: PodRequirements, placement: PlacementInput) -> PodRequirements:
    """Return what a pod requires of device plugins: not what only device classes serve in this cluster."""
    served, fleet = placement.devices.class_by_resource, placement.snapshot.fleet
    left = [each for each in required.gpu_resources if each[0] not in served or fleet.nodes_advertising(each[0])]
    if len(left) == len(required.gpu_resources):
        return required
    resource, count = left[0] if left else ("", 0)
    return replace(required, resource=resource, count=count, other_gpus=tuple(left[1:]), container_requests=())


def exclusions_by_devices(result: DeviceFilterResult) -> list[tuple[int, str]]:
    """Return the nodes that lack devices, as masks with the scheduler's message."""
    masks: dict[str, int] = {}
    for node, reason in result.reasons.items():
        masks[reason.scheduler_message] = masks.get(reason.scheduler_message, 0) | 1 << node
    return [(nodes, message) for message, nodes in masks.items()]


def published_cards(placement: PlacementInput) -> list[CardUsage]:
    """Return the GPUs of ResourceSlices, of nodes on which no device plugin advertises GPUs."""
    devices, nodes = placement.devices, placement.snapshot.fleet.nodes
    without_plugin = [i for i, node in enumerate(nodes) if not node.gpus]
    return [card for i in without_plugin for card in cards_on_node(devices, i)]
