"""The devices that claims have been given, and how much of shared devices.

Source: `pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go` of Kubernetes 1.36.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from webhook.model.claims import DeviceAllocation, ResourceClaim
from webhook.model.dra.device_pools import PoolId
from webhook.model.quantity import parse_nano


class PoolAllocations(NamedTuple):
    """Allocated devices of one pool, by name.

    Attributes:
        whole: Devices that a claim has for itself.
        shared: Devices of which claims have shares.
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
