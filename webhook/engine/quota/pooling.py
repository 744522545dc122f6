"""Quotas that several namespaces share: in thousandths of a GPU, whatever the form, of all products or of one.

Exact for one replica: it counts what it sees and what it admitted itself a moment ago. `docs/limits.md` says by how
much several replicas together may be over.
"""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.asking import Asked
from webhook.engine.remarks import Remark
from webhook.engine.shape import Shape
from webhook.model.cluster import ClusterView
from webhook.model.fleet import Fleet
from webhook.model.holders import PoolHolders
from webhook.model.nodelabels import PRODUCT
from webhook.model.pods import NodeSelectorTerm, Pod
from webhook.model.pools import Weight, weight_at, weight_of
from webhook.model.quota_room import Holding
from webhook.policy.compiled import Quotas, SharedQuota


def pod_weight(pod: Pod, left: Asked, shape: Shape | None, fleet: Fleet) -> Weight:
    """What a pod that asks for GPUs will weigh: as it is once no webhook changes it any more, else in its shape.

    Args:
        left: What it asks for, without GPUs that are taken out again.
    """
    if pod.spec.node_name:
        return weight_at(tuple(left.totals.items()), fleet, pod.spec.node_name)
    nodes, totals = fleet.selected_by(pod.spec), left.totals
    if shape is not None and shape.fit is not None and not pod.final:
        totals = {shape.fit.resource: 1}
        nodes &= fleet.select({}, (NodeSelectorTerm(match_expressions=tuple(shape.required)),))
    return weight_of(totals.items(), fleet, nodes, pod.spec.node_selector.get(PRODUCT, ""))


def pool_remarks(quotas: Quotas, pod: Pod, namespace: str, weight: Weight, view: ClusterView) -> Iterator[Remark]:
    """Every quota of a section that a pod would exceed."""
    labels = view.labels_of(namespace)
    for quota in quotas.shared:
        milli = quota.pool.milli(weight) if quota.pool.holds(namespace, labels) else 0
        if not milli:
            continue
        if not view.current:
            yield Remark("GPU-Q304", ("spec",), _unknown(quota), "Create the pod again later.")
        elif not view.fits(quota.pool, milli, quota.milli, pod.metadata.uid):
            yield _exceeded(quota, milli, view.pooled(quota.pool), view.pool_holders(quota.pool))


def _unknown(quota: SharedQuota) -> str:
    return f"quota {quota.name} cannot be checked: what the pods of the cluster hold is not known well enough"


def _exceeded(quota: SharedQuota, asked: int, used: int, holders: PoolHolders) -> Remark:
    left = max(0, quota.milli - used)
    of_product = f" of {quota.product}" if quota.product else ""
    message = (
        f"exceeded quota: {quota.name}, requested: {asked}, used: {used}, limited: {quota.milli} thousandths of a"
        f" GPU{of_product}; {left} would fit{_held_by(holders)}"
    )
    return Remark("GPU-Q303", ("spec",), message, _fix(quota, asked, left))


def _fix(quota: SharedQuota, asked: int, left: int) -> str:
    other = ", or select another nvidia.com/gpu.product" if quota.product else ""
    if asked <= quota.milli:
        return f"{'Ask for at most what would fit, or wait' if left else 'Wait'} until a holder ends{other}."
    raised = f"ask for the quota to be raised{other}."
    return f"Ask for at most what would fit, or {raised}" if left else f"No pod that ends makes room for it: {raised}"


def _held_by(holders: PoolHolders) -> str:
    coming = f"; {holders.coming} admitted just now" if holders.coming else ""
    if not holders.namespaces:
        return coming
    left = holders.among - len(holders.namespaces)
    more = f" and {left} more" if left else ""
    return f"; held in {_named(holders.namespaces)}{more}, most by {_named(holders.pods)}{coming}"


def _named(holdings: tuple[Holding, ...]) -> str:
    return ", ".join(f"{one.name} ({one.amount})" for one in holdings)
