"""Node fit of step 7: problems that would only appear later, in the scheduler or the kubelet.

Every violation names the nearest available alternative. Most are warnings, because an autoscaler may add a suitable
node. Names that a DeviceClass has too are skipped: the scheduler may allocate devices by a claim, on nodes that
advertise none.

Replica fit of step 7: how many pods of a workload the nodes could run at once, were no other pods there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from functools import reduce
from operator import and_

from webhook.engine.gpu_requests import GpuRequest, containers_of_every_kind
from webhook.engine.memory_takers import takes_visible_memory
from webhook.engine.new_nodes import NewNodes, find_new_nodes, may_run_on_new_node
from webhook.engine.owned_pods import daemon_set_nodes
from webhook.engine.pod_context import GpuPodContext, PodContext, PodMutation
from webhook.engine.policy_findings import PolicyFinding
from webhook.model.bounded_cache import request_cache
from webhook.model.claims import claim_of_class, may_hold_gpus
from webhook.model.cluster_view import ClusterView
from webhook.model.derived_values import derived_value
from webhook.model.dra.claim_weights import count_claim_units
from webhook.model.dra.device_view import DeviceKind
from webhook.model.enums import GpuForm, PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.filters.pod_ties import HOSTNAME, count_pods_apart, self_excluding_keys
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.node_masks import ThresholdIndex, bit_positions, union_masks
from webhook.model.objects import Taint, tolerates_all
from webhook.model.offers import GpuOffer
from webhook.model.pods import Pod, is_daemon_pod, required_terms
from webhook.model.quantity import parse_whole_number

NO_NODE = frozenset({"GPU-T201", "GPU-T202", "GPU-T203", "GPU-T204", "GPU-T205"})
"""Findings that no node can run a pod."""

REQUIRED_AFFINITY: FieldPath = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


def node_fit_violations(context: GpuPodContext, mutation: PodMutation) -> list[PolicyFinding]:
    """Return everything that prevents a pod from getting the GPUs it requests."""
    gpu_requests, violations, of_gpus = context.gpu_requests, list[PolicyFinding](), list[PolicyFinding]()
    if gpu_requests.unknown_resources or gpu_requests.other_resources:
        violations += unoffered_resource_violations(context)
    for one in gpu_requests.requests:
        if one.count and one.resource.name not in context.view.claimable_names:
            of_gpus += _check_gpu_request(one, context, mutation)
    if not of_gpus:
        return violations
    if not NO_NODE.isdisjoint(each.code for each in of_gpus) and may_run_on_new_node(context):
        of_gpus = [each for each in of_gpus if each.code not in NO_NODE]
    return violations + of_gpus


def unoffered_resource_violations(context: PodContext) -> list[PolicyFinding]:
    """Return the extended resources, other than GPUs, that no node advertises."""
    view, gpu_requests = context.view, context.gpu_requests
    wanted = (*gpu_requests.unknown_resources, *gpu_requests.other_resources)
    if not view.fleet.nodes or view.fleet.extended_resources.issuperset(wanted):
        return []
    if DeviceKind.CLASS in view.devices.unlisted:
        return []
    missing = set(wanted) - view.fleet.extended_resources - view.claimable_names
    if missing and (new := find_new_nodes(context)).allowed:
        missing -= new.fleet.extended_resources
    fix = "Remove it, unless the scheduler ignores this name: no node of this cluster advertises it."
    return [
        _warn("GPU-T201", (*path, "resources", side, name), "must be offered by a node of this cluster", fix)
        for path, container in containers_of_every_kind(context.pod.spec)
        for side, amounts in (("limits", container.resources.limits), ("requests", container.resources.requests))
        for name in amounts
        if name in missing and parse_whole_number(amounts[name]) != 0
        if side == "limits" or name not in container.resources.limits
    ]


def _check_gpu_request(request: GpuRequest, context: GpuPodContext, mutation: PodMutation) -> list[PolicyFinding]:
    name, fleet, pod = request.resource.name, context.view.fleet, context.pod
    field = (*request.path, "resources", "limits", name)
    advertising, selected, tolerated = (
        fleet.nodes_advertising(name),
        context.feasible.selected,
        context.feasible.tolerated,
    )
    if not advertising:
        sources = context.view.group_sources
        if DeviceKind.CLASS in context.view.devices.unlisted:
            return []  # a class may serve it
        if (sources.groups or sources.machines) and context.view.view_new_nodes().fleet.nodes_advertising(name):
            return []
        if same := _same_share_elsewhere(name, fleet):
            return [_warn("GPU-T201", field, "must be offered by a node of this cluster", same)]
        near = nearest_resources(name, tuple(fleet.by_resource))
        fix = f"Nearest in this cluster: {', '.join(near)}." if near else _without_plugin_fix(name, context.view)
        return [_warn("GPU-T201", field, "must be offered by a node of this cluster", fix)]
    if not advertising & selected:
        return [_excluded_by_selectors(name, pod, fleet)]
    total = context.gpu_requests.totals[name]
    if total > 1 and total > (most := fleet.max_units(name, advertising & selected)):
        everywhere = fleet.max_units(name, advertising)
        message = f"must be at most {most}, the most on one node that this pod may use (found {total} in the pod)"
        elsewhere = f" Other nodes have up to {everywhere}." if everywhere >= total else ""
        return [_warn("GPU-T202", field, message, f"Request at most {most}.{elsewhere}")]
    violations: list[PolicyFinding] = []
    if not (enough := fleet.nodes_advertising(name, total) & selected or advertising & selected) & tolerated:
        offers = [offer for offer in context.offers if offer.resource == name and offer.nodes & enough]
        violations.append(_untolerated_taint(name, total, offers, pod))
    if request.count > 1:
        able = (fleet.nodes_advertising(name, total) & selected & tolerated) or selected
        offers = [offer for offer in context.offers if offer.resource == name and offer.nodes & able]
        violations += _multiple_shares(request, offers, field)
    only_partial = total > 1 and not violations and not advertising & selected & tolerated & ~fleet.partial_gpu_nodes
    if name == WHOLE_GPU and (context.mixes_whole_and_partial or only_partial):
        violations += _partial_gpu_violation(context, mutation, field, total)
    return violations


def _without_plugin_fix(name: str, view: ClusterView) -> str:
    """Return what to write where no device plugin advertises GPUs: the class with the fewest other devices."""
    devices = view.devices
    if not devices.pools:
        return "No node of this cluster advertises GPUs."
    classes = [one for one in sorted(view.classes) if may_hold_gpus(one, view.classes)]
    found = {one: count_claim_units(claim_of_class(one), devices, view.fleet)[0] for one in classes}
    fitting = [one for one, each in found.items() if each.is_known and name in each.units]
    fitting.sort(key=lambda one: len(found[one].units))
    published = "The GPUs of this cluster are published in ResourceSlices, not by a device plugin"
    if not fitting:
        return f"{published}, and no device class has {name}."
    return f"{published}: request one by a claim of class {fitting[0]}."


def _same_share_elsewhere(name: str, fleet: Fleet) -> str:
    """Return a node that offers the same slice or share under another name, and what to write; "" if there is none."""
    wanted = parse_gpu_resource(name)
    if wanted is None or not (wanted.mig or wanted.shared):
        return ""
    same = (one for one in fleet.offers if (one.profile, one.replicas > 1) == (wanted.profile, wanted.shared))
    offer = next(same, None)
    if offer is None:
        return ""
    node = fleet.nodes[next(bit_positions(offer.nodes))].name
    selector = ", ".join(f"{key}: {value}" for key, value in offer.selector)
    write = f"Write {offer.resource}" + (f" and the node selector {selector}" if selector else "")
    return f"Node {node} offers it as {offer.resource}. {write}."


def _warn(code: str, field: FieldPath, message: str, fix: str) -> PolicyFinding:
    return PolicyFinding(code, field, message, fix, at_most=PolicyMode.WARN)


@request_cache(1024)
def nearest_resources(name: str, existing: tuple[str, ...]) -> tuple[str, ...]:
    """Return up to three resource names by similarity: profiles of similar size first."""
    wanted = parse_gpu_resource(name)
    slices = wanted.slices if wanted and wanted.mig else 7

    def distance(other: str) -> tuple[int, str]:
        known = parse_gpu_resource(other)
        return (abs((known.slices if known and known.mig else 7) - slices), other)

    return tuple(sorted(existing, key=distance)[:3])


def _excluded_by_selectors(name: str, pod: Pod, fleet: Fleet) -> PolicyFinding:
    offered = _products_by_resource(fleet)[name]
    required, path = _required_products(pod)
    if required and _known_products(fleet).isdisjoint(required):
        message = f"{PRODUCT_LABEL} must be a product of this cluster (found {', '.join(required)[:120]})"
        similar = _similar_products(required[0][:63], offered)
        fix = f"Write one of {', '.join(similar)}." if similar else "Remove the selector: no node has this label."
        return _warn("GPU-T203", path, message, fix)
    message = f"nodeSelector and affinity exclude every node that offers {name}"
    fix = f"{name} is offered by {', '.join(offered[:5]) or 'nodes without a product label'}."
    return _warn("GPU-T204", _narrowest_field(name, pod, fleet), message, fix)


def _narrowest_field(name: str, pod: Pod, fleet: Fleet) -> FieldPath:
    """Return the field that alone leaves no node with a resource; without one, the last that narrows."""
    selector, advertising = pod.spec.node_selector, fleet.nodes_advertising(name)
    for key, value in selector.items():
        if not fleet.select_nodes({key: value}, None) & advertising:
            return ("spec", "nodeSelector", key)
    if not fleet.select_nodes(selector, None) & advertising or not (required_terms(pod.spec) or ()):
        return ("spec", "nodeSelector")
    return REQUIRED_AFFINITY


@derived_value()
def _known_products(fleet: Fleet) -> frozenset[str]:
    return frozenset(fleet.products_of_nodes(fleet.all_nodes))


@derived_value()
def _products_by_resource(fleet: Fleet) -> Mapping[str, tuple[str, ...]]:
    named = ((name, [offer.product for offer in offers]) for name, offers in fleet.by_resource.items())
    return {name: tuple(filter(None, dict.fromkeys(products))) for name, products in named}


@request_cache(1024)
def _similar_products(product: str, others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(others, key=lambda one: -SequenceMatcher(None, one, product).ratio())[:5])


def _required_products(pod: Pod) -> tuple[tuple[str, ...], FieldPath]:
    """Return the products that the pod's selectors require, and the field of the first."""
    spec = pod.spec
    if PRODUCT_LABEL in spec.node_selector:
        return (spec.node_selector[PRODUCT_LABEL],), ("spec", "nodeSelector", PRODUCT_LABEL)
    required = [
        (one.values, (*REQUIRED_AFFINITY, "nodeSelectorTerms", i, "matchExpressions", j, "values"))
        for i, term in enumerate(required_terms(spec) or ())
        for j, one in enumerate(term.match_expressions)
        if one.key == PRODUCT_LABEL and one.operator == "In"
    ]
    if not required:
        return (), ()
    return tuple(dict.fromkeys(value for values, _ in required for value in values)), required[0][1]


