"""What a pod asks for: every GPU amount of every container, and their sums as the scheduler makes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from webhook.engine.remarks import Remark
from webhook.model.effective import beside_init, is_sidecar
from webhook.model.paths import Path
from webhook.model.pods import Container, Pod
from webhook.model.quantity import whole
from webhook.model.resources import GpuResource, gpu_resource


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One GPU amount in one container.

    Attributes:
        path: The container, for example ("spec", "containers", 0).
        count: Units asked for; 0 if the amount cannot be read (the remark says so).
    """

    path: Path
    container: Container
    resource: GpuResource
    count: int


class Asked(msgspec.Struct, frozen=True, gc=False):
    """All that a pod asks of NVIDIA's device plugin.

    Attributes:
        asks: Amounts above zero, init containers first, each in the order of the pod.
        totals: Units that the scheduler must find on one node, by resource name.
        strangers: Names under nvidia.com/ that are no GPU resource we know (vGPU types, gpumem …).
        faults: Amounts that the API server will refuse.
        largest: The most units of one name in one container.
    """

    asks: tuple[Ask, ...] = ()
    totals: dict[str, int] = {}
    strangers: tuple[str, ...] = ()
    faults: tuple[Remark, ...] = ()
    largest: int = 0

    def holds(self, path: Path, resource: str) -> bool:
        """Is a container's amount of a resource among the asks?"""
        return any(ask.path == path and ask.resource.name == resource for ask in self.asks)

    def containers(self) -> dict[Path, Container]:
        """The containers that ask, by path."""
        return {ask.path: ask.container for ask in self.asks}


NOTHING = Asked()


def asked_by(pod: Pod) -> Asked:
    """Read what a pod asks for."""
    asks: list[Ask] = []
    strangers: list[str] = []
    faults: list[Remark] = []
    for kind, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            known, unknown = _named((*container.resources.limits, *container.resources.requests))
            if known:
                _read(container, ("spec", kind, index), known, asks, faults)
            if unknown:
                strangers += unknown
    if not asks and not strangers:
        return NOTHING
    return asked_in(tuple(asks), tuple(dict.fromkeys(strangers)) if strangers else (), tuple(faults))


@lru_cache(maxsize=1024)
def _named(keys: tuple[str, ...]) -> tuple[tuple[GpuResource, ...], tuple[str, ...]]:
    """The GPU resources among the keys of limits and requests, and the strangers under nvidia.com/."""
    names = [name for name in dict.fromkeys(keys) if name.startswith("nvidia.com/")]
    known = [resource for name in names if (resource := gpu_resource(name)) is not None]
    return tuple(known), tuple(name for name in names if gpu_resource(name) is None)


def _read(
    container: Container, path: Path, resources: tuple[GpuResource, ...], asks: list[Ask], faults: list[Remark]
) -> None:
    """Add what a container asks of these resources, and what is wrong with it."""
    for resource in resources:
        fault, count = _checked(container, path, resource.name)
        if fault is not None:
            faults.append(fault)
        if count or fault is not None:
            asks.append(Ask(path, container, resource, count))


def asked_in(asks: tuple[Ask, ...], strangers: tuple[str, ...] = (), faults: tuple[Remark, ...] = ()) -> Asked:
    """Some asks of a pod, init containers first, with what they come to together."""
    totals: dict[str, int] = {}
    largest = 0
    for ask in asks:
        totals[ask.resource.name] = totals.get(ask.resource.name, 0) + ask.count
        largest = max(largest, ask.count)
    if asks and asks[0].path[1] == "initContainers":
        totals = {name: _at_one_time([ask for ask in asks if ask.resource.name == name]) for name in totals}
    return Asked(asks, totals, strangers, faults, largest)


def _at_one_time(asks: Sequence[Ask]) -> int:
    """The most units that asks for one resource hold at one time."""
    init = [(ask.count, is_sidecar(ask.container)) for ask in asks if ask.path[1] == "initContainers"]
    return beside_init(sum(ask.count for ask in asks[len(init) :]), init)


def _checked(container: Container, path: Path, name: str) -> tuple[Remark | None, int]:
    """What is wrong with an amount, if anything, and how many units it means."""
    limits, requests = container.resources.limits, container.resources.requests
    side = "limits" if name in limits else "requests"
    amount = limits[name] if name in limits else requests[name]
    count = whole(amount)
    field = (*path, "resources", side, name)
    if count is None or count < 0:
        return _not_whole(field, amount), 0
    if side == "requests":
        return (_no_limit(field, amount) if count else None), count
    if name in requests and requests[name] != amount and whole(requests[name]) != count:
        return _unlike(field, amount, requests[name]), count
    return None, count


def _not_whole(field: Path, amount: object) -> Remark:
    return Remark(
        "GPU-L104",
        field,
        f"must be a whole number of at least 0 (found {amount!r})",
        'Write a whole number such as "1"; for a part of a GPU ask for a MIG slice or a share.',
    )


def _unlike(field: Path, limit: object, request: object) -> Remark:
    return Remark(
        "GPU-L105",
        field,
        f"must equal the request, because extended resources cannot be overcommitted "
        f"(found limit {limit!r}, request {request!r})",
        "Write limits only; requests follow.",
    )


def _no_limit(field: Path, amount: object) -> Remark:
    return Remark(
        "GPU-L105",
        field,
        f"must have an equal limit beside it (found request {amount!r} and no limit)",
        "Write the amount under limits; requests follow.",
    )
