"""MIG geometry: which instances still fit on a card, where the next one should start, and which repartitioning would
help.

Profiles and their memory are in `model.mig_catalog`. The memory of a card is a row of units; an instance occupies
consecutive units from one of its legal starts. Occupied units are a bit mask: bit i is unit i. The value of a card is
the thousandths of a GPU that its free legal starts can hold, averaged over the profiles in the mix, so losing the start
of a frequently requested profile costs most.

Source: NVIDIA's MIG user guide, "Supported MIG Profiles". Starts follow from two facts: an instance starts at a
multiple of its size, and its compute slices, counted from there, lie within the card's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.mig_catalog import mig_card_spec

MEDIA_SUFFIX = "+me"
"""Attribute that only one instance of a card can have."""

MigLayout = tuple[tuple[str, int], ...]
"""Instances of one card: profiles with their counts, by name."""


class MigProfile(msgspec.Struct, frozen=True):
    """One MIG profile of a card.

    Attributes:
        name: For example "3g.40gb".
        slices: Compute slices.
        starts: Legal starts, ascending.
        milli: Part of the card that it takes, in thousandths: the larger of compute and memory.
    """

    name: str
    slices: int
    memory_units: int
    starts: tuple[int, ...]
    milli: int

    def unit_mask(self, start: int) -> int:
        """Return the units that an instance occupies."""
        return ((1 << self.memory_units) - 1) << start


class MigGeometry(msgspec.Struct, frozen=True):
    """Possible partitions of a product.

    Attributes:
        profiles: Profiles, the smallest first.
    """

    units: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile | None:
        """Return the profile of a name; attributes such as "+me" do not change its placement."""
        base = name.partition("+")[0].removesuffix("-me")
        return next((profile for profile in self.profiles if profile.name == base), None)


class MigPlacement(msgspec.Struct, frozen=True, order=True):
    """An instance on a card: its profile and first memory unit."""

    profile: str
    start: int


@lru_cache(maxsize=256)
def mig_geometry(product: str) -> MigGeometry | None:
    """Return how a product can be partitioned, by its label `nvidia.com/gpu.product`; None if it is not in the
    catalog.

    >>> [(p.name, p.starts) for p in mig_geometry("NVIDIA-A30").profiles]
    [('1g.6gb', (0, 1, 2, 3)), ('2g.12gb', (0, 2)), ('4g.24gb', (0,))]
    """
    known = mig_card_spec(product)
    if known is None:
        return None
    compute, units = known.compute_slices, known.memory_units
    profiles = []
    for name, shape in known.profiles.items():
        slices, size = int(name.partition("g")[0]), shape.memory_units
        starts = tuple(start for start in range(0, units, size) if start + slices <= compute)
        milli = max(-(-CARD_MILLI * slices // compute), -(-CARD_MILLI * size // units))
        profiles.append(MigProfile(name, slices, size, starts, milli))
    return MigGeometry(units, tuple(sorted(profiles, key=lambda profile: (profile.memory_units, profile.slices))))


def occupied_units(geometry: MigGeometry, instances: frozenset[MigPlacement]) -> int:
    """Return the units that instances occupy; one of an unknown profile, or outside the card, occupies none."""
    mask = 0
    for instance in instances:
        profile = geometry.profile(instance.profile)
        inside = profile is not None and 0 <= instance.start <= geometry.units - profile.memory_units
        mask |= profile.unit_mask(instance.start) if profile and inside else 0
    return mask


def free_starts(profile: MigProfile, mask: int) -> list[int]:
    """Return the legal starts that are free."""
    return [start for start in profile.starts if not profile.unit_mask(start) & mask]


def count_instances(geometry: MigGeometry, mask: int) -> dict[str, int]:
    """Return how many more instances of each profile fit, if only that profile is created.

    Starts of one profile are multiples of its size, so they never overlap each other.
    """
    return {profile.name: len(free_starts(profile, mask)) for profile in geometry.profiles}


def profile_fits(geometry: MigGeometry, instances: frozenset[MigPlacement], name: str) -> bool:
    """Return whether one more instance can be created. Only one instance of a card may have all its media engines
    ("+me").
    """
    profile = geometry.profile(name)
    if profile is None or (MEDIA_SUFFIX in name and any(MEDIA_SUFFIX in instance.profile for instance in instances)):
        return False
    return bool(free_starts(profile, occupied_units(geometry, instances)))


@lru_cache(maxsize=64)
def legal_layouts(geometry: MigGeometry) -> frozenset[MigLayout]:
    """Return every set of instances that one card can have, as counts by profile; () is an empty card.

    >>> len(legal_layouts(mig_geometry("NVIDIA-A30")))
    10
    """
    from_unit: dict[int, set[MigLayout]] = {geometry.units: {()}}
    for unit in reversed(range(geometry.units)):
        found = set(from_unit[unit + 1])
        for profile in geometry.profiles:
            if unit in profile.starts:
                found |= {add_instance(layout, profile.name) for layout in from_unit[unit + profile.memory_units]}
        from_unit[unit] = found
    return frozenset(from_unit[0])


@lru_cache(maxsize=64)
def maximal_layouts(geometry: MigGeometry) -> tuple[MigLayout, ...]:
    """Return the legal layouts to which no instance can be added, in any arrangement of theirs."""
    every = legal_layouts(geometry)
    names = [profile.name for profile in geometry.profiles]
    return tuple(sorted(one for one in every if not any(add_instance(one, name) in every for name in names)))


@lru_cache(maxsize=1024)
def arrange_instances(geometry: MigGeometry, layout: MigLayout) -> tuple[MigPlacement, ...]:
    """Return a place for each instance of a legal layout, by start; () if the layout is not legal.

    Of several arrangements, the one with the largest instances first.

    >>> geometry = mig_geometry("NVIDIA-A30")
    >>> [(each.profile, each.start) for each in arrange_instances(geometry, (("1g.6gb", 1), ("2g.12gb", 1)))]
    [('2g.12gb', 0), ('1g.6gb', 2)]
    """
    named = [(geometry.profile(name), count) for name, count in layout]
    instances = [profile for profile, count in named if profile for _ in range(min(count, geometry.units))]
    instances.sort(key=lambda profile: (-profile.memory_units, -profile.slices))
    return tuple(sorted(_place_instances(tuple(instances), 0) or (), key=lambda placed: placed.start))


def _place_instances(instances: tuple[MigProfile, ...], mask: int) -> tuple[MigPlacement, ...] | None:
    """Return a place for each of some instances in the units that are not occupied; None if there is none."""
    if not instances:
        return ()
    profile, *rest = instances
    for start in free_starts(profile, mask):
        placed = _place_instances(tuple(rest), mask | profile.unit_mask(start))
        if placed is not None:
            return MigPlacement(profile.name, start), *placed
    return None


def add_instance(layout: MigLayout, profile: str) -> MigLayout:
    """Return the layout with one more instance."""
    counts = dict(layout)
    counts[profile] = counts.get(profile, 0) + 1
    return tuple(sorted(counts.items()))


class MigCardValue:
    """The value of cards of one geometry under a mix of profiles."""

    def __init__(self, geometry: MigGeometry, mix: Mapping[str, float]) -> None:
        """Compute the value of every mask.

        Args:
            mix: Weights by profile name; only their ratio matters. Profiles of other cards count as pods that use
                nothing here. Without any weight, all profiles count equally.
        """
        self.geometry = geometry
        weights = dict(mix) if sum(mix.values()) else {profile.name: 1.0 for profile in geometry.profiles}
        total = sum(weights.values())
        parts = [(weight / total, geometry.profile(name)) for name, weight in weights.items()]
        self._values = [
            sum(part * profile.milli * len(free_starts(profile, mask)) for part, profile in parts if profile)
            for mask in range(1 << geometry.units)
        ]

    def value_of(self, mask: int) -> float:
        """Return the thousandths that the free starts can hold, for the next requested profile."""
        return self._values[mask]

    def value_change(self, name: str, mask: int, start: int) -> float:
        """Return the change of the card's value if an instance is created; zero or negative."""
        profile = self.geometry.profile(name)
        return self._values[mask | profile.unit_mask(start)] - self._values[mask] if profile else 0.0


