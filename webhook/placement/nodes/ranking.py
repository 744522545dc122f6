"""Rank the nodes that can run a pod: NVLink first for pods whose GPUs communicate, then the value of the remaining
capacity.

Each feasible node gets a key (`KEY_PARTS` numbers); nodes are sorted by it. All nodes are scored at once in arrays;
only changed nodes are updated. `webhook.extender.verbs` turns the order into the extender's score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from webhook.model.bounded_cache import BoundedCache
from webhook.model.enums import GpuForm
from webhook.model.free_resources import FreeResources
from webhook.model.gpu_resources import CARD_MILLI, WHOLE_GPU
from webhook.model.offers import GpuOffer
from webhook.placement.capacity import BoolArray, FloatArray, IntArray, node_mask_array
from webhook.placement.devices import NodeDevices
from webhook.placement.fragmentation.strategies import SCORERS, NodeScorer, ScoringStrategy
from webhook.placement.fragmentation.workload_mix import FLAT_MIX, WorkloadMix
from webhook.placement.mig import MigCard, free_starts, mig_card_value, mig_geometry, occupied_units
from webhook.placement.nodes.device_values import DeviceValues, worth_by_memory
from webhook.placement.nodes.gangs import GangContext, TopologyDomains, domain_suitability
from webhook.placement.nodes.gpu_links import GpuLinks, LinkTable, pod_gpu_links
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.score_table import INFEASIBLE_SCORE, NodeStates, ScoreTable, StateStats
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.topology import TopologyConfidence

KEY_PARTS = 12
"""Length of a key: whole cards, unhealthy GPUs, three for the gang's domain, two for links, broken sets, the choice of
claims, free units (if over their share), the scorer's score, fullness.
"""

WHOLE, UNHEALTHY, DOMAIN, LINKS, BROKEN_SETS = 0, 1, slice(2, 5), slice(5, 7), 7
CHOICE, FREE_UNITS, SCORE, FULLNESS = 8, 9, 10, 11

LAST_SCORE = -1e9
"""Score of a node that has the units, if the scorer does not know what the pod would get."""

MAX_PROFILES = 256
"""MIG profiles of products whose statistics are kept."""


UNLIMITED_PODS = 1 << 20
"""Pod capacity of a node for pods without requests."""


MigState = tuple[tuple[MigCard, ...], bool]
"""Healthy MIG cards of a node, and whether one is unhealthy."""


class FillOrder(StrEnum):
    """Order of equal nodes: the fuller one first, or the emptier one."""

    PACK = "pack"
    SPREAD = "spread"


class RankedNode(msgspec.Struct, frozen=True):
    """A node that can run the pod.

    Attributes:
        node: Its position.
        score: The scorer's score, in its own unit.
        links: GPUs that the pod would get; None for a pod without whole GPUs.
        confidence: Source of the topology.
        key: Sort key; equal keys are equal nodes.
    """

    node: int
    score: float
    links: GpuLinks | None
    confidence: TopologyConfidence
    key: tuple[float, ...]


class NodeOrder(NamedTuple):
    """Nodes in order, the best first, and their keys."""

    nodes: IntArray
    keys: FloatArray

    def pairs(self) -> Iterator[tuple[int, tuple[float, ...]]]:
        """Yield each node with its key."""
        return zip(self.nodes.tolist(), map(tuple, self.keys.tolist()), strict=True)


class NodeRanking:
    """Ranks the nodes of a cluster, one pod at a time. Not safe for concurrent writers.

    Attributes:
        snapshot: The nodes. Change them only through `set_nodes`.
        fill: Order of equal nodes.
        errors: Errors while scoring a node, for the caller to log and remove. Such a node comes last.
    """

    def __init__(
        self,
        snapshot: SchedulingSnapshot,
        strategy: ScoringStrategy = ScoringStrategy.TAB,
        mix: WorkloadMix = FLAT_MIX,
        profiles: tuple[tuple[str, float], ...] = (),
        fill: FillOrder = FillOrder.PACK,
        turnover: float = 1.0,
    ) -> None:
        """Prepare.

        Args:
            mix: Workload mix of whole GPUs and shares.
            profiles: Requested MIG profiles, with weights.
            fill: Order of equal nodes.
            turnover: Pods that leave for each that arrives, from 0 to 1; 1 for a cluster in steady state.
        """
        self.snapshot, self._strategy, self._profiles = snapshot, strategy, profiles
        self._score_table = ScoreTable(snapshot.free_arrays(), SCORERS[strategy](snapshot.capacity, mix), turnover)
        self.fill = fill
        self._sign = 1 if fill is FillOrder.PACK else -1
        nodes = range(len(snapshot.free))
        self._fullness: FloatArray = np.zeros(len(nodes))
        self._at_pod_limit: BoolArray = np.zeros(len(nodes), np.bool_)
        self._units: dict[str, IntArray] = {name: np.zeros(len(nodes), np.int64) for name in snapshot.fleet.resources()}
        self.errors: list[Exception] = []
        self._links = LinkTable(snapshot.devices, self.errors)
        self._whole_gpu_nodes = node_mask_array(snapshot.whole_gpu_nodes(), len(nodes))
        self._cards: NodeStates[MigState] = NodeStates(map(_mig_state, snapshot.devices))
        self._mig_values: BoundedCache[tuple[str, str], StateStats[MigState]] = BoundedCache(MAX_PROFILES)
        self._domains = TopologyDomains(snapshot.fleet)
        self._write_arrays(nodes)

    @property
    def profiles(self) -> tuple[tuple[str, float], ...]:
        """The requested MIG profiles, with weights."""
        return self._profiles

    def rank(
        self, requirements: PodRequirements, gang: GangContext | None = None, devices: DeviceValues | None = None
    ) -> list[RankedNode]:
        """Return the feasible nodes, the best first; equal ones in the order of the cluster. Arguments: see `order`."""
        order = self.order(requirements, gang=gang, devices=devices)
        return [self.describe_node(requirements, node, key) for node, key in order.pairs()]

    def order(
        self,
        requirements: PodRequirements,
        *,
        candidates: BoolArray | None = None,
        gang: GangContext | None = None,
        over_fair_share: bool = False,
        devices: DeviceValues | None = None,
    ) -> NodeOrder:
        """Return the order of `rank` as arrays.

        Args:
            candidates: Nodes to rank, shape (nodes,); None for those that state, taints and selectors allow.
            gang: The other pods of its gang; None for a pod without one.
            over_fair_share: True for a pod that leaves capacity to others: of nodes with equal links and equal harm to
                connected sets, the one with the fewest free units of its resource is best.
            devices: What the devices that the pod would get leave of each node; None for a pod without devices.
        """
        eligible = self._eligible_nodes(requirements) if candidates is None else candidates
        if requirements.unsuitable_nodes and candidates is not None:
            eligible = eligible & ~node_mask_array(requirements.unsuitable_nodes, len(eligible))
        parts = list(self._orders_by_offer(requirements, eligible, by_memory=devices is not None))
        if not parts:
            return NodeOrder(np.empty(0, np.int64), np.empty((0, KEY_PARTS)))
        nodes, keys = np.concatenate([part.nodes for part in parts]), np.concatenate([part.keys for part in parts])
        if gang is not None:
            domains = self._domains.domains_by_label(gang.domain)
            keys[:, DOMAIN] = domain_suitability(domains, self._eligible_pod_capacity(requirements), gang)[nodes]
        if over_fair_share and requirements.resource:
            keys[:, FREE_UNITS] = -self._units[requirements.resource][nodes]
        if devices is not None:
            keys[:, CHOICE] = -devices.choice[nodes]
            keys[:, SCORE] -= devices.loss[nodes]
            keys[:, FULLNESS] += self._sign * devices.fullness[nodes]
            if WHOLE_GPU in requirements.served_by_classes:
                keys[:, WHOLE] = devices.whole[nodes]
        return sort_by_keys(NodeOrder(nodes, keys))

    def nvlink_connected_nodes(self, requirements: PodRequirements) -> tuple[BoolArray, BoolArray]:
        """Return where NVLink connects the GPUs of each container: now, and possibly later; both of shape (nodes,).

        Shares are never connected: two of them may be one card.
        """
        stats, whole = self._links.link_stats(requirements.container_requests), self._whole_gpu_nodes
        return whole & (stats.connectable > 0), whole & (stats.ever_connectable > 0)

    def set_nodes(self, changes: Mapping[int, tuple[FreeResources, NodeDevices | None]]) -> None:
        """Change free resources or GPUs of some nodes, by position; the cost depends on the number of changes.

        Without devices, the GPUs are those that the labels suggest.
        """
        for node, (free, devices) in changes.items():
            self.snapshot.set_node(node, free, devices)
            self._links.set(node, self.snapshot.devices[node])
            self._cards.set(node, _mig_state(self.snapshot.devices[node]))
        if changes:
            nodes = list(changes)
            self.snapshot.write_free_arrays(self._score_table.free, nodes)
            self._score_table.refresh(nodes)
            self._write_arrays(nodes)

    def build_scorer(self, mix: WorkloadMix) -> NodeScorer:
        """Return the scorer for another mix. Slow; reads only immutable state, so it may run in a thread."""
        return SCORERS[self._strategy](self.snapshot.capacity, mix)

    def set_scorer(self, scorer: NodeScorer, profiles: tuple[tuple[str, float], ...]) -> None:
        """Use another scorer and another mix of MIG profiles from now on."""
        self._score_table.set_scorer(scorer)
        self._profiles = profiles
        self._mig_values.clear()

    def _write_arrays(self, nodes: Iterable[int]) -> None:
        some = np.array(list(nodes), np.int64)
        free = [self.snapshot.free[node] for node in some.tolist()]
        self._at_pod_limit[some] = [each.full for each in free]
        for resource, units in self._units.items():
            units[some] = [each.gpus.get(resource, 0) for each in free]
        totals = np.maximum(self.snapshot.capacity.gpus[some].sum(1), 1)
        self._fullness[some] = self._sign * (1 - self._score_table.free.gpus[some].sum(1) / totals)

    def _eligible_nodes(self, requirements: PodRequirements) -> BoolArray:
        fleet = self.snapshot.fleet
        tolerations = requirements.tolerations
        allowed = fleet.schedulable_nodes(tolerations) & fleet.tolerated_nodes(tolerations)
        allowed &= requirements.selected_nodes & ~requirements.unsuitable_nodes
        return node_mask_array(allowed, len(self._at_pod_limit))

    def _orders_by_offer(
        self, requirements: PodRequirements, allowed: BoolArray, *, by_memory: bool
    ) -> Iterator[NodeOrder]:
        """Yield the feasible nodes, those of one offer together, unsorted. Cards may count by their memory."""
        offers = self.snapshot.fleet.by_resource.get(requirements.resource, ()) if requirements.resource else (None,)
        for offer in offers:
            offering = allowed if offer is None else allowed & node_mask_array(offer.nodes, len(allowed))
            nodes = np.flatnonzero(offering & self._nodes_with_resources(requirements))
            if len(nodes):
                order = self._offer_order(requirements, offer, nodes)
                if by_memory and offer is not None and offer.memory_mib is not None:
                    order.keys[:, SCORE] *= worth_by_memory(1.0, offer.memory_mib, offer.gpu_milli)
                yield order

    def _nodes_with_resources(self, requirements: PodRequirements) -> BoolArray:
        """Return which nodes have the CPU, memory, GPUs, and are below their pod limit, shape (nodes,)."""
        arrays = self._score_table.free
        feasible = ~self._at_pod_limit & (arrays.cpu >= requirements.cpu_milli) & (arrays.memory >= requirements.memory)
        for resource, count in requirements.gpu_resources:
            feasible &= self._units.get(resource, np.zeros_like(self._at_pod_limit, np.int64)) >= count
        return feasible & self.nvlink_connected_nodes(requirements)[0] if requirements.nvlink_required else feasible

    def _offer_order(self, requirements: PodRequirements, offer: GpuOffer | None, nodes: IntArray) -> NodeOrder:
        keys = np.zeros((len(nodes), KEY_PARTS))
        demand = self.snapshot.pod_demand(requirements, int(nodes[0]))
        scores = self._score_table.scores(demand)[nodes]
        keys[:, SCORE] = np.where(scores > INFEASIBLE_SCORE, scores, LAST_SCORE)
        keys[:, FULLNESS] = self._fullness[nodes]
        if requirements.resource == WHOLE_GPU:
            keys[:, WHOLE] = offer is not None and offer.form is GpuForm.WHOLE
        if offer is not None and offer.form is GpuForm.WHOLE:
            stats = self._links.link_stats(requirements.container_requests)
            keys[:, UNHEALTHY], keys[:, BROKEN_SETS] = -stats.unhealthy[nodes], -stats.broken_sets[nodes]
            if requirements.communicates:
                keys[:, LINKS] = np.column_stack([stats.nvlink_connected, stats.ratio])[nodes]
        if offer is not None and offer.form is GpuForm.MIG:
            keys[:, SCORE] = self._mig_value_changes(offer.product, offer.profile)[nodes]
        return NodeOrder(nodes, keys)

    def describe_node(self, requirements: PodRequirements, node: int, key: tuple[float, ...]) -> RankedNode:
        """Return a node of an order, with the links of the GPUs that the pod would get there."""
        devices, offer = self.snapshot.devices[node], self.snapshot.fleet.offer_on(requirements.resource, node)
        links = None
        if offer is not None and offer.form is GpuForm.WHOLE:
            requests, unhealthy = requirements.container_requests, devices.allocatable_unhealthy
            links = pod_gpu_links(devices.topology, devices.free, requests, unhealthy)
        return RankedNode(node, key[SCORE], links, devices.topology.confidence, key)

    def _mig_value_changes(self, product: str, profile: str) -> FloatArray:
        """Return the smallest value loss of any card, shape (nodes,)."""
        if (stats := self._mig_values.get((product, profile))) is None:
            compute = partial(self._mig_value_change, product, profile)
            stats = StateStats(self._cards, compute, (-float(CARD_MILLI),), self.errors)
            self._mig_values.store((product, profile), stats)
        return stats.by_node()[:, 0]

    def _mig_value_change(self, product: str, profile: str, state: MigState) -> tuple[float]:
        """Return the change for one node; 0 for an unknown product or profile.

        A pod gets an idle instance, or else a free start; if there is neither and a card is unhealthy, that card's
        instance.
        """
        cards, has_unhealthy = state
        known = mig_geometry(product)
        profile_spec = known.profile(profile) if known else None
        if known is None or profile_spec is None:
            return (0.0,)
        value, missing = mig_card_value(known, self._profiles), -float(CARD_MILLI) if has_unhealthy else 0.0
        used = {card.index: occupied_units(known, card.used) for card in cards}
        places = [(used[card.index], one.start) for card in cards for one in card.idle if one.profile == profile]
        if not places:
            free = {
                card.index: free_starts(profile_spec, used[card.index] | occupied_units(known, card.idle))
                for card in cards
            }
            places = [(used[index], start) for index, some in free.items() for start in some]
        return (round(max((value.value_change(profile, mask, start) for mask, start in places), default=missing), 1),)

    def pod_capacity(self, requirements: PodRequirements) -> IntArray:
        """Return how many such pods fit on each node, ignoring taints and selectors, shape (nodes,)."""
        arrays = self._score_table.free
        pod_capacity = np.where(self._at_pod_limit, 0, UNLIMITED_PODS)
        for resource, units in requirements.gpu_resources:
            np.minimum(pod_capacity, self._units.get(resource, np.zeros_like(pod_capacity)) // units, out=pod_capacity)
        for free, requested in ((arrays.cpu, requirements.cpu_milli), (arrays.memory, requirements.memory)):
            pod_capacity = np.minimum(pod_capacity, free // requested) if requested else pod_capacity
        if requirements.nvlink_required:
            sets = self._links.connected_pod_counts(requirements.container_requests).astype(np.int64)
            pod_capacity = np.minimum(pod_capacity, np.where(self._whole_gpu_nodes, sets, 0))
        return np.maximum(pod_capacity, 0)

    def nodes_for_gang(self, requirements: PodRequirements, gang: GangContext, order: NodeOrder) -> list[int]:
        """Return nodes for the remaining pods once the pod has the best node; none if its domain cannot hold them all.

        `order` is the order for this pod, with at least one node; nodes of the domain are filled in this order.
        """
        domains, remaining = self._domains.domains_by_label(gang.domain), gang.remaining_count
        domain = domains[order.nodes[0]]
        nodes = order.nodes[domains[order.nodes] == domain]
        pod_capacity = self._eligible_pod_capacity(requirements)[nodes]
        others = np.repeat(nodes, np.minimum(pod_capacity, remaining))[1:remaining]
        return others.tolist() if domain and len(others) == remaining - 1 else []

    def _eligible_pod_capacity(self, requirements: PodRequirements) -> IntArray:
        """Return the pod capacity of nodes whose state, taints and selectors allow the pod, and 0 for others."""
        return np.where(self._eligible_nodes(requirements), self.pod_capacity(requirements), 0)


def sort_by_keys(order: NodeOrder) -> NodeOrder:
    """Return nodes with the best first, equal ones in the order of the cluster."""
    nodes, keys = order
    distinguishing = keys[:, (keys != keys[0]).any(0)]
    best = np.lexsort((nodes, *(-distinguishing).T[::-1]))
    return NodeOrder(nodes[best], keys[best])


def _mig_state(devices: NodeDevices) -> MigState:
    return devices.mig_cards, bool(devices.unhealthy & ~devices.whole_gpus)
