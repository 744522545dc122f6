"""Compare the decisions for the pods of a cluster before and after a policy change, and sum them up by workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.pod_audit import compare_pod, is_active_pod, without_right_sizing
from webhook.model.annotations import DECISION_ANNOTATION
from webhook.model.field_paths import json_pointer
from webhook.policy.policy_set import PolicySet
from webhook.report.check import kubectl_workload_name
from webhook.report.results import CheckResult, CheckVerdict, skipped_result
from webhook.report.text import format_gpus, pluralize, sanitize

MAX_NAMED_WORKLOADS = 5
"""Workloads that the table names for each kind of change; JSON names all."""


class PodPolicyDiff(msgspec.Struct, frozen=True, gc=False):
    """Differences for one pod between the old policies and the new ones.

    Attributes:
        denied: Whether it was allowed and would be denied.
        allowed: Whether it was denied and would be allowed.
        patched: Whether it would be allowed with another patch.
        codes: Codes of the findings that deny it, or did.
        gpu_milli_saved: Thousandths of a GPU that another patch would save.
        warned: Codes of warnings that it would get and did not get.
    """

    namespace: str
    workload: str
    denied: bool = False
    allowed: bool = False
    patched: bool = False
    codes: tuple[str, ...] = ()
    gpu_milli_saved: int = 0
    warned: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """True if anything differs."""
        return any(getattr(self, kind) for kind in CHANGE_KINDS)


class WorkloadPolicyDiff(NamedTuple):
    """Effect of a policy change on one workload."""

    kind: str
    namespace: str
    workload: str
    pods: int
    codes: tuple[str, ...]
    gpu_milli_saved: int

    @property
    def object_name(self) -> str:
        """Its name as kubectl prints it: deployment.apps/serve."""
        return kubectl_workload_name(self.workload)


CHANGE_KINDS = {
    "denied": "newly denied",
    "allowed": "newly allowed",
    "patched": "patched differently",
    "warned": "newly warned",
}


_RECORD = json_pointer((DECISION_ANNOTATION,))
"""The end of our record's path in a patch."""


def compare_policies(
    documents: Iterable[SourceObject | SkippedDocument], context: EvaluationContext, changed: PolicySet
) -> Iterator[PodPolicyDiff | CheckResult]:
    """Evaluate each pod with the policies of the context and with the changed ones.

    Yields:
        The difference for each pod; a skipped result for each invalid document.
    """
    contexts = context, msgspec.structs.replace(context, policies=changed)
    unsized = [without_right_sizing(each.policies) for each in contexts]
    for each in documents:
        if isinstance(each, SkippedDocument):
            if each.invalid:
                yield skipped_result(each.location, each.reason, invalid=True)
        elif is_active_pod(each.data):
            old, new = compare_pod(each, contexts, unsized)
            yield old if old.verdict is CheckVerdict.SKIPPED else _compare_results(old, new)


def _compare_results(old: CheckResult, new: CheckResult) -> PodPolicyDiff:
    before, after = old.decision, new.decision
    denied, allowed = bool(after.denials and not before.denials), bool(before.denials and not after.denials)
    codes = dict.fromkeys(finding.code for finding in (after.denials if denied else before.denials))
    known = {finding.code for finding in before.warnings}
    warned = dict.fromkeys(finding.code for finding in after.warnings if finding.code not in known)
    return PodPolicyDiff(
        namespace=old.namespace,
        workload=new.workload,
        denied=denied,
        allowed=allowed,
        patched=not after.denials and _patch_without_record(old) != _patch_without_record(new),
        codes=tuple(codes) if denied or allowed else (),
        gpu_milli_saved=before.gpu_milli_after - after.gpu_milli_after,
        warned=tuple(warned) if not after.denials else (),
    )


def _patch_without_record(result: CheckResult) -> list[object]:
    """Return the operations without our record, whose policy digest always differs."""
    operations: list[object] = []
    for operation in result.decision.patch:
        value = operation["value"]
        if isinstance(value, dict) and DECISION_ANNOTATION in value:
            value = {key: each for key, each in value.items() if key != DECISION_ANNOTATION}
        is_record = operation["path"].endswith(_RECORD)
        operations.append(None if is_record else (operation["op"], operation["path"], value))
    return operations


