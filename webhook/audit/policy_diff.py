"""What a change of policies would do to the pods of a cluster: each judged by the old ones and by the new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.pod_audit import audit_pod, is_active_pod, without_right_sizing
from webhook.model.annotations import DECISION_ANNOTATION
from webhook.model.decisions import Decision, PatchOperation
from webhook.model.field_paths import json_pointer
from webhook.policy.policy_set import PolicySet
from webhook.report.policy_diff import PodPolicyDiff
from webhook.report.results import CheckResult, CheckVerdict, skipped_result

_RECORD = json_pointer((DECISION_ANNOTATION,))
"""How the path of our record ends, in a pod that has annotations."""


def compare_policies(
    found: Iterable[SourceObject | SkippedDocument], world: EvaluationContext, changed: PolicySet
) -> Iterator[PodPolicyDiff | CheckResult]:
    """Judge each pod twice.

    Args:
        world: With the old policies.
        changed: The new ones.

    Yields:
        What differs between the two, for each pod; a skipped result for each fault in a file.
    """
    after = msgspec.structs.replace(world, policies=changed)
    plain, plain_after = without_right_sizing(world.policies), without_right_sizing(changed)
    for each in found:
        if isinstance(each, SkippedDocument):
            if each.broken:
                yield skipped_result(each.place, each.reason, invalid=True)
        elif is_active_pod(each.data):
            one, other = audit_pod(each, world, plain), audit_pod(each, after, plain_after)
            yield one if one.verdict is CheckVerdict.SKIPPED else _compare_results(one, other)


def _compare_results(one: CheckResult, other: CheckResult) -> PodPolicyDiff:
    before, after = one.decision, other.decision
    refused = {found.code: found for found in after.denials}
    taken_back = {found.code: found for found in before.denials}
    reasons = refused if after.denials else taken_back
    return PodPolicyDiff(
        namespace=one.namespace,
        workload=other.pod_details.workload if other.pod_details is not None else "",
        denied=bool(after.denials) and not before.denials,
        allowed=bool(before.denials) and not after.denials,
        patched=not after.denials and _patch_without_record(one) != _patch_without_record(other),
        codes=tuple(reasons) if bool(before.denials) != bool(after.denials) else (),
        gpu_milli_saved=before.gpu_milli_after - after.gpu_milli_after,
        warned=_new_warnings(before, after) if not after.denials else (),
    )


def _new_warnings(before: Decision, after: Decision) -> tuple[str, ...]:
    said = {found.code for found in before.warnings}
    return tuple(dict.fromkeys(found.code for found in after.warnings if found.code not in said))


def _patch_without_record(result: CheckResult) -> list[object]:
    """The operations without our own record: it has the digest of all policies, and differs whatever they say."""
    return [_operation_without_record(operation) for operation in result.decision.patch]


def _operation_without_record(operation: PatchOperation) -> object:
    value = operation["value"]
    if operation["path"].endswith(_RECORD):
        return None
    if isinstance(value, dict) and DECISION_ANNOTATION in value:
        value = {key: each for key, each in value.items() if key != DECISION_ANNOTATION}
    return operation["op"], operation["path"], value
