"""Pods that are not right-sized whatever their need, and scheduling constraints that a cluster view does not hold."""

from __future__ import annotations

from webhook.engine.pod_context import PodContext, is_mirror_pod
from webhook.model.annotations import KEEP_ANNOTATION
from webhook.model.batch import queueing_sign
from webhook.model.decisions import KeepReason, KeepRequest
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU
from webhook.model.pods import Pod, PodSpec

_MODELLED_RESOURCES = frozenset({"cpu", "memory", ACCOUNTING_RESOURCE})


def ineligible_reason(context: PodContext) -> KeepRequest | None:
    """Return why a pod keeps its request, whatever its need; None if its need decides."""
    total = context.gpu_requests.totals.get(WHOLE_GPU)
    if total is None:
        return KeepRequest(KeepReason.NO_WHOLE_GPU)
    kept = exclusion_reason(context)
    return KeepRequest(KeepReason.MULTIPLE_GPUS) if kept is None and total > 1 else kept


def exclusion_reason(context: PodContext) -> KeepRequest | None:
    """Return why current free capacity does not matter for a pod, whatever its GPU count; None if it does."""
    gpu_requests, injected = context.gpu_requests, context.injected
    if context.pod.metadata.annotations.get(KEEP_ANNOTATION, "false") != "false":
        return KeepRequest(KeepReason.OPTED_OUT)
    if gpu_requests.errors:
        return KeepRequest(KeepReason.INVALID_AMOUNT)
    if injected.amounts and any(injected.contains(one.path, one.resource.name) for one in gpu_requests.requests):
        return KeepRequest(KeepReason.INJECTED)
    if len(gpu_requests.totals) > 1 or gpu_requests.unknown_resources:
        names = ", ".join((*gpu_requests.totals, *gpu_requests.unknown_resources))
        return KeepRequest(KeepReason.MIXED_RESOURCES, names)
    return _managed_elsewhere_reason(context.pod)


def _managed_elsewhere_reason(pod: Pod) -> KeepRequest | None:
    """Return why another component creates, places or budgets a pod; None if none does."""
    metadata, spec = pod.metadata, pod.spec
    for owner in metadata.owner_references:
        if owner.kind == "DaemonSet":
            return KeepRequest(KeepReason.DAEMON_SET)
    if is_mirror_pod(pod):
        return KeepRequest(KeepReason.MIRROR)
    if spec.node_name:
        return KeepRequest(KeepReason.BOUND)
    if spec.resource_claims:
        return KeepRequest(KeepReason.RESOURCE_CLAIMS)
    sign = queueing_sign(pod)
    if sign:
        return KeepRequest(KeepReason.QUEUED, sign)
    if spec.scheduling_gates:
        return KeepRequest(KeepReason.SCHEDULING_GATED, spec.scheduling_gates[0].name)
    return None


def unmodelled_constraint(pod: Pod) -> str:
    """Return the first scheduling constraint that the cluster view does not hold; "" if there is none.

    A pod that would have run must not wait for a slice on a node that such a constraint excludes. Ignored where a
    policy lets pods wait (`whenFull: wait`).
    """
    spec = pod.spec
    for volume in spec.volumes:
        if volume.persistent_volume_claim is not None:
            return f"volume claim {volume.persistent_volume_claim.get('claimName', '')}"
        if volume.ephemeral is not None:
            return "an ephemeral volume"
    affinity = spec.affinity
    if affinity is not None:
        for part in (affinity.pod_affinity, affinity.pod_anti_affinity):
            if part is not None and part.required:
                return "required affinity between pods"
    for constraint in spec.topology_spread_constraints:
        if constraint.when_unsatisfiable == "DoNotSchedule":
            return f"spread over {constraint.topology_key}"
    return _container_constraint(spec)


def _container_constraint(spec: PodSpec) -> str:
    for container in (*spec.containers, *spec.init_containers):
        for port in container.ports:
            if port.host_port:
                return f"host port {port.host_port}"
    resources = [container.resources for container in (*spec.containers, *spec.init_containers)]
    if spec.resources is not None:
        resources.append(spec.resources)
    names = (name for one in resources for name in (*one.requests, *one.limits))
    for name in (*names, *spec.overhead):
        if name not in _MODELLED_RESOURCES and not name.startswith("nvidia.com/"):
            return f"resource {name}"
    return ""
