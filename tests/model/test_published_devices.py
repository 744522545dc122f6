"""The devices between which selectors can tell: one of each kind, also of more slices than are compared one by one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_node
from tests.device_builders import NVIDIA, card, resource_slice
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.dra.device_pools import DevicePools, slices_by_pool
from webhook.model.dra.published_devices import published_devices
from webhook.model.dra.resource_slices import Device, ResourceSlice, pack_slices
from webhook.model.dra.selector_advice import DeviceKey
from webhook.model.fleet import Fleet
from webhook.model.objects import Node

NAMES = ("uuid", "productName", "brand", "rack", "host")
SLICES = st.lists(st.tuples(*[st.sampled_from("ab") for _ in NAMES]), min_size=1, max_size=6)
KEYS = st.lists(st.sampled_from(NAMES), max_size=3, unique=True)


def keys(*names: str) -> tuple[DeviceKey, ...]:
    """Return keys of NVIDIA's driver."""
    return tuple(DeviceKey("attributes", NVIDIA, name) for name in names)


def cluster(texts: Sequence[tuple[str, ...]]) -> tuple[DevicePools, Fleet]:
    """Return nodes with one card each, whose attributes have these texts."""
    slices = []
    for number, values in enumerate(texts):
        device = card("gpu-0")
        device["attributes"] |= {name: {"string": value} for name, value in zip(NAMES, values, strict=True)}
        node = f"n{number}"
        slices.append(resource_slice(node, NVIDIA, node, nodeName=node, devices=[device]))
    fleet = Fleet([msgspec.convert(make_node(f"n{number}", {}), Node) for number in range(len(texts))])
    packed = pack_slices(msgspec.convert(one, ResourceSlice) for one in slices)
    return DevicePools(slices_by_pool(packed), fleet), fleet


def values(device: Device, names: list[str]) -> tuple[str | None, ...]:
    return tuple(device.attributes[name].string_value for name in names)


@given(SLICES, KEYS)
def test_every_combination_of_values_is_there(texts: list[tuple[str, ...]], names: list[str]) -> None:
    pools, fleet = cluster(texts)
    found = published_devices(pools, fleet, keys(*names))
    every = [values(one.devices()[0], names) for some in pools.slices.values() for one in some]
    assert {values(each.device, names) for each in found.kinds} == set(every)
    assert found.total == len(every)
    for name, combination in enumerate(every):
        nodes = [each.nodes >> name & 1 for each in found.kinds if values(each.device, names) == combination]
        assert sum(nodes) == 1, "each node has one device, of one kind"


def test_of_more_slices_than_are_compared_equal_cards_are_still_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.model.dra.published_devices.MAX_SLICES", 1)
    texts = [(f"uuid-{number}", product, "Nvidia", "r", "h") for number, product in enumerate("aaabbb")]
    pools, fleet = cluster(texts)
    assert len(published_devices(pools, fleet, keys("productName")).kinds) == 2
    with pytest.raises(UnmodeledExpressionError, match="more than 1 slices"):
        published_devices(pools, fleet, keys("uuid"))
