"""The accounting resource: the GPUs of every container in thousandths of a whole card.

One unit for every form, so that one ResourceQuota on `requests.rightslice.dev/gpu-milli` bounds them all. A whole GPU
is 1000. A MIG instance is its share of its card's memory or compute slices, whichever is larger; a share of a card is
1000 divided by its replicas. Both round up: a partitioned card may count some thousandths more than a card, never less.
If one name counts differently on the candidate nodes, the largest value is used. Values above the API server's largest
integer count as that integer, which exceeds every quota.

Claims of a pod, and resources that device classes serve, count as in shared quotas (`webhook.model.dra.claim_weights`)
with the first container that uses them. A claim that pods share counts with each of them, because a ResourceQuota adds
up pods; one that is not known counts as the most that a claim can have.

A pod must never wait for it. So it is written only if an admin declares that every scheduler ignores it, or if every
node that advertises what the pod requests, and that its selectors allow, advertises enough of it. State, taints and
free capacity of these nodes do not matter, because they may change while the pod waits. For devices of claims, only the
former counts: nodes advertise it for the GPUs of device plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from webhook.engine.gpu_requests import container_at, init_then_main_containers
from webhook.engine.limitrange.findings import paths_below_minimum
from webhook.engine.pod_context import GpuPodContext, PodContext, PodMutation
from webhook.engine.policy_findings import PolicyFinding
from webhook.model.apimachinery import MAX_MILLI
from webhook.model.dra.claim_weights import ServedUnit, weigh_class_units
from webhook.model.dra.device_view import NO_DEVICES
from webhook.model.dra.extended_resources import amounts_of_container
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, parse_gpu_resource
from webhook.model.limit_ranges import NamespaceLimitRanges
from webhook.model.node_masks import union_masks
from webhook.model.pod_summary import allowed_nodes, node_constraints, pod_claim_uses
from webhook.model.pods import Pod
from webhook.model.quantity import NANO, parse_nano_or_none, parse_whole_number
from webhook.policy.policy_set import LimitRules


def write_accounting(context: PodContext, mutation: PodMutation) -> None:
    """Write the GPUs of every container, replacing any value of the user, and "0" where another one names them.

    If a LimitRange would reject the zero as below its minimum, the present value stays: too high a value bypasses no
    quota.
    """
    amounts = _accounted_milli(context, mutation)
    for path, milli in amounts.items():
        _write_accounting_amount(mutation, path, str(milli))
    others = [
        path
        for path, container in init_then_main_containers(mutation.pod.spec)
        if ACCOUNTING_RESOURCE in container.resources.limits or ACCOUNTING_RESOURCE in container.resources.requests
        if path not in amounts
    ]
    ranges = context.namespace.ranges
    kept = _zeros_below_minimum(mutation, others, ranges) if ranges and others else set()
    for path in others:
        if not kept & {path, ("spec",)}:
            _write_accounting_amount(mutation, path, "0")


def _accounted_milli(context: PodContext, mutation: PodMutation) -> dict[FieldPath, int]:
    """Return the amounts of the containers of a pod that can be scheduled with them."""
    amounts: dict[FieldPath, int] = {}
    if isinstance(context, GpuPodContext) and is_accounting_schedulable(context, mutation):
        amounts = gpu_milli_by_container(context, mutation)
    return _with_device_milli(amounts, context, mutation)


def _with_device_milli(
    amounts: dict[FieldPath, int], context: PodContext, mutation: PodMutation
) -> dict[FieldPath, int]:
    """Return amounts with those of devices, where the scheduler ignores the resource."""
    if not context.policies.accounting_ignored or context.view.devices is NO_DEVICES:
        return amounts
    return _sum_by_container((*amounts.items(), *device_milli_by_container(context, mutation)))


def device_milli_by_container(context: PodContext, mutation: PodMutation) -> Iterator[tuple[FieldPath, int]]:
    """Yield the thousandths of a GPU of each claim, and of each resource that only a device class serves."""
    view, pod = context.view, mutation.pod
    devices, served = view.devices, view.devices.class_by_resource
    if pod.spec.resource_claims and pod.spec.containers:  # the API server rejects a pod without containers later
        weights = view.cluster_claims(context.request.namespace).weigh_each_claim(
            context.request.namespace, pod_claim_uses(pod), view.fleet
        )
        for claim, milli in zip(pod.spec.resource_claims, weights, strict=True):
            if milli:
                yield _container_of_claim(pod, claim.name), milli
    for path, container in init_then_main_containers(pod.spec) if served else ():
        for name, amount in amounts_of_container(container).items():
            count = parse_whole_number(amount) if name in served and parse_gpu_resource(name) is None else None
            if count:
                weight = weigh_class_units({ServedUnit(name): count}, devices, view.fleet)
                yield path, sum(milli for _, milli in weight)


def _container_of_claim(pod: Pod, claim: str) -> FieldPath:
    """Return the first container that uses a claim of the pod; the first one of all if none does."""
    using = (
        path
        for path, container in init_then_main_containers(pod.spec)
        if any(isinstance(one, dict) and one.get("name") == claim for one in container.resources.claims)
    )
    return next(using, ("spec", "containers", 0))


def is_accounting_schedulable(context: GpuPodContext, mutation: PodMutation) -> bool:
    """Return whether a pod that requests the accounting resource can be scheduled."""
    if context.policies.accounting_ignored:
        return True
    fleet, names = context.view.fleet, _final_resource_names(context, mutation)
    advertising = union_masks(fleet.nodes_advertising(name) for name in names)
    return fleet.all_advertise_accounting(advertising & _accounting_nodes(context, mutation))


def gpu_milli_by_container(context: GpuPodContext, mutation: PodMutation) -> dict[FieldPath, int]:
    """Return the thousandths of a GPU that each requesting container of the changed pod requests."""
    nodes = _accounting_nodes(context, mutation)
    return _sum_by_container(
        (one.path, one.count * _unit_milli(name, context, nodes))
        for one, name in zip(context.gpu_requests.requests, _final_resource_names(context, mutation), strict=True)
    )


def _unit_milli(name: str, context: GpuPodContext, nodes: int) -> int:
    if parse_gpu_resource(name) is None:  # a device class serves it
        view = context.view
        return sum(milli for _, milli in weigh_class_units({ServedUnit(name): 1}, view.devices, view.fleet))
    return context.view.fleet.unit_weight(name, nodes).milli


def _accounting_nodes(context: GpuPodContext, mutation: PodMutation) -> int:
    if context.pod.has_uid:
        return context.feasible.selected
    return context.feasible.matching_nodes(mutation.required_node_affinity)


def _final_resource_names(context: GpuPodContext, mutation: PodMutation) -> list[str]:
    if mutation.applied_choice is not None and not context.pod.has_uid:
        return [mutation.applied_choice.resource for _ in context.gpu_requests.requests]
    return [one.resource.name for one in context.gpu_requests.requests]


def _sum_by_container(amounts: Iterable[tuple[FieldPath, int]]) -> dict[FieldPath, int]:
    totals: dict[FieldPath, int] = {}
    for path, milli in amounts:
        totals[path] = min(totals.get(path, 0) + milli, MAX_MILLI)
    return totals


def _zeros_below_minimum(
    mutation: PodMutation, others: Sequence[FieldPath], ranges: NamespaceLimitRanges
) -> set[FieldPath]:
    limits, requests = dict(mutation.limits), dict(mutation.requests)
    for path in others:
        limited, requested = mutation.resources_at(path)
        limits[path], requests[path] = {**limited, ACCOUNTING_RESOURCE: "0"}, {**requested, ACCOUNTING_RESOURCE: "0"}
    return paths_below_minimum(mutation, ranges, limits, requests)


def _write_accounting_amount(mutation: PodMutation, path: FieldPath, amount: str) -> None:
    limits, requests = mutation.resources_at(path)
    nano = int(amount) * NANO
    present = limits.get(ACCOUNTING_RESOURCE), requests.get(ACCOUNTING_RESOURCE, amount)
    if all(parse_nano_or_none(value) == nano for value in present):
        return
    mutation.limits[path] = {**limits, ACCOUNTING_RESOURCE: amount}
    mutation.requests[path] = {**requests, ACCOUNTING_RESOURCE: amount}
    mutation.record_change("accounting")


def accounting_mismatches(context: PodContext, mutation: PodMutation) -> list[PolicyFinding]:
    """Report accounting amounts of a final pod that are too low.

    Nodes may have changed since the amounts were written, here or on another replica. So the amounts by the previous
    nodes are accepted too, and a missing one if it was left out then. Too high an amount bypasses no quota.
    """
    pod = context.pod
    if not pod.has_uid:
        return []
    amounts, before = _accounted_milli(context, mutation), dict[FieldPath, int]()
    if isinstance(context, GpuPodContext) and amounts and context.view.before is not None:
        if (known := _milli_by_previous_nodes(context, context.view.before)) is None:
            return []
        before = _with_device_milli(known, context, mutation)
    findings: list[PolicyFinding] = []
    for path, milli in amounts.items():
        limits = container_at(pod, path).resources.limits
        amount = parse_nano_or_none(limits.get(ACCOUNTING_RESOURCE))
        if amount is None or amount < min(milli, before.get(path, milli)) * NANO:
            present = limits.get(ACCOUNTING_RESOURCE, "none")
            message = f"{ACCOUNTING_RESOURCE} must be {milli}, the amount of its GPUs (found {present})"
            field = (*path, "resources", "limits", ACCOUNTING_RESOURCE)
            findings.append(PolicyFinding("GPU-Q302", field, message, "Omit it: it is added when the pod is created."))
    return findings


def _milli_by_previous_nodes(context: GpuPodContext, fleet: Fleet) -> dict[FieldPath, int] | None:
    """Return the amounts of resource names by other nodes; None if the pod could not be scheduled there with them."""
    nodes, requests = allowed_nodes(node_constraints(context.pod), fleet), context.gpu_requests.requests
    advertising = union_masks(fleet.nodes_advertising(one.resource.name) for one in requests)
    if not context.policies.accounting_ignored and not fleet.all_advertise_accounting(advertising & nodes):
        return None
    return _sum_by_container(
        (one.path, one.count * fleet.unit_weight(one.resource.name, nodes).milli) for one in requests
    )


def _is_advertised(context: PodContext, mutation: PodMutation) -> bool:
    if not isinstance(context, GpuPodContext) or not context.view.fleet.nodes:
        return True
    return is_accounting_schedulable(context, mutation)


def missing_accounting(
    context: PodContext, mutation: PodMutation, sections: Sequence[LimitRules]
) -> list[PolicyFinding]:
    """Report that the accounting resource is required and not written.

    Args:
        sections: The limits of the requiring section's mode or a stricter one.
    """
    if any(section.accounting and section.scheduler_ignores_accounting for section in sections):
        return []
    has_devices = context.view.devices is not NO_DEVICES and any(device_milli_by_container(context, mutation))
    if has_devices and not context.policies.accounting_ignored:
        reason = "nodes do not advertise it for devices of resource claims"
    elif not _is_advertised(context, mutation):
        reason = "some candidate nodes with these GPUs do not advertise enough of it"
    else:
        return []
    message = f"{ACCOUNTING_RESOURCE} is not added: {reason}, and no scheduler is configured to ignore it"
    fix = "For admins: rightslice accounting check shows what is missing."
    return [PolicyFinding("GPU-Q305", ("spec",), message, fix, at_most=PolicyMode.WARN)]
