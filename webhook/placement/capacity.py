"""Rooms: what is free on each node, in arrays, so that hundreds of nodes are judged in one step.

`ClusterCapacity` never changes: the nodes as they are when empty. `FreeCapacityArrays` is what is free now, written
by one owner and
read by rules in slices (`CapacityRows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

GPU_MILLI = 1000
"""Thousandths of one GPU."""


class PodDemand(msgspec.Struct, frozen=True, gc=False):
    """What one pod asks of one node.

    Attributes:
        cpu_milli: CPU in millicores.
        gpus: How many GPUs, or shares, of which several may be of one GPU; 0 for a pod without.
        gpu_milli: Each of them in thousandths; 1000 for whole ones, 0 where `gpus` is 0.
        models: GPU models that will do; () for any.
        memory_mib: Memory in MiB.
    """

    cpu_milli: int
    gpus: int = 0
    gpu_milli: int = 0
    models: tuple[str, ...] = ()
    memory_mib: int = 0

    @property
    def total_milli(self) -> int:
        """All that it asks for, in thousandths of a GPU."""
        return self.gpus * self.gpu_milli

    @property
    def shape(self) -> PodDemand:
        """The need without its memory, which only keeps nodes out: pods of one shape are valued alike."""
        return PodDemand(self.cpu_milli, self.gpus, self.gpu_milli, self.models)

    def accepts_model(self, model: str) -> bool:
        """Will a GPU of this model do?"""
        return not self.models or model in self.models


IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class EmptyNode(msgspec.Struct, frozen=True, gc=False):
    """One empty node.

    Attributes:
        name: The node's name.
        cpu_milli: CPU in millicores.
        memory_mib: Memory in MiB.
        gpus: Whole GPUs.
        model: Their model; "" where there are none.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str = ""

    @property
    def kind(self) -> tuple[str, int, int]:
        """What it has in common with others that pods cannot tell apart: model, GPUs and CPU."""
        return (self.model, self.gpus, self.cpu_milli)


class ClusterCapacity:
    """The empty nodes of a cluster.

    Attributes:
        machines: The nodes; every array of this room counts them in this order.
        models: The GPU models, sorted.
        model: Position in `models` by node, shape (nodes,).
        kinds: The distinct kinds of node, sorted.
        kind: Position in `kinds` by node, shape (nodes,).
        cpu: Millicores by node, shape (nodes,).
        memory: MiB by node, shape (nodes,).
        gpus: Thousandths by node and GPU, shape (nodes, most GPUs of a node); 0 where there is none.
    """

    def __init__(self, machines: Sequence[EmptyNode]) -> None:
        self.nodes = tuple(machines)
        self.models = sorted({machine.model for machine in self.nodes})
        self.kinds = sorted({machine.kind for machine in self.nodes})
        self.model_index: IntArray = np.array([self.models.index(machine.model) for machine in self.nodes], np.int64)
        places = {kind: place for place, kind in enumerate(self.kinds)}
        self.kind_index: IntArray = np.array([places[machine.kind] for machine in self.nodes], np.int64)
        self.cpu: IntArray = np.array([machine.cpu_milli for machine in self.nodes], np.int64)
        self.memory: IntArray = np.array([machine.memory_mib for machine in self.nodes], np.int64)
        counts = np.array([machine.gpus for machine in self.nodes], np.int64)
        self.gpus: IntArray = np.where(np.arange(max(1, counts.max(initial=0))) < counts[:, None], GPU_MILLI, 0)

    @property
    def total_milli(self) -> int:
        """All GPUs of the cluster, in thousandths."""
        return int(self.gpus.sum())

    def nodes_accepting(self, need: PodDemand) -> BoolArray:
        """Which nodes have a model that will do, shape (nodes,)."""
        if not need.gpus or not need.models:
            return np.ones(len(self.nodes), np.bool_)
        return np.array([need.accepts_model(model) for model in self.models], np.bool_)[self.model_index]


class CapacityRows(NamedTuple):
    """What is free on some nodes, or would be.

    Attributes:
        nodes: The nodes, as positions in the site, shape (n,). As options, a node may be there several times.
        cpu: Free millicores, shape (n,).
        gpus: Free thousandths of each GPU, shape (n, GPUs).
    """

    nodes: IntArray
    cpu: IntArray
    gpus: IntArray


