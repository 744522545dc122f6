"""The cluster as it stands for the next pod: an index of its nodes, kept by what the inventory tells, and promises.

Requests and watches are taken in by one event loop. Making a new index, and a new rule from what was learnt, happens in
a thread beside it, out of what the loop took before and of what is only ever looked up. The first index counts who is
there already; nobody else counts before it is made.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, repeat

import numpy as np

from webhook.cache.inventory import Inventory
from webhook.model.effective import effective_requests
from webhook.model.fleet import Fleet
from webhook.model.lines import Line
from webhook.model.masks import bits
from webhook.model.objects import Node
from webhook.model.pods import Pod, key_of
from webhook.model.resources import gpu_resource
from webhook.placement.fragmentation.mixes import HALF_LIFE, Learner
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.nodes.asking import wants
from webhook.placement.nodes.cluster import Cluster, Wanted
from webhook.placement.nodes.linking import warm
from webhook.placement.nodes.ranking import Fill, Ranking
from webhook.placement.nodes.reserving import Reservations, Reserved
from webhook.placement.rooms import Bools, Ints

HOLD_SECONDS = 15.0
"""How long a place is promised. A bind takes a fraction of a second; volumes may take longer."""

AT_ONCE = 256
"""Nodes that are written anew before a request is answered; more are left to the task beside it."""

STEP_SECONDS = 0.05
INDEX_SECONDS = 2.0
"""The least time between two indexes of the nodes."""

COUNTED_AT_ONCE = 500
"""Arrivals that are counted before requests have their turn: about a millisecond."""

REMEMBERED = 4096
"""Pods that are known to have been counted as arrivals."""

Clock = Callable[[], float]
"""Seconds that only grow."""


NO_FLEET = Fleet(())


class Standing:
    """What is ranked, what is promised, and what is learnt.

    Attributes:
        ranking: None before everything is known for the first time.
        reservations: The places promised.
    """

    def __init__(self, inventory: Inventory, policy: Policy = Policy.TAB, fill: Fill = Fill.PACK) -> None:
        self.inventory, self._policy, self._fill = inventory, policy, fill
        self.ranking: Ranking | None = None
        self.reservations = Reservations()
        self._learner = Learner()
        self._profiles: Counter[str] = Counter()
        self._arrived: dict[str, None] = {}
        self._learnt = False
        self._missed: set[str] | None = None

    @property
    def fleet(self) -> Fleet:
        """The nodes; none before they are known."""
        return self.ranking.cluster.fleet if self.ranking is not None else NO_FLEET

    def positions(self, names: Iterable[str]) -> Ints:
        """Where nodes stand in the index; -1 for those that are not known."""
        places = self.fleet.by_name
        return np.array([places.get(name, -1) for name in names], np.int64)

    def among(self, positions: Ints) -> Bools:
        """The nodes at some positions, shape (nodes,)."""
        chosen = np.zeros(len(self.fleet.nodes), np.bool_)
        chosen[positions[positions >= 0]] = True
        return chosen

    def refresh(self, now: float, most: int = AT_ONCE) -> int:
        """Take in what changed; gives how many nodes did.

        Args:
            now: Seconds of the clock.
            most: The most nodes to take in, beside those of promises that ended.
        """
        over = self.reservations.settle(now, self.inventory.knows)
        names = over.union(self.inventory.touched(most))
        self._write(names)
        return len(names)

    def hold(self, pod: Pod, node: str, now: float) -> None:
        """Promise a pod its place."""
        place = Reserved(uid_of(pod), key_of(pod), node, effective_requests(pod), now + HOLD_SECONDS)
        self._write(self.reservations.hold(place))

    def release(self, pod: Pod) -> None:
        """A pod is asked about anew: what it was promised before is void."""
        self._write(self.reservations.release(uid_of(pod)))

    def learn(self, pod: Pod, wanted: Wanted) -> None:
        """Count a pod once, as one that came to be scheduled."""
        key = uid_of(pod)
        if self.ranking is None or key in self._arrived:
            return
        if len(self._arrived) >= REMEMBERED:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[key] = None
        self._count(self.ranking.cluster, wanted, -1)

    async def run(self, clock: Clock, indexed: Callable[[], None] = lambda: None) -> None:
        """Go on until cancelled: make new indexes and rules, and take in what no request did.

        Args:
            clock: Seconds that only grow.
            indexed: Called when there is a new index.
        """
        made = float("-inf")
        while True:
            if self.inventory.outdated and clock() >= made + INDEX_SECONDS:
                await self.index()
                made = clock()
                indexed()
            if self._learnt:
                await self._relearn()
            await self._count_others()
            while self.refresh(clock()) >= AT_ONCE:
                await asyncio.sleep(0)
            await asyncio.sleep(STEP_SECONDS)

    async def index(self) -> None:
        """Index the nodes anew; what changes meanwhile is taken in afterwards."""
        self.inventory.outdated = False
        self._missed = set()
        there = self._all_there() if self.ranking is None else ()
        try:
            ranking = await asyncio.to_thread(self._made, self.inventory.all_nodes(), there)
        except BaseException:
            self.inventory.outdated = True
            raise
        missed, self._missed = self._missed, None
        self.ranking = ranking
        self._write(missed | self.reservations.nodes)

    def _made(self, nodes: Sequence[Node], there: Sequence[Line]) -> Ranking:
        fleet = Fleet(nodes)
        free = {node.name: self.inventory.on(node) for node in fleet.nodes}
        cluster = Cluster(
            fleet,
            {name: room for name, (room, _) in free.items()},
            {name: devices for name, (_, devices) in free.items() if devices is not None},
        )
        if self.ranking is None:
            self._count_all(cluster, there)
        warm(list({devices.topology for devices in cluster.devices if devices.topology.gpus}))
        return Ranking(cluster, self._policy, self._learner.mix(), self._weights(fleet), self._fill)

    async def _relearn(self) -> None:
        """Judge by what was learnt since."""
        self._learnt = False
        ranking, mix = self.ranking, self._learner.mix()
        if ranking is not None:
            rule = await asyncio.to_thread(ranking.rule, mix)
            ranking.use(rule, self._weights(ranking.cluster.fleet))

    def _write(self, names: Iterable[str]) -> None:
        """Write some nodes anew."""
        if self._missed is not None:
            names = list(names)
            self._missed.update(names)
        if self.ranking is None:
            return
        fleet = self.fleet
        places = ((fleet.by_name[name], name) for name in names if name in fleet.by_name)
        self.ranking.change(
            {place: self.inventory.on(fleet.nodes[place], self.reservations.on(name)) for place, name in places}
        )

    # What is learnt.

    def _all_there(self) -> tuple[Line, ...]:
        """Pods that are on nodes when we begin have arrived too; those without GPUs were told as arrivals already."""
        self.inventory.arrivals = Counter()
        return self.inventory.lines()

    def _count_all(self, cluster: Cluster, there: Sequence[Line]) -> None:
        """Count who is there, from nothing: an index that could not be made is made again."""
        self._learner, self._profiles = Learner(), Counter()
        for line in there:
            node = cluster.fleet.by_name.get(line.node, -1)
            if node >= 0:
                self._count(cluster, wants(dict(line.requests), cluster.fleet.everyone), node)

    async def _count_others(self) -> None:
        """Pods without GPUs are not asked about; they count when they are seen on a node, on any alike."""
        arrivals, self.inventory.arrivals = self.inventory.arrivals, Counter()
        if self.ranking is None or not self.ranking.cluster.free:
            return
        cluster, anywhere = self.ranking.cluster, self.fleet.everyone
        needs = ((cluster.need(wants(dict(amounts), anywhere), 0), times) for amounts, times in arrivals.items())
        each = chain.from_iterable(repeat(need, times) for need, times in needs)
        while some := tuple(islice(each, COUNTED_AT_ONCE)):
            for need in some:
                self._learnt |= self._learner.arrived(need)
            await asyncio.sleep(0)

    def _count(self, cluster: Cluster, wanted: Wanted, node: int) -> None:
        resource = gpu_resource(wanted.resource)
        if node < 0 and wanted.resource:
            node = next(bits(cluster.fleet.advertising(wanted.resource)), -1)
        if node < 0:
            return
        if resource is not None and resource.mig:
            self._count_profile(resource.profile, wanted.count)
        need = cluster.need(wanted, node)
        self._learnt |= self._learner.arrived(need)

    def _count_profile(self, profile: str, count: int) -> None:
        """The older ones count less: all of them half, each time there are many."""
        self._profiles[profile] += count
        if self._profiles.total() > 2 * HALF_LIFE:
            self._profiles = Counter({name: (times + 1) // 2 for name, times in self._profiles.items()})

    def _weights(self, fleet: Fleet) -> tuple[tuple[str, float], ...]:
        """How often each MIG profile is asked for. One that nodes have is taken to have been asked for once."""
        known = (gpu_resource(name) for name in fleet.resources())
        weights = Counter({resource.profile: 1 for resource in known if resource is not None and resource.mig})
        weights.update(self._profiles)
        return tuple(sorted((profile, float(count)) for profile, count in weights.items()))


def uid_of(pod: Pod) -> str:
    """What tells a pod from all others; its name where it has no uid."""
    return pod.metadata.uid or key_of(pod)
