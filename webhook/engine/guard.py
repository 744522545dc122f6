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

from webhook.engine.asking import Asked
from webhook.engine.containers import every_container
from webhook.engine.guarding.bypasses import GPU_PODS_ONLY, Found
from webhook.engine.guarding.host import device_mounts, host_access, host_paths, shared_processes
from webhook.engine.guarding.marks import changed_records, device_annotations, forged_records, is_node, mirror_mark
from webhook.engine.guarding.requests import GPU_CLASS_START, odd_requests, preset_node, runtime_class
from webhook.engine.guarding.variables import (
    Suspect,
    aims_at_gpus,
    guarded_variables,
    legacy_images,
    names_a_gpu,
    suspects,
    unreadable_sources,
)
from webhook.engine.limitrange import Given
from webhook.engine.remarks import Remark
from webhook.model.modes import Mode
from webhook.model.paths import Path
from webhook.model.pods import Container, Pod, PodSpec
from webhook.model.records import MIRROR
from webhook.model.requests import Request

_NOTHING: frozenset[str] = frozenset()


def guard(
    request: Request,
    pod: Pod,
    asked: Asked,
    *,
    asks_share: bool,
    given: Sequence[Given] = (),
    allowed_capabilities: frozenset[str] = _NOTHING,
    allowed_runtime_classes: frozenset[str] = _NOTHING,
) -> list[tuple[str, Remark]]:
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
    results = _look(request, pod, *rules)
    if old is not None:
        known = set(_look(request, old, *rules)) if results else set()
        results = [one for one in results if one not in known] + changed_records(old, pod)
    elif pod.metadata.annotations:
        results += forged_records(pod)
    if results and MIRROR in pod.metadata.annotations and is_node(request):
        return [_noted_only(one) for one in results]
    return results


def _look(
    request: Request,
    pod: Pod,
    asked: Asked,
    asks_share: bool,
    given: Sequence[Given],
    capabilities: frozenset[str],
    classes: frozenset[str],
) -> list[Found]:
    spec = pod.spec
    containers = every_container(spec)
    named = suspects(containers)
    results = guarded_variables(named, capabilities) if named else []
    if named:
        results += legacy_images(named, asked.containers())
    results += device_mounts(containers)
    results += odd_requests(spec, containers, given)
    if spec.volumes:
        results += host_paths(spec)
    if pod.metadata.annotations:
        results += device_annotations(pod)
        results += mirror_mark(request, pod)
    if spec.runtime_class_name and not asked.asks:
        results += runtime_class(spec, classes)
    if not asked.asks and not asked.strangers and not _shows_gpus(spec, containers, named, results):
        return [one for one in results if one[0] not in GPU_PODS_ONLY]

    results += unreadable_sources(containers)
    results += host_access(spec, containers)
    if spec.node_name and request.operation == "CREATE":
        results += preset_node(spec)
    return results + shared_processes(spec) if asks_share else results


def _shows_gpus(
    spec: PodSpec, containers: Sequence[tuple[Path, Container]], named: Sequence[Suspect], results: Sequence[Found]
) -> bool:
    """Is this pod after a GPU, though it requests none?"""
    if spec.runtime_class_name.startswith(GPU_CLASS_START) or aims_at_gpus(containers):
        return True
    signs = ("visibleDevicesEnv", "cdiAnnotations", "containerDevicesMount", "resourceClaims")
    if not results and not named:
        return False
    return any(name in signs for name, _ in results) or any(names_a_gpu(variable) for _, variable in named)


def _noted_only(one: Found) -> Found:
    """A static pod runs whatever we say: its node already has it."""
    name, remark = one
    return name, msgspec.structs.replace(remark, at_most=Mode.AUDIT)
