"""ResourceSlices, in API group `resource.k8s.io/v1`: the devices of one driver, in pools.

Devices as drivers publish them in ResourceSlices, in API group `resource.k8s.io/v1`.

ResourceSlices in little memory: slices of equal cards share their devices, but for the texts of attributes.

A card that can be partitioned is published as dozens of devices, of about a kilobyte each. Equal cards differ only in a
few texts, such as UUIDs and PCI addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from sys import intern
from weakref import WeakValueDictionary

import msgspec
from msgspec import field
from msgspec.structs import replace

from webhook.model.api_struct import ApiStruct
from webhook.model.field_paths import FieldPath
from webhook.model.objects import Taint
from webhook.model.pods import NodeSelector, ObjectMeta, QuantityText


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


DIGEST_BYTES = 16


class SliceContent(msgspec.Struct, frozen=True, weakref=True):
    """Devices and counters that slices share; texts of attributes are replaced by their position in `texts`."""

    devices: tuple[Device, ...]
    counters: tuple[CounterSet, ...]


class PackedSlice(msgspec.Struct, frozen=True):
    """A slice; `devices` returns its devices.

    Attributes:
        name: Name of the slice.
        spec: The specification without devices and counters.
        content: Its devices and counters.
        texts: The texts of the attributes of its devices.
    """

    name: str
    spec: ResourceSliceSpec
    content: SliceContent
    texts: tuple[str, ...]

    @property
    def counters(self) -> tuple[CounterSet, ...]:
        """The amounts that devices of its pool share."""
        return self.content.counters

    def devices(self) -> tuple[Device, ...]:
        """Return the devices."""
        attributes = [DeviceAttribute(string_value=text) for text in self.texts]
        return tuple([_restore_texts(device, attributes) for device in self.content.devices])


class SlicePacker:
    """Packs slices; one packer knows the content that its slices share."""

    def __init__(self) -> None:
        self._contents: WeakValueDictionary[bytes, SliceContent] = WeakValueDictionary()

    def pack(self, item: ResourceSlice) -> PackedSlice:
        """Return a slice that shares its content with equal ones."""
        texts: dict[str, int] = {}
        devices = tuple([_extract_texts(device, texts) for device in item.spec.devices])
        content = SliceContent(devices, item.spec.shared_counters)
        digest = blake2b(msgspec.msgpack.encode(content), digest_size=DIGEST_BYTES).digest()
        content = self._contents.setdefault(digest, content)
        spec = item.spec
        packed = ResourceSliceSpec(
            intern(spec.driver),
            replace(spec.pool, name=intern(spec.pool.name)),
            intern(spec.node_name) if spec.node_name else spec.node_name,
            spec.node_selector,
            spec.all_nodes,
            spec.per_device_node_selection,
        )
        return PackedSlice(item.metadata.name, packed, content, tuple(map(intern, texts)))


def pack_slices(slices: Iterable[ResourceSlice]) -> list[PackedSlice]:
    """Pack the slices of a snapshot."""
    packer = SlicePacker()
    return [packer.pack(each) for each in slices]


def _extract_texts(device: Device, texts: dict[str, int]) -> Device:
    attributes: dict[str, DeviceAttribute] = {}
    for name, attribute in device.attributes.items():
        text = attribute.string_value
        if text is None:
            attributes[name] = attribute
        else:
            attributes[name] = _POSITIONS.setdefault(position := texts.setdefault(text, len(texts)), _at(position))
    return replace(device, attributes=attributes)


_POSITIONS: dict[int, DeviceAttribute] = {}
"""One attribute for each position; a slice has at most 128 devices with 32 attributes."""


def _at(position: int) -> DeviceAttribute:
    return DeviceAttribute(string_value=str(position))


def _restore_texts(device: Device, texts: list[DeviceAttribute]) -> Device:
    attributes: Mapping[str, DeviceAttribute] = device.attributes
    restored = {
        name: attribute if attribute.string_value is None else texts[int(attribute.string_value)]
        for name, attribute in attributes.items()
    }
    return replace(device, attributes=restored)
