"""What pods hold of a node's GPUs that its agent has not reported yet: they came a moment ago, or are about to.

A pod that is new holds whole GPUs as the device plugin will have given them, and of MIG instances idle ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from webhook.model.masks import union
from webhook.model.resources import WHOLE_GPU, gpu_resource
from webhook.placement.devices import Devices
from webhook.placement.mig import Card, Instance
from webhook.placement.nodes.allotting import Turn, Turns, allotted


class Held(NamedTuple):
    """What one pod asks for.

    Attributes:
        units: Units by GPU resource.
        turns: The containers that ask for whole GPUs; () where it is one that asks for all.
    """

    units: Mapping[str, int]
    turns: Turns = ()


def taken_by(devices: Devices, pods: Iterable[Held]) -> Devices:
    """The devices after some pods have come that the report does not know.

    Args:
        devices: As they are without these pods.
        pods: What each of them asks for, the first to come first.
    """
    for units, turns in pods:
        for resource, count in units.items():
            devices = _taken(devices, resource, count, turns)
    return devices


def _taken(devices: Devices, resource: str, count: int, turns: Turns) -> Devices:
    known = gpu_resource(resource)
    if resource == WHOLE_GPU and devices.free is not None and not devices.cards:
        return replace(devices, free=devices.free & ~_whole(devices, devices.free, turns or (Turn(count),)))
    if known is not None and known.mig:
        return replace(devices, cards=_instances(devices.cards, known.profile, count))
    return devices


def _whole(devices: Devices, free: int, turns: Turns) -> int:
    """The GPUs that a pod gets; all that are free where it asks for more than are reported."""
    sets = allotted(devices.topology, free, turns)
    return free if sets is None else union(sets)


def _instances(cards: tuple[Card, ...], profile: str, count: int) -> tuple[Card, ...]:
    """The cards after some idle instances of a profile are taken, from the first card on."""
    idle = ((card.index, one) for card in cards for one in sorted(card.idle) if one.profile == profile)
    taken: dict[int, frozenset[Instance]] = {}
    for index, one in islice(idle, count):
        taken[index] = taken.get(index, frozenset()) | {one}
    return tuple(_cut(card, taken.get(card.index, frozenset())) for card in cards)


def _cut(card: Card, taken: frozenset[Instance]) -> Card:
    return Card(card.index, card.used | taken, card.idle - taken) if taken else card
