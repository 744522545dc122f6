"""What a pod asked for before Rightslice changed it, as YAML to put into its manifest or its workload's template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from webhook.model.pods import Resources, without_nulls
from webhook.model.quantity import whole
from webhook.model.records import DECISION, KEEP, ORIGINAL, DecisionRecord, decision_record, original_resources
from webhook.model.resources import ACCOUNTING, WHOLE_GPU
from webhook.report.data import as_yaml
from webhook.report.words import shown

CONTAINERS = ("containers", "initContainers")


class Unknown(NamedTuple):
    """A pod that was given something else, and what it asked for before is not known."""

    name: str
    offer: str

    def __str__(self) -> str:
        gone = f"{ORIGINAL} is gone or is not what Rightslice wrote"
        return f"Pod {self.name} was given {self.offer}; what it asked for before is not known: {gone}."


def undone(pod: Mapping[str, Any]) -> str | Unknown:
    """The part of a pod that was changed, as it was; "" where there is no record that its GPUs were changed.

    Args:
        pod: As the API has it.
    """
    pod = without_nulls(pod)
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    record = decision_record(str(annotations.get(DECISION, "")))
    if record is None or not record.offer:
        return ""
    name, offer = shown(f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"), shown(record.offer)
    before = original_resources(str(annotations.get(ORIGINAL, "")))
    how, spec = "as it was written", _spec(pod, record, before or {})
    if record.offer == WHOLE_GPU and ORIGINAL not in annotations:
        how = f"asks for {offer} as it was written, and was sent to slices of it"
    elif not _is_original(before or {}, pod, record.offer):
        return Unknown(name, offer)
    fields = {"metadata": {"annotations": {KEEP: "true"}}, **({"spec": spec} if spec else {})}
    return f"# Pod {name} {how} (spoken: {shown(', '.join(record.policies))})\n{as_yaml(fields)}"


def _is_original(before: Mapping[str, Resources], pod: Mapping[str, Any], offer: str) -> bool:
    """Does it say that containers had whole GPUs, and of no other than those that were given something?"""
    given = {str(each.get("name", "")) for each in _containers(pod) if _asks(each, offer)}
    return bool(before) and set(before) <= given and all(map(_had_whole_gpus, before.values()))


def _containers(pod: Mapping[str, Any]) -> list[Any]:
    return [each for kind in CONTAINERS for each in (pod.get("spec") or {}).get(kind) or []]


def _asks(container: Mapping[str, Any], resource: str) -> bool:
    return any(resource in amounts for amounts in (container.get("resources") or {}).values())


def _had_whole_gpus(before: Resources) -> bool:
    amounts = [side[WHOLE_GPU] for side in (before.limits, before.requests) if WHOLE_GPU in side]
    return bool(amounts) and all((whole(amount) or 0) > 0 for amount in amounts)


def _spec(pod: Mapping[str, Any], record: DecisionRecord, before: Mapping[str, Resources]) -> dict[str, Any]:
    restored = {kind: _restored(pod, kind, record, before) for kind in CONTAINERS}
    return {kind: found for kind, found in restored.items() if found}


def _restored(
    pod: Mapping[str, Any], kind: str, record: DecisionRecord, before: Mapping[str, Resources]
) -> list[dict[str, Any]]:
    return [
        {"name": container["name"], "resources": _resources(container, record.offer, before[container["name"]])}
        for container in (pod.get("spec") or {}).get(kind) or []
        if container.get("name") in before
    ]


def _resources(container: Mapping[str, Any], offer: str, before: Resources) -> dict[str, dict[str, Any]]:
    """Limits and requests: what stands there now, without what was put in, with what was taken out."""
    now = container.get("resources") or {}
    sides = {"limits": before.limits, "requests": before.requests}
    return {
        side: {**{key: amount for key, amount in (now.get(side) or {}).items() if _is_theirs(key, offer)}, **asked}
        for side, asked in sides.items()
    }


def _is_theirs(key: str, offer: str) -> bool:
    return key not in (offer, ACCOUNTING)
