"""The nodes that have devices for the claims of a pod, as the scheduler's plugin DynamicResources filters them.

The devices that an object's claims would get on the nodes of a cluster, in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from webhook.audit.evaluate import CLAIMS, POD, EvaluationContext, build_admission_request
from webhook.audit.object_files import SourceObject
from webhook.cache.placement_input import PlacementInput
from webhook.cache.stored_objects import object_namespace
from webhook.engine.workload_review import pods_of_workload
from webhook.errors import ReviewError
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.allocator import CANNOT_ALLOCATE, AllocationOutcome, ChosenDevice, NodeAllocation
from webhook.model.dra.device_pools import NodePool
from webhook.model.dra.device_view import NO_DEVICES, NamespaceClaims
from webhook.model.dra.gpu_devices import CardUsage, chosen_milli, gpus_of_pool
from webhook.model.dra.pod_devices import (
    CANNOT_FIT,
    NOT_ON_NODE,
    PodClaims,
    allocate_for_pod,
    claim_specs,
    resolve_claims,
    with_devices_bound,
)
from webhook.model.dra.pool_kinds import cards_by_node
from webhook.model.dra.selector_cache import select_device
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.node_masks import bit_positions
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import ObjectMeta, Pod, PodResourceClaim, PodSpec
from webhook.placement.nodes.device_values import DeviceValue, DeviceValues, find_device_value, values_by_node
from webhook.placement.nodes.filtering import FilterReason
from webhook.report.text import pluralize

RESOURCE_CLAIMS = "resource claims"
UNREAD_CLAIMS = f"{RESOURCE_CLAIMS}: they cannot be read, so all devices count as free"

ENDS_SCHEDULING = "running DynamicResources filter plugin"
DETAILS = {
    CANNOT_ALLOCATE: "it has too few free devices that match the pod's claims and whose taints these tolerate",
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
    result = _filter_result(found, fleet)
    return result._replace(claims=claims, allocations=found, unevaluated=unevaluated or result.unevaluated)


def _claims_of_pod(pod: Pod, placement: PlacementInput) -> tuple[PodClaims | None, str]:
    """Return the claims of a pod that can be evaluated, None without any, and what cannot be about its devices."""
    devices, fleet, namespace = placement.devices, placement.snapshot.fleet, object_namespace(pod)
    if devices is NO_DEVICES:
        return None, RESOURCE_CLAIMS if names_devices(pod) else ""
    known = NamespaceClaims(devices.claims.get(namespace, {}), placement.claim_templates.get(namespace, {}))
    unread = "" if devices.knows_claims else UNREAD_CLAIMS
    claims = resolve_claims(pod, known, devices, fleet)
    if claims.unknown:
        return None, f"{RESOURCE_CLAIMS}: {claims.unknown}"
    is_anywhere = claims.is_empty() and claims.nodes == fleet.all_nodes
    return (None, "") if is_anywhere else (claims, unread)


def unevaluated_devices(pod: Pod, placement: PlacementInput) -> str:
    """Return what cannot be evaluated about the devices of a pod, on any node; "" for nothing."""
    return _claims_of_pod(pod, placement)[1]


def requested_device_milli(pod: Pod, placement: PlacementInput) -> int:
    """Return the thousandths of GPUs that a pod would get on the first node that could serve it if it were empty.

    Resources that the device plugin of some node offers are left out.
    """
    claims, _ = _claims_of_pod(pod, placement)
    if claims is None:
        return 0
    fleet, empty = placement.snapshot.fleet, placement.devices._replace(allocated={})
    extended = frozenset(name for name in claims.extended if not fleet.nodes_advertising(name))
    claims = claims._replace(extended=extended)
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


def device_values(pod: Pod, result: DeviceFilterResult, placement: PlacementInput) -> DeviceValues | None:
    """Return what the devices that a pod would get leave of each node; None if it needs none."""
    if result.claims is None:
        return None
    view, found = placement.devices, dict[int, DeviceValue]()
    specs = claim_specs(pod, result.claims, view.class_by_resource)
    for node, one in result.allocations.items():
        pools = [pool.id for pool in view.pools.pools_of_node(node)]
        found[node] = find_device_value(one, specs, pools, view, placement.profiles)
    return values_by_node(found, len(placement.snapshot.fleet.nodes))


def names_devices(pod: Pod) -> bool:
    """Return whether a pod has claims, or requests devices of a class by its implicit name."""
    named = any(name.startswith(DEVICE_CLASS_PREFIX) for name in effective_requests(pod))
    return bool(pod.spec.resource_claims) or named


def _filter_result(found: Mapping[int, NodeAllocation], fleet: Fleet) -> DeviceFilterResult:
    for node, allocation in found.items():
        if allocation.outcome is AllocationOutcome.FAILED:
            text = f"{allocation.reason}, on node {fleet.nodes[node].name}: this ends scheduling on all nodes"
            reason = FilterReason(f"{ENDS_SCHEDULING}: {allocation.reason}", text)
            return DeviceFilterResult(dict.fromkeys(range(len(fleet.nodes)), reason))
    reasons = {
        node: FilterReason(allocation.reason, DETAILS.get(allocation.reason, allocation.reason))
        for node, allocation in found.items()
        if allocation.outcome is AllocationOutcome.REJECTED
    }
    unknown = [each.reason for each in found.values() if each.outcome is AllocationOutcome.UNKNOWN]
    return DeviceFilterResult(reasons, f"{RESOURCE_CLAIMS}: {unknown[0]}" if unknown else "")


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
    return [card for each in cards_by_node(devices, without_plugin).values() for card in each.cards]


MAX_NODES = 1_000
"""Nodes with devices that are tried."""

MAX_NAMES = 3
NOT_SELECTED = "none (excluded by its node selector or affinity)"


def describe_claimed_devices(source: SourceObject, context: EvaluationContext) -> tuple[str, ...]:
    """Return what the claims of a claim, a template, a pod or a workload's pods would get, one line for each result."""
    if not context.view.devices.pools:
        return ()
    try:
        request = build_admission_request(source.data, context)
        pods = list(_pods_with_claims(request, context))
        return tuple(line for pod in pods for line in _describe_pod(pod, request.namespace, context.view))
    except ReviewError:
        return ()


