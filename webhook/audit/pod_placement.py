"""Where pods would go, shaped by the webhook, in the cluster as it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from webhook.audit.admission import AdmittedPod, admitted_pods, denial_codes
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SourceObject
from webhook.cache.placement_input import PlacementInput
from webhook.model.batch import gang_of, gang_size
from webhook.model.node_labels import CLIQUE_LABEL
from webhook.model.pods import Pod
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.filtering import filter_reasons
from webhook.placement.nodes.gangs import GangContext
from webhook.placement.nodes.pod_requirements import pod_requirements
from webhook.placement.nodes.preemption import find_preemption
from webhook.placement.nodes.ranking import MAX_SLOTS, FillOrder, NodeRanking
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nodes.stock_filters import (
    count_fitting_pods,
    host_ports,
    other_requests,
    stock_filter_reasons,
    unsupported_constraints,
)
from webhook.placement.nvlink import gpu_mask
from webhook.policy.policy_set import PolicySet
from webhook.report.placement import GangPlacement, PlacementResult, node_domain
from webhook.report.results import CheckResult


def place_pods(
    entries: Iterable[SourceObject],
    world: EvaluationContext,
    placing: PlacementInput,
    policy: ScoringStrategy,
    fill: FillOrder,
) -> Iterator[PlacementResult]:
    """Where each pod would go in the cluster as it stands, each by itself."""
    ranking = NodeRanking(placing.cluster, policy, placing.mix, placing.profiles, fill)
    for entry in entries:
        for shaped in admitted_pods(entry, world):
            yield _place_pod(shaped, _nvlink_domain(shaped.checked, world.policies), placing, ranking)


def _nvlink_domain(checked: CheckResult, policies: PolicySet) -> str:
    """The node label that names domains of NVLink, where a policy that spoke of the pod has one."""
    spoke = [policy.topology for policy in policies.policies if policy.name in checked.decision.policies]
    return next((section.multi_node_domain for section in spoke if section and section.multi_node_domain), "")


def _gang_context(pod: Pod, replicas: int, domain: str, placing: PlacementInput) -> GangContext | None:
    """Those that a pod belongs to: the others of its workload, of which those of the same gang may have places."""
    gang = gang_of(pod)
    if gang is None:
        return _workload_gang_context(pod, replicas, domain)
    fellows = (one for one in placing.pods if (found := gang_of(one)) and found.name == gang.name)
    places = placing.cluster.fleet.by_name
    seated = Counter(places[one.spec.node_name] for one in fellows if one.spec.node_name in places)
    return GangContext(replicas if replicas > 1 else gang.size, domain or gang.domain, seated)


def _workload_gang_context(pod: Pod, replicas: int, domain: str) -> GangContext | None:
    """The pods of one template, which no controller has named yet: a gang by a policy, or where it says their size."""
    said = gang_size(pod)
    return GangContext(replicas, domain or CLIQUE_LABEL) if replicas > 1 and (domain or said) else None


def _gang_placement(
    pod: Pod, company: GangContext | None, cluster: SchedulingSnapshot, room: Mapping[int, int], best: int
) -> GangPlacement | None:
    if company is None:
        return None
    gang, label = gang_of(pod), company.domain
    rooms: Counter[str] = Counter()
    for node, pods in room.items():
        rooms[node_domain(cluster, node, label)] += pods
    seated: Counter[str] = Counter()
    for node, pods in company.placed.items():
        seated[node_domain(cluster, node, label)] += pods
    name, chosen = gang.name if gang else "", node_domain(cluster, best, label)
    return GangPlacement(name, company.size, company.remaining_count, label, rooms, seated, chosen)


def _place_pod(shaped: AdmittedPod, domain: str, placing: PlacementInput, ranking: NodeRanking) -> PlacementResult:
    checked, pod, replicas, everywhere = shaped
    cluster = placing.cluster
    wanted = pod_requirements(pod, cluster.fleet)
    free = [placing.others.get(node.name, {}) for node in cluster.fleet.nodes]
    asked, unfit = other_requests(pod), stock_filter_reasons(pod, cluster.fleet.nodes, free, placing.ports)
    company = _gang_context(pod, 1 if everywhere else replicas, domain, placing)
    among = msgspec.structs.replace(wanted, selected_nodes=wanted.selected_nodes & ~gpu_mask(tuple(unfit)))
    ranked = ranking.rank(among, company)
    taking, slots = {each.node for each in ranked}, ranking.slots(among)
    most = 1 if everywhere or host_ports(pod) else MAX_SLOTS
    others = [node for node in range(len(cluster.fleet.nodes)) if node not in taking]
    room = {each.node: count_fitting_pods(asked, free[each.node], min(most, int(slots[each.node]))) for each in ranked}
    return PlacementResult(
        title=checked.title,
        denied=denial_codes(checked),
        request=wanted,
        cluster=cluster,
        feasible=tuple(ranked),
        reasons={node: (*filter_reasons(cluster, wanted, node), *unfit.get(node, ())) for node in others},
        nearest=None if ranked else find_preemption(cluster, wanted, placing.pods, pod, free),
        replicas=replicas,
        on_each_node=everywhere,
        fits=sum(room.values()),
        fixed_node=pod.spec.node_name,
        gang=_gang_placement(pod, company, cluster, room, ranked[0].node) if ranked else None,
        unevaluated=unsupported_constraints(pod),
    )