def _untolerated_taint(name: str, count: int, offers: Iterable[GpuOffer], pod: Pod) -> PolicyFinding:
    untolerated = (
        taint for offer in offers for taint in offer.taints if not tolerates_all(pod.spec.tolerations, (taint,))
    )
    taint = next(untolerated, Taint(key="(unknown)"))
    amount = f"{count} {name}" if count > 1 else name
    message = f"must tolerate the taint {taint.text} of the nodes that offer {amount}"
    return _warn("GPU-T205", ("spec", "tolerations"), message, f"Tolerate {taint.text}.")


def _multiple_shares(request: GpuRequest, offers: list[GpuOffer], field: FieldPath) -> list[PolicyFinding]:
    if not offers or any(offer.replicas == 1 for offer in offers):
        return []
    if all(offer.form is GpuForm.MPS for offer in offers):
        message = (
            f"must be at most 1 per container, because the kubelet rejects more MPS shares (found {request.count})"
        )
        return [PolicyFinding("GPU-T102", field, message, "Request 1, or a whole GPU.")]
    message = f"{request.count} time-sliced shares may be on one card, and some nodes reject more than 1"
    return [_warn("GPU-T101", field, message, "Request 1, or whole GPUs.")]


def _partial_gpu_violation(
    context: GpuPodContext, mutation: PodMutation, field: FieldPath, count: int
) -> list[PolicyFinding]:
    """Report that nvidia.com/gpu may be a slice, with MIG strategy single, or a share that is not renamed.

    A warning if that would do harm: to several GPUs, which could not access each other, to a larger declared need, or
    to a framework that takes the memory it sees.
    """
    fleet, added = context.view.fleet, mutation.required_node_affinity
    excluding = {(PRODUCT_LABEL, "NotIn"), *((key, "DoesNotExist") for key in fleet.partial_gpu_labels)}
    if any((one.key, one.operator) in excluding for one in added):
        return []
    products = ", ".join(fleet.partial_gpu_products or fleet.partial_gpu_labels) or "no product label"
    several = "partial GPUs, which cannot access each other," if count > 1 else "a partial GPU"
    message = f"may be {several} on nodes with {products}"
    label = PRODUCT_LABEL if fleet.partial_gpu_products else " and ".join(fleet.partial_gpu_labels) or PRODUCT_LABEL
    fix = f"Add a node affinity on {label} to get whole GPUs only."
    need = context.declared_need.memory_mib
    too_small = need is not None and any(
        offer.form is not GpuForm.WHOLE and (offer.memory_mib is None or offer.memory_mib < need)
        for offer in context.offers
    )
    harmful = count > 1 or too_small or takes_visible_memory(context)
    return [PolicyFinding("GPU-T302", field, message, fix, PolicyMode.WARN if harmful else PolicyMode.AUDIT)]


