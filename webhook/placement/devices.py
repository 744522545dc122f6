"""The GPUs of one node as placement sees them: links, which are free, and how MIG cards are cut.

From the node's own report (`GPUNode`), or, where no agent runs, from labels and the count of free GPUs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from webhook.model.fleet import FleetNode
from webhook.model.gpunodes import GpuDevice, GPUNode
from webhook.model.nodelabels import PRODUCT, number
from webhook.placement.mig import Card, Instance
from webhook.placement.nvlink import mask_of
from webhook.placement.reports import unusable
from webhook.placement.topology import BRIDGE_RATE, MOST_GPUS, RATES, Bus, Topology, assumed

COUNT = "nvidia.com/gpu.count"


class Devices(msgspec.Struct, frozen=True):
    """The GPUs of one node.

    Attributes:
        topology: The links.
        free: Mask of the whole GPUs that nobody holds and the device plugin may give, ill ones too; None where only
            their count is known.
        cards: MIG cards.
        holders: Who holds a GPU or an instance of it, by index.
        spare: How many whole GPUs are free where it is not known which; 0 elsewhere.
        unhealthy: Mask of the GPUs that are ill.
        whole: Mask of the GPUs that are reported and not in MIG mode.
        ailing: Mask of those of them that the report says anything against.
        lost: Mask of those that the device plugin gives no more.
    """

    topology: Topology
    free: int | None = None
    cards: tuple[Card, ...] = ()
    holders: Mapping[int, tuple[str, ...]] = {}
    spare: int = 0
    unhealthy: int = 0
    whole: int = 0
    ailing: int = 0
    lost: int = 0

    @property
    def ill(self) -> int:
        """Mask of the whole GPUs that are ill, and that a pod may get all the same, as far as it is known."""
        if not self.unhealthy:
            return 0
        held = mask_of(list(self.holders))
        return self.unhealthy & (self.whole & ~held if self.free is None else self.free)


def reported(node: GPUNode) -> Devices | None:
    """The GPUs as the node's agent has seen them; None where the report cannot be used (`unusable` says why)."""
    if unusable(node):
        return None
    gpus = sorted(node.status.gpus, key=lambda gpu: gpu.index)
    return _held(Devices(_topology(node, gpus)), gpus)


def still_held(devices: Devices, node: GPUNode, there: Container[str]) -> Devices:
    """The devices of a node where only some pods are left: what the others held is free again.

    Args:
        devices: As they were reported.
        node: The report.
        there: The pods that are still there, "namespace/name".
    """
    if all(pod in there for who in devices.holders.values() for pod in who):
        return devices
    return _held(devices, [_without(gpu, there) for gpu in node.status.gpus])


def _held(devices: Devices, gpus: Sequence[GpuDevice]) -> Devices:
    """The devices with what is free of them, and who holds the rest."""
    return Devices(
        topology=devices.topology,
        free=mask_of([gpu.index for gpu in gpus if not gpu.mig and not gpu.pods]),
        cards=tuple(_card(gpu) for gpu in gpus if gpu.mig and gpu.healthy),
        holders={gpu.index: _holders(gpu) for gpu in gpus if _holders(gpu)},
        unhealthy=mask_of([gpu.index for gpu in gpus if not gpu.healthy]),
        whole=mask_of([gpu.index for gpu in gpus if not gpu.mig]),
        ailing=mask_of([gpu.index for gpu in gpus if not gpu.mig and _ails(gpu)]),
    )


def _ails(gpu: GpuDevice) -> bool:
    return not gpu.healthy or gpu.alone or bool(gpu.ailments)


def given_out(devices: Devices, units: int) -> Devices:
    """Reported devices without the GPUs that the device plugin gives no more.

    It takes GPUs away for other errors than the agent calls ill. So these are the ailing ones, where the Node lacks at
    least as many; where it lacks fewer, it is not known which. A Node without any gives them out under another name.

    Args:
        devices: As they were reported.
        units: Units of `nvidia.com/gpu` that the Node gives out.
    """
    lacking = devices.whole.bit_count() - units if units else 0
    if devices.free is None or not 0 < devices.ailing.bit_count() <= lacking:
        return devices
    return replace(devices, free=devices.free & ~devices.ailing, lost=devices.ailing)


def _without(gpu: GpuDevice, there: Container[str]) -> GpuDevice:
    """A GPU after all pods but some have ended."""
    left = tuple(pod for pod in gpu.pods if pod in there)
    instances = tuple(one if one.pod in there else replace(one, pod="") for one in gpu.instances)
    return replace(gpu, pods=left, instances=instances)


def expected(node: FleetNode, whole: int, free: int) -> Devices:
    """What labels let one expect. Which GPUs are free is known where all are.

    Args:
        node: The node.
        whole: Whole GPUs that it advertises.
        free: How many of them are free.
    """
    gpus = min(MOST_GPUS, max(whole, number(node.labels.get(COUNT)) or 0))
    return counted(Devices(assumed(node.labels.get(PRODUCT, ""), gpus)), free)


def counted(devices: Devices, free: int) -> Devices:
    """Devices with how many are free, where it is not known which: so it is too where more seem free than are.

    A pod that holds a GPU which is lost takes no other one from those that are free.
    """
    if devices.free is not None:
        beyond = sum(devices.lost >> gpu & 1 for gpu in devices.holders)
        return devices if devices.free.bit_count() <= free + beyond else counted(replace(devices, free=None), free)
    gpus = devices.topology.gpus
    return replace(devices, free=(1 << gpus) - 1) if free == gpus else replace(devices, spare=max(0, min(free, gpus)))


def _topology(node: GPUNode, gpus: list[GpuDevice]) -> Topology:
    """The matrix of what each GPU sees. In MIG mode, or in trouble with NVLink, a card has no links."""
    cut = {gpu.index for gpu in gpus if gpu.mig or gpu.alone}
    nvlinks, buses = [], []
    for gpu in gpus:
        links = {link.gpu: link for link in gpu.links}
        seen = [links.get(other.index) for other in gpus]
        joined = [gpu.index not in cut and other.index not in cut for other in gpus]
        nvlinks.append(tuple(link.nvlinks if link and both else 0 for link, both in zip(seen, joined, strict=True)))
        buses.append(tuple(Bus.__members__.get(link.bus) if link else None for link in seen))
    status, linked = node.status, any(map(any, nvlinks))
    return Topology(
        nvlinks=tuple(nvlinks),
        buses=tuple(buses),
        numa=tuple(gpu.numa for gpu in gpus),
        rate=status.nvlink_rate or (_rate(status.nvlink_generation) if linked else 0),
        nvswitch=status.nvswitch,
    )


def _rate(generation: int) -> int:
    """MB/s of one link; a generation to come counts as the newest known, one that is not told as the slowest."""
    return RATES[max(RATES)] if generation > max(RATES) else RATES.get(generation, BRIDGE_RATE)


def _card(gpu: GpuDevice) -> Card:
    held = frozenset(Instance(one.profile, one.start) for one in gpu.instances if one.pod)
    idle = frozenset(Instance(one.profile, one.start) for one in gpu.instances if not one.pod)
    return Card(gpu.index, held, idle)


def _holders(gpu: GpuDevice) -> tuple[str, ...]:
    return (*gpu.pods, *(one.pod for one in gpu.instances if one.pod))
