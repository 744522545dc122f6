"""Compares the decisions for the pods of a cluster before and after a policy change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.pod_audit import audit_pod, is_active_pod, without_right_sizing
from webhook.model.annotations import DECISION_ANNOTATION
from webhook.model.decisions import PatchOperation
from webhook.model.field_paths import json_pointer
from webhook.policy.policy_set import PolicySet
from webhook.report.policy_diff import PodPolicyDiff
from webhook.report.results import CheckResult, CheckVerdict, skipped_result

_RECORD = json_pointer((DECISION_ANNOTATION,))
"""The end of our record's path in a patch."""


def compare_policies(
    documents: Iterable[SourceObject | SkippedDocument], context: EvaluationContext, changed: PolicySet
) -> Iterator[PodPolicyDiff | CheckResult]:
    """Evaluate each pod with the policies of the context and with the changed ones.

    Yields:
        The difference for each pod; a skipped result for each invalid document.
    """
    after = msgspec.structs.replace(context, policies=changed)
    unsized, unsized_after = without_right_sizing(context.policies), without_right_sizing(changed)
    for each in documents:
        if isinstance(each, SkippedDocument):
            if each.invalid:
                yield skipped_result(each.location, each.reason, invalid=True)
        elif is_active_pod(each.data):
            old, new = audit_pod(each, context, unsized), audit_pod(each, after, unsized_after)
            yield old if old.verdict is CheckVerdict.SKIPPED else _compare_results(old, new)


def _compare_results(old: CheckResult, new: CheckResult) -> PodPolicyDiff:
    before, after = old.decision, new.decision
    denied, allowed = bool(after.denials and not before.denials), bool(before.denials and not after.denials)
    codes = dict.fromkeys(finding.code for finding in (after.denials if denied else before.denials))
    known = {finding.code for finding in before.warnings}
    warned = dict.fromkeys(finding.code for finding in after.warnings if finding.code not in known)
    return PodPolicyDiff(
        namespace=old.namespace,
        workload=new.pod_details.workload if new.pod_details is not None else "",
        denied=denied,
        allowed=allowed,
        patched=not after.denials and _patch_without_record(old) != _patch_without_record(new),
        codes=tuple(codes) if denied or allowed else (),
        gpu_milli_saved=before.gpu_milli_after - after.gpu_milli_after,
        warned=tuple(warned) if not after.denials else (),
    )


def _patch_without_record(result: CheckResult) -> list[object]:
    return [_operation_without_record(operation) for operation in result.decision.patch]


def _operation_without_record(operation: PatchOperation) -> object:
    """Remove our record, whose policy digest always differs."""
    value = operation["value"]
    if operation["path"].endswith(_RECORD):
        return None
    if isinstance(value, dict) and DECISION_ANNOTATION in value:
        value = {key: each for key, each in value.items() if key != DECISION_ANNOTATION}
    return operation["op"], operation["path"], value
