"""The GPUs of one node as placement sees them: links, which are free, and how MIG cards are cut.

From the node's own report (`GPUNode`), or, where no agent runs, from labels and the count of free GPUs.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from webhook.errors import quote_text
from webhook.model.fleet import FleetNode
from webhook.model.gpu_node import (
    MAX_LINK_BANDWIDTH,
    MAX_NVLINKS,
    MAX_START,
    GpuDevice,
    GPUNode,
    GPUNodeStatus,
    MigInstance,
)
from webhook.model.node_labels import PRODUCT_LABEL, parse_count
from webhook.placement.mig import MigCard, MigGeometry, MigPlacement, mig_geometry
from webhook.placement.nvlink import gpu_mask
from webhook.placement.topology import (
    MAX_GPUS,
    NVLINK_BRIDGE_RATE,
    NVLINK_RATES,
    GpuTopology,
    PciePath,
    assumed_topology,
)

GPU_COUNT_LABEL = "nvidia.com/gpu.count"


class NodeDevices(msgspec.Struct, frozen=True):
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

    topology: GpuTopology
    free: int | None = None
    mig_cards: tuple[MigCard, ...] = ()
    holders: Mapping[int, tuple[str, ...]] = {}
    free_count: int = 0
    unhealthy: int = 0
    whole_gpus: int = 0
    degraded: int = 0
    withdrawn: int = 0

    @property
    def allocatable_unhealthy(self) -> int:
        """Mask of the whole GPUs that are ill, and that a pod may get all the same, as far as it is known."""
        if not self.unhealthy:
            return 0
        held = gpu_mask(list(self.holders))
        return self.unhealthy & (self.whole_gpus & ~held if self.free is None else self.free)


def devices_from_report(node: GPUNode) -> NodeDevices | None:
    """The GPUs as the node's agent has seen them; None where the report cannot be used (`find_report_error` says
    why).
    """
    if find_report_error(node):
        return None
    gpus = sorted(node.status.gpus, key=lambda gpu: gpu.index)
    return _with_holders(NodeDevices(_topology_from_report(node, gpus)), gpus)


def release_absent_pods(devices: NodeDevices, node: GPUNode, there: Container[str]) -> NodeDevices:
    """The devices of a node where only some pods are left: what the others held is free again.

    Args:
        devices: As they were reported.
        node: The report.
        there: The pods that are still there, "namespace/name".
    """
    if all(pod in there for who in devices.holders.values() for pod in who):
        return devices
    return _with_holders(devices, [_gpu_without_absent_pods(gpu, there) for gpu in node.status.gpus])


def _with_holders(devices: NodeDevices, gpus: Sequence[GpuDevice]) -> NodeDevices:
    """The devices with what is free of them, and who holds the rest."""
    return NodeDevices(
        topology=devices.topology,
        free=gpu_mask([gpu.index for gpu in gpus if not gpu.mig and not gpu.pods]),
        mig_cards=tuple(_mig_card_from_report(gpu) for gpu in gpus if gpu.mig and gpu.healthy),
        holders={gpu.index: _pods_on_gpu(gpu) for gpu in gpus if _pods_on_gpu(gpu)},
        unhealthy=gpu_mask([gpu.index for gpu in gpus if not gpu.healthy]),
        whole_gpus=gpu_mask([gpu.index for gpu in gpus if not gpu.mig]),
        degraded=gpu_mask([gpu.index for gpu in gpus if not gpu.mig and _has_conditions(gpu)]),
    )


def _has_conditions(gpu: GpuDevice) -> bool:
    return not gpu.healthy or gpu.nvlink_degraded or bool(gpu.conditions)


def exclude_withdrawn_gpus(devices: NodeDevices, units: int) -> NodeDevices:
    """Reported devices without the GPUs that the device plugin gives no more.

    It takes GPUs away for other errors than the agent calls ill. So these are the ailing ones, where the Node lacks at
    least as many; where it lacks fewer, it is not known which. A Node without any gives them out under another name.

    Args:
        devices: As they were reported.
        units: Units of `nvidia.com/gpu` that the Node gives out.
    """
    lacking = devices.whole_gpus.bit_count() - units if units else 0
    if devices.free is None or not 0 < devices.degraded.bit_count() <= lacking:
        return devices
    return replace(devices, free=devices.free & ~devices.degraded, withdrawn=devices.degraded)


def _gpu_without_absent_pods(gpu: GpuDevice, there: Container[str]) -> GpuDevice:
    """A GPU after all pods but some have ended."""
    left = tuple(pod for pod in gpu.pods if pod in there)
    instances = tuple(one if one.pod in there else replace(one, pod="") for one in gpu.instances)
    return replace(gpu, pods=left, instances=instances)


def devices_from_labels(node: FleetNode, whole: int, free: int) -> NodeDevices:
    """What labels let one expect. Which GPUs are free is known where all are.

    Args:
        node: The node.
        whole: Whole GPUs that it advertises.
        free: How many of them are free.
    """
    gpus = min(MAX_GPUS, max(whole, parse_count(node.labels.get(GPU_COUNT_LABEL)) or 0))
    return reconcile_free_count(NodeDevices(assumed_topology(node.labels.get(PRODUCT_LABEL, ""), gpus)), free)


def reconcile_free_count(devices: NodeDevices, free: int) -> NodeDevices:
    """Devices with how many are free, where it is not known which: so it is too where more seem free than are.

    A pod that holds a GPU which is lost takes no other one from those that are free.
    """
    if devices.free is not None:
        beyond = sum(devices.withdrawn >> gpu & 1 for gpu in devices.holders)
        return (
            devices
            if devices.free.bit_count() <= free + beyond
            else reconcile_free_count(replace(devices, free=None), free)
        )
    gpus = devices.topology.gpu_count
    return (
        replace(devices, free=(1 << gpus) - 1) if free == gpus else replace(devices, free_count=max(0, min(free, gpus)))
    )


def _topology_from_report(node: GPUNode, gpus: list[GpuDevice]) -> GpuTopology:
    """The matrix of what each GPU sees. In MIG mode, or in trouble with NVLink, a card has no links."""
    cut = {gpu.index for gpu in gpus if gpu.mig or gpu.nvlink_degraded}
    nvlinks, buses = [], []
    for gpu in gpus:
        links = {link.gpu: link for link in gpu.links}
        seen = [links.get(other.index) for other in gpus]
        joined = [gpu.index not in cut and other.index not in cut for other in gpus]
        nvlinks.append(tuple(link.nvlinks if link and both else 0 for link, both in zip(seen, joined, strict=True)))
        buses.append(tuple(PciePath.__members__.get(link.pcie_path) if link else None for link in seen))
    status, linked = node.status, any(map(any, nvlinks))
    return GpuTopology(
        nvlinks=tuple(nvlinks),
        pcie_paths=tuple(buses),
        numa_nodes=tuple(gpu.numa_node for gpu in gpus),
        nvlink_rate=status.nvlink_bandwidth or (_nvlink_rate(status.nvlink_generation) if linked else 0),
        nvswitch=status.nvswitch,
    )


def _nvlink_rate(generation: int) -> int:
    """MB/s of one link; a generation to come counts as the newest known, one that is not told as the slowest."""
    return (
        NVLINK_RATES[max(NVLINK_RATES)]
        if generation > max(NVLINK_RATES)
        else NVLINK_RATES.get(generation, NVLINK_BRIDGE_RATE)
    )


def _mig_card_from_report(gpu: GpuDevice) -> MigCard:
    held = frozenset(MigPlacement(one.profile, one.start) for one in gpu.instances if one.pod)
    idle = frozenset(MigPlacement(one.profile, one.start) for one in gpu.instances if not one.pod)
    return MigCard(gpu.index, held, idle)


def _pods_on_gpu(gpu: GpuDevice) -> tuple[str, ...]:
    return (*gpu.pods, *(one.pod for one in gpu.instances if one.pod))


def find_report_error(node: GPUNode) -> str:
    """Why a report cannot be used; "" where it can. One fault makes it unusable: what is wrong of one GPU says nothing
    good of the others."""
    return next(_report_errors(node.status), "")


def _report_errors(status: GPUNodeStatus) -> Iterator[str]:
    count, indexes = len(status.gpus), sorted(gpu.index for gpu in status.gpus)
    if not count:
        yield status.message or "it names no GPUs"
    if count > MAX_GPUS:
        yield f"it names {count} GPUs, and at most {MAX_GPUS} are told apart"
    elif indexes != list(range(count)):
        yield f"its GPUs must be numbered 0 to {count - 1}, found {', '.join(map(str, indexes))}"
    if not 0 <= status.nvlink_bandwidth <= MAX_LINK_BANDWIDTH:
        yield f"nvlinkBandwidth must be 0 to {MAX_LINK_BANDWIDTH}, found {status.nvlink_bandwidth}"
    known = mig_geometry(status.product)
    for gpu in status.gpus:
        yield from (f"GPU {gpu.index}: {fault}" for fault in _gpu_report_errors(gpu, known))


def _gpu_report_errors(gpu: GpuDevice, known: MigGeometry | None) -> Iterator[str]:
    for link in gpu.links:
        if not 0 <= link.nvlinks <= MAX_NVLINKS:
            yield f"nvlinks must be 0 to {MAX_NVLINKS}, found {link.nvlinks}"
    for instance in gpu.instances:
        yield from _instance_report_errors(instance, known)


def _instance_report_errors(instance: MigInstance, known: MigGeometry | None) -> Iterator[str]:
    """Profiles of cards that are not known may be anything, and start anywhere on a card."""
    profile = known.profile(instance.profile) if known else None
    if known and not profile:
        yield f"its card has no MIG profile {quote_text(instance.profile)}"
    most = known.units - profile.memory_units if known and profile else MAX_START
    if not 0 <= instance.start <= most:
        yield f"the start of {quote_text(instance.profile)} must be 0 to {most}, found {instance.start}"
