"""Why no node takes a pod, in one word for a whole cluster: what would have to be different."""

from __future__ import annotations

from enum import StrEnum

from webhook.placement.needs import PodDemand
from webhook.placement.rooms import BoolArray, IntArray, FreeCapacityArrays, units_per_gpu


class UnschedulableReason(StrEnum):
    """The first of these that holds. The value is the sentence people read."""

    NO_MODEL = "no node has a GPU model that it takes"
    TOO_LARGE = "no node would take it even when empty"
    FULL = "Insufficient nvidia.com/gpu: fewer are free in the whole cluster"
    FRAGMENTED = "Insufficient nvidia.com/gpu: enough are free, but not together on one node or card"
    NO_CPU = "Insufficient cpu on the nodes with free GPUs"
    NO_MEMORY = "Insufficient memory on the nodes with free GPUs and CPU"
    FITS = "a node takes it"


def unschedulable_reason(rooms: FreeCapacityArrays, need: PodDemand) -> UnschedulableReason:
    """Why a pod finds no place among these rooms."""
    site, taking = rooms.capacity, rooms.capacity.nodes_accepting(need)
    if not taking.any():
        return UnschedulableReason.NO_MODEL
    if not (_fits_empty_nodes(site.cpu, site.memory, site.gpus, need) & taking).any():
        return UnschedulableReason.TOO_LARGE
    gpus = _has_enough_gpus(rooms.gpus, need) & taking
    if not gpus.any():
        return UnschedulableReason.FULL if int(rooms.gpus[taking].sum()) < need.total_milli else UnschedulableReason.FRAGMENTED
    cpu = gpus & (rooms.cpu >= need.cpu_milli)
    if not cpu.any():
        return UnschedulableReason.NO_CPU
    return UnschedulableReason.FITS if (cpu & (rooms.memory >= need.memory_mib)).any() else UnschedulableReason.NO_MEMORY


def _fits_empty_nodes(cpu: IntArray, memory: IntArray, gpus: IntArray, need: PodDemand) -> BoolArray:
    fits: BoolArray = _has_enough_gpus(gpus, need) & (cpu >= need.cpu_milli) & (memory >= need.memory_mib)
    return fits


def _has_enough_gpus(gpus: IntArray, need: PodDemand) -> BoolArray:
    enough: BoolArray = units_per_gpu(gpus, need.gpu_milli).sum(1) >= need.gpus
    return enough
