"""Resource claims as quotas count them: how many devices of which class one may be given.

Claims that a pod names by a template are made after the pod is stored, and are charged then. What a class is called as
an extended resource is charged too, from Kubernetes 1.36 on.
Source: `pkg/quota/v1/evaluator/core/resource_claims.go`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from webhook.model.pods import Metadata
from webhook.model.read import Read
from webhook.model.resources import DEVICE_CLASS_PREFIX

MOST_DEVICES = 32
"""What a request for all devices counts as: no claim is given more."""

OBJECTS = "count/resourceclaims.resource.k8s.io"
OF_CLASS = ".deviceclass.resource.k8s.io/devices"
_REQUESTS = "requests."
_IMPLICIT = f"{_REQUESTS}{DEVICE_CLASS_PREFIX}"


class DeviceRequest(Read, frozen=True):
    """Devices of one class."""

    device_class_name: str = ""
    allocation_mode: str = "ExactCount"
    count: int = 1

    @property
    def most(self) -> int:
        """The most devices that it may be given; none in a mode that quotas do not know."""
        if self.allocation_mode == "All":
            return MOST_DEVICES
        return self.count if self.allocation_mode == "ExactCount" else 0


class ClaimRequest(Read, frozen=True):
    """One request of a claim: devices, or the first of several choices that there is."""

    exactly: DeviceRequest | None = None
    first_available: tuple[DeviceRequest, ...] = ()


class ClaimDevices(Read, frozen=True):
    """All requests of a claim."""

    requests: tuple[ClaimRequest, ...] = ()


class ClaimSpec(Read, frozen=True):
    """A claim's specification."""

    devices: ClaimDevices = ClaimDevices()


class ClaimTemplateSpec(Read, frozen=True):
    """What claims are made from."""

    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(Read, frozen=True):
    """A namespace's template of claims."""

    metadata: Metadata = Metadata()
    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class DeviceClassSpec(Read, frozen=True):
    """What a class of devices is called as an extended resource; "" where it has no such name."""

    extended_resource_name: str = ""


class DeviceClass(Read, frozen=True):
    """A class of devices."""

    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()


Classes = Mapping[str, str]
"""The classes of a cluster, and what each is called as an extended resource, or ""."""


class Claiming(NamedTuple):
    """All that is known of the claims that pods of a namespace will have.

    Attributes:
        templates: What each template asks for.
    """

    templates: Mapping[str, ClaimSpec] = MappingProxyType({})
    classes: Classes = MappingProxyType({})


NO_CLAIMS = Claiming()


def classes_of(found: Iterable[DeviceClass]) -> Classes:
    """The classes by name."""
    return {one.metadata.name: one.spec.extended_resource_name for one in found}


def templates_of(found: Iterable[ResourceClaimTemplate]) -> Mapping[str, ClaimSpec]:
    """The templates of one namespace by name."""
    return {one.metadata.name: one.spec.spec for one in found}


def is_of_claims(key: str) -> bool:
    """Do claims alone fill a key of a quota, and no pod by itself?"""
    return key == OBJECTS or key.endswith(OF_CLASS)


def is_filled(key: str, classes: Classes) -> bool:
    """Do claims fill a key of a quota?"""
    if is_of_claims(key):
        return True
    if key.startswith(_IMPLICIT):
        return key.removeprefix(_IMPLICIT) in classes
    return key.startswith(_REQUESTS) and key.removeprefix(_REQUESTS) in classes.values()


def class_of(key: str) -> str:
    """The class whose devices a key counts, "" where it counts none of one class."""
    if key.endswith(OF_CLASS):
        return key.removesuffix(OF_CLASS)
    return key.removeprefix(_IMPLICIT) if key.startswith(_IMPLICIT) else ""


def unit_of(key: str) -> str:
    """What a key that claims fill counts, in short.

    >>> unit_of(OBJECTS), unit_of("gpu.example.com.deviceclass.resource.k8s.io/devices")
    ('claims', 'gpu.example.com devices')
    """
    if key == OBJECTS:
        return "claims"
    return f"{class_of(key)} devices" if class_of(key) else key.removeprefix(_REQUESTS)


def charge(spec: ClaimSpec, classes: Classes) -> Mapping[str, int]:
    """What a claim is charged, by key of a quota: of choices the worst for each class."""
    devices: Counter[str] = Counter()
    for request in spec.devices.requests:
        devices.update(_most(request))
    charged = {OBJECTS: 1}
    for name, count in devices.items():
        if count:
            charged |= dict.fromkeys(_keys(name, classes), count)
    return charged


def _most(request: ClaimRequest) -> Mapping[str, int]:
    asked = request.first_available or ([request.exactly] if request.exactly else ())
    found: dict[str, int] = {}
    for one in asked:
        found[one.device_class_name] = max(one.most, found.get(one.device_class_name, 0))
    return found


def _keys(name: str, classes: Classes) -> Iterator[str]:
    yield f"{name}{OF_CLASS}"
    yield f"{_IMPLICIT}{name}"
    if classes.get(name):
        yield f"{_REQUESTS}{classes[name]}"
