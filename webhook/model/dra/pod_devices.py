"""The devices that a pod would get on each node, for its claims and for extended resources that device classes serve.

Source: the plugin DynamicResources of kube-scheduler 1.36.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from webhook.model.claims import (
    ClaimAllocation,
    ClaimSpec,
    DeviceAllocation,
    DeviceAllocations,
    DeviceClasses,
    ResourceClaim,
)
from webhook.model.dra.allocator import (
    MAX_STEPS,
    AllocationOutcome,
    ChosenDevice,
    NamedClaim,
    NodeAllocation,
    SelectDevice,
    allocate_on_node,
    sum_amounts,
)
from webhook.model.dra.device_pools import PoolId
from webhook.model.dra.device_view import (
    NOTHING_ALLOCATED,
    DeviceKind,
    DeviceView,
    NamespaceClaims,
    PoolAllocations,
)
from webhook.model.dra.extended_resources import (
    ClassByResource,
    extended_resource_claim,
    missing_resources,
    requested_extended_resources,
)
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX, parse_gpu_resource
from webhook.model.pods import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod

NOTHING_NEEDED = NodeAllocation(AllocationOutcome.ALLOCATED)
EXTENDED_RESOURCES = "<extended-resources>"
"""Name of the claim that the scheduler makes for extended resources."""

CANNOT_FIT = "cannot fit resource"
NOT_ON_NODE = "resourceclaim not available on the node"


class PodClaims(NamedTuple):
    """The claims of a pod.

    Attributes:
        unallocated: Those to allocate, in the pod's order.
        nodes: Mask of the nodes that can use those with an allocation.
        rejection: Why no node can serve the pod; "" if some may.
        unknown: What of it cannot be read, so whether nodes can serve it is unknown; "" for nothing.
        extended: The extended resources that it requests, if a class serves one of them, or would if it existed.
    """

    unallocated: tuple[NamedClaim, ...]
    nodes: int
    rejection: str = ""
    extended: frozenset[str] = frozenset()
    unknown: str = ""

    def is_empty(self) -> bool:
        """Return whether the pod needs no devices."""
        return not (self.unallocated or self.extended or self.rejection or self.unknown)


def resolve_claims(pod: Pod, namespace: NamespaceClaims, view: DeviceView, fleet: Fleet) -> PodClaims:
    """Look up the claims of a pod. Those of templates that were not made yet count as not allocated."""
    unallocated: list[NamedClaim] = []
    nodes = fleet.all_nodes
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    for one in pod.spec.resource_claims:
        claim_name = one.resource_claim_name or made.get(one.name, "")
        if not one.resource_claim_name and claim_name not in namespace.claims:
            spec = namespace.templates.get(one.resource_claim_template_name)
            if spec is None:
                return _absent(f"resource claim template {one.resource_claim_template_name}", DeviceKind.TEMPLATE, view)
            unallocated.append(NamedClaim(one.name, spec))
            continue
        claim = namespace.claims.get(claim_name)
        if claim is None:
            return _absent(f'resourceclaim.resource.k8s.io "{claim_name}"', DeviceKind.CLAIM, view)
        if claim.metadata.deletion_timestamp is not None:
            return PodClaims((), 0, f'resourceclaim "{claim_name}" is being deleted')
        allocation = claim.status.allocation
        if allocation is None:
            name = claim.metadata.name
            unallocated.append(NamedClaim(f"{claim.metadata.namespace}/{name}", claim.spec, existing=name))
        elif allocation.node_selector is not None:
            nodes &= fleet.select_nodes({}, allocation.node_selector.node_selector_terms)
    requested = requested_extended_resources(pod)
    named = [name for name in requested if name in view.class_by_resource or name.startswith(DEVICE_CLASS_PREFIX)]
    extended = frozenset(requested) if named else frozenset[str]()
    missing = _missing_class(unallocated, view.classes)
    if DeviceKind.CLASS in view.unlisted and (missing or _unserved_name(requested, view.class_by_resource, fleet)):
        return PodClaims((), 0, unknown=f"no {DeviceKind.CLASS} could be read")
    return PodClaims(tuple(unallocated), nodes, missing, extended)


def _absent(name: str, kind: DeviceKind, view: DeviceView) -> PodClaims:
    """Return that a claim or a template does not exist, or that it is unknown."""
    if kind in view.unlisted:
        return PodClaims((), 0, unknown=f"{name} (no {kind} could be read)")
    return PodClaims((), 0, f"{name} {'not found' if kind is DeviceKind.CLAIM else 'does not exist'}")


def _unserved_name(names: Iterable[str], served: ClassByResource, fleet: Fleet) -> bool:
    """Return whether neither nodes nor known classes serve some extended resource."""
    return any(
        name not in served and name not in fleet.extended_resources and not fleet.nodes_advertising(name)
        for name in names
    )


def is_partly_served(claims: PodClaims, fleet: Fleet) -> bool:
    """Return whether nodes advertise resources of a pod, other than GPUs, that device classes serve on others.

    It is not known what such a resource of a device plugin is worth.
    """
    names = (name for name in claims.extended if parse_gpu_resource(name) is None)
    return any(fleet.nodes_advertising(name) or name in fleet.extended_resources for name in names)


def claim_specs(pod: Pod, claims: PodClaims, classes: ClassByResource) -> list[ClaimSpec]:
    """Return the specifications of the claims to allocate on a node that advertises none of a pod's resources."""
    served = [name for name in claims.extended if name in classes]
    return [*[each.spec for each in claims.unallocated], extended_resource_claim(pod, served, classes)]


