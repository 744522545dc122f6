"""Evaluates pasted objects and policies as `check`, `explain` and `policy diff` do, in steps, within bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.audit.evaluate import EvaluationContext, evaluate_all
from webhook.audit.object_files import SkippedDocument, SourceObject, parse_objects
from webhook.audit.policy_diff import (
    CHANGE_KINDS,
    PodPolicyDiff,
    compare_policies,
    policy_change_lines,
    policy_diffs_by_workload,
)
from webhook.console.pod_samples import PodSamples
from webhook.errors import TrialError, quote_text
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.report.check import PoliciesUsed, report_lines
from webhook.report.console.state import ConsoleState
from webhook.report.console.trials import (
    MAX_CHANGES,
    OBJECTS_LABEL,
    POLICIES_LABEL,
    ClusterTrial,
    TrialDecision,
    TrialOutcome,
    TrialProgress,
    WorkloadChange,
)
from webhook.report.explain import explain_lines
from webhook.report.results import CheckResult
from webhook.report.serialization import yaml_text
from webhook.report.text import sanitize
from webhook.well_known import GROUP

MAX_OBJECTS = 20
"""Objects of a trial."""

PASTED = "stdin"
"""The name of what is pasted: that of standard input, so that the report is that of `check -`."""

PASTED_POLICIES = "pasted"


class TrialCluster(NamedTuple):
    """The cluster that objects and policies are tried in."""

    state: ConsoleState
    context: EvaluationContext
    samples: PodSamples


def evaluate_trial(cluster: TrialCluster, objects: str, policies: str, source: str) -> Iterator[TrialOutcome]:
    """Evaluate pasted texts in steps of at most one pod of the cluster.

    Args:
        objects: Pods and workloads, as `check` reads them; "" for none.
        policies: Policies and exceptions; "" for none.
        source: Where the policies of the cluster come from, for people.

    Yields:
        What is known after each step; the last one is the result.

    Raises:
        TrialError: There is nothing to evaluate, or too much.
    """
    if not objects.strip() and not policies.strip():
        raise TrialError("nothing was pasted. Paste a pod, a workload or a policy")
    documents = list(parse_objects(PASTED, objects.encode())) if objects.strip() else []
    if len(documents) > MAX_OBJECTS:
        raise TrialError(
            f"must be at most {MAX_OBJECTS} objects, found {len(documents)}. Use rightslice check for more"
        )
    _reject_misplaced(documents, policies)
    used = PoliciesUsed(cluster.context.policies.names, source)
    before = [_decide(documents, cluster.context, used, "With the policies of the cluster")] if documents else []
    yield TrialOutcome(decisions=tuple(before))
    if policies.strip():
        yield from _try_policies(cluster, documents, policies, before)


def _reject_misplaced(objects: Iterable[SourceObject | SkippedDocument], policies: str) -> None:
    """Raise TrialError for a policy among the objects, or an object among the policies: neither would be evaluated."""
    for each in objects:
        if isinstance(each, SourceObject) and _is_policy(each):
            raise TrialError(f"{_describe_kind(each)} is not a pod or workload. Paste it under {POLICIES_LABEL}")
    for each in parse_objects(PASTED_POLICIES, policies.encode()):
        if isinstance(each, SourceObject) and not _is_policy(each):
            raise TrialError(f"{_describe_kind(each)} is not a policy. Paste it under {OBJECTS_LABEL}")


def _is_policy(source: SourceObject) -> bool:
    return str(source.data["apiVersion"]).startswith(f"{GROUP}/")


def _describe_kind(source: SourceObject) -> str:
    return f"{source.locate()}: {quote_text(source.data['kind'])}"


def _try_policies(
    cluster: TrialCluster,
    documents: Sequence[SourceObject | SkippedDocument],
    text: str,
    before: Sequence[TrialDecision],
) -> Iterator[TrialOutcome]:
    current = cluster.context.policies
    loaded = load_policies([(PASTED_POLICIES, text)], current.sources)
    if loaded.policies is None:
        errors = [sanitize(f"{each.location}: {each.code}: {each.message}") for each in loaded.errors]
        yield TrialOutcome(errors=tuple(errors), decisions=tuple(before))
        return
    changed = _with_current(current, loaded.policies)
    context = msgspec.structs.replace(cluster.context, policies=changed)
    used = PoliciesUsed(changed.names, "the cluster and the pasted ones")
    after = [_decide(documents, context, used, "With the pasted policies")] if documents else []
    differences = tuple(map(sanitize, policy_change_lines(current, changed)))
    outcome = TrialOutcome(decisions=(*before, *after), differences=differences)
    for progress, result in _compare(cluster, changed):
        yield outcome._replace(progress=progress, cluster=result)


def _with_current(current: PolicySet, loaded: PolicySet) -> PolicySet:
    """Return the loaded set, with those policies that were not pasted as they are now: a rollout may be halted."""
    kept = {each.name: each for each in current.policies}
    policies = (each if each.location.file == PASTED_POLICIES else kept[each.name] for each in loaded.policies)
    return PolicySet(policies, loaded.exemptions, loaded.workload_kinds, loaded.sources)


def _decide(
    documents: Iterable[SourceObject | SkippedDocument], context: EvaluationContext, used: PoliciesUsed, title: str
) -> TrialDecision:
    results = list(evaluate_all(documents, context))
    report = "\n".join(report_lines(results, used))
    explanation = "\n".join(line for each in results for line in (*explain_lines(each), ""))
    return TrialDecision(title, report, explanation.rstrip(), "\n".join(_patches(results)))


def _patches(results: Iterable[CheckResult]) -> Iterator[str]:
    for each in results:
        if each.decision.patch:
            yield f"# {sanitize(each.title)}\n{yaml_text(list(each.decision.patch))}"


def _compare(cluster: TrialCluster, changed: PolicySet) -> Iterator[tuple[TrialProgress, ClusterTrial | None]]:
    """Evaluate a pod of each workload with the policies of the cluster and with the changed ones.

    Yields:
        How far it is, before the first pod and after each; the changes with the last one.
    """
    samples, diffs = cluster.samples, list[PodPolicyDiff]()
    progress = TrialProgress(0, len(samples), 0)
    yield progress, None
    compared = compare_policies((each.restore() for each in samples), cluster.context, changed)
    for evaluated, each in enumerate(compared, start=1):
        if isinstance(each, PodPolicyDiff) and each.differs:
            diffs.append(each)
        progress = TrialProgress(evaluated, len(samples), len(diffs))
        yield progress, None
    yield progress, _sum_up(cluster, diffs)


def _sum_up(cluster: TrialCluster, diffs: Iterable[PodPolicyDiff]) -> ClusterTrial:
    changes = list(_changes(cluster.state, diffs))
    counts = Counter(each.change for each in changes)
    milli = sum(each.gpu_milli * each.pods for each in changes)
    return ClusterTrial(tuple(changes[:MAX_CHANGES]), counts, len(cluster.samples), cluster.samples.omitted, milli)


def _changes(state: ConsoleState, diffs: Iterable[PodPolicyDiff]) -> Iterator[WorkloadChange]:
    """Yield the changes of workloads, of each of which one pod was evaluated."""
    pods: Mapping[tuple[str, str], Sequence[object]] = state.pods
    for each in policy_diffs_by_workload(diffs):
        yield WorkloadChange(
            CHANGE_KINDS[each.kind],
            each.namespace,
            each.workload,
            len(pods.get((each.namespace, each.workload), ())) or each.pods,
            each.codes,
            each.gpu_milli_saved // each.pods,
        )
