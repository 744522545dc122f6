"""Evaluates pasted objects and policies as `check`, `explain` and `policy diff` do, within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

import msgspec

from webhook.audit.evaluate import EvaluationContext, evaluate_all
from webhook.audit.object_files import SkippedDocument, SourceObject, parse_objects
from webhook.audit.pod_audit import is_active_pod
from webhook.audit.policy_diff import (
    CHANGE_KINDS,
    PodPolicyDiff,
    compare_policies,
    policy_change_lines,
    policy_diffs_by_workload,
)
from webhook.console.compact_documents import compress_object, restore_object
from webhook.errors import TrialError, quote_text
from webhook.model.field_paths import map_at
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.report.check import PoliciesUsed, report_lines
from webhook.report.console.policies import OBJECTS_LABEL, POLICIES_LABEL, TrialDecision, TrialOutcome, WorkloadChange
from webhook.report.console.state import ConsoleState
from webhook.report.explain import explain_lines
from webhook.report.results import CheckResult
from webhook.report.serialization import yaml_text
from webhook.report.text import sanitize
from webhook.well_known import GROUP, Json

MAX_OBJECTS = 20
"""Objects of a trial."""

MAX_SAMPLES = 50_000
"""Workloads of which a pod is kept."""

TRIAL_SECONDS = 10.0
"""Time to evaluate the workloads of a cluster; the page says how many were evaluated."""

PASTED = "stdin"
"""The name of what is pasted: that of standard input, so that the report is that of `check -`."""

PASTED_POLICIES = "pasted"


class PodSamples:
    """One pod of each workload, compressed."""

    def __init__(self) -> None:
        self._samples: dict[tuple[object, object], bytes] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def observe(self, documents: Iterable[SourceObject | SkippedDocument]) -> Iterator[SourceObject | SkippedDocument]:
        """Yield documents, and keep the first active pod of each owner."""
        for each in documents:
            if isinstance(each, SourceObject) and is_active_pod(each.data):
                self._add(each.data)
            yield each

    def _add(self, pod: Json) -> None:
        metadata = map_at(pod, "metadata")
        owner = next(iter(metadata.get("ownerReferences") or ()), metadata)
        key = metadata.get("namespace"), owner.get("uid") or owner.get("name")
        if key not in self._samples and len(self._samples) < MAX_SAMPLES:
            self._samples[key] = compress_object(pod)

    def pods(self, seconds: float) -> Iterator[SourceObject]:
        """Yield the pods until the time has passed."""
        deadline = monotonic() + seconds
        for sample in self._samples.values():
            if monotonic() > deadline:
                return
            yield restore_object(sample, "cluster")


class TrialCluster(NamedTuple):
    """The cluster that objects and policies are tried in."""

    state: ConsoleState
    context: EvaluationContext
    samples: PodSamples


def run_trial(cluster: TrialCluster, objects: str, policies: str, source: str) -> TrialOutcome:
    """Evaluate pasted texts.

    Args:
        objects: Pods and workloads, as `check` reads them; "" for none.
        policies: Policies and exceptions; "" for none.
        source: Where the policies of the cluster come from, for people.

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
    if not policies.strip():
        return TrialOutcome(decisions=tuple(before))
    return _try_policies(cluster, documents, policies, before)


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
) -> TrialOutcome:
    current = cluster.context.policies
    loaded = load_policies([(PASTED_POLICIES, text)], current.sources)
    if loaded.policies is None:
        errors = [sanitize(f"{each.location}: {each.code}: {each.message}") for each in loaded.errors]
        return TrialOutcome(errors=tuple(errors), decisions=tuple(before))
    changed = _with_current(current, loaded.policies)
    context = msgspec.structs.replace(cluster.context, policies=changed)
    used = PoliciesUsed(changed.names, "the cluster and the pasted ones")
    after = [_decide(documents, context, used, "With the pasted policies")] if documents else []
    changes, evaluated = _compare(cluster, changed)
    return TrialOutcome(
        decisions=(*before, *after),
        differences=tuple(map(sanitize, policy_change_lines(current, changed))),
        changes=changes,
        evaluated=(evaluated, len(cluster.samples)),
    )


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


def _compare(cluster: TrialCluster, changed: PolicySet) -> tuple[tuple[WorkloadChange, ...], int]:
    """Return the workloads for which the policies make a difference, and how many pods were evaluated."""
    found = list(compare_policies(cluster.samples.pods(TRIAL_SECONDS), cluster.context, changed))
    diffs = policy_diffs_by_workload(each for each in found if isinstance(each, PodPolicyDiff))
    pods: Mapping[tuple[str, str], Sequence[object]] = cluster.state.pods
    changes = (
        WorkloadChange(
            CHANGE_KINDS[each.kind],
            each.namespace,
            each.workload,
            len(pods.get((each.namespace, each.workload), ())) or each.pods,
            each.codes,
            each.gpu_milli_saved // each.pods,
        )
        for each in diffs
    )
    return tuple(changes), len(found)