def _missing_class(claims: Sequence[NamedClaim], classes: DeviceClasses) -> str:
    """Return the scheduler's message on the first class that does not exist; "" if all do."""
    for request in (each for claim in claims for each in claim.spec.devices.requests):
        if request.exactly is None and not request.first_available:
            return f"request {request.name}: unknown request type"
        choices = [(request.name, request.exactly)] if request.exactly else []
        for name, choice in choices or [(f"{request.name}/{each.name}", each) for each in request.first_available]:
            if choice.device_class_name not in classes:
                return f"request {name}: device class {choice.device_class_name} does not exist"
    return ""


def allocate_for_pod(
    pod: Pod,
    claims: PodClaims,
    node: int,
    view: DeviceView,
    fleet: Fleet,
    selects: SelectDevice,
    max_steps: int = MAX_STEPS,
) -> NodeAllocation:
    """Return what the claims of a pod would get on a node.

    Args:
        pod: The pod.
        claims: Its claims.
        node: Index of the node.
        view: Devices, and what is allocated.
        fleet: The nodes.
        selects: Evaluates a selector on a device.
        max_steps: Bound of the search.
    """
    if claims.rejection or claims.unknown:
        outcome = AllocationOutcome.REJECTED if claims.rejection else AllocationOutcome.UNKNOWN
        return NodeAllocation(outcome, reason=claims.rejection or claims.unknown)
    wanted = claims.unallocated
    if claims.extended:
        by_class, missing = _split_by_provider(claims.extended, fleet.nodes[node], view.class_by_resource)
        if missing:
            return NodeAllocation(AllocationOutcome.REJECTED, reason=CANNOT_FIT)
        if by_class or pod.spec.resource_claims:
            spec = extended_resource_claim(pod, by_class, view.class_by_resource)
            wanted = (*wanted, NamedClaim(f"{pod.metadata.namespace}/{EXTENDED_RESOURCES}", spec))
    found = NOTHING_NEEDED
    if wanted:
        pools = view.pools.pools_of_node(node)
        shared = view.pools.shared_counter_names
        found = allocate_on_node(
            wanted, pools, view.allocated, view.classes, selects, shared_names=shared, max_steps=max_steps
        )
    if found.outcome is AllocationOutcome.ALLOCATED and not claims.nodes >> node & 1:
        return NodeAllocation(AllocationOutcome.REJECTED, reason=NOT_ON_NODE)
    return found


def _split_by_provider(
    requested: frozenset[str], node: FleetNode, classes: ClassByResource
) -> tuple[list[str], Sequence[str]]:
    """Return the resources that classes serve on a node, and those that nothing serves there."""
    advertised = {name for amounts in (node.gpus, node.others) for name in amounts}
    offered = {name for amounts in (node.gpus, node.others) for name, amount in amounts.items() if amount > 0}
    by_class = [name for name in requested if name in classes and name not in offered]
    return by_class, missing_resources(requested, by_class, advertised)


def with_devices_bound(
    view: DeviceView, namespace: str, claims: PodClaims, found: NodeAllocation, node: str
) -> DeviceView:
    """Return the view after a pod was bound to a node with the devices that its claims would get there.

    Args:
        view: The devices before.
        namespace: Namespace of the pod.
        claims: Its claims.
        found: The devices that they get.
        node: Name of the node.
    """
    known = dict(view.claims.get(namespace, {}))
    for claim, some in zip(claims.unallocated, found.claims, strict=False):
        if claim.existing:
            known[claim.existing] = _with_allocation(known[claim.existing], some, node)
    return with_devices_taken(view, [found])._replace(claims={**view.claims, namespace: known})


def with_devices_taken(view: DeviceView, taken: Iterable[NodeAllocation]) -> DeviceView:
    """Return the view with more devices allocated, for whichever claims."""
    allocated = dict(view.allocated)
    for chosen in (each for one in taken for some in one.claims for each in some if not each.admin_access):
        pool = PoolId(chosen.device.driver, chosen.device.pool)
        allocated[pool] = _with_device(allocated.get(pool, NOTHING_ALLOCATED), chosen)
    return view._replace(allocated=allocated)


def _with_device(pool: PoolAllocations, chosen: ChosenDevice) -> PoolAllocations:
    name = chosen.device.device
    if chosen.consumed is None:
        return pool._replace(whole=pool.whole | {name})
    consumed = sum_amounts(pool.consumed.get(name, {}), chosen.consumed)
    return pool._replace(shared=pool.shared | {name}, consumed={**pool.consumed, name: consumed})


def _with_allocation(claim: ResourceClaim, devices: Sequence[ChosenDevice], node: str) -> ResourceClaim:
    """Return a claim with devices that only one node can use."""
    results = tuple([DeviceAllocation(each.request, *each.device) for each in devices])
    terms = (NodeSelectorTerm(match_fields=(NodeSelectorRequirement("metadata.name", "In", (node,)),)),)
    allocation = ClaimAllocation(DeviceAllocations(results), NodeSelector(terms))
    return replace(claim, status=replace(claim.status, allocation=allocation))
