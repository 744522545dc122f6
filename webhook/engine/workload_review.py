"""Warnings for workloads at apply time: the decisions about the pods of each template, replica by replica.

No workload is denied, because its pods are what is admitted. Users learn at `kubectl apply` what will happen to them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from webhook.engine.owned_pods import complete_template, with_claims_of_all_pods
from webhook.engine.pod_context import PodDecision, PodMutation
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
from webhook.model.assumed_pods import NO_PENDING_POD, AssumedPod, pods_with_units
from webhook.model.batch import KUEUE
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision, OfferChoice, PatchOperation, PendingUnits, PendingUse, ReplicaCounts
from webhook.model.defaulting import default_object, default_pod, default_pod_data
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.filters.inter_pod_affinity import PodIdentity
from webhook.model.filters.node_ports import held_ports
from webhook.model.filters.pod_ties import PendingPod, count_pods_apart, pending_pod, self_excluding_keys, ties_of
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod, Toleration
from webhook.policy.policy_set import PolicySet

MAX_RESOURCE_SWITCHES = 8
"""How often the replicas of a template may switch to another resource when the first is full; bounds the recursion."""

QUOTA_CODES = ("GPU-Q301", "GPU-Q303", "GPU-Q306")
"""Findings about later replicas that quotas reject."""


class AlikeReplicas(NamedTuple):
    """Replicas of a template that are decided alike, one after another.

    Attributes:
        pods: How many of them quotas admit.
        is_last: True if nothing is free for a further one with the same decision.
        replica: The charge of each of them; None if nothing counts them.
        pending: What other pods see of each of them, if they exclude each other or have host ports.
    """

    decision: Decision
    pods: int
    is_last: bool = False
    replica: ReplicaCharge | None = None
    pending: PendingPod = NO_PENDING_POD

    def charge(self, view: ClusterView) -> ClusterView:
        """Return the view after they were created."""
        return view if self.replica is None else charge_replicas(view, self.replica, self.pods)

    def assume(self, view: ClusterView) -> ClusterView:
        """Return the view for one evaluation in which they hold their GPUs, CPU and memory."""
        each = AssumedPod("", "", 0, 0, math.inf, times=self.pods, pending=self.pending)
        for pod in pods_with_units(self.decision.pending_use, each) if self.pods else ():
            view = view.with_units_of(pod)
        return view

    def is_like(self, other: Decision) -> bool:
        """Return whether a further replica with another decision would get and hold the same."""
        decision = self.decision
        return (
            other.applied == decision.applied
            and other.gpu_milli_after == decision.gpu_milli_after
            and other.pending_use == decision.pending_use
        )


class ReplicaDecision(NamedTuple):
    """The decisions about the replicas of a template.

    Attributes:
        decision: About the first of them.
        alike: Those that quotas admit, in order; () if the first is denied.
        partial: Findings about the first replica that is rejected after some were admitted, with their number.
    """

    decision: Decision
    alike: tuple[AlikeReplicas, ...] = ()
    partial: tuple[tuple[int, Finding], ...] = ()

    @property
    def admitted(self) -> int:
        """The number of them that quotas admit."""
        return sum(each.pods for each in self.alike)

    def charge(self, view: ClusterView) -> ClusterView:
        """Return the view after the admitted ones were created."""
        for each in self.alike:
            view = each.charge(view)
        return view

    def assume(self, view: ClusterView) -> ClusterView:
        """Return the view for one evaluation in which the admitted ones hold their GPUs, CPU and memory."""
        for each in self.alike:
            view = each.assume(view)
        return view


class TemplateDecision(msgspec.Struct, frozen=True):
    """One template, and the decisions about its pods.

    Attributes:
        created: How many of its pods are created.
    """

    template: PodTemplate
    replicas: ReplicaDecision
    created: int = 1

    @property
    def decision(self) -> Decision:
        """The decision about the first pod."""
        return self.replicas.decision

    @property
    def undecided(self) -> int:
        """The number of its pods after `MAX_RESOURCE_SWITCHES`: they count as if they kept their request."""
        left = self.created - self.replicas.admitted
        return left if len(self.replicas.alike) > MAX_RESOURCE_SWITCHES else 0

    @property
    def rejected(self) -> int:
        """The number of its pods that policies or quotas reject."""
        return self.created - self.replicas.admitted - self.undecided

    @property
    def milli_after(self) -> int:
        """The thousandths of GPUs of all its pods; those that are rejected, or not decided, keep theirs."""
        if self.decision.denials:
            return self.decision.gpu_milli_before * self.template.replicas
        existing = self.template.replicas - self.created
        decided = ((existing, self.decision), *((each.pods, each.decision) for each in self.replicas.alike))
        unchanged = self.rejected + self.undecided
        return sum(n * each.gpu_milli_after for n, each in decided) + unchanged * self.decision.gpu_milli_before

    @property
    def counts(self) -> ReplicaCounts:
        """The numbers of its pods, by what they get."""
        admitted, alike = self.replicas.admitted, self.replicas.alike
        right_sized = sum(each.pods for each in alike if each.decision.applied)
        return ReplicaCounts(right_sized, admitted - right_sized + self.undecided, self.rejected)


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
    """The replicas of a template that are decided about one after another: each uses up quotas and what is free.

    Attributes:
        decide_one: Decides about the next replica under a view that counts those before.
        request: The request for one of them. If a queue starts them together, one decision is about all of them.
        pod: One of them.
        view: Counts the replicas before these.
        switches: How often later replicas may still switch to another resource.
    """

    decide_one: Callable[[ClusterView], PodDecision]
    request: AdmissionRequest
    pod: Pod
    policies: PolicySet
    view: ClusterView
    replicas: int
    switches: int = MAX_RESOURCE_SWITCHES

    def decide(self) -> ReplicaDecision:
        """Decide about the first replica, count those that are decided like it, and decide about the others."""
        first, free = self._decide_first()
        decision, charge = first.decision, first.replica
        decide_after = cache(lambda count: self._review_after(first._replace(pods=count)).decide())
        within, within_shared = self._count_within(decision, charge)
        available = self._count_available(first, free, within)
        partial = [*self._findings_after("GPU-Q301", min(within, available), self.replicas, decide_after)]
        partial += self._findings_after("GPU-Q303", min(within_shared, available), self.replicas, decide_after)
        # The API server enforces its own quotas in every mode; a shared quota denies only where its policy is enforced.
        limits = [within, available, *(count for count, finding in partial if finding.mode is PolicyMode.ENFORCE)]
        admitted = 0 if decision.denials else min(limits)
        is_last = admitted == available < within
        # Only admitted pods get claims.
        within_claims = admitted if charge is None else count_within_claims(self.view, charge, admitted)
        most = self.replicas if is_last else admitted
        partial += self._findings_after("GPU-Q306", within_claims, most, decide_after)
        partial += self._findings_after("", admitted, most, decide_after)
        alike = first._replace(pods=admitted, is_last=is_last)
        others = decide_after(admitted).alike if 0 < admitted < self.replicas and self.switches else ()
        return ReplicaDecision(decision, (alike, *others) if admitted else (), tuple(partial))

    def _decide_first(self) -> tuple[AlikeReplicas, int]:
        """Decide about the first replica, as if all were decided like it, and count the free slots of its slices."""
        decision, mutation = self.decide_one(self.view)
        exclude = held_ports(self.pod) or self._excluding_keys()
        pending = pending_pod(self.pod, self.request.namespace) if exclude else NO_PENDING_POD
        charge = self._charge_of(decision, mutation)
        first = AlikeReplicas(decision, self.replicas, replica=charge, pending=pending)
        return first, self._count_slots(decision, mutation.tolerations)

    def _may_run_out(self, decision: Decision) -> bool:
        """Return whether later replicas may get something else because what this decision gives is taken.

        Devices of a class are not counted: each decision looks at the devices of as many nodes as are taken.
        """
        counted, units = self.view.fleet.resources(), decision.pending_use.units
        is_alone = self.request.queued is None and not decision.denials
        return decision.applied and is_alone and bool(units) and all(each.resource in counted for each in units)

    def _charge_of(self, decision: Decision, mutation: PodMutation) -> ReplicaCharge | None:
        namespace = self.request.namespace
        if not self.view.quotas(namespace) and not decision.quota_charge:
            return None
        ranges = self.view.ranges(namespace)
        return ReplicaCharge(namespace, mutation, ranges, decision.quota_charge, decision.shared_charges)

    def _count_within(self, decision: Decision, charge: ReplicaCharge | None) -> tuple[int, int]:
        """Return how many replicas the ResourceQuotas admit, and how many the shared quotas."""
        if charge is None:
            return self.replicas, self.replicas
        sections = [one.quotas for one in self.policies.policies if one.quotas and one.name in decision.policies]
        within_shared = count_within_shared(sections, charge, self.view, self.replicas)
        return count_within_quotas(self.view, charge, self.replicas), within_shared

    def _count_slots(self, decision: Decision, added: Sequence[Toleration]) -> int:
        """Return for how many replicas the slices of the first are free, up to what shows that there are enough.

        Args:
            added: Tolerations that policies add.
        """
        fleet, use, slots = self.view.fleet, decision.pending_use, self.replicas + self.view.unseen_pods
        if not self._may_run_out(decision):
            return slots
        tolerations = (*self.pod.spec.tolerations, *added)
        allowed = fleet.tolerated_nodes(tolerations) & fleet.schedulable_nodes(tolerations)
        if isinstance(decision.outcome, OfferChoice):
            allowed &= decision.outcome.selected
        for units in use.units:
            slots = self._count_slots_on(units._replace(nodes=units.nodes & allowed), use, slots)
        return slots

    def _count_slots_on(self, units: PendingUnits, use: PendingUse, most: int) -> int:
        """Return for how many replicas units of one resource are free on some nodes, with what comes with them."""
        resource, nodes, number = units
        amounts, one_on_node = (use.cpu_milli, use.memory, use.others), bool(held_ports(self.pod))

        def count_on(mask: int) -> int:
            return self.view.count_free_slots(resource, mask, *amounts, most, one_on_node=one_on_node, units=number)

        fitting = self.view.find_free_nodes(resource, nodes, 1, *amounts, number)
        return count_pods_apart(self._excluding_keys(), fitting, count_on, self.view.fleet)

    def _excluding_keys(self) -> tuple[str, ...]:
        """Return the topology keys by which the replicas exclude each other."""
        affinity, namespace = self.pod.spec.affinity, self.request.namespace
        if affinity is None or affinity.pod_anti_affinity is None:
            return ()
        ties = ties_of(self.pod, PodIdentity(namespace, self.pod.metadata.labels))
        return self_excluding_keys(ties, self.view.labels_of(namespace))

    def _count_available(self, first: AlikeReplicas, slots: int, most: int) -> int:
        """Return how many of the replicas get the same as the first, as long as each holds what it gets.

        More and more is taken, so a search finds the number, which usually is that of the free slots. It is not made
        if there are enough, nor for replicas that exclude each other: each counts as one that takes units, and as one
        that excludes another.

        Args:
            slots: The number of free slots.
            most: How many there are.
        """
        free = slots - self.view.unseen_pods
        if free >= most:
            return most
        if first.pending is not NO_PENDING_POD:
            return min(most, max(1, slots))
        same, other = 0, most  # the next gets the same after so many, and not after so many
        guesses = iter((free - 1, free, most - 1))
        while other - same > 1:
            count = next(guesses, min(2 * same + 1, (same + other) // 2))
            if same < count < other:
                view = first._replace(pods=count).assume(self.view)
                is_same = first.is_like(self.decide_one(view).decision)
                same, other = (count, other) if is_same else (same, count)
        return other

    def _findings_after(
        self, code: str, count: int, most: int, decide_after: Callable[[int], ReplicaDecision]
    ) -> Iterator[tuple[int, Finding]]:
        """Yield the findings by a code about the replicas after the first `count`, each with the number before it.

        Args:
            code: One of `QUOTA_CODES`, or "" for denials by any other.
            most: How many there are; after all of them comes none.
            decide_after: Decides about the replicas after some.
        """
        if not 0 < count < most or not self.switches:
            return
        later = decide_after(count)
        # Without a finding, the later replicas get another resource.
        for admitted, finding in [*((0, finding) for finding in later.decision.findings), *later.partial]:
            is_other_denial = finding.mode is PolicyMode.ENFORCE and finding.code not in QUOTA_CODES
            if finding.code == code or (not code and is_other_denial):
                yield count + admitted, finding

    def _review_after(self, before: AlikeReplicas) -> ReplicaReview:
        view = before.assume(before.charge(self.view))
        return self._replace(view=view, replicas=self.replicas - before.pods, switches=self.switches - 1)


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
        findings += [_partial_finding(finding, count, each) for count, finding in each.replicas.partial]
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
        pods=_sum_replica_counts(decisions),
    )


def _sum_replica_counts(decisions: Sequence[TemplateDecision]) -> ReplicaCounts | None:
    """Return how many pods of all templates with GPUs get what; None if no template has any."""
    counts = [each.counts for each in decisions if each.decision.gpu_milli_before]
    return ReplicaCounts(*map(sum, zip(*counts, strict=True))) if counts else None


def _list_templates(decisions: Sequence[TemplateDecision]) -> tuple[tuple[str, int, Decision], ...]:
    if len(decisions) < 2:
        return ()
    return tuple(
        (
            format_path(one.template.path),
            one.template.replicas,
            replace(one.decision, pods=_sum_replica_counts((one,))),
        )
        for one in decisions
    )


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
    """Return what the pods of a template will be right-sized to, and what others get if not all can get that."""
    alike, created = decided.replicas.alike, decided.created
    counts: Counter[str] = Counter()
    for each in alike:
        counts[_outcome_of_pods(each.decision)] += each.pods
    if decided.undecided:
        counts["keep the request"] += decided.undecided
    counts["be rejected"] = decided.rejected
    (_, first), *rest = counts.items()
    others = [f"{count} will {outcome}" for outcome, count in rest if count]
    if not others:
        return f"its pods will be {message}"
    pods = "new pods" if created < decided.template.replicas else "pods"
    why = "no more of these are free" if alike[0].is_last else "a quota admits no more of these"
    return f"{first} of its {created} {pods} will be {message}; {why}: of the others, {', '.join(others)}"


def _outcome_of_pods(decision: Decision) -> str:
    outcome = decision.outcome
    return f"get {outcome.resource}" if isinstance(outcome, OfferChoice) else "keep the request"


def _partial_finding(finding: Finding, count: int, decided: TemplateDecision) -> Finding:
    """Return the rejection of a later pod as a finding of its workload."""
    path, mode = decided.template.field_path(finding.path), min(finding.mode, PolicyMode.WARN)
    outcome = "get their claims" if finding.code == "GPU-Q306" else "be admitted"
    message = f"{count} of {decided.created} pods would {outcome}, then: {finding.message}"
    fix = f"Run at most {count} of them at once, wait until other pods end, or ask for a higher quota."
    fix = fix if finding.code in QUOTA_CODES else finding.fix
    denied = finding.mode is PolicyMode.ENFORCE
    return replace(finding, path=path, mode=mode, message=message, fix=fix, denies_pods=denied)
