"""ResourceSlices in little memory: slices of equal cards share their devices, but for the texts of attributes.

A card that can be partitioned is published as dozens of devices, of about a kilobyte each. Equal cards differ only in a
few texts, such as UUIDs and PCI addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from sys import intern
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from webhook.model.dra.resource_slices import CounterSet, Device, DeviceAttribute, ResourceSlice, ResourceSliceSpec

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