UnitsIndex = Callable[[str], ThresholdIndex]
"""Returns the units of a GPU resource by node: all of them, or those that are free."""


def replica_fit_violations(context: GpuPodContext, mutation: PodMutation) -> list[PolicyFinding]:
    """Report that the nodes cannot run all pods of a workload at once, with the number that they can run.

    The number is an upper bound: amounts besides GPUs are not counted. A DeviceClass may serve any number. Nodes that
    groups may add count, as many as their limits leave.
    """
    view, replicas, names = context.view, context.request.replicas, context.gpu_requests.totals
    if not view.fleet.nodes or not view.claimable_names.isdisjoint(names) or not all(map(_is_positive, names.values())):
        return []
    live = _count_replicas(view.fleet.units_index, context, mutation)
    if live >= replicas:
        return []
    added = _count_on_new_nodes(context, mutation)
    if live + added >= replicas or not (live or added or is_daemon_pod(context.pod)):
        return []
    free = min(live, _count_replicas(view.free_index, context, mutation))
    return [_too_many_replicas(live, added, free, context)]


def _is_positive(units: int) -> bool:
    return units > 0


def _count_replicas(units: UnitsIndex, context: GpuPodContext, mutation: PodMutation) -> int:
    """Return at most how many of the pods fit."""
    fleet, feasible, totals = context.view.fleet, context.feasible, context.gpu_requests.totals
    nodes = feasible.selected & feasible.tolerated & fleet.schedulable_nodes(context.pod.spec.tolerations)
    if is_daemon_pod(context.pod):
        nodes &= daemon_set_nodes(context.pod, fleet)
    resized = mutation.applied_choice is not None  # later pods may get another slice or share, or a whole GPU
    wanted = [(units(name), amount) for name, amount in totals.items()]
    wanted = [(units(name), 1) for name in fleet.resources()] if resized else wanted
    able = [index.nodes_with_at_least(amount) for index, amount in wanted]
    fitting = nodes & (union_masks(able) if resized else reduce(and_, able))
    one_each = bool(feasible.ports) or is_daemon_pod(context.pod)

    def count(mask: int) -> int:
        if one_each:
            return mask.bit_count()
        fits = [index.count_times(amount, mask) for index, amount in wanted]
        return sum(fits) if resized else min(fits)

    return count_pods_apart(_excluding_keys(context), fitting, count, fleet)


