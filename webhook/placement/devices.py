"""The GPUs of one node: links, free GPUs, and MIG instances.

They come from the node's GPUNode report, or, without an agent, from node labels and the number of free GPUs. Reports
are bounded here before placement computes with them.
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
from webhook.model.gpu_resources import MIG_PREFIX
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.placement.labeled_gpus import labeled_gpus
from webhook.placement.mig import MigCard, MigGeometry, MigPlacement, mig_geometry
from webhook.placement.nvlink import gpu_mask
from webhook.placement.topology import (
    MAX_GPUS,
    NVLINK_BRIDGE_RATE,
    NVLINK_RATES,
    GpuTopology,
    PciePath,
    assumed_topology,
    topology_without_links,
)


class NodeDevices(msgspec.Struct, frozen=True):
    """The GPUs of one node. Masks have bit i for GPU i.

    Attributes:
        free: Mask of whole GPUs that no pod holds and the device plugin may allocate, unhealthy ones included; None if
            only their number is known.
        mig_cards: Healthy MIG cards.
        unhealthy_mig_cards: The others, of which pods get no instance.
        holders: Pods that hold a GPU or an instance of it, by GPU index.
        free_count: Number of free whole GPUs if `free` is None; otherwise 0.
        unhealthy: Mask of unhealthy GPUs.
        whole_gpus: Mask of reported GPUs that are not in MIG mode.
        degraded: Mask of the whole GPUs with any condition.
        withdrawn: Mask of the GPUs that the device plugin no longer advertises.
        instance_holders: The pod that holds each MIG instance in use, by GPU index and place.
        conditions: What the agent says about a GPU, one sentence each, by GPU index.
        message: Why the agent's report is incomplete; "" if it is complete, or without an agent.
    """

    topology: GpuTopology
    free: int | None = None
    mig_cards: tuple[MigCard, ...] = ()
    unhealthy_mig_cards: tuple[MigCard, ...] = ()
    holders: Mapping[int, tuple[str, ...]] = {}
    free_count: int = 0
    unhealthy: int = 0
    whole_gpus: int = 0
    degraded: int = 0
    withdrawn: int = 0
    instance_holders: Mapping[tuple[int, MigPlacement], str] = {}
    conditions: Mapping[int, tuple[str, ...]] = {}
    message: str = ""

    @property
    def allocatable_unhealthy(self) -> int:
        """Mask of the unhealthy whole GPUs that a pod may still get, as far as it is known."""
        if not self.unhealthy:
            return 0
        held = gpu_mask(list(self.holders))
        return self.unhealthy & (self.whole_gpus & ~held if self.free is None else self.free)


def devices_from_report(node: GPUNode) -> NodeDevices | None:
    """Return the GPUs as the node's agent reports them; None for an invalid report (see `find_report_error`)."""
    if find_report_error(node):
        return None
    gpus = sorted(node.status.gpus, key=lambda gpu: gpu.index)
    return _with_holders(NodeDevices(_topology_from_report(node, gpus), message=node.status.message), gpus)


