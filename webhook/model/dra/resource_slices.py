"""ResourceSlices, in API group `resource.k8s.io/v1`: the devices of one driver, in pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from webhook.model.api_struct import ApiStruct
from webhook.model.dra.devices import CapacityRequestPolicy, Device, DeviceCounter
from webhook.model.field_paths import FieldPath
from webhook.model.pods import NodeSelector, ObjectMeta, QuantityText


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


def slice_amounts(item: ResourceSlice) -> Iterator[tuple[FieldPath, Mapping[str, QuantityText]]]:
    """Yield every amount of a slice, with the field of each map that holds some."""
    for place, shared in enumerate(item.spec.shared_counters):
        yield _counter_amounts(("spec", "sharedCounters", place, "counters"), shared.counters)
    for place, device in enumerate(item.spec.devices):
        path = ("spec", "devices", place)
        yield (*path, "capacity"), {name: one.value for name, one in device.capacity.items()}
        for number, consumption in enumerate(device.consumes_counters):
            yield _counter_amounts((*path, "consumesCounters", number, "counters"), consumption.counters)
        for name, one in device.capacity.items():
            if one.request_policy is not None:
                yield from _policy_amounts((*path, "capacity", name, "requestPolicy"), one.request_policy)


def _counter_amounts(
    path: FieldPath, counters: Mapping[str, DeviceCounter]
) -> tuple[FieldPath, Mapping[str, QuantityText]]:
    return path, {name: counter.value for name, counter in counters.items()}


def _policy_amounts(
    path: FieldPath, policy: CapacityRequestPolicy
) -> Iterator[tuple[FieldPath, Mapping[str, QuantityText]]]:
    if policy.default is not None:
        yield path, {"default": policy.default}
    yield (*path, "validValues"), {str(place): amount for place, amount in enumerate(policy.valid_values)}
    if policy.valid_range is not None:
        amounts = {"min": policy.valid_range.min, "max": policy.valid_range.max, "step": policy.valid_range.step}
        yield (*path, "validRange"), {name: amount for name, amount in amounts.items() if amount is not None}
