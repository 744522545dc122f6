"""The devices that a new node of a node group will publish: those of a settings file, and those of Cluster API.

The settings have the ResourceSlices of one node of the group, which may no longer exist. Of a machine whose annotations
name a DRA driver, cluster-autoscaler expects GPUs with the attribute `type` alone.

Source: cluster-autoscaler, `cloudprovider/clusterapi`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from webhook.model.dra.resource_slices import (
    Device,
    DeviceAttribute,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from webhook.model.node_labels import parse_count
from webhook.model.pods import ObjectMeta

MAX_SLICE_DEVICES = 128
"""Devices that a ResourceSlice can have."""


def require_slices_of_one_node(slices: Sequence[ResourceSlice]) -> None:
    """Require that slices are all those of one node.

    Raises:
        ValueError: Some are of other nodes, or are missing.
    """
    nodes = {one.spec.node_name for one in slices}
    if len(nodes) > 1 or not all(nodes):
        raise ValueError("resourceSlices must be those of one node, which spec.nodeName of each names")
    found = Counter((one.spec.driver, one.spec.pool.name) for one in slices)
    for one in slices:
        number, wanted = found[one.spec.driver, one.spec.pool.name], one.spec.pool.resource_slice_count
        if number != wanted:
            text = f"{one.spec.pool.name} of {one.spec.driver} (found {number}, its resourceSliceCount is {wanted})"
            raise ValueError(f"resourceSlices must have all slices of pool {text}")


def slices_of_new_node(node: str, slices: Sequence[ResourceSlice]) -> tuple[ResourceSlice, ...]:
    """Return the slices of a new node that publishes the devices of another; its pools have names of their own."""
    return tuple(
        [
            replace(
                one,
                spec=replace(
                    one.spec, node_name=node, pool=replace(one.spec.pool, name=f"{node}/{one.spec.pool.name}")
                ),
            )
            for one in slices
        ]
    )


def slices_of_machine(node: str, annotations: Mapping[str, str]) -> tuple[ResourceSlice, ...]:
    """Return the devices that cluster-autoscaler expects of a machine whose annotations name a DRA driver.

    Args:
        annotations: The annotations about capacity, without their prefix.
    """
    driver, count = annotations.get("dra-driver", ""), parse_count(annotations.get("gpu-count")) or 0
    if not (driver and count):
        return ()
    attributes = {"type": DeviceAttribute(string_value="gpu")}
    devices = tuple([Device(f"gpu-{index}", attributes) for index in range(min(count, MAX_SLICE_DEVICES))])
    spec = ResourceSliceSpec(driver, ResourcePool(node, resource_slice_count=1), node_name=node, devices=devices)
    return (ResourceSlice(ObjectMeta(name=f"{node}-{driver}"), spec),)
