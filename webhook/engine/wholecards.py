"""A plain `nvidia.com/gpu` may be a slice or a share on some nodes: what keeps a pod on cards that do for it."""

from __future__ import annotations

from webhook.engine.case import PodContext
from webhook.engine.foreseen import project_feasible_nodes
from webhook.engine.staying import exclusion_reason
from webhook.engine.ties import unmodelled_constraint
from webhook.model.modes import GpuForm, PolicyMode
from webhook.model.nodelabels import PRODUCT_LABEL
from webhook.model.offers import GpuOffer
from webhook.model.pods import NodeSelectorRequirement
from webhook.model.resources import WHOLE_GPU


def exclude_partitioned(case: PodContext, mode: PolicyMode) -> tuple[NodeSelectorRequirement, ...]:
    """What keeps a request for whole cards off the products whose parts would not do for it; () where nothing may.

    Parts do not do for several GPUs, which are to work together, nor for a declared need that they do not cover. The
    pod must not wait for it: it is required only where a node that is left has room now, and of no pod that keeps what
    it asks for by its user's word, or that others place.

    Args:
        mode: That of the section that would add it.
    """
    products = _insufficient_products(case) if case.mixes_whole_and_partial else ()
    if not products or exclusion_reason(case) is not None or not case.view.current:
        return ()
    rule = NodeSelectorRequirement(PRODUCT_LABEL, "NotIn", products)
    return (rule,) if _has_free_whole_gpus(case, mode, rule) else ()


def _insufficient_products(case: PodContext) -> tuple[str, ...]:
    """Products of the parts that would not do; () where a part may have the product of a whole card."""
    fleet = case.view.fleet
    if not fleet.partial_gpu_products or case.gpu_requests.totals[WHOLE_GPU] > 1:
        return fleet.partial_gpu_products
    need = case.declared_need.memory_mib
    if need is None:
        return ()
    return tuple(sorted({part.product for part in _partial_offers(case) if part.memory_mib and part.memory_mib < need}))


def _partial_offers(case: PodContext) -> list[GpuOffer]:
    return [offer for offer in case.offers if offer.form is not GpuForm.WHOLE]


def _has_free_whole_gpus(case: PodContext, mode: PolicyMode, rule: NodeSelectorRequirement) -> bool:
    reach = project_feasible_nodes(case, mode)
    if unmodelled_constraint(reach.pod):
        return False
    return reach.has_room(WHOLE_GPU, case.gpu_requests.totals[WHOLE_GPU], reach.nodes & reach.matching_nodes((rule,)))


def is_partial_gpu_too_small(case: PodContext) -> bool:
    """Does the pod declare a need that some part it may get would not cover, or is not known to?"""
    need = case.declared_need.memory_mib
    if need is None:
        return False
    return any(part.memory_mib is None or part.memory_mib < need for part in _partial_offers(case))
