"""Learns the workload mix from arriving pods: demands for whole GPUs and shares, and MIG profiles.

The first index counts the running pods in a thread; nothing else counts before it is complete. After that the event
loop counts, each pod once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, islice, repeat

from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.pod_resources import ResourceAmounts
from webhook.model.pod_summary import PodSummary
from webhook.placement.fragmentation.workload_mix import HALF_LIFE, MixEstimator, WorkloadMix
from webhook.placement.nodes.pod_requirements import PodRequirements, requirements_from_amounts
from webhook.placement.nodes.snapshot import SchedulingSnapshot

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
