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

from webhook.model.cluster_view import FreeResources
from webhook.model.enums import GpuForm
from webhook.model.offers import GpuOffer
from webhook.placement.capacity import BoolArray, FloatArray, IntArray, node_mask_array
from webhook.placement.devices import NodeDevices
from webhook.placement.fragmentation.strategies import SCORERS, NodeScorer, ScoringStrategy
from webhook.placement.fragmentation.workload_mix import FLAT_MIX, WorkloadMix
from webhook.placement.mig import CARD_MILLI, MigCard, free_starts, mig_card_value, mig_geometry, occupied_units
from webhook.placement.nodes.gangs import GangContext, TopologyDomains, domain_suitability, nodes_for_remaining
from webhook.placement.nodes.gpu_links import GpuLinks, LinkTable, pod_gpu_links
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.score_table import INFEASIBLE_SCORE, NodeStates, ScoreTable, StateFigures
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.topology import TopologyConfidence

KEY_PARTS = 10
"""Of a key: ill GPUs, three of the domain, two of the links, harm to sets, what is left to others, the rule's score,
fullness."""

ILL, DOMAIN, NEAR, HARM, LEFT, SCORE, FULLNESS = 0, slice(1, 4), slice(4, 6), 6, 7, 8, 9

LAST_SCORE = -1e9
"""The score of a node that takes the pod by its units, and of which the rule cannot say what it would hold."""

MAX_PROFILES = 256
"""MIG profiles of products whose figures are remembered."""


MAX_SLOTS = 1 << 20
"""Pods that a node takes of those that ask for nothing."""


MigState = tuple[tuple[MigCard, ...], bool]
"""The MIG cards of a node that are well, and whether one is ill."""


class FillOrder(StrEnum):
    """Among equals, fuller nodes first or emptier ones."""

    PACK = "pack"
    SPREAD = "spread"


class RankedNode(msgspec.Struct, frozen=True):
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
    links: GpuLinks | None
    confidence: TopologyConfidence
    key: tuple[float, ...]


class NodeOrder(NamedTuple):
    """The nodes that can take a pod, the best first; of equal ones the first of the cluster.

    Attributes:
        nodes: Their positions, shape (n,).
        keys: What they are ordered by, shape (n, PARTS); the higher the better, equal keys are equal nodes.
    """

    nodes: IntArray
    keys: FloatArray


