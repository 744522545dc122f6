"""What a node's agent says about its GPUs is on the page of the node, and in short in the list."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tests.builders import make_node
from tests.console.conftest import page_words
from tests.placement.clusters import gpu_node_report, placement_input, running_gpu_pod, with_gpu_conditions
from webhook.console.reading import ClusterReading
from webhook.report.capacity import capacity_table, node_capacities
from webhook.report.console.next_steps import next_steps
from webhook.report.console.nodes import node_page, nodes_page
from webhook.report.console.query import PageQuery
from webhook.report.node_topology import node_lines

XID = "XID 79: GPU has fallen off the bus"


def pages(demo: ClusterReading, report: Any) -> tuple[str, str]:
    """Return the words of the page of a node with such a report, and of the list of nodes with a warning."""
    node = make_node("gpu-1", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, **{"nvidia.com/gpu": 4})
    found = placement_input(node, report)
    nodes = tuple(node_capacities(found.snapshot, found.mix))
    state = msgspec.structs.replace(demo.state, nodes=nodes)
    words = page_words(node_page(state, found.snapshot, 0, (), ()))
    return words, page_words(nodes_page(state, PageQuery({"show": "warning"})))


def test_reasons_of_bad_health_are_on_the_page_and_the_state_is_in_the_list(demo: ClusterReading) -> None:
    report = gpu_node_report("gpu-1", 4, {}, message="the kubelet did not answer")
    with_gpu_conditions(report, 1, healthy=False, conditions=[XID], eccErrors=3)
    with_gpu_conditions(report, 2, conditions=["row remapping is pending"], nvlinksDown=2)
    page, listed = pages(demo, report)

    assert f"GPU 1 unhealthy whole card {XID} uncorrected memory errors (ECC) since the driver was loaded: 3" in page
    assert "GPU 2 degraded whole card row remapping is pending inactive NVLinks that should be active: 2" in page
    assert "its agent's report is incomplete: the kubelet did not answer" in page
    assert "1 node " in listed
    assert "1 GPU unhealthy, 1 GPU degraded, warning" in listed


def test_a_node_whose_gpus_are_healthy_is_not_listed(demo: ClusterReading) -> None:
    page, listed = pages(demo, gpu_node_report("gpu-1", 4, {}))

    assert "unhealthy" not in page
    assert "0 nodes" in listed


def test_a_node_whose_labels_state_gpus_that_are_not_allocatable_says_so_on_its_page_and_in_the_list(
    demo: ClusterReading,
) -> None:
    """The device plugin does not run: nothing is installed, and no link of a GPU is assumed."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    found = placement_input(make_node("gpu-1", labels, **{"nvidia.com/gpu": 0}))
    nodes = tuple(node_capacities(found.snapshot, found.mix))
    state = msgspec.structs.replace(demo.state, nodes=nodes)
    page = page_words(node_page(state, found.snapshot, 0, (), ()))
    listed = page_words(nodes_page(state, PageQuery({"show": "missing"})))
    step = next(each for each in next_steps(state) if each.link.endswith("show=missing"))
    sentence = "gpu-1: its labels state 8 GPUs, and none is allocatable: the device plugin does not run"

    assert sentence in page
    assert "Installed 0 physical GPUs" in page
    assert "NVLink connects" not in page
    assert "has no GPUs" not in page
    assert "1 node " in listed
    assert "8 GPUs not allocatable" in listed
    assert sentence in capacity_table(nodes)[-1]
    assert sentence in node_lines(found.snapshot, 0, ())[0]
    assert (step.at_most, step.worth.milli) == (True, 8000)


A100 = "NVIDIA-A100-SXM4-80GB"
LARGE = "nvidia.com/mig-3g.40gb"
LINKED = {
    "all in MIG mode": ({LARGE: 16}, "NVLink All its GPUs are in MIG mode, in which NVLink connects none."),
    "two that are not": (
        {LARGE: 12, "nvidia.com/gpu": 2},
        "NVLink connects every pair has 2 GPUs. Up to 6 of its 8 GPUs are in MIG mode, in which NVLink connects none",
    ),
    "one that is not": (
        {LARGE: 14, "nvidia.com/gpu": 1},
        "no agent reports them. Up to 7 of its 8 GPUs are in MIG mode",
    ),
    "none in MIG mode": (
        {"nvidia.com/gpu": 8},
        "0,1,2,3,4,5,6,7 . The largest set in which NVLink connects",
    ),
}


