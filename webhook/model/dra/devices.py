"""Devices as drivers publish them in ResourceSlices, in API group `resource.k8s.io/v1`."""

from __future__ import annotations

from msgspec import field

from webhook.model.api_struct import ApiStruct
from webhook.model.objects import Taint
from webhook.model.pods import NodeSelector, QuantityText


class DeviceAttribute(ApiStruct, frozen=True):
    """A fact about a device: exactly one of the values is set.

    The lists of values are read only in clusters where feature gate DRAListTypeAttributes (alpha) is on.
    """

    int_value: int | None = field(name="int", default=None)
    bool_value: bool | None = field(name="bool", default=None)
    string_value: str | None = field(name="string", default=None)
    version_value: str | None = field(name="version", default=None)


class CapacityRange(ApiStruct, frozen=True):
    """The amounts that a request for part of a capacity may have."""

    min: QuantityText | None = None
    max: QuantityText | None = None
    step: QuantityText | None = None


class CapacityRequestPolicy(ApiStruct, frozen=True):
    """The amounts of a capacity that requests may consume, of a device that several requests share."""

    default: QuantityText | None = None
    valid_values: tuple[QuantityText, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(ApiStruct, frozen=True):
    """An amount that a device has of something, such as memory."""

    value: QuantityText = "0"
    request_policy: CapacityRequestPolicy | None = None


class DeviceCounter(ApiStruct, frozen=True):
    """An amount that devices of one pool share."""

    value: QuantityText = "0"


class CounterConsumption(ApiStruct, frozen=True):
    """The amounts of a counter set that a device uses up while it is allocated."""

    counter_set: str = ""
    counters: dict[str, DeviceCounter] = {}


class Device(ApiStruct, frozen=True):
    """One device of a ResourceSlice.

    Names of attributes and capacities are `DOMAIN/NAME`, or `NAME` alone in the driver's domain.
    """

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[CounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[Taint, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None
