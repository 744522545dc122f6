"""What a pod asks for: every GPU amount of every container, and their sums as the scheduler makes them."""

from __future__ import annotations

from collections.abc import Iterator

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

    @property
    def names(self) -> Iterator[str]:
        """Every name a policy may be about."""
        yield from self.totals
        yield from self.strangers


NOTHING = Asked()


def asked_by(pod: Pod) -> Asked:
    """Read what a pod asks for."""
    spec = pod.spec
    reader = _Reader()
    for index, container in enumerate(spec.init_containers):
        if container.resources.limits or container.resources.requests:
            reader.read(container, ("spec", "initContainers", index))
    for index, container in enumerate(spec.containers):
        if container.resources.limits or container.resources.requests:
            reader.read(container, ("spec", "containers", index))
    return reader.done(pod)


class _Reader:
    """Collects asks; most containers have none, and cost two dictionary walks."""

    __slots__ = ("asks", "faults", "strangers")

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.strangers: list[str] = []
        self.faults: list[Remark] = []

    def read(self, container: Container, path: Path) -> None:
        limits, requests = container.resources.limits, container.resources.requests
        for name in limits:
            if name.startswith("nvidia.com/"):
                self.amount(container, path, name)
        for name in requests:
            if name not in limits and name.startswith("nvidia.com/"):
                self.amount(container, path, name)

    def amount(self, container: Container, path: Path, name: str) -> None:
        resource = gpu_resource(name)
        if resource is None:
            self.strangers.append(name)
            return
        fault, count = _checked(container, path, name)
        if fault is not None:
            self.faults.append(fault)
        if count or fault is not None:
            self.asks.append(Ask(path, container, resource, count))

    def done(self, pod: Pod) -> Asked:
        if not self.asks and not self.strangers:
            return NOTHING
        return asked_in(pod, tuple(self.asks), tuple(dict.fromkeys(self.strangers)), tuple(self.faults))


def asked_in(
    pod: Pod, asks: tuple[Ask, ...], strangers: tuple[str, ...] = (), faults: tuple[Remark, ...] = ()
) -> Asked:
    """Some asks of a pod, with their totals. With init containers, the totals are always the whole pod's."""
    totals: dict[str, int] = {}
    for ask in asks:
        totals[ask.resource.name] = totals.get(ask.resource.name, 0) + ask.count
    if pod.spec.init_containers:
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
