"""Workloads and utilization: pods summed up by workload, and all GPUs of a cluster in parts."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from io import StringIO
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.audit_samples import DENIED, FIT, NODES, NOTED, PRICES, SLICE, audited_pod, cluster, rows_of
from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.offers import GpuOffer
from webhook.model.prices import NodePrices
from webhook.report.capacity import NodeCapacity
from webhook.report.costs import GpuCost, money_text
from webhook.report.html import measured_usage_milli
from webhook.report.recommendations import container_rows, recommendation_columns, recommendation_csv, risk_text
from webhook.report.results import CheckResult, ClusterPodDetails, ContainerUsage, UnevaluatedReason
from webhook.report.text import format_gpus
from webhook.report.utilization import compute_utilization, utilization_document, utilization_lines
from webhook.report.workload_report import (
    WORKLOADS,
    idle_text,
    listed_workloads,
    omitted_workloads_lines,
    unevaluated_lines,
    wasted_cost_text,
    wasted_text,
    workload_columns,
    workload_finding_lines,
)
from webhook.report.workloads import WorkloadReport


def row(*results: CheckResult) -> WorkloadReport:
    [found] = rows_of(results)
    return found


def test_the_workload_that_saves_most_comes_first() -> None:
    assert [each.name for each in rows_of(cluster())][:3] == ["Deployment/serve", "Job/try", "Job/three"]


def test_pods_of_one_workload_are_one_row() -> None:
    found = row(
        audited_pod("a", workload="Deployment/d", after=143), audited_pod("b", workload="Deployment/d", after=143)
    )
    assert (found.pods, found.gpu_milli_before, found.gpu_milli_saved) == (2, 2000, 1714)
    assert found.allocated == GpuCost(2000, 8_000_000, 0)
    assert found.over_requested == GpuCost(1714, 6_856_000, 0)


def test_workloads_of_one_name_in_two_namespaces_are_two() -> None:
    assert len(rows_of([audited_pod("a"), audited_pod("a", namespace="other")])) == 2


def result_with_usage(*uses: ContainerUsage) -> CheckResult:
    """Return a pod of these containers."""
    return msgspec.structs.replace(audited_pod("a"), pod_details=ClusterPodDetails("Pod/a", usages=uses))


IDLE = {
    "no engine active": (audited_pod("a", idle=True), GpuCost(1000, 4_000_000)),
    "no compute, and no data on engines": (audited_pod("a", compute=0), GpuCost()),
    "one container idle, the other active": (
        result_with_usage(
            ContainerUsage("a", "nvidia.com/gpu", 1, 8192, 0, 9, idle=True),
            ContainerUsage("b", "nvidia.com/gpu", 1, 8192, 500, 9),
        ),
        GpuCost(),
    ),
    "no usage data": (audited_pod("a"), GpuCost()),
    "idle and pending": (audited_pod("a", idle=True, node=""), GpuCost()),
    "on a node without a price": (audited_pod("a", idle=True, node="n3"), GpuCost(1000, 0, 1000)),
}


@pytest.mark.parametrize(("pod", "idle"), IDLE.values(), ids=IDLE)
def test_idle(pod: CheckResult, idle: GpuCost) -> None:
    assert row(pod).idle == idle


def launcher_pod(name: str, node: str = "n1") -> CheckResult:
    """Return a pod of the job without GPUs."""
    pod = audited_pod(name, workload="MPIJob/train", node=node, milli=0)
    decision = msgspec.structs.replace(pod.decision, involves_gpus=False)
    return msgspec.structs.replace(pod, decision=decision, pod_details=ClusterPodDetails("MPIJob/train"))


def worker_pod(name: str, count: int = 8, node: str = "") -> CheckResult:
    return audited_pod(name, workload="MPIJob/train", node=node, milli=1000 * count, count=count)


NO_EVIDENCE = row(audited_pod("alone")).outcome
MIXED_PODS = {
    "a launcher first, and pending workers": (
        [launcher_pod("a"), worker_pod("w0"), worker_pod("w1")],
        [(8, 2, 2)],
        2,
    ),
    "a launcher first, and running workers": (
        [launcher_pod("a"), worker_pod("w0", node="n1"), worker_pod("w1", node="n1")],
        [(8, 2, 0)],
        0,
    ),
    "the pending pod requests no GPU": ([worker_pod("w0", node="n1"), launcher_pod("x", "")], [(8, 1, 0)], 0),
    "most of the pods request no GPU": (
        [launcher_pod("a"), launcher_pod("b"), worker_pod("w0", node="n1")],
        [(8, 1, 0)],
        0,
    ),
    "pods request different amounts": (
        [worker_pod("w0", 1, "n1"), worker_pod("w1", 4, "n1"), worker_pod("w2", 4)],
        [(1, 1, 0), (4, 2, 1)],
        1,
    ),
}


@pytest.mark.parametrize(("pods", "requested", "pending"), MIXED_PODS.values(), ids=MIXED_PODS)
def test_a_workload_is_described_by_all_of_its_gpu_pods(
    pods: list[CheckResult], requested: list[tuple[int, int, int]], pending: int
) -> None:
    found = row(*pods)
    figures = compute_utilization(NODES, [found], PRICES)
    table = [line.split() for line in recommendation_columns().to_lines(container_rows([found]))][1:]

    assert [(use.count, use.pods, use.pending) for use in found.usages] == requested
    assert [(int(cells[3]), int(cells[2])) for cells in table] == [(count, pods) for count, pods, _ in requested]
    assert (found.pending, figures.pending_pods, figures.usage_coverage) == (pending, pending, (0, 1))
    assert found.outcome == NO_EVIDENCE


def test_a_pod_without_a_node_whose_gpus_are_of_claims_is_pending() -> None:
    pod = audited_pod("a", node="")
    found = row(msgspec.structs.replace(pod, pod_details=ClusterPodDetails("Pod/a")))
    figures = compute_utilization(NODES, [found], PRICES)

    assert (found.pending, figures.pending_pods, figures.usage_coverage) == (1, 1, (0, 1))
    assert idle_text(found) == "-"


def test_measured_usage_counts_pods_on_nodes_by_their_own_amount() -> None:
    one, four, pending = (
        audited_pod(name, workload="StatefulSet/s", count=count, milli=1000 * count, compute=500, node=node)
        for name, count, node in (("a", 1, "n1"), ("b", 4, "n1"), ("c", 4, ""))
    )
    assert measured_usage_milli(row(one, four, pending)) == 500 + 4 * 500


def test_only_pods_that_were_measured_count_as_idle() -> None:
    found = row(audited_pod("a", workload="Job/j", idle=True), audited_pod("b", workload="Job/j", compute=0))
    assert (found.idle.milli, [(use.pods, use.idle) for use in found.usages]) == (1000, [(2, False)])


def test_idle_gpus_are_not_over_requested_too() -> None:
    found = row(audited_pod("a", idle=True, after=143))
    assert (found.idle.milli, found.over_requested.milli, found.gpu_milli_saved) == (1000, 0, 857)


WASTED = {
    "idle": (audited_pod("a", idle=True, after=143), GpuCost(1000, 4_000_000), "1", "4.00"),
    "over-requested": (audited_pod("a", after=143, compute=500), GpuCost(857, 3_428_000), "0.86", "3.43"),
    "over-requested, and not known to be idle": (
        *(audited_pod("a", after=143), GpuCost(857, 3_428_000)),
        *("at least 0.86", "at least 3.43"),
    ),
    "not known to be idle": (audited_pod("a"), GpuCost(), "unknown", "unknown"),
    "in use": (audited_pod("a", compute=500), GpuCost(), "0", "0.00"),
}


@pytest.mark.parametrize(("pod", "waste", "gpus", "cost"), WASTED.values(), ids=WASTED)
def test_wasted_gpus_are_idle_or_over_requested(pod: CheckResult, waste: GpuCost, gpus: str, cost: str) -> None:
    found = row(pod)
    assert (found.waste, wasted_text(found), wasted_cost_text(found)) == (waste, gpus, cost)
    assert workload_columns(PRICES).to_document(found)["wasted"] == {
        "milli": waste.milli,
        "microPerHour": waste.micro,
        "unpricedMilli": 0,
    }


def test_audit_mode_savings_are_over_requested() -> None:
    assert row(audited_pod("a", audit_saved=857)).over_requested.milli == 857


def test_a_finding_of_many_pods_is_listed_once_with_their_number() -> None:
    found = row(*(audited_pod(f"p{i}", workload="Job/j", findings=[DENIED, NOTED]) for i in range(3)))
    lines = list(workload_finding_lines([found]))
    assert [line.split("  ")[-1] for line in lines if "GPU-" in line and not line.startswith(" ")] == [
        "Job team/j (3 of 3 pods)"
    ] * 2
    assert found.codes == ("GPU-L102", "GPU-R102")


def test_the_table_has_only_workloads_that_need_action() -> None:
    rows = rows_of(cluster())
    listed = listed_workloads(rows)
    lines, [last] = WORKLOADS.to_lines(listed)[1:], omitted_workloads_lines(rows, listed)
    names = {line.split()[1] for line in lines}
    assert names == {"Deployment/serve", "Job/try", "StatefulSet/idle", "Job/three", "Pod/old"}
    assert last == "2 workloads without anything to act on omitted; -v shows all."
    assert listed_workloads(rows, every=True) == rows
    assert omitted_workloads_lines(rows, rows) == []


def test_unevaluated_pods_are_listed_by_reason() -> None:
    rows = rows_of(
        [
            audited_pod("a", unevaluated=UnevaluatedReason.STATIC),
            audited_pod("b", unevaluated=UnevaluatedReason.UNRECORDED),
            audited_pod("c"),
        ]
    )
    assert [line.partition(",")[0] for line in unevaluated_lines(rows)] == [
        "1 pod was not evaluated at admission: no decision record; created while the webhook was down",
        "  team/Pod/b   1 pod   would be changed: tolerations",
        "1 pod was not evaluated at admission: static pods",
        "  team/Pod/a   1 pod   would be changed: tolerations",
    ]


def test_the_csv_has_every_workload_and_no_formula() -> None:
    rows = rows_of([*cluster(), audited_pod("f", namespace="=cmd()", workload="@sum")])
    read = list(csv.DictReader(StringIO(workload_columns(PRICES).to_csv(rows))))
    assert len(read) == len(rows)
    [odd] = [each for each in read if each["namespace"].endswith("=cmd()")]
    assert (odd["namespace"], odd["workload"]) == ("'=cmd()", "'@sum")
    assert {each["price_source"] for each in read} == {PRICES.source}
    [serve] = [each for each in read if each["workload"] == "Deployment/serve"]
    assert (serve["gpu_milli_saved"], serve["over_requested_micro_per_hour"], serve["currency"]) == (
        "2571",
        "10284000",
        "USD",
    )


def test_the_summary_has_each_figure_with_its_parts() -> None:
    found = compute_utilization(NODES, rows_of(cluster(), nodes=NODES), PRICES)
    assert list(utilization_lines(found)) == [
        "Total GPUs             14 installed, 14 allocatable, 10 allocated",
        "Effective GPUs         at most 4.57 (allocated 10 - idle at least 2 - over-requested 3.43)",
        "Wasted GPUs            at least 6.18 (idle at least 2 + over-requested 3.43 + fragmented 0.75)",
        "Utilization            at most 32.7% (effective of 14)",
        "Scheduling efficiency  94.6% (allocated or usable, of 14)",
        "Cost per hour          36.00 USD for the 12 of 14 GPUs that have a price; wasted at least 17.96 USD "
        "(idle at least 2.00, over-requested 13.71, fragmented 2.25)",
        "Prices                 a list of ours (2026-06-01, USD per card-hour)",
        "                       8 x 4 USD: H100-80GB-HBM3",
        "                       4 x 1 USD: L40S",
        "No usage data for 4 of 7 GPU workloads; 3 workloads with GPUs now have pods without it; it is unknown whether "
        "they are idle.",
        "2 GPUs are without a price; the cost does not include them.",
        "1 pod with GPUs is pending.",
        "2 GPUs are requested beyond what the pods' nodes have; not allocated.",
    ]


IDLE_LINES = {
    "usage data of no pod": (
        [audited_pod("a"), audited_pod("b")],
        (
            "at most 2 (allocated 2 - idle unknown",
            "at least 0 (idle unknown",
            "no data (allocated 25.0%",
            ["unknown", "unknown"],
        ),
        (None, 2000),
    ),
    "usage data of one pod, which is idle": (
        [audited_pod("a", idle=True), audited_pod("b")],
        ("at most 1 (allocated 2 - idle at least 1", "at least 1 (idle at least 1", "at most 12.5%", ["1", "unknown"]),
        (1000, 1000),
    ),
    "usage data of all pods": (
        [audited_pod("a", idle=True), audited_pod("b", compute=500)],
        ("1 (allocated 2 - idle 1", "1 (idle 1", "12.5%", ["1", "0"]),
        (1000, 0),
    ),
    "no pod": (
        [],
        ("at most 0 (allocated 0 - idle unknown", "at least 0 (idle unknown", "no data (allocated 0.0%", []),
        (None, 0),
    ),
    "only a pending pod": (
        [audited_pod("a", node="")],
        ("at most 1 (allocated 1 - idle unknown", "at least 0 (idle unknown", "no data", ["-"]),
        (None, 0),
    ),
}


@pytest.mark.parametrize(("pods", "texts", "document"), IDLE_LINES.values(), ids=IDLE_LINES)
def test_what_idle_gpus_would_change_is_a_bound_until_usage_is_known(
    pods: list[CheckResult], texts: tuple[str, str, str, list[str]], document: tuple[int | None, int]
) -> None:
    node = NodeCapacity("n1", "X", 8, 1000 * len(pods), 8000 - 1000 * len(pods), 0, (), 0)
    rows = rows_of(pods, nodes=[node])
    figures = compute_utilization([node], rows, PRICES)
    lines = {line[:23].strip(): line[23:] for line in utilization_lines(figures)}
    effective, wasted, utilization, cells = texts
    assert lines["Effective GPUs"].startswith(effective)
    assert lines["Wasted GPUs"].startswith(wasted)
    assert lines["Utilization"].startswith(utilization)
    head, *table = (
        (line.split() for line in WORKLOADS.to_lines(listed_workloads(rows, every=True))) if rows else (["IDLE"],)
    )
    assert [line[head.index("IDLE")] for line in table] == cells
    data = utilization_document(figures)
    assert (data["idleMilli"], data["idleUnknownMilli"]) == document
    assert (data["cost"]["idleMicroPerHour"] is None) == (data["idleMilli"] is None)


def test_without_prices_there_is_no_cost() -> None:
    found = compute_utilization(NODES, rows_of(cluster(), None))
    assert not [line for line in utilization_lines(found) if "Cost" in line or "price" in line.lower()]


amounts = st.integers(0, 9000)
request_and_after = st.tuples(st.integers(1, 4000), amounts, st.booleans())
on_nodes = st.lists(
    st.tuples(st.lists(request_and_after, max_size=4), st.integers(0, 20_000), amounts, st.integers(0, 100), amounts),
    min_size=1,
    max_size=4,
)


@given(on_nodes, st.dictionaries(st.sampled_from(["n0", "n1", "n2"]), st.integers(0, 10**7)))
def test_the_parts_are_all_gpus_and_never_overlap(
    nodes: list[tuple[list[tuple[int, int, bool]], int, int, int, int]], prices: dict[str, int]
) -> None:
    """Each node has pods with requests before and after, an allocation, and free, fragmented and unschedulable GPUs.

    The pods of the first are on a node that does not exist.
    """
    capacities, pods = [], []
    for i, (node_pods, most, free, fragmented, unschedulable) in enumerate(nodes):
        used = min(most, sum(before for before, _, _ in node_pods))
        capacities.append(
            NodeCapacity(
                f"n{i}", "X", 8, used, free, 0, (), free * fragmented // 100, unschedulable_milli=unschedulable
            )
        )
        pods += [
            audited_pod(f"p{i}-{j}", node=f"n{i}" if i else "gone", milli=before, after=min(before, after), idle=idle)
            for j, (before, after, idle) in enumerate(node_pods)
        ]
    known = NodePrices("USD", prices, "ours")
    found = compute_utilization(capacities, rows_of(pods, known, capacities), known)
    parts = [part for _, part in found.parts]
    assert all(min(part.milli, part.micro, part.unpriced_milli) >= 0 for part in parts)
    assert sum(part.milli for part in parts) == found.allocatable.milli
    assert sum(part.micro for part in parts) == found.allocatable.micro
    assert sum(part.unpriced_milli for part in parts) == found.allocatable.unpriced_milli
    assert (found.utilization is None) == (found.usage_coverage[0] == 0)
    assert 0 <= (found.utilization or 0) <= found.scheduling_efficiency <= 1000
    assert found.pods_on_missing_nodes == len(nodes[0][0])


def test_nothing_is_allocated_on_a_node_whose_gpus_are_only_in_labels() -> None:
    capacities = [NodeCapacity("n1", "X", 0, 0, 0, 0, (), 0, missing_gpus=8)]
    found = compute_utilization(capacities, rows_of([audited_pod("a", milli=1000)], nodes=capacities))

    assert (found.installed, found.pods_on_missing_nodes, found.overcommitted_milli) == (0, 1, 0)


def test_requests_beyond_the_nodes_are_reported_apart() -> None:
    capacities = [NodeCapacity("n1", "X", 2, 2000, 0, 0, (), 0)]
    pods = [
        audited_pod("a", milli=1500, idle=True),
        audited_pod("b", milli=1500, after=143),
        audited_pod("c", node="gone", milli=4000, idle=True),
        audited_pod("d", node="gone", milli=4000),
    ]
    rows = rows_of(pods, nodes=capacities)
    found = compute_utilization(capacities, rows)
    assert {row.name: (row.allocated.milli, row.idle.milli, row.over_requested.milli) for row in rows} == {
        "Pod/a": (1500, 1500, 0),
        "Pod/b": (500, 0, 500),
        "Pod/c": (0, 0, 0),
        "Pod/d": (0, 0, 0),
    }
    lines = list(utilization_lines(found))
    assert lines[1] == "Effective GPUs         at most 0 (allocated 2 - idle at least 1.5 - over-requested 0.5)"
    assert lines[-2:] == [
        "2 pods with GPUs are on nodes that do not exist or have no GPUs.",
        "1 GPU is requested beyond what the pods' nodes have; not allocated.",
    ]


def rightsize_text(rows: Iterable[WorkloadReport], prices: NodePrices | None) -> str:
    """Return the table of `rightsize`."""
    return "\n".join(recommendation_columns(prices).to_lines(container_rows(rows)))


def recommendation_cells(*results: CheckResult) -> list[list[str]]:
    """Return the cells from USED on."""
    rows = [row(result) for result in results]
    lines = [line.split("   ") for line in recommendation_columns(PRICES).to_lines(container_rows(rows))]
    return [[cell.strip() for cell in line if cell.strip()][4:] for line in lines[1:]]


def test_rightsize_shows_recommendations_and_reasons() -> None:
    assert recommendation_cells(
        audited_pod("a", after=143, compute=60), audited_pod("b", audit_saved=857), audited_pod("c")
    ) == [
        ["8Gi, 6% active", "nvidia.com/mig-1g.10gb", "0.86 GPUs, 3.43 USD/h"],
        ["-", "nvidia.com/mig-1g.10gb", "0.86 GPUs, 3.43 USD/h (audit)"],
        ["-", "keep: NoEvidence", "-"],
    ]


def test_rightsize_shows_savings_of_idle_workloads_too() -> None:
    assert recommendation_cells(audited_pod("a", after=143, idle=True)) == [
        ["8Gi, idle", "nvidia.com/mig-1g.10gb", "0.86 GPUs, 3.43 USD/h"]
    ]


def test_the_tables_show_idle_workloads() -> None:
    busy, idle = row(audited_pod("a", compute=500)), row(audited_pod("b", compute=50, idle=True))
    head, *cells = (line.split() for line in WORKLOADS.to_lines([busy, idle]))
    assert [line[head.index("IDLE")] for line in cells] == ["0", "1"]
    assert [
        cell
        for cell, *_ in recommendation_cells(audited_pod("a", compute=500), audited_pod("b", compute=50, idle=True))
    ] == [
        "8Gi, 50% active",
        "8Gi, idle",
    ]


def test_rightsize_shows_the_risk_of_recommendations_from_usage() -> None:
    use = ContainerUsage("main", "nvidia.com/gpu", 1, 8192, 60, 4000, risk_ppm=5000)
    pod = msgspec.structs.replace(audited_pod("a", after=143), pod_details=ClusterPodDetails("Pod/a", usages=(use,)))
    lines = recommendation_columns(PRICES).to_lines(container_rows([row(pod)]), wide=True)
    assert "0.5%/h" in lines[1]
    assert "RISK" in lines[0]


def at_risk(name: str, risk_ppm: int | None, after: int | None) -> CheckResult:
    """Return a pod of a measured workload; without a risk it keeps its GPU."""
    use = ContainerUsage("main", "nvidia.com/gpu", 1, 8192, 60, 4000, risk_ppm=risk_ppm)
    pod = audited_pod(name, workload="StatefulSet/s", after=after)
    return msgspec.structs.replace(pod, pod_details=ClusterPodDetails("StatefulSet/s", usages=(use,)))


KEEPS, SHRINKS = at_risk("keeps", None, None), at_risk("shrinks", 5000, 143)
RISKS = {
    "the first pod keeps its GPU, most do not": ([KEEPS, SHRINKS, SHRINKS], ["nvidia.com/mig-1g.10gb", "0.5%/h"]),
    "the last pod keeps its GPU": ([SHRINKS, SHRINKS, KEEPS], ["nvidia.com/mig-1g.10gb", "0.5%/h"]),
    "most keep theirs": ([SHRINKS, KEEPS, KEEPS], ["", "-"]),
}


@pytest.mark.parametrize(("pods", "want"), RISKS.values(), ids=RISKS)
def test_the_risk_belongs_to_the_recommendation(pods: list[CheckResult], want: list[str]) -> None:
    found = row(*pods)
    assert [found.recommended, *map(risk_text, found.usages)] == want


UNPRICED = msgspec.structs.replace(SLICE, product="B300")
FREED: dict[str, tuple[CheckResult, tuple[GpuOffer, ...], GpuCost, str]] = {
    "a slice of the same card": (audited_pod("a", after=143), (SLICE,), GpuCost(857, 3_428_000), "3.43 USD/h"),
    "a slice of a more expensive card that still saves": (
        *(audited_pod("a", node="n2", after=143), (SLICE,), GpuCost(857, 428_000)),
        "0.43 USD/h",
    ),
    "a slice of a more expensive card that saves nothing": (
        *(audited_pod("a", node="n2", after=429), (SLICE,), GpuCost(571, -716_000)),
        "costs 0.72 USD/h more",
    ),
    "the same in audit mode": (
        *(audited_pod("a", node="n2", audit_saved=571), (SLICE,), GpuCost(571, -716_000)),
        "costs 0.72 USD/h more",
    ),
    "a slice of a card without a price": (audited_pod("a", after=143), (UNPRICED,), GpuCost(857, 0, 857), "no price"),
    "a slice of one card or another, one without a price": (
        *(audited_pod("a", after=143), (SLICE, UNPRICED), GpuCost(857, 0, 857)),
        "no price",
    ),
    "a slice for a pod on a node without a price": (
        audited_pod("a", node="n3", after=143),
        (SLICE,),
        GpuCost(857, 0, 857),
        "no price",
    ),
}


@pytest.mark.parametrize(("pod", "offers", "freed", "words"), FREED.values(), ids=FREED)
def test_savings_are_net_of_the_cost_of_the_recommendation(
    pod: CheckResult, offers: tuple[GpuOffer, ...], freed: GpuCost, words: str
) -> None:
    fit = msgspec.structs.replace(FIT, offers=offers)
    pod = msgspec.structs.replace(pod, decision=msgspec.structs.replace(pod.decision, outcome=fit))
    assert row(pod).savings == freed
    mark = " (audit)" if pod.gpu_milli_audit_saved else ""
    assert recommendation_cells(pod)[0][2] == f"{format_gpus(freed.milli)} GPUs, {words}{mark}"


MEANINGS = {
    "an instance with the profile in its label": ({"product": "H100-MIG-1g.10gb"}, "H100-MIG-1g.10gb"),
    "an instance without the profile in its label": ({"product": "H100"}, "H100 1g.10gb"),
    "a share": ({"product": "L4-SHARED", "profile": "", "replicas": 4}, "L4-SHARED, 1 of 4 shares"),
    "no label": ({"product": ""}, "product not labeled 1g.10gb"),
}


@pytest.mark.parametrize(("offer", "meaning"), MEANINGS.values(), ids=MEANINGS)
def test_a_slice_named_like_a_gpu_has_its_meaning(offer: dict[str, Any], meaning: str) -> None:
    named_gpu = msgspec.structs.replace(SLICE, resource="nvidia.com/gpu", **offer)
    fit = msgspec.structs.replace(FIT, resource="nvidia.com/gpu", offers=(named_gpu,))
    pod = audited_pod("a", after=143)
    pod = msgspec.structs.replace(pod, decision=msgspec.structs.replace(pod.decision, outcome=fit))
    assert recommendation_cells(pod)[0][1] == f"nvidia.com/gpu ({meaning})"
    assert row(pod).outcome == f"right-sized to nvidia.com/gpu ({meaning})"


NAMED_BY_CLASS = {
    "a profile": ({}, "1g.10gb, 9728Mi"),
    "several profiles": ({"profile": ""}, "MIG device, 9728Mi"),
    "a whole card": ({"profile": "", "form": GpuForm.WHOLE, "memory_mib": 23028}, "whole GPU, 23028Mi"),
}


@pytest.mark.parametrize(("offer", "device"), NAMED_BY_CLASS.values(), ids=NAMED_BY_CLASS)
def test_the_device_of_a_class_is_said_for_pods_and_claims(offer: dict[str, Any], device: str) -> None:
    outcomes = []
    for name in (f"{DEVICE_CLASS_PREFIX}small", "mig.nvidia.com"):
        of_class = msgspec.structs.replace(SLICE, resource=name, **offer)
        fit = msgspec.structs.replace(FIT, resource=name, offers=(of_class,))
        pod = audited_pod("a", after=143)
        pod = msgspec.structs.replace(pod, decision=msgspec.structs.replace(pod.decision, outcome=fit))
        outcomes.append(row(pod).outcome)
    assert outcomes == [
        f"right-sized to {DEVICE_CLASS_PREFIX}small ({device})",
        f"right-sized to {device} of class mig.nvidia.com",
    ]


def test_the_csv_of_rightsize_has_a_line_for_each_container() -> None:
    uses = (
        ContainerUsage("=a", "nvidia.com/gpu", 1, 8192, 60, 9, risk_ppm=5000),
        ContainerUsage("b", "nvidia.com/gpu", 2),
    )
    pod = msgspec.structs.replace(audited_pod("a", after=143), pod_details=ClusterPodDetails("Pod/a", usages=uses))
    one, other = csv.DictReader(StringIO(recommendation_csv([row(pod)], PRICES)))
    assert (one["container"], one["risk_ppm"], one["gpu_milli_saved"], one["savings_micro_per_hour"]) == (
        *("'=a", "5000", "857"),
        "3428000",
    )
    assert (one["currency"], one["price_source"], other["price_source"]) == ("USD", PRICES.source, "")
    assert (other["container"], other["requested"], other["risk_ppm"], other["gpu_milli_saved"]) == ("b", "2", "", "")


def test_without_any_price_there_is_no_sum() -> None:
    no_prices = NodePrices("USD", {}, "ours")
    pods = [audited_pod("a", after=143), audited_pod("b")]
    lines = "\n".join(utilization_lines(compute_utilization(NODES, rows_of(pods, no_prices), no_prices)))
    assert "Cost per hour          unknown: no GPU has a price" in lines
    assert "0.00" not in lines
    for line in csv.DictReader(StringIO(workload_columns(no_prices).to_csv(rows_of(pods, no_prices)))):
        assert (
            line["allocated_micro_per_hour"],
            line["idle_micro_per_hour"],
            line["over_requested_micro_per_hour"],
        ) == (("",) * 3)
    assert "0.86 GPUs, no price" in rightsize_text(rows_of(pods, no_prices), no_prices)


def test_a_partial_sum_reports_its_number_of_gpus() -> None:
    found = compute_utilization(NODES, rows_of(cluster(), nodes=NODES), PRICES)
    [line] = [line for line in utilization_lines(found) if line.startswith("Cost per hour")]
    assert "36.00 USD for the 12 of 14 GPUs that have a price; wasted" in line
    pods = [audited_pod(name, node=node, workload="Job/j", after=143) for name, node in (("a", "n1"), ("b", "n3"))]
    assert "1.71 GPUs, 3.43 USD/h for 0.86 of 1.71 GPUs" in rightsize_text(rows_of(pods), PRICES)


def test_the_summary_counts_workloads_without_usage_data() -> None:
    def caveats(*pods: CheckResult) -> list[str]:
        return [
            line
            for line in utilization_lines(compute_utilization(NODES, rows_of(pods)))
            if line.startswith("No usage data")
        ]

    assert caveats(audited_pod("a", compute=60)) == []
    assert caveats(audited_pod("b"), audited_pod("c", node="")) == [
        "No usage data for 2 of 2 GPU workloads; 1 workload with GPUs now has pods without it; idle is unknown."
    ]
    assert caveats(audited_pod("c", node="")) == [
        "No usage data for 1 of 1 GPU workload; none of these holds GPUs now; idle is unknown."
    ]
    assert caveats(audited_pod("b")) == ["No usage data for 1 of 1 GPU workload; idle is unknown."]
    assert caveats(audited_pod("a", compute=60), audited_pod("b")) == [
        "No usage data for 1 of 2 GPU workloads; it is unknown whether they are idle."
    ]
    assert caveats() == []


def test_money_is_rounded_to_the_nearest_hundredth() -> None:
    assert [money_text(each) for each in (4_999, 5_000, 1_234_567_890, -10_000)] == [
        "0.00",
        "0.01",
        "1,234.57",
        "-0.01",
    ]


def test_the_source_of_prices_is_sanitized() -> None:
    prices = NodePrices("USD", {}, "ours\x1b[2J\u202e")
    lines = list(utilization_lines(compute_utilization(NODES, [], prices)))
    assert "Prices                 ours\\x1b[2J\\u202e" in lines
