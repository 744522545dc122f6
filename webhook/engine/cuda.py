"""Hold the CUDA that a pod's images need against the drivers and architectures of the nodes it may land on.

Where the container runtime injects devices by CDI, as it now does by default, nobody evaluates an image's
requirement: the program starts and fails at its first CUDA call. So it is said here.

What an image needs comes, in this order, from the pod's annotation, NVIDIA_REQUIRE_CUDA and CUDA_VERSION in
its environment, and the image's tag. Rules: NVIDIA's CUDA compatibility guide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import msgspec

from webhook.engine.cuda_drivers import format_driver, format_version, missing_kernels_reason
from webhook.engine.cuda_requirements import (
    CudaRequirement,
    DriverFit,
    all_drivers_fit,
    check_driver,
    image_cuda_version,
    is_data_center_gpu,
    parse_cuda_annotation,
    parse_requirement,
    parse_version,
    toolkit_requirement,
)
from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.pod_context import PodContext
from webhook.engine.violations import Violation
from webhook.errors import quote_text, shorten_text
from webhook.model.annotations import CUDA_ANNOTATION, CUDA_COMPAT_ANNOTATION
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.offers import GpuOffer, NodeHardware
from webhook.model.pods import Container, EnvVar, Pod


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


_REQUIRE_PREFIX = "NVIDIA_REQUIRE_"
_TRUE_VALUES = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_MAX_NAMES = 4
_NEWER_DRIVER_FIX = "Use an image with an older CUDA, or nodes with a newer driver."


class _CudaNeed(msgspec.Struct, frozen=True):
    """One requirement, where it stands, and whether the image brings the compatibility package.

    Attributes:
        source: What says so, for messages.
        words: The text as it was written.
        wanted: None if the text cannot be read.
    """

    path: FieldPath
    source: str
    text: str
    requirement: CudaRequirement | None
    compat: bool


def cuda_violations(pod: Pod, offers: Sequence[GpuOffer], asking: Mapping[FieldPath, Container]) -> list[Violation]:
    """What speaks against running the pod's images on the offers' nodes.

    Args:
        pod: The pod.
        offers: What its GPU containers may land on; offers without driver and CUDA version say nothing.
        asking: The containers that ask for GPUs, by their paths; only they count.
    """
    return [remark for need in _cuda_needs(pod, asking) for remark in _check_cuda_need(need, offers)]


def _check_cuda_need(need: _CudaNeed, offers: Sequence[GpuOffer]) -> list[Violation]:
    if need.requirement is None:
        must = "must be a requirement such as cuda>=12.4, with a comma for and, a space for or"
        message = f"{need.source} {must}, found {quote_text(need.text)}"
        return [Violation("GPU-C104", need.path, message, "Write >=12.4, for example.", PolicyMode.WARN)]
    wanted = need.requirement
    results = _driver_violations(need, wanted, offers)
    return results + _architecture_violations(need, wanted, offers) if wanted.toolkit else results


def _driver_violations(need: _CudaNeed, wanted: CudaRequirement, offers: Sequence[GpuOffer]) -> list[Violation]:
    if all_drivers_fit(wanted, offers):
        return []
    fits = [(offer, check_driver(wanted, offer)) for offer in offers]
    able = [offer for offer, how in fits if how is DriverFit.COMPATIBLE]
    below = [offer for offer, how in fits if how is DriverFit.BELOW]
    if not able and not below:
        return []
    good = [offer for offer, how in fits if how is DriverFit.FITS]
    if good:
        return [_driver_fits_some(need, good, able + below)]
    if able:
        return [_driver_older(need, wanted, able, below)]
    return [_driver_too_old(need, wanted, below, every=len(below) == len(fits))]


def _driver_too_old(need: _CudaNeed, wanted: CudaRequirement, below: Sequence[GpuOffer], *, every: bool) -> Violation:
    """Below the family's floor; sure unless some node does not say, or forward compatibility may help."""
    sure = every and not (need.compat and all(map(is_data_center_gpu, below)))
    least = format_driver(wanted.floor_driver) if wanted.floor_driver else f"one with CUDA {wanted.toolkit[0]}"
    message = (
        f"{_describe_cuda_need(need, wanted)}, so the driver must be {least} or newer, "
        f"found {_newest_driver(below)} on {_offer_names(below)}"
    )
    return Violation("GPU-C101", need.path, message, _NEWER_DRIVER_FIX, PolicyMode.ENFORCE if sure else PolicyMode.WARN)


