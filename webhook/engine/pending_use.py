"""The GPUs, CPU and memory that a new pod will hold once it has a node.

They count from the moment of the decision, also for a pod that is left as it is: until it is scheduled, nothing else
shows that they will soon be taken.
"""

from __future__ import annotations

from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.pod_context import GpuPodContext, PodContext, PodMutation
from webhook.engine.projected_pod import project_feasible_nodes
from webhook.model.decisions import NO_USE, PendingUnits, PendingUse
from webhook.model.enums import PolicyMode
from webhook.model.node_masks import union_masks


def pending_use_of(context: PodContext, mutation: PodMutation) -> PendingUse:
    """Return what a new pod will hold with its changes. Nothing while a scheduling gate keeps it from any node."""
    request, totals, pod = context.request, context.gpu_requests.totals, context.pod
    if request.operation != "CREATE" or request.sub_resource or not totals or pod.spec.scheduling_gates:
        return NO_USE
    feasible = context.feasible if isinstance(context, GpuPodContext) else FeasibleNodes(context.view, pod)
    choice = mutation.applied_choice
    if choice is not None:
        units = [PendingUnits(choice.resource, union_masks([offer.nodes for offer in choice.offers]), 1)]
    else:
        units = _requested_units(context, feasible.nodes)
    if isinstance(context, GpuPodContext) and context.policies.defaults:
        feasible = project_feasible_nodes(context, PolicyMode.ENFORCE)
    if not units:
        return NO_USE
    known = context.view.fleet.other_resources
    others = tuple(each for each in feasible.other_amounts() if each[0] in known)
    return PendingUse(tuple(units), *feasible.cpu_and_memory(), others)


def _requested_units(context: PodContext, nodes: int) -> list[PendingUnits]:
    """Return the units that a pod requests itself, without those that no node of a mask has."""
    fleet = context.view.fleet
    found = [
        PendingUnits(name, nodes & fleet.nodes_with_units(name, count), count)
        for name, count in context.gpu_requests.totals.items()
        if count > 0
    ]
    return [units for units in found if units.nodes]
