"""The result of `undo`: the original request of a pod, as YAML for its manifest or its workload's template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from webhook.model.annotations import (
    DECISION_ANNOTATION,
    KEEP_ANNOTATION,
    ORIGINAL_ANNOTATION,
    parse_decision_record,
    parse_original_resources,
)
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU
from webhook.model.pods import ResourceRequirements, without_nulls
from webhook.model.quantity import parse_whole_number
from webhook.report.serialization import yaml_text
from webhook.report.text import sanitize

CONTAINER_LISTS = ("containers", "initContainers")


class UnknownOriginal(NamedTuple):
    """A right-sized pod whose original request is unknown."""

    name: str
    offer: str

    def __str__(self) -> str:
        reason = f"{ORIGINAL_ANNOTATION} is missing or was changed"
        return f"Pod {self.name} was right-sized to {self.offer}; its original request is unknown: {reason}."


def original_yaml(pod: Mapping[str, Any]) -> str | UnknownOriginal:
    """Return the changed part of a pod as it was; "" if there is no record that its GPUs were changed."""
    pod = without_nulls(pod)
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    record = parse_decision_record(str(annotations.get(DECISION_ANNOTATION, "")))
    if record is None or not record.resource:
        return ""
    name, offer = (
        sanitize(f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"),
        sanitize(record.resource),
    )
    before = parse_original_resources(str(annotations.get(ORIGINAL_ANNOTATION, ""))) or {}
    state = "as it was before right-sizing"
    if record.resource == WHOLE_GPU and ORIGINAL_ANNOTATION not in annotations:
        state = f"requests {offer} as before; right-sizing only selected nodes where it is a slice"
    elif not _is_valid_original(before, pod, record.resource):
        return UnknownOriginal(name, offer)
    fields: dict[str, Any] = {"metadata": {"annotations": {KEEP_ANNOTATION: "true"}}}
    if spec := _restored_spec(pod, record.resource, before):
        fields["spec"] = spec
    return f"# Pod {name} {state} (policies: {sanitize(', '.join(record.policies))})\n{yaml_text(fields)}"


def _is_valid_original(before: Mapping[str, ResourceRequirements], pod: Mapping[str, Any], offer: str) -> bool:
    """Return whether the record names whole GPUs, and only of containers that were changed."""
    containers = [each for kind in CONTAINER_LISTS for each in (pod.get("spec") or {}).get(kind) or []]
    changed = {
        str(container.get("name", ""))
        for container in containers
        if any(offer in amounts for amounts in (container.get("resources") or {}).values())
    }
    return bool(before) and set(before) <= changed and all(map(_had_whole_gpus, before.values()))


def _had_whole_gpus(before: ResourceRequirements) -> bool:
    amounts = [side[WHOLE_GPU] for side in (before.limits, before.requests) if WHOLE_GPU in side]
    return bool(amounts) and all((parse_whole_number(amount) or 0) > 0 for amount in amounts)


def _restored_spec(pod: Mapping[str, Any], offer: str, before: Mapping[str, ResourceRequirements]) -> dict[str, Any]:
    spec = {
        kind: [
            {"name": container["name"], "resources": _restored_resources(container, offer, before[container["name"]])}
            for container in (pod.get("spec") or {}).get(kind) or []
            if container.get("name") in before
        ]
        for kind in CONTAINER_LISTS
    }
    return {kind: containers for kind, containers in spec.items() if containers}


def _restored_resources(
    container: Mapping[str, Any], offer: str, before: ResourceRequirements
) -> dict[str, dict[str, Any]]:
    """Return limits and requests with the original GPU amounts in place of the injected ones."""
    resources = container.get("resources") or {}
    injected = (offer, ACCOUNTING_RESOURCE)
    return {
        side: {key: amount for key, amount in (resources.get(side) or {}).items() if key not in injected}
        | dict(original)
        for side, original in (("limits", before.limits), ("requests", before.requests))
    }
