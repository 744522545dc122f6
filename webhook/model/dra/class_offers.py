"""Device classes of MIG devices as offers: a pod gets one by the name of an extended resource, without a claim object.

The scheduler makes the claim, from Kubernetes 1.36 on, and takes the first device of the class that is free. So a class
is an offer if every device that it can match is a MIG device of known size, and if its selectors have a value for every
device of the cluster and exclude those of other drivers: an error ends scheduling of the pod on all nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum, auto
from types import MappingProxyType
from typing import NamedTuple

from webhook.model.bounded_cache import BoundedCache, DependentCache, request_cache
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.derived_values import derived_value
from webhook.model.dra.allocator import PoolCounters
from webhook.model.dra.device_pools import DevicePools, NodePool, PoolId
from webhook.model.dra.device_selectors import SelectorRuntimeError
from webhook.model.dra.device_view import NOTHING_ALLOCATED, DeviceView, PoolAllocations
from webhook.model.dra.extended_resources import ClassByResource
from webhook.model.dra.gpu_devices import NVIDIA_DRIVER, text_attribute, with_hyphens
from webhook.model.dra.pool_kinds import SIZE_KEYS
from webhook.model.dra.published_devices import PublishedDevice, published_devices
from webhook.model.dra.resource_slices import Device
from webhook.model.dra.selector_advice import DeviceKey
from webhook.model.dra.selector_cache import keys_told_apart, select_device
from webhook.model.enums import GpuForm, IsolationLevel
from webhook.model.fleet import DEVICES_BY_NAME_MINOR, Fleet
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX, WHOLE_GPU, parse_gpu_resource
from webhook.model.mig_catalog import MigProfileSpec, mig_card_spec, profile_milli
from webhook.model.node_masks import union_masks
from webhook.model.objects import HARD_EFFECTS
from webhook.model.offers import AllowedShares, GpuOffer, NodeHardware, is_allowed_share
from webhook.model.quantity import parse_mebibytes
from webhook.model.resource_names import is_container_resource

MAX_COUNTS = 8192
"""Nodes on which free devices of a class stay counted."""

HARDWARE_ATTRIBUTES = ("driverVersion", "cudaDriverVersion", "cudaComputeCapability", "productName")
MAX_KNOWN_CLASSES = 64
"""Device classes that are looked at, the first by name."""

MAX_RULES = 64
"""Rules of policies for which the offers in order of preference are kept."""

OTHER_DRIVER, EMPTY_DEVICE = "driver.example.com", Device()
"""A device of another driver: it may have none of NVIDIA's attributes."""


class ClassDevices(NamedTuple):
    """The devices that a class can match, one of each kind.

    Attributes:
        expressions: The selectors of the class.
        keys: What tells the kinds apart; None if that is more than keys.
        devices: The devices.
    """

    expressions: tuple[str, ...]
    keys: tuple[DeviceKey, ...] | None
    devices: tuple[PublishedDevice, ...]


class NodeCount(NamedTuple):
    """The free devices of a class on a node, and what was allocated of its pools then."""

    allocated: tuple[tuple[PoolId, PoolAllocations], ...]
    free: int


class ClassOffer(NamedTuple):
    """A device class that pods can request instead of a whole GPU.

    Attributes:
        offer: It as an offer; its nodes are those that publish such devices.
        matching: Its devices.
        most_per_card: The most of its devices that share counters, and so may go with one other device.
        hardware: Drivers and products of its devices.
        counts: Its free devices by node, as far as they were counted.
    """

    offer: GpuOffer
    matching: ClassDevices
    most_per_card: int
    hardware: frozenset[NodeHardware]
    counts: BoundedCache[int, NodeCount]


class ClassObstacle(IntEnum):
    """Why pods cannot get the MIG devices of a class by its name."""

    SELECTORS = auto()
    """A selector fails on a device of this cluster, or would on one of another driver."""
    DEVICE_PLUGIN = auto()
    """All nodes that publish the devices also have a device plugin for GPUs."""
    KUBELET = auto()
    """The kubelets of all nodes that publish the devices are older than 1.36."""
    MIXED = auto()
    """The class has other devices too, and pods get any of them."""


class UnusableDevices(NamedTuple):
    """The devices of one MIG profile that a class has, and why pods cannot get them by its name.

    Attributes:
        offer: They, as if they were an offer of their own.
        nodes: The nodes that publish them.
        hardware: Their drivers and products.
    """

    device_class: str
    obstacle: ClassObstacle
    offer: GpuOffer
    nodes: int
    hardware: frozenset[NodeHardware]


