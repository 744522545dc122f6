"""The pod with all additions except its size: an offer must fit this pod, not the submitted pod.

Also what it will hold once it has a node, and the labels that identify the pods of one workload, for spreading them
over hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from webhook.engine.claimed_gpus import NO_UNITS
from webhook.engine.feasible_nodes import FeasibleNodes, NodeMaskTest, has_large_enough_node
from webhook.engine.limits import policy_default_requests
from webhook.engine.matched_policies import PodAdditions
from webhook.engine.pod_context import GpuPodContext, PodContext, PodMutation
from webhook.model.claims import ClaimSpec, devices_by_class
from webhook.model.decisions import NO_USE, PendingUnits, PendingUse
from webhook.model.enums import PolicyMode
from webhook.model.filters.pod_ties import HOSTNAME
from webhook.model.filters.volumes import ANY_VOLUMES
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.node_groups import growing_groups, stopped_groups
from webhook.model.node_masks import union_masks
from webhook.model.pod_resources import effective_amount
from webhook.model.pod_volumes import pod_volumes
from webhook.model.pods import (
    NodeSelectorRequirement,
    Pod,
    PodSpec,
    QuantityText,
    TopologySpreadConstraint,
    required_terms,
)
from webhook.model.quantity import NANO
from webhook.policy.policy_set import LimitRules
from webhook.well_known import Json

NO_SPEC = ClaimSpec()

WORKLOAD_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
    "pod-template-hash",
    "controller-revision-hash",
)
"""Labels that controllers set on all pods of one workload, the largest group first."""


def project_feasible_nodes(context: GpuPodContext, mode: PolicyMode) -> FeasibleNodes:
    """Return the nodes that right-sizing chooses from, and the pod that has to fit there.

    Args:
        mode: Mode of right-sizing. If enforced, it takes enforced additions into account; otherwise all additions,
            as if they were enforced together.
    """
    policies = context.policies
    additions = policies.additions if mode is PolicyMode.ENFORCE else policies.all_additions
    if additions is policies.additions and not (additions.required or additions.spread or additions.defaults):
        return context.feasible
    return _feasible_with_additions(context, additions)


def project_new_nodes(context: GpuPodContext, mode: PolicyMode, *, stopped: bool = False) -> FeasibleNodes | None:
    """Return the new nodes of node groups that could take the pod; None if that is not known.

    A new node has only pods of DaemonSets, so pods that need others near them are excluded. A group is also excluded if
    its template lacks a label that the pod's node selection or volumes need. Pods of a template get tolerations only
    for GPU taints of live nodes.

    Args:
        mode: Mode of right-sizing.
        stopped: True for the new nodes of groups that may not grow, as if they could.
    """
    view, policies, live = context.view, context.policies, context.feasible
    additions = policies.additions if mode is PolicyMode.ENFORCE else policies.all_additions
    pod, sources = _project_pod(context, additions), view.group_sources
    uses, siblings = pod_volumes(pod), context.request.siblings
    namespace = live.identity.namespace
    groups = (stopped_groups if stopped else growing_groups)(view.fleet, sources)
    new = view.view_new_nodes(stopped=stopped)
    feasible = FeasibleNodes(
        new,
        pod,
        additions.tolerations,
        tolerate_gpu_taints=additions.tolerate_gpu_taints and context.request.queued is None,
        required=additions.required,
        identity=live.identity,
        volumes=view.fit_volumes_on_new_nodes(new.fleet, namespace, uses, siblings) if uses else ANY_VOLUMES,
        request=context.request,
    )
    is_tied = feasible.ties() or any(live.exclusion)
    if feasible.ignored_requirements or (is_tied and not view.allows_new_node(feasible.ties())):
        return None
    keys = selecting_keys(pod.spec) | {one.key for required in additions.required for one in required}
    for index, group in enumerate(groups):
        if late := sorted(keys & group.unknown_labels):
            lack = f"gets the label {late[0]}, by which the pod or a policy selects nodes, only later"
            feasible.exclude_lacking(1 << index, lack)
            if context.request.queued is not None:  # a flavor adds tolerations
                feasible.selected &= ~(1 << index)
    return feasible


def selecting_keys(spec: PodSpec) -> set[str]:
    """Return the labels by which node selector and required affinity select nodes."""
    terms = required_terms(spec) or ()
    return {*spec.node_selector, *(one.key for term in terms for one in term.match_expressions)}


def project_unsized_pod(context: GpuPodContext, mode: PolicyMode) -> FeasibleNodes | None:
    """Return the nodes to which the pod is restricted if it is not right-sized; None if they are the same.

    In that case, a requirement that leaves only slices is not added. If another requirement is added that these slices
    do not match, the next admission pass would ignore the first one.
    """
    policies, offered = context.policies, context.offer_nodes
    additions = policies.additions if mode is PolicyMode.ENFORCE else policies.all_additions
    if len(additions.required) < 2 or not offered:
        return None
    return _feasible_with_additions(
        context, additions, leaves_enough=lambda nodes: context.leaves_suitable_node(nodes & offered, offered)
    )


def _feasible_with_additions(
    context: GpuPodContext, additions: PodAdditions, leaves_enough: NodeMaskTest | None = None
) -> FeasibleNodes:
    return FeasibleNodes(
        context.view,
        _project_pod(context, additions),
        additions.tolerations,
        tolerate_gpu_taints=additions.tolerate_gpu_taints,
        required=additions.required,
        leaves_enough=leaves_enough,
        identity=context.feasible.identity,
        exclusion=context.feasible.exclusion,
        request=context.request,
    )


def _project_pod(context: GpuPodContext, additions: PodAdditions) -> Pod:
    """Return the pod with the default requests and the spread constraint that it will get."""
    pod, defaults = context.pod, default_requests(context, additions.defaults)
    spec = pod.spec
    if defaults:
        containers = list(spec.containers)
        for index, amounts in defaults.items():
            resources = containers[index].resources
            resources = replace(resources, requests={**amounts, **resources.requests})
            containers[index] = replace(containers[index], resources=resources)
        spec = replace(spec, containers=tuple(containers))
    constraint = host_spread_constraint(pod, required=True) if additions.spread else None
    if constraint is not None:
        added = msgspec.convert(constraint, TopologySpreadConstraint)
        spec = replace(spec, topology_spread_constraints=(*spec.topology_spread_constraints, added))
    return pod if spec is pod.spec else replace(pod, spec=spec)


def fits_with_defaults(context: GpuPodContext, required: Sequence[NodeSelectorRequirement]) -> bool:
    """Return True if a pod that keeps its size still fits with the default requests of policies.

    A pod that could run now must be able to run now with them; any other must fit on an empty node. Where no node for
    the pod is known, nothing is added.

    Args:
        required: The node affinity that policies have added so far, as the next admission pass will find it.
    """
    projected = project_feasible_nodes(context, PolicyMode.ENFORCE)
    if projected.pod is context.pod:
        return True
    allowed, amounts = context.offer_nodes & context.feasible.matching_nodes(required), projected.amounts()
    nodes = allowed & context.feasible.nodes
    if context.fits_empty_node(context.feasible.amounts(), allowed) and not context.fits_empty_node(amounts, allowed):
        return False
    if not nodes or _has_free_gpus(projected, context, nodes):
        return True
    return not _has_free_gpus(context.feasible, context, nodes) and has_large_enough_node(
        context.view.fleet, amounts, nodes
    )


def _has_free_gpus(feasible: FeasibleNodes, context: GpuPodContext, nodes: int) -> bool:
    return all(feasible.has_free_node(name, count, nodes) for name, count in context.gpu_requests.totals.items())


def default_requests(context: GpuPodContext, sections: Sequence[LimitRules]) -> dict[int, Mapping[str, QuantityText]]:
    """Return the default requests of policies by container index; the first policy takes precedence.

    Empty where the namespace has a LimitRange or quota: these are checked later, and an added request must not get a
    pod rejected.
    """
    if context.namespace.ranges or context.namespace.quotas:
        return {}
    amounts: dict[int, Mapping[str, QuantityText]] = {}
    for section in sections:
        for index, defaults in policy_default_requests(section, context.pod, context.gpu_requests).items():
            amounts[index] = {**defaults, **amounts[index]} if index in amounts else defaults
    return amounts


def pending_use_of(context: PodContext, mutation: PodMutation) -> PendingUse:
    """Return what a new pod will hold with its changes. Nothing while a scheduling gate keeps it from any node.

    It counts from the moment of the decision, also for a pod that is left as it is: until it is scheduled, nothing else
    shows that these GPUs, CPU and memory will soon be taken.
    """
    request, totals, pod, fleet = context.request, context.gpu_requests.totals, context.pod, context.view.fleet
    if request.operation != "CREATE" or request.sub_resource or pod.spec.scheduling_gates:
        return NO_USE
    by_class = context.claimed.served or pod.spec.resource_claims
    devices = _units_of_devices(context) if by_class and context.view.classes else NO_UNITS
    if not totals and not devices:
        return NO_USE
    added = tuple(mutation.tolerations)
    feasible = context.feasible if isinstance(context, GpuPodContext) else FeasibleNodes(context.view, pod, added)
    choice, nodes = mutation.applied_choice, feasible.nodes
    if choice is not None:
        requested = [PendingUnits(choice.resource, union_masks([offer.nodes for offer in choice.offers]), 1)]
    else:
        positive = [(name, count) for name, count in totals.items() if count > 0]
        requested = [
            PendingUnits(name, nodes & fleet.nodes_advertising(name, count), count) for name, count in positive
        ]
        by_plugin = {each.resource for each in requested if each.nodes}
        requested += [PendingUnits(name, nodes, count) for name, count in devices.items() if name not in by_plugin]
    requested = [each for each in requested if each.nodes]
    if not requested:
        return NO_USE
    if isinstance(context, GpuPodContext) and context.policies.defaults:
        feasible = project_feasible_nodes(context, PolicyMode.ENFORCE)
    cpu_milli, memory, others = feasible.amounts()
    others = tuple([each for each in others if each[0] in fleet.other_resources])
    return PendingUse(tuple(requested), cpu_milli, memory, others)


def _units_of_devices(context: PodContext) -> Mapping[str, int]:
    """Return the devices that a pod may get by extended resources that classes serve, and by claims of templates."""
    pod, templates = context.pod, context.namespace.claims.templates
    found: dict[str, int] = {}
    if names := context.claimed.served:
        units = ((name, -(-effective_amount(pod, name) // NANO)) for name in names)
        found = {name: count for name, count in units if count > 0}
    for claim in pod.spec.resource_claims:
        for name, count in devices_by_class(templates.get(claim.resource_claim_template_name, NO_SPEC)).items():
            if count:
                found[DEVICE_CLASS_PREFIX + name] = found.get(DEVICE_CLASS_PREFIX + name, 0) + count
    return found


def workload_label_key(pod: Pod) -> str:
    """Return the label that all pods of the pod's workload have; "" for a pod without controller."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            labels = pod.metadata.labels
            for key in WORKLOAD_LABELS:
                if key in labels:
                    return key
    return ""


def host_spread_constraint(pod: Pod, *, required: bool) -> Json | None:
    """Return a constraint that spreads the pods of one workload; None for a single pod, and where the pod has one."""
    key = workload_label_key(pod)
    if not key or any(each.topology_key == HOSTNAME for each in pod.spec.topology_spread_constraints):
        return None
    return {
        "maxSkew": 1,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule" if required else "ScheduleAnyway",
        "labelSelector": {"matchLabels": {key: pod.metadata.labels[key]}},
    }
