"""Total and free capacity of all nodes in arrays, so that hundreds of nodes are scored in one step.

`ClusterCapacity` holds the empty nodes and never changes. `FreeCapacityArrays` holds what is free now; it has one
writer, and scorers read slices of it (`CapacityRows`).
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
    """CPU, memory and GPUs that one pod requests from one node.

    Attributes:
        gpus: Number of GPUs, or of shares (several may be on one GPU); 0 for a pod without GPUs.
        gpu_milli: Size of each in thousandths of a GPU; 1000 for whole GPUs, 0 if `gpus` is 0.
        models: Acceptable GPU models; () for any.
        memory: Memory in bytes.
    """

    cpu_milli: int
    gpus: int = 0
    gpu_milli: int = 0
    models: tuple[str, ...] = ()
    memory: int = 0

    @property
    def total_milli(self) -> int:
        """All requested GPU capacity, in thousandths of a GPU."""
        return self.gpus * self.gpu_milli

    @property
    def shape(self) -> PodDemand:
        """The demand without memory. Memory only excludes nodes, so pods of one shape get the same scores."""
        return PodDemand(self.cpu_milli, self.gpus, self.gpu_milli, self.models)

    def accepts_model(self, model: str) -> bool:
        """Return whether a GPU of this model is acceptable."""
        return not self.models or model in self.models


IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class EmptyNode(msgspec.Struct, frozen=True, gc=False):
    """One empty node.

    Attributes:
        memory: Memory in bytes.
        model: GPU model; "" without GPUs.
    """

    name: str
    cpu_milli: int
    memory: int
    gpus: int
    model: str = ""

    @property
    def kind(self) -> tuple[str, int, int]:
        """Model, GPUs and CPU: nodes with equal kinds are interchangeable for scarcity prices."""
        return (self.model, self.gpus, self.cpu_milli)


class ClusterCapacity:
    """The empty nodes of a cluster.

    Attributes:
        nodes: The nodes; all arrays use this order.
        models: GPU models, sorted.
        model_index: Index into `models` by node, shape (nodes,).
        kinds: Distinct kinds of node, sorted.
        kind_index: Index into `kinds` by node, shape (nodes,).
        cpu: Millicores by node, shape (nodes,).
        memory: Bytes by node, shape (nodes,).
        gpus: Thousandths by node and GPU, shape (nodes, largest GPU count); 0 for a GPU that does not exist.
    """

    def __init__(self, nodes: Sequence[EmptyNode]) -> None:
        self.nodes = tuple(nodes)
        self.models = sorted({node.model for node in self.nodes})
        self.kinds = sorted({node.kind for node in self.nodes})
        self.model_index: IntArray = np.array([self.models.index(node.model) for node in self.nodes], np.int64)
        kind_positions = {kind: position for position, kind in enumerate(self.kinds)}
        self.kind_index: IntArray = np.array([kind_positions[node.kind] for node in self.nodes], np.int64)
        self.cpu: IntArray = np.array([node.cpu_milli for node in self.nodes], np.int64)
        self.memory: IntArray = np.array([node.memory for node in self.nodes], np.int64)
        counts = np.array([node.gpus for node in self.nodes], np.int64)
        self.gpus: IntArray = np.where(np.arange(max(1, counts.max(initial=0))) < counts[:, None], GPU_MILLI, 0)

    @property
    def total_milli(self) -> int:
        """GPU capacity of the cluster, in thousandths of a GPU."""
        return int(self.gpus.sum())

    def nodes_accepting(self, demand: PodDemand) -> BoolArray:
        """Return which nodes have an acceptable GPU model, shape (nodes,)."""
        if not demand.gpus or not demand.models:
            return np.ones(len(self.nodes), np.bool_)
        return np.array([demand.accepts_model(model) for model in self.models], np.bool_)[self.model_index]


class CapacityRows(NamedTuple):
    """Free capacity of some nodes, now or after a placement.

    Attributes:
        nodes: Node positions, shape (n,). Among placement options a node may occur several times.
        cpu: Free millicores, shape (n,).
        gpus: Free thousandths of each GPU, shape (n, GPUs).
    """

    nodes: IntArray
    cpu: IntArray
    gpus: IntArray


class FreeCapacityArrays:
    """Free capacity of every node.

    Attributes:
        cpu: Free millicores, shape (nodes,).
        memory: Free MiB, shape (nodes,).
        gpus: Free thousandths of each GPU, shape (nodes, GPUs).
    """

    def __init__(self, capacity: ClusterCapacity) -> None:
        self.capacity = capacity
        self.cpu = capacity.cpu.copy()
        self.memory = capacity.memory.copy()
        self.gpus = capacity.gpus.copy()

    def rows(self, nodes: IntArray) -> CapacityRows:
        """Return the rows of some nodes."""
        return CapacityRows(nodes, self.cpu[nodes], self.gpus[nodes])

    def allocate(self, node: int, demand: PodDemand, gpus: Sequence[int]) -> None:
        """Subtract a pod that gets these GPUs of a node."""
        self._add(node, demand, gpus, -1)

    def release(self, node: int, demand: PodDemand, gpus: Sequence[int]) -> None:
        """Add back a pod that held these GPUs of a node."""
        self._add(node, demand, gpus, 1)

    def _add(self, node: int, demand: PodDemand, gpus: Sequence[int], sign: int) -> None:
        self.cpu[node] += sign * demand.cpu_milli
        self.memory[node] += sign * demand.memory
        for gpu in gpus:
            self.gpus[node, gpu] += sign * demand.gpu_milli


def node_mask_array(mask: int, nodes: int) -> BoolArray:
    """Return a node mask as an array, shape (nodes,).

    >>> node_mask_array(0b101, 4).tolist()
    [True, False, True, False]
    """
    packed = np.frombuffer(mask.to_bytes(-(-nodes // 8), "little"), np.uint8)
    return np.unpackbits(packed, count=nodes, bitorder="little").astype(np.bool_)


def units_per_gpu(gpus: IntArray, milli: IntArray | int) -> IntArray:
    """Return how many units of a size fit on each GPU: one whole GPU, or some shares."""
    counts: IntArray = gpus // np.maximum(1, milli)
    return counts


def placement_options(rows: CapacityRows, demand: PodDemand, accepting: BoolArray) -> CapacityRows:
    """Return every way to place a pod on these nodes, as the rows after the placement. Memory is not checked.

    One share may go to any GPU where it fits (the first of equal ones). Several whole GPUs are the lowest idle ones;
    several shares fill the fullest GPUs first. `accepting`: which nodes of the cluster have an acceptable model.
    """
    feasible = (rows.cpu >= demand.cpu_milli) & accepting[rows.nodes]
    if demand.gpus == 0:
        row = np.flatnonzero(feasible)
        return CapacityRows(rows.nodes[row], rows.cpu[row] - demand.cpu_milli, rows.gpus[row])
    if demand.gpus == 1 and demand.gpu_milli < GPU_MILLI:
        row, gpu = _first_of_equal_gpus(rows.gpus, (rows.gpus >= demand.gpu_milli) & feasible[:, None])
        gpus = rows.gpus[row]
        gpus[np.arange(len(row)), gpu] -= demand.gpu_milli
        return CapacityRows(rows.nodes[row], rows.cpu[row] - demand.cpu_milli, gpus)
    units = units_per_gpu(rows.gpus, demand.gpu_milli) * feasible[:, None]
    row = np.flatnonzero(units.sum(1) >= demand.gpus)
    gpus = _gpus_after_allocation(rows.gpus[row], units[row], demand)
    return CapacityRows(rows.nodes[row], rows.cpu[row] - demand.cpu_milli, gpus)


def _first_of_equal_gpus(gpus: IntArray, fits: BoolArray) -> tuple[IntArray, IntArray]:
    """Return row and GPU of each GPU where the share fits, only the first of equally free GPUs of a row."""
    row, gpu = np.nonzero(fits)
    same = gpus[row] == gpus[row, gpu][:, None]
    first = same.argmax(1) == gpu
    return row[first], gpu[first]


def _gpus_after_allocation(gpus: IntArray, units: IntArray, demand: PodDemand) -> IntArray:
    """Return the GPUs after filling the fullest ones where a unit fits; of equal ones the lowest index."""
    if demand.gpu_milli == GPU_MILLI:
        return np.where((units > 0) & (units.cumsum(1) <= demand.gpus), 0, gpus)
    order = np.argsort(np.where(units > 0, gpus, 2 * GPU_MILLI), axis=1, kind="stable")
    available = np.take_along_axis(units, order, 1)
    allocated = np.clip(demand.gpus - (available.cumsum(1) - available), 0, available)
    after = gpus.copy()
    np.put_along_axis(after, order, np.take_along_axis(gpus, order, 1) - allocated * demand.gpu_milli, 1)
    return after