class FreeCapacityArrays:
    """What is free on every node now.

    Attributes:
        site: The empty nodes.
        cpu: Free millicores, shape (nodes,).
        memory: Free MiB, shape (nodes,).
        gpus: Free thousandths of each GPU, shape (nodes, GPUs).
    """

    def __init__(self, site: ClusterCapacity) -> None:
        self.capacity = site
        self.cpu = site.cpu.copy()
        self.memory = site.memory.copy()
        self.gpus = site.gpus.copy()

    def rows(self, nodes: IntArray) -> CapacityRows:
        """A slice."""
        return CapacityRows(nodes, self.cpu[nodes], self.gpus[nodes])

    def allocate(self, node: int, need: PodDemand, gpus: Sequence[int]) -> None:
        """A pod begins to hold these GPUs of a node."""
        self._add(node, need, gpus, -1)

    def release(self, node: int, need: PodDemand, gpus: Sequence[int]) -> None:
        """A pod has ended that held these GPUs of a node."""
        self._add(node, need, gpus, 1)

    def _add(self, node: int, need: PodDemand, gpus: Sequence[int], sign: int) -> None:
        self.cpu[node] += sign * need.cpu_milli
        self.memory[node] += sign * need.memory_mib
        for gpu in gpus:
            self.gpus[node, gpu] += sign * need.gpu_milli


def node_mask_array(mask: int, nodes: int) -> BoolArray:
    """A mask of nodes as an array, shape (nodes,).

    >>> of_mask(0b101, 4).tolist()
    [True, False, True, False]
    """
    packed = np.frombuffer(mask.to_bytes(-(-nodes // 8), "little"), np.uint8)
    return np.unpackbits(packed, count=nodes, bitorder="little").astype(np.bool_)


def units_per_gpu(gpus: IntArray, milli: IntArray | int) -> IntArray:
    """For how many units of a size there is room on each GPU: one whole one, or some shares."""
    found: IntArray = gpus // np.maximum(1, milli)
    return found


def placement_options(rows: CapacityRows, need: PodDemand, taking: BoolArray) -> CapacityRows:
    """Every way to put a pod on these nodes, as they would be after it; memory is not asked.

    A share may go to any GPU with room, of equal ones the first. Of several units, the lowest idle GPUs are taken for
    whole ones, and shares fill up the fullest GPUs first, as many of them as each has room for.

    Args:
        rows: The nodes.
        need: What the pod asks for.
        taking: Which nodes of the whole site have a model that will do, shape (nodes,).
    """
    open_ = (rows.cpu >= need.cpu_milli) & taking[rows.nodes]
    if need.gpus == 0:
        row = np.flatnonzero(open_)
        return CapacityRows(rows.nodes[row], rows.cpu[row] - need.cpu_milli, rows.gpus[row])
    if need.gpus == 1 and need.gpu_milli < GPU_MILLI:
        row, gpu = _first_of_equal_gpus(rows.gpus, (rows.gpus >= need.gpu_milli) & open_[:, None])
        gpus = rows.gpus[row]
        gpus[np.arange(len(row)), gpu] -= need.gpu_milli
        return CapacityRows(rows.nodes[row], rows.cpu[row] - need.cpu_milli, gpus)
    room = units_per_gpu(rows.gpus, need.gpu_milli) * open_[:, None]
    row = np.flatnonzero(room.sum(1) >= need.gpus)
    gpus = _gpus_after_allocation(rows.gpus[row], room[row], need)
    return CapacityRows(rows.nodes[row], rows.cpu[row] - need.cpu_milli, gpus)


def _first_of_equal_gpus(gpus: IntArray, room: BoolArray) -> tuple[IntArray, IntArray]:
    """Row and GPU of those with room that are the first of their row with so much free."""
    row, gpu = np.nonzero(room)
    same = gpus[row] == gpus[row, gpu][:, None]
    first = same.argmax(1) == gpu
    return row[first], gpu[first]


def _gpus_after_allocation(gpus: IntArray, room: IntArray, need: PodDemand) -> IntArray:
    """The GPUs after the fullest with room for a unit are filled up, of equal ones the lowest."""
    if need.gpu_milli == GPU_MILLI:
        return np.where((room > 0) & (room.cumsum(1) <= need.gpus), 0, gpus)
    order = np.argsort(np.where(room > 0, gpus, 2 * GPU_MILLI), axis=1, kind="stable")
    there = np.take_along_axis(room, order, 1)
    taken = np.clip(need.gpus - (there.cumsum(1) - there), 0, there)
    left = gpus.copy()
    np.put_along_axis(left, order, np.take_along_axis(gpus, order, 1) - taken * need.gpu_milli, 1)
    return left