class ClassOffers(NamedTuple):
    """The offers of device classes.

    Attributes:
        by_resource: Those by the extended resource, the smallest share of a card first.
        unusable: Devices that are part of no offer, or not of one of their size; likewise.
        matching: The devices of each class; None of a class whose selectors fail, or are not evaluated here.
        whole_gpus: Drivers and products of the devices that serve `nvidia.com/gpu`.
        with_others: These and offers of nodes, by what a policy allows; kept for the last offers of nodes.
    """

    by_resource: Mapping[str, ClassOffer] = MappingProxyType({})
    unusable: Sequence[UnusableDevices] = ()
    matching: Mapping[str, ClassDevices | None] = MappingProxyType({})
    whole_gpus: frozenset[NodeHardware] = frozenset()
    with_others: DependentCache[AllowedShares, tuple[GpuOffer, ...]] = DependentCache(MAX_RULES)

    def allowed_with(self, others: tuple[GpuOffer, ...], allowed: AllowedShares) -> tuple[GpuOffer, ...]:
        """Return offers of nodes that a policy allows, and those of classes, in the order of `Fleet.offers_by_form`."""
        known = self.with_others.values_for(others)
        if (found := known.get(allowed)) is None:
            usable = [each.offer for each in self.by_resource.values() if each.offer.nodes]
            own = [offer for offer in usable if is_allowed_share(offer, allowed)]
            in_order = sorted((*others, *own), key=lambda one: (allowed[0].index(one.form), one.gpu_milli))
            found = known.store(allowed, tuple(in_order))
        return found

    def hardware_of(self, offer: GpuOffer) -> frozenset[NodeHardware]:
        """Return drivers and products of the devices of an offer; none if it is not one of a class."""
        found = self.by_resource.get(offer.resource)
        return found.hardware if found is not None else frozenset()


NO_CLASS_OFFERS = ClassOffers()


@derived_value()
def _known_offers(_pools: DevicePools, _fleet: Fleet) -> DependentCache[None, ClassOffers]:
    return DependentCache(1)


def class_offers(view: DeviceView, fleet: Fleet) -> ClassOffers:
    """Return the offers of device classes. Remembered until slices, nodes or classes change."""
    known = _known_offers(view.pools, fleet).values_for(view.classes)
    if (found := known.get(None)) is None:
        found = known.store(None, _find_offers(view, fleet))
    return found


def _find_offers(view: DeviceView, fleet: Fleet) -> ClassOffers:
    names = sorted(view.classes)[:MAX_KNOWN_CLASSES]
    matching = {name: _devices_of_class(name, view, fleet) for name in names}
    found: dict[str, ClassOffer] = {}
    unusable: list[UnusableDevices] = []
    for name, some in matching.items():
        resource = _name_for_pods(name, view.class_by_resource, fleet)
        is_guarded = some is not None and excludes_other_drivers(some.expressions)
        if some is not None and is_guarded and resource and (one := _offer_of_class(resource, some, fleet)) is not None:
            found[resource] = one
        devices = some.devices if some is not None else _devices_despite_errors(name, view, fleet)
        unusable += _unusable_devices(name, devices, fleet, is_guarded=is_guarded)
    in_order = sorted(found.items(), key=lambda item: (item[1].offer.gpu_milli, item[0]))
    unusable.sort(key=lambda each: (each.offer.gpu_milli, each.obstacle, each.device_class))
    whole = matching.get(view.class_by_resource.get(WHOLE_GPU, ""))
    hardware = _hardware_of(whole.devices if whole else ())
    return ClassOffers(dict(in_order), unusable, matching, hardware, DependentCache(MAX_RULES))


def _devices_of_class(name: str, view: DeviceView, fleet: Fleet) -> ClassDevices | None:
    expressions = _expressions_of_class(name, view)
    try:
        keys = _keys_of_kinds(expressions)
        kinds = published_devices(view.pools, fleet, keys).kinds
        selected = [each for each in kinds if matches_all(expressions, each.pool.driver, each.device)]
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return None
    return ClassDevices(expressions, keys, tuple(selected))


def _expressions_of_class(name: str, view: DeviceView) -> tuple[str, ...]:
    return tuple([selector.cel.expression for selector in view.classes[name].selectors])


def _keys_of_kinds(expressions: Sequence[str]) -> tuple[DeviceKey, ...] | None:
    """Return the keys that selectors, and sizes of devices, distinguish; None if that is more than keys."""
    read = keys_told_apart(expressions)
    return None if read is None else tuple(sorted({*read, *SIZE_KEYS}))


def _devices_despite_errors(name: str, view: DeviceView, fleet: Fleet) -> Sequence[PublishedDevice]:
    """Return the devices that a class selects, without those on which a selector fails."""
    expressions, found = _expressions_of_class(name, view), list[PublishedDevice]()
    try:
        for each in published_devices(view.pools, fleet, _keys_of_kinds(expressions)).kinds:
            with suppress(SelectorRuntimeError):
                if matches_all(expressions, each.pool.driver, each.device):
                    found.append(each)
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return ()
    return found


