"""Step 4 before any need is looked at: pods whose request stays as it is."""

from __future__ import annotations

from webhook.engine.pod_context import PodContext, is_mirror_pod
from webhook.model.annotations import KEEP_ANNOTATION
from webhook.model.batch import queueing_sign
from webhook.model.decisions import KeepReason, KeepRequest
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU
from webhook.model.pods import Pod, PodSpec

_MODELLED_RESOURCES = frozenset({"cpu", "memory", ACCOUNTING_RESOURCE})


def ineligible_reason(case: PodContext) -> KeepRequest | None:
    """Why a pod keeps what it asks for, whatever it needs; None where its need decides."""
    total = case.gpu_requests.totals.get(WHOLE_GPU)
    if total is None:
        return KeepRequest(KeepReason.NO_WHOLE_GPU)
    kept = exclusion_reason(case)
    return KeepRequest(KeepReason.MULTIPLE_GPUS) if kept is None and total > 1 else kept


def exclusion_reason(case: PodContext) -> KeepRequest | None:
    """Why nothing follows for a pod from what is free now, however many whole GPUs it asks for; None where it does."""
    asked, pod = case.gpu_requests, case.pod
    if pod.metadata.annotations.get(KEEP_ANNOTATION, "false") != "false":
        return KeepRequest(KeepReason.OPTED_OUT)
    if asked.errors:
        return KeepRequest(KeepReason.INVALID_AMOUNT)
    if case.injected.amounts and any(case.injected.contains(ask.path, ask.resource.name) for ask in asked.requests):
        return KeepRequest(KeepReason.INJECTED)
    if len(asked.totals) > 1 or asked.unknown_resources:
        return KeepRequest(KeepReason.MIXED_RESOURCES, ", ".join((*asked.totals, *asked.unknown_resources)))
    return _managed_elsewhere_reason(pod)


def _managed_elsewhere_reason(pod: Pod) -> KeepRequest | None:
    """Pods that another component made, placed or budgeted."""
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
    """The first thing whose effect on the choice of a node is not known here, in words; "" if there is none."""
    spec = pod.spec
    for volume in spec.volumes:
        if volume.persistent_volume_claim is not None:
            return f"volume claim {volume.persistent_volume_claim.get('claimName', '')}"
        if volume.ephemeral is not None:
            return "a volume of its own"
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
    asked = [container.resources for container in (*spec.containers, *spec.init_containers)]
    whole = [spec.resources] if spec.resources is not None else []
    named = (name for one in (*asked, *whole) for name in (*one.requests, *one.limits))
    for name in (*named, *spec.overhead):
        if name not in _MODELLED_RESOURCES and not name.startswith("nvidia.com/"):
            return f"resource {name}"
    return ""
