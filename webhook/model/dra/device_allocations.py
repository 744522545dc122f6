"""GPUs of ResourceSlices that claims have, and the pods for which these are reserved."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from webhook.model.claims import DeviceAllocation, ResourceClaim
from webhook.model.dra.claim_weights import allocation_milli
from webhook.model.dra.device_pools import DeviceId, PoolId
from webhook.model.dra.device_view import DeviceView, allocation_results
from webhook.model.dra.pool_kinds import gpu_parts


class AllocatedDevice(NamedTuple):
    """A GPU or a part of one, and a claim that has it or a share of it.

    Attributes:
        id: The device.
        profile: Size of a part, None if unknown; "" for a whole card.
        memory_mib: Memory of the device in MiB; None if unknown.
        milli: Thousandths of the card that the claim has.
        claim: Its name, in the namespace.
        pods: Pods of the namespace for which it is reserved.
    """

    id: DeviceId
    profile: str | None
    memory_mib: int | None
    milli: int
    namespace: str
    claim: str
    pods: tuple[str, ...]


def allocated_in_pools(devices: DeviceView, pools: Collection[PoolId]) -> list[AllocatedDevice] | None:
    """Return the GPUs of some pools that claims have, once for each claim; None if claims may not be read."""
    if not devices.knows_claims:
        return None
    return [
        device
        for namespace, claims in devices.claims.items()
        for claim in claims.values()
        for result in allocation_results(claim)
        if (result.driver, result.pool) in pools and (device := _read_allocated(devices, namespace, claim, result))
    ]


def allocated_for_pods(devices: DeviceView, namespace: str, pods: Collection[str]) -> list[AllocatedDevice]:
    """Return the GPUs of claims that are reserved for some pods of a namespace, once for each claim."""
    return [
        device
        for claim in devices.claims.get(namespace, {}).values()
        if any(each.name in pods for each in claim.status.reserved_for if each.is_pod)
        for result in allocation_results(claim)
        if (device := _read_allocated(devices, namespace, claim, result))
    ]


def _read_allocated(
    devices: DeviceView, namespace: str, claim: ResourceClaim, result: DeviceAllocation
) -> AllocatedDevice | None:
    """Return a device that a claim has; None if it is no GPU, or is not published any more."""
    pool = PoolId(result.driver, result.pool)
    part = gpu_parts(devices.pools, pool).get(result.device)
    if part is None:
        return None
    return AllocatedDevice(
        id=DeviceId(*pool, result.device),
        profile=part.profile or (None if part.is_partition else ""),
        memory_mib=part.memory_mib,
        milli=allocation_milli(part, result),
        namespace=namespace,
        claim=claim.metadata.name,
        pods=tuple([each.name for each in claim.status.reserved_for if each.is_pod]),
    )
