"""Play pods into a cluster, one after the other, and keep how things stood on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from webhook.cache.placement_input import PlacementInput
from webhook.model.node_masks import bit_positions
from webhook.placement.capacity import GPU_MILLI, ClusterCapacity, FreeCapacityArrays, PodDemand
from webhook.placement.fragmentation.strategies import FgdScorer, ScoringStrategy
from webhook.placement.fragmentation.workload_mix import mix_from_demands
from webhook.placement.nodes.filtering import exclusion_reasons, filter_reasons
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.ranking import FillOrder, NodeRanking, RankedNode
from webhook.placement.nodes.simulator import Simulator, unschedulable_reason
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.report.simulation import SimulationResult, SimulationStep

MAX_MOMENTS = 200
"""Moments that are kept of a simulation, however long it is."""


class SimulationProgress:
    """What has happened so far. `play` goes on; `result` tells."""

    def __init__(self, policy: ScoringStrategy, nodes: int, capacity: int, expected: int, held: int = 0) -> None:
        """Begin.

        Args:
            policy: What ranks the nodes.
            nodes: How many there are.
            capacity: Thousandths of GPUs that they have.
            expected: Pods that will come.
            held: Thousandths of GPUs that pods hold before the first comes.
        """
        self._policy, self._nodes, self._capacity, self._held = policy, nodes, capacity, held
        self._every = max(1, expected // MAX_MOMENTS)
        self._asked = self._allocated = held
        self._placed = self._left = 0
        self._moments: list[SimulationStep] = []
        self._reasons: Counter[str] = Counter()

    def record_pod(self, milli: int, reason: str) -> bool:
        """Count a pod. True where this moment should be kept.

        Args:
            milli: Thousandths of GPUs that it asks for, or holds where it found a place.
            reason: Why it found no place; "" where it did.
        """
        self._asked += milli
        self._allocated += 0 if reason else milli
        self._placed += not reason
        self._left += bool(reason)
        if reason:
            self._reasons[reason] += 1
        return (self._placed + self._left) % self._every == 0

    def record_moment(self, split: float) -> None:
        """Keep this moment, with what is free but split up."""
        moment = SimulationStep(self._asked, self._allocated, round(split), self._placed, self._left)
        if not self._moments or self._moments[-1] != moment:
            self._moments.append(moment)

    def result(self) -> SimulationResult:
        """What it came to."""
        return SimulationResult(
            self._policy, self._nodes, self._capacity, tuple(self._moments), dict(self._reasons), self._held
        )


def simulate_trace(
    site: ClusterCapacity,
    needs: Sequence[PodDemand],
    policy: ScoringStrategy,
    rng: np.random.Generator,
    *,
    learnt: bool,
) -> Iterator[SimulationProgress]:
    """Play a trace; yields after each pod.

    Args:
        site: The nodes, empty.
        needs: The pods, in the order of their arrival.
        policy: What ranks the nodes.
        rng: Chooses among equals.
        learnt: True to learn the mix from the arrivals, False to know that of the trace.
    """
    mix = mix_from_demands(needs)
    player = Simulator(site, policy, rng, None if learnt else mix)
    measure = FgdScorer(site, mix)
    simulation = SimulationProgress(policy, len(site.nodes), site.total_milli, len(needs))
    for place, need in enumerate(needs):
        found = player.schedule_pod(need)
        player.record_arrival(need)
        reason = "" if found else str(unschedulable_reason(player.score_table.free, need))
        if simulation.record_pod(need.total_milli, reason) or place == len(needs) - 1:
            simulation.record_moment(_fragmented_milli(measure, player.score_table.free))
        yield simulation


class ArrivingPod(NamedTuple):
    """A Kubernetes pod that comes, and why the webhook refuses it; "" where it lets it in."""

    wanted: PodRequirements
    denial: str = ""


class PlacementOutcome(NamedTuple):
    """What became of a pod.

    Attributes:
        milli: Thousandths of GPUs: where it landed, what it weighs there.
        reason: Why it found no place; "" where it did.
    """

    milli: int
    reason: str = ""


class SimulatedCluster:
    """A cluster that Kubernetes pods come to and never leave. It has one writer."""

    def __init__(self, placing: PlacementInput, policy: ScoringStrategy, fill: FillOrder) -> None:
        first = placing.cluster
        own = first.with_free(0, first.free[0], first.devices[0])
        self._ranking = NodeRanking(own, policy, placing.mix, placing.profiles, fill, turnover=0.0)
        self._pods = Counter(pod.spec.node_name for pod in placing.pods)
        self._unplaceable: dict[PodRequirements, PlacementOutcome] = {}

    @property
    def cluster(self) -> SchedulingSnapshot:
        """As it stands."""
        return self._ranking.cluster

    def place_pod(self, pod: ArrivingPod) -> PlacementOutcome:
        """Place a pod. One like another that found no place since the last one that did is not tried again."""
        wanted = pod.wanted
        if pod.denial:
            return PlacementOutcome(self._requested_milli(wanted), pod.denial)
        if wanted not in self._unplaceable:
            ranked = self._ranking.rank(wanted)
            if ranked:
                return self._bind_pod(wanted, ranked[0])
            self._unplaceable[wanted] = PlacementOutcome(
                self._requested_milli(wanted), _main_obstacle(self.cluster, wanted)
            )
        return self._unplaceable[wanted]

    def _requested_milli(self, wanted: PodRequirements) -> int:
        return _wanted_milli(self.cluster, wanted, range(len(self.cluster.fleet.nodes)))

    def _bind_pod(self, wanted: PodRequirements, best: RankedNode) -> PlacementOutcome:
        node = best.node
        known = self.cluster.fleet.nodes[node]
        after = self.cluster.with_pod(wanted, node, best.links.gpus if best.links else ())
        self._pods[known.name] += 1
        full = bool(known.pods) and self._pods[known.name] >= known.pods
        self._ranking.set_nodes({node: (structs.replace(after.free[node], full=full), after.devices[node])})
        self._unplaceable.clear()
        return PlacementOutcome(_wanted_milli(self.cluster, wanted, (node,)))


def simulate_pods(
    placing: PlacementInput, pods: Sequence[ArrivingPod], policy: ScoringStrategy, fill: FillOrder
) -> Iterator[SimulationProgress]:
    """Play Kubernetes pods into a cluster as it stands; yields after each pod."""
    cluster = placing.cluster
    measure, arrivals = FgdScorer(cluster.capacity, placing.mix.with_gpus()), SimulatedCluster(placing, policy, fill)
    held = _total_allocated_milli(cluster)
    simulation = SimulationProgress(policy, len(cluster.fleet.nodes), _total_capacity_milli(cluster), len(pods), held)
    for place, pod in enumerate(pods):
        milli, reason = arrivals.place_pod(pod)
        if simulation.record_pod(milli, reason) or place == len(pods) - 1:
            simulation.record_moment(_fragmented_milli(measure, arrivals.cluster.free_arrays()))
        yield simulation


def _fragmented_milli(measure: FgdScorer, rooms: FreeCapacityArrays) -> float:
    return -float(measure.node_values(rooms.rows(np.arange(len(rooms.cpu)))).sum())


def _main_obstacle(cluster: SchedulingSnapshot, wanted: PodRequirements) -> str:
    """What keeps a pod off the most of the nodes that come nearest, in the scheduler's words.

    Nearest are those that let it in and only have too little free, or, where none does, those with the fewest reasons;
    of those that its selectors allow, if any, and that offer what it asks for, if any.
    """
    selected = list(bit_positions(wanted.selected_nodes)) or list(range(len(cluster.fleet.nodes)))
    offering = [node for node in selected if cluster.offer(node, wanted.resource)] or selected
    letting = [node for node in offering if not any(exclusion_reasons(cluster, wanted, node))]
    reasons = [_scheduler_reasons(cluster, wanted, node) for node in letting or offering]
    fewest = min(map(len, reasons))
    return Counter(word for some in reasons if len(some) == fewest for word in some).most_common(1)[0][0]


def _scheduler_reasons(cluster: SchedulingSnapshot, wanted: PodRequirements, node: int) -> list[str]:
    return list(dict.fromkeys(reason.scheduler_message for reason in filter_reasons(cluster, wanted, node)))


def _wanted_milli(cluster: SchedulingSnapshot, wanted: PodRequirements, nodes: Sequence[int]) -> int:
    """Thousandths of GPUs, each kind by the first of some nodes that offers it."""
    return sum(count * _resource_unit_milli(cluster, resource, nodes) for resource, count in wanted.gpu_resources)


def _resource_unit_milli(cluster: SchedulingSnapshot, resource: str, nodes: Sequence[int]) -> int:
    offers = (cluster.offer(node, resource) for node in nodes)
    return next((offer.gpu_milli for offer in offers if offer), GPU_MILLI)


def _total_allocated_milli(cluster: SchedulingSnapshot) -> int:
    """Thousandths of GPUs that pods hold."""
    return sum(
        cluster.used_units(node, resource) * offer.gpu_milli
        for node, known in enumerate(cluster.fleet.nodes)
        for resource in known.gpus
        if (offer := cluster.offer(node, resource))
    )


def _total_capacity_milli(cluster: SchedulingSnapshot) -> int:
    return sum(offer.capacity * offer.gpu_milli for offer in cluster.fleet.offers)
