"""Smaller devices that the request of a claim may list before what it requested, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from webhook.engine.gpu_requests import DeclaredNeed
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import (
    CapacityRequests,
    DeviceRequest,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.capacity import NO_AMOUNTS, has_capacity_left
from webhook.model.dra.claim_weights import consumed_milli
from webhook.model.dra.class_offers import (
    ClassDevices,
    ClassObstacle,
    DeviceSize,
    class_offers,
    device_hardware,
    device_size,
    device_text,
    excludes_other_drivers,
    matches_all,
    size_of_all,
)
from webhook.model.dra.device_selectors import SelectorRuntimeError
from webhook.model.dra.gpu_devices import NVIDIA_DRIVER, with_hyphens
from webhook.model.dra.published_devices import PublishedDevice
from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.node_masks import union_masks
from webhook.model.pods import QuantityText
from webhook.model.quantity import parse_mebibytes, parse_nano_or_none

FIRST_AVAILABLE_MINOR = 34
"""The first minor version of Kubernetes in which a request may have choices by default."""

MAX_CHOICES = 8
"""Choices that one request may have; the last is what was requested."""


class DeviceAlternative(NamedTuple):
    """Devices of one profile, or cards up to some memory, that a class can match: smaller than the largest requested.

    Attributes:
        profile: "" of whole cards.
        product: "" if they have several.
        is_part: True if the class has devices of other profiles too.
        nodes: Mask of the nodes that publish them.
        excludes_shared: True if claims share other cards of these sizes, whose memory nothing reserves.
    """

    size: DeviceSize
    device_class: str
    profile: str
    product: str
    is_part: bool
    nodes: int
    excludes_shared: bool = False


def find_requested_devices(requested: DeviceRequest, view: ClusterView) -> list[PublishedDevice] | None:
    """Return the devices that a request may get; None if that is not known."""
    offers, expressions = class_offers(view.devices, view.fleet), [one.cel.expression for one in requested.selectors]
    amounts = requested.capacity.requests
    if any(parse_nano_or_none(amount) is None for amount in amounts.values()):
        return None
    return _select_devices(offers.matching.get(requested.device_class_name), expressions, amounts)


def find_smaller_devices(
    requested: DeviceRequest, declared: DeclaredNeed, min_saving_percent: int, view: ClusterView
) -> list[DeviceAlternative]:
    """Return the devices that cover a need and are smaller than those of a request, the smallest first.

    Whole cards weigh the same: they are choices if another device saves enough, or if nothing must be saved.
    """
    if view.api_minor < FIRST_AVAILABLE_MINOR or not view.device_pools():
        return []
    current = find_requested_devices(requested, view)
    if not current or any(each.pool.driver != NVIDIA_DRIVER for each in current):
        return []
    largest = _largest_weight(requested, current, view)
    best: dict[str, DeviceAlternative] = {}
    for one in _parts_of_cards(requested, declared, current, view):
        saves_enough = 100 * (largest - one.size.gpu_milli) >= max(1, min_saving_percent * largest)
        known = best.get(one.profile)
        if saves_enough and (known is None or _rank(one, requested) < _rank(known, requested)):
            best[one.profile] = one
    found = [*best.values(), *_smaller_cards(requested, current, declared)]
    found = sorted(found, key=lambda one: (one.size.memory_mib, one.size.gpu_milli, one.profile))[: MAX_CHOICES - 1]
    return found if not min_saving_percent or any(one.profile for one in found) else []


def find_covering_parts(requested: DeviceRequest, declared: DeclaredNeed, view: ClusterView) -> list[DeviceAlternative]:
    """Return the MIG devices that cover a need, also those as large as what was requested."""
    current = find_requested_devices(requested, view)
    return list(_parts_of_cards(requested, declared, current, view)) if current else []


def _parts_of_cards(
    requested: DeviceRequest, declared: DeclaredNeed, current: Sequence[PublishedDevice], view: ClusterView
) -> Iterator[DeviceAlternative]:
    """Yield the MIG devices of each class and profile that cover a need, of the hardware that was requested."""
    expressions, amounts = [one.cel.expression for one in requested.selectors], requested.capacity.requests
    hardware = {device_hardware(each.device) for each in current}
    for name, matching in class_offers(view.devices, view.fleet).matching.items():
        selected = _select_devices(matching, expressions, amounts) or []
        for profile, some in _by_profile(selected).items():
            size = size_of_all(some)
            is_alike = {device_hardware(each.device) for each in some} <= hardware
            if size is None or not is_alike or not _covers(size, declared):
                continue
            nodes = union_masks(each.nodes for each in some)
            one = DeviceAlternative(size, name, profile, _product_of_all(some), len(some) < len(selected), nodes)
            if name == requested.device_class_name or _stays_of_nvidia(one, matching, expressions):
                yield one


def _stays_of_nvidia(one: DeviceAlternative, matching: ClassDevices | None, expressions: Sequence[str]) -> bool:
    """Return whether the selectors of a choice exclude the devices of other drivers that may join the cluster later."""
    of_class = matching.expressions if matching is not None else ()
    of_choice = [selector_of_alternative(one, 0)] if one.is_part else []
    return excludes_other_drivers((*of_class, *expressions, *of_choice))


def _smaller_cards(
    requested: DeviceRequest, current: Sequence[PublishedDevice], declared: DeclaredNeed
) -> Iterator[DeviceAlternative]:
    """Yield the whole cards of each size that cover a need: neither the largest that was requested, nor shared ones."""
    by_memory: dict[int, list[PublishedDevice]] = {}
    for each in current:
        memory = each.device.capacity.get("memory")
        if device_text(each.device, "type") == "gpu" and memory is not None:
            by_memory.setdefault(parse_mebibytes(memory.value), []).append(each)
    excludes_shared = any(_is_shared(each) for some in by_memory.values() for each in some)
    for memory_mib in sorted(by_memory)[:-1]:
        size, name = DeviceSize(memory_mib, CARD_MILLI, CARD_MILLI), requested.device_class_name
        some = [each for each in by_memory[memory_mib] if not _is_shared(each)]
        if some and _covers(size, declared):
            nodes, product = union_masks(each.nodes for each in some), _product_of_all(some)
            yield DeviceAlternative(size, name, "", product, True, nodes, excludes_shared)


def is_part_of_card(each: PublishedDevice) -> bool:
    """Return whether a request for a device gets a part of a card: a MIG device, or a share."""
    return device_text(each.device, "type") == "mig" or _is_shared(each)


def _is_shared(each: PublishedDevice) -> bool:
    return each.device.allow_multiple_allocations is True


def _product_of_all(devices: Sequence[PublishedDevice]) -> str:
    """Return the product of some devices; "" if they have several."""
    products = {with_hyphens(device_text(each.device, "productName")) for each in devices}
    return products.pop() if len(products) == 1 else ""


def excludes_smaller_devices(
    requested: DeviceRequest, declared: DeclaredNeed, min_saving_percent: int, view: ClusterView
) -> bool:
    """Return whether only the selectors or amounts of a request exclude devices that cover a need and save enough."""
    if not (requested.selectors or requested.capacity.requests):
        return False
    every = replace(requested, selectors=(), capacity=CapacityRequests())
    largest = _largest_weight(requested, find_requested_devices(requested, view) or (), view)
    return any(
        100 * (largest - one.size.gpu_milli) >= max(1, min_saving_percent * largest)
        or (not min_saving_percent and not one.profile and largest == CARD_MILLI)
        for one in find_smaller_devices(every, declared, min_saving_percent, view)
    )


def _largest_weight(requested: DeviceRequest, devices: Sequence[PublishedDevice], view: ClusterView) -> int:
    """Return the most that a request takes of a card by one of some devices; 0 if there is none."""
    return max((_weight(each, requested, view) for each in devices), default=0)


def _weight(device: PublishedDevice, requested: DeviceRequest, view: ClusterView) -> int:
    if _is_shared(device):
        return consumed_milli(device, requested, view.devices.pools)
    size = device_size(device)
    return CARD_MILLI if size is None else size.gpu_milli


def find_unguarded_class(requested: DeviceRequest, declared: DeclaredNeed, view: ClusterView) -> str:
    """Return the first class whose devices cover a need like those requested, but whose selectors may fail; or ""."""
    hardware = {device_hardware(each.device) for each in find_requested_devices(requested, view) or ()}
    for each in class_offers(view.devices, view.fleet).unusable:
        size = DeviceSize(each.offer.memory_mib or 0, each.offer.compute_milli, each.offer.gpu_milli)
        if each.obstacle is ClassObstacle.SELECTORS and each.hardware <= hardware and _covers(size, declared):
            return each.device_class
    return ""


def _select_devices(
    matching: ClassDevices | None, expressions: Sequence[str], amounts: Mapping[str, QuantityText]
) -> list[PublishedDevice] | None:
    """Return the devices of a class that have some amounts of capacity and that further selectors select.

    None if a selector fails on some, or is not evaluated.
    """
    if matching is None:
        return None
    try:
        selected = [each for each in matching.devices if matches_all(expressions, each.pool.driver, each.device)]
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return None
    return [each for each in selected if has_capacity_left(each.device, amounts, NO_AMOUNTS, NO_AMOUNTS)]


def _by_profile(devices: Sequence[PublishedDevice]) -> dict[str, list[PublishedDevice]]:
    found: dict[str, list[PublishedDevice]] = {}
    for each in devices:
        found.setdefault(device_text(each.device, "profile"), []).append(each)
    found.pop("", None)
    return found


def _covers(size: DeviceSize, declared: DeclaredNeed) -> bool:
    return size.memory_mib >= (declared.memory_mib or 0) and size.compute_milli >= (declared.compute_milli or 0)


def _rank(one: DeviceAlternative, requested: DeviceRequest) -> tuple[bool, bool, str]:
    """Return the order of classes with equal devices: the requested one, then those of one profile, by name."""
    return one.device_class != requested.device_class_name, one.is_part, one.device_class


def selector_of_alternative(one: DeviceAlternative, needed_mib: int) -> str:
    """Return what tells devices of a profile, or cards of a size, from the others of their class."""
    attributes, capacity = (f"device.{kind}['{NVIDIA_DRIVER}']" for kind in ("attributes", "capacity"))
    if one.profile:
        return f"'profile' in {attributes} && {attributes}.profile == '{one.profile}'"
    least, above = (f"{capacity}.memory.compareTo(quantity('{n}Mi'))" for n in (needed_mib, one.size.memory_mib + 1))
    alone = " && !device.allowMultipleAllocations" if one.excludes_shared else ""
    return f"'memory' in {capacity} && {least} >= 0 && {above} < 0{alone}"


def write_choice(one: DeviceAlternative, written: Mapping[str, Any], needed_mib: int) -> dict[str, Any]:
    """Return a choice: what was written, of another class or with another selector."""
    name = "mig-" + one.profile.lower().replace(".", "-").replace("+", "-")
    if not one.profile:
        name = f"card-{one.size.memory_mib}mi"
    selectors = list(written.get("selectors") or ())
    if one.is_part:
        selectors.append({"cel": {"expression": selector_of_alternative(one, needed_mib)}})
    others = {key: value for key, value in written.items() if key not in ("selectors", "adminAccess")}
    choice = {"name": name, **others, "deviceClassName": one.device_class}
    return choice | ({"selectors": selectors} if selectors else {})
