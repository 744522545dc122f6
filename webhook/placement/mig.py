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

from webhook.model.catalogue import card

MEDIA = "+me"
"""The attribute that only one instance of a card can have."""

WHOLE = 1000


class Profile(msgspec.Struct, frozen=True):
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
    size: int
    starts: tuple[int, ...]
    milli: int

    def span(self, start: int) -> int:
        """The units it takes."""
        return ((1 << self.size) - 1) << start


class Geometry(msgspec.Struct, frozen=True):
    """How a product can be cut.

    Attributes:
        units: Units of memory.
        profiles: The smallest first.
    """

    units: int
    profiles: tuple[Profile, ...]

    def profile(self, name: str) -> Profile | None:
        """The profile of a name; attributes such as "+me" change nothing about its place."""
        base = name.partition("+")[0].removesuffix("-me")
        return next((profile for profile in self.profiles if profile.name == base), None)


class Instance(msgspec.Struct, frozen=True, order=True):
    """A piece of a card."""

    profile: str
    start: int


@lru_cache(maxsize=256)
def geometry(product: str) -> Geometry | None:
    """How a product can be cut, by its `nvidia.com/gpu.product`; None where the catalogue does not know it.

    >>> [(p.name, p.starts) for p in geometry("NVIDIA-A30").profiles]
    [('1g.6gb', (0, 1, 2, 3)), ('2g.12gb', (0, 2)), ('4g.24gb', (0,))]
    """
    known = card(product)
    if known is None:
        return None
    profiles = [
        _profile(name, shape.memory_units, known.compute_slices, known.memory_units)
        for name, shape in known.shapes.items()
    ]
    return Geometry(known.memory_units, tuple(sorted(profiles, key=lambda profile: (profile.size, profile.slices))))


def _profile(name: str, size: int, compute: int, units: int) -> Profile:
    slices = int(name.partition("g")[0])
    starts = tuple(start for start in range(0, units, size) if start + slices <= compute)
    milli = max(-(-WHOLE * slices // compute), -(-WHOLE * size // units))
    return Profile(name, slices, size, starts, milli)


def taken(of: Geometry, instances: frozenset[Instance]) -> int:
    """The units that instances take; one of an unknown profile, or outside the card, takes nothing."""
    mask = 0
    for instance in instances:
        profile = of.profile(instance.profile)
        inside = profile is not None and 0 <= instance.start <= of.units - profile.size
        mask |= profile.span(instance.start) if profile and inside else 0
    return mask


def starts(profile: Profile, mask: int) -> list[int]:
    """The legal starts that are free."""
    return [start for start in profile.starts if not profile.span(start) & mask]


def layouts(of: Geometry) -> set[frozenset[Instance]]:
    """Every way to cut a card, the uncut one included."""
    found = {frozenset[Instance]()}
    edge = list(found)
    while edge:
        layout = edge.pop()
        for larger in _one_more(of, layout):
            if larger not in found:
                found.add(larger)
                edge.append(larger)
    return found


def _one_more(of: Geometry, layout: frozenset[Instance]) -> Iterator[frozenset[Instance]]:
    mask = taken(of, layout)
    for profile in of.profiles:
        for start in starts(profile, mask):
            yield layout | {Instance(profile.name, start)}


def capacity(of: Geometry, mask: int) -> dict[str, int]:
    """How many instances of each profile still fit beside what is taken, if only that profile is cut.

    Starts of one profile are multiples of its size, so they never overlap each other.
    """
    return {profile.name: len(starts(profile, mask)) for profile in of.profiles}


def fits(of: Geometry, instances: frozenset[Instance], name: str) -> bool:
    """Can one more instance be cut? Only one of a card may have all the media engines of a "+me"."""
    profile = of.profile(name)
    if profile is None or (MEDIA in name and any(MEDIA in instance.profile for instance in instances)):
        return False
    return bool(starts(profile, taken(of, instances)))


class Worth:
    """What cards of one geometry are worth under a mix of profiles.

    Attributes:
        geometry: How they can be cut.
    """

    def __init__(self, of: Geometry, mix: Mapping[str, float]) -> None:
        """Work it out for every mask.

        Args:
            of: The geometry.
            mix: Weights by profile name; only their proportions matter. Those of no profile of this card count
                as pods that take nothing here. Without any weight, all profiles are asked for alike.
        """
        self.geometry = of
        weights = dict(mix) if sum(mix.values()) else {profile.name: 1.0 for profile in of.profiles}
        whole = sum(weights.values())
        self._holds = [
            sum(weight / whole * _held(of.profile(name), mask) for name, weight in weights.items())
            for mask in range(1 << of.units)
        ]

    def of(self, mask: int) -> float:
        """Thousandths that the free starts can hold, for the profile that is asked for next."""
        return self._holds[mask]

    def best_start(self, name: str, mask: int) -> int | None:
        """Where the next instance leaves the card worth most, of equal starts the lowest; None if none is free."""
        profile = self.geometry.profile(name)
        free = starts(profile, mask) if profile else []
        if profile is None or not free:
            return None
        return max(free, key=lambda start: (round(self._holds[mask | profile.span(start)], 6), -start))

    def change(self, name: str, mask: int, start: int) -> float:
        """By how much the card's worth changes if an instance is taken; below zero."""
        profile = self.geometry.profile(name)
        return self._holds[mask | profile.span(start)] - self._holds[mask] if profile else 0.0


def _held(profile: Profile | None, mask: int) -> int:
    """Thousandths that one profile could take; those of other cards take nothing here."""
    return profile.milli * len(starts(profile, mask)) if profile else 0


@lru_cache(maxsize=64)
def worth_of(of: Geometry, mix: tuple[tuple[str, float], ...] = ()) -> Worth:
    """The worth under a mix, worked out once."""
    return Worth(of, dict(mix))


class Card(msgspec.Struct, frozen=True):
    """One MIG card as it is cut now.

    Attributes:
        index: Its number on the node.
        used: Instances that a pod holds.
        idle: Instances that nobody holds.
    """

    index: int
    used: frozenset[Instance]
    idle: frozenset[Instance]


class Cut(msgspec.Struct, frozen=True):
    """A new cut of one card that makes room.

    Attributes:
        index: The card's number.
        remove: Idle instances in the way.
        create: The instance to make, with its start.
    """

    index: int
    remove: frozenset[Instance]
    create: Instance


def repartition(worth: Worth, cards: tuple[Card, ...], name: str) -> Cut | None:
    """The new cut of one card, of idle instances only, that makes room for a profile.

    Of several, the one that removes least, and then the one that leaves the card worth most.

    Returns:
        None where an idle instance of the profile exists already, or no cut of one card would help.
    """
    if any(instance.profile == name for one in cards for instance in one.idle):
        return None
    cuts = [cut for one in cards for cut in _cuts(worth.geometry, one, name)]

    def cost(cut: Cut) -> tuple[int, float, int, int]:
        one = next(each for each in cards if each.index == cut.index)
        left = worth.of(taken(worth.geometry, one.used | {cut.create}))
        return (taken(worth.geometry, cut.remove).bit_count(), -left, cut.index, cut.create.start)

    return min(cuts, key=cost, default=None)


def _cuts(of: Geometry, one: Card, name: str) -> Iterator[Cut]:
    profile = of.profile(name)
    if profile is None or not fits(of, one.used, name):
        return
    for start in starts(profile, taken(of, one.used)):
        span = profile.span(start)
        idle = frozenset(each for each in one.idle if taken(of, frozenset({each})) & span)
        yield Cut(one.index, idle, Instance(name, start))
