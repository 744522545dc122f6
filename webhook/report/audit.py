"""The result of `audit`: what every pod would become if it were created now, added up by namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from webhook.model.prices import NodePrices
from webhook.report.check import Json, check_parts
from webhook.report.costs import prices_document
from webhook.report.results import CheckResult, CheckVerdict, summarize_results
from webhook.report.text import Paint, TextStyle, align_columns, format_gpus, pluralize, sanitize, without_style
from webhook.report.utilization import ClusterUtilization, utilization_document
from webhook.report.workload_report import workload_document
from webhook.report.workloads import WorkloadReport

HEAD = ("NAMESPACE", "PODS", "GPUS", "AFTER", "SAVED", "ON TRIAL", "DENIED", "WARNED")


class NamespaceTotals(msgspec.Struct, frozen=True):
    """What the pods of one namespace come to. GPUs are thousandths.

    Attributes:
        gpu_milli_on_trial: What right-sizings on trial would free beside, were they enforced.
        trials: Pods that they would make smaller.
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
        """Thousandths of a GPU that would be free."""
        return self.gpu_milli_before - self.gpu_milli_after


def totals_by_namespace(results: Iterable[CheckResult]) -> list[NamespaceTotals]:
    """Add up by namespace: the one that would save most first, trials included, then by name."""
    spaces: dict[str, list[CheckResult]] = {}
    for result in results:
        if result.verdict is not CheckVerdict.SKIPPED:
            spaces.setdefault(result.namespace, []).append(result)
    return sorted((_namespace_totals(name, members) for name, members in spaces.items()), key=_savings_rank)


def _savings_rank(share: NamespaceTotals) -> tuple[int, int, str]:
    return -share.gpu_milli_saved - share.gpu_milli_audit_saved, -share.gpu_milli_saved, share.namespace


def _namespace_totals(namespace: str, members: list[CheckResult]) -> NamespaceTotals:
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


def sum_namespaces(every: Iterable[NamespaceTotals]) -> NamespaceTotals:
    """All namespaces together, under the name "*"."""
    rows = list(every)
    return NamespaceTotals(
        namespace="*",
        pods=sum(row.pods for row in rows),
        gpu_milli_before=sum(row.gpu_milli_before for row in rows),
        gpu_milli_after=sum(row.gpu_milli_after for row in rows),
        gpu_milli_audit_saved=sum(row.gpu_milli_audit_saved for row in rows),
        audit_pods=sum(row.audit_pods for row in rows),
        denied=sum(row.denied for row in rows),
        warned=sum(row.warned for row in rows),
    )


def namespace_table(results: Iterable[CheckResult], paint: Paint = without_style) -> Iterator[str]:
    """The table: the total first, then a row a namespace."""
    every = totals_by_namespace(results)
    head, *rows = align_columns([HEAD, *map(_namespace_row, [sum_namespaces(every), *every])])
    yield paint(head, TextStyle.STRONG)
    yield from rows


def _namespace_row(share: NamespaceTotals) -> tuple[str, ...]:
    milli = (share.gpu_milli_before, share.gpu_milli_after, share.gpu_milli_saved, share.gpu_milli_audit_saved)
    return (
        sanitize(share.namespace),
        str(share.pods),
        *map(format_gpus, milli),
        str(share.denied),
        str(share.warned),
    )


def audit_summary(results: Iterable[CheckResult]) -> str:
    """The totals in one sentence."""
    every = sum_namespaces(totals_by_namespace(results))
    return (
        f"{pluralize(every.pods, 'pod')}: GPUs asked {format_gpus(every.gpu_milli_before)}, "
        f"after {format_gpus(every.gpu_milli_after)}, "
        f"saved {format_gpus(every.gpu_milli_saved)}; {every.denied} would be denied, {every.warned} warned."
    )


def audit_mode_summary(results: Iterable[CheckResult]) -> str:
    """What right-sizings on trial would save, and which findings name the pods; "" where there are none."""
    every = sum_namespaces(totals_by_namespace(results))
    if not every.audit_pods:
        return ""
    pods = pluralize(every.audit_pods, "pod")
    return (
        f"With every right-sizing on trial enforced: saved {format_gpus(every.gpu_milli_audit_saved)} more, on {pods}; "
        "GPU-R102 names each, -v shows every one."
    )


def audit_document(
    results: Iterable[CheckResult],
    rows: Iterable[WorkloadReport] = (),
    figures: ClusterUtilization | None = None,
    prices: NodePrices | None = None,
) -> Json:
    """The same as plain data: what `check` writes, and the namespaces, the workloads, and the head figures."""
    return {
        name: list(part) if isinstance(part, Iterator) else part
        for name, part in audit_parts(list(results), rows, figures, prices).items()
    }


def audit_parts(
    results: Sequence[CheckResult],
    rows: Iterable[WorkloadReport],
    figures: ClusterUtilization | None,
    prices: NodePrices | None = None,
) -> Json:
    """The same, with iterators of the objects and the workloads: there may be a hundred thousand.

    Where there are no head figures, the prices that the workloads' money comes from stand by themselves.
    """
    alone = {"prices": prices_document(prices, ())} if prices is not None and figures is None else {}
    return check_parts(results) | {
        "namespaces": [_namespace_document(share) for share in totals_by_namespace(results)],
        "workloads": (workload_document(row) for row in rows if row.touches_gpus),
        **({"figures": utilization_document(figures)} if figures is not None else {}),
        **alone,
    }


def _namespace_document(share: NamespaceTotals) -> dict[str, Any]:
    return {
        "namespace": share.namespace,
        "pods": share.pods,
        "gpuMilliBefore": share.gpu_milli_before,
        "gpuMilliAfter": share.gpu_milli_after,
        "gpuMilliSaved": share.gpu_milli_saved,
        "gpuMilliTrialSaved": share.gpu_milli_audit_saved,
        "denied": share.denied,
        "warned": share.warned,
    }
