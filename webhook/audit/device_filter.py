"""The nodes that have devices for the claims of a pod, as the scheduler's plugin DynamicResources filters them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from webhook.cache.placement_input import PlacementInput
from webhook.cache.stored_objects import object_namespace
from webhook.model.dra.allocator import CANNOT_ALLOCATE, AllocationOutcome, NodeAllocation
from webhook.model.dra.device_view import NO_DEVICES, NamespaceClaims
from webhook.model.dra.pod_devices import CANNOT_FIT, NOT_ON_NODE, PodClaims, allocate_for_pod, resolve_claims
from webhook.model.dra.selector_cache import select_device
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.node_masks import bit_positions
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import Pod
from webhook.placement.nodes.filtering import FilterReason
from webhook.placement.nodes.pod_requirements import PodRequirements

RESOURCE_CLAIMS = "resource claims"
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
        needed: True if it needs devices.
    """

    reasons: Mapping[int, FilterReason] = NO_REASONS
    unevaluated: str = ""
    needed: bool = False


def find_device_reasons(pod: Pod, placement: PlacementInput, open_nodes: Callable[[], int]) -> DeviceFilterResult:
    """Return why nodes have no devices for a pod.

    Args:
        pod: The pod.
        placement: The cluster.
        open_nodes: Returns the mask of the nodes that no other filter excludes: the scheduler looks at the devices of
            these only. An error on one of them ends scheduling on all.
    """
    devices, fleet = placement.devices, placement.snapshot.fleet
    if devices is NO_DEVICES:
        return DeviceFilterResult(unevaluated=RESOURCE_CLAIMS if names_devices(pod) else "")
    namespace = object_namespace(pod)
    templates = placement.claim_templates.get(namespace, {})
    claims = resolve_claims(pod, NamespaceClaims(devices.claims.get(namespace, {}), templates), devices, fleet)
    if claims.is_empty() and claims.nodes == fleet.all_nodes:
        return DeviceFilterResult()
    if claims.extended and _is_partly_served(claims, fleet):
        return DeviceFilterResult(unevaluated=PARTLY_SERVED)
    found = {
        node: allocate_for_pod(pod, claims, node, devices, fleet, select_device) for node in bit_positions(open_nodes())
    }
    return _filter_result(found, fleet)


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
            return DeviceFilterResult(dict.fromkeys(range(len(fleet.nodes)), reason), needed=True)
    reasons = {
        node: FilterReason(allocation.reason, DETAILS.get(allocation.reason, allocation.reason))
        for node, allocation in found.items()
        if allocation.outcome is AllocationOutcome.REJECTED
    }
    unknown = [each.reason for each in found.values() if each.outcome is AllocationOutcome.UNKNOWN]
    return DeviceFilterResult(reasons, f"{RESOURCE_CLAIMS}: {unknown[0]}" if unknown else "", needed=True)


def without_served_resources(required: PodRequirements, placement: PlacementInput) -> PodRequirements:
    """Return what a pod requires of device plugins: not what only device classes serve in this cluster."""
    served, fleet = placement.devices.class_by_resource, placement.snapshot.fleet
    left = [each for each in required.gpu_resources if each[0] not in served or fleet.nodes_advertising(each[0])]
    if len(left) == len(required.gpu_resources):
        return required
    resource, count = left[0] if left else ("", 0)
    return replace(required, resource=resource, count=count, other_gpus=tuple(left[1:]), container_requests=())
