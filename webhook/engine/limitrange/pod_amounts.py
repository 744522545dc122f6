"""A pod's amounts as the API server holds them while it admits the pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.engine.containers import ResourceChanges
from webhook.model.apimachinery import Quantity, add_quantities, compare_quantities
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import ResourceList, parse_api_quantity
from webhook.model.pods import Container, Pod, QuantityText

LIMITS, REQUESTS = "limits", "requests"
_POD_LEVEL_TOTALS = ("cpu", "memory")


class LimitsAndRequests(NamedTuple):
    """One container, or the pod as a whole: what it may take and what it asks for."""

    path: FieldPath
    name: str
    limits: ResourceList
    requests: ResourceList
    sidecar: bool = False

    def amounts(self, side: str) -> ResourceList:
        """Limits or requests."""
        return self.limits if side == LIMITS else self.requests


class PodAmounts(NamedTuple):
    """All of a pod. `whole` is `spec.resources`, None where the pod has none."""

    containers: tuple[LimitsAndRequests, ...]
    init_containers: tuple[LimitsAndRequests, ...] = ()
    pod_level: LimitsAndRequests | None = None

    @property
    def all_containers(self) -> tuple[LimitsAndRequests, ...]:
        """Every container, in LimitRanger's order."""
        return self.containers + self.init_containers


def read_pod_amounts(pod: Pod, limits: ResourceChanges, requests: ResourceChanges) -> PodAmounts:
    """Read a pod, some containers' amounts changed.

    Raises:
        QuantityError: an amount is no quantity: no API server reads this pod.
    """
    spec = pod.spec
    main = tuple(
        [_read_container_amounts(("spec", "containers", i), c, limits, requests) for i, c in enumerate(spec.containers)]
    )
    init = tuple(
        [
            _read_container_amounts(("spec", "initContainers", i), c, limits, requests)
            for i, c in enumerate(spec.init_containers)
        ]
    )
    if spec.resources is None:
        return PodAmounts(main, init)
    written = spec.resources
    whole = LimitsAndRequests(
        ("spec",), "", parse_amount_items(written.limits.items()), parse_amount_items(written.requests.items())
    )
    return PodAmounts(main, init, whole)


def _read_container_amounts(
    path: FieldPath, container: Container, limits: ResourceChanges, requests: ResourceChanges
) -> LimitsAndRequests:
    resources = container.resources
    return LimitsAndRequests(
        path,
        container.name,
        parse_amount_items(limits.get(path, resources.limits).items()),
        parse_amount_items(requests.get(path, resources.requests).items()),
        container.restart_policy == "Always",
    )


def parse_amount_items(items: Iterable[tuple[str, QuantityText]]) -> ResourceList:
    """Amounts as the API server holds them.

    Raises:
        QuantityError: one of them is no quantity.
    """
    return {name: parse_api_quantity(amount) for name, amount in items}


def pod_total(holders: PodAmounts, resource: str, side: str) -> Quantity | None:
    """What the pod takes of a resource, as LimitRanger reckons; None where nothing names it.

    The sum of containers and sidecars, or the most that one init container takes beside the sidecars before it; what
    the pod says as a whole stands for both. Without overhead.
    """
    whole = holders.pod_level
    if whole is not None and resource in _POD_LEVEL_TOTALS and resource in whole.amounts(side):
        return whole.amounts(side)[resource]
    return sum_containers(holders, resource, side)


def sum_containers(holders: PodAmounts, resource: str, side: str) -> Quantity | None:
    """The same without what the pod says as a whole."""
    running: Quantity | None = None
    for holder in holders.containers:
        running = _add_optional(running, holder.amounts(side).get(resource))
    if not holders.init_containers:
        return running
    sidecars: Quantity | None = None
    highest: Quantity | None = None
    for holder in holders.init_containers:
        amount = holder.amounts(side).get(resource)
        if holder.sidecar:
            running, sidecars = _add_optional(running, amount), _add_optional(sidecars, amount)
            highest = _max_optional(highest, sidecars)
        else:
            highest = _max_optional(highest, _add_optional(amount, sidecars))
    return _max_optional(running, highest)


def named_resources(holders: PodAmounts, side: str) -> Iterator[str]:
    """Every resource that some container names on one side."""
    yield from dict.fromkeys(name for holder in holders.all_containers for name in holder.amounts(side))


def _add_optional(one: Quantity | None, other: Quantity | None) -> Quantity | None:
    if one is None or other is None:
        return one or other
    return add_quantities(one, other)


def _max_optional(one: Quantity | None, other: Quantity | None) -> Quantity | None:
    if one is None or other is None:
        return one or other
    return other if compare_quantities(other, one) > 0 else one
