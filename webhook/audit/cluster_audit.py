"""Audits all pods of a live cluster or of a snapshot, and keeps the results small.

Reports of an audit never show whole objects, and pods of one workload have equal results. So results are stored without
their object, and equal values are stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from sys import intern
from typing import TYPE_CHECKING, Any

import msgspec

from webhook.audit.adjusted_view import with_namespace_labels
from webhook.audit.disruption_budgets import drain_limits
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.pod_audit import audit_pods, created_since, creation_time, is_active_pod
from webhook.audit.sequential_reach import SequentialReach
from webhook.cache.placement_input import GpuPods, PodMixCounter, build_placement_input, build_scheduling_snapshot
from webhook.cache.snapshot import ClusterSnapshot
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.findings import Finding
from webhook.model.fleet import Fleet
from webhook.model.gpu_node import GPUNode
from webhook.model.pods import Pod
from webhook.model.prices import NodePrices
from webhook.model.usage import UsageView
from webhook.placement.devices import reported_nvlinks
from webhook.placement.node_layouts import DrainLimit
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.policy.policy_set import PolicySet
from webhook.report.capacity import NodeCapacity, node_capacities
from webhook.report.policy_reports import ReportApi
from webhook.report.results import CheckResult, ClusterPodDetails

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader

MAX_INTERNED = 100_000
"""Distinct values to remember; later ones are stored once per result."""

MAX_RECENT = 5_000
"""Decisions that are recognized as the same object: enough for equal pods in any order, and about 2 MiB."""

NO_OBJECT: Mapping[str, Any] = {}
"""What results share instead of their objects."""

Documents = Iterable[SourceObject | SkippedDocument]
ChooseDocuments = Callable[[Documents], Documents]
"""Returns the documents to evaluate."""

AdjustView = Callable[[EvaluationContext], ClusterView]
"""Returns the cluster that pods are evaluated in, from the policies and the cluster that they are in."""

ShowProgress = Callable[[Documents, int], AbstractContextManager[Documents]]
"""Wraps an iterable of known length to show progress."""


class ClusterAudit(msgspec.Struct):
    """The result of an audit.

    Attributes:
        results: One for each pod, and for each file that cannot be read.
        context: The policies, cluster and time of the evaluation.
        capacities: Each node with GPUs; empty if unknown, or if pods are evaluated in an adjusted cluster.
        undated_pods: Pods without a creation time, which `since` cannot exclude.
        cluster: The audited cluster: a URL, or the names of files.
        prices: Prices of the GPUs; None if no cost is shown.
        drain_limits: What PodDisruptionBudgets say about the drain of nodes, if pods are evaluated in an adjusted
            cluster; None if the cluster does not permit listing them.
        nvlinks: NVLinks between two GPUs of the nodes whose agents report them, if pods are evaluated in an adjusted
            cluster.
        snapshot: The nodes and their GPUs; None if no nodes are known, or if pods are evaluated in an adjusted cluster.
        gpu_pods: The pods that hold them.
        report_apis: The APIs that the cluster has for policy reports, the preferred one first.
    """

    results: list[CheckResult]
    context: EvaluationContext
    capacities: list[NodeCapacity] = []
    undated_pods: int = 0
    cluster: str = ""
    prices: NodePrices | None = None
    drain_limits: Mapping[str, DrainLimit] | None = {}
    nvlinks: Mapping[str, int] = {}
    snapshot: SchedulingSnapshot | None = None
    gpu_pods: GpuPods = msgspec.field(default_factory=GpuPods)
    report_apis: Sequence[ReportApi] = (ReportApi.OPENREPORTS,)


def audit_live_cluster(
    cluster: ClusterReader,
    policies: PolicySet,
    labels: Mapping[str, str],
    now: datetime,
    usage: UsageView,
    since: datetime | None,
    show_progress: ShowProgress,
    adjust_view: AdjustView | None = None,
    choose: ChooseDocuments = iter,
) -> ClusterAudit:
    """Evaluate all active pods of a live cluster, listed page by page."""
    observed = _ObservedPods()
    view = with_namespace_labels(cluster.view(observed.observe), labels)
    context = EvaluationContext(policies, view, now, usage)
    budgets = cluster.disruption_budgets() if adjust_view is not None else []
    read = budgets or []
    pods = _keep_read(cluster.pods(), read) if read else cluster.pods()
    audit = audit_documents(choose(pods), cluster.active_pods, context, since, show_progress, adjust_view)
    audit.drain_limits = drain_limits(read) if budgets is not None else None
    reports = cluster.gpu_nodes()
    audit.nvlinks = _nvlinks_by_node(reports) if adjust_view is not None else {}
    if view.fleet.nodes:
        audit.snapshot = build_scheduling_snapshot(view.fleet, cluster.free_by_node, reports, observed.gpu_pods)
        audit.gpu_pods = observed.gpu_pods
        audit.capacities = node_capacities(audit.snapshot, observed.counter.mix(), view.devices)
    audit.cluster = cluster.server
    return audit


class _ObservedPods:
    """Counts the GPUs of listed pods for placement, and does not keep the pods."""

    def __init__(self) -> None:
        self.gpu_pods = GpuPods()
        self.counter: PodMixCounter

    def observe(self, fleet: Fleet) -> Callable[[Pod], None]:
        """Return what is called with each pod."""
        self.counter = PodMixCounter(SchedulingSnapshot(fleet, {}))
        return self._add

    def _add(self, pod: Pod) -> None:
        self.counter.add(pod)
        self.gpu_pods.add(pod)


def _nvlinks_by_node(reports: Iterable[GPUNode]) -> dict[str, int]:
    found = ((each.metadata.name, reported_nvlinks(each)) for each in reports)
    return {name: links for name, links in found if links is not None}


def _keep_read(documents: Iterable[SourceObject], read: list[SourceObject]) -> Iterator[SourceObject]:
    """Yield documents, and add each to a list: they are read from the cluster once."""
    for each in documents:
        read.append(each)
        yield each


def audit_snapshot(
    pods: Collection[SourceObject | SkippedDocument],
    snapshot: ClusterSnapshot,
    context: EvaluationContext,
    since: datetime | None,
    show_progress: ShowProgress,
    adjust_view: AdjustView | None = None,
    choose: ChooseDocuments = iter,
) -> ClusterAudit:
    """Evaluate the active pods among the documents of a snapshot."""
    audit = audit_documents(choose(pods), len(pods), context, since, show_progress, adjust_view)
    if adjust_view is not None:
        audit.nvlinks = _nvlinks_by_node(each for each in snapshot.objects if isinstance(each, GPUNode))
        return audit
    placement = build_placement_input(snapshot.view.fleet, snapshot.objects, snapshot.view.devices)
    if placement.snapshot.fleet.nodes:
        audit.snapshot = placement.snapshot
        for pod in placement.pods:
            audit.gpu_pods.add(pod)
        audit.capacities = node_capacities(placement.snapshot, placement.mix, placement.devices)
    return audit


def audit_documents(
    documents: Documents,
    length: int,
    context: EvaluationContext,
    since: datetime | None,
    show_progress: ShowProgress,
    adjust_view: AdjustView | None = None,
) -> ClusterAudit:
    """Evaluate the active pods among some documents, except those created before `since`.

    In an adjusted cluster, equal pods are evaluated once, and their reach is that of each alone.
    """
    evaluated = msgspec.structs.replace(context, view=adjust_view(context)) if adjust_view else context
    intern_result, undated = ResultInterner(), list[SourceObject]()
    selected = created_since(documents if since is None else _collect_undated_pods(documents, undated), since)
    with show_progress(selected, length) as shown:
        if adjust_view is None:
            reach = SequentialReach(evaluated)
            results = reach.decide_kept([intern_result(reach.add(result)) for result in audit_pods(shown, evaluated)])
        else:
            results = [intern_result(result) for result in audit_pods(shown, evaluated, equal_once=True)]
    return ClusterAudit(results, context, undated_pods=len(undated))


def _collect_undated_pods(
    documents: Documents, undated: list[SourceObject]
) -> Iterator[SourceObject | SkippedDocument]:
    for each in documents:
        if isinstance(each, SourceObject) and is_active_pod(each.data) and creation_time(each.data) is None:
            undated.append(each)
        yield each


class ResultInterner:
    """Makes results share equal values, and drops their objects."""

    def __init__(self) -> None:
        self._findings: dict[Finding, Finding] = {}
        self._pod_details: dict[ClusterPodDetails, ClusterPodDetails] = {}
        self._decisions: dict[bytes, Decision] = {}
        self._recent: dict[int, tuple[Decision, Decision]] = {}

    def __call__(self, result: CheckResult) -> CheckResult:
        """Return the result without its object, sharing values with earlier results."""
        details = result.pod_details
        return msgspec.structs.replace(
            result,
            namespace=intern(result.namespace),
            node=intern(result.node) if result.node is not None else None,
            stored=NO_OBJECT,
            findings=tuple(
                msgspec.structs.replace(each, finding=_intern_value(self._findings, each.finding, each.finding))
                for each in result.findings
            ),
            decision=self._intern_decision(result.decision),
            pod_details=_intern_value(self._pod_details, details, details) if details is not None else None,
        )

    def _intern_decision(self, decision: Decision) -> Decision:
        """Return an equal decision. Equal pods have the same object, so that few are compared by what they contain."""
        if id(decision) not in self._recent:
            if len(self._recent) >= MAX_RECENT:
                self._recent.clear()
            self._recent[id(decision)] = (decision, self._intern_new_decision(decision))
        return self._recent[id(decision)][1]

    def _intern_new_decision(self, decision: Decision) -> Decision:
        findings = tuple(_intern_value(self._findings, each, each) for each in decision.findings)
        key = msgspec.json.encode(decision)
        shared: Decision = _intern_value(self._decisions, key, msgspec.structs.replace(decision, findings=findings))
        return shared


def _intern_value(known: dict[Any, Any], key: Any, value: Any) -> Any:
    """Return the first value with this key."""
    if len(known) >= MAX_INTERNED:
        return known.get(key, value)
    return known.setdefault(key, value)