def reported_nvlinks(node: GPUNode) -> int | None:
    """Return the NVLinks between two GPUs on average, rounded up, of those that are not in MIG mode.

    None for an invalid report, and if fewer than two GPUs are not in MIG mode: such GPUs have no links meanwhile.
    """
    whole = [gpu for gpu in node.status.gpus if not gpu.mig]
    if find_report_error(node) or len(whole) < 2:
        return None
    links = sum(map(sum, _topology_from_report(node, sorted(node.status.gpus, key=lambda gpu: gpu.index)).nvlinks))
    return -(-links // (len(whole) * (len(whole) - 1)))


def release_absent_pods(devices: NodeDevices, node: GPUNode, running_pods: Container[str]) -> NodeDevices:
    """Return the devices without the pods that have left the node since the report; `running_pods` are still there."""
    if all(pod in running_pods for pods in devices.holders.values() for pod in pods):
        return devices
    gpus = []
    for gpu in node.status.gpus:
        instances = tuple(one if one.pod in running_pods else replace(one, pod="") for one in gpu.instances)
        gpus.append(replace(gpu, pods=tuple(pod for pod in gpu.pods if pod in running_pods), instances=instances))
    return _with_holders(devices, gpus)


def _with_holders(devices: NodeDevices, gpus: Sequence[GpuDevice]) -> NodeDevices:
    whole = [gpu for gpu in gpus if not gpu.mig]
    return NodeDevices(
        topology=devices.topology,
        free=gpu_mask([gpu.index for gpu in whole if not gpu.pods]),
        mig_cards=tuple(_mig_card_from_report(gpu) for gpu in gpus if gpu.mig and gpu.healthy),
        unhealthy_mig_cards=tuple(_mig_card_from_report(gpu) for gpu in gpus if gpu.mig and not gpu.healthy),
        holders={gpu.index: _pods_on_gpu(gpu) for gpu in gpus if _pods_on_gpu(gpu)},
        unhealthy=gpu_mask([gpu.index for gpu in gpus if not gpu.healthy]),
        whole_gpus=gpu_mask([gpu.index for gpu in whole]),
        degraded=gpu_mask([gpu.index for gpu in whole if gpu.conditions or gpu.nvlink_degraded or not gpu.healthy]),
        instance_holders={
            (gpu.index, MigPlacement(one.profile, one.start)): one.pod
            for gpu in gpus
            for one in gpu.instances
            if one.pod
        },
        conditions={gpu.index: found for gpu in gpus if (found := tuple(_gpu_conditions(gpu)))},
        message=devices.message,
    )


def _gpu_conditions(gpu: GpuDevice) -> Iterator[str]:
    yield from gpu.conditions
    if gpu.ecc_errors:
        yield f"uncorrected memory errors (ECC) since the driver was loaded: {gpu.ecc_errors}"
    if gpu.nvlinks_down:
        yield f"inactive NVLinks that should be active: {gpu.nvlinks_down}"


def exclude_withdrawn_gpus(devices: NodeDevices, units: int) -> NodeDevices:
    """Return reported devices without the GPUs that the device plugin has withdrawn.

    The plugin withdraws GPUs for more errors than the agent calls unhealthy. If the Node lacks at least as many units
    of `nvidia.com/gpu` as there are GPUs with conditions, those are the withdrawn ones; if it lacks fewer, it is
    unknown which. A Node without units advertises its GPUs under another name.
    """
    lacking = devices.whole_gpus.bit_count() - units if units else 0
    if devices.free is None or not 0 < devices.degraded.bit_count() <= lacking:
        return devices
    return replace(devices, free=devices.free & ~devices.degraded, withdrawn=devices.degraded)


def devices_from_labels(node: FleetNode, whole: int, free: int) -> NodeDevices:
    """Return the devices that labels suggest, of `whole` advertised GPUs and `free` free ones.

    Which GPUs are free is known only if all of them are. If all are in MIG mode, none has links.
    """
    gpus = min(MAX_GPUS, max(whole, labeled_gpus(node.labels).cards))
    is_partitioned = not whole and any(name.startswith(MIG_PREFIX) for name in node.gpus)
    if is_partitioned:
        return reconcile_free_count(NodeDevices(topology_without_links(gpus)), free)
    return reconcile_free_count(NodeDevices(assumed_topology(node.labels.get(PRODUCT_LABEL, ""), gpus)), free)


def reconcile_free_count(devices: NodeDevices, free: int) -> NodeDevices:
    """Return the devices with the number of free GPUs, and without the mask if it shows more free GPUs than that.

    A pod that holds a withdrawn GPU does not reduce the number of free ones.
    """
    if devices.free is not None:
        on_withdrawn = sum(devices.withdrawn >> gpu & 1 for gpu in devices.holders)
        if devices.free.bit_count() <= free + on_withdrawn:
            return devices
        devices = replace(devices, free=None)
    gpus = devices.topology.gpu_count
    if free == gpus:
        return replace(devices, free=(1 << gpus) - 1)
    return replace(devices, free_count=max(0, min(free, gpus)))


def _topology_from_report(node: GPUNode, gpus: list[GpuDevice]) -> GpuTopology:
    """Return the link matrix. A GPU in MIG mode or with degraded NVLink has no links."""
    without_links = {gpu.index for gpu in gpus if gpu.mig or gpu.nvlink_degraded}
    nvlinks, pcie_paths = [], []
    for gpu in gpus:
        links = {link.gpu: link for link in gpu.links}
        row = [links.get(other.index) for other in gpus]
        usable = [gpu.index not in without_links and other.index not in without_links for other in gpus]
        nvlinks.append(tuple(link.nvlinks if link and both else 0 for link, both in zip(row, usable, strict=True)))
        pcie_paths.append(tuple(PciePath.__members__.get(link.pcie_path) if link else None for link in row))
    # Bandwidth of one link: a newer generation counts as the newest known, an unknown one as the slowest.
    generation = min(node.status.nvlink_generation, max(NVLINK_RATES))
    rate = NVLINK_RATES.get(generation, NVLINK_BRIDGE_RATE) if any(map(any, nvlinks)) else 0
    return GpuTopology(
        nvlinks=tuple(nvlinks),
        pcie_paths=tuple(pcie_paths),
        numa_nodes=tuple(gpu.numa_node for gpu in gpus),
        nvlink_rate=node.status.nvlink_bandwidth or rate,
        nvswitch=node.status.nvswitch,
    )


def _mig_card_from_report(gpu: GpuDevice) -> MigCard:
    held = frozenset(MigPlacement(one.profile, one.start) for one in gpu.instances if one.pod)
    idle = frozenset(MigPlacement(one.profile, one.start) for one in gpu.instances if not one.pod)
    return MigCard(gpu.index, held, idle)


def _pods_on_gpu(gpu: GpuDevice) -> tuple[str, ...]:
    return (*gpu.pods, *(one.pod for one in gpu.instances if one.pod))


def find_report_error(node: GPUNode) -> str:
    """Return why a report is invalid; "" for a valid one.

    One error makes the whole report invalid: the values of the other GPUs cannot be trusted either.
    """
    return next(_report_errors(node.status), "")


def _report_errors(status: GPUNodeStatus) -> Iterator[str]:
    count, indexes = len(status.gpus), sorted(gpu.index for gpu in status.gpus)
    if not count:
        yield status.message or "it lists no GPUs"
    if count > MAX_GPUS:
        yield f"it lists {count} GPUs, more than the supported {MAX_GPUS}"
    elif indexes != list(range(count)):
        yield f"its GPUs must be numbered 0 to {count - 1}, found {', '.join(map(str, indexes))}"
    if not 0 <= status.nvlink_bandwidth <= MAX_LINK_BANDWIDTH:
        yield f"nvlinkBandwidth must be 0 to {MAX_LINK_BANDWIDTH}, found {status.nvlink_bandwidth}"
    known = mig_geometry(status.product)
    for gpu in status.gpus:
        yield from (f"GPU {gpu.index}: {error}" for error in _gpu_report_errors(gpu, known))


def _gpu_report_errors(gpu: GpuDevice, known: MigGeometry | None) -> Iterator[str]:
    for link in gpu.links:
        if not 0 <= link.nvlinks <= MAX_NVLINKS:
            yield f"nvlinks must be 0 to {MAX_NVLINKS}, found {link.nvlinks}"
    for instance in gpu.instances:
        yield from _instance_report_errors(instance, known)


def _instance_report_errors(instance: MigInstance, known: MigGeometry | None) -> Iterator[str]:
    """On an unknown product any profile and any start on the card is valid."""
    profile = known.profile(instance.profile) if known else None
    if known and not profile:
        yield f"its card has no MIG profile {quote_text(instance.profile)}"
    most = known.units - profile.memory_units if known and profile else MAX_START
    if not 0 <= instance.start <= most:
        yield f"the start of {quote_text(instance.profile)} must be 0 to {most}, found {instance.start}"
