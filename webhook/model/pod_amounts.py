"""The limits and requests of a pod: exact quantities with their totals, and a hashable form for caches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from webhook.model.apimachinery import Quantity, add_quantities, compare_quantities
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import ResourceList, parse_api_quantity, parse_unrounded_quantity
from webhook.model.pod_resources import is_sidecar
from webhook.model.pods import Container, Pod, PodSpec, QuantityText

LIMITS, REQUESTS = "limits", "requests"

_POD_LEVEL_TOTALS = ("cpu", "memory")

AmountItems = tuple[tuple[str, QuantityText], ...]

ContainerAmounts = tuple[tuple[tuple[AmountItems, AmountItems, bool], ...], ...]
"""Limits, requests and whether it is a sidecar, of each main container, then of each init container, as written."""

ResourceChanges = Mapping[FieldPath, Mapping[str, QuantityText]]
"""New limits or new requests of containers, by the container's path; whole maps."""

NO_CHANGES: ResourceChanges = {}


class LimitsAndRequests(NamedTuple):
    """The amounts of one container, or of the pod level (`spec.resources`)."""

    path: FieldPath
    name: str
    limits: ResourceList
    requests: ResourceList
    sidecar: bool = False

    def amounts(self, side: str) -> ResourceList:
        """Return the limits or the requests."""
        return self.limits if side == LIMITS else self.requests


class PodAmounts(NamedTuple):
    """The amounts of a pod. `pod_level` is None if the pod has no `spec.resources`."""

    containers: tuple[LimitsAndRequests, ...]
    init_containers: tuple[LimitsAndRequests, ...] = ()
    pod_level: LimitsAndRequests | None = None

    @property
    def all_containers(self) -> tuple[LimitsAndRequests, ...]:
        """Every container, in LimitRanger's order."""
        return self.containers + self.init_containers

    def fields_of(self, resource: str, side: str) -> tuple[FieldPath, ...]:
        """Return the fields of all containers that a total is computed from."""
        return tuple([(*holder.path, "resources", side, resource) for holder in self.all_containers])


def container_amounts(
    spec: PodSpec, limits: ResourceChanges = NO_CHANGES, requests: ResourceChanges = NO_CHANGES
) -> ContainerAmounts:
    """Return the amounts of a pod's containers, some of them changed, as a cache key.

    Pods of many workloads have equal amounts. Pod-level resources and overhead are not part of the key.
    """
    if not limits and not requests:
        return tuple(
            tuple(
                [
                    (
                        tuple(one.resources.limits.items()),
                        tuple(one.resources.requests.items()),
                        one.restart_policy == "Always",
                    )
                    for one in containers
                ]
            )
            for containers in (spec.containers, spec.init_containers)
        )
    return (
        _changed_amounts("containers", spec.containers, limits, requests),
        _changed_amounts("initContainers", spec.init_containers, limits, requests),
    )


def _changed_amounts(
    kind: str, containers: tuple[Container, ...], limits: ResourceChanges, requests: ResourceChanges
) -> tuple[tuple[AmountItems, AmountItems, bool], ...]:
    changed: list[tuple[AmountItems, AmountItems, bool]] = []
    for index, container in enumerate(containers):
        path, resources = ("spec", kind, index), container.resources
        new_limits, new_requests = limits.get(path, resources.limits), requests.get(path, resources.requests)
        changed.append((tuple(new_limits.items()), tuple(new_requests.items()), is_sidecar(container)))
    return tuple(changed)


