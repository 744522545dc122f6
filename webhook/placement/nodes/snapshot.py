"""A snapshot of the cluster for ranking: nodes, free resources and GPUs.

Nodes reserved for pods that are not bound yet.

A scheduler sends the next pod before the last one is bound. A reservation ends when the pod is on a node, or expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from webhook.model.enums import GpuForm
from webhook.model.fleet import Fleet
from webhook.model.free_resources import FreeResources, free_resources_of_empty_node
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import PRODUCT_LABEL, normalized_product
from webhook.model.node_masks import bit_positions, union_masks
from webhook.placement.capacity import GPU_MILLI, ClusterCapacity, EmptyNode, FreeCapacityArrays, IntArray, PodDemand
from webhook.placement.devices import NodeDevices, devices_from_labels, reconcile_free_count
from webhook.placement.nodes.device_plugin import ContainerRequests
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nvlink import gpu_mask


class SchedulingSnapshot:
    """Nodes, their free resources and GPUs; position i is the same node everywhere.

    Attributes:
        fleet: The nodes as the scheduler sees them.
        report_errors: Why reports are invalid, by node name.
        capacity: The nodes as scorers see them: whole GPUs and shares. MIG cards are scored separately.
    """

    def __init__(
        self,
        fleet: Fleet,
        free: Mapping[str, FreeResources],
        devices: Mapping[str, NodeDevices] | None = None,
        unusable: Mapping[str, str] | None = None,
    ) -> None:
        known = devices or {}
        self.report_errors = unusable or {}
        self.fleet = fleet
        self.free = [free.get(node.name) or free_resources_of_empty_node(node) for node in fleet.nodes]
        self.devices = [self._devices_of_node(i, known.get(node.name)) for i, node in enumerate(fleet.nodes)]
        self.capacity = ClusterCapacity([self._node_capacity(i) for i in range(len(fleet.nodes))])
        self._of_model: dict[str, int] = {}
        for i, machine in enumerate(self.capacity.nodes):
            if machine.gpus:
                self._of_model[machine.model] = self._of_model.get(machine.model, 0) | 1 << i

    def used_units(self, node: int, resource: str) -> int:
        """Return the units of a GPU resource that pods of a node hold."""
        return self.fleet.nodes[node].gpus.get(resource, 0) - self.free[node].units(resource)

    def whole_gpu_nodes(self) -> int:
        """Return the mask of the nodes on which `nvidia.com/gpu` is a whole card."""
        offers = self.fleet.by_resource.get(WHOLE_GPU, ())
        return union_masks(offer.nodes for offer in offers if offer.form is GpuForm.WHOLE)

    def whole_gpus(self, node: int) -> tuple[int, int]:
        """Return the whole GPUs of a node, and how many of them are free."""
        offer = self.fleet.offer_on(WHOLE_GPU, node)
        if offer is None or offer.form is not GpuForm.WHOLE:
            return 0, 0
        return self.fleet.nodes[node].gpus.get(WHOLE_GPU, 0), self.free[node].gpus.get(WHOLE_GPU, 0)

    def pod_demand(self, requirements: PodRequirements, node: int) -> PodDemand:
        """Return a pod's demand on a node as scorers see it; for MIG instances and their shares only CPU and memory."""
        offer = self.fleet.offer_on(requirements.resource, node)
        if offer is None or offer.form is GpuForm.MIG or offer.profile:
            return PodDemand(requirements.cpu_milli, memory=requirements.memory)
        share = max(1, GPU_MILLI // offer.replicas)
        models = [model for model, nodes in self._of_model.items() if nodes & requirements.selected_nodes]
        allowed = tuple(sorted(models)) if len(models) < len(self._of_model) else ()
        return PodDemand(requirements.cpu_milli, requirements.count, share, allowed, requirements.memory)

    def pod_demand_anywhere(self, requirements: PodRequirements, node: int) -> PodDemand | None:
        """Return a pod's demand on its node, or without one (-1) on the first node that offers what it requests."""
        if node < 0:
            name, fleet = requirements.resource, self.fleet
            node = next(bit_positions(fleet.nodes_advertising(name) if name else fleet.all_nodes), -1)
        return self.pod_demand(requirements, node) if node >= 0 else None

    def free_arrays(self) -> FreeCapacityArrays:
        """Return the free capacity for scorers."""
        arrays = FreeCapacityArrays(self.capacity)
        self.write_free_arrays(arrays, range(len(self.free)))
        return arrays

    def write_free_arrays(self, arrays: FreeCapacityArrays, nodes: Sequence[int]) -> None:
        """Write the free capacity of some nodes."""
        changed = np.array(nodes, np.int64)
        arrays.cpu[changed] = [max(0, self.free[node].cpu_milli) for node in nodes]
        arrays.memory[changed] = [max(0, self.free[node].memory) for node in nodes]
        for node in nodes:
            arrays.gpus[node] = self._free_gpu_milli(node, arrays.gpus.shape[1])

    def set_node(self, node: int, free: FreeResources, devices: NodeDevices | None) -> None:
        """Change a node in place; without devices, its GPUs are those that its labels suggest.

        Only for the owner of an unshared snapshot.
        """
        self.free[node] = free
        self.devices[node] = self._devices_of_node(node, devices)

    def with_pod(self, requirements: PodRequirements, node: int, gpus: tuple[int, ...] = ()) -> SchedulingSnapshot:
        """Return the snapshot with a pod placed on a node; `gpus` are the whole GPUs that it gets, () if unknown."""
        known = self.devices[node]
        free = known.free
        if dict(requirements.gpu_resources).get(WHOLE_GPU):
            free = free & ~gpu_mask(gpus) if free is not None and gpus else None
        return self.with_free(
            node, _subtract_requirements(self.free[node], requirements), msgspec.structs.replace(known, free=free)
        )

    def with_free(self, node: int, free: FreeResources, devices: NodeDevices | None = None) -> SchedulingSnapshot:
        """Return the snapshot with other free resources on one node, and other devices if given."""
        after = self.copy()
        after.set_node(node, free, devices or self.devices[node])
        return after

    def copy(self) -> SchedulingSnapshot:
        """Return a snapshot that later changes of this one leave alone."""
        after = object.__new__(SchedulingSnapshot)
        after.__dict__.update(self.__dict__)
        after.free, after.devices = self.free.copy(), self.devices.copy()
        return after

    def _devices_of_node(self, node: int, devices: NodeDevices | None) -> NodeDevices:
        """Return the GPUs of a node, reconciled with its free units; None for those that its labels suggest."""
        whole, free = self.whole_gpus(node)
        if devices is None:
            return devices_from_labels(self.fleet.nodes[node], whole, free)
        return reconcile_free_count(devices, self.free[node].units(WHOLE_GPU)) if whole else devices

    def _node_capacity(self, node: int) -> EmptyNode:
        known = self.fleet.nodes[node]
        gpus = self.whole_gpus(node)[0] + sum(gpus for gpus, _, _ in self._shared_gpus(node))
        return EmptyNode(
            known.name,
            known.cpu_milli,
            known.memory,
            gpus,
            normalized_product(known.labels.get(PRODUCT_LABEL, "")),
        )

    def _shared_gpus(self, node: int) -> Iterator[tuple[int, int, int]]:
        """Yield for each resource with shares: GPUs, shares per GPU, and free shares."""
        for resource, units in self.fleet.nodes[node].gpus.items():
            offer = self.fleet.offer_on(resource, node)
            if offer is not None and offer.form in (GpuForm.MPS, GpuForm.TIME_SLICING) and not offer.profile:
                yield -(-units // offer.replicas), offer.replicas, self.free[node].gpus.get(resource, 0)

    def _free_gpu_milli(self, node: int, most: int) -> IntArray:
        """Return free thousandths of each GPU. Shares are spread as the device plugin does: the emptiest card first."""
        free = []
        for gpus, replicas, shares in self._shared_gpus(node):
            if gpus:
                each, more = divmod(max(0, shares), gpus)
                free.append(max(1, GPU_MILLI // replicas) * (each + (np.arange(gpus) < more)))
        known = np.concatenate([*free, np.full(max(0, self.whole_gpus(node)[1]), GPU_MILLI)])
        levels = np.zeros(most, np.int64)
        levels[: len(known)] = known
        return levels


def _subtract_requirements(free: FreeResources, requirements: PodRequirements) -> FreeResources:
    gpus = dict(free.gpus)
    for resource, count in requirements.gpu_resources:
        gpus[resource] = gpus.get(resource, 0) - count
    cpu_milli, memory = free.cpu_milli - requirements.cpu_milli, free.memory - requirements.memory
    return msgspec.structs.replace(free, cpu_milli=cpu_milli, memory=memory, gpus=gpus)


MAX_RESERVATIONS = 4096
"""Reservations at one time; beyond that the oldest is dropped."""


class NodeReservation(msgspec.Struct, frozen=True):
    """A node reserved for one pod.

    Attributes:
        pod: "namespace/name"; "" for a pod of a gang that has not arrived.
        amounts: Amounts that it will hold there, nano-units by resource.
        expires_at: Seconds of the caller's clock.
        gang: Name of its gang; "" for none.
        container_requests: Its containers that request whole GPUs; () unless several do.
    """

    uid: str
    pod: str
    node: str
    amounts: Mapping[str, int]
    expires_at: float
    gang: str = ""
    container_requests: ContainerRequests = ()


class NodeReservations:
    """All reservations. It has one writer; each change returns the names of the nodes that it affects."""

    def __init__(self) -> None:
        self._by_uid: dict[str, NodeReservation] = {}
        self._by_node: dict[str, dict[str, NodeReservation]] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def on_node(self, node: str) -> Iterable[NodeReservation]:
        """Return the reservations of a node, the oldest first."""
        return self._by_node.get(node, {}).values()

    @property
    def nodes(self) -> set[str]:
        """Names of the nodes with a reservation."""
        return set(self._by_node)

    def reserve(self, reservation: NodeReservation) -> set[str]:
        """Add a reservation, replacing the pod's earlier one."""
        changed = self.release(reservation.uid)
        if len(self._by_uid) >= MAX_RESERVATIONS:
            changed |= self.release(next(iter(self._by_uid)))
        self._by_uid[reservation.uid] = reservation
        self._by_node.setdefault(reservation.node, {})[reservation.uid] = reservation
        return changed | {reservation.node}

    def release(self, uid: str) -> set[str]:
        """Remove a pod's reservation."""
        reservation = self._by_uid.pop(uid, None)
        if reservation is None:
            return set()
        on_node = self._by_node[reservation.node]
        del on_node[uid]
        if not on_node:
            del self._by_node[reservation.node]
        return {reservation.node}

    def of_gang(self, gang: str) -> list[NodeReservation]:
        """Return the reservations of a gang, including those for pods that have not arrived."""
        return [each for each in self._by_uid.values() if each.gang == gang] if gang else []

    def expire(self, now: float, is_bound: Callable[[str], bool]) -> set[str]:
        """Remove expired reservations, and those of pods ("namespace/name") that `is_bound`."""
        expired = [each.uid for each in self._by_uid.values() if each.expires_at <= now or is_bound(each.pod)]
        return {node for uid in expired for node in self.release(uid)}
