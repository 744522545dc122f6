"""Annotations that hand out devices, claim to be our own record, or claim that a pod is static."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.engine.containers import every_container
from webhook.engine.guarding.bypasses import Found, found
from webhook.errors import quoted
from webhook.model.pods import Container, Pod, Resources
from webhook.model.quantity import whole
from webhook.model.records import DECISION, MIRROR, ORIGINAL, decision_record, original_resources
from webhook.model.requests import Request
from webhook.model.resources import WHOLE_GPU, gpu_resource

_CDI = "cdi.k8s.io"
_ROOT = ("metadata", "annotations")


def device_annotations(pod: Pod) -> list[Found]:
    """Annotations by which CDI or NVIDIA's NRI plugin inject devices."""
    return [
        found(
            "cdiAnnotations",
            (*_ROOT, key),
            f"annotations of cdi.k8s.io must be absent, found the value {quoted(value)}",
        )
        for key, value in pod.metadata.annotations.items()
        if _CDI in key and _injects_devices(key)
    ]


def _injects_devices(key: str) -> bool:
    domain = key.partition("/")[0]
    return domain == _CDI or domain.endswith(f".{_CDI}")


def is_node(request: Request) -> bool:
    """Is the requester a kubelet? Both marks must agree; a test may give the username alone."""
    return request.user.startswith("system:node:") and (not request.groups or "system:nodes" in request.groups)


def mirror_mark(request: Request, pod: Pod) -> list[Found]:
    """The mark of a static pod, on a pod that no node made."""
    if MIRROR not in pod.metadata.annotations or is_node(request):
        return []
    who = quoted(request.user) if request.user else "a user that is not known"
    return [found("mirrorPod", (*_ROOT, MIRROR), f"only a node may create a mirror pod, found {who}")]


def changed_records(old: Pod, new: Pod) -> list[Found]:
    """Our records on UPDATE: they stay as they are."""
    before, after = old.metadata.annotations, new.metadata.annotations
    return [
        found(
            "forgedAnnotations",
            (*_ROOT, key) if key in after else _ROOT,
            f"{key} must stay as Rightslice wrote it, found it {_change(before.get(key), after.get(key))}",
            "Leave the annotation as it is; it is a record, and nobody reads it as an instruction.",
        )
        for key in (DECISION, ORIGINAL)
        if before.get(key) != after.get(key)
    ]


def _change(before: str | None, after: str | None) -> str:
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def forged_records(pod: Pod) -> list[Found]:
    """Our records on CREATE: accepted only if Rightslice itself could have written them."""
    annotations = pod.metadata.annotations
    decision, original = annotations.get(DECISION), annotations.get(ORIGINAL)
    faults: dict[str, str] = {}
    if decision is not None:
        faults[DECISION] = _fault_of_decision(decision, pod)
    if original is not None:
        faults[ORIGINAL] = _fault_of_original(original, pod) if decision is not None else f"it without {DECISION}"
    return [
        found("forgedAnnotations", (*_ROOT, key), f"{key} must be a record that Rightslice wrote, found {fault}")
        for key, fault in faults.items()
        if fault
    ]


def _fault_of_decision(text: str, pod: Pod) -> str:
    """Why Rightslice cannot have written this decision about a pod; "" if it can."""
    record = decision_record(text)
    if record is None:
        return quoted(text)
    if record.offer and not any(_asks_for(record.offer, one.resources) for _, one in every_container(pod.spec)):
        return f"one that gives {quoted(record.offer)}, which no container asks for"
    return ""


def _fault_of_original(text: str, pod: Pod) -> str:
    """Why Rightslice cannot have written this record of what a pod asked for; "" if it can."""
    record = original_resources(text)
    if record is None:
        return quoted(text)
    containers = {container.name: container for _, container in every_container(pod.spec)}
    faults = (_container_fault(name, before, containers) for name, before in record.items())
    return next(filter(None, faults), "")


def _container_fault(name: str, before: Resources, containers: Mapping[str, Container]) -> str:
    if name not in containers:
        return f"the container {quoted(name)}, which the pod does not have"
    if not any((whole(amounts.get(WHOLE_GPU, 0)) or 0) > 0 for amounts in (before.limits, before.requests)):
        return f"no whole GPU in the record of container {quoted(name)}"
    if not _asks_for_gpus(containers[name].resources):
        return f"no GPU request left in container {quoted(name)}"
    return ""


def _asks_for(name: str, resources: Resources) -> bool:
    return any(whole(amounts.get(name, 0)) != 0 for amounts in (resources.limits, resources.requests))


def _asks_for_gpus(resources: Resources) -> bool:
    amounts = resources.requests | resources.limits
    return any(gpu_resource(name) is not None and whole(amount) != 0 for name, amount in amounts.items())