def _driver_older(
    need: _CudaNeed, wanted: CudaRequirement, able: Sequence[GpuOffer], below: Sequence[GpuOffer]
) -> Violation:
    """No node fits; some run it by minor-version compatibility."""
    should = f"should be {format_driver(wanted.own_driver)} or newer" if wanted.own_driver else "should satisfy that"
    rest = f", and too old a one on {_offer_names(below)}" if below else ""
    message = (
        f"{_describe_cuda_need(need, wanted)}, so the driver {should}, found "
        f"{_newest_driver(able)} on {_offer_names(able)}{rest}"
    )
    return Violation(
        "GPU-C102", need.path, message, "Test it there, or use an image with an older CUDA.", PolicyMode.WARN
    )


def _driver_fits_some(need: _CudaNeed, good: Sequence[GpuOffer], bad: Sequence[GpuOffer]) -> Violation:
    message = (
        f"the driver should fit {need.source} on every node this pod may land on, found one that does on "
        f"{_offer_names(good)} only, and {_newest_driver(bad)} on {_offer_names(bad)}"
    )
    fix = f"Select one of these in a node affinity on nvidia.com/gpu.product: {_offer_names(good)}."
    return Violation("GPU-C102", need.path, message, fix, PolicyMode.WARN)


def _architecture_violations(need: _CudaNeed, wanted: CudaRequirement, offers: Sequence[GpuOffer]) -> list[Violation]:
    reasons: dict[str, list[GpuOffer]] = {}
    for offer in offers:
        reason = missing_kernels_reason(wanted.toolkit, offer.compute_capability)
        if not reason:
            return []
        reasons.setdefault(reason, []).append(offer)
    fix = "Use an image built with a toolkit that knows this GPU, or ask for another product."
    return [
        Violation(
            "GPU-C103",
            need.path,
            f"{_describe_cuda_need(need, wanted)}, but a GPU this pod may land on {reason}, found {_offer_names(such)}",
            fix,
            PolicyMode.WARN,
        )
        for reason, such in reasons.items()
    ]


def _describe_cuda_need(need: _CudaNeed, wanted: CudaRequirement) -> str:
    asked = f"CUDA {format_version(wanted.toolkit)}" if wanted.toolkit else quote_text(need.text)
    return f"{need.source} asks for {asked}"


def _newest_driver(offers: Sequence[GpuOffer]) -> str:
    drivers = [offer.driver for offer in offers if offer.driver]
    if drivers:
        return f"driver {format_driver(max(drivers))}"
    return f"CUDA {format_version(max((offer.cuda for offer in offers), default=()))}"


def _offer_names(offers: Sequence[GpuOffer]) -> str:
    names = sorted({offer.product or offer.resource for offer in offers})
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(shorten_text(name) for name in names[:_MAX_NAMES]) + more


def _cuda_needs(pod: Pod, containers: Mapping[FieldPath, Container]) -> list[_CudaNeed]:
    annotations = pod.metadata.annotations
    compat = annotations.get(CUDA_COMPAT_ANNOTATION) == "true"
    text = annotations.get(CUDA_ANNOTATION)
    if text is None:
        return [need for path, one in containers.items() for need in _container_cuda_needs(path, one, compat=compat)]
    compat = compat or any(variable.name == _COMPAT_VARIABLE for one in containers.values() for variable in one.env)
    return [
        _CudaNeed(
            ("metadata", "annotations", CUDA_ANNOTATION), CUDA_ANNOTATION, text, parse_cuda_annotation(text), compat
        )
    ]


_COMPAT_VARIABLE = "NV_CUDA_COMPAT_PACKAGE"
_CUDA_VARIABLES = frozenset({_COMPAT_VARIABLE, "NVIDIA_DISABLE_REQUIRE", "CUDA_VERSION"})


