"""Facts about pods that a cluster has stored: the GPU usage of their containers, and whether they were evaluated.

The webhook leaves no mark on a pod that it admits unchanged. So a pod counts as not evaluated if no webhook is called
for it (static pods, excluded namespaces), or if it would be changed or denied now and carries no record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.engine.gpu_requests import PodGpuRequests
from webhook.model.annotations import DECISION_ANNOTATION, MIRROR_ANNOTATION
from webhook.model.decisions import Decision, KeepRequest, OfferChoice
from webhook.model.enums import EvidenceSource
from webhook.model.pods import Pod
from webhook.model.workloads import workload_of
from webhook.report.results import ContainerUsage, UnevaluatedReason
from webhook.well_known import EXCLUDED_NAMESPACES

KUBELET_CONFIG_PREFIX = "kubernetes.io/config."
"""Prefix of the kubelet's annotations on static pods."""


def container_uses(
    requests: PodGpuRequests,
    namespace: str,
    pod: Pod,
    context: EvaluationContext,
    outcome: OfferChoice | KeepRequest,
) -> tuple[ContainerUsage, ...]:
    """Return the GPU request and observed usage of each container.

    Args:
        outcome: The offer that the pod would get, or why it keeps its request.
    """
    recommended_mib = None
    if isinstance(outcome, OfferChoice) and outcome.need.evidence is EvidenceSource.OBSERVED:
        recommended_mib = outcome.need.memory_mib
    workload, uses = workload_of(pod), []
    for request in requests.requests:
        use = ContainerUsage(request.container.name, request.resource.name, request.count)
        usage = context.usage.find(namespace, workload, request.container.name)
        if usage is not None:
            use = msgspec.structs.replace(
                use,
                memory_mib=usage.memory_mib,
                compute_milli=usage.compute_milli,
                samples=usage.samples,
                preallocates=usage.preallocates,
                idle=usage.is_idle(context.now.timestamp()) and pod.metadata.name in usage.idle_pods,
                risk_ppm=usage.risk_ppm(recommended_mib) if recommended_mib and usage.sizes_mib else None,
            )
        uses.append(use)
    return tuple(uses)


def missed_admission(pod: Mapping[str, Any], namespace: str, decision: Decision) -> UnevaluatedReason | None:
    """Return why a pod was not evaluated at admission; None if it was, or if that is unknown.

    Args:
        pod: The stored pod.
        decision: The decision if it were created now.
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
    """Describe what the webhook would have done with a pod."""
    if decision.denials:
        return f"denied: {', '.join(dict.fromkeys(found.code for found in decision.denials))}"
    fields = dict.fromkeys(_patched_field(operation["path"]) for operation in decision.patch)
    fields.pop("", None)
    return f"given {', '.join(fields)}" if fields else "admitted unchanged"


def _patched_field(pointer: str) -> str:
    """Return the part of a pod that an operation changes; "" for our records."""
    steps = pointer.split("/")[1:]
    if steps[0] == "metadata":
        return "labels" if "labels" in steps else ""
    return "resources" if "resources" in steps else steps[1] if len(steps) > 1 else steps[0]


def _annotation_map(metadata: Any) -> dict[str, Any]:
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def without_kubelet_annotations(metadata: Any) -> Any:
    """Return the metadata of a static pod without the annotations that the kubelet adds."""
    annotations = _annotation_map(metadata)
    if MIRROR_ANNOTATION not in annotations:
        return metadata
    kept = {key: value for key, value in annotations.items() if not str(key).startswith(KUBELET_CONFIG_PREFIX)}
    return metadata | {"annotations": kept}


def created_since(
    documents: Iterable[SourceObject | SkippedDocument], moment: datetime | None
) -> Iterator[SourceObject | SkippedDocument]:
    """Yield what was created at or after this time; objects without a creation time are included."""
    for each in documents:
        created = creation_time(each.data) if isinstance(each, SourceObject) and moment is not None else None
        if moment is None or created is None or created >= moment:
            yield each


def creation_time(data: Mapping[str, Any]) -> datetime | None:
    """Return the creation time of an object; None if it has none, or an invalid one."""
    metadata = data.get("metadata")
    text = metadata.get("creationTimestamp") if isinstance(metadata, dict) else None
    try:
        moment = datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
