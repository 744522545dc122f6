"""The extender's state: an index of the nodes that follows the inventory, reservations, and the learned workload mix.

One event loop handles requests and watch events. A new index, or a new scorer after learning, is built in a thread from
a copy of the loop's data.

Devices of ResourceSlices that pods need, and those reserved for pods whose claims have no allocation yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from webhook.cache.inventory import NodeInventory
from webhook.cache.stored_objects import object_namespace
from webhook.model.batch import gang_of
from webhook.model.dra.allocator import NodeAllocation
from webhook.model.dra.device_view import NO_DEVICES, ClaimsByNamespace
from webhook.model.dra.pod_devices import is_partly_served, resolve_claims, with_devices_taken
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.objects import Node
from webhook.model.pod_resources import ResourceAmounts, effective_requests
from webhook.model.pod_summary import PodSummary
from webhook.model.pods import Pod, pod_key, pod_uid
from webhook.placement.capacity import IntArray
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.fragmentation.workload_mix import HALF_LIFE, MixEstimator, WorkloadMix
from webhook.placement.nodes.device_plugin import multi_container_requests
from webhook.placement.nodes.device_values import DeviceValueFinder, DeviceValues, NeededDevices
from webhook.placement.nodes.gangs import GangContext
from webhook.placement.nodes.gpu_links import precompute_gpu_sets
from webhook.placement.nodes.pod_requirements import PodRequirements, requirements_from_amounts
from webhook.placement.nodes.ranking import FillOrder, NodeRanking
from webhook.placement.nodes.snapshot import NodeReservation, NodeReservations, SchedulingSnapshot

ARRIVALS_PER_STEP = 500
"""Arrivals counted before requests get their turn: about a millisecond."""

MAX_COUNTED_PODS = 4096
"""Pods remembered as counted."""


class WorkloadLearner:
    """The learned mix.

    Attributes:
        has_new_mix: Whether the scorer should be rebuilt.
    """

    def __init__(self) -> None:
        self.has_new_mix = False
        self._learner = MixEstimator()
        self._profiles: Counter[str] = Counter()
        self._arrived: dict[str, None] = {}

    def estimated_mix(self) -> WorkloadMix:
        """Return the mix of demands for whole GPUs and shares."""
        return self._learner.estimated_mix()

    def profile_weights(self, fleet: Fleet) -> tuple[tuple[str, float], ...]:
        """Return how often each MIG profile is requested. Every advertised profile counts at least once."""
        known = (parse_gpu_resource(name) for name in fleet.resources())
        weights = Counter({resource.profile: 1 for resource in known if resource is not None and resource.mig})
        weights.update(self._profiles)
        return tuple(sorted((profile, float(count)) for profile, count in weights.items()))

    def start(self, snapshot: SchedulingSnapshot, running: Iterable[PodSummary]) -> None:
        """Count the running pods from zero: an index that failed is built again."""
        self._learner, self._profiles = MixEstimator(), Counter()
        for pod in running:
            node = snapshot.fleet.by_name.get(pod.node, -1)
            if node >= 0:
                self._count(snapshot, requirements_from_amounts(dict(pod.requests), snapshot.fleet.all_nodes), node)

    def record_arrival(self, snapshot: SchedulingSnapshot, uid: str, requirements: PodRequirements) -> None:
        """Count a pod that is being scheduled, once."""
        if uid in self._arrived:
            return
        if len(self._arrived) >= MAX_COUNTED_PODS:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[uid] = None
        self._count(snapshot, requirements, -1)

    async def record_other_arrivals(
        self, snapshot: SchedulingSnapshot, arrivals: Mapping[ResourceAmounts, int]
    ) -> None:
        """Count pods without GPUs, which the scheduler does not send: they are counted once they are on a node.

        The cluster has at least one node; `arrivals` is the number of pods by amounts.
        """
        anywhere = snapshot.fleet.all_nodes
        demands = (
            (snapshot.pod_demand(requirements_from_amounts(dict(amounts), anywhere), 0), times)
            for amounts, times in arrivals.items()
        )
        each = chain.from_iterable(repeat(demand, times) for demand, times in demands)
        while some := tuple(islice(each, ARRIVALS_PER_STEP)):
            for demand in some:
                self.has_new_mix |= self._learner.record_arrival(demand)
            await asyncio.sleep(0)

    def _count(self, snapshot: SchedulingSnapshot, requirements: PodRequirements, node: int) -> None:
        demand = snapshot.pod_demand_anywhere(requirements, node) if requirements.resource or node >= 0 else None
        if demand is None:
            return
        resource = parse_gpu_resource(requirements.resource)
        if resource is not None and resource.mig:
            self._profiles[resource.profile] += requirements.count
            if self._profiles.total() > 2 * HALF_LIFE:  # older requests count less
                self._profiles = Counter({name: (times + 1) // 2 for name, times in self._profiles.items()})
        self.has_new_mix |= self._learner.record_arrival(demand)


RESERVATION_SECONDS = 15.0
"""Lifetime of a reservation. A bind takes a fraction of a second; volumes may take longer."""

MAX_GANG_RESERVATIONS = 64
"""Reservations for the remaining pods of one gang; each costs an update of a node."""

NODES_PER_REFRESH = 256
"""Nodes that are updated before a request is answered; the background task does the rest."""

STEP_SECONDS = 0.05
INDEX_SECONDS = 2.0
"""Minimum time between two indexes of the nodes."""

Clock = Callable[[], float]
"""Monotonic seconds."""


NO_FLEET = Fleet(())


class SchedulerState:
    """Nodes, reservations and the learned mix.

    Attributes:
        ranking: None until all nodes are known for the first time.
        learning: The learned workload mix.
        devices: The devices that pods need, and those reserved for them.
        device_values: The values of nodes for such pods.
        is_over_share: Whether a pod's group is over its fair share; replaced by the fair-share task.
    """

    def __init__(
        self,
        inventory: NodeInventory,
        strategy: ScoringStrategy = ScoringStrategy.TAB,
        fill: FillOrder = FillOrder.PACK,
    ) -> None:
        self.inventory, self._strategy, self._fill = inventory, strategy, fill
        self.is_over_share: Callable[[Pod], bool] = lambda _pod: False
        self.ranking: NodeRanking | None = None
        self.reservations = NodeReservations()
        self.learning = WorkloadLearner()
        self.devices, self.device_values = ReservedDevices(inventory), DeviceValueFinder()
        self._missed: set[str] | None = None

    @property
    def fleet(self) -> Fleet:
        """The nodes; empty until they are known."""
        return self.ranking.snapshot.fleet if self.ranking is not None else NO_FLEET

    def positions(self, names: Iterable[str]) -> IntArray:
        """Return the positions of nodes in the index; -1 for unknown ones."""
        positions = self.fleet.by_name
        return np.array([positions.get(name, -1) for name in names], np.int64)

    def refresh(self, now: float) -> int:
        """Apply expired reservations and up to `NODES_PER_REFRESH` other changes. Return how many nodes changed."""
        expired = self.reservations.expire(now, self.inventory.gpu_pods.has_pod)
        names = expired.union(self.inventory.take_changed_nodes(NODES_PER_REFRESH))
        self._update_nodes(names)
        return len(names)

    def reserve(self, pod: Pod, node: str, now: float, others: Iterable[str] = ()) -> None:
        """Reserve a node for a pod, and `others` for one more pod of its gang each, until those pods arrive."""
        amounts, expires_at, gang = effective_requests(pod), now + RESERVATION_SECONDS, gang_name(pod)
        reservation = NodeReservation(
            pod_uid(pod), pod_key(pod), node, amounts, expires_at, gang, multi_container_requests(pod)
        )
        changed = self.reservations.reserve(reservation)
        for number, other in enumerate(islice(others, MAX_GANG_RESERVATIONS)):
            changed |= self.reservations.reserve(replace(reservation, uid=f"{gang}#{number}", pod="", node=other))
        self._update_nodes(changed)

    def release(self, pod: Pod) -> None:
        """Drop the pod's earlier reservation, and those for the rest of its gang: one of them is for this pod."""
        for_gang = [each.uid for each in self.reservations.of_gang(gang_name(pod)) if not each.pod]
        self._update_nodes({node for uid in (pod_uid(pod), *for_gang) for node in self.reservations.release(uid)})

    def find_device_values(self, needed: NeededDevices | None, nodes: Iterable[int]) -> DeviceValues | None:
        """Return the values of nodes for the devices that a pod needs; None if it needs none."""
        if needed is None or self.ranking is None:
            return None
        return self.device_values.find(needed, nodes, self.fleet, self.ranking.profiles)

    def gang_context(self, pod: Pod) -> GangContext | None:
        """Return the known pods of its gang with their nodes or reservations; None for a pod without a gang."""
        gang = gang_of(pod)
        if gang is None:
            return None
        members = {**self.inventory.gpu_pods.gang_members(gang.name)}
        members |= {each.pod: each.node for each in self.reservations.of_gang(gang.name) if each.pod}
        members.pop(pod_key(pod), None)
        nodes, positions = [node for node in members.values() if node], self.fleet.by_name
        placed = Counter(positions[node] for node in nodes if node in positions)
        return GangContext(gang.size, gang.domain, placed, waiting=len(members) - len(nodes))

    async def run(self, clock: Clock, indexed: Callable[[], None] = lambda: None) -> None:
        """Build new indexes and scorers, and apply changes that no request did, until cancelled.

        `indexed` is called after each new index.
        """
        built_at = float("-inf")
        while True:
            if self._is_outdated() and clock() >= built_at + INDEX_SECONDS:
                await self._index_changes()
                built_at = clock()
                indexed()
            if self.learning.has_new_mix:
                await self._update_scorer()
            arrivals, self.inventory.arrivals = self.inventory.arrivals, Counter()
            if self.ranking is not None and self.ranking.snapshot.free:
                await self.learning.record_other_arrivals(self.ranking.snapshot, arrivals)
            while self.refresh(clock()) >= NODES_PER_REFRESH:
                await asyncio.sleep(0)
            await asyncio.sleep(STEP_SECONDS)

    def _is_outdated(self) -> bool:
        return self.inventory.index_outdated or self.inventory.devices.is_outdated(self.fleet)

    async def _index_changes(self) -> None:
        if self.inventory.index_outdated:
            await self.rebuild_index()
        else:
            await self.inventory.devices.update_pools(self.fleet)

    async def rebuild_index(self) -> None:
        """Index the nodes; changes that happen meanwhile are applied afterwards."""
        self.inventory.index_outdated = False
        self._missed = set()
        running: Sequence[PodSummary] = ()
        if self.ranking is None:  # pods on nodes at the start count as arrivals, so the inventory's count is reset
            self.inventory.arrivals, running = Counter(), self.inventory.bound_pods()
        try:
            ranking = await asyncio.to_thread(self._build_ranking, self.inventory.all_nodes(), running)
            await self.inventory.devices.update_pools(ranking.snapshot.fleet)  # positions are those of this fleet
        except BaseException:
            self.inventory.index_outdated = True
            raise
        missed, self._missed = self._missed, None
        self.ranking = ranking
        self._update_nodes(missed | self.reservations.nodes)

    def _build_ranking(self, nodes: Sequence[Node], running: Sequence[PodSummary]) -> NodeRanking:
        fleet = Fleet(nodes)
        free = {node.name: self.inventory.free_on_node(node) for node in fleet.nodes}
        cluster = SchedulingSnapshot(
            fleet,
            {name: resources for name, (resources, _) in free.items()},
            {name: devices for name, (_, devices) in free.items() if devices is not None},
        )
        if self.ranking is None:
            self.learning.start(cluster, running)
        precompute_gpu_sets(list({devices.topology for devices in cluster.devices if devices.topology.gpu_count}))
        return NodeRanking(
            cluster, self._strategy, self.learning.estimated_mix(), self.learning.profile_weights(fleet), self._fill
        )

    async def _update_scorer(self) -> None:
        self.learning.has_new_mix = False
        ranking, mix = self.ranking, self.learning.estimated_mix()
        if ranking is not None:
            scorer = await asyncio.to_thread(ranking.build_scorer, mix)
            ranking.set_scorer(scorer, self.learning.profile_weights(ranking.snapshot.fleet))

    def _update_nodes(self, names: Iterable[str]) -> None:
        if self._missed is not None:
            names = list(names)
            self._missed.update(names)
        if self.ranking is None:
            return
        fleet = self.fleet
        positions = ((fleet.by_name[name], name) for name in names if name in fleet.by_name)
        self.ranking.set_nodes(
            {
                position: self.inventory.free_on_node(fleet.nodes[position], self.reservations.on_node(name))
                for position, name in positions
            }
        )


