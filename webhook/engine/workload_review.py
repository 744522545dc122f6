"""Warnings for workloads at apply time: the decisions about the pods of each template, replica by replica.

No workload is denied, because its pods are what is admitted. Users learn at `kubectl apply` what will happen to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from webhook.engine.owned_pods import complete_template, with_claims_of_all_pods
from webhook.engine.pod_context import PodDecision
from webhook.engine.queued_templates import (
    WorkloadQueueState,
    charging_system_of_workload,
    ignores_queue_label,
    queued_pod_set,
)
from webhook.engine.quota.replicas import (
    ReplicaCharge,
    charge_replicas,
    count_within_claims,
    count_within_quotas,
    count_within_shared,
)
from webhook.engine.templates import PodTemplate, read_templates
from webhook.model.admission import AdmissionRequest
from webhook.model.assumed_pods import AssumedPod
from webhook.model.batch import KUEUE
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision, OfferChoice, PatchOperation
from webhook.model.defaulting import default_object, default_pod, default_pod_data
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod
from webhook.policy.policy_set import PolicySet


class TemplateDecision(msgspec.Struct, frozen=True):
    """One template, and the decision about its pods.

    Attributes:
        decision: About the first pod.
        partial: Findings about the first pod that a quota rejects after it admitted some, with their number.
        created: How many of its pods are created.
        admitted: How many of these quotas admit like the first.
        others: Decisions about later pods that get other resources because a quota is full, with their numbers.
    """

    template: PodTemplate
    decision: Decision
    partial: tuple[tuple[int, Finding], ...] = ()
    created: int = 1
    admitted: int = 1
    others: tuple[tuple[int, Decision], ...] = ()

    @property
    def rejected(self) -> int:
        """The number of its pods that quotas reject."""
        return self.created - self.admitted - sum(count for count, _ in self.others)

    @property
    def milli_after(self) -> int:
        """The thousandths of GPUs of all its pods; those that are denied or rejected by a quota keep theirs."""
        if self.decision.denials:
            return self.decision.gpu_milli_before * self.template.replicas
        like_first = self.template.replicas - self.created + self.admitted
        decided = sum(count * each.gpu_milli_after for count, each in ((like_first, self.decision), *self.others))
        return decided + self.rejected * self.decision.gpu_milli_before


MAX_RESOURCE_SWITCHES = 8
"""How often the replicas of a template may switch to another resource when a quota is full; bounds the recursion."""


class ReplicaDecision(NamedTuple):
    """The decision about the replicas of a template.

    Attributes:
        decision: About the first of them.
        admitted: How many of them quotas admit like the first; 0 if that is denied. Others may get other resources.
        partial: Findings about the first replica that a quota rejects after it admitted some, with their number.
        replica: The charge of each of them; None if nothing counts them.
        others: Decisions about later replicas that quotas admit with other resources, with their numbers.
    """

    decision: Decision
    admitted: int
    partial: tuple[tuple[int, Finding], ...]
    replica: ReplicaCharge | None
    others: tuple[tuple[int, Decision], ...] = ()

    def charge(self, view: ClusterView) -> ClusterView:
        """Return the view after the admitted ones were created."""
        return view if self.replica is None else charge_replicas(view, self.replica, self.admitted)

    def assume(self, view: ClusterView) -> ClusterView:
        """Return the view for one evaluation in which the admitted ones hold their GPUs, CPU and memory."""
        use = self.decision.pending_use
        for resource, nodes, count in use.units if self.admitted else ():
            cpu_milli, memory = -(-use.cpu_milli // count), -(-use.memory // count)
            pods = AssumedPod(
                "",
                resource,
                nodes,
                count,
                math.inf,
                cpu_milli=cpu_milli,
                memory=memory,
                times=self.admitted,
                others=use.others,
            )
            view = view.with_units_of(pods)
        return view


def pods_of_workload(
    request: AdmissionRequest, policies: PolicySet, view: ClusterView, queue: WorkloadQueueState = None
) -> Iterator[tuple[PodTemplate, AdmissionRequest, Pod]]:
    """Yield each template of a workload, completed by its controller, with the future request for a pod, and that pod.

    The workload is used as owner. Unknown fields are absent: name and uid; the label that the controller adds is empty.

    Args:
        queue: The queue that has not charged the templates yet.
    """
    ranges, is_never_queued = view.ranges(request.namespace), ignores_queue_label(request, policies, view)
    system = charging_system_of_workload(request, policies, view)
    for written in read_templates(request, policies.workload_kinds):
        if written.error:
            continue
        template = complete_template(written, request.load_object(), view.fleet)
        if is_never_queued:
            labels = {key: text for key, text in template.labels.items() if not key.startswith(KUEUE.prefixes)}
            template = replace(template, labels=labels)
        metadata = template.pod.metadata
        metadata = replace(
            metadata,
            owner_references=(template.owner,),
            labels={**template.labels, **metadata.labels},
            annotations={**template.annotations, **metadata.annotations},
        )
        pod = replace(template.pod, metadata=metadata)
        pod = view.pod_classes.add_to_pod(default_pod(pod, ranges) if ranges else pod)
        queued = queued_pod_set(template, queue)
        if queued is not None:  # pods start later, when the claims have been created
            exists = partial(view.has_claim, request.namespace)
            pod = with_claims_of_all_pods(pod, request.load_object(), template, exists)
        pod_request = replace(
            request,
            operation="CREATE",
            group="",
            kind="Pod",
            name="",
            pod=pod,
            load_object=partial(_admission_data, request, template, view),
            load_old_object=lambda: None,
            unknown_parts=_unknown_parts(template),
            replicas=template.replicas,
            queued=queued,
            charged_by=system,
        )
        yield template, pod_request, pod


def _unknown_parts(template: PodTemplate) -> str:
    """Return what of a template's pods is not known before its controller creates them; "" for nothing."""
    if template.source.unknown_parts:
        return f"the controller of {template.owner.kind} completes them"
    return "" if all(one.image for one in template.pod.spec.containers) else "their image is not in the object"


