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

from webhook.cache.inventory import Inventory
from webhook.extender.learning import Learning
from webhook.model.effective import effective_requests
from webhook.model.fleet import Fleet
from webhook.model.gangs import gang_of
from webhook.model.lines import Line
from webhook.model.objects import Node
from webhook.model.pods import Pod, key_of
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.nodes.allotting import several_turns
from webhook.placement.nodes.cluster import Cluster, Wanted
from webhook.placement.nodes.gangs import Company
from webhook.placement.nodes.linking import warm
from webhook.placement.nodes.ranking import Fill, Ranking
from webhook.placement.nodes.reserving import Reservations, Reserved
from webhook.placement.rooms import Bools, Ints

HOLD_SECONDS = 15.0
"""How long a place is promised. A bind takes a fraction of a second; volumes may take longer."""

MOST_TO_COME = 64
"""Places that are kept at most for those of one gang that are still to come: a place is a node written anew."""

AT_ONCE = 256
"""Nodes that are written anew before a request is answered; more are left to the task beside it."""

STEP_SECONDS = 0.05
INDEX_SECONDS = 2.0
"""The least time between two indexes of the nodes."""

Clock = Callable[[], float]
"""Seconds that only grow."""


def nobody(_pod: Pod) -> bool:
    """Nobody is over a share."""
    return False


NO_FLEET = Fleet(())


class Standing:
    """What is ranked, what is promised, and what is learnt.

    Attributes:
        ranking: None before everything is known for the first time.
        reservations: The places promised.
        learning: What is learnt of the pods that come.
        over: Has whoever a pod counts for had more than its share? Set by who knows.
    """

    def __init__(self, inventory: Inventory, policy: Policy = Policy.TAB, fill: Fill = Fill.PACK) -> None:
        self.inventory, self._policy, self._fill = inventory, policy, fill
        self.over: Callable[[Pod], bool] = nobody
        self.ranking: Ranking | None = None
        self.reservations = Reservations()
        self.learning = Learning()
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

    def hold(self, pod: Pod, node: str, now: float, others: Iterable[str] = ()) -> None:
        """Promise a pod its place.

        Args:
            pod: The pod.
            node: Its node.
            now: Seconds of the clock.
            others: Nodes of which to keep a place for one more of its gang each, until they are asked about.
        """
        amounts, until, gang = effective_requests(pod), now + HOLD_SECONDS, gang_name(pod)
        place = Reserved(uid_of(pod), key_of(pod), node, amounts, until, gang, several_turns(pod))
        touched = self.reservations.hold(place)
        for number, other in enumerate(islice(others, MOST_TO_COME)):
            touched |= self.reservations.hold(replace(place, uid=f"{gang}#{number}", pod="", node=other))
        self._write(touched)

    def release(self, pod: Pod) -> None:
        """A pod is asked about anew: what it was promised before is void, and what was kept for its gang is for it."""
        kept = [place.uid for place in self.reservations.of(gang_name(pod)) if not place.pod]
        self._write({node for uid in (uid_of(pod), *kept) for node in self.reservations.release(uid)})

    def company(self, pod: Pod) -> Company | None:
        """Those of its gang that are known, and where they are or were promised a place; None for a pod on its own."""
        gang = gang_of(pod)
        if gang is None:
            return None
        members = {**self.inventory.pods.tenants.members(gang.name)}
        members |= {place.pod: place.node for place in self.reservations.of(gang.name) if place.pod}
        members.pop(key_of(pod), None)
        nodes, places = [node for node in members.values() if node], self.fleet.by_name
        seated = Counter(places[node] for node in nodes if node in places)
        return Company(gang.size, gang.domain, seated, waiting=len(members) - len(nodes))

    def learn(self, pod: Pod, wanted: Wanted) -> None:
        """Count a pod once, as one that came to be scheduled."""
        if self.ranking is not None:
            self.learning.arrived(self.ranking.cluster, uid_of(pod), wanted)

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
            if self.learning.due:
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
            self.learning.begin(cluster, there)
        warm(list({devices.topology for devices in cluster.devices if devices.topology.gpus}))
        return Ranking(cluster, self._policy, self.learning.mix(), self.learning.weights(fleet), self._fill)

    async def _relearn(self) -> None:
        """Judge by what was learnt since."""
        self.learning.due = False
        ranking, mix = self.ranking, self.learning.mix()
        if ranking is not None:
            rule = await asyncio.to_thread(ranking.rule, mix)
            ranking.use(rule, self.learning.weights(ranking.cluster.fleet))

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

    def _all_there(self) -> tuple[Line, ...]:
        """Pods that are on nodes when we begin have arrived too; those without GPUs were told as arrivals already."""
        self.inventory.arrivals = Counter()
        return self.inventory.lines()

    async def _count_others(self) -> None:
        arrivals, self.inventory.arrivals = self.inventory.arrivals, Counter()
        if self.ranking is not None and self.ranking.cluster.free:
            await self.learning.others(self.ranking.cluster, arrivals)


def gang_name(pod: Pod) -> str:
    """What tells its gang from all others; "" for a pod on its own."""
    gang = gang_of(pod)
    return gang.name if gang else ""


def uid_of(pod: Pod) -> str:
    """What tells a pod from all others; its name where it has no uid."""
    return pod.metadata.uid or key_of(pod)