def read_pod_amounts(
    pod: Pod, limits: ResourceChanges = NO_CHANGES, requests: ResourceChanges = NO_CHANGES
) -> PodAmounts:
    """Read the quantities of a pod, some containers' amounts changed; with a pod level they are not rounded.

    Raises:
        QuantityError: an amount is not a quantity, so the API server rejects the pod.
    """
    spec, whole = pod.spec, pod.spec.resources
    parse = parse_amount_items if whole is None else parse_unrounded_items
    main, init = (
        tuple(
            [
                LimitsAndRequests(
                    path := ("spec", kind, i),
                    one.name,
                    parse(limits.get(path, one.resources.limits).items()),
                    parse(requests.get(path, one.resources.requests).items()),
                    is_sidecar(one),
                )
                for i, one in enumerate(containers)
            ]
        )
        for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers))
    )
    if whole is None:
        return PodAmounts(main, init)
    pod_level = LimitsAndRequests(("spec",), "", parse(whole.limits.items()), parse(whole.requests.items()))
    return PodAmounts(main, init, pod_level)


def parse_container_amounts(
    containers: ContainerAmounts, names: Sequence[str] = (), whole: tuple[AmountItems, AmountItems] | None = None
) -> PodAmounts:
    """Read the quantities of a cache key.

    Args:
        names: The containers' names, where they matter.
        whole: Limits and requests of the pod level, if there is one; then nothing is rounded.

    Raises:
        QuantityError: an amount is not a quantity.
    """
    main, init = containers
    parse = parse_amount_items if whole is None else parse_unrounded_items
    each = tuple(
        [
            LimitsAndRequests((), name, parse(limits), parse(requests), sidecar)
            for name, (limits, requests, sidecar) in zip(names or repeat(""), (*main, *init), strict=False)
        ]
    )
    pod_level = None if whole is None else LimitsAndRequests((), "", parse(whole[0]), parse(whole[1]))
    return PodAmounts(each[: len(main)], each[len(main) :], pod_level)


def parse_amount_items(items: Iterable[tuple[str, QuantityText]]) -> ResourceList:
    """Read amounts by resource name.

    Raises:
        QuantityError: one of them is not a quantity.
    """
    return {name: parse_api_quantity(amount) for name, amount in items}


def parse_unrounded_items(items: Iterable[tuple[str, QuantityText]]) -> ResourceList:
    """Read amounts without rounding. Raises QuantityError if one of them is not a quantity."""
    return {name: parse_unrounded_quantity(amount) for name, amount in items}


def pod_total(pod: PodAmounts, resource: str, side: str) -> Quantity | None:
    """Return the pod's total of a resource, as LimitRanger computes it, without overhead; None if nothing names it.

    A pod-level amount of CPU or memory replaces the sum of the containers.
    """
    whole = pod.pod_level
    if whole is not None and resource in _POD_LEVEL_TOTALS and resource in whole.amounts(side):
        return whole.amounts(side)[resource]
    return sum_containers(pod, resource, side)


def sum_containers(pod: PodAmounts, resource: str, side: str) -> Quantity | None:
    """Return the larger of two sums: of containers and sidecars, or of an init container and the sidecars before it."""
    running: Quantity | None = None
    for holder in pod.containers:
        running = _add_optional(running, holder.amounts(side).get(resource))
    if not pod.init_containers:
        return running
    sidecars: Quantity | None = None
    highest: Quantity | None = None
    for holder in pod.init_containers:
        amount = holder.amounts(side).get(resource)
        if holder.sidecar:
            running, sidecars = _add_optional(running, amount), _add_optional(sidecars, amount)
            highest = _max_optional(highest, sidecars)
        else:
            highest = _max_optional(highest, _add_optional(amount, sidecars))
    return _max_optional(running, highest)


def named_resources(pod: PodAmounts, side: str) -> Iterator[str]:
    """Yield every resource that a container names on one side."""
    yield from dict.fromkeys(name for holder in pod.all_containers for name in holder.amounts(side))


def _add_optional(one: Quantity | None, other: Quantity | None) -> Quantity | None:
    if one is None or other is None:
        return one or other
    return add_quantities(one, other)


def _max_optional(one: Quantity | None, other: Quantity | None) -> Quantity | None:
    if one is None or other is None:
        return one or other
    return other if compare_quantities(other, one) > 0 else one
