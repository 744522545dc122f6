"""An audited cluster for tests of reports: workloads of every kind, prices, and exemptions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from webhook.errors import SourceLocation
from webhook.model.decisions import Decision, GpuNeed, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import EvidenceSource, GpuForm, IsolationLevel, PolicyMode
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.offers import GpuOffer
from webhook.model.prices import NodePrices
from webhook.report.audit import AdmissionSavings, AuditPage, ExemptionUsage, totals_by_namespace
from webhook.report.capacity import NodeCapacity
from webhook.report.reach import KeptPods, PartitioningAdvice, ReachReport
from webhook.report.results import (
    CheckResult,
    ClusterPodDetails,
    ContainerUsage,
    LocatedFinding,
    UnevaluatedReason,
    decision_verdict,
)
from webhook.report.utilization import compute_utilization
from webhook.report.workloads import WorkloadReport, workload_reports

NOW = datetime(2026, 6, 1, tzinfo=UTC)
PRICES = NodePrices(
    "USD",
    {"n1": 4_000_000, "n2": 1_000_000},
    "a list of ours (2026-06-01, USD per card-hour)",
    by_product={"H100": 4_000_000},
)
NODES = (
    NodeCapacity("n1", "H100-80GB-HBM3", 8, 6000, 2000, 2, (), 500),
    NodeCapacity("n2", "L40S", 4, 3000, 1000, 1, (), 250),
    NodeCapacity("n3", "B300", 2, 1000, 1000, 1, (), 0),
)
SLICE = GpuOffer(
    *("nvidia.com/mig-1g.10gb", GpuForm.MIG, "H100", "1g.10gb", 9728, 143, 143, IsolationLevel.HARDWARE, 1),
    *((), (), 1, 7),
)
FIT = OfferChoice(
    "nvidia.com/mig-1g.10gb", (SLICE,), GpuNeed(8192, None, EvidenceSource.DECLARED, "8Gi declared"), "sizing"
)
DENIED = Finding(
    "GPU-L102", PolicyMode.ENFORCE, ("spec",), "must be one of 1, 2, 4, 8 (found 3)", "Write 4, or 2.", "research"
)
LONG = msgspec.structs.replace(DENIED, message="\N{KATAKANA LETTER GU}" * 520, fix="\N{KATAKANA LETTER GU}" * 520)
NOTED = Finding("GPU-R102", PolicyMode.AUDIT, ("spec",), "could be smaller", "", "sizing")


def audited_pod(
    name: str,
    *,
    namespace: str = "team",
    workload: str = "",
    node: str = "n1",
    milli: int = 1000,
    after: int | None = None,
    audit_saved: int = 0,
    findings: Sequence[Finding] = (),
    compute: int | None = None,
    idle: bool = False,
    memory: int = 8192,
    unevaluated: UnevaluatedReason | None = None,
    exempted: Sequence[ExemptedFinding] = (),
    count: int = 1,
) -> CheckResult:
    """Return one pod of a cluster with its evaluation."""
    remaining = milli if after is None else after
    outcome: OfferChoice | KeepRequest = (
        FIT if remaining != milli or audit_saved else KeepRequest(KeepReason.NO_EVIDENCE)
    )
    decision = Decision(
        findings=tuple(findings),
        exempted=tuple(exempted),
        outcome=outcome,
        applied=remaining != milli,
        gpu_milli_before=milli,
        gpu_milli_after=remaining,
        involves_gpus=True,
    )
    measured = (memory, compute, 4000) if idle or compute is not None else (None, None, 0)
    return CheckResult(
        SourceLocation(f"pod/{namespace}/{name}"),
        *("v1", "Pod", namespace, name, decision_verdict(decision)),
        findings=tuple(LocatedFinding(finding, SourceLocation(f"pod/{namespace}/{name}")) for finding in findings),
        decision=decision,
        gpu_milli_audit_saved=audit_saved,
        node=node,
        pod_details=ClusterPodDetails(
            workload or f"Pod/{name}",
            unevaluated,
            "changed: tolerations" if unevaluated else "",
            (msgspec.structs.replace(ContainerUsage("main", "nvidia.com/gpu", count, *measured), idle=idle),),
        ),
    )


def cluster(names: Sequence[str] = ()) -> list[CheckResult]:
    """Return pods of every kind, and more with these names."""
    exempted = ExemptedFinding(DENIED, "nccl-debug", "2026-12-01T00:00:00+00:00")
    return [
        *(audited_pod(f"serve-{i}", workload="Deployment/serve", after=143, compute=60) for i in range(3)),
        audited_pod("try-0", workload="Job/try", audit_saved=857, findings=[NOTED], compute=100),
        audited_pod("idle-0", workload="StatefulSet/idle", node="n2", milli=2000, compute=3, idle=True, count=2),
        audited_pod(
            "three-0", workload="Job/three", milli=3000, findings=[DENIED], namespace="batch", count=3, node="n2"
        ),
        audited_pod("old", node="n3", unevaluated=UnevaluatedReason.UNRECORDED, namespace="batch"),
        audited_pod("waits", node="", milli=4000, namespace="later", count=4),
        audited_pod("debug", exempted=[exempted], namespace="infra", milli=500),
        *(audited_pod(f"x{i}", namespace=name, workload=f"Deployment/{name}") for i, name in enumerate(names)),
    ]


def rows_of(
    results: Sequence[CheckResult], prices: NodePrices | None = PRICES, nodes: Sequence[NodeCapacity] | None = None
) -> list[WorkloadReport]:
    """Return the workloads of some results."""
    return workload_reports(results, prices, nodes)


REACH = ReachReport(
    eligible=8,
    right_sized=5,
    kept=(KeptPods(3, "QueuedWorkload", "a queue has reserved quota", "Change the template."),),
    ineligible=(KeptPods(2, "MultipleGPUs", "it needs several GPUs", ""),),
    partitioning=(PartitioningAdvice("NVIDIA-H100-80GB-HBM3", 2, "1g.10gb", 7, 12),),
)


def audited_page(names: Sequence[str] = ()) -> AuditPage:
    """Return the content of the HTML report on the cluster."""
    results = cluster(names)
    rows = rows_of(results, nodes=NODES)
    return AuditPage(
        cluster="https://cluster.example:6443",
        moment=NOW.isoformat(),
        selected="",
        policies=("research", "sizing"),
        digest="0123456789ab",
        workloads=tuple(rows),
        namespaces=tuple(totals_by_namespace(results)),
        nodes=NODES,
        utilization=compute_utilization(NODES, rows, PRICES),
        reach=REACH,
        admission=AdmissionSavings(pods=2, before=2000, after=429),
        exemptions=(
            ExemptionUsage(
                "old-driver", "cuda", ("GPU-C101",), "INC-1", "2026-05-01T00:00:00+00:00", expired=True, workloads=0
            ),
            ExemptionUsage(
                "nccl-debug",
                "research",
                ("GPU-L102",),
                "INC-2",
                "2026-12-01T00:00:00+00:00",
                expired=False,
                workloads=1,
            ),
        ),
        version="0.1.0",
    )
