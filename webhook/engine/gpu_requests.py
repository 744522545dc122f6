"""GPU requests of a pod: its containers' amounts, their totals as the scheduler counts, and its declared need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import QuantityError
from webhook.model.annotations import GPU_COMPUTE_ANNOTATION, GPU_MEMORY_ANNOTATION
from webhook.model.bounded_cache import request_cache
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.fleet import Fleet
from webhook.model.gpu_fractions import FRACTION_ANNOTATIONS, fraction_need, unreadable_fractions
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, GpuResource, parse_gpu_resource
from webhook.model.pod_resources import is_sidecar, peak_with_init
from webhook.model.pods import Container, Pod, PodSpec
from webhook.model.quantity import parse_mebibytes, parse_nano, parse_whole_number

MAX_MEMORY_MIB = 16 * 1024 * 1024
"""16 TiB: more than any card has; a larger declaration has a wrong unit."""


class GpuRequest(msgspec.Struct, frozen=True, gc=False):
    """One GPU amount of one container.

    Attributes:
        path: The container, for example ("spec", "containers", 0).
        count: Requested units; 0 if the amount is invalid.
    """

    path: FieldPath
    container: Container
    resource: GpuResource
    count: int


class PodGpuRequests(msgspec.Struct, frozen=True, gc=False):
    """All GPU requests of a pod to NVIDIA's device plugin.

    Attributes:
        requests: Amounts above zero, init containers first, each in the order of the pod.
        totals: Units that the scheduler must find on one node, by resource name.
        unknown_resources: Names under nvidia.com/ that are no known GPU resource (vGPU types, gpumem …).
        errors: Amounts that the API server will reject.
        max_count: The most units of one name in one container.
        containers: The containers that request GPUs, by path.
        other_resources: Names of other extended resources, such as rdma/hca.
        extended_names: Every name of an extended resource or device class in a container, whatever the amount.
    """

    requests: tuple[GpuRequest, ...] = ()
    totals: dict[str, int] = {}
    unknown_resources: tuple[str, ...] = ()
    errors: tuple[PolicyFinding, ...] = ()
    max_count: int = 0
    containers: dict[FieldPath, Container] = {}
    other_resources: tuple[str, ...] = ()
    extended_names: tuple[str, ...] = ()

    def fields(self) -> frozenset[tuple[FieldPath, str]]:
        """Return the path of the container and the resource of each request."""
        return frozenset([(one.path, one.resource.name) for one in self.requests])


NO_GPU_REQUESTS = PodGpuRequests()


def gpu_requests_of_pod(pod: Pod) -> PodGpuRequests:
    """Return the GPU requests of a pod."""
    requests: list[GpuRequest] = []
    unknown: list[str] = []
    others: list[str] = []
    extended: list[str] = []
    errors: list[PolicyFinding] = []
    for kind, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            names = _split_extended_names((*container.resources.limits, *container.resources.requests))
            path = ("spec", kind, index)
            for resource in names.gpus:
                amount, error = container.resources.limits.get(resource.name), None
                count = None if amount is None else parse_whole_number(amount)
                if not count or count < 0 or container.resources.requests.get(resource.name, amount) != amount:
                    error, count = _check_gpu_amount(container, path, resource.name)
                if error is not None:
                    errors.append(error)
                if count or error is not None:
                    requests.append(GpuRequest(path, container, resource, count))
            if names.extended:
                extended += names.extended
                unknown += names.unknown
                others += names.others
    if not extended:
        return NO_GPU_REQUESTS
    distinct = [tuple(dict.fromkeys(each)) if each else () for each in (unknown, others, extended)]
    return sum_gpu_requests(tuple(requests), tuple(errors), *distinct)


class _ExtendedNames(NamedTuple):
    """The extended resources and device classes among the keys of limits and requests.

    Attributes:
        unknown: Names under nvidia.com/ that are no GPU resources.
        others: Names that a node must advertise, apart from those of Kubernetes and the accounting resource.
        extended: All names.
    """

    gpus: tuple[GpuResource, ...]
    unknown: tuple[str, ...]
    others: tuple[str, ...]
    extended: tuple[str, ...]


@request_cache(1024)
def _split_extended_names(keys: tuple[str, ...]) -> _ExtendedNames:
    extended = tuple(name for name in dict.fromkeys(keys) if "/" in name)
    nvidia = {name: parse_gpu_resource(name) for name in extended if name.startswith("nvidia.com/")}
    known = tuple(resource for resource in nvidia.values() if resource is not None)
    unknown = tuple(name for name, resource in nvidia.items() if resource is None)
    others = tuple(name for name in extended if name not in nvidia and _must_be_advertised(name))
    return _ExtendedNames(known, unknown, others, extended)


def _must_be_advertised(name: str) -> bool:
    domain = name.partition("/")[0]
    return name != ACCOUNTING_RESOURCE and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def sum_gpu_requests(
    requests: tuple[GpuRequest, ...],
    errors: tuple[PolicyFinding, ...] = (),
    unknown_resources: tuple[str, ...] = (),
    other_resources: tuple[str, ...] = (),
    extended_names: tuple[str, ...] = (),
) -> PodGpuRequests:
    """Return requests of a pod, init containers first, with their totals."""
    totals: dict[str, int] = {}
    containers: dict[FieldPath, Container] = {}
    max_count = 0
    for one in requests:
        containers[one.path] = one.container
        totals[one.resource.name] = totals.get(one.resource.name, 0) + one.count
        max_count = max(max_count, one.count)
    if requests and requests[0].path[1] == "initContainers":
        by_name: dict[str, list[GpuRequest]] = {}
        for one in requests:
            by_name.setdefault(one.resource.name, []).append(one)
        totals = {name: _peak_units(named) for name, named in by_name.items()}
    others = other_resources, extended_names
    return PodGpuRequests(requests, totals, unknown_resources, errors, max_count, containers, *others)


def _peak_units(requests: Sequence[GpuRequest]) -> int:
    init = [(one.count, is_sidecar(one.container)) for one in requests if one.path[1] == "initContainers"]
    return peak_with_init(sum(one.count for one in requests[len(init) :]), init)


def _check_gpu_amount(container: Container, path: FieldPath, name: str) -> tuple[PolicyFinding | None, int]:
    """Return the error of an amount, if any, and its units."""
    limits, requests = container.resources.limits, container.resources.requests
    side = "limits" if name in limits else "requests"
    amount = limits[name] if name in limits else requests[name]
    count, field = parse_whole_number(amount), (*path, "resources", side, name)
    if count is None or count < 0:
        message = f"must be a whole number of at least 0 (found {amount!r})"
        fix = 'Write a whole number such as "1"; for a part of a GPU, request a MIG slice or a share.'
        return PolicyFinding("GPU-L104", field, message, fix), 0
    if side == "requests":
        message = f"must have an equal limit (found request {amount!r} and no limit)"
        fix = "Write the amount under limits; requests default to limits."
        return (PolicyFinding("GPU-L105", field, message, fix) if count else None), count
    request = requests.get(name, amount)
    if request != amount and parse_whole_number(request) != count:
        message = (
            "must equal the request, because extended resources cannot be overcommitted "
            f"(found limit {amount!r}, request {request!r})"
        )
        return PolicyFinding("GPU-L105", field, message, "Write limits only; requests default to limits."), count
    return None, count


def requests_gpu_share(totals: Mapping[str, int], fleet: Fleet) -> bool:
    """Return whether one of the requested resources is a share, by its name or by what nodes offer under it."""
    if any((resource := parse_gpu_resource(name)) is not None and resource.shared for name in totals):
        return True
    return any(offer.replicas > 1 for offer in fleet.offers_on_nodes(tuple(totals), fleet.all_nodes).offers)


def init_then_main_containers(spec: PodSpec) -> list[tuple[FieldPath, Container]]:
    """Return the init containers and then the main ones, each with its path from the root of the Pod."""
    found: list[tuple[FieldPath, Container]] = [
        (("spec", "initContainers", i), container) for i, container in enumerate(spec.init_containers)
    ]
    found += [(("spec", "containers", i), container) for i, container in enumerate(spec.containers)]
    return found


def container_at(pod: Pod, path: FieldPath) -> Container:
    """Return the init or main container at a path."""
    _, kind, index = path
    assert isinstance(index, int)
    return pod.spec.containers[index] if kind == "containers" else pod.spec.init_containers[index]


def containers_of_every_kind(spec: PodSpec) -> list[tuple[FieldPath, Container]]:
    """Return every container with its path from the root of the Pod: main, then init, then ephemeral containers.

    A check of `spec.containers` alone can be bypassed: all of them reach the same devices.
    """
    found: list[tuple[FieldPath, Container]] = [
        (("spec", "containers", i), container) for i, container in enumerate(spec.containers)
    ]
    if spec.init_containers:
        found += [(("spec", "initContainers", i), container) for i, container in enumerate(spec.init_containers)]
    if spec.ephemeral_containers:
        found += [
            (("spec", "ephemeralContainers", i), container) for i, container in enumerate(spec.ephemeral_containers)
        ]
    return found


class DeclaredNeed(msgspec.Struct, frozen=True, gc=False):
    """The GPU need that a pod's annotations declare.

    Attributes:
        text: The memory as written.
        memory_mib: None if nothing readable is declared, as is `compute_milli`.
        errors: Annotations that cannot be parsed.
    """

    text: str = ""
    memory_mib: int | None = None
    compute_milli: int | None = None
    errors: tuple[PolicyFinding, ...] = ()


NOTHING_DECLARED = DeclaredNeed()

NEED_ANNOTATIONS = frozenset({GPU_MEMORY_ANNOTATION, GPU_COMPUTE_ANNOTATION, *FRACTION_ANNOTATIONS})


def declared_need_of(pod: Pod, fleet: Fleet | None = None) -> DeclaredNeed:
    """Parse the GPU need that a pod declares: by annotations of Rightslice, else of KAI.

    Args:
        fleet: The nodes of the cluster: a fraction is one of its largest card. None if they are unknown.
    """
    annotations = pod.metadata.annotations
    text, compute = annotations.get(GPU_MEMORY_ANNOTATION, ""), annotations.get(GPU_COMPUTE_ANNOTATION, "")
    memory_mib, compute_milli = _parse_memory_mib(text), _parse_percent_milli(compute)
    errors: list[PolicyFinding] = []
    if GPU_MEMORY_ANNOTATION not in annotations:
        text, memory_mib, share = fraction_need(pod, fleet.largest_card_mib() if fleet is not None else None)
        compute_milli = compute_milli or share
        errors = [
            _unreadable_annotation(key, annotations[key], must, example)
            for key, must, example in unreadable_fractions(annotations)
        ]
    if GPU_MEMORY_ANNOTATION in annotations and memory_mib is None:
        errors.append(_unreadable_annotation(GPU_MEMORY_ANNOTATION, text, "1Mi to 16Ti of GPU memory", "8Gi"))
    if GPU_COMPUTE_ANNOTATION in annotations and compute_milli is None:
        errors.append(_unreadable_annotation(GPU_COMPUTE_ANNOTATION, compute, "a percentage from 1% to 100%", "20%"))
    return DeclaredNeed(text, memory_mib, compute_milli, tuple(errors))


@request_cache(64)
def _parse_memory_mib(text: str) -> int | None:
    try:
        size = parse_mebibytes(text) if text else 0
    except QuantityError:
        return None
    return size if 0 < size <= MAX_MEMORY_MIB and parse_nano(text) >= parse_nano("1Mi") else None


@request_cache(64)
def _parse_percent_milli(text: str) -> int | None:
    """Return thousandths of "20%" or "12.5%"."""
    if not text.endswith("%") or not text.isascii():
        return None
    try:
        share = -(-parse_nano(text[:-1].strip()) // 100_000_000)
    except QuantityError:
        return None
    return share if 0 < share <= 1000 else None


def _unreadable_annotation(key: str, found: str, must: str, example: str) -> PolicyFinding:
    return PolicyFinding(
        "GPU-R104",
        ("metadata", "annotations", key),
        f"must be {must} (found {found[:60]!r})",
        f'Write {key}: "{example}".',
        at_most=PolicyMode.WARN,
    )
