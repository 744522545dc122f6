"""The steps of the overview: each links to the rows that it counts, and promises nothing that they do not have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import aiohttp
import msgspec

from tests.builders import make_namespace
from tests.console.conftest import Client, demo_flags
from tests.placement.clusters import gpu_node, running_gpu_pod
from webhook.cli.console_inputs import ConsoleReader
from webhook.console.listener import serve_console
from webhook.console.reading import ClusterReading, NewestReading
from webhook.report.console.layout import LayoutOutcome
from webhook.report.console.next_steps import NextStep, next_steps
from webhook.report.console.state import ConsoleState
from webhook.report.workloads import WorkloadReport

H100_HALF_MIB = 40448
"""Memory of 4g.40gb, and about half a card: the largest part of a card of the example cluster."""


def steps_about(state: ConsoleState, words: str) -> list[NextStep]:
    return [each for each in next_steps(state) if words in each.action]


def with_need(demo: ClusterReading, *needs: int) -> ConsoleState:
    """Return the example with workloads that no offer covers, each of which needs so much and is not idle."""
    row = demo.state.by_workload["search", "CronJob/reindex"]
    rows: list[WorkloadReport] = [
        msgspec.structs.replace(row, name=f"Job/{i}", needed_mib=needs[i]) for i in range(len(needs))
    ]
    return msgspec.structs.replace(demo.state, workloads=tuple(rows))


async def test_a_step_counts_the_rows_of_its_link(client: Client, demo: ClusterReading) -> None:
    steps = [each for each in next_steps(demo.state) if each.link.startswith(("/workloads", "/nodes"))]
    counts = [re.findall(r"\b([0-9]+) (?:idle )?(workloads?|nodes?)\b", each.action)[0] for each in steps]
    pages = [(await client.get(each.link)).words for each in steps]

    assert len(steps) >= 5
    assert [f" {number} {noun} " in f"{page} " for (number, noun), page in zip(counts, pages, strict=True)] == [
        True for _ in steps
    ]


def test_the_largest_part_of_a_card_is_a_slice_or_half_a_card(demo: ClusterReading) -> None:
    assert demo.state.largest_part_mib >= H100_HALF_MIB
    assert demo.state.largest_part_mib < demo.state.by_workload["search", "CronJob/reindex"].needed_mib


def test_layouts_are_not_advised_for_a_need_that_no_part_of_a_card_covers(demo: ClusterReading) -> None:
    most = demo.state.largest_part_mib

    assert steps_about(demo.state, "rightslice layout") == []
    assert steps_about(with_need(demo, most + 1), "rightslice layout") == []
    [step] = steps_about(with_need(demo, most, most + 1), "rightslice layout")
    assert step.worth_text.startswith("up to 1 GPU")
    assert step.action.startswith("2 workloads keep their GPUs, each because no slice or share")
    assert step.action.endswith("No layout helps 1 of them: the need is more than any slice or share has.")
    [step] = steps_about(with_need(demo, most), "rightslice layout")
    assert "No layout helps" not in step.action


def layout_steps(state: ConsoleState, plan: LayoutOutcome | None = None) -> list[NextStep]:
    return [each for each in next_steps(state, plan) if each.link == "/layout"]


def test_before_a_plan_layouts_are_worth_at_most_what_pods_do_not_use_of_partitioned_and_shared_cards(
    demo: ClusterReading,
) -> None:
    [step] = layout_steps(demo.state)
    unused = {node.name: node.unused_part_milli for node in demo.state.nodes if node.unused_part_milli}

    assert step.worth_text.startswith("up to 15.54 GPUs")
    assert list(unused) == ["a100-mixed-1", "a100-mixed-2", "l40s-sliced-1", "l4-mps-1"]
    assert unused["l40s-sliced-1"] == 3250


def test_a_plan_is_worth_the_cards_that_it_frees(demo: ClusterReading) -> None:
    layout = demo.plan()
    [step] = layout_steps(demo.state, LayoutOutcome("2026-06-01 00:00:00 UTC", layout))

    assert step.worth == layout.freed()
    assert step.worth_text.startswith(f"{layout.used_today - layout.used_planned} GPUs")
    assert "as of 2026-06-01 00:00:00 UTC: 13 cards on 4 nodes; 4 nodes must be drained." in step.action


def test_a_plan_says_how_much_of_what_it_frees_no_pod_has(demo: ClusterReading) -> None:
    layout = demo.plan()
    [step] = layout_steps(demo.state, LayoutOutcome("2026-06-01 00:00:00 UTC", layout))
    free = {node.name: node.unused_part_milli for node in demo.state.nodes}

    changed = ("a100-mixed-1", "a100-mixed-2", "h100-2", "l4-mps-1")
    assert [each.node.node for each in layout.changes if each.node.node not in changed] == []
    assert sum(free[name] for name in changed) == 12_285
    assert "slices and shares that no pod has, which are not wasted (12.29 GPUs of these nodes)" in step.action


def test_a_plan_without_changes_is_no_step_though_right_sizing_frees_cards(demo: ClusterReading) -> None:
    layout = demo.plan()._replace(changes=())

    assert layout.freed().milli > 0
    assert layout_steps(demo.state, LayoutOutcome(demo.state.moment, layout)) == []


def test_a_plan_that_failed_leaves_the_upper_bound(demo: ClusterReading) -> None:
    [step] = layout_steps(demo.state, LayoutOutcome("2026-06-01 00:00:00 UTC", problem="no solver"))

    assert step.at_most


async def test_the_overview_shows_the_figure_of_the_plan_that_the_page_of_layouts_shows(client: Client) -> None:
    overview, layout = (await client.get("/")).words, (await client.get("/layout")).words

    assert "12 GPUs, 52.41 USD/h Apply the layouts planned as of" in overview
    assert "12 cards freed, 52.41 USD/h" in layout


def test_whole_gpus_that_are_too_few_for_a_pod_are_no_saving_of_layouts(tmp_path: Path) -> None:
    """No card is partitioned or shared; a third of the pods need four GPUs, and two are free on each node."""
    nodes = [gpu_node(f"n{i}", 8, "NVIDIA-H100-80GB-HBM3") for i in range(4)]
    counts = {"a": 4, "b": 1, "c": 1}
    pods = [running_gpu_pod(f"{name}{i}", f"n{i}", count=count) for i in range(4) for name, count in counts.items()]
    objects = [make_namespace("default"), *nodes, *pods]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    reading = ConsoleReader(demo_flags(cluster=str(tmp_path))).read()
    plan = LayoutOutcome(reading.state.moment, reading.plan())
    [step] = steps_about(reading.state, "scheduler extender")

    assert layout_steps(reading.state) == layout_steps(reading.state, plan) == []
    assert [each.action for each in next_steps(reading.state) if not each.at_most] == []
    assert step.worth_text.startswith("up to 2.67 GPUs")
    assert "on 4 nodes they are too few" in step.action


DENYING = """
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: no-ranker}
spec:
  match: {namespaces: [search]}
  limits:
    mode: enforce
    perPod: [{resource: nvidia.com/gpu, max: 0}]
"""


async def test_what_policies_deny_comes_first_and_leads_to_the_findings(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(DENYING)
    reading = ConsoleReader(demo_flags(policies=[str(tmp_path)])).read()
    [first, *others] = next_steps(reading.state)

    assert first.worth_text == "6 pods denied"
    assert first.action == (
        "Correct the pods of 5 workloads that would be denied if they were created again: GPU-L103 (6 pods)."
    )
    assert not [each for each in others if "denied" in each.action]
    async with serve_console(NewestReading(reading), "127.0.0.1", 0) as address, aiohttp.ClientSession() as session:
        client = Client(address, session)
        assert "6 pods denied Correct the pods" in (await client.get("/")).words
        assert "GPU-L103 search deny" in (await client.get(first.link)).words


def test_without_denied_pods_no_step_is_about_them(demo: ClusterReading) -> None:
    assert steps_about(demo.state, "denied") == []
