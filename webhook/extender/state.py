"""The cluster as it stands for the next pod: an index of its nodes, kept by what the inventory tells, and promises.

Requests and watches are taken in by one event loop. Making a new index, and a new rule from what was learnt, happens in
a thread beside it, out of what the loop took before and of what is only ever looked up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np
from msgspec.structs import replace

from webhook.cache.inventory import NodeInventory
from webhook.extender.workload_learner import WorkloadLearner
from webhook.model.batch import gang_of
from webhook.model.fleet import Fleet
from webhook.model.objects import Node
from webhook.model.pod_resources import effective_requests
from webhook.model.pod_summary import PodSummary
from webhook.model.pods import Pod, pod_key
from webhook.placement.capacity import BoolArray, IntArray
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.device_plugin import multi_container_requests
from webhook.placement.nodes.gangs import GangContext
from webhook.placement.nodes.gpu_links import precompute_gpu_sets
from webhook.placement.nodes.node_reservations import NodeReservation, NodeReservations
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.ranking import FillOrder, NodeRanking
from webhook.placement.nodes.snapshot import SchedulingSnapshot

RESERVATION_SECONDS = 15.0
"""How long a place is promised. A bind takes a fraction of a second; volumes may take longer."""

MAX_GANG_RESERVATIONS = 64
"""Places that are kept at most for those of one gang that are still to come: a place is a node written anew."""

NODES_PER_REFRESH = 256
"""Nodes that are written anew before a request is answered; more are left to the task beside it."""

STEP_SECONDS = 0.05
INDEX_SECONDS = 2.0
"""The least time between two indexes of the nodes."""

Clock = Callable[[], float]
"""Seconds that only grow."""


def never_over_share(_pod: Pod) -> bool:
    """Nobody is over a share."""
    return False


NO_FLEET = Fleet(())


class SchedulerState:
    """What is ranked, what is promised, and what is learnt.

    Attributes:
        ranking: None before everything is known for the first time.
        reservations: The places promised.
        learning: What is learnt of the pods that come.
        over: Has whoever a pod counts for had more than its share? Set by who knows.
    """

    def __init__(
        self, inventory: NodeInventory, policy: ScoringStrategy = ScoringStrategy.TAB, fill: FillOrder = FillOrder.PACK
    ) -> None:
        self.inventory, self._policy, self._fill = inventory, policy, fill
        self.is_over_share: Callable[[Pod], bool] = never_over_share
        self.ranking: NodeRanking | None = None
        self.reservations = NodeReservations()
        self.learning = WorkloadLearner()
        self._missed: set[str] | None = None

    @property
    def fleet(self) -> Fleet:
        """The nodes; none before they are known."""
        return self.ranking.cluster.fleet if self.ranking is not None else NO_FLEET

    def positions(self, names: Iterable[str]) -> IntArray:
        """Where nodes stand in the index; -1 for those that are not known."""
        places = self.fleet.by_name
        return np.array([places.get(name, -1) for name in names], np.int64)

    def node_filter(self, positions: IntArray) -> BoolArray:
        """The nodes at some positions, shape (nodes,)."""
        chosen = np.zeros(len(self.fleet.nodes), np.bool_)
        chosen[positions[positions >= 0]] = True
        return chosen

    def refresh(self, now: float, most: int = NODES_PER_REFRESH) -> int:
        """Take in what changed; gives how many nodes did.

        Args:
            now: Seconds of the clock.
            most: The most nodes to take in, beside those of promises that ended.
        """
        over = self.reservations.expire(now, self.inventory.has_gpu_pod)
        names = over.union(self.inventory.take_changed_nodes(most))
        self._update_nodes(names)
        return len(names)

    def reserve(self, pod: Pod, node: str, now: float, others: Iterable[str] = ()) -> None:
        """Promise a pod its place.

        Args:
            pod: The pod.
            node: Its node.
            now: Seconds of the clock.
            others: Nodes of which to keep a place for one more of its gang each, until they are asked about.
        """
        amounts, until, gang = effective_requests(pod), now + RESERVATION_SECONDS, gang_name(pod)
        place = NodeReservation(pod_uid(pod), pod_key(pod), node, amounts, until, gang, multi_container_requests(pod))
        touched = self.reservations.reserve(place)
        for number, other in enumerate(islice(others, MAX_GANG_RESERVATIONS)):
            touched |= self.reservations.reserve(replace(place, uid=f"{gang}#{number}", pod="", node=other))
        self._update_nodes(touched)

    def release(self, pod: Pod) -> None:
        """A pod is asked about anew: what it was promised before is void, and what was kept for its gang is for it."""
        kept = [place.uid for place in self.reservations.of_gang(gang_name(pod)) if not place.pod]
        self._update_nodes({node for uid in (pod_uid(pod), *kept) for node in self.reservations.release(uid)})

    def gang_context(self, pod: Pod) -> GangContext | None:
        """Those of its gang that are known, and where they are or were promised a place; None for a pod on its own."""
        gang = gang_of(pod)
        if gang is None:
            return None
        members = {**self.inventory.gpu_pods.gang_members(gang.name)}
        members |= {place.pod: place.node for place in self.reservations.of_gang(gang.name) if place.pod}
        members.pop(pod_key(pod), None)
        nodes, places = [node for node in members.values() if node], self.fleet.by_name
        seated = Counter(places[node] for node in nodes if node in places)
        return GangContext(gang.size, gang.domain, seated, waiting=len(members) - len(nodes))

    def record_arrival(self, pod: Pod, requirements: PodRequirements) -> None:
        """Count a pod once, as one that came to be scheduled."""
        if self.ranking is not None:
            self.learning.record_arrival(self.ranking.cluster, pod_uid(pod), requirements)

    async def run(self, clock: Clock, indexed: Callable[[], None] = lambda: None) -> None:
        """Go on until cancelled: make new indexes and rules, and take in what no request did.

        Args:
            clock: Seconds that only grow.
            indexed: Called when there is a new index.
        """
        made = float("-inf")
        while True:
            if self.inventory.index_outdated and clock() >= made + INDEX_SECONDS:
                await self.rebuild_index()
                made = clock()
                indexed()
            if self.learning.has_new_mix:
                await self._update_scorer()
            await self._record_other_arrivals()
            while self.refresh(clock()) >= NODES_PER_REFRESH:
                await asyncio.sleep(0)
            await asyncio.sleep(STEP_SECONDS)

    async def rebuild_index(self) -> None:
        """Index the nodes anew; what changes meanwhile is taken in afterwards."""
        self.inventory.index_outdated = False
        self._missed = set()
        there = self._running_pods() if self.ranking is None else ()
        try:
            ranking = await asyncio.to_thread(self._build_ranking, self.inventory.all_nodes(), there)
        except BaseException:
            self.inventory.index_outdated = True
            raise
        missed, self._missed = self._missed, None
        self.ranking = ranking
        self._update_nodes(missed | self.reservations.nodes)

    def _build_ranking(self, nodes: Sequence[Node], there: Sequence[PodSummary]) -> NodeRanking:
        fleet = Fleet(nodes)
        free = {node.name: self.inventory.free_on_node(node) for node in fleet.nodes}
        cluster = SchedulingSnapshot(
            fleet,
            {name: room for name, (room, _) in free.items()},
            {name: devices for name, (_, devices) in free.items() if devices is not None},
        )
        if self.ranking is None:
            self.learning.start(cluster, there)
        precompute_gpu_sets(list({devices.topology for devices in cluster.devices if devices.topology.gpu_count}))
        return NodeRanking(
            cluster, self._policy, self.learning.estimated_mix(), self.learning.profile_weights(fleet), self._fill
        )

    async def _update_scorer(self) -> None:
        """Judge by what was learnt since."""
        self.learning.has_new_mix = False
        ranking, mix = self.ranking, self.learning.estimated_mix()
        if ranking is not None:
            rule = await asyncio.to_thread(ranking.build_scorer, mix)
            ranking.set_scorer(rule, self.learning.profile_weights(ranking.cluster.fleet))

    def _update_nodes(self, names: Iterable[str]) -> None:
        """Write some nodes anew."""
        if self._missed is not None:
            names = list(names)
            self._missed.update(names)
        if self.ranking is None:
            return
        fleet = self.fleet
        places = ((fleet.by_name[name], name) for name in names if name in fleet.by_name)
        self.ranking.set_nodes(
            {
                place: self.inventory.free_on_node(fleet.nodes[place], self.reservations.on_node(name))
                for place, name in places
            }
        )

    def _running_pods(self) -> tuple[PodSummary, ...]:
        """Pods that are on nodes when we begin have arrived too; those without GPUs were told as arrivals already."""
        self.inventory.arrivals = Counter()
        return self.inventory.bound_pods()

    async def _record_other_arrivals(self) -> None:
        arrivals, self.inventory.arrivals = self.inventory.arrivals, Counter()
        if self.ranking is not None and self.ranking.cluster.free:
            await self.learning.record_other_arrivals(self.ranking.cluster, arrivals)


def gang_name(pod: Pod) -> str:
    """What tells its gang from all others; "" for a pod on its own."""
    gang = gang_of(pod)
    return gang.name if gang else ""


def pod_uid(pod: Pod) -> str:
    """What tells a pod from all others; its name where it has no uid."""
    return pod.metadata.uid or pod_key(pod)