def gang_name(pod: Pod) -> str:
    """Return a name unique to the pod's gang; "" for a pod without a gang."""
    gang = gang_of(pod)
    return gang.name if gang else ""


MAX_RESERVED = 256
"""Pods with reserved devices; beyond that the oldest reservation is dropped."""


class DeviceReservation(NamedTuple):
    """The devices that a pod will get on the node that is best for it.

    Attributes:
        claims: The names of its claims in its namespace.
        found: The devices.
        expires_at: Seconds of the caller's clock.
    """

    namespace: str
    claims: tuple[str, ...]
    found: NodeAllocation
    expires_at: float

    def has_ended(self, now: float, claims: ClaimsByNamespace) -> bool:
        """Return whether it has expired, or a claim of the pod has its devices."""
        known = claims.get(self.namespace, {})
        statuses = (known[name].status for name in self.claims if name in known)
        return self.expires_at <= now or any(each.allocation is not None for each in statuses)


class ReservedDevices:
    """The devices that pods need. A scheduler sends the next pod before the claims of the last one are written."""

    def __init__(self, inventory: NodeInventory) -> None:
        self._inventory = inventory
        self._by_uid: dict[str, DeviceReservation] = {}

    def find_needed(self, pod: Pod, fleet: Fleet, now: float) -> NeededDevices | None:
        """Return the devices that a pod needs; None if it needs none, or if what else provides them is unknown.

        Its earlier reservation is dropped.
        """
        self._by_uid.pop(pod_uid(pod), None)
        view = self._inventory.device_view()
        if view is NO_DEVICES:
            return None
        claims = resolve_claims(pod, self._inventory.claims_of_pod(pod, view), view, fleet)
        is_decided = claims.rejection or not (claims.unallocated or claims.extended)
        if is_decided or is_partly_served(claims, fleet):
            return None
        self._by_uid = {uid: one for uid, one in self._by_uid.items() if not one.has_ended(now, view.claims)}
        return NeededDevices(pod, claims, with_devices_taken(view, [one.found for one in self._by_uid.values()]))

    def reserve(self, needed: NeededDevices, node: int, fleet: Fleet, expires_at: float) -> None:
        """Reserve the devices that a pod would get on a node."""
        made = {each.name: each.resource_claim_name for each in needed.pod.status.resource_claim_statuses}
        names = tuple(each.resource_claim_name or made.get(each.name, "") for each in needed.pod.spec.resource_claims)
        found = needed.find_on_node(node, fleet)
        if not found.claims:
            return
        if len(self._by_uid) >= MAX_RESERVED:
            del self._by_uid[next(iter(self._by_uid))]
        namespace = object_namespace(needed.pod)
        self._by_uid[pod_uid(needed.pod)] = DeviceReservation(namespace, names, found, expires_at)
