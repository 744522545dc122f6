"""The order of the nodes that can take a pod: links first where its GPUs talk, then what room stays worth.

A pod whose GPUs communicate goes where it really gets joined ones: what NVIDIA's device plugin will allocate is
ranked, because the kubelet asks the plugin. Links are compared with the best that the kind of node can give, so
that a scarce machine with faster links is not taken for its speed alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np

from webhook.model.masks import bits
from webhook.model.modes import Form
from webhook.model.resources import WHOLE_GPU
from webhook.placement.fragmentation.mixes import FLAT, Mix
from webhook.placement.fragmentation.policies import RULES, Policy, added
from webhook.placement.mig import geometry, starts, taken, worth_of
from webhook.placement.nodes.board import NOWHERE, Board
from webhook.placement.nodes.cluster import Cluster, Wanted
from webhook.placement.nodes.filtering import takes
from webhook.placement.nvlink import SETS, GpuSets, Quality, gpu_sets
from webhook.placement.plugin import plugin
from webhook.placement.rooms import Floats
from webhook.placement.topology import Confidence

NO_DOMAIN = NOT_NEAR = (0.0, 0.0)


class Fill(StrEnum):
    """Among equals, fuller nodes first or emptier ones."""

    PACK = "pack"
    SPREAD = "spread"


class Links(NamedTuple):
    """The GPUs of a node that a pod would get.

    Attributes:
        gpus: What the device plugin will allocate; () where that is not known.
        optimal: The best set; () where it is not known which GPUs are free.
        quality: Of what it gets; where that is not known, the least it may get.
        joined: True where NVLink joins each pair of it.
        ratio: Its slowest pair against the best on this kind of node, in hundredths.
        broken: How many sizes of joined sets (two, four, eight) the node can no longer give afterwards. Counted
            where not every pair is joined alike; elsewhere the number of idle GPUs says it all.
    """

    gpus: tuple[int, ...]
    optimal: tuple[int, ...]
    quality: Quality
    joined: bool
    ratio: int
    broken: int = 0


class Ranked(msgspec.Struct, frozen=True):
    """A node that can take the pod.

    Attributes:
        node: Its position.
        score: The rule's, in its own unit.
        links: The GPUs it would get; None for a pod without whole GPUs.
        sure: Where what is known of its links comes from.
        key: What it is ordered by; equal keys are equal nodes.
    """

    node: int
    score: float
    links: Links | None
    sure: Confidence
    key: tuple[float, ...]


class Ranking:
    """Ranks the nodes of a cluster, for one pod after the other."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy = Policy.TAB,
        mix: Mix = FLAT,
        profiles: tuple[tuple[str, float], ...] = (),
        fill: Fill = Fill.PACK,
    ) -> None:
        """Begin.

        Args:
            cluster: The nodes.
            policy: What room is worth.
            mix: What pods will ask for of whole GPUs and shares.
            profiles: What they will ask for of MIG profiles, with weights.
            fill: What to do among equals.
        """
        self.cluster, self._policy, self._profiles = cluster, policy, profiles
        self._board = Board(cluster.rooms(), RULES[policy](cluster.site, mix))
        all_ = np.maximum(cluster.site.gpus.sum(1), 1)
        used = 1 - self._board.rooms.gpus.sum(1) / all_
        self._fullness: Floats = used if fill is Fill.PACK else -used
        self._links: dict[tuple[int, int | None, int], Links | None] = {}

    def rank(self, wanted: Wanted, *, gang: int = 1, domain: str = "") -> list[Ranked]:
        """The nodes that can take the pod, the best first; of equal ones the first of the cluster.

        Args:
            wanted: The pod.
            gang: How many such pods belong together.
            domain: Node label whose value they should share; "" for none.
        """
        scored = dict(self._scored(wanted))
        roomy = self._domains(wanted, list(scored), gang, domain) if domain else {}
        ranked = [self._ranked(wanted, node, score, roomy.get(node, NO_DOMAIN)) for node, score in scored.items()]
        return sorted(ranked, key=lambda each: (tuple(-part for part in each.key), each.node))

    def _scored(self, wanted: Wanted) -> Iterator[tuple[int, float]]:
        """The nodes that can take the pod, with the rule's score."""
        fleet = self.cluster.fleet
        allowed = fleet.usable & wanted.selected & fleet.tolerated(wanted.tolerations)
        offers = fleet.by_resource.get(wanted.resource, ()) if wanted.resource else (None,)
        for offer in offers:
            nodes = list(bits(allowed & offer.nodes if offer else allowed))
            if not nodes:
                continue
            need = self.cluster.need(wanted, nodes[0])
            scores: Floats = self._board.scores(need) + added(self._policy, self._board.rooms, need)
            mig = offer if offer is not None and offer.form is Form.MIG else None
            for node, score in zip(nodes, scores[nodes].tolist(), strict=True):
                if score > NOWHERE and takes(self.cluster, wanted, node):
                    yield node, self._mig(mig.product, mig.profile, node) if mig else score

    def _ranked(self, wanted: Wanted, node: int, score: float, domain: tuple[float, float]) -> Ranked:
        links = self._links_of(wanted, node)
        near = (float(links.joined), float(links.ratio)) if links and wanted.communicates else NOT_NEAR
        harm = -float(links.broken) if links else 0.0
        order = (*domain, *near, harm, score, float(self._fullness[node]))
        return Ranked(node, score, links, self.cluster.devices[node].topology.confidence, order)

    def _links_of(self, wanted: Wanted, node: int) -> Links | None:
        """The GPUs it would get; nodes of one kind with the same GPUs free give the same."""
        if wanted.resource != WHOLE_GPU or not self.cluster.whole(node)[0]:
            return None
        key = (self.cluster.kinds[node], self.cluster.devices[node].free, wanted.count)
        if key not in self._links:
            self._links[key] = links_on(self.cluster, wanted, node)
        return self._links[key]

    def _mig(self, product: str, profile: str, node: int) -> float:
        """By how much the worth of the card that loses least would change; 0 where the cut is not known.

        A pod takes an idle instance; where there is none, a start that is free.
        """
        known = geometry(product)
        form = known.profile(profile) if known else None
        if known is None or form is None:
            return 0.0
        worth, cards = worth_of(known, self._profiles), self.cluster.devices[node].cards
        used = {card.index: taken(known, card.used) for card in cards}
        places = [(used[card.index], one.start) for card in cards for one in card.idle if one.profile == profile]
        if not places:
            free = {card.index: starts(form, used[card.index] | taken(known, card.idle)) for card in cards}
            places = [(used[index], start) for index, some in free.items() for start in some]
        return round(max((worth.change(profile, mask, start) for mask, start in places), default=0.0), 1)

    def _domains(self, wanted: Wanted, fitting: list[int], gang: int, label: str) -> dict[int, tuple[float, float]]:
        """For each node, whether its domain still takes the whole gang, and how little is left over then."""
        slots: Counter[str] = Counter()
        names = {node: self.cluster.fleet.nodes[node].labels.get(label, "") for node in fitting}
        for node, name in names.items():
            slots[name] += self._slots(wanted, node) if name else 0
        return {node: (float(slots[name] >= gang), -float(slots[name])) for node, name in names.items()}

    def _slots(self, wanted: Wanted, node: int) -> int:
        """How many such pods a node takes."""
        room = self.cluster.free[node]
        counts = [room.gpus.get(wanted.resource, 0) // wanted.count] if wanted.count else []
        counts += [room.cpu_milli // wanted.cpu_milli] if wanted.cpu_milli else []
        counts += [(room.memory >> 20) // wanted.memory_mib] if wanted.memory_mib else []
        return min(counts, default=1)


def links_on(cluster: Cluster, wanted: Wanted, node: int) -> Links | None:
    """The GPUs that a pod for whole GPUs would get on a node with so many free."""
    offer = cluster.offer(node, wanted.resource)
    devices = cluster.devices[node]
    count = wanted.count
    if offer is None or offer.form is not Form.WHOLE or not 0 < count <= devices.topology.gpus:
        return None
    sets = gpu_sets(devices.topology)
    best = sets.best(count)
    if devices.free is None or devices.free.bit_count() < count:
        worst = sets.worst(count)
        return Links((), (), worst, count == 1 or sets.always_joined(count), _ratio(worst, best))
    optimal = sets.optimal(devices.free, count) or 0
    predicted = plugin(devices.topology).predicted(devices.free, count)
    got = optimal if predicted is None else predicted
    quality = sets.quality(got)
    given = () if predicted is None else tuple(bits(predicted))
    broken = _broken(sets, devices.free, devices.free & ~got)
    return Links(given, tuple(bits(optimal)), quality, sets.joined(got), _ratio(quality, best), broken)


def _broken(sets: GpuSets, before: int, after: int) -> int:
    if sets.topology.gpus < min(SETS) or sets.always_joined(min(SETS)):
        return 0
    return sum(sets.island(before) >= size > sets.island(after) for size in SETS)


def _ratio(quality: Quality, best: Quality) -> int:
    return 100 * quality.slowest // best.slowest if best.slowest else 100
