"""The result of `audit`: every pod re-evaluated against the current policies, summed up by namespace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from webhook.model.prices import NodePrices
from webhook.report.capacity import NodeCapacity
from webhook.report.check import check_document, finding_document
from webhook.report.costs import prices_document
from webhook.report.reach import ReachReport, reach_document
from webhook.report.results import CheckResult, CheckVerdict, summarize_results
from webhook.report.tables import Column, Table, gpu_column
from webhook.report.text import format_gpus, format_gpus_with_unit, pluralize
from webhook.report.utilization import ClusterUtilization, utilization_document
from webhook.report.workload_report import WORKLOADS
from webhook.report.workloads import WorkloadReport
from webhook.well_known import Json


class NamespaceTotals(msgspec.Struct, frozen=True):
    """Totals of the pods of one namespace. GPUs are thousandths.

    Attributes:
        gpu_milli_audit_saved: What right-sizing in audit or warn mode would save in addition if it were enforced.
        audit_pods: Pods that it would right-size.
    """

    namespace: str
    pods: int
    gpu_milli_before: int
    gpu_milli_after: int
    gpu_milli_audit_saved: int
    audit_pods: int
    denied: int
    warned: int

    @property
    def gpu_milli_saved(self) -> int:
        """Thousandths of a GPU that would be freed."""
        return self.gpu_milli_before - self.gpu_milli_after


class ExemptionUsage(msgspec.Struct, frozen=True):
    """An exemption, and the number of workloads that use it."""

    name: str
    policy: str
    codes: tuple[str, ...]
    reason: str
    expires: str
    expired: bool
    workloads: int


class AdmissionSavings(NamedTuple):
    """Pods that right-sizing changed when they were created. GPUs are thousandths.

    Attributes:
        before: What they requested.
        after: What they request since.
    """

    pods: int
    before: int
    after: int

    @property
    def saved(self) -> int:
        """Thousandths of a GPU that right-sizing saved."""
        return self.before - self.after


class AuditPage(msgspec.Struct, frozen=True):
    """Content of the HTML report.

    Attributes:
        cluster: The audited cluster: an address or a file.
        moment: Time of the audit, for people.
        selected: Which pods are included, such as "in namespace research"; "" for all.
        workloads: Those that have to do with GPUs, most savings first.
        nodes: Every node with GPUs.
        utilization: None if no nodes are known, as is `reach`.
        admission: What right-sizing saved when pods were created.
    """

    cluster: str
    moment: str
    selected: str
    policies: tuple[str, ...]
    digest: str
    workloads: tuple[WorkloadReport, ...]
    namespaces: tuple[NamespaceTotals, ...]
    nodes: tuple[NodeCapacity, ...]
    utilization: ClusterUtilization | None
    reach: ReachReport | None
    admission: AdmissionSavings
    exemptions: tuple[ExemptionUsage, ...]
    version: str


NAMESPACES = Table[NamespaceTotals](
    (
        Column("namespace", lambda row: row.namespace, "Namespace"),
        Column("pods", lambda row: row.pods, "Pods", numeric=True),
        gpu_column("gpuMilliBefore", lambda row: row.gpu_milli_before, "GPUs"),
        gpu_column("gpuMilliAfter", lambda row: row.gpu_milli_after, "After"),
        gpu_column("gpuMilliSaved", lambda row: row.gpu_milli_saved, "Saved"),
        gpu_column("gpuMilliAuditSaved", lambda row: row.gpu_milli_audit_saved, "Audit-saved"),
        Column("denied", lambda row: row.denied, "Denied", numeric=True),
        Column("warned", lambda row: row.warned, "Warned", numeric=True),
    )
)


def totals_by_namespace(results: Iterable[CheckResult]) -> list[NamespaceTotals]:
    """Sum up by namespace, most savings first (audit-mode savings included), then by name."""
    groups: dict[str, list[CheckResult]] = {}
    for result in results:
        if result.verdict is not CheckVerdict.SKIPPED:
            groups.setdefault(result.namespace, []).append(result)
    totals = [_namespace_totals(name, members) for name, members in groups.items()]
    return sorted(
        totals, key=lambda row: (-row.gpu_milli_saved - row.gpu_milli_audit_saved, -row.gpu_milli_saved, row.namespace)
    )


def _namespace_totals(namespace: str, members: Sequence[CheckResult]) -> NamespaceTotals:
    summary = summarize_results(members)
    return NamespaceTotals(
        namespace=namespace,
        pods=len(members),
        gpu_milli_before=summary.gpu_milli_before,
        gpu_milli_after=summary.gpu_milli_after,
        gpu_milli_audit_saved=sum(member.gpu_milli_audit_saved for member in members),
        audit_pods=sum(member.gpu_milli_audit_saved > 0 for member in members),
        denied=summary.counts[CheckVerdict.DENIED],
        warned=summary.counts[CheckVerdict.WARNED],
    )


def sum_all_namespaces(results: Iterable[CheckResult]) -> NamespaceTotals:
    """Sum up all namespaces, under the name "*"."""
    return _namespace_totals("*", [result for result in results if result.verdict is not CheckVerdict.SKIPPED])


def audit_summary(results: Iterable[CheckResult]) -> str:
    """Return the totals in one sentence."""
    total = sum_all_namespaces(results)
    return (
        f"{pluralize(total.pods, 'pod')}: GPUs requested {format_gpus(total.gpu_milli_before)}, "
        f"after {format_gpus(total.gpu_milli_after)}, saved {format_gpus(total.gpu_milli_saved)}; "
        f"{total.denied} would be denied, {total.warned} warned."
    )


def admission_savings(results: Iterable[CheckResult]) -> AdmissionSavings:
    """Sum up what right-sizing saved when pods were created."""
    found = [
        (each.pod_details.saved_milli, each.decision.gpu_milli_before)
        for each in results
        if each.pod_details is not None and each.pod_details.saved_milli
    ]
    after = sum(held for _, held in found)
    return AdmissionSavings(len(found), after + sum(saved for saved, _ in found), after)


def admission_summary(results: Iterable[CheckResult]) -> str:
    """Return what right-sizing saved when pods were created; "" if there is nothing."""
    found = admission_savings(results)
    if not found.pods:
        return ""
    return (
        f"{pluralize(found.pods, 'pod was', 'pods were')} right-sized at admission: GPUs requested "
        f"{format_gpus(found.before)}, now {format_gpus(found.after)}, saved {format_gpus(found.saved)}."
    )


def audit_mode_summary(results: Iterable[CheckResult]) -> str:
    """Return what right-sizing in audit mode would save if enforced; "" if there is nothing."""
    total = sum_all_namespaces(results)
    if not total.audit_pods:
        return ""
    return (
        f"If every policy enforced right-sizing, {pluralize(total.audit_pods, 'more pod')} would save "
        f"{format_gpus_with_unit(total.gpu_milli_audit_saved)} (GPU-R102; -v lists them)."
    )


def _admission_document(results: Iterable[CheckResult]) -> Json:
    found = admission_savings(results)
    before, after = found.before, found.after
    return {"pods": found.pods, "gpuMilliBefore": before, "gpuMilliAfter": after, "gpuMilliSaved": found.saved}


def claim_document(result: CheckResult) -> Json:
    """Return a claim or template of claims with its findings."""
    about = {"kind": result.kind, "namespace": result.namespace, "name": result.name}
    return about | {"findings": list(map(finding_document, result.findings))}


def audit_document(
    results: Sequence[CheckResult],
    rows: Iterable[WorkloadReport] = (),
    figures: ClusterUtilization | None = None,
    prices: NodePrices | None = None,
    policies: Sequence[str] = (),
    reach: ReachReport | None = None,
    claims: Sequence[CheckResult] = (),
) -> Json:
    """Return what `check` returns, with namespaces, workloads (as an iterator), claims and utilization.

    The prices are part of the utilization; without it they are a part of their own.
    """
    document = check_document(results, policies) | {
        "namespaces": list(map(NAMESPACES.to_document, totals_by_namespace(results))),
        "workloads": (WORKLOADS.to_document(row) for row in rows if row.touches_gpus),
        "claims": list(map(claim_document, claims)),
        "rightSizedAtAdmission": _admission_document(results),
    }
    if reach is not None:
        document["reach"] = reach_document(reach)
    if figures is not None:
        document["utilization"] = utilization_document(figures)
    elif prices is not None:
        document["prices"] = prices_document(prices, ())
    return document
