"""MIG: what a card can still be cut into, where the next instance should start, and whether a new cut would help.

A card's memory is a row of units; an instance takes some in a row, from one of its legal starts. What is taken
is a bit mask over the units: bit i is unit i. A card is worth the thousandths that its free legal starts can hold,
averaged over the profiles as the mix asks for them: one that loses the start of a wanted profile loses most.

Source: NVIDIA's MIG user guide, "Supported MIG Profiles". Starts follow from two facts: an instance starts at a
multiple of its size, and its compute slices, counted from there, lie inside the card's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from webhook.model.mig_catalogue import mig_card_spec

MEDIA_SUFFIX = "+me"
"""The attribute that only one instance of a card can have."""

CARD_MILLI = 1000


class MigProfile(msgspec.Struct, frozen=True):
    """One way to cut a piece off a card.

    Attributes:
        name: For example "3g.40gb".
        slices: Compute slices.
        size: Units of memory.
        starts: Legal starts, rising.
        milli: The part of the card it takes from others, in thousandths: the larger of compute and memory.
    """

    name: str
    slices: int
    memory_units: int
    starts: tuple[int, ...]
    milli: int

    def unit_mask(self, start: int) -> int:
        """The units it takes."""
        return ((1 << self.memory_units) - 1) << start


class MigGeometry(msgspec.Struct, frozen=True):
    """How a product can be cut.

    Attributes:
        units: Units of memory.
        profiles: The smallest first.
    """

    units: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile | None:
        """The profile of a name; attributes such as "+me" change nothing about its place."""
        base = name.partition("+")[0].removesuffix("-me")
        return next((profile for profile in self.profiles if profile.name == base), None)


class MigPlacement(msgspec.Struct, frozen=True, order=True):
    """A piece of a card."""

    profile: str
    start: int


@lru_cache(maxsize=256)
def mig_geometry(product: str) -> MigGeometry | None:
    """How a product can be cut, by its `nvidia.com/gpu.product`; None where the catalogue does not know it.

    >>> [(p.name, p.starts) for p in geometry("NVIDIA-A30").profiles]
    [('1g.6gb', (0, 1, 2, 3)), ('2g.12gb', (0, 2)), ('4g.24gb', (0,))]
    """
    known = mig_card_spec(product)
    if known is None:
        return None
    profiles = [
        _mig_profile(name, shape.memory_units, known.compute_slices, known.memory_units)
        for name, shape in known.profiles.items()
    ]
    return MigGeometry(
        known.memory_units, tuple(sorted(profiles, key=lambda profile: (profile.memory_units, profile.slices)))
    )


def _mig_profile(name: str, size: int, compute: int, units: int) -> MigProfile:
    slices = int(name.partition("g")[0])
    starts = tuple(start for start in range(0, units, size) if start + slices <= compute)
    milli = max(-(-CARD_MILLI * slices // compute), -(-CARD_MILLI * size // units))
    return MigProfile(name, slices, size, starts, milli)


def occupied_units(of: MigGeometry, instances: frozenset[MigPlacement]) -> int:
    """The units that instances take; one of an unknown profile, or outside the card, takes nothing."""
    mask = 0
    for instance in instances:
        profile = of.profile(instance.profile)
        inside = profile is not None and 0 <= instance.start <= of.units - profile.memory_units
        mask |= profile.unit_mask(instance.start) if profile and inside else 0
    return mask


def free_starts(profile: MigProfile, mask: int) -> list[int]:
    """The legal starts that are free."""
    return [start for start in profile.starts if not profile.unit_mask(start) & mask]


def all_layouts(of: MigGeometry) -> set[frozenset[MigPlacement]]:
    """Every way to cut a card, the uncut one included."""
    found = {frozenset[MigPlacement]()}
    edge = list(found)
    while edge:
        layout = edge.pop()
        for larger in _larger_layouts(of, layout):
            if larger not in found:
                found.add(larger)
                edge.append(larger)
    return found


def _larger_layouts(of: MigGeometry, layout: frozenset[MigPlacement]) -> Iterator[frozenset[MigPlacement]]:
    mask = occupied_units(of, layout)
    for profile in of.profiles:
        for start in free_starts(profile, mask):
            yield layout | {MigPlacement(profile.name, start)}


def count_instances(of: MigGeometry, mask: int) -> dict[str, int]:
    """How many instances of each profile still fit beside what is taken, if only that profile is cut.

    Starts of one profile are multiples of its size, so they never overlap each other.
    """
    return {profile.name: len(free_starts(profile, mask)) for profile in of.profiles}


def profile_fits(of: MigGeometry, instances: frozenset[MigPlacement], name: str) -> bool:
    """Can one more instance be cut? Only one of a card may have all the media engines of a "+me"."""
    profile = of.profile(name)
    if profile is None or (MEDIA_SUFFIX in name and any(MEDIA_SUFFIX in instance.profile for instance in instances)):
        return False
    return bool(free_starts(profile, occupied_units(of, instances)))


class MigCardValue:
    """What cards of one geometry are worth under a mix of profiles.

    Attributes:
        geometry: How they can be cut.
    """

    def __init__(self, of: MigGeometry, mix: Mapping[str, float]) -> None:
        """Work it out for every mask.

        Args:
            of: The geometry.
            mix: Weights by profile name; only their proportions matter. Those of no profile of this card count
                as pods that take nothing here. Without any weight, all profiles are asked for alike.
        """
        self.geometry = of
        weights = dict(mix) if sum(mix.values()) else {profile.name: 1.0 for profile in of.profiles}
        whole = sum(weights.values())
        self._values = [
            sum(weight / whole * _placeable_milli(of.profile(name), mask) for name, weight in weights.items())
            for mask in range(1 << of.units)
        ]

    def value_of(self, mask: int) -> float:
        """Thousandths that the free starts can hold, for the profile that is asked for next."""
        return self._values[mask]

    def best_start(self, name: str, mask: int) -> int | None:
        """Where the next instance leaves the card worth most, of equal starts the lowest; None if none is free."""
        profile = self.geometry.profile(name)
        free = free_starts(profile, mask) if profile else []
        if profile is None or not free:
            return None
        return max(free, key=lambda start: (round(self._values[mask | profile.unit_mask(start)], 6), -start))

    def value_change(self, name: str, mask: int, start: int) -> float:
        """By how much the card's worth changes if an instance is taken; below zero."""
        profile = self.geometry.profile(name)
        return self._values[mask | profile.unit_mask(start)] - self._values[mask] if profile else 0.0


