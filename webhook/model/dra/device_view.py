"""The devices of a cluster, and the claims that have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from webhook.model.claims import (
    ClaimSpec,
    DeviceClass,
    DeviceClasses,
    ResourceClaim,
    device_classes_by_name,
    pending_devices,
)
from webhook.model.dra.allocated_devices import AllocatedDevices, allocated_devices
from webhook.model.dra.device_pools import DevicePools, slices_by_pool
from webhook.model.dra.extended_resources import ClassByResource, classes_by_resource
from webhook.model.dra.packed_slices import pack_slices
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.fleet import Fleet
from webhook.model.pods import DEFAULT_NAMESPACE

ClaimsByNamespace = Mapping[str, Mapping[str, ResourceClaim]]
"""Claims by namespace and name."""


class NamespaceClaims(NamedTuple):
    """The claims of a namespace by name, and the specifications of its templates."""

    claims: Mapping[str, ResourceClaim]
    templates: Mapping[str, ClaimSpec]

    def spec_of(self, claim: str, template: str) -> ClaimSpec | None:
        """Return the specification of a claim, or of the template that it will be made from; None if none is known."""
        return self.claims[claim].spec if claim in self.claims else self.templates.get(template)


class DeviceView(NamedTuple):
    """The devices of a cluster.

    Attributes:
        pools: The devices.
        allocated: Those that claims have.
        classes: The device classes.
        class_by_resource: The class of each extended resource that classes serve.
        claims: The claims.
        pending: The most devices of each class that claims without an allocation may get.
        knows_claims: False if claims may not be read: then it is not known which devices are free.
    """

    pools: DevicePools
    allocated: AllocatedDevices = MappingProxyType({})
    classes: DeviceClasses = MappingProxyType({})
    class_by_resource: ClassByResource = MappingProxyType({})
    claims: ClaimsByNamespace = MappingProxyType({})
    pending: Mapping[str, int] = MappingProxyType({})
    knows_claims: bool = True


NO_DEVICES = DeviceView(DevicePools({}, Fleet(())))


def build_device_view(
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
    classes: Iterable[DeviceClass],
    fleet: Fleet,
) -> DeviceView:
    """Build the view of a snapshot."""
    claims, classes, pools = tuple(claims), tuple(classes), slices_by_pool(pack_slices(slices))
    if not (claims or classes or pools):
        return NO_DEVICES
    by_namespace: dict[str, dict[str, ResourceClaim]] = {}
    for claim in claims:
        by_namespace.setdefault(claim.metadata.namespace or DEFAULT_NAMESPACE, {})[claim.metadata.name] = claim
    mapped = device_classes_by_name(classes), classes_by_resource(classes)
    pending: Counter[str] = Counter()
    for claim in claims:
        pending.update(pending_devices(claim))
    return DeviceView(DevicePools(pools, fleet), allocated_devices(claims), *mapped, by_namespace, pending)
