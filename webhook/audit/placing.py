"""Pods as the webhook shapes them, and where they would go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from webhook.audit.checking import World, arriving, check, request_of, unread
from webhook.audit.manifests import Entry, Passed
from webhook.audit.simulating import Coming
from webhook.cache.placing import Placing
from webhook.engine.templates import miscounts
from webhook.engine.workloads import pods_of
from webhook.errors import ReviewError, shorten
from webhook.model.fleet import Fleet
from webhook.model.gangs import gang_of, gang_size
from webhook.model.masks import bits
from webhook.model.nodelabels import CLIQUE
from webhook.model.paths import Path, dotted
from webhook.model.pods import Pod, Volume, pod_of
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.nodes.asking import wanted_of
from webhook.placement.nodes.cluster import Cluster, Wanted
from webhook.placement.nodes.daemons import as_daemon, homes
from webhook.placement.nodes.filtering import obstacles
from webhook.placement.nodes.freeing import freeing
from webhook.placement.nodes.gangs import Company
from webhook.placement.nodes.hostports import host_ports
from webhook.placement.nodes.ranking import MOST_SLOTS, Fill, Ranking
from webhook.placement.nodes.scheduling import misfits, others_of, room_for
from webhook.placement.nodes.unseen import unseen
from webhook.placement.nvlink import mask_of
from webhook.policy.compiled import PolicySet
from webhook.report.diff import apply
from webhook.report.placed import Placed, domain_of
from webhook.report.results import Checked, Verdict
from webhook.report.together import Together


def placeable(found: Iterable[Entry | Passed], world: World) -> Iterator[Entry | Passed]:
    """The same; an object whose pods cannot be read, or that no API server takes so many of, comes out as a fault."""
    for each in found:
        yield _fault(each, world) or each if isinstance(each, Entry) else each


def _fault(entry: Entry, world: World) -> Passed | None:
    said = unread(entry, world)
    return Passed(said.place, f"{said.title}: {said.reason}", broken=True) if said else _miscounted(entry, world)


def _miscounted(entry: Entry, world: World) -> Passed | None:
    try:
        request = request_of(entry.data, world)
    except ReviewError:
        return None
    faults = (
        fault for one, _, _ in pods_of(request, world.policies, world.view) for fault in miscounts(entry.data, one.path)
    )
    for path, value in faults:
        must = f"must be a whole number, 0 or more, found {shorten(repr(value))}"
        return Passed(entry.place(path), f"{dotted(path)}: {must}. Write how many there are to be", broken=True)
    return None


class Shaped(NamedTuple):
    """A pod that comes of an object, as the webhook would let it in.

    Attributes:
        checked: What was said of it.
        pod: The pod.
        replicas: How many there are of it.
        everywhere: True for one of a DaemonSet, which wants one on every node that lets it in: that many, and at
            least 1.
    """

    checked: Checked
    pod: Pod
    replicas: int = 1
    everywhere: bool = False


def shaped_pods(entry: Entry, world: World) -> Iterator[Shaped]:
    """The pods that come of an object that can be read; none of what runs no pods."""
    checked = check(arriving(entry, world), world)
    if checked.verdict is Verdict.SKIPPED:
        return
    if checked.kind == "Pod":
        yield Shaped(checked, pod_of(apply(checked.stored, checked.decision.patch)))
        return
    for template, coming, _ in pods_of(request_of(entry.data, world), world.policies, world.view):
        said = check(Entry(coming.load(), entry.document, entry.prefix), world)
        called = msgspec.structs.replace(said, name=f"{checked.name.removesuffix('-*')}-*")
        pod = _claiming(pod_of(apply(said.stored, said.decision.patch)), entry.data, template.path)
        yield _daemon(called, pod, world) if checked.kind == "DaemonSet" else Shaped(called, pod, template.replicas)


def _claiming(pod: Pod, workload: Mapping[str, Any], template: Path) -> Pod:
    """A pod of a template with the volumes that its controller adds, of the claims that it makes for each pod."""
    beside: Any = workload
    for step in template[:-1]:
        beside = beside[step]
    claims = beside.get("volumeClaimTemplates") if isinstance(beside, dict) else None
    if not isinstance(claims, list) or not claims:
        return pod
    volumes = (*pod.spec.volumes, *(Volume(persistent_volume_claim={"claimName": ""}) for _ in claims))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, volumes=volumes))


def _daemon(checked: Checked, template: Pod, world: World) -> Shaped:
    pod = as_daemon(template, on_host=checked.stored["spec"].get("hostNetwork") is True)
    return Shaped(checked, pod, max(1, homes(pod, world.view.fleet).bit_count()), everywhere=True)


def denials(checked: Checked) -> tuple[str, ...]:
    """The codes for which the webhook would refuse a pod; () where it lets it in."""
    return tuple(dict.fromkeys(finding.code for finding in checked.decision.denials))


def coming_of(shaped: Shaped, wanted: Wanted, fleet: Fleet) -> list[Coming]:
    """Its replicas as they come to a cluster; of a DaemonSet's, each wants the node that it is made for."""
    codes = denials(shaped.checked)
    refused = f"refused by the webhook: {', '.join(codes)}" if codes else ""
    nodes = list(bits(homes(shaped.pod, fleet))) if shaped.everywhere else []
    each = [Coming(msgspec.structs.replace(wanted, selected=1 << node), refused) for node in nodes]
    return each or [Coming(wanted, refused)] * shaped.replicas


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
