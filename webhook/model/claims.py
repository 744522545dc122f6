"""Resource claims as quotas count them: how many devices of which class a claim may get.

Claims from a template are created, and charged, after the pod is stored. The extended resource name of a class is
charged too, from Kubernetes 1.36 on.
Source: `pkg/quota/v1/evaluator/core/resource_claims.go`.

A claim gets a GPU only if one of its device classes may hold GPUs. A class is known to hold others by the driver that
its selectors require; a class without such a selector, or one that is unknown, may hold GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec import field
from msgspec.structs import force_setattr

from webhook.model.api_struct import ApiStruct
from webhook.model.bounded_cache import request_cache
from webhook.model.field_paths import FieldPath, map_at
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.pods import NodeSelector, ObjectMeta, QuantityText, Toleration
from webhook.well_known import Json

MAX_DEVICES = 32
"""Count of a request for all devices: no claim gets more."""

EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of claims that the scheduler makes itself."""

MADE_CLAIM_ANNOTATIONS = (EXTENDED_RESOURCE_CLAIM, "resource.kubernetes.io/pod-claim-name")
"""Annotations of claims that the scheduler or the controller of templates makes for a pod."""

LAST_CHOICE = "requested"
"""The name that right-sizing gives to the last choice, which is what was requested."""

CLAIM_COUNT_KEY = "count/resourceclaims.resource.k8s.io"
DEVICE_CLASS_SUFFIX = ".deviceclass.resource.k8s.io/devices"
_REQUESTS = "requests."
_IMPLICIT = f"{_REQUESTS}{DEVICE_CLASS_PREFIX}"


class CelSelector(ApiStruct, frozen=True):
    """A CEL expression about a device."""

    expression: str = ""


class DeviceSelector(ApiStruct, frozen=True):
    """A condition on devices."""

    cel: CelSelector = CelSelector()


class CapacityRequests(ApiStruct, frozen=True):
    """Amounts that a device must have; of a shared device, the amounts that are consumed."""

    requests: dict[str, QuantityText] = {}


