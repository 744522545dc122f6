"""Templates of workloads under Kueue or Volcano: whether they may be changed, what the queue admits, and the patch.

Both charge the templates of the stored workload. So a template that may get a smaller GPU is changed when its
workload is created, before they have seen it, and never again. The decision is that about a pod of the template, with
one difference: free capacity now does not count, because the queue starts the pods later and does the counting. Instead
every flavor that the queue may choose must have nodes for all pods of the template. Volcano starts a Job as soon as its
queue has room: so one node must have slices free for all pods of the Job.

Only right-sizing is written into the template: resources, node affinity, memory fractions and the record. All else that
policies add is added to the pods, as if there were no queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.engine.mutate import apply_choice
from webhook.engine.patch import build_patch
from webhook.engine.pod_context import PodMutation
from webhook.engine.templates import PodTemplate
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision, KeepReason, KeepRequest, OfferChoice, PatchOperation, patch_add
from webhook.model.field_paths import format_path, json_pointer
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_groups import NodeGroup
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.offers import GpuOffer
from webhook.model.pods import Toleration
from webhook.model.queues import PREBUILT_LABEL, QUEUE_NAME_LABEL, ResourceFlavor
from webhook.model.volcano_queues import (
    DEFAULT_QUEUE,
    VOLCANO_GROUP,
    VOLCANO_SCHEDULER,
    ChargingQueue,
    QueuedPodSet,
    VolcanoJobQueue,
)
from webhook.policy.workload_kinds import WorkloadKinds


def queue_of_workload(request: AdmissionRequest, kinds: WorkloadKinds, view: ClusterView) -> ChargingQueue | None:
    """Return the queue of a workload that has not been charged yet; None for any other object.

    A workload that another one controls is charged as part of that; only the Jobs of a CronJob are charged themselves.
    """
    templates = kinds.get((request.group, request.kind))
    if request.operation != "CREATE" or templates is None or not templates.queued:
        return None
    metadata = _mapping_at(request.load_object(), "metadata")
    labels = _mapping_at(metadata, "labels")
    name, owners = labels.get(QUEUE_NAME_LABEL), metadata.get("ownerReferences")
    is_stored, is_charged = bool(metadata.get("uid")), PREBUILT_LABEL in labels
    if request.group == VOLCANO_GROUP and not is_stored:
        return _queue_of_volcano_job(_mapping_at(request.load_object(), "spec"), view)
    if not isinstance(name, str) or is_stored or is_charged or not all(map(_leaves_charging, _members(owners))):
        return None
    return view.queues.find(request.namespace, name)


def _queue_of_volcano_job(spec: Mapping[str, Any], view: ClusterView) -> VolcanoJobQueue | None:
    """Return the queue of a Job of Volcano; None if another scheduler starts it, or there is no such queue.

    What its pods get from fields outside the templates is not known here. They are not independent if Volcano starts
    several of them at once.
    """
    if spec.get("schedulerName", VOLCANO_SCHEDULER) != VOLCANO_SCHEDULER:
        return None
    tasks = [task for task in _members(spec.get("tasks")) if isinstance(task, dict)]
    pods = sum(_count(task.get("replicas"), 1) for task in tasks)
    queue = view.volcano_queues.find(str(spec.get("queue") or DEFAULT_QUEUE), view.fleet, pods)
    if queue is None:
        return None
    unread = next((key for key in ("volumes", "networkTopology") if spec.get(key)), "")
    unread = unread or next(("topologyPolicy" for task in tasks if task.get("topologyPolicy", "none") != "none"), "")
    at_once = _count(spec.get("minAvailable"), pods)
    if unread:
        queue = replace(queue, kept=KeepRequest(KeepReason.UNMODELED_CONSTRAINT, f"{unread} of its Job"))
    elif at_once > 1:
        queue = replace(queue, kept=KeepRequest(KeepReason.GANG_MEMBER, f"minAvailable is {at_once}"))
    return queue


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default


def _mapping_at(data: Any, key: str) -> Mapping[str, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def _members(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _leaves_charging(owner: object) -> bool:
    """Return whether Kueue charges what this owner controls itself."""
    return not isinstance(owner, dict) or not owner.get("controller") or owner.get("kind") == "CronJob"


def queued_pod_set(template: PodTemplate, queue: ChargingQueue | None) -> QueuedPodSet | None:
    """Return the pods of a template that wait in a queue; None if the template cannot be changed.

    A kind without pod templates has no field for a node affinity or a record.
    """
    return None if queue is None or template.moves else QueuedPodSet(queue, template.replicas)


class GroupGrowth(NamedTuple):
    """Nodes that groups may add for the pods of a template, beside the live ones.

    Attributes:
        live: The live nodes.
        groups: The groups, in the order of their new nodes.
    """

    live: FeasibleNodes
    groups: Sequence[NodeGroup]


def reason_by_queue(
    queued: QueuedPodSet, offers: Sequence[GpuOffer], feasible: FeasibleNodes, growth: GroupGrowth | None = None
) -> KeepRequest | None:
    """Return why the pods of a template might not get an offer from their queue; None if they will, in time.

    Args:
        queued: The pods.
        offers: The offers, on the nodes of `feasible`.
        feasible: Live nodes, or the new nodes of groups.
        growth: Set if they are new nodes.
    """
    resource, tolerations = offers[0].resource, feasible.pod.spec.tolerations
    if feasible.ties():
        return KeepRequest(KeepReason.UNMODELED_CONSTRAINT, "affinity or spread between pods")
    choice = queued.queue.choose_flavors(resource, queued.pods, tolerations)
    if choice is None or not choice.sufficient:
        return _not_admitted(queued.queue, resource, queued.pods)
    nodes = union_masks(offer.nodes for offer in offers)
    if isinstance(queued.queue, VolcanoJobQueue):
        if _has_free_slots(queued.queue, resource, nodes, feasible):
            return None
        return KeepRequest(KeepReason.NO_FREE_CAPACITY, f"{queued.queue.pods} of {resource}")
    for flavor in choice.flavors:
        for together in _flavors_together(flavor, choice.others):
            mask = _nodes_of_flavors(together, nodes, feasible)
            slots = _count_slots(feasible, resource, mask, queued.pods) if growth is None else 0
            if growth is not None:
                slots = _count_slots_with_growth(together, resource, mask, feasible, queued.pods, growth)
            if slots < queued.pods:
                detail = f"{queued.pods} of {resource} in flavor {flavor.metadata.name}"
                return KeepRequest(KeepReason.NO_FLAVOR_NODES, detail)
    return None


def _has_free_slots(queue: VolcanoJobQueue, resource: str, nodes: int, feasible: FeasibleNodes) -> bool:
    """Return whether one node of a mask has free what all pods of a Job request."""
    cpu_milli, memory, others = feasible.amounts()
    pods, ports = queue.pods, feasible.ports
    needed = (pods * cpu_milli, pods * memory, tuple([(name, pods * amount) for name, amount in others]))
    allowed = feasible.with_free_ports(nodes & feasible.nodes) & feasible.volumes.nodes
    return not (ports and pods > 1) and feasible.view.has_free_node(resource, pods, allowed, *needed, ports)


def _not_admitted(queue: ChargingQueue, resource: str, units: int) -> KeepRequest:
    return KeepRequest(KeepReason.NOT_ADMITTED, f"{units} of {resource} in {queue.title}")


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


def _count_slots_with_growth(
    flavors: Sequence[ResourceFlavor],
    resource: str,
    nodes: int,
    feasible: FeasibleNodes,
    most: int,
    growth: GroupGrowth,
) -> int:
    """Return how many pods live nodes and those that groups may add can run at once, up to a number.

    A group adds no node for flavors with labels that its template lacks, nor for one with a topology.

    Args:
        flavors: The flavors that the pods get.
        nodes: Mask of the new nodes that they may use.
        feasible: All new nodes.
        most: The number.
    """
    live, keys = growth.live, {key for flavor in flavors for key in flavor.spec.node_labels}
    advertising = live.view.fleet.nodes_advertising(resource)
    slots = _count_slots(live, resource, _nodes_of_flavors(flavors, advertising, live), most)
    if any(flavor.spec.topology_name for flavor in flavors):
        return slots
    for index in bit_positions(nodes):
        group = growth.groups[index]
        if keys.isdisjoint(group.unknown_labels):
            added = most if group.nodes_left is None else group.nodes_left
            slots += added * _count_slots(feasible, resource, 1 << index, most)
    return slots


def _count_slots(feasible: FeasibleNodes, resource: str, nodes: int, most: int) -> int:
    """Return how many pods empty nodes of a mask can run at once, each with one unit, up to a number or a few more."""
    fleet, (cpu_milli, memory, others) = feasible.view.fleet, feasible.amounts()
    slots = 0
    for index in bit_positions(nodes):
        node = fleet.nodes[index]
        amounts = [(cpu_milli, node.cpu_milli), (memory, node.memory)]
        amounts += [(amount, node.others.get(name, 0)) for name, amount in others]
        limits = [there // needed for needed, there in amounts if needed]
        limits += [limit for limit in (node.pods, bool(feasible.ports)) if limit]
        slots += min([node.gpus.get(resource, 0), *limits])
        if slots >= most:
            break
    return slots


def reason_to_keep_all(decided: Sequence[tuple[PodTemplate, Decision]], queue: ChargingQueue) -> KeepRequest | None:
    """Return why no template of a workload may be changed, although some could be; None if all others can.

    The queue must admit the units of all templates together.
    """
    units: Counter[str] = Counter()
    tolerations: dict[str, tuple[Toleration, ...]] = {}
    for template, decision in decided:
        if isinstance(decision.outcome, OfferChoice):
            units[decision.outcome.resource] += template.replicas
            tolerations[decision.outcome.resource] = template.pod.spec.tolerations
        elif WHOLE_GPU in decision.requested_units:
            return KeepRequest(KeepReason.OTHER_POD_SET, format_path(template.path))
    for resource, count in units.items():
        choice = queue.choose_flavors(resource, count, tolerations[resource])
        if choice is None or not choice.sufficient:
            return _not_admitted(queue, resource, count)
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
