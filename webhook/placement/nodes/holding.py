"""What pods hold of a node's GPUs that its agent has not reported yet: they came a moment ago, or are about to.

A pod that is new holds whole GPUs as the device plugin will have given them, and of MIG instances idle ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from webhook.model.gpunodes import GPUNode
from webhook.model.masks import bit_positions, union_masks
from webhook.model.resources import WHOLE_GPU, parse_gpu_resource
from webhook.placement.devices import NodeDevices, exclude_withdrawn_gpus, release_absent_pods
from webhook.placement.mig import MigCard, MigPlacement
from webhook.placement.nodes.allotting import ContainerRequest, ContainerRequests, allocate_containers


class PodGpuUnits(NamedTuple):
    """What one pod asks for.

    Attributes:
        units: Units by GPU resource.
        turns: The containers that ask for whole GPUs; () where it is one that asks for all.
    """

    units: Mapping[str, int]
    container_requests: ContainerRequests = ()


def current_devices(devices: NodeDevices, report: GPUNode, held: Mapping[str, PodGpuUnits], units: int) -> NodeDevices:
    """The GPUs of a node as its pods hold them: the report, brought up to date.

    Args:
        devices: As they were reported.
        report: The report.
        held: What each pod of the node holds, by "namespace/name", the first to come first.
        units: Units of `nvidia.com/gpu` that the node gives out.
    """
    known = {pod for who in devices.holders.values() for pod in who}
    newcomers = {pod: asked for pod, asked in held.items() if pod not in known}
    return _allocate_pods(exclude_withdrawn_gpus(release_absent_pods(devices, report, held), units), newcomers)


def _allocate_pods(devices: NodeDevices, pods: Mapping[str, PodGpuUnits]) -> NodeDevices:
    """The devices after some pods have come that the report does not know."""
    for pod, (units, turns) in pods.items():
        for resource, count in units.items():
            devices = _allocate_resource(devices, pod, resource, count, turns)
    return devices


def _allocate_resource(devices: NodeDevices, pod: str, resource: str, count: int, turns: ContainerRequests) -> NodeDevices:
    known = parse_gpu_resource(resource)
    if resource == WHOLE_GPU and devices.whole_gpus and devices.free is not None:
        gpus = _choose_whole_gpus(devices, devices.free, turns or (ContainerRequest(count),))
        return replace(devices, free=devices.free & ~gpus, holders=_add_holder(devices, pod, bit_positions(gpus)))
    if known is not None and (known.mig or resource == WHOLE_GPU):
        taken = _choose_idle_instances(devices.mig_cards, known.profile, count)
        cards = tuple(_mark_instances_used(card, taken.get(card.index, frozenset())) for card in devices.mig_cards)
        return replace(devices, mig_cards=cards, holders=_add_holder(devices, pod, taken))
    return devices


def _add_holder(devices: NodeDevices, pod: str, gpus: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
    """Who holds what, with a pod that holds some of these GPUs."""
    return {**devices.holders, **{gpu: (*devices.holders.get(gpu, ()), pod) for gpu in gpus}}


def _choose_whole_gpus(devices: NodeDevices, free: int, turns: ContainerRequests) -> int:
    """The GPUs that a pod gets; all that are free where it asks for more than are reported."""
    sets = allocate_containers(devices.topology, free, turns)
    return free if sets is None else union_masks(sets)


def _choose_idle_instances(cards: tuple[MigCard, ...], profile: str, count: int) -> Mapping[int, frozenset[MigPlacement]]:
    """Some idle instances of a profile by their card, from the first card on.

    Without a profile it is any: where every card is cut, `nvidia.com/gpu` is an instance, and all are alike.
    """
    idle = ((card.index, one) for card in cards for one in sorted(card.idle) if profile in ("", one.profile))
    taken: dict[int, frozenset[MigPlacement]] = {}
    for index, one in islice(idle, count):
        taken[index] = taken.get(index, frozenset()) | {one}
    return taken


def _mark_instances_used(card: MigCard, taken: frozenset[MigPlacement]) -> MigCard:
    return MigCard(card.index, card.used | taken, card.idle - taken) if taken else card
