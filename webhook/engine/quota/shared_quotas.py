"""Quotas that several namespaces share: in thousandths of a GPU, whatever the form, of all products or of one.

Exact for one replica: it counts what it sees and what it admitted itself a moment ago. `docs/limits.md` says by how
much several replicas together may be over.
"""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.gpu_requests import PodGpuRequests
from webhook.engine.mutation import PodMutation
from webhook.engine.violations import Violation
from webhook.model.cluster_view import ClusterView
from webhook.model.fleet import Fleet
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.pods import NodeSelectorTerm, Pod
from webhook.model.pools import GpuWeight, weigh_on_node, weigh_units
from webhook.model.quota_usage import PoolHolders
from webhook.model.remaining_quota import QuotaConsumer
from webhook.policy.policy_set import QuotaRules, SharedQuota


def compute_pod_weight(pod: Pod, left: PodGpuRequests, shape: PodMutation | None, fleet: Fleet) -> GpuWeight:
    """What a pod that asks for GPUs will weigh: as it is once no webhook changes it any more, else in its shape.

    Args:
        left: What it asks for, without GPUs that are taken out again.
    """
    if pod.spec.node_name:
        return weigh_on_node(tuple(left.totals.items()), fleet, pod.spec.node_name)
    nodes, totals = fleet.nodes_selected_by(pod.spec), left.totals
    if shape is not None and shape.fit is not None and not pod.is_stored:
        totals = {shape.fit.resource: 1}
        nodes &= fleet.select_nodes({}, (NodeSelectorTerm(match_expressions=tuple(shape.required_node_affinity)),))
    return weigh_units(totals.items(), fleet, nodes, pod.spec.node_selector.get(PRODUCT_LABEL, ""))


def shared_quota_violations(
    quotas: QuotaRules, pod: Pod, namespace: str, weight: GpuWeight, view: ClusterView
) -> Iterator[Violation]:
    """Every quota of a section that a pod would exceed."""
    labels = view.labels_of(namespace)
    for quota in quotas.shared:
        milli = quota.pool.counted_milli(weight) if quota.pool.includes_namespace(namespace, labels) else 0
        if not milli:
            continue
        if not view.current:
            yield Violation("GPU-Q304", ("spec",), _unknown_usage_message(quota), "Create the pod again later.")
        elif not view.fits_pool(quota.pool, milli, quota.gpu_milli, pod.metadata.uid):
            yield _shared_quota_violation(quota, milli, view.pool_usage(quota.pool), view.pool_holders(quota.pool))


def _unknown_usage_message(quota: SharedQuota) -> str:
    return f"quota {quota.name} cannot be checked: what the pods of the cluster hold is not known well enough"


def _shared_quota_violation(quota: SharedQuota, asked: int, used: int, holders: PoolHolders) -> Violation:
    left = max(0, quota.gpu_milli - used)
    of_product = f" of {quota.product}" if quota.product else ""
    message = (
        f"exceeded quota: {quota.name}, requested: {asked}, used: {used}, limited: {quota.gpu_milli} thousandths of a"
        f" GPU{of_product}; {left} would fit{_shared_quota_consumers(holders)}"
    )
    return Violation("GPU-Q303", ("spec",), message, _shared_quota_fix(quota, asked, left))


def _shared_quota_fix(quota: SharedQuota, asked: int, left: int) -> str:
    other = ", or select another nvidia.com/gpu.product" if quota.product else ""
    if asked <= quota.gpu_milli:
        return f"{'Ask for at most what would fit, or wait' if left else 'Wait'} until a holder ends{other}."
    raised = f"ask for the quota to be raised{other}."
    return f"Ask for at most what would fit, or {raised}" if left else f"No pod that ends makes room for it: {raised}"


def _shared_quota_consumers(holders: PoolHolders) -> str:
    coming = f"; {holders.reserved_milli} admitted just now" if holders.reserved_milli else ""
    if not holders.namespaces:
        return coming
    left = holders.namespace_count - len(holders.namespaces)
    more = f" and {left} more" if left else ""
    return f"; held in {_format_consumers(holders.namespaces)}{more}, most by {_format_consumers(holders.pods)}{coming}"


def _format_consumers(holdings: tuple[QuotaConsumer, ...]) -> str:
    return ", ".join(f"{one.name} ({one.amount})" for one in holdings)
