"""Devices that are published twice, so that a pod and a claim, or two claims, can get the same one.

Two publishers of a GPU are the device plugin and a DRA driver, or two DRA drivers whose devices have one PCI address or
UUID. The scheduler knows of no relation between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from webhook.model.derived_values import derived_value
from webhook.model.dra.device_pools import DevicePools, PoolId
from webhook.model.dra.gpu_devices import GPU_DRIVERS
from webhook.model.dra.pool_kinds import gpu_parts
from webhook.model.dra.published_devices import PublishedDevice, slice_kinds
from webhook.model.dra.selector_advice import DeviceKey
from webhook.model.fleet import Fleet, FleetNode

PLUGIN_PREFIXES: Mapping[str, str] = {
    name: f"{driver.resource.partition('/')[0]}/" for name, driver in GPU_DRIVERS.items()
}
"""Prefix of the resources that the device plugin for a driver's GPUs advertises."""

DEVICE_PLUGIN = "the device plugin"
PCI_ADDRESS = DeviceKey("attributes", "resource.kubernetes.io", "pciBusID")


class DevicePublishers(NamedTuple):
    """Two publishers of one device: two drivers, or `DEVICE_PLUGIN` and a driver."""

    first: str
    second: str

    def publish(self, one: PublishedDevice, pools: DevicePools) -> bool:
        """Return whether they may both publish a device of one of them: the device plugin has GPUs only."""
        if one.pool.driver not in self:
            return False
        return self.first != DEVICE_PLUGIN or one.device.name in gpu_parts(pools, one.pool)


@derived_value()
def devices_published_twice(pools: DevicePools, fleet: Fleet) -> Mapping[DevicePublishers, int]:
    """Return the mask of the nodes on which each two publishers have a device in common."""
    if not pools.slices:
        return {}
    found: dict[DevicePublishers, int] = {}
    drivers = {pool.driver for pool in pools.slices}
    keys = (PCI_ADDRESS, *[DeviceKey("attributes", driver, "uuid") for driver in sorted(drivers)])
    kind_of = slice_kinds(keys)
    for index, node in enumerate(fleet.nodes):
        names = pools.names_of_node(index)
        pairs = {DevicePublishers(DEVICE_PLUGIN, pool.driver) for pool in names if _is_advertised(pool, node, pools)}
        if len(drivers) > 1 and len(names) > 1:
            texts = [(pool.driver, str(text)) for pool in sorted(names) for one in pools.slices[pool]
                     for text in kind_of(one)[1:]]  # fmt: skip
            pairs |= _pairs_of_drivers(texts)
        for pair in pairs:
            found[pair] = found.get(pair, 0) | 1 << index
    return dict(sorted(found.items(), key=lambda item: (item[0].first != DEVICE_PLUGIN, item[0])))


def _is_advertised(pool: PoolId, node: FleetNode, pools: DevicePools) -> bool:
    """Return whether a device plugin advertises GPUs on a node that a pool has too."""
    prefix = PLUGIN_PREFIXES.get(pool.driver)
    amounts = (*node.gpus.items(), *node.others.items())
    if prefix is None or not any(amount > 0 and name.startswith(prefix) for name, amount in amounts):
        return False
    return bool(gpu_parts(pools, pool))


def _pairs_of_drivers(texts: Collection[tuple[str, str]]) -> set[DevicePublishers]:
    """Return the pairs of drivers that publish a device with one PCI address or UUID, from these by driver."""
    publishers: dict[str, str] = {}
    firsts = [(publishers.setdefault(text, driver), driver) for driver, text in texts]
    return {DevicePublishers(first, driver) for first, driver in firsts if first != driver}
