"""GPUs in ResourceSlices: whole cards, partitions that exist, those that could be made, and cards that claims share.

Each driver names its attributes in its own way. Devices of other drivers are no GPUs as far as is known.
Source: kubernetes-sigs/dra-driver-nvidia-gpu 0.5 and ROCm/k8s-gpu-dra-driver, the devices that they publish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.model.dra.allocator import ChosenDevice, NodeAllocation, PoolCounters
from webhook.model.dra.constraints import find_attribute
from webhook.model.dra.device_pools import CounterValues, DeviceId, NodePool, PoolId
from webhook.model.dra.device_view import PoolAllocations
from webhook.model.dra.resource_slices import Device
from webhook.model.gpu_resources import CARD_MILLI, MIG_PREFIX, WHOLE_GPU
from webhook.model.mig_catalog import mig_card_spec, mig_profile_spec, profile_milli, profiles_of_size
from webhook.model.node_labels import card_memory_mib
from webhook.model.objects import HARD_EFFECTS
from webhook.model.pods import QuantityText
from webhook.model.quantity import parse_mebibytes, parse_nano, parse_whole_number

NVIDIA_DRIVER = "gpu.nvidia.com"

UNKNOWN_PROFILE = "unknown"
"""In the name of a part's resource, where neither its driver nor its memory says what it is."""

_PART_MARK = "-mig-"
"""In names of MIG devices, what follows the name that their card has as a device."""


class GpuDriver(NamedTuple):
    """The names that a driver gives to facts about GPUs.

    Attributes:
        whole: Type of a card.
        partition: Type of a part of a card.
        profile: Attribute with the size of a part.
        card: Attribute that identifies a card.
        parent: Attribute of a part that identifies its card.
        resource: Resource under which the device plugin advertises a card.
        part_prefix: What precedes the size of a part in the name of its resource.
    """

    whole: str
    partition: str
    profile: str
    card: str
    parent: str
    resource: str
    part_prefix: str


GPU_DRIVERS: Mapping[str, GpuDriver] = {
    NVIDIA_DRIVER: GpuDriver("gpu", "mig", "profile", "uuid", "parentUUID", WHOLE_GPU, MIG_PREFIX),
    "gpu.amd.com": GpuDriver(
        *("amdgpu", "amdgpu-partition", "partitionProfile"),
        card="resource.kubernetes.io/pciBusID",
        parent="resource.kubernetes.io/pciBusID",
        resource="amd.com/gpu",
        part_prefix="amd.com/",
    ),
}


class PublishedGpu(NamedTuple):
    """A GPU, or a part of one, that claims can get.

    Attributes:
        id: The device.
        card: Identity of the card: the device itself where the driver names none.
        product: Product of the card, with hyphens as in node labels; "" if unknown.
        is_partition: Whether it is a part of a card, by its type.
        profile: Size of a part as published, for example "1g.10gb"; "" for a whole card, or if it is not published.
        possible_profiles: Profiles that a part may have: the published one, or those of its memory; none if unknown.
        memory_mib: Memory in MiB; None if unknown.
        milli: Thousandths of the card; the most that it may be of a part.
        tainted: True if a taint keeps claims from it.
    """

    id: DeviceId
    card: str
    product: str
    is_partition: bool
    profile: str
    possible_profiles: tuple[str, ...]
    memory_mib: int | None
    milli: int
    tainted: bool


class GpuPart(NamedTuple):
    """The part of a card that a device is.

    Attributes:
        product: Product of the card, with hyphens; "" if unknown.
        milli: Thousandths of the card.
        device: The device.
        card: What parts of one card have in common, in their pool.
        resources: Resources under which a device plugin may advertise it.
        memory_mib: Its memory in MiB; None if unknown.
        card_memory_mib: Memory of the largest device of its card; None if unknown.
        profile: Size of a part as published; "" for a whole card, or if it is not published.
        is_partition: Whether it is a part of a card, by its type.
    """

    product: str
    milli: int
    device: Device
    card: str = ""
    resources: tuple[str, ...] = (WHOLE_GPU,)
    memory_mib: int | None = None
    card_memory_mib: int | None = None
    profile: str = ""
    is_partition: bool = False


