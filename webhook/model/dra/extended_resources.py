"""Extended resources that device classes serve: the scheduler makes a claim for a pod that requests them by name.

A class serves the name that it gives, and always `deviceclass.resource.kubernetes.io/NAME`. On a node that advertises
a name itself, the device plugin serves it.
Source: `extendeddynamicresources.go` of the plugin DynamicResources, and `extendedresourcecache`, of Kubernetes 1.36.3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from webhook.model.claims import ClaimDevices, ClaimRequest, ClaimSpec, DeviceClass, DeviceRequest
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.pod_resources import is_sidecar
from webhook.model.pods import Container, Pod, QuantityText
from webhook.model.quantity import parse_whole_number

ClassByResource = Mapping[str, str]
"""Name of the device class by extended resource name."""


def classes_by_resource(classes: Iterable[DeviceClass]) -> ClassByResource:
    """Return which class serves each name: of two that give one name the newer, then the one whose name sorts first.

    A class that loses so loses its implicit name too, as in a scheduler that reads the classes when it starts.
    """
    winners: dict[str, DeviceClass] = {}
    for one in sorted(classes, key=lambda one: one.metadata.name):
        name = one.spec.extended_resource_name
        if name and name in winners and _creation_time(one) <= _creation_time(winners[name]):
            continue
        for served in (name, DEVICE_CLASS_PREFIX + one.metadata.name):
            if served:
                winners[served] = one
    return {name: one.metadata.name for name, one in winners.items()}


def _creation_time(one: DeviceClass) -> str:
    return one.metadata.creation_timestamp or ""


def is_extended_resource(name: str) -> bool:
    """Return whether a device class may serve a resource: it is outside `kubernetes.io`, or names a class."""
    if name.startswith(DEVICE_CLASS_PREFIX):
        return True
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def requested_extended_resources(pod: Pod) -> set[str]:
    """Return the extended resources that a container requests any of."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return {
        name for one in containers for name in filter(is_extended_resource, _names(one)) if requested_units(one, name)
    }


def served_resources(pod: Pod, served: ClassByResource) -> frozenset[str]:
    """Return the resources that containers of a pod name and device classes serve."""
    found, spec, names = set[str](), pod.spec, served.keys()
    for one in (*spec.containers, *spec.init_containers) if spec.init_containers else spec.containers:
        for side in (one.resources.limits, one.resources.requests):
            if not names.isdisjoint(side):
                found.update(names & side.keys())
    return frozenset(found)


def extended_resource_claim(pod: Pod, resources: Collection[str], classes: ClassByResource) -> ClaimSpec:
    """Return the claim that the scheduler makes for a pod, of those resources that device classes serve on a node."""
    requests = [each for name in sorted(resources) for each in _requests_of_resource(pod, name, classes[name])]
    return ClaimSpec(ClaimDevices(tuple(sorted(requests, key=lambda each: each.name))))


def _requests_of_resource(pod: Pod, resource: str, device_class: str) -> list[ClaimRequest]:
    """Return one request for each container that runs on, and one for the init containers that need the most."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    initial = len(pod.spec.init_containers)
    short = [i for i, one in enumerate(containers) if i < initial and not is_sidecar(one)]
    lasting = {i: requested_units(one, resource) for i, one in enumerate(containers) if i not in short}
    needed = {i: requested_units(containers[i], resource) - _reusable_units(lasting, i) for i in short}
    most = max(short, key=lambda i: (needed[i], -i), default=-1)
    counts = {i: count for i, count in lasting.items() if count}
    if most >= 0 and needed[most] > 0:
        counts[most] = needed[most]
    return [
        ClaimRequest(
            name=f"container-{i}-request-{sorted(_names(containers[i])).index(resource)}",
            exactly=DeviceRequest(device_class_name=device_class, count=count),
        )
        for i, count in counts.items()
    ]


def _reusable_units(lasting: Mapping[int, int], init: int) -> int:
    """Return the units of later containers, which an init container uses before they start."""
    return sum(count for i, count in lasting.items() if i > init)


def _names(container: Container) -> set[str]:
    return {*container.resources.requests, *container.resources.limits}


def amounts_of_container(container: Container) -> Mapping[str, QuantityText]:
    """Return the amounts that the scheduler claims for a container: its requests, and limits without a request.

    A request for `deviceclass.resource.kubernetes.io/NAME` needs no limit: the API server takes it for a resource of
    Kubernetes, which may be overcommitted.
    """
    return {**container.resources.limits, **container.resources.requests}


def requested_units(container: Container, resource: str) -> int:
    """Return the units that a container requests; a limit is the request of a container without one."""
    resources = container.resources
    amount = resources.requests.get(resource, resources.limits.get(resource, 0))
    return max(0, parse_whole_number(amount) or 0)


def field_of_amount(container: Container, resource: str) -> tuple[str, str]:
    """Return where the resources of a container request a name that it has."""
    return "limits" if resource in container.resources.limits else "requests", resource


def missing_resources(requested: Iterable[str], served: Collection[str], advertised: Collection[str]) -> Sequence[str]:
    """Return the resources that neither a class serves nor a node advertises, sorted."""
    return sorted(name for name in requested if name not in served and name not in advertised)