def _count_on_new_nodes(context: GpuPodContext, mutation: PodMutation) -> int:
    """Return at most how many of the pods fit on nodes that groups may add; a DaemonSet gets more pods with them."""
    if is_daemon_pod(context.pod):
        return 0
    new, keys = find_new_nodes(context), _excluding_keys(context)
    one_each = bool(keys or context.feasible.ports)
    total = 0
    for index in bit_positions(new.allowed):
        units = _units_of_new_node(new, index, context, resized=mutation.applied_choice is not None)
        nodes = _nodes_to_add(new, index, keys, context)
        total += nodes * (min(1, units) if one_each else units)
    return total


def _units_of_new_node(new: NewNodes, index: int, context: GpuPodContext, *, resized: bool) -> int:
    """Return how many of the pods a new node can run; a resized one may get any GPU resource."""
    gpus = new.fleet.nodes[index].gpus
    if resized:
        return sum(gpus.values())
    return min(gpus.get(name, 0) // amount for name, amount in context.gpu_requests.totals.items())


def _nodes_to_add(new: NewNodes, index: int, keys: Iterable[str], context: GpuPodContext) -> int:
    """Return how many nodes a group may add for pods that exclude each other: one for each domain without a node."""
    left, live, labels = new.groups[index].nodes_left, context.view.fleet, new.fleet.nodes[index].labels
    limits = [context.request.replicas if left is None else left]
    shared = (key for key in keys if key != HOSTNAME)
    limits += [int(key in labels and not live.select_nodes({key: labels[key]}, None)) for key in shared]
    return min(limits)


def _excluding_keys(context: GpuPodContext) -> tuple[str, ...]:
    return self_excluding_keys(context.feasible.ties(), context.namespace.labels)


def _too_many_replicas(live: int, added: int, free: int, context: GpuPodContext) -> PolicyFinding:
    """Report the pods that can run: on live nodes, on nodes that groups may add, and on free GPUs."""
    most = live + added
    request = max(context.gpu_requests.requests, key=lambda one: one.count)
    resource, replicas = request.resource.name, context.request.replicas
    nodes = "the nodes that they may use, and that node groups may add," if added else "the nodes that they may use"
    why, fix = f"{nodes} have too few GPUs for more", f"Run at most {most} of them at once."
    if is_daemon_pod(context.pod):
        why = f"its controller also creates pods on nodes without {request.count} {resource}"
        fix = f"Select the nodes with {resource}, and tolerate their taints, in the template: its controller chooses "
        fix += "nodes by the template alone."
    elif _excluding_keys(context):
        why = "they exclude each other by their anti-affinity"
    number = f"at most {most} of" if most else "none of"
    now = f", {free} of them now" if free < most else ""
    message = f"{number} {replicas} pods would run at once{now}: {why}"
    return PolicyFinding("GPU-T206", (*request.path, "resources", "limits", resource), message, fix, PolicyMode.WARN)