class CardUsage(NamedTuple):
    """A card, and what of it is allocated.

    Attributes:
        devices: Names of the devices that it is published as: itself, its parts, or both.
        name: Its own name as a device, also if only its parts are published; "" if their names do not have it.
        product: Its product; "" if unknown.
        memory_mib: Memory of the whole card in MiB; None if unknown.
        allocated_milli: Thousandths that claims have.
        free_milli: Thousandths that claims can still get.
        tainted_milli: Thousandths of devices that nobody has, and that taints keep claims from.
        fits: Free parts by profile: how many of that profile alone could still be allocated.
        unknown_milli: Thousandths that are allocated or free; 0 unless claims may not be read.
    """

    devices: tuple[str, ...]
    name: str
    product: str
    memory_mib: int | None
    allocated_milli: int
    free_milli: int
    tainted_milli: int
    fits: Mapping[str, int]
    unknown_milli: int = 0

    def with_unknown_claims(self) -> CardUsage:
        """Return the card if it is not known what claims have of it."""
        unknown = self.allocated_milli + self.free_milli
        return self._replace(allocated_milli=0, free_milli=0, fits={}, unknown_milli=unknown)


def gpus_of_pool(pool: NodePool) -> dict[str, PublishedGpu]:
    """Return the GPUs of a pool by the name of the device, in published order."""
    driver = GPU_DRIVERS.get(pool.id.driver)
    if driver is None:
        return {}
    devices = [each.device for each in pool.devices if each.usable]
    siblings = Counter(_card_of(pool, device) for device in devices if _is_partition(driver, pool, device))
    found = {}
    for device in devices:
        if _type_of(pool, device) in (driver.whole, driver.partition):
            found[device.name] = _read_gpu(driver, pool, device, siblings[_card_of(pool, device)])
    return found


def gpu_parts_of_pool(pool: NodePool) -> dict[str, GpuPart]:
    """Return the parts of cards in a pool, by the name of the device."""
    devices, gpus = {each.device.name: each.device for each in pool.devices}, gpus_of_pool(pool)
    driver = GPU_DRIVERS.get(pool.id.driver)
    if driver is None:
        return {}
    largest: dict[str, int] = {}
    for gpu in gpus.values():
        if gpu.memory_mib is not None:
            largest[gpu.card] = max(largest.get(gpu.card, 0), gpu.memory_mib)
    return {
        name: GpuPart(
            *(gpu.product, gpu.milli, devices[name], gpu.card, _resources_of_gpu(driver, gpu), gpu.memory_mib),
            largest.get(gpu.card),
            gpu.profile,
            gpu.is_partition,
        )
        for name, gpu in gpus.items()
    }


def _resources_of_gpu(driver: GpuDriver, gpu: PublishedGpu) -> tuple[str, ...]:
    """Return the names that a GPU's resource may have; in names of MIG devices a dot replaces the plus sign."""
    if not gpu.is_partition:
        return (driver.resource,)
    profiles = gpu.possible_profiles or (UNKNOWN_PROFILE,)
    return tuple([driver.part_prefix + profile.replace("+", ".") for profile in profiles])


def _read_gpu(driver: GpuDriver, pool: NodePool, device: Device, siblings: int) -> PublishedGpu:
    product = with_hyphens(_text(pool, device, "productName"))
    partition = _is_partition(driver, pool, device)
    profile = _text(pool, device, driver.profile) if partition else ""
    possible = () if not partition else (profile,) if profile else _profiles_by_size(pool.id.driver, product, device)
    return PublishedGpu(
        DeviceId(*pool.id, device.name),
        _card_of(pool, device),
        product,
        partition,
        profile,
        possible,
        _capacity_of(device, "memory", parse_mebibytes),
        _share_of_card(product, possible, device, pool.counters, siblings) if partition else CARD_MILLI,
        any(taint.effect in HARD_EFFECTS for taint in device.taints),
    )