def _unusable_devices(
    device_class: str, devices: Sequence[PublishedDevice], fleet: Fleet, *, is_guarded: bool
) -> Iterator[UnusableDevices]:
    """Yield the MIG devices of a class, by profile, that pods cannot get by its name."""
    by_profile: dict[str, list[PublishedDevice]] = {}
    for each in devices:
        by_profile.setdefault(device_text(each.device, "profile"), []).append(each)
    for some in by_profile.values():
        offer = _as_offer(device_class, some, fleet)
        nodes = union_masks(each.nodes for each in some)
        obstacle = (
            ClassObstacle.SELECTORS if not is_guarded
            else ClassObstacle.MIXED if len(by_profile) > 1
            else ClassObstacle.KUBELET if not nodes & fleet.nodes_with_kubelet(DEVICES_BY_NAME_MINOR)
            else ClassObstacle.DEVICE_PLUGIN if not nodes & ~fleet.gpu_nodes
            else None
        )  # fmt: skip
        if offer is not None and obstacle is not None:
            yield UnusableDevices(device_class, obstacle, offer, nodes, _hardware_of(some))


def matches_all(expressions: Sequence[str], driver: str, device: Device) -> bool:
    """Return whether all of some selectors select a device.

    Raises:
        SelectorRuntimeError: One has no value for it, or does not compile.
        UnmodeledExpressionError: One is not evaluated here.
    """
    return all(select_device(expression, driver, device) for expression in expressions)


def excludes_other_drivers(expressions: Sequence[str]) -> bool:
    """Return whether selectors exclude a device of another driver without an error.

    Such devices may join the cluster later: an error then ends scheduling of the pod on all nodes.
    """
    try:
        return not matches_all(expressions, OTHER_DRIVER, EMPTY_DEVICE)
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return False


def _name_for_pods(name: str, classes: ClassByResource, fleet: Fleet) -> str:
    """Return the extended resource by which pods get devices of a class alone; "" without one.

    That is its own name if it is one of a MIG profile, because policies and quotas know these, and else the implicit
    one. Nodes that advertise a name themselves do not serve it by the class.
    """
    own = (served for served, of in classes.items() if of == name and _is_profile(served))
    served_names = (*own, DEVICE_CLASS_PREFIX + name)
    usable = (one for one in served_names if one not in fleet.extended_resources and is_container_resource(one))
    return next((one for one in usable if classes.get(one) == name), "")


def _is_profile(resource: str) -> bool:
    parsed = parse_gpu_resource(resource)
    return parsed is not None and parsed.mig and not parsed.shared


def _offer_of_class(resource: str, matching: ClassDevices, fleet: Fleet) -> ClassOffer | None:
    if (offer := _as_offer(resource, matching.devices, fleet)) is None:
        return None
    per_set = Counter(
        (each.pool, used.counter_set) for each in matching.devices for used in each.device.consumes_counters
    )
    most, hardware = max(per_set.values(), default=1), _hardware_of(matching.devices)
    return ClassOffer(offer, matching, most, hardware, BoundedCache(MAX_COUNTS))


def _as_offer(resource: str, devices: Sequence[PublishedDevice], fleet: Fleet) -> GpuOffer | None:
    """Return devices as an offer: as small as the smallest of them, as large a part of a card as the largest."""
    if (size := size_of_all(devices)) is None:
        return None
    hardware = _hardware_of(devices)
    products, profiles = ({device_text(each.device, name) for each in devices} for name in ("productName", "profile"))
    return GpuOffer(
        resource=resource,
        form=GpuForm.MIG,
        product=with_hyphens(products.pop()) if len(products) == 1 else "",
        profile=profiles.pop() if len(profiles) == 1 else "",
        memory_mib=size.memory_mib,
        compute_milli=size.compute_milli,
        gpu_milli=size.gpu_milli,
        isolation=IsolationLevel.HARDWARE,
        replicas=1,
        selector=(),
        taints=(),
        nodes=union_masks(each.nodes for each in devices)
        & fleet.nodes_with_kubelet(DEVICES_BY_NAME_MINOR)
        & ~fleet.gpu_nodes,
        capacity=0,
        compute_capability=min(filter(None, (each.compute_capability for each in hardware)), default=None),
        driver=min((each.driver for each in hardware), default=()),
        cuda=min((each.cuda for each in hardware), default=()),
    )


class DeviceSize(NamedTuple):
    """Memory of a device, and its parts of a card in thousandths, as of offers."""

    memory_mib: int
    compute_milli: int
    gpu_milli: int


