"""Find annotations that inject devices, imitate Rightslice's records, or mark a pod as static."""

from __future__ import annotations

import re
from collections.abc import Mapping

from webhook.engine.gpu_requests import containers_of_every_kind
from webhook.engine.guarding.bypasses import DetectedBypass, describe_bypass
from webhook.errors import quote_text
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import (
    DECISION_ANNOTATION,
    MIRROR_ANNOTATION,
    ORIGINAL_ANNOTATION,
    parse_decision_record,
    parse_original_resources,
)
from webhook.model.gpu_fractions import DEFAULT_SCHEDULERS, fraction_annotations
from webhook.model.gpu_resources import WHOLE_GPU, may_take_gpus
from webhook.model.pods import Container, Pod, ResourceRequirements
from webhook.model.quantity import parse_whole_number

_CDI = "cdi.k8s.io"
_ROOT = ("metadata", "annotations")

INJECTOR_PATTERN = "^(devices[.]gke[.]io|((cdi-)?devices|mounts)[.](nri[.]io|noderesource[.]dev))(/|$)"
"""Annotations of NRI plug-ins that add devices or mounts of the node: GKE's injector, and the example of NRI."""

_INJECTOR = re.compile(INJECTOR_PATTERN.replace("$", r"\Z"))


RECORD_ANNOTATIONS = (DECISION_ANNOTATION, ORIGINAL_ANNOTATION)
"""Annotations that only Rightslice writes."""


def find_device_annotations(request: AdmissionRequest, pod: Pod) -> list[DetectedBypass]:
    """Return annotations by which CDI, an NRI plug-in or a scheduler adds devices, or a user imitates a static pod."""
    results = [
        describe_bypass(
            "cdiAnnotations",
            (*_ROOT, key),
            f"annotations of cdi.k8s.io must be absent, found the value {quote_text(value)}",
        )
        for key, value in pod.metadata.annotations.items()
        if _CDI in key and _is_device_annotation(key)
    ]
    results += [
        describe_bypass(
            "deviceAnnotations",
            (*_ROOT, key),
            f"annotations that add devices of the node must be absent, found {quote_text(key)}",
        )
        for key in pod.metadata.annotations
        if _INJECTOR.match(key)
    ]
    if pod.spec.scheduler_name not in DEFAULT_SCHEDULERS:
        results += _find_fractions(pod)
    if MIRROR_ANNOTATION in pod.metadata.annotations and not is_kubelet_request(request):
        who = quote_text(request.user) if request.user else "an unknown user"
        message = f"only a node may create a mirror pod, found {who}"
        results.append(describe_bypass("mirrorPod", (*_ROOT, MIRROR_ANNOTATION), message))
    return results


def _find_fractions(pod: Pod) -> list[DetectedBypass]:
    return [
        describe_bypass(
            "fractionAnnotations",
            (*_ROOT, key),
            f"GPUs must be requested as resources, found the annotation {key} for scheduler "
            f"{quote_text(pod.spec.scheduler_name)}",
        )
        for key in fraction_annotations(pod.metadata.annotations)
    ]


def is_kubelet_request(request: AdmissionRequest) -> bool:
    """Return whether the requester is a kubelet, by username and group; policy tests may give the username alone."""
    return request.user.startswith("system:node:") and (not request.groups or "system:nodes" in request.groups)


def find_changed_records(old: Pod, new: Pod) -> list[DetectedBypass]:
    """Return records that an UPDATE changes."""
    before, after = old.metadata.annotations, new.metadata.annotations
    return [
        describe_bypass(
            "forgedAnnotations",
            (*_ROOT, key) if key in after else _ROOT,
            f"{key} must not change, found it {_describe_change(before.get(key), after.get(key))}",
            "Leave the annotation unchanged: it is a record, not an instruction.",
        )
        for key in RECORD_ANNOTATIONS
        if before.get(key) != after.get(key)
    ]


def find_forged_records(pod: Pod) -> list[DetectedBypass]:
    """Return records on CREATE that Rightslice cannot have written."""
    annotations = pod.metadata.annotations
    decision, original = annotations.get(DECISION_ANNOTATION), annotations.get(ORIGINAL_ANNOTATION)
    errors: dict[str, str] = {}
    if decision is not None:
        errors[DECISION_ANNOTATION] = _decision_error(decision, pod)
    if original is not None:
        errors[ORIGINAL_ANNOTATION] = (
            _original_resources_error(original, pod) if decision is not None else f"it without {DECISION_ANNOTATION}"
        )
    return [
        describe_bypass(
            "forgedAnnotations", (*_ROOT, key), f"{key} must be a record that Rightslice wrote, found {error}"
        )
        for key, error in errors.items()
        if error
    ]


def _is_device_annotation(key: str) -> bool:
    domain = key.partition("/")[0]
    return domain == _CDI or domain.endswith(f".{_CDI}")


def _describe_change(before: str | None, after: str | None) -> str:
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def _decision_error(text: str, pod: Pod) -> str:
    """Return why Rightslice cannot have written this decision about a pod; "" if it can."""
    record = parse_decision_record(text)
    if record is None:
        return quote_text(text)
    requested = any(
        parse_whole_number(amounts.get(record.resource, 0)) != 0
        for _, container in containers_of_every_kind(pod.spec)
        for amounts in (container.resources.limits, container.resources.requests)
    )
    if record.resource and not requested:
        return f"one that gives {quote_text(record.resource)}, which no container requests"
    return ""


def _original_resources_error(text: str, pod: Pod) -> str:
    """Return why Rightslice cannot have written this record of original requests; "" if it can."""
    record = parse_original_resources(text)
    if record is None:
        return quote_text(text)
    containers = {container.name: container for _, container in containers_of_every_kind(pod.spec)}
    errors = (_container_record_error(name, before, containers) for name, before in record.items())
    return next(filter(None, errors), "")


def _container_record_error(name: str, before: ResourceRequirements, containers: Mapping[str, Container]) -> str:
    if name not in containers:
        return f"the container {quote_text(name)}, which the pod does not have"
    if not any(
        (parse_whole_number(amounts.get(WHOLE_GPU, 0)) or 0) > 0 for amounts in (before.limits, before.requests)
    ):
        return f"no whole GPU in the record of container {quote_text(name)}"
    present = containers[name].resources.requests | containers[name].resources.limits
    if not any(may_take_gpus(key) and parse_whole_number(one) != 0 for key, one in present.items()):
        return f"no GPU request left in container {quote_text(name)}"
    return ""