def _container_cuda_needs(path: FieldPath, container: Container, *, compat: bool) -> list[_CudaNeed]:
    """A container's own needs: every NVIDIA_REQUIRE_ variable counts, else the toolkit's version."""
    mine: dict[str, tuple[FieldPath, EnvVar]] = {}
    for i, variable in enumerate(container.env):
        name = variable.name
        if name[:1] in "NC" and (name in _CUDA_VARIABLES or name.startswith(_REQUIRE_PREFIX)):
            mine[name] = ((*path, "env", i), variable)
    if not mine:
        return _image_cuda_need(path, container.image, compat=compat)
    if (off := mine.get("NVIDIA_DISABLE_REQUIRE")) and off[1].value in _TRUE_VALUES:
        return []
    compat = compat or _COMPAT_VARIABLE in mine
    required = [
        _CudaNeed(place, name, variable.value, parse_requirement(variable.value), compat)
        for name, (place, variable) in mine.items()
        if name.startswith(_REQUIRE_PREFIX) and _is_literal(variable)
    ]
    if required:
        return required
    if (named := mine.get("CUDA_VERSION")) and _is_literal(named[1]):
        toolkit = parse_version(named[1].value)
        return [
            _CudaNeed(
                named[0], "CUDA_VERSION", named[1].value, toolkit_requirement(toolkit) if toolkit else None, compat
            )
        ]
    return _image_cuda_need(path, container.image, compat=compat)


def _image_cuda_need(path: FieldPath, image: str, *, compat: bool) -> list[_CudaNeed]:
    toolkit = image_cuda_version(image)
    return (
        [_CudaNeed((*path, "image"), "the image's tag", image, toolkit_requirement(toolkit), compat)] if toolkit else []
    )


def _is_literal(variable: EnvVar) -> bool:
    """Can the value be read here? Not from elsewhere, nor made of other variables."""
    return bool(variable.value) and variable.value_from is None and "$(" not in variable.value


def stated_requirements(pod: Pod, asking: Mapping[FieldPath, Container]) -> Iterator[CudaRequirement | None]:
    """Everything that a pod and its images say they need, whatever the container runtime is told to check.

    None stands for what cannot be read, and for a container of which nobody names the CUDA.
    """
    text = pod.metadata.annotations.get(CUDA_ANNOTATION)
    if text is not None:
        yield from _add_unknown([parse_cuda_annotation(text)])
        return
    for container in asking.values():
        yield from _add_unknown(list(_container_requirements(container)))


def _add_unknown(found: list[CudaRequirement | None]) -> list[CudaRequirement | None]:
    known = None in found or any(need.toolkit for need in found if need)
    return found if known else [*found, None]


def _container_requirements(container: Container) -> Iterator[CudaRequirement | None]:
    toolkit = image_cuda_version(container.image)
    if toolkit:
        yield toolkit_requirement(toolkit)
    for variable in container.env:
        if variable.name[:1] in "NC" and (variable.name == "CUDA_VERSION" or variable.name.startswith(_REQUIRE_PREFIX)):
            yield from _variable_requirement(variable)


def _variable_requirement(variable: EnvVar) -> Iterator[CudaRequirement | None]:
    if not _is_literal(variable):
        if variable.value or variable.value_from is not None:
            yield None
    elif variable.name == "CUDA_VERSION":
        toolkit = parse_version(variable.value)
        yield toolkit_requirement(toolkit) if toolkit else None
    else:
        yield parse_requirement(variable.value)


def offers_sure_to_run(case: PodContext, offers: tuple[GpuOffer, ...], reach: FeasibleNodes) -> tuple[GpuOffer, ...]:
    """Those of some offers on whose nodes, as far as the pod reaches them, all its images will run."""
    needs, fleet, as_it_is = (
        tuple(stated_requirements(case.pod, case.gpu_requests.requesting_containers())),
        case.view.fleet,
        _current_hardware(case, reach),
    )
    within = reach.selected & reach.tolerated
    return tuple(
        [offer for offer in offers if _all_images_run(needs, fleet.hardware_of_nodes(offer.nodes & within), as_it_is)]
    )


def _current_hardware(case: PodContext, reach: FeasibleNodes) -> _CurrentHardware:
    fleet = case.view.fleet
    named = fleet.nodes_advertising(WHOLE_GPU) & fleet.select_nodes(case.pod.spec.node_selector, None)
    mine = fleet.hardware_of_nodes(case.offer_nodes & case.feasible.nodes)
    return _CurrentHardware(mine, fleet.hardware_of_nodes(named & reach.tolerated), no_rivals_selected=not named)


def _all_images_run(
    needs: tuple[CudaRequirement | None, ...], new: Set[NodeHardware], as_it_is: _CurrentHardware
) -> bool:
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
    if not need.toolkit or (
        node.compute_capability and not missing_kernels_reason(need.toolkit, node.compute_capability)
    ):
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
