"""Will a pod's images run wherever a smaller GPU may land them? Sure, or no worse than as it is; nothing else will do.

An image whose CUDA is known runs where every node's driver is as new and its GPUs have kernels; elsewhere only where
no node of the cluster that it might get a whole GPU on is better. Of an image that does not say what it needs, only
nodes like those that it may land on as it is are sure to do.

What switches the container runtime's own check off, or adds to it, takes nothing away from what an image needs.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from webhook.engine.case import Case
from webhook.engine.cuda import stated
from webhook.engine.cuda_drivers import without_kernels
from webhook.engine.cuda_fits import Fit, fit
from webhook.engine.cuda_needs import Requirement
from webhook.engine.reach import Reach
from webhook.model.offers import Hardware, Offer
from webhook.model.resources import WHOLE_GPU


class _AsItIs(msgspec.Struct, frozen=True):
    """Where a pod may land that keeps its request.

    What a second look finds here must not be better: policies' affinity, which may stand in the pod by then, leaves
    `rivals` as they are, and can only take from `mine`.

    Attributes:
        mine: Drivers and GPUs of the nodes that may take it.
        rivals: Those of every node under the name it asks for that it tolerates and its node selector leaves.
        nowhere: True if its node selector leaves no node under that name.
    """

    mine: Set[Hardware]
    rivals: Set[Hardware]
    nowhere: bool


def sure_to_run(case: Case, offers: tuple[Offer, ...], reach: Reach) -> tuple[Offer, ...]:
    """Those of some offers on whose nodes, as far as the pod reaches them, all its images will run."""
    needs, fleet, as_it_is = tuple(stated(case.pod, case.asked.containers())), case.view.fleet, _as_it_is(case, reach)
    within = reach.selected & reach.tolerated
    return tuple([offer for offer in offers if _run(needs, fleet.hardware(offer.nodes & within), as_it_is)])


def _as_it_is(case: Case, reach: Reach) -> _AsItIs:
    fleet = case.view.fleet
    named = fleet.advertising(WHOLE_GPU) & fleet.select(case.pod.spec.node_selector, None)
    mine = fleet.hardware(case.offered & case.reach.nodes)
    return _AsItIs(mine, fleet.hardware(named & reach.tolerated), nowhere=not named)


def _run(needs: tuple[Requirement | None, ...], new: Set[Hardware], as_it_is: _AsItIs) -> bool:
    return all(_runs(need, node, as_it_is) for need in needs for node in new)


def _runs(need: Requirement | None, node: Hardware, as_it_is: _AsItIs) -> bool:
    if need is None:
        return as_it_is.nowhere or _is_like_one(node, as_it_is.mine)
    return _driver_does(need, node, as_it_is.rivals) and _gpu_does(need, node, as_it_is.rivals)


def _is_like_one(node: Hardware, others: Set[Hardware]) -> bool:
    return node in others or any(_same_gpu(node, other) and _no_older(node, other) for other in others)


def _driver_does(need: Requirement, node: Hardware, rivals: Set[Hardware]) -> bool:
    if fit(need, node) is Fit.FITS:
        return True
    return bool(rivals) and all(_no_older(node, rival) for rival in rivals)


def _gpu_does(need: Requirement, node: Hardware, rivals: Set[Hardware]) -> bool:
    if not need.toolkit or (node.compute_capability and not without_kernels(need.toolkit, node.compute_capability)):
        return True
    return bool(rivals) and all(_same_gpu(node, rival) for rival in rivals)


def _same_gpu(one: Hardware, other: Hardware) -> bool:
    """By the architecture, else by name."""
    return (one.compute_capability or one.product) == (other.compute_capability or other.product)


def _no_older(one: Hardware, other: Hardware) -> bool:
    """Is a node's driver as new as another's, by its number, else by its CUDA? Not if only one of them says it."""
    if one.driver and other.driver:
        return one.driver >= other.driver
    if one.driver or other.driver or bool(one.cuda) != bool(other.cuda):
        return False
    return one.cuda >= other.cuda
