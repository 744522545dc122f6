"""Will a pod's images run wherever a smaller GPU may land them? Sure, or no worse than as it is; nothing else will do.

An image whose CUDA is known runs where every node's driver is as new and its GPUs have kernels; elsewhere only where
no node of the cluster that it might get a whole GPU on is better. Of an image that does not say what it needs, only
nodes like those that it may land on as it is are sure to do.

What switches the container runtime's own check off, or adds to it, takes nothing away from what an image needs.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from webhook.engine.case import PodContext
from webhook.engine.cuda import stated_requirements
from webhook.engine.cuda_drivers import missing_kernels_reason
from webhook.engine.cuda_fits import DriverFit, check_driver
from webhook.engine.cuda_needs import CudaRequirement
from webhook.engine.reach import FeasibleNodes
from webhook.model.offers import NodeHardware, GpuOffer
from webhook.model.resources import WHOLE_GPU


class _CurrentHardware(msgspec.Struct, frozen=True):
    """Where a pod may land that keeps its request.

    What a second look finds here must not be better: policies' affinity, which may stand in the pod by then, leaves
    `rivals` as they are, and can only take from `mine`.

    Attributes:
        mine: Drivers and GPUs of the nodes that may take it.
        rivals: Those of every node under the name it asks for that it tolerates and its node selector leaves.
        nowhere: True if its node selector leaves no node under that name.
    """

    reachable: Set[NodeHardware]
    rivals: Set[NodeHardware]
    no_rivals_selected: bool


def offers_sure_to_run(case: PodContext, offers: tuple[GpuOffer, ...], reach: FeasibleNodes) -> tuple[GpuOffer, ...]:
    """Those of some offers on whose nodes, as far as the pod reaches them, all its images will run."""
    needs, fleet, as_it_is = tuple(stated_requirements(case.pod, case.gpu_requests.requesting_containers())), case.view.fleet, _current_hardware(case, reach)
    within = reach.selected & reach.tolerated
    return tuple([offer for offer in offers if _all_images_run(needs, fleet.hardware_of_nodes(offer.nodes & within), as_it_is)])


def _current_hardware(case: PodContext, reach: FeasibleNodes) -> _CurrentHardware:
    fleet = case.view.fleet
    named = fleet.nodes_advertising(WHOLE_GPU) & fleet.select_nodes(case.pod.spec.node_selector, None)
    mine = fleet.hardware_of_nodes(case.offer_nodes & case.feasible.nodes)
    return _CurrentHardware(mine, fleet.hardware_of_nodes(named & reach.tolerated), no_rivals_selected=not named)


def _all_images_run(needs: tuple[CudaRequirement | None, ...], new: Set[NodeHardware], as_it_is: _CurrentHardware) -> bool:
    return all(_image_runs(need, node, as_it_is) for need in needs for node in new)


def _image_runs(need: CudaRequirement | None, node: NodeHardware, as_it_is: _CurrentHardware) -> bool:
    if need is None:
        return as_it_is.no_rivals_selected or _is_equivalent_node(node, as_it_is.reachable)
    return _driver_suffices(need, node, as_it_is.rivals) and _gpu_suffices(need, node, as_it_is.rivals)


def _is_equivalent_node(node: NodeHardware, others: Set[NodeHardware]) -> bool:
    return node in others or any(_same_gpu_model(node, other) and _driver_no_older(node, other) for other in others)


def _driver_suffices(need: CudaRequirement, node: NodeHardware, rivals: Set[NodeHardware]) -> bool:
    if check_driver(need, node) is DriverFit.FITS:
        return True
    return bool(rivals) and all(_driver_no_older(node, rival) for rival in rivals)


def _gpu_suffices(need: CudaRequirement, node: NodeHardware, rivals: Set[NodeHardware]) -> bool:
    if not need.toolkit or (node.compute_capability and not missing_kernels_reason(need.toolkit, node.compute_capability)):
        return True
    return bool(rivals) and all(_same_gpu_model(node, rival) for rival in rivals)


def _same_gpu_model(one: NodeHardware, other: NodeHardware) -> bool:
    """By the architecture, else by name."""
    return (one.compute_capability or one.product) == (other.compute_capability or other.product)


def _driver_no_older(one: NodeHardware, other: NodeHardware) -> bool:
    """Is a node's driver as new as another's, by its number, else by its CUDA? Not if only one of them says it."""
    if one.driver and other.driver:
        return one.driver >= other.driver
    if one.driver or other.driver or bool(one.cuda) != bool(other.cuda):
        return False
    return one.cuda >= other.cuda
