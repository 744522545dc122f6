"""A pod's amounts as the API server holds them while it admits the pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.engine.containers import Changes
from webhook.model.apimachinery import Quantity, add, compare
from webhook.model.paths import Path
from webhook.model.pods import Amount, Container, Pod
from webhook.model.ranges import Amounts, held

LIMITS, REQUESTS = "limits", "requests"
_OF_THE_POD = ("cpu", "memory")


class Holder(NamedTuple):
    """One container, or the pod as a whole: what it may take and what it asks for."""

    path: Path
    name: str
    limits: Amounts
    requests: Amounts
    sidecar: bool = False

    def side(self, side: str) -> Amounts:
        """Limits or requests."""
        return self.limits if side == LIMITS else self.requests


class Holders(NamedTuple):
    """All of a pod. `whole` is `spec.resources`, None where the pod has none."""

    containers: tuple[Holder, ...]
    init_containers: tuple[Holder, ...] = ()
    whole: Holder | None = None

    @property
    def each(self) -> tuple[Holder, ...]:
        """Every container, in LimitRanger's order."""
        return self.containers + self.init_containers


def holders_of(pod: Pod, limits: Changes, requests: Changes) -> Holders:
    """Read a pod, some containers' amounts changed.

    Raises:
        QuantityError: an amount is no quantity: no API server reads this pod.
    """
    spec = pod.spec
    main = tuple([_holder(("spec", "containers", i), c, limits, requests) for i, c in enumerate(spec.containers)])
    init = tuple(
        [_holder(("spec", "initContainers", i), c, limits, requests) for i, c in enumerate(spec.init_containers)]
    )
    if spec.resources is None:
        return Holders(main, init)
    written = spec.resources
    whole = Holder(("spec",), "", read(written.limits.items()), read(written.requests.items()))
    return Holders(main, init, whole)


def _holder(path: Path, container: Container, limits: Changes, requests: Changes) -> Holder:
    resources = container.resources
    return Holder(
        path,
        container.name,
        read(limits.get(path, resources.limits).items()),
        read(requests.get(path, resources.requests).items()),
        container.restart_policy == "Always",
    )


def read(items: Iterable[tuple[str, Amount]]) -> Amounts:
    """Amounts as the API server holds them.

    Raises:
        QuantityError: one of them is no quantity.
    """
    return {name: held(amount) for name, amount in items}


def total(holders: Holders, resource: str, side: str) -> Quantity | None:
    """What the pod takes of a resource, as LimitRanger reckons; None where nothing names it.

    The sum of containers and sidecars, or the most that one init container takes beside the sidecars before it; what
    the pod says as a whole stands for both. Without overhead.
    """
    whole = holders.whole
    if whole is not None and resource in _OF_THE_POD and resource in whole.side(side):
        return whole.side(side)[resource]
    return in_containers(holders, resource, side)


def in_containers(holders: Holders, resource: str, side: str) -> Quantity | None:
    """The same without what the pod says as a whole."""
    running: Quantity | None = None
    for holder in holders.containers:
        running = _sum(running, holder.side(side).get(resource))
    if not holders.init_containers:
        return running
    sidecars: Quantity | None = None
    highest: Quantity | None = None
    for holder in holders.init_containers:
        amount = holder.side(side).get(resource)
        if holder.sidecar:
            running, sidecars = _sum(running, amount), _sum(sidecars, amount)
            highest = _most(highest, sidecars)
        else:
            highest = _most(highest, _sum(amount, sidecars))
    return _most(running, highest)


def names_in(holders: Holders, side: str) -> Iterator[str]:
    """Every resource that some container names on one side."""
    yield from dict.fromkeys(name for holder in holders.each for name in holder.side(side))


def _sum(one: Quantity | None, other: Quantity | None) -> Quantity | None:
    if one is None or other is None:
        return one or other
    return add(one, other)


def _most(one: Quantity | None, other: Quantity | None) -> Quantity | None:
    if one is None or other is None:
        return one or other
    return other if compare(other, one) > 0 else one
