"""GPUs that a pod requests by claims and by device classes, under the resource names of device plugins.

Policies match and limit them like requests for these names. A request that may get devices of several kinds counts as
the most that it may get of each kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, islice
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from webhook.engine.gpu_requests import containers_of_every_kind, init_then_main_containers
from webhook.model.claims import NO_CLAIM, ClaimSpec, claim_of_class
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.allocator import AllocationOutcome
from webhook.model.dra.claim_weights import RequestUnits, count_claim_units
from webhook.model.dra.device_view import NO_DEVICES, DeviceKind, DeviceView
from webhook.model.dra.extended_resources import (
    amounts_of_container,
    extended_resource_claim,
    field_of_amount,
    requested_units,
    served_resources,
)
from webhook.model.dra.pod_devices import allocate_for_pod, resolve_claims
from webhook.model.dra.selector_cache import select_device
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import NVIDIA_PREFIX, parse_gpu_resource
from webhook.model.node_masks import bit_positions
from webhook.model.pod_resources import effective_amount
from webhook.model.pods import Container, Pod, PodResourceClaim, PodSpec
from webhook.model.quantity import NANO, parse_whole_number

MAX_NODES_TRIED, MAX_ALLOCATION_STEPS = 16, 2_000
"""Bounds of a search for a node that has the devices of a pod: about 10 ms."""

NO_UNITS: Mapping[str, int] = MappingProxyType({})


CREATE_FIRST = "Create it first, then the pod."


class UnknownClaim(NamedTuple):
    """A claim or template of a pod that is not known.

    Attributes:
        path: The field that names it.
        text: Its kind and name.
        unlisted: The resource that cannot be read, so it may exist; "" if it does not exist yet.
    """

    path: FieldPath
    text: str
    unlisted: str = ""

    @property
    def fix(self) -> str:
        """Return what makes it known."""
        return f"Permit listing {self.unlisted}, or add them to the snapshot." if self.unlisted else CREATE_FIRST


class RequestAlternatives(NamedTuple):
    """A request for devices of one of several kinds.

    Attributes:
        units: The most units of each resource that one use may get, all of one resource.
        uses: How often it is used; a request by the name of a device class, its amount.
    """

    units: Mapping[str, int]
    uses: int = 1


class ClaimedGpus(msgspec.Struct, frozen=True):
    """The GPUs that a pod requests by claims and device classes.

    Attributes:
        units: The most units of each resource.
        devices: The most devices.
        fields: The first field that requests each resource.
        places: The field of each claim, by its name in the pod, and of each resource that a class serves.
        claims: The requests of each claim, by its name in the pod.
        classes: The units of one device of each class, by the name of the resource that the class serves.
        missing: Claims and templates that are not known.
        served: The resources that containers request any of and device classes serve.
        nvidia_resources: Those that containers request and that can only be GPUs of NVIDIA.
    """

    units: Mapping[str, int] = NO_UNITS
    devices: int = 0
    fields: Mapping[str, FieldPath] = {}
    places: Mapping[str, FieldPath] = {}
    claims: Mapping[str, tuple[RequestUnits, ...]] = {}
    classes: Mapping[str, Mapping[str, int]] = {}
    missing: tuple[UnknownClaim, ...] = ()
    served: frozenset[str] = frozenset()
    nvidia_resources: frozenset[str] = frozenset()

    @property
    def surely_nvidia(self) -> bool:
        """True if a claim or a resource of a device class can only get GPUs of NVIDIA."""
        return bool(self.nvidia_resources) or any(
            _is_surely_nvidia(one) for some in self.claims.values() for one in some
        )

    def before_sizing(self) -> ClaimedGpus:
        """Return the GPUs that it requested before its claims were right-sized; itself if none was."""
        each = [one for some in self.claims.values() for one in some]
        if all(one.before_sizing is None for one in each):
            return self
        units = Counter(self.units)
        for one in each:
            units += Counter(_units_before_sizing(one))
            units.subtract(one.units)
        claims = {
            name: tuple(one._replace(units=_units_before_sizing(one), before_sizing=None) for one in some)
            for name, some in self.claims.items()
        }
        fields = _first_fields(claims, self.classes, self.places)
        return msgspec.structs.replace(self, units=+units, fields=fields, claims=claims)

    def surely_serves(self, container: Container) -> bool:
        """Return whether a container gets GPUs of NVIDIA by a resource of a device class."""
        return any(requested_units(container, resource) for resource in self.nvidia_resources)

    def may_serve(self, container: Container) -> bool:
        """Return whether a container may get GPUs by a resource of a device class."""
        return any(requested_units(container, resource) for resource, units in self.classes.items() if units)

    def requests_of_pod(self, pod: Pod) -> list[RequestAlternatives]:
        """Return the requests of a pod: of its claims, and of device classes."""
        found = [RequestAlternatives(one.units) for some in self.claims.values() for one in some]
        counts = ((units, effective_amount(pod, resource) // NANO) for resource, units in self.classes.items())
        return found + [RequestAlternatives(units, count) for units, count in counts if units and count > 0]

    def requests_of_container(self, container: Container) -> list[RequestAlternatives]:
        """Return the requests of a container: of the claims that it uses, and of device classes."""
        used = Counter(requests_used(container))
        found = [
            RequestAlternatives(one.units, uses)
            for name in dict.fromkeys(name for name, _ in used)
            for one in self.claims.get(name, ())
            if (uses := used[name, ""] + used[name, one.name])
        ]
        counts = ((units, requested_units(container, name)) for name, units in self.classes.items())
        return found + [RequestAlternatives(units, count) for units, count in counts if units and count > 0]

    def of_container(self, container: Container) -> Mapping[str, int]:
        """Return the units of a container: of the claims that it uses, and of device classes."""
        return units_of_requests(self.requests_of_container(container))

    def unused_requests(self, spec: PodSpec) -> Mapping[str, list[RequestAlternatives]]:
        """Return the requests of each claim that no container uses: their devices are allocated all the same."""
        containers = (container for _, container in containers_of_every_kind(spec))
        used = {each for container in containers for each in requests_used(container)}
        unused = {
            name: [RequestAlternatives(one.units) for one in some if (name, one.name) not in used]
            for name, some in self.claims.items()
            if (name, "") not in used
        }
        return {name: some for name, some in unused.items() if some}

    def requests_key(self, spec: PodSpec) -> tuple[object, ...]:
        """Return the requests of the pod's claims and of each container, as a part of a cache key."""
        of_claims = [one.units for some in self.claims.values() for one in some]
        of_each = [self.requests_of_container(one) for one in spec.containers + spec.init_containers]
        unused = self.unused_requests(spec).items()
        return (
            self.devices,
            tuple([tuple(units.items()) for units in of_claims]),
            tuple([_alternatives_key(some) for some in of_each]),
            tuple([(name, _alternatives_key(some)) for name, some in unused]),
        )


