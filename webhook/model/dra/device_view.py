"""The devices of a cluster, and the claims that have them.

The devices that claims have been given, and how much of shared devices.

Source: `pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go` of Kubernetes 1.36.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from webhook.model.claims import (
    ClaimSpec,
    DeviceAllocation,
    DeviceClass,
    DeviceClasses,
    ResourceClaim,
    device_classes_by_name,
    pending_devices,
)
from webhook.model.dra.device_pools import DevicePools, PoolId, slices_by_pool
from webhook.model.dra.device_taint_rules import DeviceTaintRule, with_rule_taints
from webhook.model.dra.extended_resources import ClassByResource, classes_by_resource
from webhook.model.dra.resource_slices import ResourceSlice, pack_slices
from webhook.model.fleet import Fleet
from webhook.model.pods import DEFAULT_NAMESPACE
from webhook.model.quantity import parse_nano


class PoolAllocations(NamedTuple):
    """Allocated devices of one pool, by name.

    Attributes:
        whole: Devices that a claim has for itself.
        shared: Devices that claims share.
        consumed: What the shares use up, in nano-units by capacity.
    """

    whole: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    consumed: Mapping[str, Mapping[str, int]] = MappingProxyType({})

    def uses_counters(self, device: str) -> bool:
        """Return whether a device uses up counters."""
        return device in self.whole or device in self.shared


NOTHING_ALLOCATED = PoolAllocations()

AllocatedDevices = Mapping[PoolId, PoolAllocations]


def allocated_devices(claims: Iterable[ResourceClaim]) -> AllocatedDevices:
    """Return what claims have been given. Access for administration uses up nothing."""
    grouped: dict[PoolId, list[DeviceAllocation]] = {}
    for result in (each for claim in claims for each in allocation_results(claim)):
        grouped.setdefault(PoolId(result.driver, result.pool), []).append(result)
    return {pool: pool_allocations(results) for pool, results in grouped.items()}


def allocation_results(claim: ResourceClaim) -> tuple[DeviceAllocation, ...]:
    """Return the devices that a claim uses up."""
    if claim.status.allocation is None:
        return ()
    return tuple([each for each in claim.status.allocation.devices.results if not each.admin_access])


def pool_allocations(results: Iterable[DeviceAllocation]) -> PoolAllocations:
    """Return what is allocated of one pool."""
    whole, shared = set[str](), set[str]()
    consumed: dict[str, Counter[str]] = {}
    for each in results:
        if each.share_id is None:
            whole.add(each.device)
            continue
        shared.add(each.device)
        if each.consumed_capacity is not None:
            amounts = {name: parse_nano(amount) for name, amount in each.consumed_capacity.items()}
            consumed.setdefault(each.device, Counter()).update(amounts)
    return PoolAllocations(frozenset(whole), frozenset(shared), consumed)


class DeviceKind(StrEnum):
    """A kind of objects about devices, by the name of its resource."""

    CLAIM = "resourceclaims"
    TEMPLATE = "resourceclaimtemplates"
    CLASS = "deviceclasses"
    SLICE = "resourceslices"


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
        unlisted: Kinds of which others may exist: they may not be listed, or a snapshot has none of them.
    """

    pools: DevicePools
    allocated: AllocatedDevices = MappingProxyType({})
    classes: DeviceClasses = MappingProxyType({})
    class_by_resource: ClassByResource = MappingProxyType({})
    claims: ClaimsByNamespace = MappingProxyType({})
    pending: Mapping[str, int] = MappingProxyType({})
    knows_claims: bool = True
    unlisted: frozenset[DeviceKind] = frozenset()

    def lacks_class(self, name: str) -> bool:
        """Return whether a device class surely does not exist."""
        return name not in self.classes and DeviceKind.CLASS not in self.unlisted


NO_DEVICES = DeviceView(DevicePools({}, Fleet(())))


def build_device_view(
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
    classes: Iterable[DeviceClass],
    fleet: Fleet,
    taint_rules: Sequence[DeviceTaintRule] = (),
    unlisted: Iterable[DeviceKind] = (),
) -> DeviceView:
    """Build the view of objects that were read once."""
    claims, classes = tuple(claims), tuple(classes)
    pools = slices_by_pool(with_rule_taints(pack_slices(slices), taint_rules))
    if not (claims or classes or pools):
        return NO_DEVICES
    by_namespace: dict[str, dict[str, ResourceClaim]] = {}
    for claim in claims:
        by_namespace.setdefault(claim.metadata.namespace or DEFAULT_NAMESPACE, {})[claim.metadata.name] = claim
    mapped = device_classes_by_name(classes), classes_by_resource(classes)
    pending: Counter[str] = Counter()
    for claim in claims:
        pending.update(pending_devices(claim))
    view = DeviceView(DevicePools(pools, fleet), allocated_devices(claims), *mapped, by_namespace, pending)
    return view._replace(unlisted=frozenset(unlisted))
