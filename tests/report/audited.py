"""An audited cluster, as the reports are given it: workloads of every kind, money, and exemptions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from webhook.errors import Place
from webhook.model.decisions import Decision, Fit, Keep, Need, Why
from webhook.model.findings import Exempted, Finding
from webhook.model.modes import Evidence, Form, Isolation, Mode
from webhook.model.offers import Offer
from webhook.model.prices import NodePrices
from webhook.report.audits import shares
from webhook.report.capacities import Stock
from webhook.report.figures import figures_of
from webhook.report.page import Exempting, Page
from webhook.report.results import Checked, Located, Missed, Standing, Use, verdict_of
from webhook.report.workloads import Workload, workloads_of

NOW = datetime(2026, 6, 1, tzinfo=UTC)
PRICES = NodePrices(
    "USD",
    {"n1": 4_000_000, "n2": 1_000_000},
    "a list of ours (2026-06-01, USD for a card and hour)",
    by_product={"H100": 4_000_000},
)
STOCKS = (
    Stock("n1", "H100-80GB-HBM3", 8, 6000, 2000, 2, (), 500),
    Stock("n2", "L40S", 4, 3000, 1000, 1, (), 250),
    Stock("n3", "B300", 2, 1000, 1000, 1, (), 0),
)
SLICE = Offer(
    *("nvidia.com/mig-1g.10gb", Form.MIG, "H100", "1g.10gb", 9728, 143, 143, Isolation.HARDWARE, 1),
    *((), (), 1, 7),
)
FIT = Fit("nvidia.com/mig-1g.10gb", (SLICE,), Need(8192, None, Evidence.DECLARED, "8Gi declared"), "sizing")
REFUSED = Finding(
    "GPU-L102", Mode.ENFORCE, ("spec",), "must be one of 1, 2, 4, 8 (found 3)", "Write 4, or 2.", "research"
)
LONG = msgspec.structs.replace(REFUSED, message="\N{KATAKANA LETTER GU}" * 520, fix="\N{KATAKANA LETTER GU}" * 520)
NOTED = Finding("GPU-R102", Mode.AUDIT, ("spec",), "could be smaller", "", "sizing")


def judged(
    name: str,
    *,
    namespace: str = "team",
    workload: str = "",
    node: str = "n1",
    milli: int = 1000,
    after: int | None = None,
    trial: int = 0,
    findings: Sequence[Finding] = (),
    compute: int | None = None,
    idle: bool = False,
    memory: int = 8192,
    missed: Missed | None = None,
    exempted: Sequence[Exempted] = (),
    count: int = 1,
) -> Checked:
    """One pod of a cluster, judged."""
    left = milli if after is None else after
    outcome: Fit | Keep = FIT if left != milli or trial else Keep(Why.NO_EVIDENCE)
    decision = Decision(
        findings=tuple(findings),
        exempted=tuple(exempted),
        outcome=outcome,
        applied=left != milli,
        gpu_milli_before=milli,
        gpu_milli_after=left,
        touches_gpus=True,
    )
    seen = (memory, compute, 4000) if idle or compute is not None else (None, None, 0)
    return Checked(
        Place(f"pod/{namespace}/{name}"),
        *("v1", "Pod", namespace, name, verdict_of(decision)),
        findings=tuple(Located(finding, Place(f"pod/{namespace}/{name}")) for finding in findings),
        decision=decision,
        gpu_milli_on_trial=trial,
        node=node,
        standing=Standing(
            workload or f"Pod/{name}",
            missed,
            "given tolerations" if missed else "",
            (msgspec.structs.replace(Use("main", "nvidia.com/gpu", count, *seen), idle=idle),),
        ),
    )


def cluster(names: Sequence[str] = ()) -> list[Checked]:
    """Pods of every kind: saved, on trial, idle, refused, waiting, missed, without a price; and some of these names."""
    taken = Exempted(REFUSED, "nccl-debug", "2026-12-01T00:00:00+00:00")
    return [
        *(judged(f"serve-{i}", workload="Deployment/serve", after=143, compute=60) for i in range(3)),
        judged("try-0", workload="Job/try", trial=857, findings=[NOTED], compute=100),
        judged("idle-0", workload="StatefulSet/idle", node="n2", milli=2000, compute=3, idle=True, count=2),
        judged("three-0", workload="Job/three", milli=3000, findings=[REFUSED], namespace="batch", count=3, node="n2"),
        judged("old", node="n3", missed=Missed.UNMARKED, namespace="batch"),
        judged("waits", node="", milli=4000, namespace="later", count=4),
        judged("debug", exempted=[taken], namespace="infra", milli=500),
        *(judged(f"x{i}", namespace=name, workload=f"Deployment/{name}") for i, name in enumerate(names)),
    ]


def rows_of(
    results: Sequence[Checked], prices: NodePrices | None = PRICES, stocks: Sequence[Stock] | None = None
) -> list[Workload]:
    """The workloads of these results."""
    return workloads_of(results, prices, stocks)


def audited_page(names: Sequence[str] = ()) -> Page:
    """What the HTML report shows of the cluster."""
    results = cluster(names)
    rows = rows_of(results, stocks=STOCKS)
    return Page(
        cluster="https://cluster.example:6443",
        moment=NOW.isoformat(),
        since="",
        policies=("research", "sizing"),
        digest="0123456789ab",
        workloads=tuple(rows),
        shares=tuple(shares(results)),
        stocks=STOCKS,
        figures=figures_of(STOCKS, rows, PRICES),
        exemptions=(
            Exempting(
                "old-driver", "cuda", ("GPU-C101",), "INC-1", "2026-05-01T00:00:00+00:00", ended=True, workloads=0
            ),
            Exempting(
                "nccl-debug", "research", ("GPU-L102",), "INC-2", "2026-12-01T00:00:00+00:00", ended=False, workloads=1
            ),
        ),
        version="0.1.0",
    )
