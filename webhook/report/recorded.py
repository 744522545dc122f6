"""What Rightslice did to a pod that is in a cluster, as its own record on the pod tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from webhook.model.pods import Resources
from webhook.model.records import DECISION, KEEP, ORIGINAL, DecisionRecord, decision_record, original_resources
from webhook.model.resources import WHOLE_GPU, gpu_resource
from webhook.report.words import in_gpus, shown


def recorded(annotations: Mapping[str, Any]) -> Iterator[str]:
    """What was changed, by which policies, on what evidence, what it asked before, and the way out.

    Yields:
        Lines without their ends; none where there is no record that Rightslice can have written.
    """
    record = decision_record(str(annotations.get(DECISION, "")))
    if record is None:
        return
    yield f"Record    Rightslice changed {shown(', '.join(record.changed) or 'nothing')} when it was created"
    yield f"{'By':<10}{shown(_who(record))} (digest of all policies then: {record.digest})"
    yield from _silent(record)
    yield from _resized(record, original_resources(str(annotations.get(ORIGINAL, ""))))


def _who(record: DecisionRecord) -> str:
    """Which policy changed what; of a record that does not say, all that spoke."""
    parts = [f"{policy}: {', '.join(changed)}" for policy, changed in record.by.items()]
    return "; ".join(parts) or ", ".join(record.policies) or "no policy named"


def _silent(record: DecisionRecord) -> Iterator[str]:
    """Those that spoke and changed nothing."""
    others = [policy for policy in record.policies if policy not in record.acting]
    if others:
        yield f"{'Spoke':<10}{shown(', '.join(others))}, and changed nothing"


def _resized(record: DecisionRecord, before: Mapping[str, Resources] | None) -> Iterator[str]:
    """Why it got another form of GPU; nothing where it did not."""
    if before:
        yield f"{'Before':<10}{shown(', '.join(_asked(before)))}"
    if record.offer == WHOLE_GPU and not before:
        yield f"{'Before':<10}it asked for {WHOLE_GPU}, as it does now: the name stayed, node affinity says which"
    if record.offer and record.milli:
        yield f"{'Now':<10}{in_gpus(record.milli)} in place of each whole GPU asked for, as {shown(record.offer)}"
    if record.offer:
        yield f"{'Because':<10}it needs {shown(record.need)}, and {shown(record.offer)} has that"
        yield f'{"Way out":<10}{KEEP}: "true" as an annotation, of the workload\'s template where it has one'


def _asked(before: Mapping[str, Resources]) -> Iterator[str]:
    for container, resources in before.items():
        for name, amount in (resources.requests | resources.limits).items():
            if gpu_resource(name) is not None:
                yield f"{container}: {name} {amount}"
