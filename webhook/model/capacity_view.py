"""CapacityView: what is free on the nodes of a cluster, less what pods that wait or were just admitted may take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

from msgspec.structs import replace

from webhook.model.assumed_pods import AssumedPod, AssumedPods, ObservedPod
from webhook.model.dra.class_offers import NO_CLASS_OFFERS, ClassOffer, ClassOffers, class_offers
from webhook.model.dra.device_pools import DevicePools
from webhook.model.dra.device_view import NO_DEVICES
from webhook.model.filters.node_ports import HostPort
from webhook.model.fleet import DEVICES_BY_NAME_MINOR, Fleet
from webhook.model.free_resources import (
    FreeResources,
    NodeNeeds,
    PendingDeviceUse,
    free_devices_by_node,
    free_resources_of_empty_node,
)
from webhook.model.node_masks import EMPTY_INDEX, ThresholdIndex, bit_positions
from webhook.model.offers import GpuOffer
from webhook.model.pod_resources import RequestedAmounts, ResourceAmounts
from webhook.model.pod_summary import CLAIMED_DEVICES
from webhook.model.waiting_pods import (
    NO_KINDS,
    UnitSum,
    WaitingKind,
    WaitingPods,
    add_other_amounts,
    has_slot_left,
    sum_units,
)


class CapacityView:
    """Free resources of nodes. Immutable; every change returns a new view that shares the rest.

    Attributes:
        fleet: Nodes and offers.
        devices: Devices of ResourceSlices, and the claims that have them.
        free_beside_devices: Free resources of nodes with devices and without other GPUs, by index.
        free_beside_lasting: Free resources of nodes on which only pods of DaemonSets and static pods run, by name;
            other nodes have no such pods.
        replicas: Servers that admit pods to this cluster; 0 if nothing else happens to it at the same time.
        api_minor: The minor version of its API server; 0 if unknown.
    """

    def __init__(
        self,
        fleet: Fleet,
        free: Mapping[str, FreeResources],
        waiting: Mapping[WaitingKind, int],
        assumed: Iterable[AssumedPod],
    ) -> None:
        """Index what is free.

        Args:
            free: Free resources by node name; other nodes are empty.
            waiting: Numbers of pods without a node.
            assumed: Pods admitted a moment ago.
        """
        self.fleet = fleet
        self.replicas = 0
        self.api_minor = 0
        self.devices = NO_DEVICES
        self.free_beside_devices: Mapping[int, FreeResources] = {}
        self.free_beside_lasting: Mapping[str, FreeResources] = {}
        self._waiting = WaitingPods(waiting, fleet)
        self._assumed = AssumedPods(assumed)
        self._index_free(free)

    def _index_free(self, free_by_node: Mapping[str, FreeResources]) -> None:
        nodes = self.fleet.nodes
        free = [free_by_node.get(node.name) or free_resources_of_empty_node(node) for node in nodes]
        with_gpus = [i for i, node in enumerate(nodes) if node.gpus]
        self._cpu = ThresholdIndex({i: free[i].cpu_milli for i in with_gpus})
        self._memory = ThresholdIndex({i: free[i].memory for i in with_gpus})
        self._pods = ThresholdIndex({i: free[i].pods for i in with_gpus})
        self._gpus = {
            resource: ThresholdIndex({i: free[i].gpus.get(resource, 0) for i in with_gpus if resource in nodes[i].gpus})
            for resource in self.fleet.resources()
        }
        self._others = {
            name: ThresholdIndex({i: free[i].others.get(name, 0) for i in with_gpus})
            for name in self.fleet.other_resources
        }

    @property
    def unseen_pods(self) -> int:
        """The most pods that replicas may admit at the same time as a pod, each taking a unit that it could have."""
        return max(0, 2 * self.replicas - 1)

    def free_units(self, offer: GpuOffer, nodes: int) -> int:
        """Return the free units of an offer on the nodes of a mask, minus those of waiting and assumed pods."""
        mask, index = nodes & offer.nodes, self._gpus.get(offer.resource, EMPTY_INDEX)
        return max(0, index.total_amount(mask) - self._pending_units(offer.resource, mask).units)

    def count_free_slots(
        self,
        resource: str,
        nodes: int,
        cpu_milli: int,
        memory: int,
        others: ResourceAmounts,
        most: int,
        *,
        one_on_node: bool,
        units: int = 1,
    ) -> int:
        """Return how many pods with some units each can start now on nodes of a mask, up to a number.

        What waiting and assumed pods may take of the units is not free.
        """
        pending, on_node = self._pending_units(resource, nodes).units, self.free_index(resource).max_amount(nodes)
        on_node = min(1 if one_on_node else most + pending, on_node // units)
        slots = 0
        for each in range(1, on_node + 1):
            free = self.find_free_nodes(resource, nodes, each, cpu_milli, memory, others, units)
            if not free:
                break
            slots += free.bit_count()
        return min(most, max(0, slots - pending))

    def find_free_nodes(
        self, resource: str, nodes: int, pods: int, cpu_milli: int, memory: int, others: ResourceAmounts, units: int = 1
    ) -> int:
        """Return the nodes of a mask with enough free for a number of pods with some units each.

        Pods without a node take nothing.
        """
        found = nodes & self._fitting(resource, pods * units, pods * cpu_milli, pods * memory)
        found &= self._pods.nodes_with_at_least(pods)
        for name, amount in others:
            found &= self._others.get(name, EMPTY_INDEX).nodes_with_at_least(pods * amount)
        return found

    def nodes_with_free_units(self, resource: str) -> int:
        """Return the nodes with a unit of a GPU resource that no pod holds."""
        return self._gpus.get(resource, EMPTY_INDEX).nodes_with_at_least(1)

    def free_on_node(self, index: int) -> FreeResources:
        """Return what the pods of a node with GPUs leave free, GPUs aside."""
        others = {name: found.amount_of(index) for name, found in self._others.items()}
        cpu_milli, memory = self._cpu.amount_of(index), self._memory.amount_of(index)
        return FreeResources(cpu_milli, memory, {}, others=others, pods=self._pods.amount_of(index))

    def free_index(self, resource: str) -> ThresholdIndex:
        """Return the units of a GPU resource that no pod holds, by node."""
        return self._gpus.get(resource, EMPTY_INDEX)

    def has_free_node(
        self,
        resource: str,
        count: int,
        nodes: int,
        cpu_milli: int,
        memory: int,
        others: ResourceAmounts = (),
        ports: tuple[HostPort, ...] = (),
        takers: int = 0,
    ) -> bool:
        """Return whether one node in the mask accepts one more pod, and has units, CPU, memory and others free for it.

        Waiting and assumed pods count as if each took the node that this pod would get: the answer is no if together
        they could leave no node with enough units, CPU, memory and room for a pod. With replicas, another pod may be
        admitted to each unseen that takes units by its own request, and each of the others may decide like this one:
        these count too.

        Of pods with host ports that conflict with `ports`, each takes a whole node, and so does each of the `takers`.
        """
        if resource not in self._gpus:
            offered = self.class_offers().by_resource.get(resource)
            return offered is not None and self._has_free_device(
                offered, nodes, cpu_milli, memory, others, ports, takers
            )
        count = max(1, count)
        if others:
            nodes &= self._nodes_with_others(nodes, others)
        fitting = nodes & self._fitting(resource, count, cpu_milli, memory)
        if not fitting or self._assumed.is_full:
            return False
        taken = self._pending_units(resource, fitting)
        cpu, size, pods = self._pending_amounts_of_others(resource, fitting)
        each = (max(taken.cpu_milli, cpu_milli), max(taken.memory, memory)) if self.replicas else taken[1:3]
        taken_units = taken.units + self.unseen_pods
        roomy = self._pods.nodes_with_at_least(pods + 1 + taken_units)  # their pod limit excludes none of these
        if ports:
            taken_units += self._assumed.count_port_holders(ports)
        taken_units += takers

        def nodes_after(times: int) -> int:
            """Return the nodes that still fit the pod after this number of others took units of each."""
            more = times * each[0] + cpu, times * each[1] + size
            needs = cpu_milli and cpu_milli + more[0], memory and memory + more[1]
            left = fitting & self._fitting(resource, count + times, *needs)
            return left & self._pods.nodes_with_at_least(pods + 1 + times) if left & roomy != left else left

        if ports or takers:
            return nodes_after(0).bit_count() > taken_units
        return has_slot_left(nodes_after, taken_units)

    def _has_free_device(
        self,
        offered: ClassOffer,
        nodes: int,
        cpu_milli: int,
        memory: int,
        others: ResourceAmounts,
        ports: tuple[HostPort, ...],
        takers: int,
    ) -> bool:
        """Return whether a node in the mask has a device of a class free, and the rest, as `has_free_node` does."""
        if self._assumed.is_full:
            return False
        needs = NodeNeeds(cpu_milli, memory, dict(others))
        taken = PendingDeviceUse(offered, needs, self.class_offers(), self.devices)
        for held in self._awaited((*self._gpus, *self.devices.class_by_resource, CLAIMED_DEVICES)):
            taken.add_pods(held, self._waiting.kinds_of(held), self._assumed.units.get(held, NO_KINDS))
        taken_devices = taken.devices + self.unseen_pods * offered.most_per_card
        if ports:
            taken_devices += self._assumed.count_port_holders(ports)
        taken_devices += takers
        slots = 0
        published = (node for node in bit_positions(nodes & offered.offer.nodes) if node in self.free_beside_devices)
        for node, free in free_devices_by_node(offered, published, self.devices):
            room = min(free, taken.room_on(self.free_beside_devices[node]))
            slots += min(room, 1) if ports or takers else room
            if slots > taken_devices:
                return True
        return False

    def class_offers(self) -> ClassOffers:
        """Return the device classes that pods can request instead of whole GPUs; none before Kubernetes 1.36."""
        if self.api_minor < DEVICES_BY_NAME_MINOR or not self.devices.knows_claims or not self.device_pools():
            return NO_CLASS_OFFERS
        return class_offers(self.devices, self.fleet)

    def is_class_offer(self, resource: str) -> bool:
        """Return whether `class_offers` has an offer of this resource."""
        return resource in self.devices.class_by_resource and resource in self.class_offers().by_resource

    def has_fewer_pending(self, resource: str, units: int) -> bool:
        """Return whether waiting and assumed pods hold fewer units of a resource than this, wherever they may run."""
        kinds = self._waiting.kinds_of(resource), self._assumed.units.get(resource, NO_KINDS)
        return sum(kind.amount * pods for counts in kinds for kind, pods in counts.items()) < units

    def _nodes_with_others(self, nodes: int, others: ResourceAmounts) -> int:
        """Return the nodes that have other resources free, whatever waiting and assumed pods take of them."""
        pods, taken = max(1, 2 * self.replicas), dict.fromkeys((name for name, _ in others), 0)
        for held in self._awaited(self._gpus):
            kinds = self._waiting.kinds_of(held), self._assumed.units.get(held, NO_KINDS)
            if not add_other_amounts(taken, kinds, nodes, self._gpus.get(held, EMPTY_INDEX)):
                return 0
        for name, amount in others:
            nodes &= self._others.get(name, EMPTY_INDEX).nodes_with_at_least(taken[name] + pods * amount)
        return nodes

    def _awaited(self, served: Iterable[str]) -> set[str]:
        """Return those of the resources that some node serves that waiting or assumed pods name.

        Pods may name thousands of others, which no node gives them.
        """
        waiting, assumed = self._waiting.resources(), self._assumed.units
        return {name for name in served if name in waiting or name in assumed}

    def _pending_units(self, resource: str, nodes: int) -> UnitSum:
        """Return the units of a resource that waiting and assumed pods may take on these nodes."""
        kinds = self._waiting.kinds_of(resource), self._assumed.units.get(resource, NO_KINDS)
        return sum_units(kinds, nodes, self._gpus.get(resource, EMPTY_INDEX))

    def _pending_amounts_of_others(self, resource: str, nodes: int) -> tuple[int, int, int]:
        """Return CPU, memory and number of waiting and assumed pods that may hold other resources of these nodes."""
        cpu_milli = memory = pods = 0
        for name in self._awaited(self._gpus):
            taken = self._pending_units(name, nodes)
            if name != resource and taken.units and (free := self._gpus.get(name, EMPTY_INDEX).total_amount(nodes)):
                more = taken.amounts_with(free)
                cpu_milli, memory, pods = cpu_milli + more[0], memory + more[1], pods + min(taken.units, free)
        return cpu_milli, memory, pods

    def _fitting(self, resource: str, count: int, cpu_milli: int, memory: int) -> int:
        """Return the mask of the nodes with enough units, CPU and memory, ignoring assumed pods."""
        nodes = self._gpus.get(resource, EMPTY_INDEX).nodes_with_at_least(count)
        if cpu_milli > 0:
            nodes &= self._cpu.nodes_with_at_least(cpu_milli)
        return nodes & self._memory.nodes_with_at_least(memory) if memory > 0 else nodes

    def device_pools(self) -> DevicePools:
        """Return the devices, as they decide about pods that have claims."""
        return self.devices.pools

    def free_when_idle(self, node: int) -> FreeResources:
        """Return the free resources of a node on which only pods of DaemonSets and static pods run."""
        each = self.fleet.nodes[node]
        return self.free_beside_lasting.get(each.name) or free_resources_of_empty_node(each)

    def with_all_free(self, free: Mapping[str, FreeResources]) -> Self:
        """Return the view with other free resources, by node name; other nodes are empty."""
        beside = {i: free[name] for i in self.free_beside_devices if (name := self.fleet.nodes[i].name) in free}
        view = self._copy_with(free_beside_devices={**self.free_beside_devices, **beside})
        view._index_free(free)
        return view

    def with_lasting(self, changes: Mapping[str, FreeResources | None]) -> Self:
        """Return the view after pods that some nodes always have came or went; None where there are none any more."""
        if not changes:
            return self
        found = {**self.free_beside_lasting, **changes}
        return self._copy_with(free_beside_lasting={name: free for name, free in found.items() if free is not None})

    def without_waiting_pods(self) -> Self:
        """Return the view without the pods that wait for a node and could take what another pod needs."""
        return self._copy_with(_waiting=WaitingPods({}, self.fleet))

    def with_free(self, changes: Mapping[int, tuple[FreeResources, FreeResources]]) -> Self:
        """Return the view after free resources changed on some nodes; the cost depends on the number of changes.

        Args:
            changes: By index of a node with GPUs or devices: its free resources in this view, and the new ones.
        """
        beside = {i: after for i, (_, after) in changes.items() if i in self.free_beside_devices}
        moves = [(i, amounts) for i, amounts in changes.items() if self.fleet.nodes[i].gpus]
        return self._copy_with(
            free_beside_devices={**self.free_beside_devices, **beside} if beside else self.free_beside_devices,
            _cpu=self._cpu.with_changes((i, old.cpu_milli, new.cpu_milli) for i, (old, new) in moves),
            _memory=self._memory.with_changes((i, old.memory, new.memory) for i, (old, new) in moves),
            _pods=self._pods.with_changes((i, old.pods, new.pods) for i, (old, new) in moves),
            _gpus={name: self._with_units_changed(name, index, moves) for name, index in self._gpus.items()},
            _others={name: _with_others_changed(name, index, moves) for name, index in self._others.items()},
        )

    def with_unit_taken(self, resource: str, node: int, amounts: RequestedAmounts) -> Self:
        """Return the view after one more pod on a node took a unit of a GPU resource and its other amounts."""
        units = {name: self.free_index(name).amount_of(node) for name in self.fleet.nodes[node].gpus}
        before, taken = replace(self.free_on_node(node), gpus=units), dict(amounts.others)
        after = FreeResources(
            before.cpu_milli - amounts.cpu_milli,
            before.memory - amounts.memory,
            {**units, resource: units[resource] - 1},
            others={name: amount - taken.get(name, 0) for name, amount in before.others.items()},
            pods=before.pods - 1,
        )
        return self.with_free({node: (before, after)})

    def _with_units_changed(
        self, resource: str, index: ThresholdIndex, moves: Sequence[tuple[int, tuple[FreeResources, FreeResources]]]
    ) -> ThresholdIndex:
        units = [
            (i, old.gpus.get(resource, 0), new.gpus.get(resource, 0))
            for i, (old, new) in moves
            if resource in self.fleet.nodes[i].gpus
        ]
        return index.with_changes(units) if any(old != new for _, old, new in units) else index

    def with_waiting(self, counts: Mapping[WaitingKind, int]) -> Self:
        """Return the view with the numbers of some kinds of pods without a node replaced."""
        return self._copy_with(_waiting=self._waiting.with_changes(counts))

    def with_assumed(self, pod: AssumedPod, now: float) -> Self:
        """Return the view with one more assumed pod and without those expired at `now`; a known uid adds nothing."""
        return self._with_assumed_pods(self._assumed.without_expired(now).with_pod(pod))

    def with_units_of(self, pod: AssumedPod) -> Self:
        """Return the view for one evaluation, after a pod that holds what this one holds was admitted."""
        return self._with_assumed_pods(self._assumed.with_units_of(pod))

    def without_expired(self, now: float) -> Self:
        """Return the view without expired assumed pods; itself if there are none."""
        return self._with_assumed_pods(self._assumed.without_expired(now))

    def without_observed(self, observed: Collection[ObservedPod]) -> Self:
        """Return the view without assumed pods that are in the cluster now. See `AssumedPods.without_observed`."""
        return self._with_assumed_pods(self._assumed.without_observed(observed))

    def _with_assumed_pods(self, assumed_pods: AssumedPods) -> Self:
        return self if assumed_pods is self._assumed else self._copy_with(_assumed=assumed_pods)

    @property
    def assumed_pods(self) -> tuple[AssumedPod, ...]:
        """The assumed pods."""
        return self._assumed.all_pods()

    def _copy_with(self, **parts: object) -> Self:
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view.__dict__.update(parts)
        return view


def _with_others_changed(
    name: str, index: ThresholdIndex, moves: Iterable[tuple[int, tuple[FreeResources, FreeResources]]]
) -> ThresholdIndex:
    amounts = [(i, old.others.get(name, 0), new.others.get(name, 0)) for i, (old, new) in moves]
    return index.with_changes(amounts) if any(old != new for _, old, new in amounts) else index
