"""Enforce quotas that several namespaces share: thousandths of a GPU of any form, of all products or of one.

Exact with any number of replicas: each counts what it sees and what it admitted a moment ago, and admits no more than
its escrow (`webhook.model.quota_escrow`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from webhook.engine.claimed_gpus import CREATE_FIRST, is_advertised
from webhook.engine.pod_context import GpuPodContext, PodContext, PodMutation
from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.quota.findings import REQUEST_LESS
from webhook.model.claims import ClaimSpec
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.claim_weights import (
    NO_WEIGHT,
    ServedUnit,
    served_unit,
    weigh_class_units,
    weigh_unallocated_claims,
)
from webhook.model.dra.device_view import NO_DEVICES
from webhook.model.dra.extended_resources import ClassByResource
from webhook.model.enums import PolicyMode
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.pod_resources import effective_amount
from webhook.model.pods import NodeSelectorTerm, Pod
from webhook.model.pools import GpuWeight, sum_weights, weigh_on_node, weigh_units
from webhook.model.quantity import NANO
from webhook.model.quota_usage import PoolHolders
from webhook.model.remaining_quota import QuotaConsumer
from webhook.policy.policy_set import QuotaRules, SharedQuota

_TRY_AGAIN = "Create the pod again in a second; kubectl and controllers do so by themselves."


class QuotaCharge(NamedTuple):
    """The GPUs of a new pod as shared quotas count them.

    Attributes:
        weight: All of them.
        shared: The part of its claims that other pods may use too, by name of the claim.
        unknown: The first claim or template that is not known, in words; "" if all are.
    """

    weight: GpuWeight = ()
    shared: tuple[tuple[str, GpuWeight], ...] = ()
    unknown: str = ""


NO_CHARGE = QuotaCharge()


def compute_quota_charge(context: PodContext, mutation: PodMutation) -> QuotaCharge:
    """Return the GPUs of a new pod as shared quotas count them: as changed, or as stored once it is final."""
    view, fit = context.view, mutation.applied_choice
    totals = context.gpu_requests.totals  # without injected GPUs that are removed
    if fit is not None and not mutation.pod.has_uid:
        totals = {fit.resource: 1}
    nodes = 0
    if isinstance(context, GpuPodContext) and fit is None and not mutation.pod.spec.node_name:
        nodes = context.feasible.selected
    elif totals or context.claimed.served:
        nodes = _possible_nodes(mutation, view.fleet)
    named = _weigh_names(totals, nodes, mutation, view.fleet) if totals else ()
    if view.devices is NO_DEVICES:
        return QuotaCharge(named)
    served, by_class = view.devices.class_by_resource, NO_WEIGHT
    if served and (context.claimed.served or fit is not None):
        units = _units_of_classes(context, totals, served)
        each = {_served_unit(name, nodes, mutation, view): count for name, count in units.items()}
        by_class = weigh_class_units(each, view.devices, view.fleet) if each else NO_WEIGHT
    if not by_class and not mutation.pod.spec.resource_claims:
        return QuotaCharge(named)
    claims, shared, unknown = _weigh_claims(mutation.pod, context.request.namespace, view)
    return QuotaCharge(sum_weights((named, by_class, claims, *[weight for _, weight in shared])), shared, unknown)


def _units_of_classes(context: PodContext, totals: Mapping[str, int], served: ClassByResource) -> Mapping[str, int]:
    """Return the units of the changed pod of each resource that device classes serve.

    Args:
        totals: Its units of GPU resources.
    """
    others = context.claimed.served - context.gpu_requests.totals.keys()
    units = {name: effective_amount(context.pod, name) // NANO for name in others} if others else {}
    return {name: count for name, count in {**units, **totals}.items() if count and name in served}


def _served_unit(name: str, nodes: int, mutation: PodMutation, view: ClusterView) -> ServedUnit:
    return served_unit(name, _weigh_names({name: 1}, nodes, mutation, view.fleet), nodes, view.devices, view.fleet)


def _possible_nodes(mutation: PodMutation, fleet: Fleet) -> int:
    """Return the nodes on which a changed pod may run; -1, all, if it names one that is not known."""
    pod, fit = mutation.pod, mutation.applied_choice
    if pod.spec.node_name:
        return 1 << fleet.by_name[pod.spec.node_name] if pod.spec.node_name in fleet.by_name else -1
    nodes = fleet.nodes_selected_by(pod.spec)
    if fit is not None and not pod.has_uid:
        required = NodeSelectorTerm(match_expressions=tuple(mutation.required_node_affinity))
        nodes &= fleet.select_nodes({}, (required,))
    return nodes


def _weigh_names(totals: Mapping[str, int], nodes: int, mutation: PodMutation, fleet: Fleet) -> GpuWeight:
    spec = mutation.pod.spec
    units = tuple([(name, count) for name, count in totals.items() if parse_gpu_resource(name) is not None])
    if spec.node_name:
        return weigh_on_node(units, fleet, spec.node_name)
    return weigh_units(fleet, units, nodes, spec.node_selector.get(PRODUCT_LABEL, ""))


def _weigh_claims(
    pod: Pod, namespace: str, view: ClusterView
) -> tuple[GpuWeight, tuple[tuple[str, GpuWeight], ...], str]:
    """Return the weight of claims made for a pod, of others that nothing counts yet, and what is unknown."""
    if not pod.spec.resource_claims:
        return (), (), ""
    claims, specs, shared, unknown = view.cluster_claims(namespace), list[ClaimSpec](), list[str](), ""
    known = claims.in_namespace(namespace)
    for one in pod.spec.resource_claims:
        spec = known.spec_of(one.resource_claim_name, one.resource_claim_template_name)
        if spec is None:
            kind = "resource claim template" if one.resource_claim_template_name else "resource claim"
            unknown = unknown or f"{kind} {one.resource_claim_template_name or one.resource_claim_name}"
        elif one.resource_claim_name:
            shared.append(one.resource_claim_name)
        else:
            specs.append(spec)
    uncounted = [name for name in dict.fromkeys(shared) if not view.counts_claim(namespace, name, pod.metadata.uid)]
    weights = weigh_unallocated_claims(specs, claims.devices, view.fleet)
    of_shared = [
        (name, weigh_unallocated_claims([known.claims[name].spec], claims.devices, view.fleet)) for name in uncounted
    ]
    return weights, tuple(of_shared), unknown


def shared_quota_violations(quotas: QuotaRules, context: PodContext, charge: QuotaCharge) -> Iterator[PolicyFinding]:
    """Yield every shared quota of a policy section that a pod would exceed."""
    namespace, labels = context.request.namespace, context.namespace.labels
    view, uid = context.view, context.pod.metadata.uid
    for quota in quotas.shared:
        if not quota.pool.includes_namespace(namespace, labels):
            continue
        if charge.unknown:
            message = f"quota {quota.name} cannot be checked: {charge.unknown} is not known"
            fix = next((one.fix for one in context.claimed.missing), CREATE_FIRST)
            yield PolicyFinding("GPU-Q304", ("spec",), message, fix)
            continue
        milli = quota.pool.counted_milli(charge.weight)
        if not milli:
            continue
        if view.is_stale:
            message = f"quota {quota.name} cannot be checked: the view of the cluster's pods is stale"
            yield PolicyFinding("GPU-Q304", ("spec",), message, "Create the pod again later.")
        elif not view.fits_pool(quota.pool, milli, quota.gpu_milli, uid):
            usage, holders = view.pool_usage(quota.pool), view.pool_holders(quota.pool)
            yield _shared_quota_violation(quota, milli, usage, holders, _way_to_another_product(context))
        elif quotas.mode is PolicyMode.ENFORCE:
            yield from _escrow_violations(quota, milli, view.fits_escrow(quota.pool, milli, uid))


def _way_to_another_product(context: PodContext) -> str:
    """Return how a pod gets GPUs of another product: nodes whose devices are published have no label of one."""
    claimed = context.claimed
    names = list(context.gpu_requests.totals) or [name for name, units in claimed.classes.items() if units]
    if not names:
        return "select another productName in the claim"
    if claimed.served.issuperset(names) and not any(is_advertised(name, context.view) for name in names):
        return "request another device class"
    return "select another nvidia.com/gpu.product"


def _shared_quota_violation(
    quota: SharedQuota, requested: int, used: int, holders: PoolHolders, way_to_another: str
) -> PolicyFinding:
    remaining = max(0, quota.gpu_milli - used)
    of_product = f" of {quota.product}" if quota.product else ""
    message = (
        f"exceeded quota: {quota.name}, requested: {requested}, used: {used}, limited: {quota.gpu_milli} thousandths of"
        f" a GPU{of_product}; {remaining} would fit{_shared_quota_consumers(holders)}"
    )
    other = f", or {way_to_another}" if quota.product else ""
    return PolicyFinding("GPU-Q303", ("spec",), message, _shared_quota_fix(quota, requested, remaining, other))


def _escrow_violations(quota: SharedQuota, requested: int, fits: bool | None) -> Iterator[PolicyFinding]:
    """Yield why a pod that fits into a quota must be sent again, if it must."""
    if fits is None:
        message = (
            f"quota {quota.name} cannot be checked: this replica could not renew its part of the quota for some seconds"
        )
        yield PolicyFinding("GPU-Q304", ("spec",), message, _TRY_AGAIN)
    elif not fits:
        message = (
            f"quota {quota.name} has room for the requested {requested} thousandths of a GPU, but another replica of"
            " Rightslice may allocate it at this moment"
        )
        yield PolicyFinding("GPU-Q307", ("spec",), message, _TRY_AGAIN)


def _shared_quota_fix(quota: SharedQuota, requested: int, remaining: int, other: str) -> str:
    if requested <= quota.gpu_milli:
        wait = f"{REQUEST_LESS}, or wait" if remaining else "Wait"
        return f"{wait} until another pod ends{other}."
    raised = f"ask for a higher quota{other}."
    return f"{REQUEST_LESS}, or {raised}" if remaining else f"Ending other pods is not enough: {raised}"


def _shared_quota_consumers(holders: PoolHolders) -> str:
    reserved = f"; {holders.reserved_milli} admitted moments ago" if holders.reserved_milli else ""
    if not holders.namespaces:
        return reserved
    unnamed = holders.namespace_count - len(holders.namespaces)
    more = f" and {unnamed} more" if unnamed else ""
    namespaces, pods = _format_consumers(holders.namespaces), _format_consumers(holders.pods)
    return f"; used in {namespaces}{more}, most by {pods}{reserved}"


def _format_consumers(consumers: tuple[QuotaConsumer, ...]) -> str:
    return ", ".join(f"{one.name} ({one.amount})" for one in consumers)