def _pods_with_claims(request: AdmissionRequest, context: EvaluationContext) -> Iterator[Pod]:
    kind = request.group, request.kind
    if kind == POD and request.pod is not None:
        yield request.pod
    elif kind in CLAIMS:
        is_template = request.kind == "ResourceClaimTemplate"
        named = PodResourceClaim("claim", **{f"resource_claim{'_template' * is_template}_name": request.name})
        yield Pod(ObjectMeta(), PodSpec(resource_claims=(named,)))
    elif kind in context.policies.workload_kinds:
        yield from (pod for _, _, pod in pods_of_workload(request, context.policies, context.view))


def _describe_pod(pod: Pod, namespace: str, view: ClusterView) -> Iterator[str]:
    """Yield the devices that a pod would get, with the nodes where it would, and why it gets none on the others."""
    pod = replace(pod, metadata=replace(pod.metadata, namespace=namespace))
    claims = resolve_claims(pod, view.namespace_claims(namespace), view.devices, view.fleet)
    if claims.is_empty():
        return
    if claims.rejection or claims.unknown:
        yield f"none: {claims.rejection}" if claims.rejection else f"unknown: {claims.unknown}"
        return
    pools = {index: view.devices.pools.pools_of_node(index) for index in range(len(view.fleet.nodes))}
    nodes: dict[str, list[str]] = {}
    selected = view.fleet.nodes_selected_by(pod.spec)
    publishing = [index for index, some in pools.items() if some][:MAX_NODES]
    for index in sorted(publishing, key=lambda one: not selected >> one & 1):
        text = NOT_SELECTED
        if selected >> index & 1:
            found = allocate_for_pod(pod, claims, index, view.devices, view.fleet, select_device)
            text = _describe_allocation(found, pools[index])
        nodes.setdefault(text, []).append(view.fleet.nodes[index].name)
    for text, names in nodes.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        yield f"{text} on {pluralize(len(names), 'node')} ({', '.join(names[:MAX_NAMES])}{more})"
    if not nodes:
        yield "none: no node has devices"


def _describe_allocation(found: NodeAllocation, pools: Sequence[NodePool]) -> str:
    if found.outcome is not AllocationOutcome.ALLOCATED:
        ends = ": this ends scheduling on all nodes" if found.outcome is AllocationOutcome.FAILED else ""
        return f"none ({found.reason or found.outcome}{ends})"
    chosen = [_describe_device(each, pools) for some in found.claims for each in some]
    counted = [f"{chosen.count(one)} x {one}" if chosen.count(one) > 1 else one for one in dict.fromkeys(chosen)]
    return ", ".join(counted) or "devices that it has"


def _describe_device(chosen: ChosenDevice, pools: Sequence[NodePool]) -> str:
    """Return the kind of a device, with the request that gets it."""
    device = chosen.device
    pool = next(one for one in pools if (one.id.driver, one.id.pool) == (device.driver, device.pool))
    gpu = gpus_of_pool(pool).get(device.device)
    if gpu is None:
        return f"{device.device} of {device.driver} for {chosen.request}"
    kinds = " of ".join(filter(None, (gpu.profile, gpu.product or device.device)))
    share = "" if chosen.consumed is None else "a share of "
    return f"{share}{kinds} for {chosen.request}"