NO_CLAIMED_GPUS = ClaimedGpus()


def requests_used(container: Container) -> list[tuple[str, str]]:
    """Return the claims that a container uses, each with the request; "" for all requests of the claim."""
    return [
        (str(each.get("name")), str(each.get("request") or "").partition("/")[0])
        for each in container.resources.claims
        if isinstance(each, dict)
    ]


def units_of_requests(requests: Iterable[RequestAlternatives]) -> dict[str, int]:
    """Return the most units of each resource that requests may get together."""
    totals: dict[str, int] = {}
    for units, uses in requests:
        _add_units(totals, units, uses)
    return totals


def _alternatives_key(requests: Iterable[RequestAlternatives]) -> tuple[object, ...]:
    return tuple([(tuple(units.items()), uses) for units, uses in requests])


def _add_units(totals: dict[str, int], units: Mapping[str, int], uses: int = 1) -> None:
    for name, count in units.items():
        totals[name] = totals.get(name, 0) + count * uses


def _units_before_sizing(one: RequestUnits) -> Mapping[str, int]:
    return one.units if one.before_sizing is None else one.before_sizing


def find_claimed_gpus(pod: Pod, namespace: str, view: ClusterView, served: frozenset[str]) -> ClaimedGpus:
    """Return the GPUs that a pod requests by claims and device classes; none in a cluster without devices.

    Args:
        served: The resources that its containers name and device classes serve.
    """
    if view.devices is NO_DEVICES:
        return NO_CLAIMED_GPUS
    requested = _first_requests(pod, served) if served else {}
    named = {name: path for name, path in requested.items() if parse_gpu_resource(name) is None}
    known, published = view.namespace_claims(namespace), view.devices._replace(pools=view.device_pools())
    units, devices, places = dict[str, int](), 0, {**named}
    claims: dict[str, tuple[RequestUnits, ...]] = {}
    missing: list[UnknownClaim] = []
    for index, one in enumerate(pod.spec.resource_claims):
        path: FieldPath = ("spec", "resourceClaims", index)
        spec = known.spec_of(one.resource_claim_name, one.resource_claim_template_name)
        if spec is None:
            missing.append(_unknown_claim(one, path, view.devices))
            continue
        claims[one.name], places[one.name] = count_claim_units(spec, published, view.fleet), path
    for request in (one for some in claims.values() for one in some):
        _add_units(units, request.units)
        devices += max(request.units.values(), default=0)
    classes = {resource: units_of_resource(resource, view, namespace) for resource in named}
    for resource in named:
        count = effective_amount(pod, resource) // NANO
        _add_units(units, classes[resource], count)
        devices += count if classes[resource] else 0
    nvidia = frozenset(name for name in named if effective_amount(pod, name) and _gives_nvidia(name, view, namespace))
    units = {name: count for name, count in units.items() if count > 0}
    fields = _first_fields(claims, classes, places)
    return ClaimedGpus(units, devices, fields, places, claims, classes, tuple(missing), frozenset(requested), nvidia)


