"""Suggested evictions: the fewest pods, whatever resource they hold."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_pod
from tests.placement.clusters import (
    BRIDGED,
    DGX1,
    GPU,
    gpu_node,
    gpu_node_report,
    placement_input,
    preemption_plan,
    ranked_names,
    running_gpu_pod,
)
from webhook.model.annotations import TOPOLOGY_ANNOTATION

H100 = "NVIDIA-H100-80GB-HBM3"
ADAPTER = "rdma/hca"


def test_fewest_and_smallest_pods_are_evicted() -> None:
    placement = placement_input(
        gpu_node("n", 8, H100),
        running_gpu_pod("big", "n", count=4),
        running_gpu_pod("mid", "n", count=2),
        running_gpu_pod("low", "n", count=1),
    )
    freed = preemption_plan(placement, make_pod().gpus(3))

    assert freed is not None
    assert [pod.metadata.name for pod in freed.pods] == ["mid"]
    assert preemption_plan(placement, make_pod().gpus(9)) is None


def test_pods_given_as_an_iterator_are_used_for_every_node() -> None:
    nodes = [gpu_node("a", 8, H100), gpu_node("b", 8, H100)]
    placement = placement_input(
        *nodes,
        running_gpu_pod("large", "a", count=8),
        running_gpu_pod("small", "b", count=1),
        running_gpu_pod("rest", "b", count=7),
    )

    freed = preemption_plan(placement, make_pod().gpus(1))

    assert freed is not None
    assert [pod.metadata.name for pod in freed.pods] == ["small"]


def test_holder_of_half_a_pair_is_evicted() -> None:
    strict = make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
    held = {1: "team/half", 2: "team/both", 3: "team/both"}
    placement = placement_input(
        gpu_node("n"),
        gpu_node_report("n", 4, BRIDGED, held),
        running_gpu_pod("both", "n", count=2),
        running_gpu_pod("half", "n", count=1),
    )

    freed = preemption_plan(placement, strict)

    assert freed is not None
    assert [pod.metadata.name for pod in freed.pods] == ["half"]


def test_one_large_pod_is_fewer_than_two_small_ones() -> None:
    pods = [
        running_gpu_pod("big", "n", count=4),
        running_gpu_pod("mid", "n", count=2),
        running_gpu_pod("low", "n", count=1),
    ]
    pods += [running_gpu_pod(f"tiny{i}", "n", "cpu", 1) for i in range(10)]
    placement = placement_input(gpu_node("n", 7, H100), *pods)

    freed = preemption_plan(placement, make_pod().gpus(3))

    assert freed is not None
    assert [pod.metadata.name for pod in freed.pods] == ["big"]


def test_no_more_pods_than_necessary_are_evicted() -> None:
    placement = placement_input(gpu_node("n", 8, H100), *(running_gpu_pod(f"p{i}", "n") for i in range(8)))

    freed = preemption_plan(placement, make_pod().gpus(5))

    assert freed is not None
    assert len(freed.pods) == 5


STRICT = make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
EVICTIONS: dict[str, tuple[dict[int, str], dict[str, int], set[int], list[str]]] = {
    "one victim is enough, whatever its name": ({0: "x", 1: "yy", 2: "z"}, {"x": 1, "yy": 1, "z": 1}, set(), ["z"]),
    "one that the report lacks": ({2: "x", 3: "z"}, {"x": 1, "z": 1, "new": 2}, set(), ["new"]),
    "an unhealthy card makes no pair": ({0: "x", 1: "yy", 2: "z"}, {"x": 1, "yy": 1, "z": 1}, {0}, ["z"]),
    "none if the remaining cards are unhealthy": ({0: "x", 1: "yy", 2: "z"}, {"x": 1, "yy": 1, "z": 1}, {0, 3}, []),
}


@pytest.mark.parametrize(("held", "running", "unhealthy", "victims"), EVICTIONS.values(), ids=EVICTIONS)
def test_evictions_for_a_connected_pair(
    held: dict[int, str], running: dict[str, int], unhealthy: set[int], victims: list[str]
) -> None:
    device_report = gpu_node_report("n", 4, BRIDGED, {gpu: f"team/{pod}" for gpu, pod in held.items()})
    for gpu in unhealthy:
        device_report["status"]["gpus"][gpu]["healthy"] = False
    placement = placement_input(
        gpu_node("n"), device_report, *(running_gpu_pod(name, "n", count=count) for name, count in running.items())
    )

    freed = preemption_plan(placement, STRICT)

    assert [pod.metadata.name for pod in (freed.pods if freed else ())] == victims


def test_evictions_without_an_agent() -> None:
    strict = make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
    placement = placement_input(
        gpu_node("dgx", 8, "Tesla-V100-SXM2-32GB"), *(running_gpu_pod(f"x{i}", "dgx", count=3) for i in range(2))
    )

    freed = preemption_plan(placement, strict)

    assert freed is not None
    assert len(freed.pods) == 1


def running_pod(name: str, *, port: int = 0, daemon: bool = False, node: str = "n", **amounts: object) -> Json:
    """A pod of a node that holds CPU, GPUs or adapters, and perhaps a port of the host."""
    names = {"gpus": GPU, "adapters": ADAPTER}
    pod = make_pod(name).spec(nodeName=node)
    for key, amount in amounts.items():
        pod.requests(names.get(key, key), str(amount))
    if port:
        pod.main["ports"] = [{"containerPort": port, "hostPort": port}]
    return (pod.owned_by("DaemonSet", "d") if daemon else pod).build()


def sized(gpus: int = 4, **amounts: int) -> Json:
    """Return the node with other amounts of non-GPU resources."""
    node = gpu_node("n", gpus, H100)
    for each in (node["status"]["allocatable"], node["status"]["capacity"]):
        each.update({{"adapters": ADAPTER}.get(key, key): str(amount) for key, amount in amounts.items()})
    return node


def port_of(pod: Any) -> int:
    """Return the host port of a pod; 0 for none."""
    return sum(port["hostPort"] for port in pod["spec"]["containers"][0].get("ports", ()))


def with_port(pod: PodMaker, port: int) -> PodMaker:
    pod.main["ports"] = [{"containerPort": port, "hostPort": port}]
    return pod


SINGLES = [running_pod(f"s{i:02}", gpus=1) for i in range(16)]
REQUIRED_EVICTIONS: dict[str, tuple[list[Json], PodMaker, list[str]]] = {
    "a pod without GPUs has the CPU": (
        [sized(cpu=16), running_pod("hog", cpu="15500m"), running_pod("one", gpus=1, cpu=0)],
        make_pod().gpus(1).requests("cpu", "4"),
        ["hog"],
    ),
    "the smallest of those that have enough CPU": (
        [sized(cpu=16), running_pod("a", cpu=9), running_pod("b", cpu=6), running_pod("c", cpu=1)],
        make_pod().gpus(1).requests("cpu", "6"),
        ["b"],
    ),
    "one has the CPU, another the GPU": (
        [sized(1, cpu=4), running_pod("cpu", cpu=3), running_pod("idle"), running_pod("gpu", gpus=1, cpu=1)],
        make_pod().gpus(1).requests("cpu", "4"),
        ["cpu", "gpu"],
    ),
    "pods without GPUs reach the pod limit": (
        [sized(pods=3), *(running_pod(f"c{i}", cpu=3 - i) for i in range(3))],
        make_pod().gpus(1),
        ["c2"],
    ),
    "more pods than the pod limit": (
        [sized(pods=2), *(running_pod(f"c{i}", cpu=1) for i in range(3))],
        make_pod().gpus(1),
        ["c0", "c1"],
    ),
    "many singles": ([sized(16), *SINGLES], make_pod().gpus(12), [f"s{i:02}" for i in range(12)]),
    "one pod has the port and the GPUs": (
        [
            sized(),
            running_pod("srv", gpus=4, port=80),
            gpu_node("m"),
            *(running_pod(x, gpus=2, node="m") for x in "ab"),
        ],
        with_port(make_pod().gpus(4), 80),
        ["srv"],
    ),
    "one pod has the port, all else is free": (
        [sized(), running_pod("srv", port=80)],
        with_port(make_pod().gpus(1), 80),
        ["srv"],
    ),
    "one has the port, another the GPUs": (
        [sized(), running_pod("gpu", gpus=4), running_pod("web", port=80)],
        with_port(make_pod().gpus(2), 80),
        ["gpu", "web"],
    ),
    "one pod has the network adapter": (
        [sized(adapters=1), running_pod("net", adapters=1), running_pod("gpu", gpus=1)],
        make_pod().gpus(1).requests(ADAPTER, "1"),
        ["net"],
    ),
    "a pod of a DaemonSet would be recreated": (
        [sized(cpu=8), running_pod("agent", cpu=7, daemon=True), running_pod("job", cpu=1)],
        make_pod().gpus(1).requests("cpu", "2"),
        [],
    ),
    "a port of a DaemonSet's pod stays in use": (
        [sized(), running_pod("agent", port=80, daemon=True)],
        with_port(make_pod().gpus(1), 80),
        [],
    ),
    "no eviction helps if the node is too small": ([sized(), running_pod("a", gpus=4)], make_pod().gpus(5), []),
    "no eviction helps if spec.nodeName is another node": (
        [sized(), running_pod("a", gpus=4)],
        make_pod().gpus(4).spec(nodeName="other"),
        [],
    ),
}


@pytest.mark.parametrize(("objects", "pod", "victims"), REQUIRED_EVICTIONS.values(), ids=REQUIRED_EVICTIONS)
def test_evictions_for_every_kind_of_resource(objects: list[Json], pod: PodMaker, victims: list[str]) -> None:
    freed = preemption_plan(placement_input(*objects), pod)

    assert sorted(each.metadata.name for each in (freed.pods if freed else ())) == victims


@pytest.mark.no_cover
def test_with_too_many_choices_a_sufficient_plan_is_found() -> None:
    connected = {pair: 12 * (pair[0] >= 8) for pair in combinations(range(16), 2)}
    placement = placement_input(
        gpu_node("n", 16), gpu_node_report("n", 16, connected, {i: f"team/s{i:02}" for i in range(16)}), *SINGLES
    )

    freed = preemption_plan(placement, make_pod().gpus(8).annotate(TOPOLOGY_ANNOTATION, "nvlink=required"))

    assert freed is not None
    assert {f"s{i:02}" for i in range(8, 16)} <= {pod.metadata.name for pod in freed.pods}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Json], PodMaker]:
    """Draw a node with an agent report, some running pods, and an arriving pod."""
    links, gpus = draw(st.sampled_from([(BRIDGED, 4), (DGX1, 8)]))
    left, pods = draw(st.permutations(range(gpus))), []
    held: dict[int, str] = {}
    for name in map("p{}".format, range(draw(st.integers(1, 5)))):
        mine, left = left[: (size := draw(st.integers(0, 2)))], left[size:]
        held |= dict.fromkeys(mine, f"team/{name}")
        pods.append(running_pod(name, gpus=len(mine), cpu=draw(st.integers(0, 4)), port=draw(st.sampled_from([0, 80]))))
    arriving = make_pod("coming").requests("cpu", str(draw(st.integers(0, 8))))
    for place, number in enumerate(draw(st.sampled_from([(1,), (2,), (3,), (4,), (1, 2), (2, 2)]))):
        main = arriving.main if not place else arriving.container("other").data["spec"]["containers"][-1]
        arriving.requests(GPU, str(number), container=main)
    if draw(st.booleans()):
        arriving.annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
    node = gpu_node("n", gpus)
    node["status"]["allocatable"] |= {"cpu": "10", "pods": str(draw(st.integers(3, 9)))}
    return [node, gpu_node_report("n", gpus, links, held), *pods], with_port(arriving, draw(st.sampled_from([0, 80])))


@given(clusters())
def test_plan_has_as_few_pods_as_an_exhaustive_search(drawn: tuple[list[Json], PodMaker]) -> None:
    objects, arriving = drawn
    node, device_report, *pods = objects

    def fits(evicted: tuple[Json, ...]) -> bool:
        left = [pod for pod in pods if pod not in evicted]
        clash = any(port_of(arriving.data) == port_of(pod) != 0 for pod in left)
        return not clash and bool(ranked_names(placement_input(node, device_report, *left), arriving))

    if fits(()):
        return
    fewest = next((size for size in range(1, len(pods) + 1) if any(map(fits, combinations(pods, size)))), None)
    freed = preemption_plan(placement_input(*objects), arriving)

    assert (len(freed.pods) if freed else None) == fewest
