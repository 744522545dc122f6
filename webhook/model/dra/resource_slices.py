"""ResourceSlices, in API group `resource.k8s.io/v1`: the devices of one driver, in pools."""

from __future__ import annotations

from webhook.model.api_struct import ApiStruct
from webhook.model.dra.devices import Device, DeviceCounter
from webhook.model.pods import NodeSelector, ObjectMeta


class ResourcePool(ApiStruct, frozen=True):
    """The pool that a slice is part of: its name in the driver, and which slices belong together."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class CounterSet(ApiStruct, frozen=True):
    """Amounts that devices of a pool share, by name."""

    name: str = ""
    counters: dict[str, DeviceCounter] = {}


class ResourceSliceSpec(ApiStruct, frozen=True):
    """Devices or counters of a pool, and the nodes that can use them: exactly one of the four fields is set."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(ApiStruct, frozen=True):
    """A part of a pool of devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()