def _first_fields(
    claims: Mapping[str, Sequence[RequestUnits]],
    classes: Mapping[str, Mapping[str, int]],
    places: Mapping[str, FieldPath],
) -> dict[str, FieldPath]:
    """Return the first field that requests each resource: that of a claim, else of a device class."""
    fields: dict[str, FieldPath] = {}
    for name, units in chain(((name, one.units) for name, some in claims.items() for one in some), classes.items()):
        for resource in units:
            fields.setdefault(resource, places[name])
    return fields


def nodes_with_devices(claimed: ClaimedGpus, view: ClusterView, namespace: str) -> int:
    """Return the mask of the nodes that publish devices for each request of a pod, or advertise the name; -1 for all.

    A request whose devices are unknown excludes no node.
    """
    nodes, devices = -1, view.cluster_claims(namespace).devices if claimed.served else NO_DEVICES
    for request in (one for some in claimed.claims.values() for one in some):
        nodes &= request.nodes
    for resource in claimed.served:
        spec, advertising = claim_of_class(devices.class_by_resource[resource]), view.fleet.nodes_advertising(resource)
        if advertising or resource not in view.fleet.extended_resources:  # else unknown nodes advertise it
            nodes &= count_claim_units(spec, devices, view.fleet)[0].nodes | advertising
    return nodes


def can_serve_claims(pod: Pod, namespace: str, nodes: int, view: ClusterView) -> bool:
    """Return whether a node of a mask surely has all devices that a new pod claims, free or not.

    For a claim that other pods may use too, the node is unknown.
    """
    devices, steps = view.cluster_claims(namespace).devices, MAX_ALLOCATION_STEPS
    claims = resolve_claims(pod, view.namespace_claims(namespace), devices, view.fleet)
    if any(each.existing for each in claims.unallocated):
        return False
    empty = devices._replace(allocated={})
    for node in islice(bit_positions(nodes & claims.nodes), MAX_NODES_TRIED):
        found = allocate_for_pod(pod, claims, node, empty, view.fleet, select_device, steps)
        if found.outcome is AllocationOutcome.ALLOCATED:
            return True
        steps = max(0, steps - found.steps)
    return False


def is_advertised(resource: str, view: ClusterView) -> bool:
    """Return whether some node advertises an extended resource, so that it may be served without a device class."""
    return resource in view.fleet.extended_resources or bool(view.fleet.nodes_advertising(resource))


def claim_of_scheduler(pod: Pod, view: ClusterView) -> ClaimSpec:
    """Return the claim that the scheduler creates for a pod, for the resources that only device classes can serve."""
    served = view.devices.class_by_resource
    names = [name for name in served_resources(pod, served) if not is_advertised(name, view)]
    return extended_resource_claim(pod, names, served) if names else NO_CLAIM


def units_of_resource(resource: str, view: ClusterView, namespace: str) -> Mapping[str, int]:
    """Return the most units of each GPU resource that a unit of an extended resource of a device class may be."""
    request = _request_of_resource(resource, view, namespace)
    return request.units if request is not None else NO_UNITS


def _request_of_resource(resource: str, view: ClusterView, namespace: str) -> RequestUnits | None:
    devices = view.cluster_claims(namespace).devices
    device_class = devices.class_by_resource.get(resource)
    return count_claim_units(claim_of_class(device_class), devices, view.fleet)[0] if device_class else None


def _gives_nvidia(resource: str, view: ClusterView, namespace: str) -> bool:
    """Return whether a resource can only be a GPU of NVIDIA; nodes that advertise the name may give another device."""
    request = _request_of_resource(resource, view, namespace)
    if request is None or resource in view.fleet.extended_resources:
        return False
    return _is_surely_nvidia(request) or resource in view.class_offers().by_resource


def _is_surely_nvidia(request: RequestUnits) -> bool:
    is_gpu = bool(request.units) and request.is_known and not request.may_be_others
    return is_gpu and all(name.startswith(NVIDIA_PREFIX) for name in request.units)


def _first_requests(pod: Pod, resources: Set[str]) -> dict[str, FieldPath]:
    """Return the first field that requests any of each resource; a zero is no request."""
    found: dict[str, FieldPath] = {}
    for path, container in init_then_main_containers(pod.spec):
        for name, amount in amounts_of_container(container).items():
            if name in resources and name not in found and parse_whole_number(amount) != 0:
                found[name] = (*path, "resources", *field_of_amount(container, name))
    return found


def _unknown_claim(one: PodResourceClaim, path: FieldPath, devices: DeviceView) -> UnknownClaim:
    kind, text = DeviceKind.CLAIM, f"claim {one.resource_claim_name}"
    if one.resource_claim_template_name:
        kind, text = DeviceKind.TEMPLATE, f"template of claims {one.resource_claim_template_name}"
    return UnknownClaim(path, text, kind if kind in devices.unlisted else "")
