"""Effective pod resources: what the scheduler and quota take a pod to ask for.

For each resource on its own: what runs side by side (containers and sidecars) or the most that one init
container asks for together with the sidecars before it, whichever is more; then what the pod says as a whole,
then its overhead.

Source: `k8s.io/component-helpers/resource`, PodRequests and PodLimits.
"""

from __future__ import annotations

from collections.abc import Mapping

from webhook.model.pods import Amount, Container, Pod, Resources
from webhook.model.quantity import readable

_POD_LEVEL = ("cpu", "memory")
_HUGE_PAGES = "hugepages-"


def effective(pod: Pod, resource: str, *, limits: bool = False) -> int:
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
            amount += readable(written) or 0
    if spec.init_containers:
        amount = _with_init(spec.init_containers, amount, resource, limits=limits)
    if spec.resources is not None and (resource in _POD_LEVEL or resource.startswith(_HUGE_PAGES)):
        amount = _pod_level(spec.resources, amount, resource, limits=limits)
    if resource in spec.overhead and (amount or not limits):
        amount += readable(spec.overhead[resource]) or 0
    return amount


def effective_requests(pod: Pod) -> dict[str, int]:
    """Every resource that a pod asks for, in nano-units; what comes to nothing is left out."""
    amounts = ((name, effective(pod, name)) for name in sorted(_names(pod)))
    return {name: amount for name, amount in amounts if amount}


def below_zero(pod: Pod) -> list[str]:
    """The resources of which some part of a pod asks for less than nothing, sorted. The API server lets no such in."""
    return sorted({name for some in _written(pod) for name, amount in some.items() if (readable(amount) or 0) < 0})


def _with_init(containers: tuple[Container, ...], running: int, resource: str, *, limits: bool) -> int:
    sidecars = highest = 0
    for container in containers:
        asked = _asked(container.resources, resource, limits=limits)
        if container.restart_policy == "Always":
            sidecars += asked
            highest = max(highest, sidecars)
        else:
            highest = max(highest, sidecars + asked)
    return max(running + sidecars, highest)


def _pod_level(resources: Resources, containers: int, resource: str, *, limits: bool) -> int:
    """What the pod says as a whole; a limit alone stands for the request only where no container has one."""
    if resource in resources.limits and (limits or (resource not in resources.requests and not containers)):
        return readable(resources.limits[resource]) or 0
    if not limits and resource in resources.requests:
        return readable(resources.requests[resource]) or 0
    return containers


def _asked(resources: Resources, resource: str, *, limits: bool) -> int:
    if not limits and resource in resources.requests:
        return _read(resources.requests[resource])
    if resource in resources.limits:
        return _read(resources.limits[resource])
    return 0


def _read(amount: Amount) -> int:
    return readable(amount) or 0


def _names(pod: Pod) -> set[str]:
    return {name for amounts in _written(pod) for name in amounts}


def _written(pod: Pod) -> list[Mapping[str, Amount]]:
    spec = pod.spec
    named: list[Mapping[str, Amount]] = [spec.overhead]
    for container in (*spec.containers, *spec.init_containers):
        named += [container.resources.requests, container.resources.limits]
    if spec.resources is not None:
        named += [spec.resources.requests, spec.resources.limits]
    return named