def _profiles_by_size(driver: str, product: str, device: Device) -> tuple[str, ...]:
    """Return the profiles that a part may have by its capacity; none if unknown, and of any driver but NVIDIA's."""
    memory_mib = _capacity_of(device, "memory", parse_mebibytes)
    if driver != NVIDIA_DRIVER or memory_mib is None:
        return ()
    return profiles_of_size(product, memory_mib, _capacity_of(device, "multiprocessors", parse_whole_number))


def _capacity_of(device: Device, name: str, parse: Callable[[QuantityText], int | None]) -> int | None:
    capacity = device.capacity.get(name)
    return parse(capacity.value) if capacity is not None else None


def _share_of_card(
    product: str, profiles: Sequence[str], device: Device, counters: CounterValues, siblings: int
) -> int:
    """Return the part of a card: by the catalog of MIG profiles, by its counters, or one of equal parts."""
    card = mig_card_spec(product)
    specs = [(profile, mig_profile_spec(product, profile)) for profile in profiles]
    of_catalog = [profile_milli(card, spec, int(name.partition("g")[0])) for name, spec in specs if card and spec]
    if of_catalog:
        return max(of_catalog)
    shares = [
        -(-CARD_MILLI * parse_nano(counter.value) // counters[each.counter_set][name])
        for each in device.consumes_counters
        for name, counter in each.counters.items()
        if name == "memory" and counters[each.counter_set][name] > 0
    ]
    return min(CARD_MILLI, max(shares, default=-(-CARD_MILLI // siblings)))


def _type_of(pool: NodePool, device: Device) -> str:
    return _text(pool, device, "type")


def _is_partition(driver: GpuDriver, pool: NodePool, device: Device) -> bool:
    return _type_of(pool, device) == driver.partition


def _card_of(pool: NodePool, device: Device) -> str:
    """Return the identity of a device's card: devices that use up the same counters are parts of one."""
    if device.consumes_counters:
        return device.consumes_counters[0].counter_set
    return card_identity(pool, device) or device.name


def card_identity(pool: NodePool, device: Device) -> str:
    """Return the UUID or PCI address of the card of a GPU; "" if its driver does not publish it."""
    driver = GPU_DRIVERS[pool.id.driver]
    return _text(pool, device, driver.parent if _is_partition(driver, pool, device) else driver.card)


def _text(pool: NodePool, device: Device, name: str) -> str:
    return text_attribute(pool.id.driver, device, name)


def text_attribute(driver: str, device: Device, name: str) -> str:
    """Return an attribute of a device, a text or a version; "" without it. A name without domain is the driver's."""
    attribute = find_attribute(name if "/" in name else f"{driver}/{name}", driver, device)
    if attribute is None:
        return ""
    return attribute.string_value or attribute.version_value or ""


def with_hyphens(product: str) -> str:
    """Return a product as node labels write it."""
    return product.replace(" ", "-").replace("_", "-")


def cards_of_pool(pool: NodePool, allocated: PoolAllocations) -> Iterator[CardUsage]:
    """Yield the cards of a pool, in published order. One that is incomplete or invalid has none."""
    by_card: dict[str, list[PublishedGpu]] = {}
    for gpu in gpus_of_pool(pool).values():
        by_card.setdefault(gpu.card, []).append(gpu)
    devices, counters = {each.device.name: each.device for each in pool.devices}, PoolCounters(pool, allocated)
    for gpus in by_card.values():
        yield _card_usage(counters, gpus, devices, allocated)


def _card_usage(
    counters: PoolCounters, gpus: Sequence[PublishedGpu], devices: Mapping[str, Device], allocated: PoolAllocations
) -> CardUsage:
    taken = [_allocated_milli(gpu, devices[gpu.id.device], allocated) for gpu in gpus]
    used = min(CARD_MILLI, sum(taken))
    with_counters = any(devices[gpu.id.device].consumes_counters for gpu in gpus)
    fits = {} if used >= CARD_MILLI else _count_fits(counters, gpus, devices, allocated)
    if with_counters:
        left = CARD_MILLI - used if fits else 0
        blocked = CARD_MILLI - used if not fits and any(gpu.tainted for gpu in gpus) else 0
    else:
        left = sum(gpu.milli - milli for gpu, milli in zip(gpus, taken, strict=True) if not gpu.tainted)
        blocked = sum(gpu.milli - milli for gpu, milli in zip(gpus, taken, strict=True) if gpu.tainted)
    return CardUsage(
        devices=tuple([gpu.id.device for gpu in gpus]),
        name=_card_name(gpus),
        product=gpus[0].product,
        memory_mib=_card_memory_mib(gpus),
        allocated_milli=used,
        free_milli=min(left, CARD_MILLI - used),
        tainted_milli=blocked,
        fits={profile: count for profile, count in fits.items() if profile},
    )


def _card_name(gpus: Sequence[PublishedGpu]) -> str:
    """Return the name that a card has as a device, or that the names of its parts start with; "" without one."""
    whole = [gpu.id.device for gpu in gpus if not gpu.is_partition]
    if whole:
        return whole[0]
    starts = {gpu.id.device.rpartition(_PART_MARK)[0] for gpu in gpus}  # "" for a name without the mark
    return starts.pop() if len(starts) == 1 else ""


def _card_memory_mib(gpus: Sequence[PublishedGpu]) -> int | None:
    """Return the memory of a whole card: as published, by its product, or that of its parts."""
    whole = max((gpu.memory_mib or 0 for gpu in gpus if not gpu.is_partition), default=0)
    known = whole or card_memory_mib(gpus[0].product)
    if known or gpus[0].id.driver == NVIDIA_DRIVER:  # whose MIG instances need not take up all of a card
        return known
    return sum(gpu.memory_mib or 0 for gpu in gpus) or None


def chosen_milli(found: NodeAllocation, pools: Iterable[NodePool]) -> int:
    """Return the thousandths of GPUs that claims would get."""
    by_id = {pool.id: pool for pool in pools}
    chosen = [each for some in found.claims for each in some if not each.admin_access]
    return sum(_device_milli(each, by_id[PoolId(each.device.driver, each.device.pool)]) for each in chosen)


def _device_milli(chosen: ChosenDevice, pool: NodePool) -> int:
    name, gpu = chosen.device.device, gpus_of_pool(pool).get(chosen.device.device)
    if gpu is None:
        return 0
    device = next(each.device for each in pool.devices if each.device.name == name)
    if chosen.consumed is None:
        return _allocated_milli(gpu, device, PoolAllocations(frozenset({name})))
    return _allocated_milli(gpu, device, PoolAllocations(shared=frozenset({name}), consumed={name: chosen.consumed}))


def _allocated_milli(gpu: PublishedGpu, device: Device, allocated: PoolAllocations) -> int:
    """Return the thousandths of a card that claims have through a device."""
    name = gpu.id.device
    if name in allocated.whole:
        return gpu.milli
    if name not in allocated.shared:
        return 0
    return share_milli(gpu.milli, device, allocated.consumed.get(name, {}))


def share_milli(milli: int, device: Device, consumed: Mapping[str, int]) -> int:
    """Return the thousandths of a card that a share of a device has, rounded up: the largest part of a capacity.

    Args:
        milli: Thousandths that the device has.
        device: The device.
        consumed: Nano-units of its capacities that the share consumes.
    """
    shares = [
        -(-milli * min(consumed.get(each, 0), most) // most)
        for each, capacity in device.capacity.items()
        if (most := parse_nano(capacity.value)) > 0
    ]
    return max(shares, default=milli)


def _count_fits(
    counters: PoolCounters, gpus: Iterable[PublishedGpu], devices: Mapping[str, Device], allocated: PoolAllocations
) -> Counter[str]:
    """Return how many further devices of each profile fit, each profile alone; the counters are left as they were."""
    by_profile: dict[str, list[Device]] = {}
    for gpu in gpus:
        if not gpu.tainted and gpu.id.device not in allocated.whole:
            by_profile.setdefault(gpu.profile, []).append(devices[gpu.id.device])
    fits: Counter[str] = Counter()
    for profile, some in by_profile.items():
        counted = [device for device in some if device.consumes_counters and counters.take(device)]
        fits[profile] = len(counted) + sum(not device.consumes_counters for device in some)
        for device in counted:
            counters.give_back(device)
    return +fits
