"""What is known of a pod that is in a cluster already, beside what the engine says of it: its workload, what it
was seen to use, and whether a hook ever saw it.

Nothing marks a pod that a hook let through unchanged. So a pod counts as missed where its kind or its namespace goes
past every hook, and where it would be changed or refused today and bears no record of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from webhook.audit.checking import World
from webhook.audit.manifests import Entry, Passed
from webhook.engine.asking import Ask, Asked
from webhook.manifests.hooks import LEFT_OUT
from webhook.model.decisions import Decision, Fit, Keep
from webhook.model.modes import Evidence
from webhook.model.pods import Pod
from webhook.model.records import DECISION, MIRROR
from webhook.model.usage import Observed
from webhook.model.workloads import workload_of
from webhook.report.results import Missed, Use

CONFIG = "kubernetes.io/config."
"""What the kubelet's annotations on static pods begin with."""


def uses_of(asked: Asked, namespace: str, pod: Pod, world: World, outcome: Fit | Keep) -> tuple[Use, ...]:
    """What each container asks for of GPUs, and what was seen of it.

    Args:
        outcome: What it would get instead, or why it keeps what it has.
    """
    workload, advised_mib, now = workload_of(pod), _advised_by_use(outcome), world.now.timestamp()
    seen = [world.usage.of(namespace, workload, ask.container.name) for ask in asked.asks]
    name = pod.metadata.name
    return tuple(_use(ask, use, advised_mib, now, name) for ask, use in zip(asked.asks, seen, strict=True))


def _advised_by_use(outcome: Fit | Keep) -> int | None:
    """Memory of the size that observed use advises, MiB; None where the advice has other grounds, or is none."""
    if not isinstance(outcome, Fit) or outcome.need.evidence is not Evidence.OBSERVED:
        return None
    return outcome.need.memory_mib


def _use(ask: Ask, seen: Observed | None, advised_mib: int | None, now: float, pod: str) -> Use:
    if seen is None:
        return Use(ask.container.name, ask.resource.name, ask.count)
    return Use(
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


def why_missed(pod: Mapping[str, Any], namespace: str, decision: Decision) -> Missed | None:
    """Why no hook saw a pod; None where one did, or nothing tells.

    Args:
        pod: The pod as it is stored.
        decision: What would become of it if it were created again.
    """
    if not decision.touches_gpus:
        return None
    annotations = _annotations(pod.get("metadata"))
    if MIRROR in annotations:
        return Missed.STATIC
    if namespace in LEFT_OUT:
        return Missed.LEFT_OUT
    changes = decision.patch or decision.denials
    return Missed.UNMARKED if changes and DECISION not in annotations else None


def becoming(decision: Decision) -> str:
    """What a hook would have made of a pod, in words."""
    if decision.denials:
        return f"refused: {', '.join(dict.fromkeys(found.code for found in decision.denials))}"
    fields = dict.fromkeys(_field(operation["path"]) for operation in decision.patch)
    named = [field for field in fields if field]
    return f"given {', '.join(named)}" if named else "let in as they are"


def _field(pointer: str) -> str:
    """The part of a pod that an operation is about; "" for our own records."""
    steps = pointer.split("/")[1:]
    if steps[0] == "metadata":
        return "labels" if "labels" in steps else ""
    return "resources" if "resources" in steps else steps[1] if len(steps) > 1 else steps[0]


def _annotations(metadata: Any) -> dict[str, Any]:
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def without_kubelet_marks(metadata: Any) -> Any:
    """The metadata of a static pod as its manifest has them: without what the kubelet writes."""
    annotations = _annotations(metadata)
    if MIRROR not in annotations:
        return metadata
    kept = {key: value for key, value in annotations.items() if not str(key).startswith(CONFIG)}
    return metadata | {"annotations": kept}


def created_since(found: Iterable[Entry | Passed], moment: datetime | None) -> Iterator[Entry | Passed]:
    """What was created at this moment or later; an object that does not say when it was is kept."""
    for each in found:
        created = _created(each.data) if isinstance(each, Entry) and moment is not None else None
        if moment is None or created is None or created >= moment:
            yield each


def is_undated(data: Mapping[str, Any]) -> bool:
    """Does an object not say when it was created?"""
    return _created(data) is None


def _created(data: Mapping[str, Any]) -> datetime | None:
    metadata = data.get("metadata")
    text = metadata.get("creationTimestamp") if isinstance(metadata, dict) else None
    try:
        moment = datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
