"""What a pod asks for: every GPU amount of every container, and their sums as the scheduler makes them."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from webhook.engine.remarks import Remark
from webhook.model.effective import effective
from webhook.model.paths import Path
from webhook.model.pods import Container, Pod
from webhook.model.quantity import NANO, whole
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
    """

    asks: tuple[Ask, ...] = ()
    totals: dict[str, int] = {}
    strangers: tuple[str, ...] = ()
    faults: tuple[Remark, ...] = ()


NOTHING = Asked()


def asked_by(pod: Pod) -> Asked:
    """Read what a pod asks for."""
    spec = pod.spec
    reader = _Reader()
    for index, container in enumerate(spec.init_containers):
        reader.read(container, "initContainers", index)
    for index, container in enumerate(spec.containers):
        reader.read(container, "containers", index)
    if not reader.asks and not reader.strangers:
        return NOTHING
    return asked_in(pod, tuple(reader.asks), tuple(dict.fromkeys(reader.strangers)), tuple(reader.faults))


@lru_cache(maxsize=1024)
def _named(keys: tuple[str, ...]) -> tuple[tuple[GpuResource, ...], tuple[str, ...]]:
    """The GPU resources among the keys of limits and requests, and the strangers under nvidia.com/."""
    names = [name for name in dict.fromkeys(keys) if name.startswith("nvidia.com/")]
    known = [resource for name in names if (resource := gpu_resource(name)) is not None]
    return tuple(known), tuple(name for name in names if gpu_resource(name) is None)


class _Reader:
    """Collects asks. Most containers have none, and cost one look-up."""

    __slots__ = ("asks", "faults", "strangers")

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.strangers: list[str] = []
        self.faults: list[Remark] = []

    def read(self, container: Container, kind: str, index: int) -> None:
        known, strangers = _named((*container.resources.limits, *container.resources.requests))
        self.strangers += strangers
        for resource in known:
            path = ("spec", kind, index)
            fault, count = _checked(container, path, resource.name)
            if fault is not None:
                self.faults.append(fault)
            if count or fault is not None:
                self.asks.append(Ask(path, container, resource, count))


def asked_in(
    pod: Pod, asks: tuple[Ask, ...], strangers: tuple[str, ...] = (), faults: tuple[Remark, ...] = ()
) -> Asked:
    """Some asks of a pod, with their totals. If an init container asks, the totals are those of the whole pod."""
    totals: dict[str, int] = {}
    for ask in asks:
        totals[ask.resource.name] = totals.get(ask.resource.name, 0) + ask.count
    if asks and asks[0].path[1] == "initContainers":
        totals = {name: max(0, effective(pod, name) // NANO) for name in totals}
    return Asked(asks, totals, strangers, faults)


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
