"""stocks: what of a cluster's GPUs pods hold, what is free, what of it is lost, and what no pod can come to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.make import Json, make_pod
from tests.placement.kube import gpu_node, placing, running
from tests.world import mig_node
from webhook.placement.fragmentation.mixes import FLAT, Mix
from webhook.placement.needs import Need
from webhook.report.capacities import Stock, stocks, total
from webhook.report.figures import Figures, figures_of

H100 = "NVIDIA-H100-80GB-HBM3"
SMALL = "nvidia.com/mig-1g.10gb"


def node(name: str = "n", gpus: int = 8, pods: int = 110, **spec: Any) -> Json:
    data = gpu_node(name, gpus, H100)
    data["status"]["allocatable"]["pods"] = str(pods)
    return data | {"spec": spec}


def plain(count: int, where: str = "n") -> list[Json]:
    """Pods without GPUs."""
    return [make_pod(f"web-{i}").asks("cpu", "100m").spec(nodeName=where).build() for i in range(count)]


ONE = running("one", "n", cpu="100m")
SLICES = [running(f"slice-{i}", "cut", SMALL, cpu="100m") for i in range(9)]
NOT_READY = {"status": node()["status"] | {"conditions": [{"type": "Ready", "status": "False"}]}}

FOUND: dict[str, tuple[list[Json], tuple[int, int, int, int]]] = {
    "one pod with a GPU, and nobody else": ([node(), ONE], (1000, 7000, 0, 0)),
    "pods without GPUs beside it": ([node(), ONE, *plain(30)], (1000, 7000, 0, 0)),
    "pods without GPUs on another node": ([node(), node("cpu", 0), ONE, *plain(30, "cpu")], (1000, 7000, 0, 0)),
    "pods with MIG instances on another node": (
        [node(), mig_node("cut", small=9), ONE, *SLICES],
        (1000 + 9 * 143, 14_000, 0, 0),
    ),
    "nobody asks for GPUs": ([node(), *plain(3)], (0, 8000, 0, 0)),
    "nobody is there": ([node()], (0, 8000, 0, 0)),
    "pods of three GPUs, and two are left": (
        [node(), *(running(f"p{i}", "n", count=3, cpu="100m") for i in range(2)), *plain(5)],
        (6000, 2000, 2000, 0),
    ),
    "as many pods as the node takes, none with GPUs": ([node(pods=4), *plain(4)], (0, 0, 0, 8000)),
    "as many pods as the node takes, each with one GPU": (
        [node(pods=2), running("a", "n"), running("b", "n")],
        (2000, 0, 0, 6000),
    ),
    "as many pods as the node takes, with all its GPUs": ([node(pods=1), running("a", "n", count=8)], (8000, 0, 0, 0)),
    "a cordoned node that nobody uses": (
        [node(), node("shut", unschedulable=True), running("a", "n", count=8)],
        (8000, 0, 0, 8000),
    ),
    "a node that is not ready, with two GPUs held": (
        [node() | NOT_READY, running("a", "n", count=2)],
        (2000, 0, 0, 6000),
    ),
}


@pytest.mark.parametrize(("objects", "amounts"), FOUND.values(), ids=FOUND)
def test_held_free_lost_and_closed(objects: list[Json], amounts: tuple[int, int, int, int]) -> None:
    found = total(of(*objects))
    assert (found.used_milli, found.free_milli, found.split_milli, found.closed_milli) == amounts


@pytest.mark.parametrize(("objects", "amounts"), FOUND.values(), ids=FOUND)
def test_the_head_figures_are_those_of_capacity(objects: list[Json], amounts: tuple[int, int, int, int]) -> None:
    held, free, lost, closed = amounts
    found = head(*objects)
    assert (found.held.milli, found.usable.milli, found.lost.milli, found.closed.milli) == (
        *(held, free - lost, lost, closed),
    )
    assert found.efficiency == round(1000 * (held + free - lost) / sum((held, free, closed)))
    assert found.wasted.milli == lost


def of(*objects: Json) -> list[Stock]:
    on = placing(*objects)
    return stocks(on.cluster, on.mix)


def head(*objects: Json) -> Figures:
    return figures_of(of(*objects), [])


def test_a_node_that_is_full_of_pods_takes_none() -> None:
    [full] = of(node(pods=4), *plain(4))
    assert not full.usable
    assert (full.island, full.fits) == (0, ())


def test_the_mix_that_ranks_nodes_is_still_of_all_pods() -> None:
    assert placing(node(), ONE, *plain(3)).mix == Mix({Need(100, 1, 1000): 1.0, Need(100): 3.0})
    assert placing(node(), *plain(3)).mix == FLAT
