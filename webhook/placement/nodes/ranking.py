"""The order of the nodes that can take a pod: links first where its GPUs talk, then what room stays worth.

A pod whose GPUs communicate goes where it really gets joined ones. Nodes are judged in arrays, all at once; a node
that changes is written anew, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from webhook.model.cluster import Room
from webhook.model.modes import Form
from webhook.model.offers import Offer
from webhook.placement.devices import Devices
from webhook.placement.fragmentation.mixes import FLAT, Mix
from webhook.placement.fragmentation.policies import RULES, Policy
from webhook.placement.fragmentation.rule import Rule
from webhook.placement.mig import WHOLE, Card, geometry, starts, taken, worth_of
from webhook.placement.nodes.board import NOWHERE, Board
from webhook.placement.nodes.cluster import Cluster, Wanted
from webhook.placement.nodes.gangs import Company, Domains, places_for_others, suiting
from webhook.placement.nodes.linking import Linking, Links, links_of
from webhook.placement.nodes.states import Judged, States
from webhook.placement.rooms import Bools, Floats, Ints, of_mask
from webhook.placement.topology import Confidence

PARTS = 10
"""Of a key: ill GPUs, three of the domain, two of the links, harm to sets, what is left to others, the rule's score,
fullness."""

ILL, DOMAIN, NEAR, HARM, LEFT, SCORE, FULLNESS = 0, slice(1, 4), slice(4, 6), 6, 7, 8, 9

LAST = -1e9
"""The score of a node that takes the pod by its units, and of which the rule cannot say what it would hold."""

MOST_PROFILES = 256
"""MIG profiles of products whose figures are remembered."""


MOST_SLOTS = 1 << 20
"""Pods that a node takes of those that ask for nothing."""


Cards = tuple[tuple[Card, ...], bool]
"""The MIG cards of a node that are well, and whether one is ill."""


class Fill(StrEnum):
    """Among equals, fuller nodes first or emptier ones."""

    PACK = "pack"
    SPREAD = "spread"


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


class Order(NamedTuple):
    """The nodes that can take a pod, the best first; of equal ones the first of the cluster.

    Attributes:
        nodes: Their positions, shape (n,).
        keys: What they are ordered by, shape (n, PARTS); the higher the better, equal keys are equal nodes.
    """

    nodes: Ints
    keys: Floats


class Ranking:
    """Ranks the nodes of a cluster, for one pod after the other. It has one writer.

    Attributes:
        cluster: The nodes. Change them through `change` only.
        faults: What went wrong while a node was judged, for whoever tells of it to take out. Such a node is the last.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy = Policy.TAB,
        mix: Mix = FLAT,
        profiles: tuple[tuple[str, float], ...] = (),
        fill: Fill = Fill.PACK,
        turnover: float = 1.0,
    ) -> None:
        """Begin.

        Args:
            cluster: The nodes.
            policy: What room is worth.
            mix: What pods will ask for of whole GPUs and shares.
            profiles: What they will ask for of MIG profiles, with weights.
            fill: What to do among equals.
            turnover: Pods that leave for each that comes, from 0 to 1: of a cluster at work, as many.
        """
        self.cluster, self._policy, self._profiles = cluster, policy, profiles
        self._board = Board(cluster.rooms(), RULES[policy](cluster.site, mix), turnover)
        self._sign = 1 if fill is Fill.PACK else -1
        nodes = range(len(cluster.free))
        self._fullness: Floats = np.zeros(len(nodes))
        self._full: Bools = np.zeros(len(nodes), np.bool_)
        self._units: dict[str, Ints] = {name: np.zeros(len(nodes), np.int64) for name in cluster.fleet.resources()}
        self.faults: list[Exception] = []
        self._linking = Linking(cluster.devices, self.faults)
        self._whole = of_mask(cluster.whole_nodes(), len(nodes))
        self._cards: States[Cards] = States(map(_cards, cluster.devices))
        self._worths: dict[tuple[str, str], Judged[Cards]] = {}
        self._domains = Domains(cluster.fleet)
        self._note(nodes)

    def rank(self, wanted: Wanted, company: Company | None = None) -> list[Ranked]:
        """The nodes that can take the pod, the best first; of equal ones the first of the cluster.

        Args:
            wanted: The pod.
            company: Those that it belongs to; None for a pod on its own.
        """
        order = self.order(wanted, company=company)
        keys = map(tuple, order.keys.tolist())
        return [self._ranked(wanted, node, key) for node, key in zip(order.nodes.tolist(), keys, strict=True)]

    def order(
        self, wanted: Wanted, *, among: Bools | None = None, company: Company | None = None, yielding: bool = False
    ) -> Order:
        """The same in arrays.

        Args:
            wanted: The pod.
            among: The nodes to rank, shape (nodes,); None for those that state, taints and selectors allow.
            company: Those that it belongs to; None for a pod on its own.
            yielding: It leaves room to others: of nodes that link its GPUs alike and whose sets it harms alike, it
                goes where the fewest units are free of what it asks for.
        """
        parts = list(self._parts(wanted, self._allowed(wanted) if among is None else among))
        if not parts:
            return Order(np.empty(0, np.int64), np.empty((0, PARTS)))
        nodes, keys = np.concatenate([part.nodes for part in parts]), np.concatenate([part.keys for part in parts])
        if company is not None:
            keys[:, DOMAIN] = suiting(self._domains.by(company.domain), self._open(wanted), company)[nodes]
        if yielding and wanted.resource:
            keys[:, LEFT] = -self._units[wanted.resource][nodes]
        telling = keys[:, (keys != keys[0]).any(0)]
        best = np.lexsort((nodes, *(-telling).T[::-1]))
        return Order(nodes[best], keys[best])

    def joinable(self, wanted: Wanted) -> tuple[Bools, Bools]:
        """Where NVLink joins what each container would get: now, and where it may do so later; of shape (nodes,).

        Units of a shared card are joined nowhere: two of them may be one card.
        """
        figures, whole = self._linking.figures(wanted.turns), self._whole
        return whole & (figures.joinable > 0), whole & (figures.ever > 0)

    def change(self, changes: Mapping[int, tuple[Room, Devices | None]]) -> None:
        """Another amount is free on some nodes, or other GPUs are; costs by the changes, not by the nodes.

        Args:
            changes: By position: what is free, and the GPUs; None for what the node's labels let one expect.
        """
        for node, (room, devices) in changes.items():
            self.cluster.change(node, room, devices)
            self._linking.set(node, self.cluster.devices[node])
            self._cards.set(node, _cards(self.cluster.devices[node]))
        if changes:
            nodes = list(changes)
            self.cluster.refresh(self._board.rooms, nodes)
            self._board.refresh(nodes)
            self._note(nodes)

    def rule(self, mix: Mix) -> Rule:
        """The rule for another mix. It takes a while, reads nothing that changes, and may run in a thread."""
        return RULES[self._policy](self.cluster.site, mix)

    def use(self, rule: Rule, profiles: tuple[tuple[str, float], ...]) -> None:
        """Judge by another rule and another mix of MIG profiles from now on."""
        self._board.use(rule)
        self._profiles = profiles
        self._worths.clear()

    def _note(self, nodes: Iterable[int]) -> None:
        """Write what the arrays say of some nodes."""
        some = np.array(list(nodes), np.int64)
        free = [self.cluster.free[node] for node in some.tolist()]
        self._full[some] = [room.full for room in free]
        for resource, units in self._units.items():
            units[some] = [room.gpus.get(resource, 0) for room in free]
        all_ = np.maximum(self.cluster.site.gpus[some].sum(1), 1)
        self._fullness[some] = self._sign * (1 - self._board.rooms.gpus[some].sum(1) / all_)

    def _allowed(self, wanted: Wanted) -> Bools:
        fleet = self.cluster.fleet
        allowed = fleet.open_to(wanted.tolerations) & wanted.selected & fleet.tolerated(wanted.tolerations)
        return of_mask(allowed, len(self._full))

    def _parts(self, wanted: Wanted, allowed: Bools) -> Iterator[Order]:
        """The nodes that can take the pod, those of one offer together, not ordered yet."""
        for offer in self.cluster.fleet.by_resource.get(wanted.resource, ()) if wanted.resource else (None,):
            offering = allowed if offer is None else allowed & of_mask(offer.nodes, len(allowed))
            nodes = np.flatnonzero(offering & self._takes(wanted))
            if len(nodes):
                yield self._part(wanted, offer, nodes)

    def _takes(self, wanted: Wanted) -> Bools:
        """Which nodes have the CPU, the memory, the GPUs and room for another pod, shape (nodes,)."""
        rooms = self._board.rooms
        takes = ~self._full & (rooms.cpu >= wanted.cpu_milli) & (rooms.memory >= wanted.memory_mib)
        for resource, count in wanted.gpus:
            takes &= self._units.get(resource, np.zeros_like(self._full, np.int64)) >= count
        return takes & self.joinable(wanted)[0] if wanted.joined else takes

    def _part(self, wanted: Wanted, offer: Offer | None, nodes: Ints) -> Order:
        keys = np.zeros((len(nodes), PARTS))
        need = self.cluster.need(wanted, int(nodes[0]))
        scores = self._board.scores(need)[nodes]
        keys[:, SCORE], keys[:, FULLNESS] = np.where(scores > NOWHERE, scores, LAST), self._fullness[nodes]
        if offer is not None and offer.form is Form.WHOLE:
            figures = self._linking.figures(wanted.turns)
            keys[:, ILL], keys[:, HARM] = -figures.ill[nodes], -figures.broken[nodes]
            if wanted.communicates:
                keys[:, NEAR] = np.column_stack([figures.joined, figures.ratio])[nodes]
        if offer is not None and offer.form is Form.MIG:
            keys[:, SCORE] = self._worth(offer.product, offer.profile)[nodes]
        return Order(nodes, keys)

    def _ranked(self, wanted: Wanted, node: int, key: tuple[float, ...]) -> Ranked:
        devices, offer = self.cluster.devices[node], self.cluster.offer(node, wanted.resource)
        whole = offer is not None and offer.form is Form.WHOLE
        links = links_of(devices.topology, devices.free, wanted.turns, devices.ill) if whole else None
        return Ranked(node, key[SCORE], links, devices.topology.confidence, key)

    def _worth(self, product: str, profile: str) -> Floats:
        """By how much the worth of the card that loses least would change, shape (nodes,)."""
        judged = self._worths.get((product, profile))
        if judged is None:
            if len(self._worths) >= MOST_PROFILES:
                self._worths.clear()
            judge = partial(self._change, product, profile)
            judged = Judged(self._cards, judge, (-float(WHOLE),), self.faults)
            self._worths[product, profile] = judged
        return judged.by_node()[:, 0]

    def _change(self, product: str, profile: str, state: Cards) -> tuple[float]:
        """The same for one node; 0 where the cut is not known.

        A pod takes an idle instance; where there is none, a start that is free; where there is none either, and a card
        is ill, what that one has.
        """
        cards, sick = state
        known = geometry(product)
        form = known.profile(profile) if known else None
        if known is None or form is None:
            return (0.0,)
        worth, missing = worth_of(known, self._profiles), -float(WHOLE) if sick else 0.0
        used = {card.index: taken(known, card.used) for card in cards}
        places = [(used[card.index], one.start) for card in cards for one in card.idle if one.profile == profile]
        if not places:
            free = {card.index: starts(form, used[card.index] | taken(known, card.idle)) for card in cards}
            places = [(used[index], start) for index, some in free.items() for start in some]
        return (round(max((worth.change(profile, mask, start) for mask, start in places), default=missing), 1),)

    def slots(self, wanted: Wanted) -> Ints:
        """How many such pods each node takes, one after the other; who may go where is not asked, shape (nodes,)."""
        rooms = self._board.rooms
        slots = np.where(self._full, 0, MOST_SLOTS)
        for resource, units in wanted.gpus:
            np.minimum(slots, self._units.get(resource, np.zeros_like(slots)) // units, out=slots)
        for free, asked in ((rooms.cpu, wanted.cpu_milli), (rooms.memory, wanted.memory_mib)):
            slots = np.minimum(slots, free // asked) if asked else slots
        if wanted.joined:
            sets = self._linking.sets(wanted.turns).astype(np.int64)
            slots = np.minimum(slots, np.where(self._whole, sets, 0))
        return np.maximum(slots, 0)

    def others(self, wanted: Wanted, company: Company, order: Order) -> list[int]:
        """Where the others would go, as `places_for_others` says; `order` is how the nodes were ranked for the pod."""
        domains = self._domains.by(company.domain)
        return places_for_others(domains, self._open(wanted), company, order.nodes) if len(order.nodes) else []

    def _open(self, wanted: Wanted) -> Ints:
        """The same where state, taints and selectors let the pod in, and none elsewhere."""
        return np.where(self._allowed(wanted), self.slots(wanted), 0)


def _cards(devices: Devices) -> Cards:
    return devices.cards, bool(devices.unhealthy & ~devices.whole)
