"""Why no node takes a pod, in one word for a whole cluster: what would have to be different."""

from __future__ import annotations

from enum import StrEnum

from webhook.placement.needs import Need
from webhook.placement.rooms import Bools, Ints, Rooms, units


class Shortage(StrEnum):
    """The first of these that holds. The value is the sentence people read."""

    NO_MODEL = "no node has a GPU model that it takes"
    TOO_LARGE = "no node would take it even when empty"
    FULL = "Insufficient nvidia.com/gpu: fewer are free in the whole cluster"
    SPLIT_UP = "Insufficient nvidia.com/gpu: enough are free, but not together on one node or card"
    NO_CPU = "Insufficient cpu on the nodes with free GPUs"
    NO_MEMORY = "Insufficient memory on the nodes with free GPUs and CPU"
    FITS = "a node takes it"


def shortage(rooms: Rooms, need: Need) -> Shortage:
    """Why a pod finds no place among these rooms."""
    site, taking = rooms.site, rooms.site.taking(need)
    if not taking.any():
        return Shortage.NO_MODEL
    if not (_fits(site.cpu, site.memory, site.gpus, need) & taking).any():
        return Shortage.TOO_LARGE
    gpus = _gpus(rooms.gpus, need) & taking
    if not gpus.any():
        return Shortage.FULL if int(rooms.gpus[taking].sum()) < need.milli else Shortage.SPLIT_UP
    cpu = gpus & (rooms.cpu >= need.cpu_milli)
    if not cpu.any():
        return Shortage.NO_CPU
    return Shortage.FITS if (cpu & (rooms.memory >= need.memory_mib)).any() else Shortage.NO_MEMORY


def _fits(cpu: Ints, memory: Ints, gpus: Ints, need: Need) -> Bools:
    fits: Bools = _gpus(gpus, need) & (cpu >= need.cpu_milli) & (memory >= need.memory_mib)
    return fits


def _gpus(gpus: Ints, need: Need) -> Bools:
    enough: Bools = units(gpus, need.gpu_milli).sum(1) >= need.gpus
    return enough
