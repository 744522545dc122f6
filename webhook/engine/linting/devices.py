"""Lint ResourceSlices: GPUs that are published twice, so that a pod and a claim, or two claims, can get the same one.

Two publishers of a GPU are the device plugin and a DRA driver, or two DRA drivers whose devices have one PCI address or
UUID. The scheduler knows of no relation between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.errors import abbreviate_names
from webhook.model.claims import DeviceClasses, DeviceSelector, required_driver
from webhook.model.dra.device_pools import DevicePools, PoolId
from webhook.model.dra.gpu_devices import GPU_DRIVERS
from webhook.model.dra.pool_kinds import gpu_parts
from webhook.model.dra.published_devices import texts_read
from webhook.model.dra.selector_advice import DeviceKey
from webhook.model.fleet import Fleet, FleetNode

PLUGIN_PREFIXES: Mapping[str, str] = {
    name: f"{driver.resource.partition('/')[0]}/" for name, driver in GPU_DRIVERS.items()
}
"""Prefix of the resources that the device plugin for a driver's GPUs advertises."""


PCI_ADDRESS = DeviceKey("attributes", "resource.kubernetes.io", "pciBusID")


class DeviceProblem(NamedTuple):
    """A problem with the devices of a cluster, and what to do."""

    summary: str
    advice: str


def find_device_problems(pools: DevicePools, classes: DeviceClasses, fleet: Fleet) -> Iterator[DeviceProblem]:
    """Yield the GPUs that are published twice, by who publishes them."""
    by_plugin, by_drivers = defaultdict[str, list[str]](list), defaultdict[tuple[str, str], list[str]](list)
    for index, node in enumerate(fleet.nodes):
        names = pools.names_of_node(index)
        for driver in sorted({pool.driver for pool in names if _is_advertised(pool, node, pools)}):
            by_plugin[driver].append(node.name)
        for pair in sorted(_pairs_of_drivers(names, pools)) if len(names) > 1 else ():
            by_drivers[pair].append(node.name)
    yield from (_twice_by_plugin(driver, nodes) for driver, nodes in by_plugin.items())
    yield from (_twice_by_drivers(*pair, nodes, classes) for pair, nodes in by_drivers.items())


def _is_advertised(pool: PoolId, node: FleetNode, pools: DevicePools) -> bool:
    """Return whether a device plugin advertises GPUs on a node that a pool has too."""
    prefix = PLUGIN_PREFIXES.get(pool.driver)
    amounts = (*node.gpus.items(), *node.others.items())
    if prefix is None or not any(amount > 0 and name.startswith(prefix) for name, amount in amounts):
        return False
    return bool(gpu_parts(pools, pool))


def _pairs_of_drivers(names: Collection[PoolId], pools: DevicePools) -> set[tuple[str, str]]:
    """Return the pairs of drivers that publish a device with one PCI address or UUID."""
    publishers: dict[str, str] = {}
    pairs = set[tuple[str, str]]()
    for pool in sorted(names):
        keys = (PCI_ADDRESS, DeviceKey("attributes", pool.driver, "uuid"))
        for text in (text for one in pools.slices[pool] for text in texts_read(one, keys)):
            first = publishers.setdefault(text, pool.driver)
            if first != pool.driver:
                pairs.add((first, pool.driver))
    return pairs


def _twice_by_plugin(driver: str, nodes: Sequence[str]) -> DeviceProblem:
    summary = f"GPUs of {_count_nodes(nodes)} are published twice, by the device plugin and by {driver}"
    advice = (
        f"a pod and a claim can get the same GPU: remove one of the two from {abbreviate_names(nodes)} "
        "(NVIDIA: label nvidia.com/gpu.deploy.device-plugin=false for the GPU operator's device plugin, or "
        "resources.gpus.enabled=false of the DRA driver's chart)"
    )
    return DeviceProblem(summary, advice)


def _twice_by_drivers(one: str, other: str, nodes: Sequence[str], classes: DeviceClasses) -> DeviceProblem:
    summary = f"devices of {_count_nodes(nodes)} are published twice, by {one} and by {other}"
    open_classes = sorted(name for name, spec in classes.items() if not any(map(_required, spec.selectors)))
    advice = f"two claims can get the same device: remove one of the drivers from {abbreviate_names(nodes)}"
    if open_classes:
        named = f"class{'es' if len(open_classes) > 1 else ''} {abbreviate_names(open_classes)}"
        advice = f"{advice}; {named} may take devices of both: write device.driver == '{one}' in a selector"
    return DeviceProblem(summary, advice)


def _count_nodes(nodes: Sequence[str]) -> str:
    return f"{len(nodes)} nodes" if len(nodes) > 1 else "1 node"


def _required(selector: DeviceSelector) -> str:
    return required_driver(selector.cel.expression)
