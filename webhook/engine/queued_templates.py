"""Templates of workloads under Kueue or Volcano: whether they may be changed, what the queue admits, and the patch.

Both charge the templates of the stored workload. So a template that may get a smaller GPU is changed when its
workload is created, before they have seen it, and never again. The decision is that about a pod of the template, with
one difference: the queue starts the pods later. So every flavor that it may choose must have nodes for all pods of the
template, and what is free now counts only for pods that could start now with whole GPUs. Volcano starts a Job as soon
as its queue has room: so one node must have slices free for all pods of the Job.

Only right-sizing is written into the template: resources, node affinity, memory fractions and the record. All else that
policies add is added to the pods, as if there were no queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.engine.mutate import apply_choice
from webhook.engine.patch import build_patch
from webhook.engine.pod_context import PodMutation
from webhook.engine.templates import PodTemplate
from webhook.model.admission import AdmissionRequest
from webhook.model.batch import KUEUE, NO_SYSTEM, VOLCANO, QueueingSystem
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision, KeepReason, KeepRequest, OfferChoice, PatchOperation, patch_add
from webhook.model.field_paths import format_path, json_pointer, map_at
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_groups import NodeGroup
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.offers import GpuOffer
from webhook.model.pods import Pod
from webhook.model.quantity import parse_whole_number
from webhook.model.queue_topologies import read_topology_request, split_into_domains
from webhook.model.queues import (
    MIN_PARALLELISM_ANNOTATION,
    MULTIKUEUE,
    PREBUILT_LABEL,
    QUEUE_NAME_LABEL,
    FlavorChoice,
    ResourceFlavor,
    WorkloadQueue,
)
from webhook.model.volcano_queues import (
    DEFAULT_QUEUE,
    VOLCANO_GROUP,
    VOLCANO_SCHEDULER,
    ChargingQueue,
    QueuedPodSet,
    UnknownQueue,
    VolcanoJobQueue,
)
from webhook.policy.policy_set import PolicySet
from webhook.policy.workload_kinds import CHARGED_KINDS

WorkloadQueueState = ChargingQueue | UnknownQueue | None
"""The queue of a workload, why it is not known, or None for a workload that no queue will charge itself."""


def queue_of_workload(request: AdmissionRequest, policies: PolicySet, view: ClusterView) -> WorkloadQueueState:
    """Return the queue of a workload that has not been charged yet; None for any other object.

    A workload that another one controls is charged as part of that; only the Jobs of a CronJob are charged themselves:
    for a CronJob, return the queue of its Jobs.
    """
    if is_cron_job(request):
        labels = map_at(request.load_object(), "spec", "jobTemplate", "metadata", "labels")
        name = labels.get(QUEUE_NAME_LABEL)
        is_queued = isinstance(name, str) and view.queues.configuration.may_queue("batch", "Job")
        return _find_queue(request.namespace, str(name), view) if is_queued else None
    templates = policies.workload_kinds.get((request.group, request.kind))
    if request.operation != "CREATE" or templates is None or not templates.queued:
        return None
    if ignores_queue_label(request, policies, view):
        return None
    metadata = map_at(request.load_object(), "metadata")
    labels = map_at(metadata, "labels")
    name, owners = labels.get(QUEUE_NAME_LABEL), metadata.get("ownerReferences")
    is_stored = bool(metadata.get("uid"))
    if request.group == VOLCANO_GROUP and not is_stored:
        return _queue_of_volcano_job(map_at(request.load_object(), "spec"), view)
    if not isinstance(name, str) or is_stored or not all(map(_leaves_charging, _members(owners))):
        return None
    if PREBUILT_LABEL in labels:
        return UnknownQueue(KeepRequest(KeepReason.WORKLOAD_EXISTS, str(labels[PREBUILT_LABEL])))
    queue = _find_queue(request.namespace, name, view)
    if not isinstance(queue, WorkloadQueue):
        return queue
    if map_at(request.load_object(), "spec").get("managedBy") == MULTIKUEUE:
        return replace(queue, kept=KeepRequest(KeepReason.RUNS_ELSEWHERE, f"managedBy {MULTIKUEUE}"))
    fewest = parse_whole_number(map_at(metadata, "annotations").get(MIN_PARALLELISM_ANNOTATION, "0"))
    return replace(queue, fewest_pods=fewest) if fewest else queue


def charging_system_of_workload(request: AdmissionRequest, policies: PolicySet, view: ClusterView) -> QueueingSystem:
    """Return the system that charges the templates of a workload, or those of its owner, when that is created.

    It may be too late to change them now: only `queue_of_workload` tells. `NO_SYSTEM` if templates of the workload are
    never changed.
    """
    data = request.load_object()
    metadata = map_at(data, "metadata")
    if owners := [each for each in _members(metadata.get("ownerReferences")) if not _leaves_charging(each)]:
        kinds = {(str(each.get("apiVersion")).rpartition("/")[0], str(each.get("kind"))) for each in owners}
        return KUEUE if kinds <= CHARGED_KINDS else NO_SYSTEM
    if (request.group, request.kind) not in CHARGED_KINDS or ignores_queue_label(request, policies, view):
        return NO_SYSTEM
    if request.group == VOLCANO_GROUP:
        return VOLCANO if _is_started_by_volcano(map_at(data, "spec")) else NO_SYSTEM
    if is_cron_job(request):
        metadata = map_at(data, "spec", "jobTemplate", "metadata")
    return KUEUE if QUEUE_NAME_LABEL in map_at(metadata, "labels") else NO_SYSTEM


def _is_started_by_volcano(job: Mapping[str, Any]) -> bool:
    return bool(job.get("schedulerName", VOLCANO_SCHEDULER) == VOLCANO_SCHEDULER)


def is_cron_job(request: AdmissionRequest) -> bool:
    """Return whether an object is a CronJob: its Jobs are changed when they are created, and it is not."""
    return (request.group, request.kind) == ("batch", "CronJob")


def _find_queue(namespace: str, name: str, view: ClusterView) -> WorkloadQueue | UnknownQueue:
    found = view.queues.find(namespace, name)
    if found is not None:
        return found
    return UnknownQueue(KeepRequest(KeepReason.QUEUE_NOT_FOUND, view.queues.explain_missing(namespace, name)))


def ignores_queue_label(request: AdmissionRequest, policies: PolicySet, view: ClusterView) -> bool:
    """Return whether Kueue ignores the queue of a workload, because its configuration does not list the kind.

    Its controller does not copy the label to the pods, so these are like any others. An object inside of another one
    may have the label too.
    """
    group, kind = ("batch", "Job") if is_cron_job(request) else (request.group, request.kind)
    templates = policies.workload_kinds.get((group, kind))
    if templates is None or not templates.queued or any(source.embedded for source in templates.sources):
        return False
    return group != VOLCANO_GROUP and not view.queues.configuration.may_queue(group, kind)


def _queue_of_volcano_job(spec: Mapping[str, Any], view: ClusterView) -> VolcanoJobQueue | UnknownQueue | None:
    """Return the queue of a Job of Volcano; None if another scheduler starts it.

    What its pods get from fields outside the templates is not known here. They are not independent if Volcano starts
    several of them at once.
    """
    if not _is_started_by_volcano(spec):
        return None
    tasks = [task for task in _members(spec.get("tasks")) if isinstance(task, dict)]
    pods = sum(_count(task.get("replicas"), 1) for task in tasks)
    name = str(spec.get("queue") or DEFAULT_QUEUE)
    queue = view.volcano_queues.find(name, view.fleet, pods)
    if queue is None:
        return UnknownQueue(KeepRequest(KeepReason.QUEUE_NOT_FOUND, f"Queue {name} of Volcano"), VOLCANO)
    unread = next((key for key in ("volumes", "networkTopology") if spec.get(key)), "")
    unread = unread or next(("topologyPolicy" for task in tasks if task.get("topologyPolicy", "none") != "none"), "")
    at_once = _count(spec.get("minAvailable"), 0) or pods  # as the webhook of Volcano writes it
    if unread:
        queue = replace(queue, kept=KeepRequest(KeepReason.UNMODELED_CONSTRAINT, f"{unread} of its Job"))
    elif at_once > 1:
        queue = replace(queue, kept=KeepRequest(KeepReason.GANG_MEMBER, f"minAvailable is {at_once}"))
    return queue


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default


def _members(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _leaves_charging(owner: object) -> bool:
    """Return whether Kueue charges what this owner controls itself."""
    return not isinstance(owner, dict) or not owner.get("controller") or owner.get("kind") == "CronJob"


def queued_pod_set(template: PodTemplate, queue: WorkloadQueueState) -> QueuedPodSet | None:
    """Return the pods of a template that wait in a queue; None if the template cannot be changed.

    A kind without pod templates has no field for a node affinity or a record.
    """
    return None if queue is None or template.moves else QueuedPodSet(queue, template.replicas)


def with_earlier_pods(request: AdmissionRequest, units: Mapping[str, int]) -> AdmissionRequest:
    """Return the request for a pod of a template, with the pods of the templates before it, by their new resource."""
    queued = request.queued
    return request if queued is None or not units else replace(request, queued=replace(queued, earlier=dict(units)))


class GroupGrowth(NamedTuple):
    """Nodes that groups may add for the pods of a template, beside the live ones.

    Attributes:
        live: The live nodes.
        groups: The groups, in the order of their new nodes.
    """

    live: FeasibleNodes
    groups: Sequence[NodeGroup]


SlotCounter = Callable[[FeasibleNodes, str, int, int], int]
"""Counts the pods that nodes of a mask can run, each with one unit of a resource, up to a number."""


def reason_by_queue(
    queued: QueuedPodSet,
    offers: Sequence[GpuOffer],
    feasible: FeasibleNodes,
    growth: GroupGrowth | None = None,
    *,
    may_wait: bool,
) -> KeepRequest | None:
    """Return why the pods of a template might not get an offer from their queue; None if they will, in time.

    In time is not enough for pods that could start now with whole GPUs, unless they may wait.

    Args:
        queued: The pods.
        offers: The offers, on the nodes of `feasible`.
        feasible: Live nodes, or the new nodes of groups.
        growth: Set if they are new nodes.
        may_wait: True if the policy lets pods wait for a slice.
    """
    resource, queue, pods = offers[0].resource, queued.queue, queued.pods
    if isinstance(queue, UnknownQueue):
        return queue.kept
    if feasible.ties():
        return KeepRequest(KeepReason.UNMODELED_CONSTRAINT, "affinity or spread between pods")
    choice = queue.choose_flavors(resource, pods, feasible.pod)
    if choice is None or not choice.sufficient:
        return _not_admitted(queue, resource, pods, feasible.pod)
    nodes = union_masks(offer.nodes for offer in offers)
    if isinstance(queue, VolcanoJobQueue):
        if _has_free_slots(queue, resource, nodes, feasible):
            return None
        return KeepRequest(KeepReason.NO_FREE_CAPACITY, f"{queue.pods} of {resource}")
    if check := queue.check_elsewhere(choice.flavors):
        return KeepRequest(KeepReason.RUNS_ELSEWHERE, check)
    if name := queue.dearer_than(resource, WHOLE_GPU):
        return KeepRequest(KeepReason.NOT_ADMITTED, f"it charges more {name} for {resource} than for {WHOLE_GPU}")
    together = (each for flavor in choice.flavors for each in _flavors_together(flavor, choice.others))
    all_pods = pods + queued.earlier.get(resource, 0)
    slots = TemplateSlots(queue, resource, nodes, feasible, growth)
    reasons = (slots.reason_against(each, pods if _has_topology(each) else all_pods) for each in together)
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is not None or may_wait:
        return reason
    return _reason_by_use(
        queue, pods, choice, resource, nodes if growth is None else 0, growth.live if growth else feasible
    )


def _reason_by_use(
    queue: WorkloadQueue, pods: int, choice: FlavorChoice, resource: str, nodes: int, live: FeasibleNodes
) -> KeepRequest | None:
    """Return why pods that could start now with whole GPUs would wait for slices; None if they could not either.

    Kueue takes the first flavor whose quota is free. Quota that a cohort may lend counts for whole GPUs, and not for
    slices. So does quota of workloads that the queue may preempt, and partial admission: fewer pods may start. What
    pods hold that the scheduler may preempt counts for whole GPUs, too.

    Args:
        nodes: Mask of the live nodes with slices; 0 if new nodes have them.
    """
    fewest = min(queue.fewest_pods or pods, pods)
    whole = queue.choose_flavors(WHOLE_GPU, fewest, live.pod)
    if whole is None:
        return None
    whole = whole._replace(free=whole.free or whole.borrowing)
    preempts = queue.cluster_queue.may_preempt and (whole.sufficient or whole.free)
    cards = live.view.fleet.nodes_advertising(WHOLE_GPU)
    count_slots = _count_preemptible_slots if live.view.pod_classes.may_preempt(live.pod) else _count_free_slots
    if not preempts and not _may_start(queue, fewest, whole, WHOLE_GPU, cards, live, count_slots):
        return None
    if not choice.free:
        detail = f"{pods} of {resource} in {queue.title}"
        return KeepRequest(KeepReason.QUEUE_QUOTA_IN_USE, detail)
    if not nodes or _may_start(queue, pods, choice, resource, nodes, live, _count_free_slots):
        return None
    return KeepRequest(KeepReason.NO_FREE_CAPACITY, f"{pods} of {resource}")


def _may_start(
    queue: WorkloadQueue,
    pods: int,
    choice: FlavorChoice,
    resource: str,
    nodes: int,
    live: FeasibleNodes,
    count_slots: SlotCounter,
) -> bool:
    """Return whether the queue has quota for the pods now, and live nodes of a mask have units for all."""
    slots = TemplateSlots(queue, resource, nodes, live, count_slots=count_slots)
    return any(
        slots.reason_against(each, pods) is None
        for flavor in choice.free[:1]
        for each in _flavors_together(flavor, choice.others)
    )


def _count_slots(feasible: FeasibleNodes, resource: str, nodes: int, most: int) -> int:
    """Return how many pods nodes of a mask can run at once, each with one unit, up to a number or a few more.

    Only pods of DaemonSets and static pods run there besides: all others may end before the queue starts these.
    """
    cpu_milli, memory, others = feasible.amounts()
    slots = 0
    for index in bit_positions(nodes):
        free = feasible.view.free_when_idle(index)
        amounts = [(cpu_milli, free.cpu_milli), (memory, free.memory)]
        amounts += [(amount, free.others.get(name, 0)) for name, amount in others]
        limits = [max(0, there) // needed for needed, there in amounts if needed]
        limits += [free.pods, *([1] if feasible.ports else [])]
        slots += min([free.gpus.get(resource, 0), *limits])
        if slots >= most:
            break
    return slots


class TemplateSlots(NamedTuple):
    """Nodes on which each pod of a template may get one unit of a resource.

    Attributes:
        queue: The queue that charges the template.
        nodes: Mask of the nodes with the resource.
        feasible: Live nodes, or the new nodes of groups.
        growth: Set if they are new nodes.
        count_slots: Counts the pods that live nodes can run.
    """

    queue: WorkloadQueue
    resource: str
    nodes: int
    feasible: FeasibleNodes
    growth: GroupGrowth | None = None
    count_slots: SlotCounter = _count_slots

    def reason_against(self, flavors: Sequence[ResourceFlavor], pods: int) -> KeepRequest | None:
        """Return why the nodes might not hold all pods that get these flavors."""
        if _has_topology(flavors):
            return self._reason_by_topology(flavors, pods)
        mask = _nodes_of_flavors(flavors, self.nodes, self.feasible)
        if self.growth is None:
            slots = self.count_slots(self.feasible, self.resource, mask, pods)
        else:
            slots = self._count_slots_with_growth(flavors, mask, pods, self.growth)
        if slots >= pods:
            return None
        detail = f"{pods} of {self.resource} in flavor {flavors[0].metadata.name}"
        return KeepRequest(KeepReason.NO_FLAVOR_NODES, detail)

    def _count_slots_with_growth(
        self, flavors: Sequence[ResourceFlavor], nodes: int, most: int, growth: GroupGrowth
    ) -> int:
        """Return how many pods live nodes and those that groups may add can run at once, up to a number.

        A group adds no node for flavors with labels that its template lacks.

        Args:
            nodes: Mask of the new nodes that pods with the flavors may use.
        """
        live, resource, keys = growth.live, self.resource, {key for each in flavors for key in each.spec.node_labels}
        advertising = live.view.fleet.nodes_advertising(resource)
        slots = _count_slots(live, resource, _nodes_of_flavors(flavors, advertising, live), most)
        for index in bit_positions(nodes):
            group = growth.groups[index]
            if keys.isdisjoint(group.unknown_labels):
                added = most if group.nodes_left is None else group.nodes_left
                slots += added * _count_slots(self.feasible, resource, 1 << index, most)
        return slots

    def _reason_by_topology(self, flavors: Sequence[ResourceFlavor], pods: int) -> KeepRequest | None:
        """Return why domains of a flavor's topology might not hold all pods; None if they can.

        Kueue admits pods to such a flavor only where live nodes have enough capacity, so new nodes do not count.
        """
        live = self.feasible if self.growth is None else self.growth.live
        fleet = live.view.fleet
        offering = self.nodes if self.growth is None else fleet.nodes_advertising(self.resource)
        nodes = _nodes_of_flavors(flavors, offering, live)
        flavor = next(each for each in flavors if each.spec.topology_name)
        request = read_topology_request(live.pod.metadata.annotations)
        levels = self.queue.topologies.get(flavor.spec.topology_name)
        if levels is None:
            missing = f"Topology {flavor.spec.topology_name} of flavor {flavor.metadata.name}, which was not found"
            return KeepRequest(KeepReason.UNMODELED_CONSTRAINT, missing)
        if request.unread:
            return KeepRequest(KeepReason.UNMODELED_CONSTRAINT, f"annotation {request.unread}")
        for label in levels:
            nodes &= fleet.nodes_with_label(label)
        domains, where = [nodes], ""
        if request.required:
            domains = split_into_domains(fleet, _levels_down_to(request.required, levels), nodes)
            where = f"one {request.required} of "
        size, parts = request.group_size, _levels_down_to(request.group_level, levels)
        for domain in domains:
            groups = split_into_domains(fleet, parts, domain) if parts else [domain]
            if sum(self.count_slots(live, self.resource, each, pods) // size for each in groups) * size >= pods:
                return None
        each_group = f", {size} in each {request.group_level}," if request.group_level else ""
        detail = f"{pods} of {self.resource}{each_group} in {where}flavor {flavor.metadata.name}"
        return KeepRequest(KeepReason.NO_FLAVOR_NODES, detail)


def _has_topology(flavors: Iterable[ResourceFlavor]) -> bool:
    """Return whether a flavor has a topology: each template may get domains of its own there."""
    return any(each.spec.topology_name for each in flavors)


def _has_free_slots(queue: VolcanoJobQueue, resource: str, nodes: int, feasible: FeasibleNodes) -> bool:
    """Return whether one node of a mask has free what all pods of a Job request."""
    cpu_milli, memory, others = feasible.amounts()
    pods, ports = queue.pods, feasible.ports
    needed = (pods * cpu_milli, pods * memory, tuple([(name, pods * amount) for name, amount in others]))
    allowed = feasible.with_free_ports(nodes & feasible.nodes) & feasible.nodes_with_volumes
    return not (ports and pods > 1) and feasible.view.has_free_node(resource, pods, allowed, *needed, ports)


def _not_admitted(queue: ChargingQueue, resource: str, units: int, pod: Pod) -> KeepRequest:
    reason = queue.explain_rejection(resource, units, pod)
    return KeepRequest(KeepReason.NOT_ADMITTED, f"{units} of {resource} in {queue.title}: {reason}")


def _flavors_together(
    flavor: ResourceFlavor, others: Iterable[Sequence[ResourceFlavor]]
) -> Iterator[tuple[ResourceFlavor, ...]]:
    """Yield a flavor alone, and together with each flavor that other resources may get."""
    yield (flavor,)
    for group in others:
        yield from ((flavor, other) for other in group)


def _nodes_of_flavors(flavors: Sequence[ResourceFlavor], nodes: int, feasible: FeasibleNodes) -> int:
    """Return the nodes of a mask that pods with all these flavors may use."""
    own, *others = flavors
    nodes &= feasible.nodes_of_flavor(own)
    for other in others:
        nodes &= feasible.nodes_of_flavor(other, own.spec.tolerations)
    return nodes


def _levels_down_to(level: str, levels: tuple[str, ...]) -> tuple[str, ...]:
    return levels[: levels.index(level) + 1] if level else ()


def _count_free_slots(feasible: FeasibleNodes, resource: str, nodes: int, most: int) -> int:
    """Return how many pods can start now on nodes of a mask, each with one unit, up to a number.

    Devices of a class are not counted: there, all can.
    """
    if resource not in feasible.view.fleet.resources():
        return most
    allowed = feasible.with_free_ports(nodes)
    one_on_node = bool(feasible.ports)
    return feasible.view.count_free_slots(resource, allowed, *feasible.amounts(), most, one_on_node=one_on_node)


def _count_preemptible_slots(feasible: FeasibleNodes, resource: str, nodes: int, most: int) -> int:
    """Return how many pods can start on nodes of a mask, up to a number, if the scheduler preempts what runs there."""
    return max(_count_free_slots(feasible, resource, nodes, most), _count_slots(feasible, resource, nodes, most))


def reason_to_keep_all(decided: Sequence[tuple[PodTemplate, Decision]], queue: ChargingQueue) -> KeepRequest | None:
    """Return why no template of a workload may be changed, although some could be; None if all others can.

    The queue must admit the units of all templates together.
    """
    units: Counter[str] = Counter()
    pods: dict[str, Pod] = {}
    for template, decision in decided:
        if isinstance(decision.outcome, OfferChoice):
            units[decision.outcome.resource] += template.replicas
            pods[decision.outcome.resource] = template.pod
        elif WHOLE_GPU in decision.requested_units:
            return KeepRequest(KeepReason.OTHER_POD_SET, format_path(template.path))
    for resource, count in units.items():
        choice = queue.choose_flavors(resource, count, pods[resource])
        if choice is None or not choice.sufficient:
            return _not_admitted(queue, resource, count, pods[resource])
    return None


def build_template_patch(
    template: PodTemplate, decision: Decision, digest: str, limited: Collection[str]
) -> tuple[PatchOperation, ...]:
    """Return the patch of a workload that right-sizes a template as its pods were decided.

    Args:
        digest: Digest of the policy set, for the record.
        limited: The resources that LimitRanges of the namespace name.
    """
    choice = decision.outcome
    if not decision.applied or not isinstance(choice, OfferChoice):
        return ()
    mutation = PodMutation(template.pod, policy=choice.policy)
    apply_choice(choice, gpu_requests_of_pod(template.pod), mutation, limited)
    operations = build_patch(mutation, decision.policies, digest) or ()
    prefix = json_pointer(template.path)
    if not template.data.get("metadata"):
        operations = (patch_add(("metadata",), {}), *operations)
    return tuple(operation | {"path": prefix + operation["path"]} for operation in operations)
