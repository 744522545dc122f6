"""Review the claims and device classes of a pod: each claim, all of them on one node, and those of all replicas.

Findings are warnings: devices may still be published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

import msgspec

from webhook.engine.claim_allocation import (
    MAX_STEPS,
    allocate_anywhere,
    new_nodes_have_devices,
    nodes_of_slices,
    other_nodes_may_allocate,
    requests_of,
    size_of_selectors,
)
from webhook.engine.claim_findings import (
    ASK_ADMIN,
    MAX_KNOWN_CLAIMS,
    MAX_SELECTOR_BYTES,
    TWICE,
    UNALLOCATABLE,
    UNTOLERATED_TAINT,
    claim_findings,
    findings_key,
    known_findings,
)
from webhook.engine.claimed_gpus import ClaimedGpus, claim_of_scheduler, is_advertised, requests_used
from webhook.engine.gpu_requests import containers_of_every_kind, init_then_main_containers
from webhook.engine.matched_devices import claim_warning
from webhook.engine.new_nodes import NewNodes, find_new_nodes, publishing_view, says_that_groups_grow, view_new_devices
from webhook.engine.pod_context import PodContext
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import abbreviate_names
from webhook.model.bounded_cache import DependentCache
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import (
    ClaimSpec,
    claim_of_class,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.derived_values import derived_value
from webhook.model.dra.allocator import (
    AllocationOutcome,
    NamedClaim,
    NodeAllocation,
    allocate_on_node,
)
from webhook.model.dra.device_pools import DevicePools
from webhook.model.dra.device_selectors import SelectorRuntimeError
from webhook.model.dra.device_view import DeviceKind, DeviceView, NamespaceClaims
from webhook.model.dra.extended_resources import (
    amounts_of_container,
    field_of_amount,
    requested_extended_resources,
)
from webhook.model.dra.pod_devices import with_devices_taken
from webhook.model.dra.selector_cache import select_device
from webhook.model.dra.twice_published import DEVICE_PLUGIN, PLUGIN_PREFIXES, devices_published_twice
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.node_groups import GroupSources, nodes_with_siblings
from webhook.model.node_masks import bit_positions
from webhook.model.pod_resources import effective_amount
from webhook.model.pods import Pod, PodResourceClaim, Toleration, is_daemon_pod
from webhook.model.quantity import NANO, parse_nano_or_none, parse_whole_number

NOT_WHOLE = "must be a whole number: the scheduler claims no device for a part of one, and the pod stays Pending"
NAME_A_CLAIM = "Request them by a claim with tolerations: the claim that the scheduler makes has none."
"""What to write instead of an extended resource for devices with a taint."""

ClaimUses = Sequence[tuple[FieldPath, Sequence[tuple[str, str]]]]
"""The claims that each container uses, each with the request; "" for all requests of the claim."""

OTHER_NODES = "Change its node selector, affinity, tolerations or claims."
"""What to write where nodes that the pod may not use may have the devices."""


def pod_device_findings(context: PodContext, added: Sequence[Toleration] = ()) -> list[PolicyFinding]:
    """Return what is wrong with the claims of a pod, and with the device classes that it requests by name.

    Args:
        context: The pod.
        added: Tolerations that policies add to the pod.
    """
    pod, view, namespace = context.pod, context.view, context.request.namespace
    is_reviewed = bool(pod.spec.resource_claims and (view.device_pools() or publishing_view(view) is not view))
    nodes = _usable_nodes(pod, view, added)
    uses = [(path, requests_used(one)) for path, one in containers_of_every_kind(pod.spec)]
    found = list(_pod_claim_findings(pod, uses, view, namespace, nodes)) if is_reviewed else []
    if context.gpu_requests.extended_names:
        found += _class_resource_findings(pod, view, namespace, nodes)
    if pod.spec.resource_claims:
        found += _unused_claims(pod, uses, context.claimed)
        usable = nodes
        for index, of_claim in _nodes_of_claims_in_use(pod, view, namespace):
            nodes &= of_claim
            if not nodes:
                found.append(_claim_in_use_elsewhere(pod, index, of_claim, view.fleet, apart=bool(usable & of_claim)))
                break
    if UNALLOCATABLE.isdisjoint(one.code for one in found):
        found += _joint_findings(context, nodes)
    return found


def _claim_in_use_elsewhere(pod: Pod, index: int, nodes: int, fleet: Fleet, *, apart: bool) -> PolicyFinding:
    """Return that other pods use the devices of a claim on nodes where the pod cannot run.

    Args:
        apart: True if only the pod's claims before it exclude these nodes.
    """
    name = pod.spec.resource_claims[index].resource_claim_name
    names = abbreviate_names(fleet.names_of(nodes))
    where = "the node of the pod's other claims" if apart else "a node that the pod may use"
    message = f"must be a claim with devices on {where}: other pods use claim {name} on {names}"
    fix = "Change its node selector, affinity or tolerations, or name another claim."
    if apart:
        fix = "Name claims whose devices are on one node."
    return claim_warning("GPU-D104", ("spec", "resourceClaims", index), message, fix)


def _nodes_of_claims_in_use(pod: Pod, view: ClusterView, namespace: str) -> Iterator[tuple[int, int]]:
    """Yield the place of each claim of a pod whose devices other pods use, and the known nodes of the devices.

    The scheduler releases devices that no pod uses if the pod needs them elsewhere.
    """
    for index, one in enumerate(pod.spec.resource_claims):
        if not one.resource_claim_name:
            continue
        claim = view.namespace_claims(namespace).claims.get(one.resource_claim_name)
        allocation = claim.status.allocation if claim is not None and claim.status.reserved_for else None
        if allocation is not None and allocation.node_selector is not None:
            nodes = view.fleet.select_nodes({}, allocation.node_selector.node_selector_terms)
            if nodes:
                yield index, nodes


def shared_gpu_findings(pod: Pod, view: ClusterView) -> Iterator[PolicyFinding]:
    """Yield each resource of a device plugin whose GPUs a driver publishes too, on a node that the pod may use."""
    allowed, seen = view.fleet.nodes_selected_by(pod.spec), set[str]()
    for (first, driver), mask in devices_published_twice(view.devices.pools, view.fleet).items():
        if first != DEVICE_PLUGIN or not mask & allowed:
            continue
        names = abbreviate_names(view.fleet.names_of(mask & allowed))
        message = (
            f"may be GPUs that are published twice, by {first} and by {driver}, on {names}: "
            "a claim can get the same one"
        )
        for path, container in containers_of_every_kind(pod.spec):
            for name, amount in container.resources.limits.items():
                if name not in seen and name.startswith(PLUGIN_PREFIXES[driver]) and parse_whole_number(amount):
                    seen.add(name)
                    yield claim_warning(TWICE, (*path, "resources", "limits", name), message, ASK_ADMIN)


def _joint_findings(context: PodContext, nodes: int) -> Sequence[PolicyFinding]:
    """Return that no node of a mask has the devices of all claims of a pod. Remembered until slices change.

    Args:
        nodes: The nodes that the pod may use.
    """
    pod, view, pools = context.pod, context.view, context.view.devices.pools
    served = context.claimed.served
    if not pools or not (pod.spec.resource_claims or served):
        return ()
    published = nodes_of_slices(pools, view.fleet)
    is_anywhere = nodes & published == published
    if is_anywhere and len(pod.spec.resource_claims) < 2 and not served:
        return ()  # the findings of its only claim say so
    specs = list(_unallocated_claims(pod, view, context.request.namespace))
    if (is_anywhere and sum(len(spec.devices.requests) for spec in specs) < 2) or not _can_be_tried(specs, view):
        return ()
    by_name = not pod.spec.resource_claims
    known, key = known_findings(pools).values_for(view.classes), findings_key(specs, f"{nodes:x}", by_name)
    if (found := known.get(key)) is None:
        found = known.store(key, list(_lacking_together(specs, nodes, view, by_name=by_name)))
    return () if found and new_nodes_have_devices(specs, view, find_new_nodes(context).allowed) else found


def _can_be_tried(specs: Sequence[ClaimSpec], view: ClusterView) -> bool:
    """Return whether it can be known that no node has the devices of claims.

    A request for all devices may be for fewer of them later, while others have no room.
    """
    requests = [one for spec in specs for one, _ in requests_of(spec, ())]
    if not requests or any(one.allocation_mode == "All" for one in requests) or _names_unknown_class(specs, view):
        return False
    return sum(size_of_selectors(spec, view.classes) for spec in specs) <= MAX_SELECTOR_BYTES


def _names_unknown_class(specs: Iterable[ClaimSpec], view: ClusterView) -> bool:
    """Return whether claims request devices of a class that is not known, and may exist."""
    requests = (one for spec in specs for one, _ in requests_of(spec, ()))
    return any(
        one.device_class_name not in view.classes and not view.devices.lacks_class(one.device_class_name)
        for one in requests
    )


def _lacking_together(
    specs: Sequence[ClaimSpec], nodes: int, view: ClusterView, *, by_name: bool
) -> Iterator[PolicyFinding]:
    """Yield that no node of a mask has the devices of all claims of a pod, which may all be by resource names."""
    try:
        if allocate_anywhere(specs, view, nodes) is not AllocationOutcome.REJECTED:
            return
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return
    path: FieldPath = ("spec", "containers" if by_name else "resourceClaims")
    requested = "must request resources of device classes that" if by_name else "must be claims whose devices"
    elsewhere = other_nodes_may_allocate(specs, view, nodes)
    where = "a node has that the pod may use" if elsewhere else "one node has together"
    several = f" for all {len(specs)}" if len(specs) > 1 else ""
    fix = OTHER_NODES if elsewhere else "Request fewer devices."
    yield claim_warning("GPU-D104", path, f"{requested} {where}, found no such node{several}", fix)


def _usable_nodes(pod: Pod, view: ClusterView, added: Sequence[Toleration]) -> int:
    """Return the nodes that a pod's selectors, affinity and tolerations allow and that have its plugins' resources."""
    fleet, served = view.fleet, view.devices.class_by_resource
    nodes = fleet.nodes_selected_by(pod.spec) & fleet.tolerated_nodes((*pod.spec.tolerations, *added))
    for name in requested_extended_resources(pod) - served.keys():
        if fleet.nodes_advertising(name):
            nodes &= fleet.nodes_advertising(name, effective_amount(pod, name) // NANO)
    return nodes


def _unallocated_claims(pod: Pod, view: ClusterView, namespace: str) -> Iterator[ClaimSpec]:
    """Yield the claims of a pod that have no devices yet, with that which the scheduler makes for it."""
    known = view.namespace_claims(namespace)
    for name in dict.fromkeys(one.resource_claim_name for one in pod.spec.resource_claims):
        if name in known.claims and known.claims[name].status.allocation is None:
            yield known.claims[name].spec
    for one in pod.spec.resource_claims:
        if not one.resource_claim_name and one.resource_claim_template_name in known.templates:
            yield known.templates[one.resource_claim_template_name]
    extended = claim_of_scheduler(pod, view)
    if extended.devices.requests:
        yield extended


def _pod_claim_findings(
    pod: Pod, uses: ClaimUses, view: ClusterView, namespace: str, nodes: int
) -> Iterator[PolicyFinding]:
    """Yield the findings of the claims of a pod, each with the place in the template or claim.

    Args:
        pod: The pod.
        uses: The claims that its containers use.
        view: The cluster.
        namespace: Its namespace.
        nodes: The nodes that it may use.
    """
    known, is_twice = view.namespace_claims(namespace), False
    for index, one in enumerate(pod.spec.resource_claims):
        path: FieldPath = ("spec", "resourceClaims", index)
        spec = known.spec_of(one.resource_claim_name, one.resource_claim_template_name)
        if spec is None:
            kind = DeviceKind.CLAIM if one.resource_claim_name else DeviceKind.TEMPLATE
            if kind not in view.devices.unlisted:
                yield _absent_claim(one, path, known)
            continue
        yield from _absent_requests(uses, one.name, spec)
        claim = known.claims.get(one.resource_claim_name)
        if claim is not None and claim.metadata.deletion_timestamp is not None:
            message = f"must name a claim of this namespace, found {one.resource_claim_name}, which is being deleted"
            yield claim_warning("GPU-D110", path, message, "Create it again when it is gone, or name another one.")
            continue
        has_devices = claim is not None and claim.status.allocation is not None
        source = f"template {one.resource_claim_template_name}" if claim is None else f"claim {one.resource_claim_name}"
        for each in claim_findings(ClaimSpec() if has_devices else spec, view, namespace, (), nodes):
            if each.code == TWICE and is_twice:
                continue
            is_twice = is_twice or each.code == TWICE
            message = f"{format_path(each.path)} of {source} {each.message}"
            yield msgspec.structs.replace(each, path=path, message=message)


def _absent_requests(uses: ClaimUses, claim_name: str, spec: ClaimSpec) -> Iterator[PolicyFinding]:
    """Yield each request that a container names and that its claim lacks: kubelet gives it no device."""
    names = [request.name for request in spec.devices.requests]
    for path, used in uses:
        for index, (claim, request) in enumerate(used):
            if claim != claim_name or not request or request in names:
                continue
            message = f"must be a request of the claim, found {request}: the container gets none of its devices"
            fix = f"Write {' or '.join(names)}." if names else "Remove it."
            yield claim_warning("GPU-D113", (*path, "resources", "claims", index, "request"), message, fix)


def _unused_claims(pod: Pod, uses: ClaimUses, claimed: ClaimedGpus) -> Iterator[PolicyFinding]:
    """Yield each claim for GPUs that no container uses: its devices are allocated all the same.

    Devices of other kinds may be for the whole pod, such as network interfaces.
    """
    used = {claim for _, some in uses for claim, _ in some}
    for index, one in enumerate(pod.spec.resource_claims):
        if one.name not in used and any(request.units for request in claimed.claims.get(one.name, ())):
            message = "must be used by a container, found none that names it: its GPUs are allocated all the same"
            fix = f"Write resources: {{claims: [{{name: {one.name}}}]}} in the container that needs them."
            yield claim_warning("GPU-D114", ("spec", "resourceClaims", index), message, fix)


def _absent_claim(one: PodResourceClaim, path: FieldPath, known: NamespaceClaims) -> PolicyFinding:
    name, names, kind = one.resource_claim_name, list(known.claims), "claim"
    if one.resource_claim_template_name:
        name, names, kind = one.resource_claim_template_name, list(known.templates), "template of claims"
    near = get_close_matches(name, names, n=1)
    message = f"must name a {kind} of this namespace, found {name}, which does not exist yet"
    return claim_warning("GPU-D110", path, message, f"Write {near[0]}." if near else "Create it.")


def _class_resource_findings(pod: Pod, view: ClusterView, namespace: str, nodes: int) -> Iterator[PolicyFinding]:
    """Yield what is wrong with the device classes that containers request by the names of extended resources.

    A name that some node advertises may be served without the class.

    Args:
        pod: The pod.
        view: The cluster.
        namespace: Its namespace.
        nodes: The nodes that it may use.
    """
    seen, served = set[str](), view.devices.class_by_resource
    for path, container in init_then_main_containers(pod.spec):
        for resource, amount in amounts_of_container(container).items():
            if (resource not in served and not resource.startswith(DEVICE_CLASS_PREFIX)) or resource in seen:
                continue
            count, where = parse_whole_number(amount), (*path, "resources", *field_of_amount(container, resource))
            if count and not is_advertised(resource, view):
                seen.add(resource)
                yield from _class_findings(resource, count, where, view, namespace, nodes)
            elif count is None and resource.startswith(DEVICE_CLASS_PREFIX) and parse_nano_or_none(amount):
                yield claim_warning("GPU-L104", where, f"{NOT_WHOLE} (found {amount!r})", "Write a whole number.")


def _class_findings(
    resource: str, count: int, path: FieldPath, view: ClusterView, namespace: str, nodes: int
) -> Iterator[PolicyFinding]:
    name = view.devices.class_by_resource.get(resource) or resource.removeprefix(DEVICE_CLASS_PREFIX)
    for each in claim_findings(claim_of_class(name, count), view, namespace, (), nodes):
        message = each.message if name in resource else f"{each.message} (class {name} serves it)"
        fix = NAME_A_CLAIM if each.reason == UNTOLERATED_TAINT else each.fix
        yield msgspec.structs.replace(each, path=path, message=message, fix=fix)


def replica_device_findings(context: PodContext, added: Sequence[Toleration] = ()) -> Iterator[PolicyFinding]:
    """Yield that the nodes have devices for fewer of a workload's pods, which each get claims of their own.

    Nodes that groups may add count: cluster-autoscaler expects the devices of a live sibling on them.

    Args:
        context: One of the pods.
        added: Tolerations that policies add to them.
    """
    pod, view, replicas = context.pod, context.view, context.request.replicas
    if any(one.resource_claim_name for one in pod.spec.resource_claims) or is_daemon_pod(pod):
        return
    specs, pools = list(_unallocated_claims(pod, view, context.request.namespace)), view.devices.pools
    if not specs or not pools or _names_unknown_class(specs, view):
        return
    nodes = _usable_nodes(pod, view, added) & nodes_of_slices(pools, view.fleet)
    grow = says_that_groups_grow(context.policy_set)
    siblings = nodes & nodes_with_siblings(view.fleet, view.group_sources, groups_grow=grow)
    new = find_new_nodes(context)
    key = findings_key(specs, f"{nodes:x}", f"{siblings:x}", f"{new.allowed:x}", replicas)
    known = _known_replica_findings(pools, view.fleet, view.group_sources).values_for(view.classes)
    if (found := known.get(key)) is None:
        most = _count_served(specs, nodes, siblings, replicas, view)
        if most is not None and new.allowed:
            most = _count_with_new_nodes(most, specs, new, context)
        number = f"at most {most} of" if most else "none of"
        message = (
            f"{number} {replicas} pods would run at once: the nodes that they may use have too few devices for more"
        )
        elsewhere = most == 0 and other_nodes_may_allocate(specs, view, nodes)
        fix = OTHER_NODES if elsewhere else "Request fewer devices."
        fix = f"Run at most {most} of them at once." if most else fix
        path: FieldPath = ("spec", "resourceClaims")
        found = known.store(key, [] if most is None else [claim_warning("GPU-T206", path, message, fix)])
    yield from found


@derived_value()
def _known_replica_findings(
    _pools: DevicePools, _fleet: Fleet, _sources: GroupSources
) -> DependentCache[bytes, list[PolicyFinding]]:
    """Return the findings that also follow from the nodes that groups may add."""
    return DependentCache(MAX_KNOWN_CLAIMS)


def _count_with_new_nodes(live: int, specs: Sequence[ClaimSpec], new: NewNodes, context: PodContext) -> int | None:
    """Return how many pods live nodes and those that groups may add could serve; None if all, or if not known."""
    replicas, view, count = context.request.replicas, view_new_devices(context.view), live
    for index in bit_positions(new.allowed):
        left = new.groups[index].nodes_left
        served = _count_served(specs, 1 << index, 0, replicas, view) if view is not None else 0
        if served is None or (served and left is None):
            return None
        count += served * (left or 0)
    return count if count < replicas else None


def _count_served(
    specs: Sequence[ClaimSpec], nodes: int, siblings: int, replicas: int, view: ClusterView
) -> int | None:
    """Return how many pods with claims nodes could serve if all devices were free; None if all, or if not known.

    Devices of several nodes are taken once. If a pod has several, the nodes may divide these in more than one way:
    then they count on each node that publishes devices of its own too.

    Args:
        siblings: Nodes that an autoscaler may copy: one that serves a pod has copies for the others.
    """
    claims, pools, steps, count = [NamedClaim("", spec) for spec in specs], view.devices.pools, 0, 0
    is_divided_alike = _count_devices(specs) == 1 or not any(map(pools.names_of_node, bit_positions(nodes)))
    every = devices = view.devices._replace(allocated={})
    for node in bit_positions(nodes):
        devices, of_node = devices if is_divided_alike else every, pools.pools_of_node(node)
        while count < replicas:
            found = _allocate_once(claims, node, devices, MAX_STEPS - steps)
            steps += found.steps + sum(len(pool.devices) for pool in of_node)
            if found.outcome is AllocationOutcome.REJECTED:
                break
            if found.outcome is not AllocationOutcome.ALLOCATED or steps > MAX_STEPS:
                return None
            if siblings >> node & 1:
                return None
            count, devices = count + 1, with_devices_taken(devices, [found])
    return count if count < replicas else None


def _count_devices(specs: Sequence[ClaimSpec]) -> int:
    """Return the devices of claims, at most; those of a request for all devices of a node count as two."""
    most = [[2 if one.allocation_mode == "All" else one.count for one in request.choices] for spec in specs
            for request in spec.devices.requests]  # fmt: skip
    return sum(max(counts, default=0) for counts in most)


def _allocate_once(claims: Sequence[NamedClaim], node: int, devices: DeviceView, max_steps: int) -> NodeAllocation:
    try:
        return allocate_on_node(
            claims, devices.pools.pools_of_node(node), devices.allocated, devices.classes, select_device,
            shared_names=devices.pools.shared_counter_names, max_steps=max_steps,
        )  # fmt: skip
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return NodeAllocation(AllocationOutcome.UNKNOWN)