class DeviceRequest(ApiStruct, frozen=True):
    """Devices of one class; the name is that of a choice, and "" in a request without choices.

    Attributes:
        derived_attributes: Values that constraints compare, by CEL expressions that are not evaluated here; alpha in
            Kubernetes 1.37, behind the feature gate DRADerivedAttributes.
    """

    name: str = ""
    device_class_name: str = ""
    allocation_mode: str = "ExactCount"
    count: int = 1
    selectors: tuple[DeviceSelector, ...] = ()
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequests = CapacityRequests()
    derived_attributes: tuple[dict[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.count:  # the API server's default for 0, too
            force_setattr(self, "count", 1)


class ClaimRequest(ApiStruct, frozen=True):
    """One request of a claim: devices, or the first available of several choices."""

    name: str = ""
    exactly: DeviceRequest | None = None
    first_available: tuple[DeviceRequest, ...] = ()

    @property
    def choices(self) -> tuple[DeviceRequest, ...]:
        """The alternatives; one of them is allocated. () for a request of a later version."""
        return self.first_available or ((self.exactly,) if self.exactly else ())

    @property
    def is_right_sized(self) -> bool:
        """True if it has the choices that right-sizing writes: one smaller device, or else what was requested."""
        choices = self.first_available
        each_is_one = all(one.allocation_mode == "ExactCount" and one.count == 1 for one in choices)
        return len(choices) > 1 and choices[-1].name == LAST_CHOICE and each_is_one


class DeviceConstraint(ApiStruct, frozen=True):
    """An attribute that has the same value on all devices of some requests, or a different value on each.

    Without requests, it holds for all devices of the claim.
    """

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class ClaimDevices(ApiStruct, frozen=True):
    """All requests of a claim."""

    requests: tuple[ClaimRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()


class ClaimSpec(ApiStruct, frozen=True):
    """A claim's specification."""

    devices: ClaimDevices = ClaimDevices()


NO_CLAIM = ClaimSpec()


class DeviceAllocation(ApiStruct, frozen=True):
    """A device that a claim was given; with a share ID it is one of several shares of the device."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: dict[str, QuantityText] | None = None


class DeviceAllocations(ApiStruct, frozen=True):
    """The devices of a claim."""

    results: tuple[DeviceAllocation, ...] = ()


class ClaimAllocation(ApiStruct, frozen=True):
    """The devices of a claim, and the nodes that can use them; None for all nodes."""

    devices: DeviceAllocations = DeviceAllocations()
    node_selector: NodeSelector | None = None


class ClaimConsumer(ApiStruct, frozen=True):
    """An object that may use the devices of a claim: a pod, as far as Kubernetes itself is concerned."""

    api_group: str = ""
    resource: str = ""
    name: str = ""

    @property
    def is_pod(self) -> bool:
        """True for a pod."""
        return not self.api_group and self.resource == "pods"


class ClaimStatus(ApiStruct, frozen=True):
    """The allocation of a claim, None if it is not allocated; and the pods that may use it.

    If a pod cannot run where the devices are, the scheduler releases those that no other pod may use.
    """

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaim(ApiStruct, frozen=True):
    """A namespace's claim of devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class ClaimTemplateSpec(ApiStruct, frozen=True):
    """Specification of claims created from a template, with the labels and annotations that they get."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(ApiStruct, frozen=True):
    """A namespace's template of claims."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class DeviceClassSpec(ApiStruct, frozen=True):
    """The extended resource name of a class, "" for none, and selectors that must all select a device."""

    extended_resource_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceClassMetadata(ObjectMeta, frozen=True):
    """Metadata with the creation time: of two classes with one extended resource name, the newer one counts."""

    creation_timestamp: str | None = None


class DeviceClass(ApiStruct, frozen=True):
    """A class of devices."""

    metadata: DeviceClassMetadata = DeviceClassMetadata()
    spec: DeviceClassSpec = DeviceClassSpec()


CLAIM_KINDS: Mapping[str, type[ResourceClaim] | type[ResourceClaimTemplate]] = {
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": ResourceClaimTemplate,
}


FLAT_VERSION = "resource.k8s.io/v1beta1"
CLAIM_VERSIONS = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", FLAT_VERSION)
"""The versions of claims that API servers may serve; in v1beta1, requests have the fields of `exactly` themselves."""


def with_requests_of_v1(data: Json) -> Json:
    """Return a claim or template with requests as in v1, to which the API server converts one of v1beta1."""
    path = ("spec", "spec", "devices") if data.get("kind") == "ResourceClaimTemplate" else ("spec", "devices")
    requests = map_at(data, *path).get("requests")
    if data.get("apiVersion") != FLAT_VERSION or not isinstance(requests, list):
        return data
    converted: Json = {"requests": [_request_of_v1(one) if isinstance(one, dict) else one for one in requests]}
    for depth in range(len(path), 0, -1):
        converted = {path[depth - 1]: {**map_at(data, *path[:depth]), **converted}}
    return {**data, **converted}


def _request_of_v1(request: Json) -> Json:
    kept = {key: value for key, value in request.items() if key in ("name", "firstAvailable")}
    moved = {key: value for key, value in request.items() if key not in kept}
    return {**kept, "exactly": moved} if moved else kept


def claim_amounts(claim: ResourceClaim) -> Iterator[tuple[FieldPath, Mapping[str, QuantityText]]]:
    """Yield every amount of a claim, with the field of each map that holds some."""
    for place, request in enumerate(claim.spec.devices.requests):
        path = ("spec", "devices", "requests", place)
        if request.exactly is not None:
            yield (*path, "exactly", "capacity", "requests"), request.exactly.capacity.requests
        for number, choice in enumerate(request.first_available):
            yield (*path, "firstAvailable", number, "capacity", "requests"), choice.capacity.requests
    if claim.status.allocation is not None:
        for place, result in enumerate(claim.status.allocation.devices.results):
            at = ("status", "allocation", "devices", "results", place, "consumedCapacity")
            yield at, result.consumed_capacity or {}


DeviceClasses = Mapping[str, DeviceClassSpec]
"""The specification of each class by name."""


class ClaimContext(NamedTuple):
    """Claim templates of a namespace by name, and the cluster's device classes.

    Attributes:
        counts_names: True if quotas count devices by the names that classes serve, as from Kubernetes 1.36 on.
    """

    templates: Mapping[str, ClaimSpec] = MappingProxyType({})
    classes: DeviceClasses = MappingProxyType({})
    counts_names: bool = True

    def charge(self, spec: ClaimSpec) -> Mapping[str, int]:
        """Return what a claim is charged, by quota key."""
        charged = claim_charge(spec, self.classes)
        return charged if self.counts_names else {key: each for key, each in charged.items() if is_claim_key(key)}


NO_CLAIMS = ClaimContext()


def device_classes_by_name(found: Iterable[DeviceClass]) -> DeviceClasses:
    return {one.metadata.name: one.spec for one in found}


def claim_templates_by_name(found: Iterable[ResourceClaimTemplate]) -> Mapping[str, ClaimSpec]:
    return {one.metadata.name: one.spec.spec for one in found}


def is_claim_key(key: str) -> bool:
    """Return whether only claims, and no pod by itself, use a quota key."""
    return key == CLAIM_COUNT_KEY or key.endswith(DEVICE_CLASS_SUFFIX)


def is_filled_by_claims(key: str, classes: DeviceClasses) -> bool:
    """Return whether claims use a quota key."""
    if is_claim_key(key):
        return True
    if key.startswith(_IMPLICIT):
        return key.removeprefix(_IMPLICIT) in classes
    return key.startswith(_REQUESTS) and key.removeprefix(_REQUESTS) in extended_names(classes)


def extended_names(classes: DeviceClasses) -> set[str]:
    """Return the extended resource names of device classes."""
    return {spec.extended_resource_name for spec in classes.values()}


def device_class_of_key(key: str) -> str:
    """Return the device class that a key counts; "" if it counts none or several."""
    if key.endswith(DEVICE_CLASS_SUFFIX):
        return key.removesuffix(DEVICE_CLASS_SUFFIX)
    return key.removeprefix(_IMPLICIT) if key.startswith(_IMPLICIT) else ""


def claim_unit(key: str) -> str:
    """Return the unit of a quota key that claims use.

    >>> claim_unit(CLAIM_COUNT_KEY), claim_unit("gpu.example.com.deviceclass.resource.k8s.io/devices")
    ('claims', 'gpu.example.com devices')
    """
    if key == CLAIM_COUNT_KEY:
        return "claims"
    return f"{device_class_of_key(key)} devices" if device_class_of_key(key) else key.removeprefix(_REQUESTS)


def claim_charge(spec: ClaimSpec, classes: DeviceClasses) -> Mapping[str, int]:
    """Return what a claim is charged, by quota key: of alternatives the most for each class.

    Of several classes with one extended resource name, the API server charges that name for any one of them; this is
    the largest charge.
    """
    charged = {CLAIM_COUNT_KEY: 1}
    for name, count in devices_by_class(spec).items():
        if count:
            charged[f"{name}{DEVICE_CLASS_SUFFIX}"] = charged[f"{_IMPLICIT}{name}"] = count
            if name in classes and classes[name].extended_resource_name:
                key = f"{_REQUESTS}{classes[name].extended_resource_name}"
                charged[key] = max(count, charged.get(key, 0))
    return charged


def devices_by_class(spec: ClaimSpec) -> Mapping[str, int]:
    """Return the most devices of each class that a claim may get."""
    devices: dict[str, int] = {}
    for request in spec.devices.requests:
        for name, count in _max_devices(request).items():
            devices[name] = devices.get(name, 0) + count
    return devices


def pending_devices(claim: ResourceClaim) -> Mapping[str, int]:
    """Return the most devices of each class that a claim may still get: none if it has an allocation."""
    return {} if claim.status.allocation is not None else devices_by_class(claim.spec)


def claim_of_class(device_class: str, count: int = 1) -> ClaimSpec:
    """Return a claim for devices of a class."""
    return ClaimSpec(ClaimDevices((ClaimRequest(exactly=DeviceRequest(device_class_name=device_class, count=count)),)))


def _max_devices(request: ClaimRequest) -> Mapping[str, int]:
    """Return the most devices of each class that a request may get; none in a mode that quotas do not know."""
    most: dict[str, int] = {}
    for choice in request.choices:
        counts = {"All": MAX_DEVICES, "ExactCount": choice.count}
        name = choice.device_class_name
        most[name] = max(counts.get(choice.allocation_mode, 0), most.get(name, 0))
    return most


def gpu_classes_of_claim(spec: ClaimSpec, classes: DeviceClasses) -> list[str] | None:
    """Return the device classes of a claim that may hold GPUs, sorted; None if its requests cannot be read."""
    if not all(request.choices for request in spec.devices.requests):
        return None
    names = {choice.device_class_name for request in spec.devices.requests for choice in request.choices}
    return sorted(name for name in names if may_hold_gpus(name, classes))


def may_hold_gpus(name: str, classes: DeviceClasses) -> bool:
    """Return whether devices of a class may be GPUs: False only if a selector requires the driver of other devices.

    Of unknown classes, those of NVIDIA's compute domains hold no GPUs.
    """
    if name not in classes:
        return _COMPUTE_DOMAIN_CLASS.fullmatch(name) is None
    drivers = [required_driver(selector.cel.expression) for selector in classes[name].selectors]
    return not any(driver and not _is_gpu_driver(driver) for driver in drivers)


_COMPUTE_DOMAIN_CLASS = re.compile(r"compute-domain-[a-z-]+[.]nvidia[.]com")
_COMPUTE_DOMAIN_DRIVER = "compute-domain.nvidia.com"

_DRIVER_SELECTOR = re.compile(r"""device[.]driver\s*==\s*(["'])(?P<driver>[a-z0-9.-]+)\1\s*(&&.*)?""", re.DOTALL)
_ALTERNATIVES = ("||", "?")
"""Operators that bind less tightly than `&&`: in an expression with one, an equation may be false."""


@request_cache(256)
def required_driver(expression: str) -> str:
    """Return the driver that an expression requires; "" if that is unknown.

    >>> required_driver('device.driver == "dra.net" && device.attributes["dra.net"].rdma == true')
    'dra.net'
    >>> required_driver('device.driver == "dra.net" || device.driver == "gpu.nvidia.com"')
    ''
    """
    match = _DRIVER_SELECTOR.fullmatch(expression.strip())
    if match is None or any(operator in expression for operator in _ALTERNATIVES):
        return ""
    return match["driver"]


def _is_gpu_driver(driver: str) -> bool:
    return "gpu" in driver or (driver.endswith("nvidia.com") and driver != _COMPUTE_DOMAIN_DRIVER)
