"""Compute a pod's effective requests and limits, as the scheduler and quotas do.

For each resource: the larger of the sum of containers and sidecars, and of an init container with the sidecars before
it; replaced by the pod level (`spec.resources`) if set; plus overhead.

Source: `k8s.io/component-helpers/resource`, PodRequests and PodLimits. `max_consumption` is computed in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from webhook.errors import QuantityError
from webhook.model.bounded_cache import request_cache
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, DEVICE_CLASS_PREFIX, parse_gpu_resource
from webhook.model.pods import Container, Pod, PodSpec, QuantityText, ResourceRequirements
from webhook.model.quantity import NANO, parse_nano, parse_nano_or_none

ResourceAmounts = tuple[tuple[str, int], ...]
"""Resource names and nano-units."""

MAX_OTHER_RESOURCES = 32
"""Most other resources of one pod or node that count one by one."""

MANY_RESOURCES = "*"
"""Stands for the other resources of a pod with more of them: where it is, none is known to be free."""

_POD_LEVEL = ("cpu", "memory")
_NOT_OTHER = frozenset({"cpu", "memory", "pods", ACCOUNTING_RESOURCE})
_HUGE_PAGES = "hugepages-"


class RequestedAmounts(NamedTuple):
    """CPU in millicores, bytes of memory, and other resources that a pod requests besides GPUs."""

    cpu_milli: int
    memory: int
    others: ResourceAmounts


def effective_amount(pod: Pod, resource: str, *, limits: bool = False) -> int:
    """Return the effective request of a resource, or the effective limit with `limits`, in nano-units.

    A missing request is the limit, as the API server stores it. An amount that is not a quantity counts as zero; its
    evaluation reports it.
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
        amount = _pod_level_amount(spec, amount, resource, limits=limits)
    if resource in spec.overhead and (amount or not limits):
        amount += parse_nano_or_none(spec.overhead[resource]) or 0
    return amount


