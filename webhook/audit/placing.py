"""Where pods would go, shaped by the webhook, in the cluster as it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from webhook.audit.checking import World
from webhook.audit.manifests import Entry
from webhook.audit.shaping import Shaped, denials, shaped_pods
from webhook.cache.placing import Placing
from webhook.model.gangs import gang_of, gang_size
from webhook.model.nodelabels import CLIQUE
from webhook.model.pods import Pod
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.nodes.asking import wanted_of
from webhook.placement.nodes.cluster import Cluster
from webhook.placement.nodes.filtering import obstacles
from webhook.placement.nodes.freeing import freeing
from webhook.placement.nodes.gangs import Company
from webhook.placement.nodes.hostports import host_ports
from webhook.placement.nodes.ranking import MOST_SLOTS, Fill, Ranking
from webhook.placement.nodes.scheduling import misfits, others_of, room_for
from webhook.placement.nodes.unseen import unseen
from webhook.placement.nvlink import mask_of
from webhook.policy.compiled import PolicySet
from webhook.report.placed import Placed, domain_of
from webhook.report.results import Checked
from webhook.report.together import Together


def place_all(entries: Iterable[Entry], world: World, placing: Placing, policy: Policy, fill: Fill) -> Iterator[Placed]:
    """Where each pod would go in the cluster as it stands, each by itself."""
    ranking = Ranking(placing.cluster, policy, placing.mix, placing.profiles, fill)
    for entry in entries:
        for shaped in shaped_pods(entry, world):
            yield _placed(shaped, _domain(shaped.checked, world.policies), placing, ranking)


def _domain(checked: Checked, policies: PolicySet) -> str:
    """The node label that names domains of NVLink, where a policy that spoke of the pod has one."""
    spoke = [policy.topology for policy in policies.policies if policy.name in checked.decision.policies]
    return next((section.multi_node_domain for section in spoke if section and section.multi_node_domain), "")


def _company(pod: Pod, replicas: int, domain: str, placing: Placing) -> Company | None:
    """Those that a pod belongs to: the others of its workload, of which those of the same gang may have places."""
    gang = gang_of(pod)
    if gang is None:
        return _workload(pod, replicas, domain)
    fellows = (one for one in placing.pods if (found := gang_of(one)) and found.name == gang.name)
    places = placing.cluster.fleet.by_name
    seated = Counter(places[one.spec.node_name] for one in fellows if one.spec.node_name in places)
    return Company(replicas if replicas > 1 else gang.size, domain or gang.domain, seated)


def _workload(pod: Pod, replicas: int, domain: str) -> Company | None:
    """The pods of one template, which no controller has named yet: a gang by a policy, or where it says their size."""
    said = gang_size(pod)
    return Company(replicas, domain or CLIQUE) if replicas > 1 and (domain or said) else None


def _together(
    pod: Pod, company: Company | None, cluster: Cluster, room: Mapping[int, int], best: int
) -> Together | None:
    if company is None:
        return None
    gang, label = gang_of(pod), company.domain
    rooms: Counter[str] = Counter()
    for node, pods in room.items():
        rooms[domain_of(cluster, node, label)] += pods
    seated: Counter[str] = Counter()
    for node, pods in company.seated.items():
        seated[domain_of(cluster, node, label)] += pods
    name, chosen = gang.name if gang else "", domain_of(cluster, best, label)
    return Together(name, company.size, company.rest, label, rooms, seated, chosen)


def _placed(shaped: Shaped, domain: str, placing: Placing, ranking: Ranking) -> Placed:
    checked, pod, replicas, everywhere = shaped
    cluster = placing.cluster
    wanted = wanted_of(pod, cluster.fleet)
    free = [placing.others.get(node.name, {}) for node in cluster.fleet.nodes]
    asked, unfit = others_of(pod), misfits(pod, cluster.fleet.nodes, free, placing.ports)
    company = _company(pod, 1 if everywhere else replicas, domain, placing)
    among = msgspec.structs.replace(wanted, selected=wanted.selected & ~mask_of(tuple(unfit)))
    ranked = ranking.rank(among, company)
    taking, slots = {each.node for each in ranked}, ranking.slots(among)
    most = 1 if everywhere or host_ports(pod) else MOST_SLOTS
    others = [node for node in range(len(cluster.fleet.nodes)) if node not in taking]
    room = {each.node: room_for(asked, free[each.node], min(most, int(slots[each.node]))) for each in ranked}
    return Placed(
        title=checked.title,
        denied=denials(checked),
        wanted=wanted,
        cluster=cluster,
        ranked=tuple(ranked),
        reasons={node: (*obstacles(cluster, wanted, node), *unfit.get(node, ())) for node in others},
        freed=None if ranked else freeing(cluster, wanted, placing.pods, pod, free),
        replicas=replicas,
        everywhere=everywhere,
        fits=sum(room.values()),
        fixed=pod.spec.node_name,
        together=_together(pod, company, cluster, room, ranked[0].node) if ranked else None,
        unseen=unseen(pod),
    )
