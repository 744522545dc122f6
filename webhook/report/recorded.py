"""What Rightslice did to a pod that is in a cluster, as its own record on the pod tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from webhook.model.pods import ResourceRequirements
from webhook.model.records import DECISION_ANNOTATION, KEEP_ANNOTATION, ORIGINAL_ANNOTATION, DecisionRecord, parse_decision_record, parse_original_resources
from webhook.model.resources import WHOLE_GPU, parse_gpu_resource
from webhook.report.words import format_gpus_with_unit, sanitize


def record_lines(annotations: Mapping[str, Any]) -> Iterator[str]:
    """What was changed, by which policies, on what evidence, what it asked before, and the way out.

    Yields:
        Lines without their ends; none where there is no record that Rightslice can have written.
    """
    record = parse_decision_record(str(annotations.get(DECISION_ANNOTATION, "")))
    if record is None:
        return
    yield f"Record    Rightslice changed {sanitize(', '.join(record.changed) or 'nothing')} when it was created"
    yield f"{'By':<10}{sanitize(_record_policies(record))} (digest of all policies then: {record.digest})"
    yield from _unchanging_policies_line(record)
    yield from _resize_lines(record, parse_original_resources(str(annotations.get(ORIGINAL_ANNOTATION, ""))))


def _record_policies(record: DecisionRecord) -> str:
    """Which policy changed what; of a record that does not say, all that spoke."""
    parts = [f"{policy}: {', '.join(changed)}" for policy, changed in record.by.items()]
    return "; ".join(parts) or ", ".join(record.policies) or "no policy named"


def _unchanging_policies_line(record: DecisionRecord) -> Iterator[str]:
    """Those that spoke and changed nothing."""
    others = [policy for policy in record.policies if policy not in record.changing_policies]
    if others:
        yield f"{'Spoke':<10}{sanitize(', '.join(others))}, and changed nothing"


def _resize_lines(record: DecisionRecord, before: Mapping[str, ResourceRequirements] | None) -> Iterator[str]:
    """Why it got another form of GPU; nothing where it did not."""
    if before:
        yield f"{'Before':<10}{sanitize(', '.join(_original_gpu_requests(before)))}"
    if record.offer == WHOLE_GPU and not before:
        yield f"{'Before':<10}it asked for {WHOLE_GPU}, as it does now: the name stayed, node affinity says which"
    if record.offer and record.milli:
        yield f"{'Now':<10}{format_gpus_with_unit(record.milli)} in place of each whole GPU asked for, as {sanitize(record.offer)}"
    if record.offer:
        yield f"{'Because':<10}it needs {sanitize(record.need)}, and {sanitize(record.offer)} has that"
        yield f'{"Way out":<10}{KEEP_ANNOTATION}: "true" as an annotation, of the workload\'s template where it has one'


def _original_gpu_requests(before: Mapping[str, ResourceRequirements]) -> Iterator[str]:
    for container, resources in before.items():
        for name, amount in (resources.requests | resources.limits).items():
            if parse_gpu_resource(name) is not None:
                yield f"{container}: {name} {amount}"
