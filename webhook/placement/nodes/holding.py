"""What pods hold of a node's GPUs that its agent has not reported yet: they came a moment ago, or are about to.

A pod that is new holds whole GPUs as the device plugin will have given them, and of MIG instances idle ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from webhook.model.gpunodes import GPUNode
from webhook.model.masks import bits, union
from webhook.model.resources import WHOLE_GPU, gpu_resource
from webhook.placement.devices import Devices, given_out, still_held
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


def as_held(devices: Devices, report: GPUNode, held: Mapping[str, Held], units: int) -> Devices:
    """The GPUs of a node as its pods hold them: the report, brought up to date.

    Args:
        devices: As they were reported.
        report: The report.
        held: What each pod of the node holds, by "namespace/name", the first to come first.
        units: Units of `nvidia.com/gpu` that the node gives out.
    """
    known = {pod for who in devices.holders.values() for pod in who}
    newcomers = {pod: asked for pod, asked in held.items() if pod not in known}
    return _taken_by(given_out(still_held(devices, report, held), units), newcomers)


def _taken_by(devices: Devices, pods: Mapping[str, Held]) -> Devices:
    """The devices after some pods have come that the report does not know."""
    for pod, (units, turns) in pods.items():
        for resource, count in units.items():
            devices = _taken(devices, pod, resource, count, turns)
    return devices


def _taken(devices: Devices, pod: str, resource: str, count: int, turns: Turns) -> Devices:
    known = gpu_resource(resource)
    if resource == WHOLE_GPU and devices.whole and devices.free is not None:
        gpus = _whole(devices, devices.free, turns or (Turn(count),))
        return replace(devices, free=devices.free & ~gpus, holders=_also(devices, pod, bits(gpus)))
    if known is not None and (known.mig or resource == WHOLE_GPU):
        taken = _instances(devices.cards, known.profile, count)
        cards = tuple(_cut(card, taken.get(card.index, frozenset())) for card in devices.cards)
        return replace(devices, cards=cards, holders=_also(devices, pod, taken))
    return devices


def _also(devices: Devices, pod: str, gpus: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
    """Who holds what, with a pod that holds some of these GPUs."""
    return {**devices.holders, **{gpu: (*devices.holders.get(gpu, ()), pod) for gpu in gpus}}


def _whole(devices: Devices, free: int, turns: Turns) -> int:
    """The GPUs that a pod gets; all that are free where it asks for more than are reported."""
    sets = allotted(devices.topology, free, turns)
    return free if sets is None else union(sets)


def _instances(cards: tuple[Card, ...], profile: str, count: int) -> Mapping[int, frozenset[Instance]]:
    """Some idle instances of a profile by their card, from the first card on.

    Without a profile it is any: where every card is cut, `nvidia.com/gpu` is an instance, and all are alike.
    """
    idle = ((card.index, one) for card in cards for one in sorted(card.idle) if profile in ("", one.profile))
    taken: dict[int, frozenset[Instance]] = {}
    for index, one in islice(idle, count):
        taken[index] = taken.get(index, frozenset()) | {one}
    return taken


def _cut(card: Card, taken: frozenset[Instance]) -> Card:
    return Card(card.index, card.used | taken, card.idle - taken) if taken else card
