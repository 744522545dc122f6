"""Places admitted pods on a cluster in its current state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, partial, reduce

import msgspec

from webhook.audit.admission import AdmittedPod, admitted_pods, denial_codes
from webhook.audit.device_filter import device_values, find_device_reasons
from webhook.audit.evaluate import EvaluationContext, with_admitted_claims
from webhook.audit.object_files import SourceObject
from webhook.cache.placement_input import PlacementInput
from webhook.model.batch import REPLICA_LABELS, Gang, gang_of, gang_size
from webhook.model.dra.device_view import NO_DEVICES
from webhook.model.dra.pod_devices import PodClaims
from webhook.model.filters.node_ports import host_ports
from webhook.model.filters.node_resources_fit import count_fitting_pods, other_requests, requests_of_plugins
from webhook.model.filters.nominated_pods import select_nominated
from webhook.model.filters.pod_ties import (
    count_pods_apart,
    is_checked_for_affinity,
    self_excluding_keys,
    ties_of,
)
from webhook.model.filters.volumes import IN_USE
from webhook.model.fleet import Fleet
from webhook.model.node_labels import CLIQUE_LABEL
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.pods import Pod
from webhook.model.schedulers import rules_of_scheduler, with_default_spread
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.filtering import (
    NO_DAEMON_POD,
    VOLUME_TOPOLOGY,
    FilterReason,
    constraints_between_replicas,
    filter_reasons,
    pod_tie_reasons,
    stock_filter_reasons,
    unsupported_constraints,
)
from webhook.placement.nodes.gangs import GangContext
from webhook.placement.nodes.pod_requirements import pod_requirements
from webhook.placement.nodes.preemption import find_preemption
from webhook.placement.nodes.providers import ProviderRequirements, requirements_by_provider
from webhook.placement.nodes.ranking import UNLIMITED_PODS, FillOrder, NodeRanking
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nvlink import gpu_mask
from webhook.policy.policy_set import PolicySet
from webhook.report.placement import GangPlacement, PlacementResult, node_domain
from webhook.report.results import CheckResult

DEVICES_OF_REPLICAS = "devices that the other replicas take"


def with_claims_of_files(
    sources: Iterable[SourceObject], placement: PlacementInput, context: EvaluationContext
) -> tuple[PlacementInput, EvaluationContext]:
    """Return the cluster, as pods are placed in it and evaluated against it, with the claims and classes of files.

    Policies have changed the claims, as the webhook would. Where no devices are known, claims are not evaluated.
    """
    context = with_admitted_claims(sources, context)
    view = context.view
    if placement.devices is NO_DEVICES:
        return placement, context
    templates, before = view.all_claims.templates, placement.devices
    devices = view.devices._replace(pools=before.pools, allocated=before.allocated)
    return msgspec.structs.replace(placement, devices=devices, claim_templates=templates), context


def place_pods(
    sources: Iterable[SourceObject],
    context: EvaluationContext,
    placement: PlacementInput,
    strategy: ScoringStrategy,
    fill: FillOrder,
) -> Iterator[PlacementResult]:
    """Place each pod on its own: earlier pods are not counted."""

    @cache
    def cluster_for(priority: int | None) -> tuple[PlacementInput, NodeRanking]:
        cluster = placement.with_nominated(priority)
        return cluster, NodeRanking(cluster.snapshot, strategy, placement.mix, placement.profiles, fill)

    for source in sources:
        for admitted in admitted_pods(source, context):
            domain = _nvlink_domain(admitted.checked, context.policies)
            priority = placement.classes.priority_of(admitted.pod) if placement.nominated else None
            yield _place_pod(admitted, domain, placement, *cluster_for(priority))


def _nvlink_domain(checked: CheckResult, policies: PolicySet) -> str:
    """Return the node label of NVLink domains that a policy of the pod names; "" if none does."""
    sections = [policy.topology for policy in policies.policies if policy.name in checked.decision.policies]
    return next((section.multi_node_domain for section in sections if section and section.multi_node_domain), "")


def _gang_context(pod: Pod, replicas: int, domain: str, placement: PlacementInput) -> GangContext | None:
    """Return the gang of a pod; some of its pods may be placed already.

    The replicas of a template, which no controller has named yet, are a gang if the template declares a gang size. They
    are also one if a policy names a domain, unless they are independent as those of a Deployment.
    """
    gang = gang_of(pod)
    if gang is None:
        together = domain and REPLICA_LABELS.isdisjoint(pod.metadata.labels)
        is_gang = replicas > 1 and (together or gang_size(pod))
        return GangContext(replicas, domain or CLIQUE_LABEL) if is_gang else None
    members = (one for one in placement.pods if (other := gang_of(one)) and other.name == gang.name)
    positions = placement.snapshot.fleet.by_name
    placed = Counter(positions[one.spec.node_name] for one in members if one.spec.node_name in positions)
    return GangContext(replicas if replicas > 1 else gang.size, domain or gang.domain, placed)


def _known_name(gang: Gang | None) -> str:
    """Return the name of a gang; "" if a controller sets the label that names it, whose value is not known yet."""
    if gang is None or any(part.endswith("=") for part in gang.name.split("; ")):
        return ""
    return gang.name


def _gang_placement(
    pod: Pod, context: GangContext | None, snapshot: SchedulingSnapshot, capacity: Mapping[int, int], best: int
) -> GangPlacement | None:
    if context is None:
        return None
    gang, label = gang_of(pod), context.domain
    name, best_domain = _known_name(gang), node_domain(snapshot, best, label)
    by_domain, placed = (_sum_by_domain(snapshot, label, pods) for pods in (capacity, context.placed))
    return GangPlacement(name, context.size, context.remaining_count, label, by_domain, placed, best_domain)


def _sum_by_domain(snapshot: SchedulingSnapshot, label: str, pods_by_node: Mapping[int, int]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for node, pods in pods_by_node.items():
        totals[node_domain(snapshot, node, label)] += pods
    return totals


def node_filter_reasons(pod: Pod, placement: PlacementInput) -> dict[int, tuple[FilterReason, ...]]:
    """Return every reason against each node that does not take a pod now, by its position among the nodes."""
    rules = rules_of_scheduler(placement.schedulers, pod.spec.scheduler_name)
    pod = with_default_spread(pod, rules, partial(placement.peers.find_of_pod, pod))
    stock = find_stock_reasons(pod, placement)
    snapshot = placement.with_nominated(placement.classes.priority_of(pod)).snapshot
    required = _pod_requirements(pod, placement)
    found = {
        node: (*filter_reasons(snapshot, required.on_node(node), node), *stock.get(node, ()))
        for node in range(len(snapshot.fleet.nodes))
    }
    devices = find_device_reasons(pod, placement, lambda: union_masks(1 << node for node in found if not found[node]))
    found |= {node: (*found[node], reason) for node, reason in devices.reasons.items()}
    return {node: reasons for node, reasons in found.items() if reasons}


def _pod_requirements(pod: Pod, placement: PlacementInput) -> ProviderRequirements:
    """Return what a pod requires, on the nodes that its scheduler may choose from."""
    fleet, rules = placement.snapshot.fleet, rules_of_scheduler(placement.schedulers, pod.spec.scheduler_name)
    required = requirements_by_provider(pod_requirements(pod, fleet), placement.devices, fleet)
    return required.selecting(fleet.select_nodes({}, rules.terms))


def find_stock_reasons(pod: Pod, placement: PlacementInput) -> dict[int, tuple[FilterReason, ...]]:
    """Return the reasons of the filters that do not look at CPU, memory and GPUs, by node position.

    On the node of nominated pods that it yields to, the pod must fit both with them and without.
    VolumeRestrictions does not count them.
    """
    found = _find_stock_reasons(pod, placement)
    nominated = select_nominated(placement.nominated, placement.classes.priority_of(pod))
    for node in {each.spec.node_name for each in nominated}:
        position = placement.snapshot.fleet.by_name[node]
        reserved = _reserve_node(pod, [each for each in nominated if each.spec.node_name == node], placement)
        more = _find_stock_reasons(pod, reserved).get(position, ())
        known = {each.scheduler_message: each for each in more if each.scheduler_message != IN_USE}
        reasons = {each.scheduler_message: each for each in found.get(position, ())} | known
        found.update({position: tuple(reasons.values())} if reasons else {})
    return found


def _reserve_node(pod: Pod, nominated: Collection[Pod], placement: PlacementInput) -> PlacementInput:
    """Return the cluster with nominated pods bound, as the scheduler sees it for a pod.

    Their anti-affinity counts only if InterPodAffinity has something else to check for the pod.
    """
    reserved, known = reduce(PlacementInput.with_nominated_pod, nominated, placement), placement.tied_pods
    tied_pods = reserved.tied_pods.with_nominated(nominated, placement.snapshot.fleet)
    if not is_checked_for_affinity(pod, known):
        tied_pods = tied_pods._replace(anti_affinity=known.anti_affinity)
    return msgspec.structs.replace(reserved, tied_pods=tied_pods)


def _find_stock_reasons(pod: Pod, placement: PlacementInput) -> dict[int, tuple[FilterReason, ...]]:
    nodes = placement.snapshot.fleet.nodes
    free = [placement.others.get(node.name, {}) for node in nodes]
    volumes, served = placement.volume_rejections(pod) or (), placement.served_by_classes
    found = stock_filter_reasons(pod, nodes, free, placement.ports, volumes, served)
    for node, reasons in pod_tie_reasons(pod, placement.tied_pods, placement.snapshot.fleet).items():
        found[node] = (*found.get(node, ()), *reasons)
    return found


def _open_nodes(
    snapshot: SchedulingSnapshot, required: ProviderRequirements, filtered: Mapping[int, tuple[FilterReason, ...]]
) -> int:
    """Return the mask of the nodes that no filter excludes."""
    nodes = (node for node in bit_positions(required.selected_nodes) if node not in filtered)
    return union_masks(1 << node for node in nodes if not filter_reasons(snapshot, required.on_node(node), node))


def _exclusion_keys(pod: Pod, placement: PlacementInput) -> tuple[str, ...]:
    """Return the topology keys by which the replicas of a pod exclude each other."""
    ties = ties_of(pod)
    return self_excluding_keys(ties, placement.tied_pods.labels_of(ties.namespace))


def _nodes_for_one(apart: tuple[str, ...], fleet: Fleet) -> int:
    """Return the nodes that take one replica each, because they are domains of their own."""
    domains = map(fleet.domains_of_label, apart)
    return union_masks(each.nodes for each in domains if each.are_single_nodes)


def _count_fitting(capacity: Mapping[int, int], apart: tuple[str, ...], snapshot: SchedulingSnapshot) -> int:
    """Return how many replicas fit at once, from how many of them each node could take."""
    fitting = gpu_mask(tuple(node for node, pods in capacity.items() if pods))
    return count_pods_apart(
        apart, fitting, lambda nodes: sum(capacity[node] for node in bit_positions(nodes)), snapshot.fleet
    )


def _unknown_volumes(pod: Pod, placement: PlacementInput) -> Iterator[str]:
    if placement.volume_rejections(pod) is None:
        yield VOLUME_TOPOLOGY


def _may_use_plugins_alone(claims: PodClaims, required: ProviderRequirements) -> bool:
    """Return whether device plugins of some nodes offer all that a pod requests, so that it needs no devices there."""
    without_claims = not (claims.unallocated or claims.rejection) and bool(claims.extended)
    return without_claims and bool(required.of_plugins.resource)


def _place_pod(
    admitted: AdmittedPod, domain: str, placement: PlacementInput, reserved: PlacementInput, ranking: NodeRanking
) -> PlacementResult:
    """Place a pod; `reserved` is the cluster with the nominated pods bound that it yields to."""
    checked, pod, replicas, daemon_nodes, allowed, *_ = admitted
    rules = rules_of_scheduler(placement.schedulers, pod.spec.scheduler_name)
    snapshot, daemon = reserved.snapshot, daemon_nodes is not None
    pod = with_default_spread(pod, rules, partial(placement.peers.find_of_pod, pod))
    required = _pod_requirements(pod, placement)
    free = [reserved.others.get(node.name, {}) for node in snapshot.fleet.nodes]
    requests, filtered = other_requests(pod), find_stock_reasons(pod, placement)
    suitable = required
    if daemon_nodes is not None:
        suitable = required.selecting(daemon_nodes)
        without_pod = snapshot.fleet.all_nodes & ~daemon_nodes
        filtered |= {node: (*filtered.get(node, ()), NO_DAEMON_POD) for node in bit_positions(without_pod)}
    devices = find_device_reasons(pod, placement, partial(_open_nodes, snapshot, suitable, filtered))
    filtered = filtered | {node: (*filtered.get(node, ()), reason) for node, reason in devices.reasons.items()}
    gang = _gang_context(pod, 1 if daemon else replicas, domain, placement)
    eligible = required.selecting(~gpu_mask(tuple(filtered)))
    ranked = eligible.rank(ranking, gang, device_values(pod, devices, placement))
    feasible = {each.node for each in ranked}
    pod_capacity = eligible.pod_capacity(ranking, feasible)
    together = tuple(constraints_between_replicas(pod)) if replicas > 1 and not daemon else ()
    apart = _exclusion_keys(pod, placement) if replicas > 1 else ()
    one_each = snapshot.fleet.all_nodes if daemon or host_ports(pod) else _nodes_for_one(apart, snapshot.fleet)
    others = [node for node in range(len(snapshot.fleet.nodes)) if node not in feasible]
    capacity = {}
    for node in (each.node for each in ranked):
        most = 1 if one_each >> node & 1 else UNLIMITED_PODS
        of_node = requests_of_plugins(requests, snapshot.fleet.nodes[node].others, placement.served_by_classes)
        capacity[node] = count_fitting_pods(of_node, free[node], min(most, pod_capacity[node]))
    nearest = None
    if not ranked and (devices.claims is None or _may_use_plugins_alone(devices.claims, suitable)):
        nearest = find_preemption(snapshot, suitable.on_plugin_nodes(), placement.pods, pod, free, placement.tied_pods)
    return PlacementResult(
        title=checked.title,
        denied=denial_codes(checked),
        request=required.of_plugins,
        snapshot=snapshot,
        feasible=tuple(ranked),
        reasons={
            node: (*filter_reasons(snapshot, required.on_node(node), node), *filtered.get(node, ())) for node in others
        },
        nearest=nearest,
        replicas=replicas,
        admitted=allowed,
        on_each_node=daemon,
        fits=_count_fitting(capacity, apart, snapshot),
        fixed_node=pod.spec.node_name,
        gang=_gang_placement(pod, gang, snapshot, capacity, ranked[0].node) if ranked else None,
        unevaluated=(
            *filter(None, (devices.unevaluated, DEVICES_OF_REPLICAS if devices.claims and replicas > 1 else "")),
            *unsupported_constraints(pod),
            *together,
            *_unknown_volumes(pod, placement),
            *filter(None, (rules.unmodeled,)),
        ),
        keep_reason=checked.decision.keep_reason,
        template=admitted.template,
        devices={node: [each for some in found.claims for each in some] for node, found in devices.allocations.items()},
    )
