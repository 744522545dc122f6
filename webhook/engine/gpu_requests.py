"""What a pod asks for: every GPU amount of every container, and their sums as the scheduler makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from webhook.engine.violations import Violation
from webhook.model.field_paths import FieldPath
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import GpuResource, parse_gpu_resource
from webhook.model.pod_resources import is_sidecar, peak_with_init
from webhook.model.pods import Container, Pod
from webhook.model.quantity import parse_whole_number


class GpuRequest(msgspec.Struct, frozen=True, gc=False):
    """One GPU amount in one container.

    Attributes:
        path: The container, for example ("spec", "containers", 0).
        count: Units asked for; 0 if the amount cannot be read (the remark says so).
    """

    path: FieldPath
    container: Container
    resource: GpuResource
    count: int


class PodGpuRequests(msgspec.Struct, frozen=True, gc=False):
    """All that a pod asks of NVIDIA's device plugin.

    Attributes:
        asks: Amounts above zero, init containers first, each in the order of the pod.
        totals: Units that the scheduler must find on one node, by resource name.
        strangers: Names under nvidia.com/ that are no GPU resource we know (vGPU types, gpumem …).
        faults: Amounts that the API server will refuse.
        largest: The most units of one name in one container.
    """

    requests: tuple[GpuRequest, ...] = ()
    totals: dict[str, int] = {}
    unknown_resources: tuple[str, ...] = ()
    errors: tuple[Violation, ...] = ()
    max_count: int = 0

    def includes(self, path: FieldPath, resource: str) -> bool:
        """Is a container's amount of a resource among the asks?"""
        return any(ask.path == path and ask.resource.name == resource for ask in self.requests)

    def requesting_containers(self) -> dict[FieldPath, Container]:
        """The containers that ask, by path."""
        return {ask.path: ask.container for ask in self.requests}


NO_GPU_REQUESTS = PodGpuRequests()


def gpu_requests_of_pod(pod: Pod) -> PodGpuRequests:
    """Read what a pod asks for."""
    asks: list[GpuRequest] = []
    strangers: list[str] = []
    faults: list[Violation] = []
    for kind, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            known, unknown = _split_nvidia_names((*container.resources.limits, *container.resources.requests))
            if known:
                _collect_gpu_requests(container, ("spec", kind, index), known, asks, faults)
            if unknown:
                strangers += unknown
    if not asks and not strangers:
        return NO_GPU_REQUESTS
    return sum_gpu_requests(tuple(asks), tuple(dict.fromkeys(strangers)) if strangers else (), tuple(faults))


@lru_cache(maxsize=1024)
def _split_nvidia_names(keys: tuple[str, ...]) -> tuple[tuple[GpuResource, ...], tuple[str, ...]]:
    """The GPU resources among the keys of limits and requests, and the strangers under nvidia.com/."""
    names = [name for name in dict.fromkeys(keys) if name.startswith("nvidia.com/")]
    known = [resource for name in names if (resource := parse_gpu_resource(name)) is not None]
    return tuple(known), tuple(name for name in names if parse_gpu_resource(name) is None)


def _collect_gpu_requests(
    container: Container,
    path: FieldPath,
    resources: tuple[GpuResource, ...],
    asks: list[GpuRequest],
    faults: list[Violation],
) -> None:
    """Add what a container asks of these resources, and what is wrong with it."""
    for resource in resources:
        fault, count = _check_gpu_amount(container, path, resource.name)
        if fault is not None:
            faults.append(fault)
        if count or fault is not None:
            asks.append(GpuRequest(path, container, resource, count))


def sum_gpu_requests(
    asks: tuple[GpuRequest, ...], strangers: tuple[str, ...] = (), faults: tuple[Violation, ...] = ()
) -> PodGpuRequests:
    """Some asks of a pod, init containers first, with what they come to together."""
    totals: dict[str, int] = {}
    largest = 0
    for ask in asks:
        totals[ask.resource.name] = totals.get(ask.resource.name, 0) + ask.count
        largest = max(largest, ask.count)
    if asks and asks[0].path[1] == "initContainers":
        totals = {name: _peak_units([ask for ask in asks if ask.resource.name == name]) for name in totals}
    return PodGpuRequests(asks, totals, strangers, faults, largest)


def _peak_units(asks: Sequence[GpuRequest]) -> int:
    """The most units that asks for one resource hold at one time."""
    init = [(ask.count, is_sidecar(ask.container)) for ask in asks if ask.path[1] == "initContainers"]
    return peak_with_init(sum(ask.count for ask in asks[len(init) :]), init)


def _check_gpu_amount(container: Container, path: FieldPath, name: str) -> tuple[Violation | None, int]:
    """What is wrong with an amount, if anything, and how many units it means."""
    limits, requests = container.resources.limits, container.resources.requests
    side = "limits" if name in limits else "requests"
    amount = limits[name] if name in limits else requests[name]
    count = parse_whole_number(amount)
    field = (*path, "resources", side, name)
    if count is None or count < 0:
        return _not_whole_violation(field, amount), 0
    if side == "requests":
        return (_missing_limit_violation(field, amount) if count else None), count
    if name in requests and requests[name] != amount and parse_whole_number(requests[name]) != count:
        return _unequal_sides_violation(field, amount, requests[name]), count
    return None, count


def _not_whole_violation(field: FieldPath, amount: object) -> Violation:
    return Violation(
        "GPU-L104",
        field,
        f"must be a whole number of at least 0 (found {amount!r})",
        'Write a whole number such as "1"; for a part of a GPU ask for a MIG slice or a share.',
    )


def _unequal_sides_violation(field: FieldPath, limit: object, request: object) -> Violation:
    return Violation(
        "GPU-L105",
        field,
        f"must equal the request, because extended resources cannot be overcommitted "
        f"(found limit {limit!r}, request {request!r})",
        "Write limits only; requests follow.",
    )


def _missing_limit_violation(field: FieldPath, amount: object) -> Violation:
    return Violation(
        "GPU-L105",
        field,
        f"must have an equal limit beside it (found request {amount!r} and no limit)",
        "Write the amount under limits; requests follow.",
    )


def requests_gpu_share(totals: Mapping[str, int], fleet: Fleet) -> bool:
    """Is one of these resources a share, by its name or by what nodes offer under it?

    Args:
        totals: Units asked for, by resource name.
    """
    if any((resource := parse_gpu_resource(name)) is not None and resource.shared for name in totals):
        return True
    return any(offer.replicas > 1 for offer in fleet.offers_on_nodes(totals, fleet.all_nodes).offers)
