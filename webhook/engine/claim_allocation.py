"""Whether the nodes of a cluster could allocate claims if all their devices were free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from webhook.engine.new_nodes import view_new_devices
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import (
    ClaimRequest,
    ClaimSpec,
    DeviceClasses,
    DeviceRequest,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.derived_values import derived_value
from webhook.model.dra.allocator import (
    AllocationOutcome,
    NamedClaim,
    NodeAllocation,
    SelectDevice,
    allocate_on_node,
)
from webhook.model.dra.device_pools import DevicePools
from webhook.model.dra.device_selectors import SelectorRuntimeError
from webhook.model.dra.published_devices import MAX_KINDS, nodes_by_equal_values, published_devices
from webhook.model.dra.resource_slices import Device
from webhook.model.dra.selector_advice import attribute_key
from webhook.model.dra.selector_cache import keys_told_apart, select_device
from webhook.model.field_paths import FieldPath
from webhook.model.fleet import Fleet
from webhook.model.node_masks import bit_positions, union_masks

MAX_STEPS = 3_000
"""Devices that are read, and devices and requests that are tried, on all nodes together: about 15 ms."""

BYTES_PER_SELECTOR = 64
"""What a selector counts for besides its text."""


def requests_of(spec: ClaimSpec, path: FieldPath) -> Iterator[tuple[DeviceRequest, FieldPath]]:
    for index, request in enumerate(spec.devices.requests):
        yield from choices_of(request, (*path, "requests", index))


def choices_of(request: ClaimRequest, path: FieldPath) -> Iterator[tuple[DeviceRequest, FieldPath]]:
    if request.exactly is not None:
        yield request.exactly, (*path, "exactly")
    for place, choice in enumerate(request.first_available):
        yield choice, (*path, "firstAvailable", place)


def expressions_of(request: DeviceRequest, classes: DeviceClasses) -> Iterator[str]:
    name = request.device_class_name
    of_class = classes[name].selectors if name in classes else ()
    yield from (selector.cel.expression for selector in (*of_class, *request.selectors))


def size_of_selectors(spec: ClaimSpec, classes: DeviceClasses) -> int:
    """Return the bytes of all expressions of a claim, those of its classes included, and some for each."""
    expressions = (one for request, _ in requests_of(spec, ()) for one in expressions_of(request, classes))
    return sum(len(one.encode()) + BYTES_PER_SELECTOR for one in expressions)


@derived_value()
def nodes_of_slices(pools: DevicePools, fleet: Fleet) -> int:
    """Return the mask of the nodes that slices name; all nodes if slices name none."""
    return fleet.all_nodes if pools.names_of_any_node else union_masks(1 << index for index in pools.nodes())


def new_nodes_have_devices(specs: Sequence[ClaimSpec], view: ClusterView, nodes: int = -1) -> bool:
    """Return whether a new node of a mask may have the devices of claims, as far as its autoscaler can know.

    The autoscaler adds no node if a selector is an error on the devices that it expects.
    """
    new = view_new_devices(view)
    if new is None or not nodes & new.fleet.all_nodes:
        return False
    try:
        return allocate_anywhere(specs, new, nodes) in (AllocationOutcome.ALLOCATED, AllocationOutcome.UNKNOWN)
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return False


def allocate_anywhere(specs: Sequence[ClaimSpec], view: ClusterView, nodes: int = -1) -> AllocationOutcome:
    """Return whether some node of a mask could allocate claims together if all its devices were free."""
    outcomes = (found.outcome for _, found in allocations(specs, view, nodes))
    return next((one for one in outcomes if one is not AllocationOutcome.REJECTED), AllocationOutcome.REJECTED)


def other_nodes_may_allocate(specs: Sequence[ClaimSpec], view: ClusterView, nodes: int) -> bool:
    """Return whether a node may be able to allocate claims that no node of a mask can, as far as is known.

    A device counts if a selector is an error on it: the selector may be mended.
    """
    if nodes & view.fleet.all_nodes == view.fleet.all_nodes:
        return False
    try:
        found = allocations(specs, view, selects=_may_select)
        return any(one.outcome is not AllocationOutcome.REJECTED for _, one in found)
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return True


def _may_select(expression: str, driver: str, device: Device) -> bool:
    try:
        return select_device(expression, driver, device)
    except SelectorRuntimeError:
        return True


def allocations(
    specs: Sequence[ClaimSpec], view: ClusterView, nodes: int = -1, selects: SelectDevice = select_device
) -> Iterator[tuple[int, NodeAllocation]]:
    """Yield what a node of each kind would allocate if all its devices were free, until that takes too long."""
    pools, steps, shared = view.devices.pools, 0, view.devices.pools.shared_counter_names
    claims = [NamedClaim(f"claim {index}", spec) for index, spec in enumerate(specs)]
    for node in _nodes_to_try(specs, view, nodes):
        of_node = pools.pools_of_node(node)
        found = allocate_on_node(
            claims, of_node, {}, view.classes, selects, shared_names=shared, max_steps=MAX_STEPS - steps
        )
        yield node, found
        steps += found.steps + sum(len(pool.devices) for pool in of_node)
        if steps > MAX_STEPS:
            yield node, NodeAllocation(AllocationOutcome.UNKNOWN)
            return


def _nodes_to_try(specs: Sequence[ClaimSpec], view: ClusterView, mask: int) -> Sequence[int]:
    """Return a node of each kind, or those of a mask of a few.

    Raises:
        UnmodeledExpressionError: There are too many.
    """
    pools, fleet = view.devices.pools, view.fleet
    candidates = mask & nodes_of_slices(pools, fleet)
    if candidates != nodes_of_slices(pools, fleet):
        nodes: Sequence[int] = list(bit_positions(candidates))
    else:
        requests = [request for spec in specs for request, _ in requests_of(spec, ())]
        keys = keys_told_apart(one for request in requests for one in expressions_of(request, view.classes))
        constraints = [one for spec in specs for one in spec.devices.constraints]
        compared = {attribute_key(one.match_attribute or one.distinct_attribute or "") for one in constraints}
        if compared:
            kinds = nodes_by_equal_values(pools, fleet, keys, tuple(sorted(compared)))
        else:
            kinds = published_devices(pools, fleet, keys).nodes
        nodes = range(len(fleet.nodes)) if kinds is None else kinds
    if len(nodes) > MAX_KINDS:
        raise UnmodeledExpressionError(f"there are more than {MAX_KINDS} kinds of nodes")
    return nodes
