"""What a pod asked for before Rightslice changed it, as YAML to put into its manifest or its workload's template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webhook.model.pods import Resources, without_nulls
from webhook.model.records import DECISION, KEEP, ORIGINAL, DecisionRecord, decision_record, original_resources
from webhook.model.resources import ACCOUNTING
from webhook.report.data import as_yaml
from webhook.report.words import shown

CONTAINERS = ("containers", "initContainers")


def undone(pod: Mapping[str, Any]) -> str:
    """The part of a pod that was changed, as it was; "" where there is no record that its GPUs were changed.

    Args:
        pod: As the API has it.
    """
    pod = without_nulls(pod)
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    record = decision_record(str(annotations.get(DECISION, "")))
    before = original_resources(str(annotations.get(ORIGINAL, "")))
    if record is None or not record.offer:
        return ""
    name = shown(f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}")
    restored = {kind: _restored(pod, kind, record, before or {}) for kind in CONTAINERS}
    spec = {kind: found for kind, found in restored.items() if found}
    how = (
        "as it was written"
        if spec
        else f"asks for {shown(record.offer)} as it was written, and was sent to slices of it"
    )
    fields = {"metadata": {"annotations": {KEEP: "true"}}, **({"spec": spec} if spec else {})}
    return f"# Pod {name} {how} (spoken: {shown(', '.join(record.policies))})\n{as_yaml(fields)}"


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