def requested_amounts(pod: Pod) -> RequestedAmounts:
    """Return a pod's effective requests besides GPUs, rounded up; disk, huge pages and the like only if positive."""
    cpu_milli, memory = -(-effective_amount(pod, "cpu") // (NANO // 1000)), -(-effective_amount(pod, "memory") // NANO)
    names = _other_resource_names(tuple([name for amounts in _pod_resource_maps(pod) for name in amounts]))
    others = [(name, effective_amount(pod, name)) for name in names]
    return RequestedAmounts(cpu_milli, memory, tuple([each for each in others if each[1] > 0]))


@request_cache(1024)
def _other_resource_names(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(filter(is_other_resource, set(keys))))


def is_other_resource(name: str) -> bool:
    """Return whether nodes advertise a resource besides CPU, memory, pods, GPUs and their accounting.

    Nodes do not advertise device classes.
    """
    return name not in _NOT_OTHER and not name.startswith(DEVICE_CLASS_PREFIX) and parse_gpu_resource(name) is None


def max_consumption(pod: Pod, resource: str) -> int:
    """Return the most that a pod can use of a resource, in nano-units: each container's limit, or else its request.

    This can exceed both the effective request and the effective limit, if only some containers have a limit.
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
    """Return the limit, or the request if there is none, in nano-units."""
    limits = resources.limits
    return _nano_or_zero(limits[resource] if resource in limits else resources.requests.get(resource, 0))


def peak_with_init(running: int, init: Iterable[tuple[int, bool]]) -> int:
    """Return the most that runs at one time.

    Args:
        running: The sum of the main containers.
        init: The amount of each init container in order, and whether it is a sidecar.
    """
    sidecars = highest = 0
    for amount, sidecar in init:
        highest = max(highest, sidecars + amount)
        sidecars += amount if sidecar else 0
    return max(running + sidecars, highest)


def is_sidecar(container: Container) -> bool:
    """Return whether this init container keeps running with the main containers."""
    return container.restart_policy == "Always"


def effective_requests(pod: Pod) -> dict[str, int]:
    """Return the effective request of every resource in nano-units, zeros left out.

    In one pass: a pod of the cluster may have thousands of containers, and of names.
    """
    spec = pod.spec
    amounts = Counter[str]()
    for container in spec.containers:
        amounts.update(_requests_of_container(container.resources))
    if spec.init_containers:
        amounts = _peaks_with_init(amounts, spec.init_containers)
    if spec.resources is not None:
        amounts.update(_pod_level_requests(spec, spec.resources, amounts))
    amounts.update({name: _nano_or_zero(written) for name, written in spec.overhead.items()})
    return {name: amount for name, amount in sorted(amounts.items()) if amount}


def _peaks_with_init(running: Counter[str], init: Iterable[Container]) -> Counter[str]:
    """Return `peak_with_init` of every resource."""
    sidecars, highest = Counter[str](), Counter[str]()
    for container in init:
        for name, amount in _requests_of_container(container.resources).items():
            highest[name] = max(highest[name], sidecars[name] + amount)
            sidecars[name] += amount if is_sidecar(container) else 0
    return Counter({name: max(running[name] + sidecars[name], highest[name]) for name in {**running, **highest}})


def _pod_level_requests(spec: PodSpec, level: ResourceRequirements, containers: Counter[str]) -> dict[str, int]:
    """Return what the pod level adds to the requests of containers."""
    each = (one.resources for one in (*spec.containers, *spec.init_containers))
    stated = {name for one in each for amounts in (one.limits, one.requests) for name in amounts}
    written = {name: amount for name, amount in level.limits.items() if name not in stated} | level.requests
    return {
        name: _nano_or_zero(amount) - containers[name] for name, amount in written.items() if _allows_pod_level(name)
    }


def _requests_of_container(resources: ResourceRequirements) -> dict[str, int]:
    return {name: _nano_or_zero(amount) for name, amount in (resources.limits | resources.requests).items()}


def negative_resources(pod: Pod) -> list[str]:
    """Return the resources with a negative amount anywhere in a pod, sorted. The API server rejects such pods."""
    each = [item for amounts in _pod_resource_maps(pod) for item in amounts.items()]
    return sorted({name for name, amount in each if _nano_or_zero(amount) < 0})


def find_unreadable_amounts(pod: Pod) -> Iterator[tuple[FieldPath, QuantityText, QuantityError]]:
    """Yield every amount of a pod that cannot be computed, with its field and the reason."""
    for path, amounts in _amounts_by_path(pod.spec):
        for name, amount in amounts.items():
            if parse_nano_or_none(amount) is None:
                try:
                    parse_nano(amount)
                except QuantityError as error:
                    yield (*path, name), amount, error


def _amounts_by_path(spec: PodSpec) -> Iterator[tuple[FieldPath, Mapping[str, QuantityText]]]:
    yield ("spec", "overhead"), spec.overhead
    lists = {
        "containers": spec.containers,
        "initContainers": spec.init_containers,
        "ephemeralContainers": spec.ephemeral_containers,
    }
    holders: list[tuple[FieldPath, ResourceRequirements | None]] = [(("spec",), spec.resources)]
    holders += [(("spec", kind, i), one.resources) for kind, each in lists.items() for i, one in enumerate(each)]
    for path, resources in holders:
        if resources is not None:
            yield (*path, "resources", "limits"), resources.limits
            yield (*path, "resources", "requests"), resources.requests


def _allows_pod_level(resource: str) -> bool:
    return resource in _POD_LEVEL or resource.startswith(_HUGE_PAGES)


def _pod_level_amount(spec: PodSpec, containers: int, resource: str, *, limits: bool) -> int:
    """Apply the pod level; a limit alone replaces the request only if no container has one, not even of zero."""
    resources = spec.resources or ResourceRequirements()
    if not limits and resource in resources.requests:
        return _nano_or_zero(resources.requests[resource])
    if resource in resources.limits and (limits or not _is_stated_by_container(spec, resource)):
        return _nano_or_zero(resources.limits[resource])
    return containers


def _is_stated_by_container(spec: PodSpec, resource: str) -> bool:
    each = (one.resources for one in (*spec.containers, *spec.init_containers))
    return any(resource in one.requests or resource in one.limits for one in each)


def _amount_of_container(resources: ResourceRequirements, resource: str, *, limits: bool) -> int:
    if not limits and resource in resources.requests:
        return _nano_or_zero(resources.requests[resource])
    return _nano_or_zero(resources.limits.get(resource, 0))


def _nano_or_zero(amount: QuantityText) -> int:
    return parse_nano_or_none(amount) or 0


def _pod_resource_maps(pod: Pod) -> list[Mapping[str, QuantityText]]:
    spec = pod.spec
    maps: list[Mapping[str, QuantityText]] = [spec.overhead]
    for container in (*spec.containers, *spec.init_containers):
        maps += [container.resources.requests, container.resources.limits]
    if spec.resources is not None:
        maps += [spec.resources.requests, spec.resources.limits]
    return maps


def count_gpu_units(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the units of each GPU resource among amounts in nano-units."""
    return {name: -(-amount // NANO) for name, amount in amounts if parse_gpu_resource(name) is not None}
