"""A plain `nvidia.com/gpu` may be a slice or a share on some nodes: what keeps a pod on cards that do for it."""

from __future__ import annotations

from webhook.engine.case import Case
from webhook.engine.foreseen import foreseen
from webhook.engine.staying import set_apart
from webhook.engine.ties import tied_by
from webhook.model.modes import Form, Mode
from webhook.model.nodelabels import PRODUCT
from webhook.model.offers import Offer
from webhook.model.pods import Requirement
from webhook.model.resources import WHOLE_GPU


def off_unfit_parts(case: Case, mode: Mode) -> tuple[Requirement, ...]:
    """What keeps a request for whole cards off the products whose parts would not do for it; () where nothing may.

    Parts do not do for several GPUs, which are to work together, nor for a declared need that they do not cover. The
    pod must not wait for it: it is required only where a node that is left has room now, and of no pod that keeps what
    it asks for by its user's word, or that others place.

    Args:
        mode: That of the section that would add it.
    """
    products = _unfit(case) if case.whole_or_part else ()
    if not products or set_apart(case) is not None or not case.view.current:
        return ()
    rule = Requirement(PRODUCT, "NotIn", products)
    return (rule,) if _has_room(case, mode, rule) else ()


def _unfit(case: Case) -> tuple[str, ...]:
    """Products of the parts that would not do; () where a part may have the product of a whole card."""
    fleet = case.view.fleet
    if not fleet.part_products or case.asked.totals[WHOLE_GPU] > 1:
        return fleet.part_products
    need = case.declared.memory_mib
    if need is None:
        return ()
    return tuple(sorted({part.product for part in _parts(case) if part.memory_mib and part.memory_mib < need}))


def _parts(case: Case) -> list[Offer]:
    return [offer for offer in case.offers if offer.form is not Form.WHOLE]


def _has_room(case: Case, mode: Mode, rule: Requirement) -> bool:
    reach = foreseen(case, mode)
    if tied_by(reach.pod):
        return False
    return reach.has_room(WHOLE_GPU, case.asked.totals[WHOLE_GPU], reach.nodes & reach.narrowed((rule,)))


def part_is_too_small(case: Case) -> bool:
    """Does the pod declare a need that some part it may get would not cover, or is not known to?"""
    need = case.declared.memory_mib
    if need is None:
        return False
    return any(part.memory_mib is None or part.memory_mib < need for part in _parts(case))