def _placeable_milli(profile: MigProfile | None, mask: int) -> int:
    """Thousandths that one profile could take; those of other cards take nothing here."""
    return profile.milli * len(free_starts(profile, mask)) if profile else 0


@lru_cache(maxsize=64)
def mig_card_value(of: MigGeometry, mix: tuple[tuple[str, float], ...] = ()) -> MigCardValue:
    """The worth under a mix, worked out once."""
    return MigCardValue(of, dict(mix))


class MigCard(msgspec.Struct, frozen=True):
    """One MIG card as it is cut now.

    Attributes:
        index: Its number on the node.
        used: Instances that a pod holds.
        idle: Instances that nobody holds.
    """

    index: int
    used: frozenset[MigPlacement]
    idle: frozenset[MigPlacement]


class RepartitionPlan(msgspec.Struct, frozen=True):
    """A new cut of one card that makes room.

    Attributes:
        index: The card's number.
        remove: Idle instances in the way.
        create: The instance to make, with its start.
    """

    index: int
    remove: frozenset[MigPlacement]
    create: MigPlacement


def plan_repartition(worth: MigCardValue, cards: tuple[MigCard, ...], name: str) -> RepartitionPlan | None:
    """The new cut of one card, of idle instances only, that makes room for a profile.

    Of several, the one that removes least, and then the one that leaves the card worth most.

    Returns:
        None where an idle instance of the profile exists already, or no cut of one card would help.
    """
    if any(instance.profile == name for one in cards for instance in one.idle):
        return None
    cuts = [cut for one in cards for cut in _repartition_candidates(worth.geometry, one, name)]

    def cost(cut: RepartitionPlan) -> tuple[int, float, int, int]:
        one = next(each for each in cards if each.index == cut.index)
        left = worth.value_of(occupied_units(worth.geometry, one.used | {cut.create}))
        return (occupied_units(worth.geometry, cut.remove).bit_count(), -left, cut.index, cut.create.start)

    return min(cuts, key=cost, default=None)


def _repartition_candidates(of: MigGeometry, one: MigCard, name: str) -> Iterator[RepartitionPlan]:
    profile = of.profile(name)
    if profile is None or not profile_fits(of, one.used, name):
        return
    for start in free_starts(profile, occupied_units(of, one.used)):
        span = profile.unit_mask(start)
        idle = frozenset(each for each in one.idle if occupied_units(of, frozenset({each})) & span)
        yield RepartitionPlan(one.index, idle, MigPlacement(name, start))
