"""Review resource claims and their templates: requests that the scheduler cannot allocate, or not well.

Findings are warnings: devices may still be published. There are none in a cluster without known devices, and none about
selectors that are not evaluated here. While no node publishes devices, those that new nodes will publish count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from itertools import islice
from typing import NamedTuple

import msgspec

from webhook.engine.claim_matches import RequestMatch, RequestSelector, compile_selector, match_request
from webhook.engine.claim_sizing import size_claim
from webhook.engine.claimed_gpus import claim_of_scheduler, is_advertised
from webhook.engine.gpu_requests import containers_of_every_kind
from webhook.engine.limits import most_units_of_pod
from webhook.engine.matched_policies import combine_policies, fact_reporter
from webhook.engine.new_nodes import find_new_nodes, publishing_view, says_that_groups_grow, view_new_devices
from webhook.engine.owned_pods import is_daemon_pod
from webhook.engine.pod_context import PodContext
from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.quota.admission import predict_claim_refusals
from webhook.errors import abbreviate_names
from webhook.model.admission import AdmissionRequest
from webhook.model.bounded_cache import DependentCache
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import (
    CLAIM_KINDS,
    EXTENDED_RESOURCE_CLAIM,
    MADE_CLAIM_ANNOTATIONS,
    MAX_DEVICES,
    ClaimRequest,
    ClaimSpec,
    DeviceClasses,
    DeviceRequest,
    ResourceClaimTemplate,
    claim_of_class,
    may_hold_gpus,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.derived_values import derived_value
from webhook.model.dra.allocator import (
    TOO_MANY_DEVICES,
    AllocationOutcome,
    NamedClaim,
    NodeAllocation,
    allocate_on_node,
)
from webhook.model.dra.claim_weights import count_claim_units, weigh_unallocated_claims
from webhook.model.dra.device_pools import DevicePools
from webhook.model.dra.device_selectors import MAX_EXPRESSION_BYTES, SelectorCompileError, SelectorRuntimeError
from webhook.model.dra.device_view import DeviceView, NamespaceClaims
from webhook.model.dra.extended_resources import requested_extended_resources, served_resources
from webhook.model.dra.pod_devices import with_devices_taken
from webhook.model.dra.published_devices import MAX_KINDS, PublishedDevice, published_devices
from webhook.model.dra.selector_cache import keys_told_apart, select_device
from webhook.model.dra.twice_published import DEVICE_PLUGIN, PLUGIN_PREFIXES, devices_published_twice
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.findings import Finding
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.node_groups import GroupSources, nodes_with_siblings
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.objects import HARD_EFFECTS
from webhook.model.pod_resources import effective_amount
from webhook.model.pods import Pod, PodResourceClaim, Toleration
from webhook.model.pools import GpuWeight
from webhook.model.quantity import NANO, parse_whole_number
from webhook.policy.policy_set import Policy, PolicySet

CLAIM_GROUP = "resource.k8s.io"
QUANTITY = "kubernetes.Quantity"
COMPARE_QUANTITIES = "To compare a capacity, write .compareTo(quantity('10Gi')) >= 0; texts are in device.attributes."
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
EXCEEDED_QUOTA = "Delete claims that are not in use. If the quota counts devices, request fewer."
NO_MATCH, TWICE = "GPU-D101", "GPU-D112"
ASK = "Ask the admin to remove one of the two from these nodes."
UNALLOCATABLE = frozenset({NO_MATCH, "GPU-D102", "GPU-D104", "GPU-D105", "GPU-D106", "GPU-D107", "GPU-D110"})
"""Findings after which a pod gets no devices."""

NO_NODE = frozenset({NO_MATCH, "GPU-D104", "GPU-D105"})
"""Findings that no node has the devices of a claim."""

_OUTCOMES = {PolicyMode.ENFORCE: "be denied", PolicyMode.WARN: "get this warning"}

MAX_KNOWN_CLAIMS = 256
"""Claims whose findings are remembered."""

MAX_VALUES = 8_000
"""Attributes and capacities that are looked at for all requests of a claim together: about 25 ms."""

MAX_STEPS = 3_000
"""Devices that are read, and devices and requests that are tried, on all nodes together: about 15 ms."""

MAX_PUBLISHERS = 3
"""Pairs of publishers of one device that are named."""

MAX_SELECTOR_BYTES = 10 * 1024
"""Size of all selectors of a claim that are compiled: as much as one may have."""

BYTES_PER_SELECTOR = 64
"""What a selector counts for besides its text."""


def review_claim(request: AdmissionRequest, policies: PolicySet, view: ClusterView) -> Decision:
    """Return the findings of a claim or a template of claims, and its change by right-sizing."""
    try:
        found = msgspec.convert(request.load_object(), CLAIM_KINDS[request.kind])
    except msgspec.ValidationError:
        return Decision()
    path: FieldPath = ("spec", "spec") if isinstance(found, ResourceClaimTemplate) else ("spec",)
    spec = found.spec.spec if isinstance(found, ResourceClaimTemplate) else found.spec
    if EXTENDED_RESOURCE_CLAIM in found.metadata.annotations:
        return Decision()
    problems = claim_findings(spec, view, request.namespace, path)
    problems += _quota_findings(spec, view, request.namespace, path)
    units = Counter[str]()
    for one in count_claim_units(spec, view.devices, view.fleet) if view.devices.pools else ():
        units.update(one.units)
    labels = view.labels_of(request.namespace)
    matching, conditional = policies.candidates_for(request.namespace, labels, "CREATE", tuple(sorted(units)))
    mode, policy = fact_reporter(combine_policies(policies, matching, 0), policies)
    mode = min(mode, PolicyMode.WARN)
    findings = [Finding(one.code, mode, one.path, one.message, one.fix, policy) for one in problems]
    if units:
        bounding = [policies.policies[index] for index in bit_positions(matching & ~conditional)]
        weight = weigh_unallocated_claims([spec], view.devices, view.fleet)
        findings += _limit_findings(units, (*path, "devices"), bounding)
        findings += _shared_quota_findings(weight, (*path, "devices"), bounding, request.namespace, labels)
    sized = size_claim(request, found, policies, view)
    findings += sized.findings
    may_be_gpus = units or (not view.devices.pools and _may_request_gpus(spec, view.classes))
    involves_gpus = sized.involves_gpus or bool(findings or may_be_gpus)
    used = tuple(dict.fromkeys([*sized.policies, *[each.policy for each in findings if each.policy]]))
    return msgspec.structs.replace(sized, findings=tuple(findings), policies=used, involves_gpus=involves_gpus)


def _may_request_gpus(spec: ClaimSpec, classes: DeviceClasses) -> bool:
    return any(may_hold_gpus(request.device_class_name, classes) for request, _ in _requests_of(spec, ()))


def pod_device_findings(context: PodContext, added: Sequence[Toleration] = ()) -> list[PolicyFinding]:
    """Return what is wrong with the claims of a pod, and with the device classes that it requests by name.

    Args:
        context: The pod.
        added: Tolerations that policies add to the pod.
    """
    pod, view, namespace = context.pod, context.view, context.request.namespace
    is_reviewed = bool(pod.spec.resource_claims and (view.device_pools() or publishing_view(view) is not view))
    found = list(_pod_claim_findings(pod, view, namespace)) if is_reviewed else []
    found += _class_resource_findings(pod, view, namespace)
    if UNALLOCATABLE.isdisjoint(one.code for one in found):
        found += _joint_findings(context, added)
    return found


def shared_gpu_findings(pod: Pod, view: ClusterView) -> Iterator[PolicyFinding]:
    """Yield each resource of a device plugin whose GPUs a driver publishes too, on a node that the pod may use."""
    allowed, seen = view.fleet.nodes_selected_by(pod.spec), set[str]()
    pairs = devices_published_twice(view.devices.pools, view.fleet).items()
    for (first, driver), mask in [item for item in pairs if item[0].first == DEVICE_PLUGIN and item[1] & allowed]:
        for path, container in containers_of_every_kind(pod.spec):
            for name in container.resources.limits.keys() - seen:
                if name.startswith(PLUGIN_PREFIXES[driver]) and parse_whole_number(container.resources.limits[name]):
                    seen.add(name)
                    names = abbreviate_names([view.fleet.nodes[index].name for index in bit_positions(mask & allowed)])
                    message = f"may be GPUs that are published twice, by {first} and by {driver}, on {names}: a claim "
                    yield _warning(TWICE, (*path, "resources", "limits", name), f"{message}can get the same one", ASK)


def _joint_findings(context: PodContext, added: Sequence[Toleration]) -> Sequence[PolicyFinding]:
    """Return that no node that a pod may use has the devices of all its claims. Remembered until slices change.

    A request for all devices may be for fewer of them later (see `_allocation_findings`).
    """
    pod, view, namespace = context.pod, context.view, context.request.namespace
    served, pools = served_resources(pod, view.devices.class_by_resource), view.devices.pools
    if not pools or not (pod.spec.resource_claims or served):
        return ()
    fleet, published = view.fleet, nodes_of_slices(pools, view.fleet)
    nodes = _usable_nodes(pod, view, added) if pod.spec.resource_claims else fleet.all_nodes
    is_anywhere = nodes & published == published
    if len(pod.spec.resource_claims) < 2 and not served and is_anywhere:
        return ()
    specs = list(_unallocated_claims(pod, view, namespace))
    if not specs or (is_anywhere and sum(len(spec.devices.requests) for spec in specs) < 2):
        return ()
    requests = [one for spec in specs for one, _ in _requests_of(spec, ())]
    if any(one.allocation_mode == "All" for one in requests):
        return ()
    if sum(_size_of_selectors(spec, view.classes) for spec in specs) > MAX_SELECTOR_BYTES:
        return ()
    known, key = _known_findings(pools).values_for(view.classes), _digest(specs, f"{nodes:x}")
    if (found := known.get(key)) is None:
        found = known.store(key, list(_lacking_together(specs, nodes, view)))
    if found and _new_nodes_have_devices(specs, view, find_new_nodes(context).allowed):
        return ()
    if pod.spec.resource_claims:
        return found
    message = "must request resources of device classes that one node has together, found no such node"
    return [msgspec.structs.replace(one, path=("spec", "containers"), message=message) for one in found]


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
    if not specs or not pools:
        return
    nodes = _usable_nodes(pod, view, added) & nodes_of_slices(pools, view.fleet)
    grow = says_that_groups_grow(context.policy_set)
    siblings = nodes & nodes_with_siblings(view.fleet, view.group_sources, groups_grow=grow)
    new = find_new_nodes(context)
    key = _digest(specs, f"{nodes:x}", f"{siblings:x}", f"{new.allowed:x}", replicas)
    known = _known_replica_findings(pools, view.fleet, view.group_sources).values_for(view.classes)
    if (found := known.get(key)) is None:
        most = _count_served(specs, nodes, siblings, replicas, view)
        if most is not None and new.allowed:
            most = _count_with_new_nodes(most, specs, new.allowed, context)
        number = f"at most {most} of" if most else "none of"
        message = (
            f"{number} {replicas} pods would run at once: the nodes that they may use have too few devices for more"
        )
        fix = f"Run at most {most} of them at once." if most else "Request fewer devices."
        path: FieldPath = ("spec", "resourceClaims")
        found = known.store(key, [] if most is None else [_warning("GPU-T206", path, message, fix)])
    yield from found


def _count_with_new_nodes(live: int, specs: Sequence[ClaimSpec], nodes: int, context: PodContext) -> int | None:
    """Return how many pods live nodes and those that groups may add could serve; None if all, or if not known."""
    replicas, new, count = context.request.replicas, view_new_devices(context.view), live
    groups = find_new_nodes(context).groups
    for index in bit_positions(nodes):
        left = groups[index].nodes_left
        served = _count_served(specs, 1 << index, 0, replicas, new) if new is not None else 0
        if served is None or (served and left is None):
            return None
        count += served * (left or 0)
    return count if count < replicas else None


def _count_served(
    specs: Sequence[ClaimSpec], nodes: int, siblings: int, replicas: int, view: ClusterView
) -> int | None:
    """Return how many pods with claims nodes could serve if all devices were free; None if all, or if not known.

    Args:
        siblings: Nodes that an autoscaler may copy: one that serves a pod has copies for the others.
    """
    claims, pools, steps, count = [NamedClaim("", spec) for spec in specs], view.devices.pools, 0, 0
    for node in bit_positions(nodes):
        devices, of_node = view.devices._replace(allocated={}), pools.pools_of_node(node)
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


def _new_nodes_have_devices(specs: Sequence[ClaimSpec], view: ClusterView, nodes: int = -1) -> bool:
    """Return whether a new node of a mask may have the devices of claims, as far as its autoscaler can know.

    The autoscaler adds no node if a selector is an error on the devices that it expects.
    """
    new = view_new_devices(view)
    if new is None or not nodes & new.fleet.all_nodes:
        return False
    try:
        return _allocate_anywhere(specs, new, nodes) in (AllocationOutcome.ALLOCATED, AllocationOutcome.UNKNOWN)
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return False


def _allocate_once(claims: Sequence[NamedClaim], node: int, devices: DeviceView, max_steps: int) -> NodeAllocation:
    try:
        return allocate_on_node(
            claims, devices.pools.pools_of_node(node), devices.allocated, devices.classes, select_device,
            shared_names=devices.pools.shared_counter_names, max_steps=max_steps,
        )  # fmt: skip
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return NodeAllocation(AllocationOutcome.UNKNOWN)


def _usable_nodes(pod: Pod, view: ClusterView, added: Sequence[Toleration]) -> int:
    """Return the nodes that a pod's selectors, affinity and tolerations allow and that have its plugins' resources."""
    fleet, served = view.fleet, view.devices.class_by_resource
    nodes = fleet.nodes_selected_by(pod.spec) & fleet.tolerated_nodes((*pod.spec.tolerations, *added))
    for name in requested_extended_resources(pod) - served.keys():
        if fleet.nodes_advertising(name):
            nodes &= fleet.nodes_advertising(name, effective_amount(pod, name) // NANO)
    return nodes


@derived_value()
def nodes_of_slices(pools: DevicePools, fleet: Fleet) -> int:
    """Return the mask of the nodes that slices name; all nodes if slices name none."""
    return fleet.all_nodes if pools.names_of_any_node else union_masks(1 << index for index in pools.nodes())


def _lacking_together(specs: Sequence[ClaimSpec], nodes: int, view: ClusterView) -> Iterator[PolicyFinding]:
    try:
        outcome = _allocate_anywhere(specs, view, nodes)
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return
    if outcome is AllocationOutcome.REJECTED:
        path: FieldPath = ("spec", "resourceClaims")
        several = f" for all {len(specs)}" if len(specs) > 1 else ""
        everywhere = nodes & view.fleet.all_nodes == view.fleet.all_nodes
        if not everywhere and _allocate_anywhere(specs, view) is AllocationOutcome.ALLOCATED:
            message = f"must be claims whose devices a node has that the pod may use, found no such node{several}"
            yield _warning("GPU-D104", path, message, "Change its node selector, affinity, tolerations or claims.")
            return
        message = f"must be claims whose devices one node has together, found no such node{several}"
        yield _warning("GPU-D104", path, message, "Request fewer devices.")


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


def _pod_claim_findings(pod: Pod, view: ClusterView, namespace: str) -> Iterator[PolicyFinding]:
    """Yield the findings of the claims of a pod, each with the place in the template or claim."""
    known, is_twice = view.namespace_claims(namespace), False
    for index, one in enumerate(pod.spec.resource_claims):
        path: FieldPath = ("spec", "resourceClaims", index)
        spec = known.spec_of(one.resource_claim_name, one.resource_claim_template_name)
        if spec is None:
            yield _absent_claim(one, path, known)
            continue
        claim = known.claims.get(one.resource_claim_name)
        has_devices = claim is not None and claim.status.allocation is not None
        source = f"template {one.resource_claim_template_name}" if claim is None else f"claim {one.resource_claim_name}"
        for each in claim_findings(ClaimSpec() if has_devices else spec, view, namespace, ()):
            if each.code == TWICE and is_twice:
                continue
            is_twice = is_twice or each.code == TWICE
            message = f"{format_path(each.path)} of {source} {each.message}"
            yield msgspec.structs.replace(each, path=path, message=message)


class ClaimFindings(NamedTuple):
    """A stored claim or template, and what is wrong with it."""

    kind: str
    namespace: str
    name: str
    findings: Sequence[PolicyFinding]


def stored_claim_findings(view: ClusterView) -> Iterator[ClaimFindings]:
    """Yield what is wrong with the templates of a cluster and with the claims that wait for devices.

    Claims that were made for a pod are as their template, or as the resources of the pod.
    """
    claims = view.all_claims
    for namespace in sorted({*claims.devices.claims, *claims.templates}):
        known = claims.in_namespace(namespace)
        for name, claim in sorted(known.claims.items()):
            if claim.status.allocation is None and claim.metadata.annotations.keys().isdisjoint(MADE_CLAIM_ANNOTATIONS):
                found = claim_findings(claim.spec, view, namespace, ("spec",))
                yield ClaimFindings("ResourceClaim", namespace, name, found)
        for name, spec in sorted(known.templates.items()):
            found = claim_findings(spec, view, namespace, ("spec", "spec"))
            yield ClaimFindings("ResourceClaimTemplate", namespace, name, found)


def _class_resource_findings(pod: Pod, view: ClusterView, namespace: str) -> Iterator[PolicyFinding]:
    """Yield what is wrong with the device classes that containers request by the names of extended resources.

    A name that some node advertises may be served without the class.
    """
    seen, served, spec = set[str](), view.devices.class_by_resource, pod.spec
    for kind, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(containers):
            for resource, amount in container.resources.limits.items():
                if (resource not in served and not resource.startswith(DEVICE_CLASS_PREFIX)) or resource in seen:
                    continue
                count = parse_whole_number(amount)
                if count and not is_advertised(resource, view):
                    seen.add(resource)
                    path = ("spec", kind, index, "resources", "limits", resource)
                    yield from _class_findings(resource, count, path, view, namespace)


def _class_findings(
    resource: str, count: int, path: FieldPath, view: ClusterView, namespace: str
) -> Iterator[PolicyFinding]:
    name = view.devices.class_by_resource.get(resource) or resource.removeprefix(DEVICE_CLASS_PREFIX)
    for each in claim_findings(claim_of_class(name, count), view, namespace, ()):
        message = each.message if name in resource else f"{each.message} (class {name} serves it)"
        yield msgspec.structs.replace(each, path=path, message=message)


def _absent_claim(one: PodResourceClaim, path: FieldPath, known: NamespaceClaims) -> PolicyFinding:
    name, names, kind = one.resource_claim_name, list(known.claims), "claim"
    if one.resource_claim_template_name:
        name, names, kind = one.resource_claim_template_name, list(known.templates), "template of claims"
    near = get_close_matches(name, names, n=1)
    message = f"must name a {kind} of this namespace, found {name}, which does not exist yet"
    return _warning("GPU-D110", path, message, f"Write {near[0]}." if near else "Create it.")


def _quota_findings(spec: ClaimSpec, view: ClusterView, namespace: str, path: FieldPath) -> Iterator[PolicyFinding]:
    """Yield the quotas that will reject a new claim, or one that is made from a template, in the API server's words."""
    charge = view.claim_context(namespace).charge(spec)
    for refusal in predict_claim_refusals(charge, view.quotas(namespace), view.classes):
        message = f"must fit the quotas of the namespace: {refusal.message}"
        yield _warning("GPU-D109", path, message, EXCEEDED_QUOTA)


