"""A cluster ready to be ranked: what scheduling knows of the nodes, and their GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from webhook.model.cluster import Room
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.masks import bits, union
from webhook.model.modes import Form
from webhook.model.nodelabels import PRODUCT
from webhook.model.offers import Offer
from webhook.model.pods import Toleration
from webhook.model.products import normalised
from webhook.model.resources import WHOLE_GPU
from webhook.placement.devices import Devices, counted, expected
from webhook.placement.needs import WHOLE, Need
from webhook.placement.nodes.allotting import Turns
from webhook.placement.nvlink import mask_of
from webhook.placement.rooms import Ints, Machine, Rooms, Site

MIB = 1 << 20


class Wanted(msgspec.Struct, frozen=True):
    """What one pod wants of a node.

    Attributes:
        resource: GPU resource name; "" for a pod without GPUs. Of several, the one that nodes are ranked by.
        count: Units of it.
        cpu_milli: CPU in millicores.
        memory_mib: Memory in MiB.
        selected: Mask of the nodes that its selectors and required affinity allow.
        tolerations: What it tolerates.
        turns: The containers that ask for whole GPUs, where nodes are ranked by these; () elsewhere.
        communicates: True where the GPUs of a container talk to each other.
        joined: True where it must not run unless NVLink joins the GPUs of each container.
        also: The other GPU resources that it asks for, with units: a node must have room for them too.
    """

    resource: str
    count: int
    cpu_milli: int
    memory_mib: int
    selected: int
    tolerations: tuple[Toleration, ...] = ()
    turns: Turns = ()
    communicates: bool = False
    joined: bool = False
    also: tuple[tuple[str, int], ...] = ()

    @property
    def gpus(self) -> tuple[tuple[str, int], ...]:
        """All GPU resources that it asks for, with units; the one that nodes are ranked by first."""
        return ((self.resource, self.count), *self.also) if self.resource else ()


class Cluster:
    """Nodes, what is free on them, and their GPUs; position i is the same node everywhere.

    Attributes:
        fleet: The nodes as scheduling sees them.
        free: What is free on each.
        devices: The GPUs of each.
        unusable: Why reports cannot be used, by name of the node.
        site: The nodes as rules see them: whole GPUs and shares. MIG cards are valued apart.
    """

    def __init__(
        self,
        fleet: Fleet,
        free: Mapping[str, Room],
        devices: Mapping[str, Devices] | None = None,
        unusable: Mapping[str, str] | None = None,
    ) -> None:
        known = devices or {}
        self.unusable = unusable or {}
        self.fleet = fleet
        self.free = [free.get(node.name) or _empty(node) for node in fleet.nodes]
        self._offers = _offers_by_node(fleet)
        self.devices = [self._standing(i, known.get(node.name)) for i, node in enumerate(fleet.nodes)]
        self.site = Site([self._machine(i) for i in range(len(fleet.nodes))])
        self._of_model: dict[str, int] = {}
        for i, machine in enumerate(self.site.machines):
            if machine.gpus:
                self._of_model[machine.model] = self._of_model.get(machine.model, 0) | 1 << i

    def offer(self, node: int, resource: str) -> Offer | None:
        """What a resource name stands for on a node."""
        return self._offers[node].get(resource)

    def held(self, node: int, resource: str) -> int:
        """Units of a GPU resource that the pods of a node hold."""
        room = self.free[node]
        units = self.fleet.nodes[node].gpus.get(resource, 0)
        return units - room.units(resource)

    def whole_nodes(self) -> int:
        """Mask of the nodes on which `nvidia.com/gpu` is a whole card."""
        offers = self.fleet.by_resource.get(WHOLE_GPU, ())
        return union(offer.nodes for offer in offers if offer.form is Form.WHOLE)

    def whole(self, node: int) -> tuple[int, int]:
        """Whole GPUs of a node, and how many of them are free."""
        offer = self.offer(node, WHOLE_GPU)
        if offer is None or offer.form is not Form.WHOLE:
            return 0, 0
        return self.fleet.nodes[node].gpus.get(WHOLE_GPU, 0), self.free[node].gpus.get(WHOLE_GPU, 0)

    def need(self, wanted: Wanted, node: int) -> Need:
        """What a pod needs of a node in the terms of the rules. Of MIG instances and their shares: CPU, memory."""
        offer = self.offer(node, wanted.resource)
        if offer is None or offer.form is Form.MIG or offer.profile:
            return Need(wanted.cpu_milli, memory_mib=wanted.memory_mib)
        share = max(1, WHOLE // offer.replicas)
        return Need(wanted.cpu_milli, wanted.count, share, self._models(wanted), wanted.memory_mib)

    def rooms(self) -> Rooms:
        """What is free, for rules."""
        rooms = Rooms(self.site)
        self.refresh(rooms, range(len(self.free)))
        return rooms

    def refresh(self, rooms: Rooms, nodes: Sequence[int]) -> None:
        """Write what is free on some nodes."""
        some = np.array(nodes, np.int64)
        rooms.cpu[some] = [max(0, self.free[node].cpu_milli) for node in nodes]
        rooms.memory[some] = [max(0, self.free[node].memory) // MIB for node in nodes]
        for node in nodes:
            rooms.gpus[node] = self._levels(node, rooms.gpus.shape[1])

    def change(self, node: int, room: Room, devices: Devices | None) -> None:
        """Another amount is free on a node from now on. Only for who made the cluster, and shares it with nobody.

        Args:
            node: The node.
            room: What is free.
            devices: Its GPUs; None for what its labels let one expect.
        """
        self.free[node] = room
        self.devices[node] = self._standing(node, devices)

    def holding(self, wanted: Wanted, node: int, gpus: tuple[int, ...] = ()) -> Cluster:
        """The cluster after a pod has come to a node.

        Args:
            wanted: The pod.
            node: Its node.
            gpus: The whole GPUs that it gets; () where that is not known.
        """
        known = self.devices[node]
        free = known.free
        if dict(wanted.gpus).get(WHOLE_GPU):
            free = free & ~mask_of(gpus) if free is not None and gpus else None
        return self.with_room(node, _less(self.free[node], wanted), msgspec.structs.replace(known, free=free))

    def with_room(self, node: int, room: Room, devices: Devices | None = None) -> Cluster:
        """The cluster with another amount free on one node, and other devices if they are given."""
        after = object.__new__(Cluster)
        after.__dict__.update(self.__dict__)
        after.free, after.devices = self.free.copy(), self.devices.copy()
        after.change(node, room, devices or self.devices[node])
        return after

    def _standing(self, node: int, devices: Devices | None) -> Devices:
        """The GPUs of a node, held against what is free there; None for what its labels let one expect."""
        whole, free = self.whole(node)
        if devices is None:
            return expected(self.fleet.nodes[node], whole, free)
        return counted(devices, self.free[node].units(WHOLE_GPU)) if whole else devices

    def _models(self, wanted: Wanted) -> tuple[str, ...]:
        """The models that selectors leave, where they rule out some."""
        left = [model for model, nodes in self._of_model.items() if nodes & wanted.selected]
        return tuple(sorted(left)) if len(left) < len(self._of_model) else ()

    def _machine(self, node: int) -> Machine:
        known = self.fleet.nodes[node]
        gpus = self.whole(node)[0] + sum(gpus for gpus, _, _ in self._shared(node))
        return Machine(
            known.name, known.cpu_milli, known.memory // MIB, gpus, normalised(known.labels.get(PRODUCT, ""))
        )

    def _shared(self, node: int) -> Iterator[tuple[int, int, int]]:
        """By resource: GPUs of a node that are shared, shares of each, and how many shares are free."""
        for resource, offer in self._offers[node].items():
            if offer.form in (Form.MPS, Form.TIME_SLICING) and offer.profile == "":
                units = self.fleet.nodes[node].gpus.get(resource, 0)
                yield -(-units // offer.replicas), offer.replicas, self.free[node].gpus.get(resource, 0)

    def _levels(self, node: int, most: int) -> Ints:
        """Free thousandths of each GPU. Shares are spread as the device plugin does: the emptiest card first."""
        levels = np.zeros(most, np.int64)
        whole = np.full(max(0, self.whole(node)[1]), WHOLE)
        known = np.concatenate([*(_spread(*each) for each in self._shared(node) if each[0]), whole])
        levels[: len(known)] = known
        return levels


def _spread(gpus: int, replicas: int, shares: int) -> Ints:
    each, more = divmod(max(0, shares), gpus)
    levels: Ints = max(1, WHOLE // replicas) * (each + (np.arange(gpus) < more))
    return levels


def _offers_by_node(fleet: Fleet) -> list[dict[str, Offer]]:
    found: list[dict[str, Offer]] = [{} for _ in fleet.nodes]
    for offer in fleet.offers:
        for node in bits(offer.nodes):
            found[node][offer.resource] = offer
    return found


def _less(room: Room, wanted: Wanted) -> Room:
    gpus = dict(room.gpus)
    for resource, count in wanted.gpus:
        gpus[resource] = gpus.get(resource, 0) - count
    cpu_milli, memory = room.cpu_milli - wanted.cpu_milli, room.memory - wanted.memory_mib * MIB
    return msgspec.structs.replace(room, cpu_milli=cpu_milli, memory=memory, gpus=gpus)


def _empty(node: FleetNode) -> Room:
    return Room(node.cpu_milli, node.memory, node.gpus)
