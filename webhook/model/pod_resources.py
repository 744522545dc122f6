"""Effective pod resources: what the scheduler and quota take a pod to ask for.

For each resource on its own: what runs side by side (containers and sidecars) or the most that one init
container asks for together with the sidecars before it, whichever is more; then what the pod says as a whole,
then its overhead.

Source: `k8s.io/component-helpers/resource`, PodRequests and PodLimits. `max_consumption` is ours, reckoned in the
same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from webhook.model.pods import Container, Pod, QuantityText, ResourceRequirements
from webhook.model.quantity import NANO, parse_nano_or_none

_POD_LEVEL = ("cpu", "memory")
_HUGE_PAGES = "hugepages-"


def effective_amount(pod: Pod, resource: str, *, limits: bool = False) -> int:
    """What a pod asks for of one resource, in nano-units.

    A request that is not written counts as its limit, as the API server stores it. An amount that is no
    quantity counts as nothing: whoever judges the pod speaks about it.

    Args:
        pod: The pod.
        resource: Resource name.
        limits: True for limits instead of requests.
    """
    spec = pod.spec
    amount = 0
    for container in spec.containers:
        resources = container.resources
        written = None if limits else resources.requests.get(resource)
        if written is None:
            written = resources.limits.get(resource)
        if written is not None:
            amount += parse_nano_or_none(written) or 0
    if spec.init_containers:
        init = [
            (_amount_of_container(one.resources, resource, limits=limits), is_sidecar(one))
            for one in spec.init_containers
        ]
        amount = peak_with_init(amount, init)
    if spec.resources is not None and _allows_pod_level(resource):
        amount = _pod_level_amount(spec.resources, amount, resource, limits=limits)
    if resource in spec.overhead and (amount or not limits):
        amount += parse_nano_or_none(spec.overhead[resource]) or 0
    return amount


def cpu_and_memory(pod: Pod) -> tuple[int, int]:
    """Millicores and bytes of memory that a pod asks for, rounded up."""
    return -(-effective_amount(pod, "cpu") // (NANO // 1000)), -(-effective_amount(pod, "memory") // NANO)


def max_consumption(pod: Pod, resource: str) -> int:
    """The most that a pod may take of one resource, in nano-units: of each container its limit, or else its request.

    A pod with a limit on one container and a request alone on another may take more than both its effective requests
    and its effective limits say.
    """
    spec = pod.spec
    amount = 0
    for container in spec.containers:
        amount += limit_or_request(container.resources, resource)
    if spec.init_containers:
        init = [(limit_or_request(one.resources, resource), is_sidecar(one)) for one in spec.init_containers]
        amount = peak_with_init(amount, init)
    if spec.resources is not None and _allows_pod_level(resource):
        whole = limit_or_request(spec.resources, resource)
        amount = whole if resource in spec.resources.limits else max(amount, whole)
    return amount + _nano_or_zero(spec.overhead.get(resource, 0))


def limit_or_request(resources: ResourceRequirements, resource: str) -> int:
    """What a container, or a pod as a whole, may take: its limit, or its request where it has none. Nano-units."""
    limits = resources.limits
    return _nano_or_zero(limits[resource] if resource in limits else resources.requests.get(resource, 0))


def peak_with_init(running: int, init: Iterable[tuple[int, bool]]) -> int:
    """The most that is taken at one time.

    Args:
        running: What the main containers take together.
        init: What each init container takes, and whether it is a sidecar, in the order of the pod.
    """
    sidecars = highest = 0
    for amount, sidecar in init:
        highest = max(highest, sidecars + amount)
        sidecars += amount if sidecar else 0
    return max(running + sidecars, highest)


def is_sidecar(container: Container) -> bool:
    """Does this init container run on beside the main containers?"""
    return container.restart_policy == "Always"


def effective_requests(pod: Pod) -> dict[str, int]:
    """Every resource that a pod asks for, in nano-units; what comes to nothing is left out."""
    amounts = ((name, effective_amount(pod, name)) for name in sorted(_pod_resource_names(pod)))
    return {name: amount for name, amount in amounts if amount}


def negative_resources(pod: Pod) -> list[str]:
    """The resources of which some part of a pod asks for less than nothing, sorted. The API server lets no such in."""
    return sorted(
        {
            name
            for some in _pod_resource_maps(pod)
            for name, amount in some.items()
            if (parse_nano_or_none(amount) or 0) < 0
        }
    )


def _allows_pod_level(resource: str) -> bool:
    """May a pod say what it asks for of this as a whole?"""
    return resource in _POD_LEVEL or resource.startswith(_HUGE_PAGES)


def _pod_level_amount(resources: ResourceRequirements, containers: int, resource: str, *, limits: bool) -> int:
    """What the pod says as a whole; a limit alone stands for the request only where no container has one."""
    if resource in resources.limits and (limits or (resource not in resources.requests and not containers)):
        return parse_nano_or_none(resources.limits[resource]) or 0
    if not limits and resource in resources.requests:
        return parse_nano_or_none(resources.requests[resource]) or 0
    return containers


def _amount_of_container(resources: ResourceRequirements, resource: str, *, limits: bool) -> int:
    if not limits and resource in resources.requests:
        return _nano_or_zero(resources.requests[resource])
    if resource in resources.limits:
        return _nano_or_zero(resources.limits[resource])
    return 0


def _nano_or_zero(amount: QuantityText) -> int:
    return parse_nano_or_none(amount) or 0


def _pod_resource_names(pod: Pod) -> set[str]:
    return {name for amounts in _pod_resource_maps(pod) for name in amounts}


def _pod_resource_maps(pod: Pod) -> list[Mapping[str, QuantityText]]:
    spec = pod.spec
    named: list[Mapping[str, QuantityText]] = [spec.overhead]
    for container in (*spec.containers, *spec.init_containers):
        named += [container.resources.requests, container.resources.limits]
    if spec.resources is not None:
        named += [spec.resources.requests, spec.resources.limits]
    return named