def _shared_quota_findings(
    weight: GpuWeight, path: FieldPath, policies: Sequence[Policy], namespace: str, labels: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the shared quotas that a claim alone exceeds, also one of its products, whatever is in use.

    Args:
        weight: The most that it may weigh.
    """
    sections = [(one.name, one.quotas) for one in policies if one.quotas and one.quotas.mode is not PolicyMode.AUDIT]
    for policy, quota, mode in ((name, one, section.mode) for name, section in sections for one in section.shared):
        milli = quota.pool.counted_milli(weight) if quota.pool.includes_namespace(namespace, labels) else 0
        if milli > quota.gpu_milli:
            of_product = f" of {quota.product}" if quota.product else ""
            allowed = f"{quota.gpu_milli} thousandths of a GPU{of_product}"
            message = f"its pods will {_OUTCOMES[mode]}: quota {quota.name} allows {allowed}, found up to {milli}"
            fix = "Request fewer devices, or smaller or other ones."
            yield Finding("GPU-Q303", PolicyMode.WARN, path, message, fix, policy)


def _limit_findings(units: Mapping[str, int], path: FieldPath, policies: Sequence[Policy]) -> Iterator[Finding]:
    """Yield the limits of policies for all pods of a namespace that a pod exceeds by a claim alone.

    Args:
        units: The most units that the claim may get.
    """
    for policy in policies:
        if policy.limits is None or policy.limits.mode is PolicyMode.AUDIT:
            continue
        for name in sorted(units):
            most = most_units_of_pod(policy.limits, name)
            if most is not None and units[name] > most:
                outcome = _OUTCOMES[policy.limits.mode]
                message = f"its pods will {outcome}: a pod's {name} must be at most {most}, found up to {units[name]}"
                yield Finding("GPU-L103", PolicyMode.WARN, path, message, f"Request at most {most}.", policy.name)


@derived_value()
def _known_findings(_pools: DevicePools) -> DependentCache[bytes, list[PolicyFinding]]:
    return DependentCache(MAX_KNOWN_CLAIMS)


@derived_value()
def _known_replica_findings(
    _pools: DevicePools, _fleet: Fleet, _sources: GroupSources
) -> DependentCache[bytes, list[PolicyFinding]]:
    """Return the findings that also follow from the nodes that groups may add."""
    return DependentCache(MAX_KNOWN_CLAIMS)


def _digest(*parts: object) -> bytes:
    """Return the key of a cache of findings: it is short, whatever the claims are.

    The claims are made of stored templates: a small request can name many large ones, so its bytes bound no key.
    """
    return sha256(msgspec.json.encode(parts)).digest()


def claim_findings(spec: ClaimSpec, view: ClusterView, namespace: str, path: FieldPath) -> list[PolicyFinding]:
    """Return everything that prevents a claim from getting devices, or that gives it larger ones than it needs.

    What concerns devices is remembered until slices or classes change.

    Args:
        path: Where the specification stands in its object.
    """
    publishing = publishing_view(view)
    known, key = _known_findings(publishing.devices.pools).values_for(view.classes), _digest(spec)
    if (found := known.get(key)) is None:
        found = known.store(key, _device_findings(spec, publishing))
    if not NO_NODE.isdisjoint(one.code for one in found) and _new_nodes_have_devices((spec,), view):
        found = [one for one in found if one.code not in NO_NODE]
    restricted = _restricted_requests(spec, view, view.labels_of(namespace), ("devices",))
    return [msgspec.structs.replace(one, path=(*path, *one.path)) for one in (*restricted, *found)]


def _device_findings(spec: ClaimSpec, view: ClusterView) -> list[PolicyFinding]:
    devices: FieldPath = ("devices",)
    found, matching = list[PolicyFinding](), list[PublishedDevice]()
    if _size_of_selectors(spec, view.classes) > MAX_SELECTOR_BYTES:
        return list(islice(_overlong_selectors(spec, devices), 1))
    is_known, most = bool(spec.devices.requests and view.devices.pools), MAX_VALUES // max(1, _count_choices(spec))
    for index, request in enumerate(spec.devices.requests):
        choices = [
            _match_request(one, where, view, most) for one, where in _choices_of(request, (*devices, "requests", index))
        ]
        found += _needed_findings([one.findings for one in choices])
        is_known = is_known and all(one.is_known for one in choices)
        matching += [each for one in choices for each in one.devices]
    found += _too_many_devices(spec, (*devices, "requests"))
    twice = list(_twice_published(matching, view, (*devices, "requests")))
    if is_known and UNALLOCATABLE.isdisjoint(one.code for one in found):
        with suppress(UnmodeledExpressionError):
            found += _allocation_findings(spec, matching, view, devices)
    return found + twice


def _twice_published(devices: Sequence[PublishedDevice], view: ClusterView, path: FieldPath) -> Iterator[PolicyFinding]:
    """Yield that some of these devices are published twice, with all nodes where they are."""
    nodes, publishers = 0, list[str]()
    for pair, mask in devices_published_twice(view.devices.pools, view.fleet).items() if devices else ():
        common = union_masks(each.nodes for each in devices if pair.publish(each, view.devices.pools)) & mask
        nodes |= common
        publishers += [f"by {pair.first} and by {pair.second}"] if common else []
    if nodes:
        names = abbreviate_names([view.fleet.nodes[index].name for index in bit_positions(nodes)])
        twice = " or ".join(publishers[:MAX_PUBLISHERS])
        message = f"may be devices that are published twice, {twice}, on {names}: another pod can get the same one"
        yield _warning(TWICE, path, message, ASK)


def _overlong_selectors(spec: ClaimSpec, path: FieldPath) -> Iterator[PolicyFinding]:
    for request, where in _requests_of(spec, path):
        for index, selector in enumerate(request.selectors):
            if len(selector.cel.expression.encode()) > MAX_EXPRESSION_BYTES:
                message = f"must be at most {MAX_EXPRESSION_BYTES} bytes long"
                yield _warning("GPU-D107", (*where, "selectors", index, "cel", "expression"), message, "Shorten it.")


def _size_of_selectors(spec: ClaimSpec, classes: DeviceClasses) -> int:
    """Return the bytes of all expressions of a claim, those of its classes included, and some for each."""
    expressions = (one for request, _ in _requests_of(spec, ()) for one in _expressions_of(request, classes))
    return sum(len(one.encode()) + BYTES_PER_SELECTOR for one in expressions)


def _expressions_of(request: DeviceRequest, classes: DeviceClasses) -> Iterator[str]:
    name = request.device_class_name
    of_class = classes[name].selectors if name in classes else ()
    yield from (selector.cel.expression for selector in (*of_class, *request.selectors))


def _needed_findings(choices: Sequence[Sequence[PolicyFinding]]) -> list[PolicyFinding]:
    """Return the findings of the choices of a request; one may match no device if another does."""
    unmatched = [any(one.code == NO_MATCH for one in findings) for findings in choices]
    return [one for findings in choices for one in findings if one.code != NO_MATCH or all(unmatched)]


def _requests_of(spec: ClaimSpec, path: FieldPath) -> Iterator[tuple[DeviceRequest, FieldPath]]:
    for index, request in enumerate(spec.devices.requests):
        yield from _choices_of(request, (*path, "requests", index))


def _choices_of(request: ClaimRequest, path: FieldPath) -> Iterator[tuple[DeviceRequest, FieldPath]]:
    if request.exactly is not None:
        yield request.exactly, (*path, "exactly")
    for place, choice in enumerate(request.first_available):
        yield choice, (*path, "firstAvailable", place)


def _count_choices(spec: ClaimSpec) -> int:
    return sum(1 for _ in _requests_of(spec, ()))


def _restricted_requests(
    spec: ClaimSpec, view: ClusterView, labels: Mapping[str, str], path: FieldPath
) -> Iterator[PolicyFinding]:
    """Yield requests that only namespaces for administration should have: access to devices in use, or all devices."""
    if labels.get(ADMIN_ACCESS_LABEL) == "true":
        return
    for request, where in _requests_of(spec, path):
        if request.admin_access:
            message = f"must not be true without the label {ADMIN_ACCESS_LABEL}: true of the namespace"
            yield _warning("GPU-D108", (*where, "adminAccess"), message, "Remove it.")
        elif request.allocation_mode == "All" and may_hold_gpus(request.device_class_name, view.classes):
            message = "requests every matching device of a node, and waits until nobody has one of them"
            yield _warning("GPU-D111", (*where, "allocationMode"), message, "Write ExactCount, and a count.")


def _match_request(request: DeviceRequest, path: FieldPath, view: ClusterView, most: int) -> RequestMatch:
    """Return the findings of a request, and the devices that it may get.

    Args:
        request: The request, or a choice of one.
        path: Where it stands.
        view: The cluster.
        most: Attributes and capacities of devices that may be looked at.
    """
    name = request.device_class_name
    if name not in view.classes and (view.classes or view.devices.pools):
        return RequestMatch([_absent_class(name, path, view.classes)])
    try:
        selectors = list(_selectors_of(request, path, view.classes))
        if not view.devices.pools:
            return RequestMatch()
        keys = keys_told_apart(one.program.expression for one in selectors)
        published = published_devices(view.devices.pools, view.fleet, keys)
        if published.values > most:
            return RequestMatch()
        found = match_request(selectors, published, request.capacity.requests, (*path, "capacity", "requests"))
        return found._replace(is_known=name in view.classes)
    except _RejectedSelectorError as error:
        return RequestMatch([error.finding])
    except UnmodeledExpressionError:
        return RequestMatch()


class _RejectedSelectorError(Exception):
    """A selector that the API server rejects, as a finding."""

    def __init__(self, finding: PolicyFinding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def _selectors_of(request: DeviceRequest, path: FieldPath, classes: DeviceClasses) -> Iterator[RequestSelector]:
    """Yield the selectors of a request's class, then those of the request, as the scheduler evaluates them."""
    name = request.device_class_name
    for selector in classes[name].selectors if name in classes else ():
        yield _compile_or_reject(selector.cel.expression, (*path, "deviceClassName"), name)
    for index, selector in enumerate(request.selectors):
        yield _compile_or_reject(selector.cel.expression, (*path, "selectors", index, "cel", "expression"), "")


def _compile_or_reject(expression: str, path: FieldPath, class_name: str) -> RequestSelector:
    try:
        return compile_selector(expression, path, class_name)
    except SelectorCompileError as error:
        message = f"must be CEL on a device, found at {error.place_in(expression)}: {error.reason}"
        fix = COMPARE_QUANTITIES if QUANTITY in error.reason else ""
        raise _RejectedSelectorError(_warning("GPU-D107", path, message, fix)) from None


def _absent_class(name: str, path: FieldPath, classes: DeviceClasses) -> PolicyFinding:
    near = get_close_matches(name, classes, n=1) or sorted(classes)[:3]
    message = f"must be a device class of this cluster, {'' if classes else 'which has none, '}found {name}"
    fix = f"Write {' or '.join(near)}." if near else "Create it."
    return _warning("GPU-D106", (*path, "deviceClassName"), message, fix)


def _allocation_findings(
    spec: ClaimSpec, matching: Sequence[PublishedDevice], view: ClusterView, path: FieldPath
) -> list[PolicyFinding]:
    """Return why no node could allocate a claim even if all its devices were free.

    A request for all devices is for fewer of them while others have no room, so it may succeed only then.
    """
    if any(request.allocation_mode == "All" for request, _ in _requests_of(spec, ())):
        return list(_all_are_too_many(spec, view, path))
    outcome = _allocate_anywhere((spec,), view)
    if outcome is not AllocationOutcome.REJECTED:
        return []
    if spec.devices.constraints:
        devices = msgspec.structs.replace(spec.devices, constraints=())
        if _allocate_anywhere([msgspec.structs.replace(spec, devices=devices)], view) is AllocationOutcome.ALLOCATED:
            message = "must hold for some devices of one node, found none; without them a node has enough devices"
            return [_warning("GPU-D105", (*path, "constraints"), message, "Remove the constraint that does not hold.")]
    keys = sorted({taint.key for each in matching for taint in each.device.taints if taint.effect in HARD_EFFECTS})
    if keys and _allocate_anywhere([_tolerating_all(spec)], view) is AllocationOutcome.ALLOCATED:
        message = f"must tolerate a taint of the devices that match: {abbreviate_names(keys)}"
        return [_warning("GPU-D104", (*path, "requests"), message, "Add a toleration, or request other devices.")]
    message = "must be devices that one node has, found no node of this cluster that has all of them"
    return [_warning("GPU-D104", (*path, "requests"), message, "Request fewer devices.")]


def _tolerating_all(spec: ClaimSpec) -> ClaimSpec:
    requests = tuple(map(_request_tolerating_all, spec.devices.requests))
    return msgspec.structs.replace(spec, devices=msgspec.structs.replace(spec.devices, requests=requests))


def _request_tolerating_all(request: ClaimRequest) -> ClaimRequest:
    tolerations = (Toleration(operator="Exists"),)
    choices = [msgspec.structs.replace(one, tolerations=tolerations) for one in request.choices]
    if request.first_available:
        return msgspec.structs.replace(request, first_available=tuple(choices))
    return msgspec.structs.replace(request, exactly=choices[0] if choices else None)


def _too_many_devices(spec: ClaimSpec, path: FieldPath) -> Iterator[PolicyFinding]:
    """Yield that a claim requests more devices than it can get, whatever its choices."""
    counted = [one.choices for one in spec.devices.requests if one.choices]
    least = sum(min(0 if one.allocation_mode == "All" else one.count for one in choices) for choices in counted)
    if least > MAX_DEVICES:
        message = f"must be at most {MAX_DEVICES} devices together, found {least}, which ends scheduling on all nodes"
        yield _warning("GPU-D104", path, message, "Request fewer devices, or make several claims.")


def _all_are_too_many(spec: ClaimSpec, view: ClusterView, path: FieldPath) -> Iterator[PolicyFinding]:
    """Yield that all devices of some node are more than a claim can get: devices that are in use count."""
    for node, found in _allocations((spec,), view):
        if found.reason.endswith(TOO_MANY_DEVICES):
            name = view.fleet.nodes[node].name
            message = f"must be for at most {MAX_DEVICES} devices: all of node {name} are more"
            fix = "Write ExactCount, or selectors that match fewer devices of a node."
            yield _warning("GPU-D104", (*path, "requests"), f"{message}, which ends scheduling on all nodes", fix)
            return


def _allocate_anywhere(specs: Sequence[ClaimSpec], view: ClusterView, nodes: int = -1) -> AllocationOutcome:
    """Return whether some node of a mask could allocate claims together if all its devices were free."""
    outcomes = (found.outcome for _, found in _allocations(specs, view, nodes))
    return next((one for one in outcomes if one is not AllocationOutcome.REJECTED), AllocationOutcome.REJECTED)


def _allocations(
    specs: Sequence[ClaimSpec], view: ClusterView, nodes: int = -1
) -> Iterator[tuple[int, NodeAllocation]]:
    """Yield what a node of each kind would allocate if all its devices were free, until that takes too long."""
    pools, steps, shared = view.devices.pools, 0, view.devices.pools.shared_counter_names
    claims = [NamedClaim(f"claim {index}", spec) for index, spec in enumerate(specs)]
    for node in _nodes_to_try(specs, view, nodes):
        of_node = pools.pools_of_node(node)
        found = allocate_on_node(
            claims, of_node, {}, view.classes, select_device, shared_names=shared, max_steps=MAX_STEPS - steps
        )
        yield node, found
        steps += found.steps + sum(len(pool.devices) for pool in of_node)
        if steps > MAX_STEPS:
            yield node, NodeAllocation(AllocationOutcome.UNKNOWN)
            return


def _nodes_to_try(specs: Sequence[ClaimSpec], view: ClusterView, mask: int) -> Sequence[int]:
    """Return a node of each kind, or those of a mask of a few; constraints may tell all nodes apart.

    Raises:
        UnmodeledExpressionError: There are too many.
    """
    pools, fleet = view.devices.pools, view.fleet
    candidates = mask & nodes_of_slices(pools, fleet)
    if candidates != nodes_of_slices(pools, fleet):
        nodes: Sequence[int] = list(bit_positions(candidates))
    else:
        requests = [request for spec in specs for request, _ in _requests_of(spec, ())]
        expressions = [one for request in requests for one in _expressions_of(request, view.classes)]
        kinds = published_devices(pools, fleet, keys_told_apart(expressions)).nodes
        constrained = any(spec.devices.constraints for spec in specs)
        nodes = range(len(fleet.nodes)) if kinds is None or constrained else kinds
    if len(nodes) > MAX_KINDS:
        raise UnmodeledExpressionError(f"there are more than {MAX_KINDS} kinds of nodes")
    return nodes


def _warning(code: str, path: FieldPath, message: str, fix: str) -> PolicyFinding:
    return PolicyFinding(code, path, message, fix, at_most=PolicyMode.WARN)
