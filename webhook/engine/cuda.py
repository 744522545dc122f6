"""CUDA requirements of a pod's images, checked against the drivers and GPU architectures of its candidate nodes.

Where the container runtime injects devices by CDI, now the default, nothing checks an image's requirement: the program
starts and fails at its first CUDA call. So it is reported here.

The requirement comes from the pod's annotation, else NVIDIA_REQUIRE_CUDA, else CUDA_VERSION in its environment, else
the image's tag. Rules: NVIDIA's CUDA compatibility guide.

An offer is sure to run an image with a known CUDA version if the driver of every node is new enough and its GPUs have
kernels, or if no whole GPU of the cluster is better. An image without a known version is only sure to run on nodes like
those it may get as it is. Variables that disable or extend the container runtime's check do not reduce this
requirement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

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
from webhook.engine.new_nodes import find_new_nodes
from webhook.engine.pod_context import GpuPodContext
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import abbreviate_names, quote_text, shorten_text
from webhook.model.annotations import CUDA_ANNOTATION, CUDA_COMPAT_ANNOTATION
from webhook.model.dra.class_offers import NO_CLASS_OFFERS
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.offers import GpuOffer, NodeHardware
from webhook.model.pods import Container, EnvVar, Pod

_REQUIRE_PREFIX = "NVIDIA_REQUIRE_"
_COMPAT_VARIABLE = "NV_CUDA_COMPAT_PACKAGE"
_CUDA_VARIABLES = frozenset({_COMPAT_VARIABLE, "NVIDIA_DISABLE_REQUIRE", "CUDA_VERSION"})
_TRUE_VALUES = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_MAX_NAMES = 4
_MINOR_VERSIONS = (
    "CUDA's minor-version compatibility covers this; only kernels compiled at run time (PTX) and newer calls fail."
)

_NEWER_DRIVER_FIX = "Use an image with an older CUDA, or nodes with a newer driver."


class _CudaNeed(msgspec.Struct, frozen=True):
    """One CUDA requirement of a pod.

    Attributes:
        source: Its origin, for messages.
        requirement: None if the text is invalid.
        compat: True if the image contains the forward compatibility package.
    """

    path: FieldPath
    source: str
    text: str
    requirement: CudaRequirement | None
    compat: bool

    def __str__(self) -> str:
        toolkit = self.requirement.toolkit if self.requirement is not None else ()
        return f"{self.source} requires {f'CUDA {format_version(toolkit)}' if toolkit else quote_text(self.text)}"


def cuda_violations(
    pod: Pod, offers: Sequence[GpuOffer], containers: Mapping[FieldPath, Container]
) -> list[PolicyFinding]:
    """Return why the pod's images may not run on the offers' nodes.

    Args:
        offers: The candidate offers; those without driver and CUDA version are ignored.
        containers: The containers that request GPUs, by path.
    """
    annotations = pod.metadata.annotations
    compat, text = annotations.get(CUDA_COMPAT_ANNOTATION) == "true", annotations.get(CUDA_ANNOTATION)
    if text is None:
        stating = [(path, one) for path, one in containers.items() if one.env or image_cuda_version(one.image)]
        needs = [need for path, one in stating for need in _container_cuda_needs(path, one, compat=compat)]
    else:
        compat = compat or any(variable.name == _COMPAT_VARIABLE for one in containers.values() for variable in one.env)
        path: FieldPath = ("metadata", "annotations", CUDA_ANNOTATION)
        needs = [_CudaNeed(path, CUDA_ANNOTATION, text, parse_cuda_annotation(text), compat)]
    return [finding for need in needs for finding in _check_cuda_need(need, offers)]


def _check_cuda_need(need: _CudaNeed, offers: Sequence[GpuOffer]) -> list[PolicyFinding]:
    requirement = need.requirement
    if requirement is None:
        return [unreadable_requirement(need.source, need.text, need.path)]
    violations = [] if all_drivers_fit(requirement, offers) else _driver_violations(need, requirement, offers)
    return violations + _architecture_violations(need, requirement, offers) if requirement.toolkit else violations


def unreadable_requirement(source: str, text: str, path: FieldPath) -> PolicyFinding:
    """Report a CUDA requirement that cannot be read."""
    must = "must be a requirement such as cuda>=12.4; a comma is AND, a space is OR"
    message = f"{source} {must} (found {quote_text(text)})"
    return PolicyFinding("GPU-C104", path, message, "Write >=12.4, for example.", PolicyMode.WARN)


def _driver_violations(
    need: _CudaNeed, requirement: CudaRequirement, offers: Sequence[GpuOffer]
) -> list[PolicyFinding]:
    fits = [(offer, check_driver(requirement, offer)) for offer in offers]
    compatible = [offer for offer, fit in fits if fit is DriverFit.COMPATIBLE]
    below = [offer for offer, fit in fits if fit is DriverFit.BELOW]
    fitting = [offer for offer, fit in fits if fit is DriverFit.FITS]
    if not compatible and not below:
        return []
    at_most = PolicyMode.WARN
    covered = bool(requirement.toolkit) and not requirement.alternatives and not below  # none is checked at start-up
    if fitting:
        other = [*compatible, *below]
        code, fix = "GPU-C102", f"Select one of these in a node affinity on {PRODUCT_LABEL}: {_offer_names(fitting)}."
        if covered:
            fix = f"{_MINOR_VERSIONS} For these, select {_offer_names(fitting)} in a node affinity on {PRODUCT_LABEL}."
        message = (
            f"only some candidate nodes have a driver that supports {need.source} (found {_offer_names(fitting)}; "
            f"the others have {_newest_driver(other)} on {_offer_names(other)})"
        )
    elif compatible:
        own, code = requirement.own_driver, "GPU-C102"
        fix = _MINOR_VERSIONS if covered else "Test the image on these nodes, or use an image with an older CUDA."
        should = f"should be {format_driver(own)} or newer" if own else "should satisfy that"
        older = f", and an older one on {_offer_names(below)}" if below else ""
        found = f"{_newest_driver(compatible)} on {_offer_names(compatible)}{older}"
        message = f"{need}, so the driver {should} (found {found})"
    else:
        # Not certain if a node does not show its driver, or if forward compatibility may help.
        if len(below) == len(fits) and not (need.compat and all(map(is_data_center_gpu, below))):
            at_most = PolicyMode.ENFORCE
        floor, code, fix = requirement.floor_driver, "GPU-C101", _NEWER_DRIVER_FIX
        least = format_driver(floor) if floor else f"one with CUDA {requirement.toolkit[0]}"
        found = f"{_newest_driver(below)} on {_offer_names(below)}"
        message = f"{need}, so the driver must be {least} or newer (found {found})"
    return [PolicyFinding(code, need.path, message, fix, at_most)]


def _architecture_violations(
    need: _CudaNeed, requirement: CudaRequirement, offers: Sequence[GpuOffer]
) -> list[PolicyFinding]:
    reasons: dict[str, list[GpuOffer]] = {}
    for offer in offers:
        reason = missing_kernels_reason(requirement.toolkit, offer.compute_capability)
        if not reason:
            return []
        reasons.setdefault(reason, []).append(offer)
    fix = "Use an image built with a toolkit that supports this GPU, or request another product."
    return [
        PolicyFinding(
            "GPU-C103",
            need.path,
            f"{need}, but a GPU this pod may get {reason} (found {_offer_names(unsupported)})",
            fix,
            PolicyMode.WARN,
        )
        for reason, unsupported in reasons.items()
    ]


def _newest_driver(offers: Sequence[GpuOffer]) -> str:
    drivers = [offer.driver for offer in offers if offer.driver]
    if drivers:
        return f"driver {format_driver(max(drivers))}"
    return f"CUDA {format_version(max((offer.cuda for offer in offers), default=()))}"


def _offer_names(offers: Sequence[GpuOffer]) -> str:
    names = sorted({offer.product or offer.resource for offer in offers})
    return abbreviate_names([shorten_text(name) for name in names], _MAX_NAMES)


def _container_cuda_needs(path: FieldPath, container: Container, *, compat: bool) -> list[_CudaNeed]:
    """Return a container's requirements: every NVIDIA_REQUIRE_ variable, else the toolkit's version."""
    variables: dict[str, tuple[FieldPath, EnvVar]] = {}
    for i, variable in enumerate(container.env):
        name = variable.name
        if name[:1] in "NC" and (name in _CUDA_VARIABLES or name.startswith(_REQUIRE_PREFIX)):
            variables[name] = ((*path, "env", i), variable)
    if variables:
        if (off := variables.get("NVIDIA_DISABLE_REQUIRE")) and off[1].value in _TRUE_VALUES:
            return []
        compat = compat or _COMPAT_VARIABLE in variables
        required = [
            _CudaNeed(place, name, variable.value, parse_requirement(variable.value), compat)
            for name, (place, variable) in variables.items()
            if name.startswith(_REQUIRE_PREFIX) and _is_literal(variable)
        ]
        if required:
            return required
        if (named := variables.get("CUDA_VERSION")) and _is_literal(named[1]):
            place, text = named[0], named[1].value
            toolkit = parse_version(text)
            requirement = toolkit_requirement(toolkit) if toolkit else None
            return [_CudaNeed(place, "CUDA_VERSION", text, requirement, compat)]
    image, toolkit = container.image, image_cuda_version(container.image)
    if not toolkit:
        return []
    return [_CudaNeed((*path, "image"), "the image's tag", image, toolkit_requirement(toolkit), compat)]


def _is_literal(variable: EnvVar) -> bool:
    """Return whether the value is written here, not taken from another object or variable."""
    return bool(variable.value) and variable.value_from is None and "$(" not in variable.value


def stated_requirements(pod: Pod, containers: Mapping[FieldPath, Container]) -> list[CudaRequirement | None]:
    """Return every CUDA requirement of a pod and its images, whether or not the container runtime checks it.

    None is a requirement that cannot be read, or a container without a known CUDA version.
    """
    text = pod.metadata.annotations.get(CUDA_ANNOTATION)
    stated = [[parse_cuda_annotation(text)]] if text is not None else map(_container_requirements, containers.values())
    found: list[CudaRequirement | None] = []
    for requirements in stated:
        found += requirements
        if None not in requirements and not any(each.toolkit for each in requirements if each):
            found.append(None)
    return found


def _container_requirements(container: Container) -> list[CudaRequirement | None]:
    toolkit = image_cuda_version(container.image)
    requirements: list[CudaRequirement | None] = [toolkit_requirement(toolkit)] if toolkit else []
    for variable in container.env:
        name = variable.name
        if name[:1] not in "NC" or not (name == "CUDA_VERSION" or name.startswith(_REQUIRE_PREFIX)):
            continue
        if not _is_literal(variable):
            if variable.value or variable.value_from is not None:
                requirements.append(None)
        elif name == "CUDA_VERSION":
            version = parse_version(variable.value)
            requirements.append(toolkit_requirement(version) if version else None)
        else:
            requirements.append(parse_requirement(variable.value))
    return requirements


class _CurrentHardware(msgspec.Struct, frozen=True):
    """The hardware that a pod may get with its present request.

    A second admission pass must not find better hardware here. Affinity of policies, which the pod may have by then,
    does not change `rivals` and can only reduce `reachable`.

    Attributes:
        reachable: Drivers and GPUs of the nodes that may take the pod; empty unless a requirement is unknown. If there
            are no rivals, new nodes with whole GPUs count that a group may add.
        rivals: Those of every node with the requested name that it tolerates and its node selector allows; empty unless
            a requirement is known. Nodes that are not ready or cordoned count if there are no others.
        no_rivals: True if there are none of these, nor such new nodes: it cannot get a GPU as it is.
    """

    reachable: Set[NodeHardware]
    rivals: Set[NodeHardware]
    no_rivals: bool


def offers_sure_to_run(
    context: GpuPodContext, offers: tuple[GpuOffer, ...], feasible: FeasibleNodes
) -> tuple[GpuOffer, ...]:
    """Return the offers on whose reachable nodes all images of the pod will run.

    Args:
        feasible: The nodes of the offers: those of the cluster, or new ones.
    """
    requirements = stated_requirements(context.pod, context.gpu_requests.containers)
    fleet, nodes = context.view.fleet, feasible.selected & feasible.tolerated
    named = fleet.nodes_advertising(WHOLE_GPU) & fleet.select_nodes(context.pod.spec.node_selector, None)
    projected = feasible if feasible.view is context.view else context.feasible
    by_class = context.view.class_offers() if context.view.classes else NO_CLASS_OFFERS
    rivals = named & projected.tolerated or named & projected.tolerated_when_usable
    others = by_class.whole_gpus
    if not rivals and None in requirements:
        others |= _hardware_of_new_nodes(context)
    reachable: Set[NodeHardware] = frozenset()
    if None in requirements:
        reachable = fleet.hardware_of_nodes(context.offer_nodes & (context.feasible.nodes | projected.nodes)) | others
    known = fleet.hardware_of_nodes(rivals) | by_class.whole_gpus if any(requirements) else frozenset()
    current = _CurrentHardware(reachable, known, no_rivals=not (rivals or others))
    found: list[GpuOffer] = []
    for offer in offers:
        hardware = by_class.hardware_of(offer) or feasible.view.fleet.hardware_of_nodes(offer.nodes & nodes)
        if all(_image_runs(requirement, node, current) for requirement in requirements for node in hardware):
            found.append(offer)
    return tuple(found)


def _hardware_of_new_nodes(context: GpuPodContext) -> Set[NodeHardware]:
    """Return drivers and GPUs of the nodes with whole GPUs that a group may add for a pod."""
    new = find_new_nodes(context)
    return new.fleet.hardware_of_nodes(new.allowed & new.fleet.nodes_advertising(WHOLE_GPU))


def _image_runs(requirement: CudaRequirement | None, node: NodeHardware, current: _CurrentHardware) -> bool:
    if requirement is None:
        return current.no_rivals or any(
            node == other or (_same_gpu_model(node, other) and _driver_no_older(node, other))
            for other in current.reachable
        )
    rivals, toolkit, capability = current.rivals, requirement.toolkit, node.compute_capability
    if check_driver(requirement, node) is not DriverFit.FITS and not (
        rivals and all(_driver_no_older(node, rival) for rival in rivals)
    ):
        return False
    if not toolkit or (capability and not missing_kernels_reason(toolkit, capability)):
        return True
    return bool(rivals) and all(_same_gpu_model(node, rival) for rival in rivals)


def _same_gpu_model(one: NodeHardware, other: NodeHardware) -> bool:
    """Return whether code for GPUs of one node runs on those of another; a node group may lack one of the labels."""
    if one.compute_capability and other.compute_capability:
        return one.compute_capability == other.compute_capability
    return bool(one.product) and one.product == other.product


def _driver_no_older(one: NodeHardware, other: NodeHardware) -> bool:
    """Return whether a driver is as new as another, by version, else by CUDA version; False if only one is known."""
    if one.driver and other.driver:
        return one.driver >= other.driver
    if one.driver or other.driver or bool(one.cuda) != bool(other.cuda):
        return False
    return one.cuda >= other.cuda
