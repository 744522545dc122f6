"""What is learnt of the pods that come: what they ask for of whole GPUs and shares, and of MIG profiles.

The first index counts who is there already, in a thread; nobody else counts before it is made. From then on the event
loop counts, each pod once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, islice, repeat

from webhook.model.fleet import Fleet
from webhook.model.lines import Amounts, Line
from webhook.model.masks import bits
from webhook.model.resources import gpu_resource
from webhook.placement.fragmentation.mixes import HALF_LIFE, Learner, Mix
from webhook.placement.nodes.asking import wants
from webhook.placement.nodes.cluster import Cluster, Wanted

COUNTED_AT_ONCE = 500
"""Arrivals that are counted before requests have their turn: about a millisecond."""

REMEMBERED = 4096
"""Pods that are known to have been counted as arrivals."""


class Learning:
    """What was learnt.

    Attributes:
        due: Is there a new mix?
    """

    def __init__(self) -> None:
        self.due = False
        self._learner = Learner()
        self._profiles: Counter[str] = Counter()
        self._arrived: dict[str, None] = {}

    def mix(self) -> Mix:
        """What pods ask for of whole GPUs and shares."""
        return self._learner.mix()

    def weights(self, fleet: Fleet) -> tuple[tuple[str, float], ...]:
        """How often each MIG profile is asked for. One that nodes have is taken to have been asked for once."""
        known = (gpu_resource(name) for name in fleet.resources())
        weights = Counter({resource.profile: 1 for resource in known if resource is not None and resource.mig})
        weights.update(self._profiles)
        return tuple(sorted((profile, float(count)) for profile, count in weights.items()))

    def begin(self, cluster: Cluster, there: Iterable[Line]) -> None:
        """Count who is there, from nothing: an index that could not be made is made again."""
        self._learner, self._profiles = Learner(), Counter()
        for line in there:
            node = cluster.fleet.by_name.get(line.node, -1)
            if node >= 0:
                self._count(cluster, wants(dict(line.requests), cluster.fleet.everyone), node)

    def arrived(self, cluster: Cluster, uid: str, wanted: Wanted) -> None:
        """Count a pod once, as one that came to be scheduled."""
        if uid in self._arrived:
            return
        if len(self._arrived) >= REMEMBERED:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[uid] = None
        self._count(cluster, wanted, -1)

    async def others(self, cluster: Cluster, arrivals: Mapping[Amounts, int]) -> None:
        """Pods without GPUs are not asked about; they count when they are seen on a node, on any alike.

        Args:
            cluster: The nodes; there is one.
            arrivals: How often pods came that hold so much.
        """
        anywhere = cluster.fleet.everyone
        needs = ((cluster.need(wants(dict(amounts), anywhere), 0), times) for amounts, times in arrivals.items())
        each = chain.from_iterable(repeat(need, times) for need, times in needs)
        while some := tuple(islice(each, COUNTED_AT_ONCE)):
            for need in some:
                self.due |= self._learner.arrived(need)
            await asyncio.sleep(0)

    def _count(self, cluster: Cluster, wanted: Wanted, node: int) -> None:
        resource = gpu_resource(wanted.resource)
        if node < 0 and wanted.resource:
            node = next(bits(cluster.fleet.advertising(wanted.resource)), -1)
        if node < 0:
            return
        if resource is not None and resource.mig:
            self._count_profile(resource.profile, wanted.count)
        self.due |= self._learner.arrived(cluster.need(wanted, node))

    def _count_profile(self, profile: str, count: int) -> None:
        """The older ones count less: all of them half, each time there are many."""
        self._profiles[profile] += count
        if self._profiles.total() > 2 * HALF_LIFE:
            self._profiles = Counter({name: (times + 1) // 2 for name, times in self._profiles.items()})