def device_size(each: PublishedDevice) -> DeviceSize | None:
    """Return the size of a MIG device that one pod can have; None of any other device, and where it is not known."""
    device, memory = each.device, each.device.capacity.get("memory")
    card = mig_card_spec(with_hyphens(device_text(device, "productName")))
    profile = device_text(device, "profile").partition("+")[0].removesuffix("-me")
    spec: MigProfileSpec | None = card.profiles.get(profile) if card is not None else None
    is_partition = each.pool.driver == NVIDIA_DRIVER and device_text(device, "type") == "mig" and each.nodes
    is_plain = not (device.allow_multiple_allocations or device.binding_conditions)
    if card is None or spec is None or memory is None or not (is_partition and is_plain):
        return None
    slices = int(profile.partition("g")[0])
    compute = 1000 * slices // card.compute_slices
    return DeviceSize(parse_mebibytes(memory.value), compute, profile_milli(card, spec, slices))


def size_of_all(devices: Sequence[PublishedDevice]) -> DeviceSize | None:
    """Return the least memory and compute, and the largest part of a card, of some devices; None if one is unknown."""
    sizes = [device_size(each) for each in devices]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return None
    return DeviceSize(
        min(size.memory_mib for size in known),
        min(size.compute_milli for size in known),
        max(size.gpu_milli for size in known),
    )


def _hardware_of(devices: Sequence[PublishedDevice]) -> frozenset[NodeHardware]:
    return frozenset(map(device_hardware, (each.device for each in devices)))


def device_hardware(device: Device) -> NodeHardware:
    """Return driver and product of a device."""
    return _parse_hardware(*[device_text(device, name) for name in HARDWARE_ATTRIBUTES])


@request_cache(256)
def _parse_hardware(driver: str, cuda: str, capability: str, product: str) -> NodeHardware:
    """Parse the attributes of a device. Most devices of a cluster have equal ones."""
    parts = _parse_version(capability)
    of_card = (parts[0], parts[1]) if len(parts) > 1 else None
    return NodeHardware(_parse_version(driver), _parse_version(cuda)[:2], of_card, with_hyphens(product).lower())


def device_text(device: Device, name: str) -> str:
    """Return an attribute of NVIDIA's driver, a text or a version; "" without it."""
    return text_attribute(NVIDIA_DRIVER, device, name)


def _parse_version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def devices_lost(offered: ClassOffer, device_class: str, offers: ClassOffers) -> int:
    """Return how many devices of an offered class are no longer free, at most, if a pod gets one of another class.

    Pods that request an offered class alone take its devices in the order in which they are counted.
    """
    other = offers.matching.get(device_class)
    if other is offered.matching:
        return 1
    if offered.most_per_card > 1 or other is None or not _knows_all(offered.matching.keys, other.keys):
        return offered.most_per_card
    some = offered.matching.devices
    return int(any(matches_all(other.expressions, each.pool.driver, each.device) for each in some))


def _knows_all(keys: tuple[DeviceKey, ...] | None, others: tuple[DeviceKey, ...] | None) -> bool:
    """Return whether devices that some keys cannot tell apart are alike in others."""
    return keys is None or (others is not None and set(keys) >= set(others))


def known_free_devices(offered: ClassOffer, node: int, view: DeviceView) -> int | None:
    """Return the free devices of a class on a node as last counted; None if its allocations have changed since."""
    found, allocated = offered.counts.get(node), view.allocated
    if found is None or any(allocated.get(pool, NOTHING_ALLOCATED) is not one for pool, one in found.allocated):
        return None
    return found.free


def count_free_devices(offered: ClassOffer, node: int, view: DeviceView) -> int:
    """Return how many pods could get a device of a class on a node, one after another."""
    pools = view.pools.pools_of_node(node)
    free = sum(1 for pool in pools for _ in _free_devices(offered, pool, view))
    allocated = tuple([(pool.id, view.allocated.get(pool.id, NOTHING_ALLOCATED)) for pool in pools])
    offered.counts.store(node, NodeCount(allocated, free))
    return free


def _free_devices(offered: ClassOffer, pool: NodePool, view: DeviceView) -> Iterator[Device]:
    if pool.incomplete or pool.invalid or (pool.counters and pool.id.pool in view.pools.shared_counter_names):
        return
    allocated = view.allocated.get(pool.id, NOTHING_ALLOCATED)
    counters = PoolCounters(pool, allocated) if pool.counters else None
    for each in pool.devices:
        device = each.device
        if (
            each.usable
            and device.name not in allocated.whole
            and not any(taint.effect in HARD_EFFECTS for taint in device.taints)
            and matches_all(offered.matching.expressions, pool.id.driver, device)
            and (counters is None or not device.consumes_counters or counters.take(device))
        ):
            yield device
