"""Invalid agent reports: the node counts as one without a report, and other nodes are unaffected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, make_pod
from tests.example_cluster import mig_node
from tests.placement.clusters import BRIDGED, gpu_node, gpu_node_report, placement_input, ranked_names
from webhook.model.gpu_node import GPUNode
from webhook.placement.devices import devices_from_report, find_report_error
from webhook.placement.nodes.score_table import NodeStates, StateStats
from webhook.policy.crds import gpunode_schema
from webhook.report.capacity import NodeCapacity, capacity_table, node_capacities

PRODUCT = "NVIDIA-A100-SXM4-80GB"
SMALL = make_pod().requests("nvidia.com/mig-1g.10gb", "1")


def read_gpu_node(data: Json) -> GPUNode:
    return msgspec.convert(data, GPUNode)


def mig_instances(profile: str, start: int, **status: Any) -> Json:
    return gpu_node_report("mig", 4, BRIDGED, mig_instances={0: [(profile, start, "")]}, **status)


def with_gpu(**fields: Any) -> Json:
    data = gpu_node_report("n", 4, BRIDGED)
    data["status"]["gpus"][0].update(fields)
    return data


ERRORS = {
    "a start below zero": (mig_instances("1g.10gb", -4), "GPU 0: the start of '1g.10gb' must be 0 to 15, found -4"),
    "a start beyond any card": (
        mig_instances("1g.10gb", 77),
        "GPU 0: the start of '1g.10gb' must be 0 to 15, found 77",
    ),
    "a start beyond this card": (
        mig_instances("3g.40gb", 5, product=PRODUCT),
        "GPU 0: the start of '3g.40gb' must be 0 to 4, found 5",
    ),
    "a profile that the card has not": (
        mig_instances("9g.999gb", 0, product=PRODUCT),
        "GPU 0: its card has no MIG profile '9g.999gb'",
    ),
    "an index twice": (with_gpu(index=1), "its GPUs must be numbered 0 to 3, found 1, 1, 2, 3"),
    "an index below zero": (with_gpu(index=-1), "its GPUs must be numbered 0 to 3, found -1, 1, 2, 3"),
    "too many GPUs": (gpu_node_report("n", 17, {}), "it lists 17 GPUs, more than the supported 16"),
    "no GPUs": (gpu_node_report("n", 0, {}), "it lists no GPUs"),
    "no GPUs, with a message": (gpu_node_report("n", 0, {}, message="no driver"), "no driver"),
    "links below zero": (with_gpu(links=[{"gpu": 1, "nvlinks": -5}]), "GPU 0: nvlinks must be 0 to 99, found -5"),
    "a rate beyond sense": (
        gpu_node_report("n", 4, {}, nvlinkBandwidth=2**62),
        f"nvlinkBandwidth must be 0 to 1000000, found {2**62}",
    ),
}


@pytest.mark.parametrize(("data", "message"), ERRORS.values(), ids=ERRORS)
def test_invalid_report_is_ignored_with_a_reason(data: Json, message: str) -> None:
    assert find_report_error(read_gpu_node(data)) == message
    assert devices_from_report(read_gpu_node(data)) is None


@pytest.mark.parametrize(
    "data", [mig_instances("1g.10gb", 6, product=PRODUCT), mig_instances("3g.40gb", 4, product=PRODUCT), with_gpu()]
)
def test_valid_report_is_used(data: Json) -> None:
    assert not find_report_error(read_gpu_node(data))
    assert devices_from_report(read_gpu_node(data)) is not None


@given(st.integers(-(2**70), 2**70), st.sampled_from(["1g.10gb", "7g.80gb", "9g.9gb", ""]), st.booleans())
def test_any_report_leaves_pods_rankable(start: int, profile: str, told: bool) -> None:
    placement = placement_input(
        mig_node(), mig_instances(profile, start, product=PRODUCT if told else ""), gpu_node("other")
    )

    assert ranked_names(placement, SMALL) == ["mig"]


def test_crd_has_the_same_bounds() -> None:
    gpu = gpunode_schema()["properties"]["status"]["properties"]["gpus"]["items"]["properties"]

    assert gpu["instances"]["items"]["properties"]["start"]["minimum"] == 0
    assert gpu["instances"]["items"]["properties"]["start"]["maximum"] == 15
    assert (gpu["index"]["minimum"], gpu["links"]["items"]["properties"]["nvlinks"]["maximum"]) == (0, 99)


def test_failing_state_counts_as_the_worst() -> None:
    errors: list[Exception] = []
    states = NodeStates([1, 0, 2])
    stats = StateStats(states, lambda key: (1 / key,), (-9.0,), errors)

    assert stats.by_node().tolist() == [[1.0], [-9.0], [0.5]]
    assert stats.by_node().tolist() == [[1.0], [-9.0], [0.5]]
    assert [type(error) for error in errors] == [ZeroDivisionError]

    states.set(1, 4)
    assert stats.by_node().tolist() == [[1.0], [0.25], [0.5]]


@pytest.mark.parametrize("generation", [0, 6, 99, -1])
def test_unknown_nvlink_generation_is_faster_than_pcie(generation: int) -> None:
    devices = devices_from_report(read_gpu_node(gpu_node_report("n", 4, BRIDGED, nvlinkGeneration=generation)))

    assert devices is not None
    assert devices.topology.bandwidth(0, 1) > 2 * devices.topology.bandwidth(0, 2)


def test_capacity_explains_an_invalid_report() -> None:
    placement = placement_input(
        gpu_node("n", 17), gpu_node_report("n", 17, {}), make_pod("x").gpus(1).spec(nodeName="n").build()
    )
    message = "its agent's report cannot be used: it lists 17 GPUs, more than the supported 16"

    *_, warning = capacity_table(node_capacities(placement.snapshot, placement.mix))

    assert warning == f"n: {message}"


def test_capacity_warns_about_an_implausible_gpu_count() -> None:
    node = gpu_node("n", 10**15)
    del node["metadata"]["labels"]["nvidia.com/gpu.count"]
    placement = placement_input(node)

    *_, warning = capacity_table(node_capacities(placement.snapshot, placement.mix))

    assert warning == "n: reports 1000000000000000 nvidia.com/gpu, more than any node can have: ignored"


COUNTED = {"as given out": ("4", 4), "more, as of MIG cards": ("8", 8), "as many as can be": ("64", 64)}
IMPLAUSIBLE = {"more than any node has": "65", "a billion": "1000000000", "the most digits": "9" * 18}


def labeled(count: str) -> NodeCapacity:
    """A node that gives out four GPUs, and has a label of how many are built in."""
    node = gpu_node("n", 4)
    node["metadata"]["labels"]["nvidia.com/gpu.count"] = count
    placement = placement_input(node)
    (stock,) = node_capacities(placement.snapshot, placement.mix)
    return stock


@pytest.mark.parametrize(("label", "gpus"), COUNTED.values(), ids=COUNTED)
def test_gpu_count_label_gives_installed_gpus(label: str, gpus: int) -> None:
    assert (labeled(label).installed_gpus, labeled(label).warning) == (gpus, "")


@pytest.mark.parametrize("label", IMPLAUSIBLE.values(), ids=IMPLAUSIBLE)
def test_implausible_gpu_count_label_is_ignored(label: str) -> None:
    assert labeled(label).installed_gpus == 4
    assert f"nvidia.com/gpu.count is {label}, more than any node can have" in labeled(label).warning