@pytest.mark.parametrize(("units", "sentence"), LINKED.values(), ids=LINKED)
def test_nvlink_connects_no_gpu_in_mig_mode(demo: ClusterReading, units: dict[str, int], sentence: str) -> None:
    labels = {"nvidia.com/gpu.product": A100, "nvidia.com/gpu.count": "8", "nvidia.com/mig.strategy": "mixed"}
    found = placement_input(make_node("n", labels, **units))
    page = page_words(node_page(demo.state, found.snapshot, 0, (), ()))

    assert sentence in page
    assert ("Connected directly" in page) == (LARGE not in units)


def test_slices_of_a_failed_device_plugin_are_no_gpus(demo: ClusterReading) -> None:
    labels = {"nvidia.com/gpu.product": f"{A100}-MIG-1g.10gb", "nvidia.com/gpu.count": "56"}
    found = placement_input(make_node("n", labels | {"nvidia.com/mig.strategy": "single"}))
    state = msgspec.structs.replace(demo.state, nodes=tuple(node_capacities(found.snapshot, found.mix)))
    step = next(each for each in next_steps(state) if each.link.endswith("show=missing"))
    listed = page_words(nodes_page(state, PageQuery({"show": "missing"})))

    assert step.worth.milli == 8000
    assert "56 slices 1g.10gb not allocatable" in listed
    assert "56 slices 1g.10gb of 8 GPUs" in page_words(node_page(state, found.snapshot, 0, (), ()))


HOLDER = running_gpu_pod("ranker-0", "mig", "nvidia.com/mig-3g.40gb")
INSTANCES = {0: [("3g.40gb", 0, "team/ranker-0"), ("2g.20gb", 4, "")], 1: [("1g.10gb", 0, "")]}


def test_an_unhealthy_card_is_drawn_with_its_instances(demo: ClusterReading) -> None:
    node = make_node("mig", {"nvidia.com/gpu.product": A100}, **{"nvidia.com/mig-1g.10gb": 1})
    report = with_gpu_conditions(gpu_node_report("mig", 2, {}, mig_instances=INSTANCES), 0)
    found = placement_input(node, report, HOLDER)
    page = node_page(demo.state, found.snapshot, 0, (), ())
    first, second = page.split("<h3>GPU 0")[1].split("<h3>GPU 1")

    assert '<span class="bad">unhealthy</span>' in first
    assert re.findall(r'<b class="([a-z-]+)"[^>]*>([^<]*)<', first) == [
        *(("instance", "3g."), ("unhealthy-instance", "2g."), ("empty", ""), ("empty", ""))
    ]
    assert "3g.40gb at 0: team/ranker-0" in page_words(f"<main>{first}</main>")
    assert "2g.20gb at 4: not in use, as the GPU is unhealthy" in first
    assert "whole card" not in first
    assert "1g.10gb at 0: free" in second
    assert "instance of an unhealthy GPU, not in use" in page


def test_whole_cards_are_drawn_by_whether_they_are_in_use(demo: ClusterReading) -> None:
    node = make_node("n", {"nvidia.com/gpu.product": A100}, **{"nvidia.com/gpu": 2})
    pods = (running_gpu_pod("ranker-0", "n", "nvidia.com/gpu"),)
    known = placement_input(node, gpu_node_report("n", 2, {}, {0: "team/ranker-0"}), *pods)
    page = node_page(demo.state, known.snapshot, 0, (), ())
    unknown = node_page(demo.state, placement_input(node, *pods).snapshot, 0, (), ())

    assert drawn_cards(page) == ["used-whole", "free-whole"]
    assert "whole card in use free whole card" in page_words(page)
    assert set(drawn_cards(unknown)) == {"whole"}  # no agent says which one is free


def drawn_cards(page: str) -> list[str]:
    """Return the CSS class of each whole card."""
    return re.findall(r'<b class="((?:[a-z]+-)?whole)"', page)


def test_the_command_lists_the_instances_of_an_unhealthy_card() -> None:
    report = with_gpu_conditions(gpu_node_report("mig", 2, {}, mig_instances=INSTANCES), 0)
    found = placement_input(make_node("mig", {"nvidia.com/gpu.product": A100}), report, HOLDER)
    lines = node_lines(found.snapshot, 0, ())

    assert "GPU0  3g.40gb at 0 in use, 2g.20gb at 4 unhealthy" in lines
    assert "GPU1  1g.10gb at 0 free" in lines