class NodeRanking:
    """Ranks the nodes of a cluster, for one pod after the other. It has one writer.

    Attributes:
        cluster: The nodes. Change them through `change` only.
        faults: What went wrong while a node was judged, for whoever tells of it to take out. Such a node is the last.
    """

    def __init__(
        self,
        cluster: SchedulingSnapshot,
        policy: ScoringStrategy = ScoringStrategy.TAB,
        mix: WorkloadMix = FLAT_MIX,
        profiles: tuple[tuple[str, float], ...] = (),
        fill: FillOrder = FillOrder.PACK,
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
        self._score_table = ScoreTable(cluster.free_arrays(), SCORERS[policy](cluster.capacity, mix), turnover)
        self._sign = 1 if fill is FillOrder.PACK else -1
        nodes = range(len(cluster.free))
        self._fullness: FloatArray = np.zeros(len(nodes))
        self._full: BoolArray = np.zeros(len(nodes), np.bool_)
        self._units: dict[str, IntArray] = {name: np.zeros(len(nodes), np.int64) for name in cluster.fleet.resources()}
        self.errors: list[Exception] = []
        self._links = LinkTable(cluster.devices, self.errors)
        self._whole = node_mask_array(cluster.whole_gpu_nodes(), len(nodes))
        self._cards: NodeStates[MigState] = NodeStates(map(_mig_state, cluster.devices))
        self._mig_values: dict[tuple[str, str], StateFigures[MigState]] = {}
        self._domains = TopologyDomains(cluster.fleet)
        self._write_arrays(nodes)

    def rank(self, requirements: PodRequirements, gang: GangContext | None = None) -> list[RankedNode]:
        """The nodes that can take the pod, the best first; of equal ones the first of the cluster.

        Args:
            requirements: The pod.
            gang: Those that it belongs to; None for a pod on its own.
        """
        order = self.order(requirements, gang=gang)
        keys = map(tuple, order.keys.tolist())
        return [
            self._ranked_node(requirements, node, key) for node, key in zip(order.nodes.tolist(), keys, strict=True)
        ]

    def order(
        self,
        requirements: PodRequirements,
        *,
        among: BoolArray | None = None,
        gang: GangContext | None = None,
        yielding: bool = False,
    ) -> NodeOrder:
        """The same in arrays.

        Args:
            requirements: The pod.
            among: The nodes to rank, shape (nodes,); None for those that state, taints and selectors allow.
            gang: Those that it belongs to; None for a pod on its own.
            yielding: It leaves room to others: of nodes that link its GPUs alike and whose sets it harms alike, it
                goes where the fewest units are free of what it asks for.
        """
        parts = list(
            self._orders_by_offer(requirements, self._eligible_nodes(requirements) if among is None else among)
        )
        if not parts:
            return NodeOrder(np.empty(0, np.int64), np.empty((0, KEY_PARTS)))
        nodes, keys = np.concatenate([part.nodes for part in parts]), np.concatenate([part.keys for part in parts])
        if gang is not None:
            keys[:, DOMAIN] = domain_suitability(
                self._domains.domains_by_label(gang.domain), self._eligible_slots(requirements), gang
            )[nodes]
        if yielding and requirements.resource:
            keys[:, LEFT] = -self._units[requirements.resource][nodes]
        telling = keys[:, (keys != keys[0]).any(0)]
        best = np.lexsort((nodes, *(-telling).T[::-1]))
        return NodeOrder(nodes[best], keys[best])

    def joinable_nodes(self, requirements: PodRequirements) -> tuple[BoolArray, BoolArray]:
        """Where NVLink joins what each container would get: now, and where it may do so later; of shape (nodes,).

        Units of a shared card are joined nowhere: two of them may be one card.
        """
        figures, whole = self._links.figures(requirements.container_requests), self._whole
        return whole & (figures.joinable > 0), whole & (figures.ever_joinable > 0)

    def set_nodes(self, changes: Mapping[int, tuple[FreeResources, NodeDevices | None]]) -> None:
        """Another amount is free on some nodes, or other GPUs are; costs by the changes, not by the nodes.

        Args:
            changes: By position: what is free, and the GPUs; None for what the node's labels let one expect.
        """
        for node, (room, devices) in changes.items():
            self.cluster.set_node(node, room, devices)
            self._links.set(node, self.cluster.devices[node])
            self._cards.set(node, _mig_state(self.cluster.devices[node]))
        if changes:
            nodes = list(changes)
            self.cluster.write_free_arrays(self._score_table.free, nodes)
            self._score_table.refresh(nodes)
            self._write_arrays(nodes)

    def build_scorer(self, mix: WorkloadMix) -> NodeScorer:
        """The rule for another mix. It takes a while, reads nothing that changes, and may run in a thread."""
        return SCORERS[self._policy](self.cluster.capacity, mix)

    def set_scorer(self, rule: NodeScorer, profiles: tuple[tuple[str, float], ...]) -> None:
        """Judge by another rule and another mix of MIG profiles from now on."""
        self._score_table.set_scorer(rule)
        self._profiles = profiles
        self._mig_values.clear()

    def _write_arrays(self, nodes: Iterable[int]) -> None:
        """Write what the arrays say of some nodes."""
        some = np.array(list(nodes), np.int64)
        free = [self.cluster.free[node] for node in some.tolist()]
        self._full[some] = [room.full for room in free]
        for resource, units in self._units.items():
            units[some] = [room.gpus.get(resource, 0) for room in free]
        all_ = np.maximum(self.cluster.capacity.gpus[some].sum(1), 1)
        self._fullness[some] = self._sign * (1 - self._score_table.free.gpus[some].sum(1) / all_)

    def _eligible_nodes(self, requirements: PodRequirements) -> BoolArray:
        fleet = self.cluster.fleet
        allowed = (
            fleet.schedulable_nodes(requirements.tolerations)
            & requirements.selected_nodes
            & fleet.tolerated_nodes(requirements.tolerations)
        )
        return node_mask_array(allowed, len(self._full))

    def _orders_by_offer(self, requirements: PodRequirements, allowed: BoolArray) -> Iterator[NodeOrder]:
        """The nodes that can take the pod, those of one offer together, not ordered yet."""
        for offer in (
            self.cluster.fleet.by_resource.get(requirements.resource, ()) if requirements.resource else (None,)
        ):
            offering = allowed if offer is None else allowed & node_mask_array(offer.nodes, len(allowed))
            nodes = np.flatnonzero(offering & self._feasible_nodes(requirements))
            if len(nodes):
                yield self._offer_order(requirements, offer, nodes)

    def _feasible_nodes(self, requirements: PodRequirements) -> BoolArray:
        """Which nodes have the CPU, the memory, the GPUs and room for another pod, shape (nodes,)."""
        rooms = self._score_table.free
        takes = ~self._full & (rooms.cpu >= requirements.cpu_milli) & (rooms.memory >= requirements.memory_mib)
        for resource, count in requirements.gpu_resources:
            takes &= self._units.get(resource, np.zeros_like(self._full, np.int64)) >= count
        return takes & self.joinable_nodes(requirements)[0] if requirements.nvlink_required else takes

    def _offer_order(self, requirements: PodRequirements, offer: GpuOffer | None, nodes: IntArray) -> NodeOrder:
        keys = np.zeros((len(nodes), KEY_PARTS))
        demand = self.cluster.pod_demand(requirements, int(nodes[0]))
        scores = self._score_table.scores(demand)[nodes]
        keys[:, SCORE], keys[:, FULLNESS] = (
            np.where(scores > INFEASIBLE_SCORE, scores, LAST_SCORE),
            self._fullness[nodes],
        )
        if offer is not None and offer.form is GpuForm.WHOLE:
            figures = self._links.figures(requirements.container_requests)
            keys[:, ILL], keys[:, HARM] = -figures.unhealthy[nodes], -figures.broken_sets[nodes]
            if requirements.communicates:
                keys[:, NEAR] = np.column_stack([figures.joined, figures.ratio])[nodes]
        if offer is not None and offer.form is GpuForm.MIG:
            keys[:, SCORE] = self._mig_value_changes(offer.product, offer.profile)[nodes]
        return NodeOrder(nodes, keys)

    def _ranked_node(self, requirements: PodRequirements, node: int, key: tuple[float, ...]) -> RankedNode:
        devices, offer = self.cluster.devices[node], self.cluster.offer(node, requirements.resource)
        whole = offer is not None and offer.form is GpuForm.WHOLE
        links = (
            pod_gpu_links(
                devices.topology, devices.free, requirements.container_requests, devices.allocatable_unhealthy
            )
            if whole
            else None
        )
        return RankedNode(node, key[SCORE], links, devices.topology.confidence, key)

    def _mig_value_changes(self, product: str, profile: str) -> FloatArray:
        """By how much the worth of the card that loses least would change, shape (nodes,)."""
        judged = self._mig_values.get((product, profile))
        if judged is None:
            if len(self._mig_values) >= MAX_PROFILES:
                self._mig_values.clear()
            judge = partial(self._mig_value_change, product, profile)
            judged = StateFigures(self._cards, judge, (-float(CARD_MILLI),), self.errors)
            self._mig_values[product, profile] = judged
        return judged.by_node()[:, 0]

    def _mig_value_change(self, product: str, profile: str, state: MigState) -> tuple[float]:
        """The same for one node; 0 where the cut is not known.

        A pod takes an idle instance; where there is none, a start that is free; where there is none either, and a card
        is ill, what that one has.
        """
        cards, sick = state
        known = mig_geometry(product)
        form = known.profile(profile) if known else None
        if known is None or form is None:
            return (0.0,)
        value, missing = mig_card_value(known, self._profiles), -float(CARD_MILLI) if sick else 0.0
        used = {card.index: occupied_units(known, card.used) for card in cards}
        places = [(used[card.index], one.start) for card in cards for one in card.idle if one.profile == profile]
        if not places:
            free = {
                card.index: free_starts(form, used[card.index] | occupied_units(known, card.idle)) for card in cards
            }
            places = [(used[index], start) for index, some in free.items() for start in some]
        return (round(max((value.value_change(profile, mask, start) for mask, start in places), default=missing), 1),)

    def slots(self, requirements: PodRequirements) -> IntArray:
        """How many such pods each node takes, one after the other; who may go where is not asked, shape (nodes,)."""
        rooms = self._score_table.free
        slots = np.where(self._full, 0, MAX_SLOTS)
        for resource, units in requirements.gpu_resources:
            np.minimum(slots, self._units.get(resource, np.zeros_like(slots)) // units, out=slots)
        for free, requested in ((rooms.cpu, requirements.cpu_milli), (rooms.memory, requirements.memory_mib)):
            slots = np.minimum(slots, free // requested) if requested else slots
        if requirements.nvlink_required:
            sets = self._links.joined_pod_counts(requirements.container_requests).astype(np.int64)
            slots = np.minimum(slots, np.where(self._whole, sets, 0))
        return np.maximum(slots, 0)

    def nodes_for_gang(self, requirements: PodRequirements, gang: GangContext, order: NodeOrder) -> list[int]:
        """Where the others would go, as `nodes_for_remaining` says; `order` is how the nodes were ranked for the
        pod.
        """
        domains = self._domains.domains_by_label(gang.domain)
        return (
            nodes_for_remaining(domains, self._eligible_slots(requirements), gang, order.nodes)
            if len(order.nodes)
            else []
        )

    def _eligible_slots(self, requirements: PodRequirements) -> IntArray:
        """The same where state, taints and selectors let the pod in, and none elsewhere."""
        return np.where(self._eligible_nodes(requirements), self.slots(requirements), 0)


def _mig_state(devices: NodeDevices) -> MigState:
    return devices.mig_cards, bool(devices.unhealthy & ~devices.whole_gpus)
