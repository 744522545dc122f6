"""What is known of a pod that is in a cluster already, beside what the engine says of it: its workload, what it
was seen to use, and whether a hook ever saw it.

Nothing marks a pod that a hook let through unchanged. So a pod counts as missed where its kind or its namespace goes
past every hook, and where it would be changed or refused today and bears no record of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.engine.gpu_requests import GpuRequest, PodGpuRequests
from webhook.manifests.webhooks import EXCLUDED_NAMESPACES
from webhook.model.annotations import DECISION_ANNOTATION, MIRROR_ANNOTATION
from webhook.model.decisions import Decision, KeepRequest, OfferChoice
from webhook.model.enums import EvidenceSource
from webhook.model.pods import Pod
from webhook.model.usage import ObservedUsage
from webhook.model.workloads import workload_of
from webhook.report.results import ContainerUsage, UnevaluatedReason

KUBELET_CONFIG_PREFIX = "kubernetes.io/config."
"""What the kubelet's annotations on static pods begin with."""


def container_uses(
    asked: PodGpuRequests, namespace: str, pod: Pod, world: EvaluationContext, outcome: OfferChoice | KeepRequest
) -> tuple[ContainerUsage, ...]:
    """What each container asks for of GPUs, and what was seen of it.

    Args:
        outcome: What it would get instead, or why it keeps what it has.
    """
    workload, advised_mib, now = workload_of(pod), _usage_advised_mib(outcome), world.now.timestamp()
    seen = [world.usage.find(namespace, workload, ask.container.name) for ask in asked.requests]
    name = pod.metadata.name
    return tuple(
        _container_use(ask, use, advised_mib, now, name) for ask, use in zip(asked.requests, seen, strict=True)
    )


def _usage_advised_mib(outcome: OfferChoice | KeepRequest) -> int | None:
    """Memory of the size that observed use advises, MiB; None where the advice has other grounds, or is none."""
    if not isinstance(outcome, OfferChoice) or outcome.need.evidence is not EvidenceSource.OBSERVED:
        return None
    return outcome.need.memory_mib


def _container_use(
    ask: GpuRequest, seen: ObservedUsage | None, advised_mib: int | None, now: float, pod: str
) -> ContainerUsage:
    if seen is None:
        return ContainerUsage(ask.container.name, ask.resource.name, ask.count)
    return ContainerUsage(
        container=ask.container.name,
        resource=ask.resource.name,
        count=ask.count,
        memory_mib=seen.memory_mib,
        compute_milli=seen.compute_milli,
        samples=seen.samples,
        preallocates=seen.preallocates,
        idle=seen.is_idle(now) and pod in seen.idle_pods,
        risk_ppm=seen.risk_ppm(advised_mib) if advised_mib and seen.sizes_mib else None,
    )


def missed_admission(pod: Mapping[str, Any], namespace: str, decision: Decision) -> UnevaluatedReason | None:
    """Why no hook saw a pod; None where one did, or nothing tells.

    Args:
        pod: The pod as it is stored.
        decision: What would become of it if it were created again.
    """
    if not decision.involves_gpus:
        return None
    annotations = _annotation_map(pod.get("metadata"))
    if MIRROR_ANNOTATION in annotations:
        return UnevaluatedReason.STATIC
    if namespace in EXCLUDED_NAMESPACES:
        return UnevaluatedReason.EXCLUDED
    changes = decision.patch or decision.denials
    return UnevaluatedReason.UNRECORDED if changes and DECISION_ANNOTATION not in annotations else None


def describe_admission_change(decision: Decision) -> str:
    """What a hook would have made of a pod, in words."""
    if decision.denials:
        return f"refused: {', '.join(dict.fromkeys(found.code for found in decision.denials))}"
    fields = dict.fromkeys(_patched_field(operation["path"]) for operation in decision.patch)
    named = [field for field in fields if field]
    return f"given {', '.join(named)}" if named else "let in as they are"


def _patched_field(pointer: str) -> str:
    """The part of a pod that an operation is about; "" for our own records."""
    steps = pointer.split("/")[1:]
    if steps[0] == "metadata":
        return "labels" if "labels" in steps else ""
    return "resources" if "resources" in steps else steps[1] if len(steps) > 1 else steps[0]


def _annotation_map(metadata: Any) -> dict[str, Any]:
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def without_kubelet_annotations(metadata: Any) -> Any:
    """The metadata of a static pod as its manifest has them: without what the kubelet writes."""
    annotations = _annotation_map(metadata)
    if MIRROR_ANNOTATION not in annotations:
        return metadata
    kept = {key: value for key, value in annotations.items() if not str(key).startswith(KUBELET_CONFIG_PREFIX)}
    return metadata | {"annotations": kept}


def created_since(
    found: Iterable[SourceObject | SkippedDocument], moment: datetime | None
) -> Iterator[SourceObject | SkippedDocument]:
    """What was created at this moment or later; an object that does not say when it was is kept."""
    for each in found:
        created = _creation_time(each.data) if isinstance(each, SourceObject) and moment is not None else None
        if moment is None or created is None or created >= moment:
            yield each


def lacks_creation_time(data: Mapping[str, Any]) -> bool:
    """Does an object not say when it was created?"""
    return _creation_time(data) is None


def _creation_time(data: Mapping[str, Any]) -> datetime | None:
    metadata = data.get("metadata")
    text = metadata.get("creationTimestamp") if isinstance(metadata, dict) else None
    try:
        moment = datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
