"""What a pod asked for before Rightslice changed it, as YAML to put into its manifest or its workload's template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from webhook.model.annotations import (
    DECISION_ANNOTATION,
    KEEP_ANNOTATION,
    ORIGINAL_ANNOTATION,
    DecisionRecord,
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
    """A pod that was given something else, and what it asked for before is not known."""

    name: str
    offer: str

    def __str__(self) -> str:
        gone = f"{ORIGINAL_ANNOTATION} is gone or is not what Rightslice wrote"
        return f"Pod {self.name} was given {self.offer}; what it asked for before is not known: {gone}."


def original_yaml(pod: Mapping[str, Any]) -> str | UnknownOriginal:
    """The part of a pod that was changed, as it was; "" where there is no record that its GPUs were changed.

    Args:
        pod: As the API has it.
    """
    pod = without_nulls(pod)
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    record = parse_decision_record(str(annotations.get(DECISION_ANNOTATION, "")))
    if record is None or not record.offer:
        return ""
    name, offer = sanitize(f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"), sanitize(record.offer)
    before = parse_original_resources(str(annotations.get(ORIGINAL_ANNOTATION, "")))
    how, spec = "as it was written", _restored_spec(pod, record, before or {})
    if record.offer == WHOLE_GPU and ORIGINAL_ANNOTATION not in annotations:
        how = f"asks for {offer} as it was written, and was sent to slices of it"
    elif not _is_valid_original(before or {}, pod, record.offer):
        return UnknownOriginal(name, offer)
    fields = {"metadata": {"annotations": {KEEP_ANNOTATION: "true"}}, **({"spec": spec} if spec else {})}
    return f"# Pod {name} {how} (spoken: {sanitize(', '.join(record.policies))})\n{yaml_text(fields)}"


def _is_valid_original(before: Mapping[str, ResourceRequirements], pod: Mapping[str, Any], offer: str) -> bool:
    """Does it say that containers had whole GPUs, and of no other than those that were given something?"""
    given = {str(each.get("name", "")) for each in _all_containers(pod) if _mentions_resource(each, offer)}
    return bool(before) and set(before) <= given and all(map(_had_whole_gpus, before.values()))


def _all_containers(pod: Mapping[str, Any]) -> list[Any]:
    return [each for kind in CONTAINER_LISTS for each in (pod.get("spec") or {}).get(kind) or []]


def _mentions_resource(container: Mapping[str, Any], resource: str) -> bool:
    return any(resource in amounts for amounts in (container.get("resources") or {}).values())


def _had_whole_gpus(before: ResourceRequirements) -> bool:
    amounts = [side[WHOLE_GPU] for side in (before.limits, before.requests) if WHOLE_GPU in side]
    return bool(amounts) and all((parse_whole_number(amount) or 0) > 0 for amount in amounts)


def _restored_spec(
    pod: Mapping[str, Any], record: DecisionRecord, before: Mapping[str, ResourceRequirements]
) -> dict[str, Any]:
    restored = {kind: _restored_containers(pod, kind, record, before) for kind in CONTAINER_LISTS}
    return {kind: found for kind, found in restored.items() if found}


def _restored_containers(
    pod: Mapping[str, Any], kind: str, record: DecisionRecord, before: Mapping[str, ResourceRequirements]
) -> list[dict[str, Any]]:
    return [
        {
            "name": container["name"],
            "resources": _restored_resources(container, record.offer, before[container["name"]]),
        }
        for container in (pod.get("spec") or {}).get(kind) or []
        if container.get("name") in before
    ]


def _restored_resources(
    container: Mapping[str, Any], offer: str, before: ResourceRequirements
) -> dict[str, dict[str, Any]]:
    """Limits and requests: what stands there now, without what was put in, with what was taken out."""
    now = container.get("resources") or {}
    sides = {"limits": before.limits, "requests": before.requests}
    return {
        side: {
            **{key: amount for key, amount in (now.get(side) or {}).items() if _is_unrelated_resource(key, offer)},
            **asked,
        }
        for side, asked in sides.items()
    }


def _is_unrelated_resource(key: str, offer: str) -> bool:
    return key not in (offer, ACCOUNTING_RESOURCE)
