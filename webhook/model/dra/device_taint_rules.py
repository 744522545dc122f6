"""DeviceTaintRules, in API group `resource.k8s.io`: taints that an admin adds to devices, besides those of drivers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from webhook.model.api_struct import ApiStruct
from webhook.model.dra.resource_slices import Device, PackedSlice, SliceContent
from webhook.model.objects import Taint
from webhook.model.pods import ObjectMeta


class DeviceTaintSelector(ApiStruct, frozen=True):
    """The devices that get a taint: each criterion that is given must hold.

    Attributes:
        device_class_name, selectors: Criteria of Kubernetes before 1.35, which are not evaluated.
    """

    driver: str = ""
    pool: str = ""
    device: str = ""
    device_class_name: str = ""
    selectors: tuple[dict[str, object], ...] = ()

    def selects_pool(self, driver: str, pool: str) -> bool:
        """Return whether the devices of a pool may be selected."""
        is_read = not (self.device_class_name or self.selectors)
        return is_read and self.driver in ("", driver) and self.pool in ("", pool)


class DeviceTaintRuleSpec(ApiStruct, frozen=True):
    """A taint, and the devices that get it: none without a selector."""

    device_selector: DeviceTaintSelector | None = None
    taint: Taint = Taint()


class DeviceTaintRule(ApiStruct, frozen=True):
    """A taint for devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


_Taints = tuple[tuple[str, Taint], ...]
"""Taints, each with the name of the only device that gets it; "" for all."""


def with_rule_taints(slices: Iterable[PackedSlice], rules: Sequence[DeviceTaintRule]) -> list[PackedSlice]:
    """Return slices whose devices have the taints of rules too; slices with equal devices still share them."""
    contents: dict[tuple[int, _Taints], SliceContent] = {}
    found: list[PackedSlice] = []
    for one in slices:
        taints = _taints_of_pool(rules, one.spec.driver, one.spec.pool.name)
        if taints:
            key = id(one.content), taints
            if key not in contents:
                devices = tuple([_with_taints(device, taints) for device in one.content.devices])
                contents[key] = SliceContent(devices, one.content.counters)
            found.append(replace(one, content=contents[key]))
        else:
            found.append(one)
    return found


def _taints_of_pool(rules: Sequence[DeviceTaintRule], driver: str, pool: str) -> _Taints:
    selected = ((rule.spec.device_selector, rule.spec.taint) for rule in rules)
    return tuple([(one.device, taint) for one, taint in selected if one is not None and one.selects_pool(driver, pool)])


def _with_taints(device: Device, taints: _Taints) -> Device:
    added = tuple([taint for name, taint in taints if name in ("", device.name)])
    return replace(device, taints=(*device.taints, *added)) if added else device
