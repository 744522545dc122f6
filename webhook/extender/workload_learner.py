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
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.node_masks import bit_positions
from webhook.model.pod_summary import PodSummary, ResourceAmounts
from webhook.placement.fragmentation.workload_mix import HALF_LIFE, MixEstimator, WorkloadMix
from webhook.placement.nodes.pod_requirements import requirements_from_amounts
from webhook.placement.nodes.snapshot import PodRequirements, SchedulingSnapshot

ARRIVALS_PER_STEP = 500
"""Arrivals that are counted before requests have their turn: about a millisecond."""

MAX_COUNTED_PODS = 4096
"""Pods that are known to have been counted as arrivals."""


class WorkloadLearner:
    """What was learnt.

    Attributes:
        due: Is there a new mix?
    """

    def __init__(self) -> None:
        self.has_new_mix = False
        self._learner = MixEstimator()
        self._profiles: Counter[str] = Counter()
        self._arrived: dict[str, None] = {}

    def estimated_mix(self) -> WorkloadMix:
        """What pods ask for of whole GPUs and shares."""
        return self._learner.estimated_mix()

    def profile_weights(self, fleet: Fleet) -> tuple[tuple[str, float], ...]:
        """How often each MIG profile is asked for. One that nodes have is taken to have been asked for once."""
        known = (parse_gpu_resource(name) for name in fleet.resources())
        weights = Counter({resource.profile: 1 for resource in known if resource is not None and resource.mig})
        weights.update(self._profiles)
        return tuple(sorted((profile, float(count)) for profile, count in weights.items()))

    def start(self, cluster: SchedulingSnapshot, there: Iterable[PodSummary]) -> None:
        """Count who is there, from nothing: an index that could not be made is made again."""
        self._learner, self._profiles = MixEstimator(), Counter()
        for line in there:
            node = cluster.fleet.by_name.get(line.node, -1)
            if node >= 0:
                self._count(cluster, requirements_from_amounts(dict(line.requests), cluster.fleet.all_nodes), node)

    def record_arrival(self, cluster: SchedulingSnapshot, uid: str, wanted: PodRequirements) -> None:
        """Count a pod once, as one that came to be scheduled."""
        if uid in self._arrived:
            return
        if len(self._arrived) >= MAX_COUNTED_PODS:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[uid] = None
        self._count(cluster, wanted, -1)

    async def record_other_arrivals(self, cluster: SchedulingSnapshot, arrivals: Mapping[ResourceAmounts, int]) -> None:
        """Pods without GPUs are not asked about; they count when they are seen on a node, on any alike.

        Args:
            cluster: The nodes; there is one.
            arrivals: How often pods came that hold so much.
        """
        anywhere = cluster.fleet.all_nodes
        needs = (
            (cluster.pod_demand(requirements_from_amounts(dict(amounts), anywhere), 0), times)
            for amounts, times in arrivals.items()
        )
        each = chain.from_iterable(repeat(need, times) for need, times in needs)
        while some := tuple(islice(each, ARRIVALS_PER_STEP)):
            for need in some:
                self.has_new_mix |= self._learner.record_arrival(need)
            await asyncio.sleep(0)

    def _count(self, cluster: SchedulingSnapshot, wanted: PodRequirements, node: int) -> None:
        resource = parse_gpu_resource(wanted.resource)
        if node < 0 and wanted.resource:
            node = next(bit_positions(cluster.fleet.nodes_advertising(wanted.resource)), -1)
        if node < 0:
            return
        if resource is not None and resource.mig:
            self._count_profile(resource.profile, wanted.count)
        self.has_new_mix |= self._learner.record_arrival(cluster.pod_demand(wanted, node))

    def _count_profile(self, profile: str, count: int) -> None:
        """The older ones count less: all of them half, each time there are many."""
        self._profiles[profile] += count
        if self._profiles.total() > 2 * HALF_LIFE:
            self._profiles = Counter({name: (times + 1) // 2 for name, times in self._profiles.items()})
