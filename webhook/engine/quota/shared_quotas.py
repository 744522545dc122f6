"""Enforce quotas that several namespaces share: thousandths of a GPU of any form, of all products or of one.

Exact with any number of replicas: each counts what it sees and what it admitted a moment ago, and admits no more than
its escrow (`webhook.model.quota_escrow`).
"""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.gpu_requests import PodGpuRequests
from webhook.engine.pod_context import PodContext, PodMutation
from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.quota.findings import REQUEST_LESS
from webhook.model.enums import PolicyMode
from webhook.model.fleet import Fleet
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.pods import NodeSelectorTerm
from webhook.model.pools import GpuWeight, weigh_on_node, weigh_units
from webhook.model.quota_usage import PoolHolders
from webhook.model.remaining_quota import QuotaConsumer
from webhook.policy.policy_set import QuotaRules, SharedQuota

_TRY_AGAIN = "Create the pod again in a second; kubectl and controllers do so by themselves."


def compute_quota_charge(gpu_requests: PodGpuRequests, mutation: PodMutation, fleet: Fleet) -> GpuWeight:
    """Return the GPUs of a new pod as shared quotas count them: as changed, or as stored once it is final.

    Args:
        gpu_requests: Its requests, without injected GPUs that are removed.
    """
    pod, totals, fit = mutation.pod, gpu_requests.totals, mutation.applied_choice
    if pod.spec.node_name:
        return weigh_on_node(tuple(totals.items()), fleet, pod.spec.node_name)
    nodes = fleet.nodes_selected_by(pod.spec)
    if fit is not None and not pod.has_uid:
        totals = {fit.resource: 1}
        required = NodeSelectorTerm(match_expressions=tuple(mutation.required_node_affinity))
        nodes &= fleet.select_nodes({}, (required,))
    return weigh_units(totals.items(), fleet, nodes, pod.spec.node_selector.get(PRODUCT_LABEL, ""))


def shared_quota_violations(
    quotas: QuotaRules, context: PodContext, quota_charge: GpuWeight
) -> Iterator[PolicyFinding]:
    """Yield every shared quota of a policy section that a pod would exceed."""
    namespace, labels = context.request.namespace, context.namespace.labels
    view, uid = context.view, context.pod.metadata.uid
    for quota in quotas.shared:
        milli = quota.pool.counted_milli(quota_charge) if quota.pool.includes_namespace(namespace, labels) else 0
        if not milli:
            continue
        if view.stale:
            message = f"quota {quota.name} cannot be checked: the view of the cluster's pods is stale"
            yield PolicyFinding("GPU-Q304", ("spec",), message, "Create the pod again later.")
        elif not view.fits_pool(quota.pool, milli, quota.gpu_milli, uid):
            yield _shared_quota_violation(quota, milli, view.pool_usage(quota.pool), view.pool_holders(quota.pool))
        elif quotas.mode is PolicyMode.ENFORCE:
            yield from _escrow_violations(quota, milli, view.fits_escrow(quota.pool, milli, uid))


def _shared_quota_violation(quota: SharedQuota, requested: int, used: int, holders: PoolHolders) -> PolicyFinding:
    remaining = max(0, quota.gpu_milli - used)
    of_product = f" of {quota.product}" if quota.product else ""
    message = (
        f"exceeded quota: {quota.name}, requested: {requested}, used: {used}, limited: {quota.gpu_milli} thousandths of"
        f" a GPU{of_product}; {remaining} would fit{_shared_quota_consumers(holders)}"
    )
    return PolicyFinding("GPU-Q303", ("spec",), message, _shared_quota_fix(quota, requested, remaining))


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


def _shared_quota_fix(quota: SharedQuota, requested: int, remaining: int) -> str:
    other = ", or select another nvidia.com/gpu.product" if quota.product else ""
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