def existing_replicas(request: AdmissionRequest, policies: PolicySet, fleet: Fleet) -> dict[FieldPath, int]:
    """Return how many pods each template of a changed workload had before: quotas count them already."""
    if request.operation == "CREATE":
        return {}
    data = request.load_old_object()
    before = replace(request, load_object=lambda: data)
    templates = read_templates(before, policies.workload_kinds)
    return {old.path: complete_template(old, data, fleet).replicas for old in templates if not old.error}


def _admission_data(workload: AdmissionRequest, template: PodTemplate, view: ClusterView) -> dict[str, Any]:
    """Return a pod of a template as plain data, with the API server's defaults."""
    owner = {"kind": template.owner.kind, "name": template.owner.name, "controller": True}
    metadata = {**(template.data.get("metadata") or {}), "ownerReferences": [owner]}
    for part, added in (("labels", template.labels), ("annotations", template.annotations)):
        texts = {**added, **(metadata.get(part) or {})}
        metadata |= {part: texts} if texts else {}
    data = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.data["spec"]}
    data = default_pod_data(default_object(data, workload.namespace), view.ranges(workload.namespace))
    return view.pod_classes.add_to_data(data)


class ReplicaReview(NamedTuple):
    """The replicas of a template that are decided about one after another, as quotas count them.

    Attributes:
        decide_one: Decides about the next replica under a view that counts those before.
        view: Counts the replicas before these.
        switches: How often later replicas may still switch to another resource.
    """

    decide_one: Callable[[ClusterView], PodDecision]
    namespace: str
    policies: PolicySet
    view: ClusterView
    replicas: int
    switches: int = MAX_RESOURCE_SWITCHES

    def decide(self) -> ReplicaDecision:
        """Decide about the first replica, and return how many quotas admit like it."""
        decision, mutation = self.decide_one(self.view)
        if not self.view.quotas(self.namespace) and not decision.quota_charge:
            return ReplicaDecision(decision, 0 if decision.denials else self.replicas, (), None)
        ranges = self.view.ranges(self.namespace)
        charge = ReplicaCharge(self.namespace, mutation, ranges, decision.quota_charge, decision.shared_charges)
        decide_after = cache(lambda count: self._review_after(count, charge).decide())
        within = count_within_quotas(self.view, charge, self.replicas)
        partial = [*self._findings_after("GPU-Q301", within, self.replicas, decide_after)]
        within_shared = self._count_within_shared(decision.policies, charge)
        partial += self._findings_after("GPU-Q303", within_shared, self.replicas, decide_after)
        # The API server enforces its own quotas in every mode; a shared quota denies only where its policy is enforced.
        limits = [within, *(count for count, finding in partial if finding.mode is PolicyMode.ENFORCE)]
        admitted = 0 if decision.denials else min(limits)
        # Only admitted pods get claims.
        within_claims = count_within_claims(self.view, charge, admitted)
        partial += self._findings_after("GPU-Q306", within_claims, admitted, decide_after)
        others = self._decide_others(admitted, decide_after)
        return ReplicaDecision(decision, admitted, tuple(partial), charge, others)

    def _decide_others(
        self, admitted: int, decide_after: Callable[[int], ReplicaDecision]
    ) -> tuple[tuple[int, Decision], ...]:
        """Return the decisions about the replicas after the first ones, with the numbers that quotas admit."""
        if not 0 < admitted < self.replicas or not self.switches:
            return ()
        later = decide_after(admitted)
        return ((later.admitted, later.decision), *later.others) if later.admitted else ()

    def _count_within_shared(self, policies: Collection[str], charge: ReplicaCharge) -> int:
        sections = [one.quotas for one in self.policies.policies if one.quotas and one.name in policies]
        return count_within_shared(sections, charge, self.view, self.replicas)

    def _findings_after(
        self, code: str, count: int, most: int, decide_after: Callable[[int], ReplicaDecision]
    ) -> Iterator[tuple[int, Finding]]:
        """Yield the findings by a code about the replicas after the first `count`, each with the number before it.

        Args:
            most: How many there are; after all of them comes none.
            decide_after: Decides about the replicas after some.
        """
        if not 0 < count < most or not self.switches:
            return
        later = decide_after(count)
        # Without a finding, the later replicas get another resource.
        found = [*((0, finding) for finding in later.decision.findings), *later.partial]
        yield from ((count + admitted, finding) for admitted, finding in found if finding.code == code)

    def _review_after(self, count: int, charge: ReplicaCharge) -> ReplicaReview:
        view = charge_replicas(self.view, charge, count)
        return self._replace(view=view, replicas=self.replicas - count, switches=self.switches - 1)


