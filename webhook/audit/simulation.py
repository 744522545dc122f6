"""Simulates scheduling of pods, one after the other, and records the allocation over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

import numpy as np
from msgspec import structs

from webhook.audit.device_filter import (
    NO_DEVICES_NEEDED,
    DeviceFilterResult,
    device_values,
    exclusions_by_devices,
    find_device_reasons,
    published_cards,
    requested_device_milli,
    unevaluated_devices,
    with_devices_of_pod,
)
from webhook.cache.placement_input import PlacementInput, subtract_others
from webhook.model.cluster_view import ClusterView
from webhook.model.filters.node_declared_features import FEATURES_UNMATCHED, required_features
from webhook.model.filters.node_ports import HostPort, held_ports, index_host_ports, nodes_by_name
from webhook.model.filters.node_resources_fit import other_requests, requests_of_plugins
from webhook.model.filters.nominated_pods import nominated_node
from webhook.model.filters.volume_binding import unbound_claim
from webhook.model.fleet import FleetNode
from webhook.model.free_resources import UNLIMITED_PODS, FreeResources
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, CARD_MILLI
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.pod_volumes import pod_volumes
from webhook.model.pods import DEFAULT_NAMESPACE, Pod
from webhook.model.schedulers import rules_of_scheduler, with_default_spread
from webhook.placement.capacity import GPU_MILLI, ClusterCapacity, FreeCapacityArrays, PodDemand
from webhook.placement.fragmentation.strategies import FgdScorer, ScoringStrategy
from webhook.placement.fragmentation.workload_mix import mix_from_demands
from webhook.placement.nodes.filtering import (
    NODE_NAME_UNMATCHED,
    PORTS_IN_USE,
    SELECTOR_UNMATCHED,
    VOLUME_TOPOLOGY,
    filter_reasons,
    static_filter_reasons,
    tie_exclusions,
    unsupported_constraints,
)
from webhook.placement.nodes.pod_requirements import PodRequirements, pod_requirements
from webhook.placement.nodes.providers import ProviderRequirements, requirements_by_provider
from webhook.placement.nodes.ranking import FillOrder, NodeRanking, RankedNode
from webhook.placement.nodes.simulator import Simulator, unschedulable_reason
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.report.simulation import SimulatedObject, SimulationResult, SimulationStep

MAX_STEPS = 200
"""Steps to record of a simulation, however long it is."""


class SimulationProgress:
    """The state of a simulation.

    Attributes:
        keep_reasons: Pods that keep their GPU request, by reason.
        unplaced: Pods that were not placed, by object.
    """

    def __init__(self, strategy: ScoringStrategy, nodes: int, capacity: int, expected: int, allocated: int = 0) -> None:
        """Start with GPU amounts in thousandths: the capacity, and what running pods have."""
        self._strategy, self._nodes, self._capacity, self._initial = strategy, nodes, capacity, allocated
        self._pods_per_step = max(1, expected // MAX_STEPS)
        self._requested = self._allocated = allocated
        self._placed = self._unplaced = self._denied = 0
        self._steps: list[SimulationStep] = []
        self._reasons: Counter[str] = Counter()
        self.keep_reasons: Counter[str] = Counter()
        self.unplaced: Counter[SimulatedObject] = Counter()

    def record_pod(self, milli: int, reason: str, *, denied: bool = False) -> bool:
        """Count a pod, with the reason if it was not placed. Returns whether a step should be recorded now."""
        self._requested += milli
        self._allocated += 0 if reason else milli
        self._placed += not reason
        self._unplaced += bool(reason)
        self._denied += denied
        if reason:
            self._reasons[reason] += 1
        return (self._placed + self._unplaced) % self._pods_per_step == 0

    def record_step(self, fragmented: float) -> None:
        """Record the current state, with the thousandths of GPUs that are free but unusable by a typical pod."""
        step = SimulationStep(self._requested, self._allocated, round(fragmented), self._placed, self._unplaced)
        if not self._steps or self._steps[-1] != step:
            self._steps.append(step)

    def result(self) -> SimulationResult:
        """Return the result so far."""
        return SimulationResult(
            self._strategy,
            self._nodes,
            self._capacity,
            tuple(self._steps),
            dict(self._reasons),
            self._initial,
            dict(self.keep_reasons),
            self._denied,
            dict(self.unplaced),
        )


def simulate_trace(
    capacity: ClusterCapacity,
    demands: Sequence[PodDemand],
    strategy: ScoringStrategy,
    rng: np.random.Generator,
    *,
    learned: bool,
) -> Iterator[SimulationProgress]:
    """Simulate a trace on empty nodes; yields after each pod.

    With `learned`, the mix of requests is learned from arriving pods; else that of the trace is known.
    """
    mix = mix_from_demands(demands)
    simulator = Simulator(capacity, strategy, rng, None if learned else mix)
    fragmentation = FgdScorer(capacity, mix)
    simulation = SimulationProgress(strategy, len(capacity.nodes), capacity.total_milli, len(demands))
    for number, demand in enumerate(demands, 1):
        placed = simulator.schedule_pod(demand)
        simulator.record_arrival(demand)
        reason = "" if placed else str(unschedulable_reason(simulator.score_table.free, demand))
        if simulation.record_pod(demand.total_milli, reason) or number == len(demands):
            simulation.record_step(_fragmented_milli(fragmentation, simulator.score_table.free))
        yield simulation


class ArrivingPod(NamedTuple):
    """A Kubernetes pod as admitted now.

    Attributes:
        pod: The pod with its changes.
        denial: Why the webhook denies it, or a quota rejects it; "" if it is created.
        view: The cluster with its charges to quotas.
        admitted: How many pods like it were admitted together.
        keep_reason: Why it keeps its GPU request, as a stable word; "" if it does not.
    """

    pod: Pod
    denial: str
    view: ClusterView
    admitted: int = 1
    keep_reason: str = ""


class ArrivingReplicas(NamedTuple):
    """Replicas of one template, which arrive one after another.

    Attributes:
        owner: The object that has the template.
        admit: Admits a number of the next ones in a state of the cluster.
        nodes: For a DaemonSet, the node of each replica, by index.
        varies: The answer may change with the state of the cluster.
    """

    replicas: int
    admit: Callable[[ClusterView, int], ArrivingPod]
    nodes: tuple[int, ...] = ()
    varies: bool = True
    owner: SimulatedObject | None = None


class PlacementOutcome(NamedTuple):
    """The result of placing a pod.

    Attributes:
        milli: Thousandths of GPUs that it requests, or has on its node.
        reason: Why it was not placed; "" if it was.
        keep_reason: Why it keeps its GPU request, as a stable word; "" if it does not.
        denied: Whether it was denied at admission.
    """

    milli: int
    reason: str = ""
    keep_reason: str = ""
    denied: bool = False


class SimulatedCluster:
    """A cluster on which arriving Kubernetes pods are placed. No pod ends.

    Attributes:
        view: The cluster as the webhook sees it: the placed pods are bound.
    """

    def __init__(
        self, placement: PlacementInput, strategy: ScoringStrategy, fill: FillOrder, view: ClusterView
    ) -> None:
        """Start with the cluster as it is; nominated pods count as bound."""
        self._cluster = placement = placement.with_nominated(None)
        snapshot = placement.snapshot
        free = zip(snapshot.fleet.nodes, snapshot.free, strict=True)
        self.view = view.with_all_free({node.name: amounts for node, amounts in free})
        copy = snapshot.with_free(0, snapshot.free[0], snapshot.devices[0])
        self._ranking = NodeRanking(copy, strategy, placement.mix, placement.profiles, fill, turnover=0.0)
        self._pods = Counter(nominated_node(pod) or pod.spec.node_name for pod in placement.pods)
        bound = ((node, ports) for node, ports in placement.ports.items() if node)
        self._ports = index_host_ports(_nodes_by_port(bound), snapshot.fleet)
        self._unplaceable: dict[ProviderRequirements, PlacementOutcome] = {}

    @property
    def snapshot(self) -> SchedulingSnapshot:
        """The current state."""
        return self._ranking.snapshot

    def place_replicas(self, arriving: ArrivingReplicas) -> Iterator[PlacementOutcome]:
        """Admit and place replicas one after another; each is admitted again if the cluster has changed."""
        pod: ArrivingPod | None = None
        for number in range(arriving.replicas):
            if pod is None or arriving.varies:
                pod = arriving.admit(self.view, 1)
                if pod.denial:
                    yield from self._repeat_denial(pod, arriving.replicas - number)
                    return
                self.view = pod.view
            only = 1 << arriving.nodes[number] if arriving.nodes else self.snapshot.fleet.all_nodes
            outcome = self._place_pod(pod.pod, only)._replace(keep_reason=pod.keep_reason)
            yield outcome
            if outcome.reason and not arriving.nodes:
                yield from self._repeat_failure(arriving, outcome, arriving.replicas - number - 1)
                return

    def _repeat_failure(
        self, arriving: ArrivingReplicas, outcome: PlacementOutcome, replicas: int
    ) -> Iterator[PlacementOutcome]:
        """Admit the rest of some replicas, which fit on no node either: only quotas tell them apart."""
        if not replicas:
            return
        rest = arriving.admit(self.view, replicas)
        if rest.denial:
            yield from self._repeat_denial(rest, replicas)
            return
        self.view = rest.view
        yield from repeat(outcome, rest.admitted)
        if rest.admitted < replicas:
            yield from self._repeat_denial(arriving.admit(self.view, 1), replicas - rest.admitted)

    def _repeat_denial(self, pod: ArrivingPod, replicas: int) -> Iterator[PlacementOutcome]:
        requested = self._requested_milli(pod_requirements(pod.pod, self.snapshot.fleet))
        return repeat(PlacementOutcome(requested, pod.denial, pod.keep_reason, denied=True), replicas)

    def _place_pod(self, pod: Pod, only: int) -> PlacementOutcome:
        """Place a pod on one of some nodes. Failures are remembered until the next pod is placed."""
        fleet = self.snapshot.fleet
        required = requirements_by_provider(pod_requirements(pod, fleet), self._cluster.devices, fleet).selecting(only)
        devices = NO_DEVICES_NEEDED
        if required.selected_nodes:
            found = list(self._exclusions(pod))
            selected = required.selected_nodes & ~union_masks(nodes for nodes, _ in found)
            devices = find_device_reasons(pod, self._cluster, lambda: selected)
            found += exclusions_by_devices(devices)
            selected = required.selected_nodes & ~union_masks(nodes for nodes, _ in found)
            if not selected:
                most = max(found, key=lambda each: (each[0] & required.selected_nodes).bit_count())
                return self._failure(pod, PlacementOutcome(self._requested_milli(required.of_plugins), most[1]))
            required = required.selecting(selected)
        if required not in self._unplaceable:
            ranked = required.rank(self._ranking, devices=device_values(pod, devices, self._cluster))
            if ranked:
                return self._bind_pod(pod, required.on_node(ranked[0].node), ranked[0], devices)
            obstacle = _main_obstacle(self.snapshot, required.of_plugins)
            self._unplaceable[required] = PlacementOutcome(self._requested_milli(required.of_plugins), obstacle)
        return self._failure(pod, self._unplaceable[required])

    def _failure(self, pod: Pod, outcome: PlacementOutcome) -> PlacementOutcome:
        """Return the outcome of a pod that was not placed, with the devices that it requests."""
        return outcome._replace(milli=outcome.milli + requested_device_milli(pod, self._cluster))

    def _exclusions(self, pod: Pod) -> Iterator[tuple[int, str]]:
        """Yield the nodes that each filter excludes which does not look at CPU, memory and GPUs, and its message."""
        cluster, fleet, spec = self._cluster, self.snapshot.fleet, pod.spec
        rules = rules_of_scheduler(cluster.schedulers, spec.scheduler_name)
        if rules.terms is not None:
            yield fleet.all_nodes & ~fleet.select_nodes({}, rules.terms), SELECTOR_UNMATCHED
        if spec.node_name:
            yield fleet.all_nodes & ~nodes_by_name((spec.node_name,), fleet), NODE_NAME_UNMATCHED
        if features := required_features(pod):
            yield fleet.all_nodes & ~fleet.nodes_declaring(features), FEATURES_UNMATCHED
        if ports := held_ports(pod):
            yield self._ports.nodes_in_use(ports), PORTS_IN_USE
        for name, amount in other_requests(pod).items():
            if amount > 0 and name != ACCOUNTING_RESOURCE:
                yield _nodes_short_of(name, amount, cluster), f"Insufficient {name}"
        for each in cluster.volume_rejections(pod) or ():
            yield each.nodes, each.message
        spread = with_default_spread(pod, rules, partial(cluster.peers.find_of_pod, pod))
        for nodes, message, _ in tie_exclusions(spread, cluster.tied_pods, fleet):
            yield nodes, message

    def _requested_milli(self, required: PodRequirements) -> int:
        return _required_milli(self.snapshot, required, range(len(self.snapshot.fleet.nodes)))

    def _bind_pod(
        self, pod: Pod, required: PodRequirements, best: RankedNode, devices: DeviceFilterResult
    ) -> PlacementOutcome:
        position = best.node
        node = self.snapshot.fleet.nodes[position]
        after = self.snapshot.with_pod(required, position, best.links.gpus if best.links else ())
        self._pods[node.name] += 1
        left = node.pods - self._pods[node.name] if node.pods else UNLIMITED_PODS
        others = subtract_others(after.free[position].others, pod)
        free = structs.replace(after.free[position], full=left <= 0, pods=left, others=others)
        self._cluster = self._cluster.with_pod_bound(pod, node.name, pod_volumes(pod))
        self._cluster, device_milli = with_devices_of_pod(pod, self._cluster, devices, position)
        if ports := held_ports(pod):
            self._ports = self._ports.with_ports_held(ports, 1 << position)
        self._bind_in_view(pod, node, self.snapshot.free[position], free)
        self._ranking.set_nodes({position: (free, after.devices[position])})
        self._unplaceable.clear()
        return PlacementOutcome(_required_milli(self.snapshot, required, (position,)) + device_milli)

    def _bind_in_view(self, pod: Pod, node: FleetNode, before: FreeResources, after: FreeResources) -> None:
        """Add a placed pod to what the webhook sees; a full node has no free GPUs."""
        index = self.view.fleet.by_name.get(node.name)
        if index is not None:
            self.view = self.view.with_pod_bound(pod, node.name)
        if index is not None and node.gpus:
            seen = structs.replace(after, gpus=dict.fromkeys(after.gpus, 0)) if after.full else after
            self.view = self.view.with_free({index: (before, seen)})


def unsimulated_constraints(pod: Pod, placement: PlacementInput) -> Iterator[str]:
    """Yield the scheduling constraints of a pod that no simulation checks; none for most pods."""
    if unevaluated := unevaluated_devices(pod, placement):
        yield unevaluated
    yield from unsupported_constraints(pod)
    if rule := rules_of_scheduler(placement.schedulers, pod.spec.scheduler_name).unmodeled:
        yield rule
    if placement.volume_rejections(pod) is None:
        yield VOLUME_TOPOLOGY
    elif placement.storage is not None:
        namespace = pod.metadata.namespace or DEFAULT_NAMESPACE
        if any(unbound_claim(namespace, use, placement.storage) is not None for use in pod_volumes(pod)):
            yield "storage that unbound volume claims of earlier pods take"


def _nodes_short_of(name: str, amount: int, cluster: PlacementInput) -> int:
    """Return the mask of the nodes with less of a resource free than an amount, and where no device class serves it."""
    short = (
        1 << i
        for i, node in enumerate(cluster.snapshot.fleet.nodes)
        if requests_of_plugins({name: amount}, node.others, cluster.served_by_classes)
        and cluster.others.get(node.name, {}).get(name, 0) < amount
    )
    return union_masks(short)


def _nodes_by_port(ports_by_node: Iterable[tuple[str, Iterable[HostPort]]]) -> dict[HostPort, list[str]]:
    nodes: dict[HostPort, list[str]] = {}
    for node, ports in ports_by_node:
        for port in ports:
            nodes.setdefault(port, []).append(node)
    return nodes


def simulate_pods(
    placement: PlacementInput,
    arriving: Sequence[ArrivingReplicas],
    strategy: ScoringStrategy,
    fill: FillOrder,
    view: ClusterView,
) -> Iterator[SimulationProgress]:
    """Simulate Kubernetes pods on a cluster in its current state; yields after each pod, and once without pods."""
    snapshot = placement.snapshot
    capacity = sum(each.capacity * each.gpu_milli for each in snapshot.fleet.offers)
    allocated = sum(
        snapshot.used_units(position, resource) * offer.gpu_milli
        for position, node in enumerate(snapshot.fleet.nodes)
        for resource in node.gpus
        if (offer := snapshot.fleet.offer_on(resource, position))
    )
    cards = published_cards(placement)
    capacity += CARD_MILLI * len(cards)
    allocated += sum(card.allocated_milli for card in cards)
    fragmentation = FgdScorer(snapshot.capacity, placement.mix.with_gpus())
    simulated, expected = SimulatedCluster(placement, strategy, fill, view), sum(each.replicas for each in arriving)
    simulation = SimulationProgress(strategy, len(snapshot.fleet.nodes), capacity, expected, allocated)
    outcomes = ((replicas.owner, each) for replicas in arriving for each in simulated.place_replicas(replicas))
    for number, (owner, (milli, reason, keep_reason, denied)) in enumerate(outcomes, 1):
        if reason and owner:
            simulation.unplaced[owner] += 1
        if keep_reason:
            simulation.keep_reasons[keep_reason] += 1
        if simulation.record_pod(milli, reason, denied=denied) or number == expected:
            simulation.record_step(_fragmented_milli(fragmentation, simulated.snapshot.free_arrays()))
        yield simulation
    if not expected:
        simulation.record_step(_fragmented_milli(fragmentation, snapshot.free_arrays()))
        yield simulation


def _fragmented_milli(fragmentation: FgdScorer, free: FreeCapacityArrays) -> float:
    return -float(fragmentation.node_values(free.rows(np.arange(len(free.cpu)))).sum())


def _main_obstacle(snapshot: SchedulingSnapshot, required: PodRequirements) -> str:
    """Return the most frequent reason, in the scheduler's words, on the nodes that come closest.

    These are nodes that admit the pod and only lack capacity; if there are none, those with the fewest reasons. Nodes
    that its selectors exclude, or that do not offer its resource, are only considered if there are no others.
    """
    selected = list(bit_positions(required.selected_nodes)) or list(range(len(snapshot.fleet.nodes)))
    offering = [node for node in selected if snapshot.fleet.offer_on(required.resource, node)] or selected
    admitting = [node for node in offering if not any(static_filter_reasons(snapshot, required, node))]
    reasons = [
        list(dict.fromkeys(reason.scheduler_message for reason in filter_reasons(snapshot, required, node)))
        for node in admitting or offering
    ]
    fewest = min(map(len, reasons))
    return Counter(word for some in reasons if len(some) == fewest for word in some).most_common(1)[0][0]


def _required_milli(snapshot: SchedulingSnapshot, required: PodRequirements, nodes: Sequence[int]) -> int:
    """Return the requested thousandths of GPUs, each resource as on the first of the nodes that offers it."""
    total = 0
    for resource, count in required.gpu_resources:
        offers = (snapshot.fleet.offer_on(resource, node) for node in nodes)
        total += count * next((offer.gpu_milli for offer in offers if offer), GPU_MILLI)
    return total
