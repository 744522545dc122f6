"""Play pods into a cluster, one after the other, and keep how things stood on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from webhook.cache.placing import Placing
from webhook.model.masks import bits
from webhook.placement.fragmentation.fgd import Fgd
from webhook.placement.fragmentation.mixes import mix_of
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.needs import WHOLE, Need
from webhook.placement.nodes.cluster import Cluster, Wanted
from webhook.placement.nodes.filtering import obstacles, ruled_out
from webhook.placement.nodes.playing import Player
from webhook.placement.nodes.ranking import Fill, Ranked, Ranking
from webhook.placement.nodes.shortage import shortage
from webhook.placement.rooms import Rooms, Site
from webhook.report.simulated import Moment, Simulated

MOMENTS = 200
"""Moments that are kept of a simulation, however long it is."""


class Simulation:
    """What has happened so far. `play` goes on; `result` tells."""

    def __init__(self, policy: Policy, nodes: int, capacity: int, expected: int, held: int = 0) -> None:
        """Begin.

        Args:
            policy: What ranks the nodes.
            nodes: How many there are.
            capacity: Thousandths of GPUs that they have.
            expected: Pods that will come.
            held: Thousandths of GPUs that pods hold before the first comes.
        """
        self._policy, self._nodes, self._capacity, self._held = policy, nodes, capacity, held
        self._every = max(1, expected // MOMENTS)
        self._asked = self._allocated = held
        self._placed = self._left = 0
        self._moments: list[Moment] = []
        self._reasons: Counter[str] = Counter()

    def happened(self, milli: int, reason: str) -> bool:
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

    def keep(self, split: float) -> None:
        """Keep this moment, with what is free but split up."""
        moment = Moment(self._asked, self._allocated, round(split), self._placed, self._left)
        if not self._moments or self._moments[-1] != moment:
            self._moments.append(moment)

    def result(self) -> Simulated:
        """What it came to."""
        return Simulated(
            self._policy, self._nodes, self._capacity, tuple(self._moments), dict(self._reasons), self._held
        )


def play_trace(
    site: Site, needs: Sequence[Need], policy: Policy, rng: np.random.Generator, *, learnt: bool
) -> Iterator[Simulation]:
    """Play a trace; yields after each pod.

    Args:
        site: The nodes, empty.
        needs: The pods, in the order of their arrival.
        policy: What ranks the nodes.
        rng: Chooses among equals.
        learnt: True to learn the mix from the arrivals, False to know that of the trace.
    """
    mix = mix_of(needs)
    player = Player(site, policy, rng, None if learnt else mix)
    measure = Fgd(site, mix)
    simulation = Simulation(policy, len(site.machines), site.milli, len(needs))
    for place, need in enumerate(needs):
        found = player.place(need)
        player.learn(need)
        reason = "" if found else str(shortage(player.board.rooms, need))
        if simulation.happened(need.milli, reason) or place == len(needs) - 1:
            simulation.keep(_split(measure, player.board.rooms))
        yield simulation


class Coming(NamedTuple):
    """A Kubernetes pod that comes, and why the webhook refuses it; "" where it lets it in."""

    wanted: Wanted
    refused: str = ""


class Fate(NamedTuple):
    """What became of a pod.

    Attributes:
        milli: Thousandths of GPUs: where it landed, what it weighs there.
        reason: Why it found no place; "" where it did.
    """

    milli: int
    reason: str = ""


class Arrivals:
    """A cluster that Kubernetes pods come to and never leave. It has one writer."""

    def __init__(self, placing: Placing, policy: Policy, fill: Fill) -> None:
        first = placing.cluster
        own = first.with_room(0, first.free[0], first.devices[0])
        self._ranking = Ranking(own, policy, placing.mix, placing.profiles, fill, turnover=0.0)
        self._pods = Counter(pod.spec.node_name for pod in placing.pods)
        self._vain: dict[Wanted, Fate] = {}

    @property
    def cluster(self) -> Cluster:
        """As it stands."""
        return self._ranking.cluster

    def come(self, pod: Coming) -> Fate:
        """Place a pod. One like another that found no place since the last one that did is not tried again."""
        wanted = pod.wanted
        if pod.refused:
            return Fate(self._anywhere(wanted), pod.refused)
        if wanted not in self._vain:
            ranked = self._ranking.rank(wanted)
            if ranked:
                return self._land(wanted, ranked[0])
            self._vain[wanted] = Fate(self._anywhere(wanted), _most_said(self.cluster, wanted))
        return self._vain[wanted]

    def _anywhere(self, wanted: Wanted) -> int:
        return _milli(self.cluster, wanted, range(len(self.cluster.fleet.nodes)))

    def _land(self, wanted: Wanted, best: Ranked) -> Fate:
        node = best.node
        known = self.cluster.fleet.nodes[node]
        after = self.cluster.holding(wanted, node, best.links.gpus if best.links else ())
        self._pods[known.name] += 1
        full = bool(known.pods) and self._pods[known.name] >= known.pods
        self._ranking.change({node: (structs.replace(after.free[node], full=full), after.devices[node])})
        self._vain.clear()
        return Fate(_milli(self.cluster, wanted, (node,)))


def play_pods(placing: Placing, pods: Sequence[Coming], policy: Policy, fill: Fill) -> Iterator[Simulation]:
    """Play Kubernetes pods into a cluster as it stands; yields after each pod."""
    cluster = placing.cluster
    measure, arrivals = Fgd(cluster.site, placing.mix.with_gpus()), Arrivals(placing, policy, fill)
    held = _held(cluster)
    simulation = Simulation(policy, len(cluster.fleet.nodes), _capacity(cluster), len(pods), held)
    for place, pod in enumerate(pods):
        milli, reason = arrivals.come(pod)
        if simulation.happened(milli, reason) or place == len(pods) - 1:
            simulation.keep(_split(measure, arrivals.cluster.rooms()))
        yield simulation


def _split(measure: Fgd, rooms: Rooms) -> float:
    return -float(measure.value(rooms.rows(np.arange(len(rooms.cpu)))).sum())


def _most_said(cluster: Cluster, wanted: Wanted) -> str:
    """What keeps a pod off the most of the nodes that come nearest, in the scheduler's words.

    Nearest are those that let it in and only have too little free, or, where none does, those with the fewest reasons;
    of those that its selectors allow, if any, and that offer what it asks for, if any.
    """
    selected = list(bits(wanted.selected)) or list(range(len(cluster.fleet.nodes)))
    offering = [node for node in selected if cluster.offer(node, wanted.resource)] or selected
    letting = [node for node in offering if not any(ruled_out(cluster, wanted, node))]
    reasons = [_words(cluster, wanted, node) for node in letting or offering]
    fewest = min(map(len, reasons))
    return Counter(word for some in reasons if len(some) == fewest for word in some).most_common(1)[0][0]


def _words(cluster: Cluster, wanted: Wanted, node: int) -> list[str]:
    return list(dict.fromkeys(reason.scheduler for reason in obstacles(cluster, wanted, node)))


def _milli(cluster: Cluster, wanted: Wanted, nodes: Sequence[int]) -> int:
    """Thousandths of GPUs, each kind by the first of some nodes that offers it."""
    return sum(count * _one(cluster, resource, nodes) for resource, count in wanted.gpus)


def _one(cluster: Cluster, resource: str, nodes: Sequence[int]) -> int:
    offers = (cluster.offer(node, resource) for node in nodes)
    return next((offer.gpu_milli for offer in offers if offer), WHOLE)


def _held(cluster: Cluster) -> int:
    """Thousandths of GPUs that pods hold."""
    return sum(
        cluster.held(node, resource) * offer.gpu_milli
        for node, known in enumerate(cluster.fleet.nodes)
        for resource in known.gpus
        if (offer := cluster.offer(node, resource))
    )


def _capacity(cluster: Cluster) -> int:
    return sum(offer.capacity * offer.gpu_milli for offer in cluster.fleet.offers)