@lru_cache(maxsize=64)
def mig_card_value(geometry: MigGeometry, mix: tuple[tuple[str, float], ...] = ()) -> MigCardValue:
    """Return the value under a mix, computed once."""
    return MigCardValue(geometry, dict(mix))


class MigCard(msgspec.Struct, frozen=True):
    """One card in MIG mode.

    Attributes:
        used: Instances that a pod holds.
        idle: Instances without a pod.
    """

    index: int
    used: frozenset[MigPlacement]
    idle: frozenset[MigPlacement]


class RepartitionPlan(msgspec.Struct, frozen=True):
    """New layout of one card that makes an instance fit.

    Attributes:
        remove: Idle instances in the way.
        create: The instance to create, with its start.
    """

    index: int
    remove: frozenset[MigPlacement]
    create: MigPlacement


def plan_repartition(value: MigCardValue, cards: tuple[MigCard, ...], name: str) -> RepartitionPlan | None:
    """Return the new layout of one card that makes a profile fit by removing idle instances only.

    Among several, it is the one that removes least, then the one that leaves the card with the highest value.

    Returns:
        None if an idle instance of the profile exists, or no layout of one card would help.
    """
    if any(instance.profile == name for card in cards for instance in card.idle):
        return None
    plans = [plan for card in cards for plan in _repartition_candidates(value.geometry, card, name)]

    def cost(plan: RepartitionPlan) -> tuple[int, float, int, int]:
        card = next(each for each in cards if each.index == plan.index)
        left = value.value_of(occupied_units(value.geometry, card.used | {plan.create}))
        return (occupied_units(value.geometry, plan.remove).bit_count(), -left, plan.index, plan.create.start)

    return min(plans, key=cost, default=None)


def _repartition_candidates(geometry: MigGeometry, card: MigCard, name: str) -> Iterator[RepartitionPlan]:
    profile = geometry.profile(name)
    if profile is None or not profile_fits(geometry, card.used, name):
        return
    for start in free_starts(profile, occupied_units(geometry, card.used)):
        span = profile.unit_mask(start)
        idle = frozenset(each for each in card.idle if occupied_units(geometry, frozenset({each})) & span)
        yield RepartitionPlan(card.index, idle, MigPlacement(name, start))