def combine_template_decisions(
    decisions: Sequence[TemplateDecision], own: Iterable[Finding] = (), patch: tuple[PatchOperation, ...] = ()
) -> Decision:
    """Combine the decisions of a workload's templates: findings at their fields, at most as warnings.

    Args:
        own: Findings about the workload itself.
        patch: The change of its templates.
    """
    if not decisions:
        return Decision()
    findings: list[Finding] = [*own]
    exempted: list[ExemptedFinding] = []
    for each in decisions:
        decision = each.decision
        findings += [_move_finding(finding, each, changed=bool(patch)) for finding in decision.findings]
        findings += [_partial_finding(finding, count, each) for count, finding in each.partial]
        exempted += [
            replace(one, finding=_move_finding(one.finding, each, changed=bool(patch))) for one in decision.exempted
        ]
    decided = [one.decision for one in decisions]
    policies = dict.fromkeys(name for one in decided for name in one.policies)
    return Decision(
        findings=tuple(findings),
        exempted=tuple(exempted),
        patch=patch,
        outcome=next((one.outcome for one in decided if one.gpu_milli_before), decided[0].outcome),
        gpu_milli_before=sum(one.decision.gpu_milli_before * one.template.replicas for one in decisions),
        gpu_milli_after=sum(one.milli_after for one in decisions),
        policies=tuple(policies),
        involves_gpus=any(one.involves_gpus for one in decided),
        templates=_list_templates(decisions),
    )


def _list_templates(decisions: Sequence[TemplateDecision]) -> tuple[tuple[str, int, Decision], ...]:
    if len(decisions) < 2:
        return ()
    return tuple((format_path(one.template.path), one.template.replicas, one.decision) for one in decisions)


def _move_finding(finding: Finding, decided: TemplateDecision, *, changed: bool) -> Finding:
    """Return a pod's finding as one of its workload, which is admitted itself.

    Args:
        changed: True if the template itself is changed.
    """
    path, mode = decided.template.field_path(finding.path), min(finding.mode, PolicyMode.WARN)
    message = finding.message
    denied = finding.mode is PolicyMode.ENFORCE
    if denied:
        message = f"its pods will be denied: {message}"
    elif finding.code == "GPU-R101":
        message = f"its template is {message}" if changed else _forecast_of_pods(message, decided)
    elif finding.code == "GPU-R102":
        message = f"its pods {message}"
    return replace(finding, path=path, mode=mode, message=message, denies_pods=denied)


def _forecast_of_pods(message: str, decided: TemplateDecision) -> str:
    """Return what the pods of a template will be right-sized to, if quotas are full for some also what these get."""
    if not decided.others:
        return f"its pods will be {message}"
    first = f"{decided.admitted} of its {decided.created} pods will be {message}; a quota admits no more of these"
    others = [_describe_request(count, decision) for count, decision in decided.others]
    if decided.rejected and len(others) < MAX_RESOURCE_SWITCHES:
        others.append(f"{decided.rejected} will be rejected")
    return f"{first}: of the others, {', '.join(others)}"


def _describe_request(count: int, decision: Decision) -> str:
    outcome = decision.outcome
    return (
        f"{count} will get {outcome.resource}" if isinstance(outcome, OfferChoice) else f"{count} will keep the request"
    )


def _partial_finding(finding: Finding, count: int, decided: TemplateDecision) -> Finding:
    """Return the rejection of a later pod as a finding of its workload."""
    path, mode = decided.template.field_path(finding.path), min(finding.mode, PolicyMode.WARN)
    outcome = "get their claims" if finding.code == "GPU-Q306" else "be admitted"
    message = f"{count} of {decided.created} pods would {outcome}, then: {finding.message}"
    fix = f"Run at most {count} of them at once, wait until other pods end, or ask for a higher quota."
    denied = finding.mode is PolicyMode.ENFORCE
    return replace(finding, path=path, mode=mode, message=message, fix=fix, denies_pods=denied)