def policy_diffs_by_workload(compared: Iterable[PodPolicyDiff]) -> list[WorkloadPolicyDiff]:
    """Sum up by kind and workload, most pods first, then by name."""
    pods: Counter[tuple[str, str, str]] = Counter()
    milli: Counter[tuple[str, str, str]] = Counter()
    codes: dict[tuple[str, str, str], dict[str, None]] = {}
    for each in compared:
        for kind in CHANGE_KINDS:
            if getattr(each, kind):
                key = (kind, each.namespace, each.workload)
                pods[key] += 1
                milli[key] += each.gpu_milli_saved if kind == "patched" else 0
                codes.setdefault(key, {}).update(dict.fromkeys(each.warned if kind == "warned" else each.codes))
    order = list(CHANGE_KINDS)
    ranked = sorted(pods, key=lambda key: (order.index(key[0]), -pods[key], key))
    return [WorkloadPolicyDiff(*key, pods[key], tuple(codes[key]), milli[key]) for key in ranked]


def policy_diff_table(policies: Iterable[str], changes: Iterable[WorkloadPolicyDiff]) -> Iterator[str]:
    """Yield the policies that differ, then each kind of change with its workloads."""
    every = list(changes)
    yield from (sanitize(line) for line in policies)
    for kind, words in CHANGE_KINDS.items():
        members = [change for change in every if change.kind == kind]
        named = [
            f"{each.namespace}/{each.workload}{f' ({each.pods})' * (each.pods > 1)} {'+'.join(each.codes)}".rstrip()
            for each in members[:MAX_NAMED_WORKLOADS]
        ]
        if len(members) > MAX_NAMED_WORKLOADS:
            named.append(f"{len(members) - MAX_NAMED_WORKLOADS} more")
        pods = pluralize(sum(change.pods for change in members), "pod")
        yield f"  {words:<19}  {pods}  {sanitize(', '.join(named))}".rstrip()
    saved = sum(change.gpu_milli_saved for change in every)
    if saved:
        amount = f"{format_gpus(abs(saved))} {'less' if saved > 0 else 'more'}"
        yield f"  {'GPUs':<19}  {amount} for pods that are patched differently"
    if any(change.kind == "denied" for change in every):
        yield "Newly denied pods keep running; they would be denied when they are created again."


def policy_diff_document(policies: Iterable[str], changes: Iterable[WorkloadPolicyDiff]) -> dict[str, Any]:
    """Return the differences as plain data."""
    document: dict[str, Any] = {"policies": list(policies)}
    keys = {kind: "patchedDifferently" if kind == "patched" else f"newly{kind.title()}" for kind in CHANGE_KINDS}
    document |= {key: [] for key in keys.values()}
    for change in changes:
        document[keys[change.kind]].append(
            {
                "namespace": change.namespace,
                "workload": change.workload,
                "pods": change.pods,
                "codes": list(change.codes),
                "gpuMilliSaved": change.gpu_milli_saved,
            }
        )
    return document


def policy_change_lines(before: PolicySet, after: PolicySet) -> Iterator[str]:
    """Yield a line for each policy that was added, removed or changed, with the change of its rollout."""
    old = {policy.name: policy.digest for policy in before.policies}
    new = {policy.name: policy.digest for policy in after.policies}
    for name in sorted(old | new):
        if name not in old:
            yield f"{name}: added"
        elif name not in new:
            yield f"{name}: removed"
        elif old[name] != new[name]:
            percents = [_rollout_percent(policies, name) for policies in (before, after)]
            rollout = ", rollout from {}% to {}% of the workloads".format(*percents)
            yield f"{name}: changed{rollout if percents[0] != percents[1] else ''}"
    if old == new:
        yield "no policy changed"


def _rollout_percent(policies: PolicySet, name: str) -> int:
    return next((one.rollout.percent for one in policies.policies if one.name == name and one.rollout), 100)
