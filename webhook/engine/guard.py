"""Step 2 of a decision: what is refused whatever the size.

Every way round GPU accounting has a name, which a policy lists under `security.deny`. They are looked for in
containers of every kind alike. On UPDATE only what is new counts: a pod that runs with a fault must still get
its labels, its finalizers and its end.

Sources: the device request paths of nvidia-container-toolkit, the CVEs of that toolkit, and the bypasses that
other admission hooks were caught by.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from webhook.engine.containers import containers_of_every_kind
from webhook.engine.gpu_requests import PodGpuRequests, requests_gpu_share
from webhook.engine.guarding.annotations import (
    find_changed_records,
    find_device_annotations,
    find_forged_records,
    find_mirror_annotation,
    is_kubelet_request,
)
from webhook.engine.guarding.bypasses import GPU_POD_BYPASSES, DetectedBypass
from webhook.engine.guarding.environment import (
    EnvVarAtPath,
    find_gpu_variables,
    find_legacy_images,
    find_unreadable_sources,
    find_variable_bypasses,
    has_gpu_env_prefix,
    implies_gpu_use,
)
from webhook.engine.guarding.host_access import (
    find_device_mounts,
    find_host_access,
    find_host_path_volumes,
    find_shared_processes,
)
from webhook.engine.guarding.requests import (
    GPU_RUNTIME_CLASS_PREFIX,
    find_gpu_runtime_class,
    find_preset_node,
    find_unaccounted_requests,
)
from webhook.engine.limitrange import InjectedAmount
from webhook.engine.matched_policies import MatchedPolicies
from webhook.engine.violations import PolicyViolation, Violation
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.cluster_view import ClusterView
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.pods import Container, Pod, PodSpec

_NOTHING: frozenset[str] = frozenset()


def guard_pod(
    request: AdmissionRequest,
    pod: Pod,
    gpu_requests: PodGpuRequests,
    injected: Sequence[InjectedAmount],
    policies: MatchedPolicies,
    view: ClusterView,
) -> list[PolicyViolation]:
    """Return every bypass in a pod that a policy denies; `injected` are GPUs that LimitRanges inject."""
    if not policies.security:
        return []
    shares_processes = bool(gpu_requests.requests) and pod.spec.share_process_namespace
    asks_share = shares_processes and requests_gpu_share(gpu_requests.totals, view.fleet)
    return [
        (policy, violation)
        for policy, section in policies.security
        for bypass, violation in find_bypasses(
            request,
            pod,
            gpu_requests,
            asks_share=asks_share,
            given=injected,
            allowed_capabilities=section.allowed_capabilities,
            allowed_runtime_classes=section.allowed_runtime_classes,
        )
        if bypass in section.deny
    ]


def find_bypasses(
    request: AdmissionRequest,
    pod: Pod,
    asked: PodGpuRequests,
    *,
    asks_share: bool,
    given: Sequence[InjectedAmount] = (),
    allowed_capabilities: frozenset[str] = _NOTHING,
    allowed_runtime_classes: frozenset[str] = _NOTHING,
) -> list[tuple[str, Violation]]:
    """Find every bypass in a pod.

    Args:
        request: Who asks, for which operation, and the pod as it was.
        pod: The pod to judge, or a workload's template read as one.
        asked: What it asks for. Names of NVIDIA's that are no GPU resource show that it is after GPUs; only an ask
            for one excuses a GPU runtime class, and what is refused in a container that gets none.
        asks_share: True if it requests a time-sliced or MPS share.
        given: GPUs that LimitRanges put into it.
        allowed_capabilities: Driver capabilities that are fine beside compute and utility; "all" allows any.
        allowed_runtime_classes: GPU runtime classes that are fine without a GPU request.

    Returns:
        Pairs of bypass name (see `guarding.bypasses`) and remark. Never raises on a Pod.
    """
    rules = asked, asks_share, given, allowed_capabilities, allowed_runtime_classes
    old = request.old_pod if request.operation == "UPDATE" else None
    results = _scan_pod(request, pod, *rules)
    if old is not None:
        known = set(_scan_pod(request, old, *rules)) if results else set()
        results = [one for one in results if one not in known] + find_changed_records(old, pod)
    elif pod.metadata.annotations:
        results += find_forged_records(pod)
    if results and MIRROR_ANNOTATION in pod.metadata.annotations and is_kubelet_request(request):
        return [_as_audit_only(one) for one in results]
    return results


def _scan_pod(
    request: AdmissionRequest,
    pod: Pod,
    asked: PodGpuRequests,
    asks_share: bool,
    given: Sequence[InjectedAmount],
    capabilities: frozenset[str],
    classes: frozenset[str],
) -> list[DetectedBypass]:
    spec = pod.spec
    containers = containers_of_every_kind(spec)
    named = find_gpu_variables(containers)
    results = find_variable_bypasses(named, capabilities) if named else []
    if named:
        results += find_legacy_images(named, asked.requesting_containers())
    results += find_device_mounts(containers)
    results += find_unaccounted_requests(spec, containers, given)
    if spec.volumes:
        results += find_host_path_volumes(spec)
    if pod.metadata.annotations:
        results += find_device_annotations(pod)
        results += find_mirror_annotation(request, pod)
    if spec.runtime_class_name and not asked.requests:
        results += find_gpu_runtime_class(spec, classes)
    if not asked.requests and not asked.unknown_resources and not _touches_gpus(spec, containers, named, results):
        return [one for one in results if one[0] not in GPU_POD_BYPASSES]

    results += find_unreadable_sources(containers)
    results += find_host_access(spec, containers)
    if spec.node_name and request.operation == "CREATE":
        results += find_preset_node(spec)
    return results + find_shared_processes(spec) if asks_share else results


def _touches_gpus(
    spec: PodSpec,
    containers: Sequence[tuple[FieldPath, Container]],
    named: Sequence[EnvVarAtPath],
    results: Sequence[DetectedBypass],
) -> bool:
    """Is this pod after a GPU, though it requests none?"""
    if spec.runtime_class_name.startswith(GPU_RUNTIME_CLASS_PREFIX) or has_gpu_env_prefix(containers):
        return True
    signs = ("visibleDevicesEnv", "cdiAnnotations", "containerDevicesMount", "resourceClaims")
    if not results and not named:
        return False
    return any(name in signs for name, _ in results) or any(implies_gpu_use(variable) for _, variable in named)


def _as_audit_only(one: DetectedBypass) -> DetectedBypass:
    """A static pod runs whatever we say: its node already has it."""
    name, remark = one
    return name, msgspec.structs.replace(remark, at_most=PolicyMode.AUDIT)
