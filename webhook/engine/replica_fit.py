"""Replica fit of step 7: how many pods of a workload the nodes could run at once, were no other pods there."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_

from webhook.engine.owned_pods import daemon_set_nodes, is_daemon_pod
from webhook.engine.pod_context import GpuPodContext, PodMutation
from webhook.engine.policy_findings import PolicyFinding
from webhook.model.enums import PolicyMode
from webhook.model.filters.pod_ties import count_pods_apart, self_excluding_keys
from webhook.model.node_masks import ThresholdIndex, union_masks

UnitsIndex = Callable[[str], ThresholdIndex]
"""Returns the units of a GPU resource by node: all of them, or those that are free."""


def replica_fit_violations(context: GpuPodContext, mutation: PodMutation) -> list[PolicyFinding]:
    """Report that the nodes cannot run all pods of a workload at once, with the number that they can run.

    The number is an upper bound: amounts besides GPUs are not counted. A DeviceClass may serve any number.
    """
    view, replicas, names = context.view, context.request.replicas, context.gpu_requests.totals
    if not view.fleet.nodes or not view.claimable_names.isdisjoint(names) or not all(map(_is_positive, names.values())):
        return []
    most = _count_replicas(view.fleet.units_index, context, mutation)
    if most >= replicas or not (most or is_daemon_pod(context.pod)):
        return []
    free = min(most, _count_replicas(view.free_index, context, mutation))
    return [_too_many_replicas(most, free, context)]


def _is_positive(units: int) -> bool:
    return units > 0


def _count_replicas(units: UnitsIndex, context: GpuPodContext, mutation: PodMutation) -> int:
    """Return at most how many of the pods fit."""
    fleet, feasible, totals = context.view.fleet, context.feasible, context.gpu_requests.totals
    nodes = feasible.selected & feasible.tolerated & fleet.schedulable_nodes(context.pod.spec.tolerations)
    if is_daemon_pod(context.pod):
        nodes &= daemon_set_nodes(context.pod, fleet)
    resized = mutation.applied_choice is not None  # later pods may get another slice or share, or a whole GPU
    wanted = [(units(name), amount) for name, amount in totals.items()]
    wanted = [(units(name), 1) for name in fleet.resources()] if resized else wanted
    able = [index.nodes_with_at_least(amount) for index, amount in wanted]
    fitting = nodes & (union_masks(able) if resized else reduce(and_, able))
    one_each = bool(feasible.ports) or is_daemon_pod(context.pod)

    def count(mask: int) -> int:
        if one_each:
            return mask.bit_count()
        fits = [index.count_times(amount, mask) for index, amount in wanted]
        return sum(fits) if resized else min(fits)

    return count_pods_apart(_excluding_keys(context), fitting, count, fleet)


def _excluding_keys(context: GpuPodContext) -> tuple[str, ...]:
    return self_excluding_keys(context.feasible.ties(), context.namespace.labels)


def _too_many_replicas(most: int, free: int, context: GpuPodContext) -> PolicyFinding:
    request = max(context.gpu_requests.requests, key=lambda one: one.count)
    resource, replicas = request.resource.name, context.request.replicas
    why, fix = "the nodes that they may use have GPUs for no more", f"Run at most {most} of them at once."
    if is_daemon_pod(context.pod):
        why = f"its controller also creates pods on nodes without {request.count} {resource}"
        fix = f"Select the nodes with {resource}, and tolerate their taints, in the template: its controller chooses "
        fix += "nodes by the template alone."
    elif _excluding_keys(context):
        why = "they exclude each other by their anti-affinity"
    number = f"at most {most} of" if most else "none of"
    now = f", {free} of them now" if free < most else ""
    message = f"{number} {replicas} pods would run at once{now}: {why}"
    return PolicyFinding("GPU-T206", (*request.path, "resources", "limits", resource), message, fix, PolicyMode.WARN)
