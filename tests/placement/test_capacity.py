"""Placement options against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.placement.capacities import (
    EIGHT,
    NO_GPU,
    ONE,
    PAIR,
    SHARE,
    capacity_rows,
    cluster_capacity,
    empty_node,
    pod_demands,
)
from webhook.placement.capacity import CapacityRows, PodDemand, placement_options

OPTIONS = [
    ("a share may go to any GPU", SHARE, [500, 900, 700], [[0, 900, 700], [500, 400, 700], [500, 900, 200]]),
    ("only the first of equal GPUs counts", SHARE, [700, 700, 1000], [[200, 700, 1000], [700, 700, 500]]),
    ("a GPU with less is no way", SHARE, [499, 500], [[499, 0]]),
    ("a whole GPU is the lowest idle one", ONE, [999, 1000, 1000], [[999, 0, 1000]]),
    ("two GPUs are the two lowest", PAIR, [1000, 0, 1000, 1000], [[0, 0, 0, 1000]]),
    ("eight need eight", EIGHT, [1000] * 7 + [999], []),
    ("a pod without GPUs leaves them", NO_GPU, [0, 300], [[0, 300]]),
    ("several shares go to the fullest GPUs", PodDemand(0, 2, 300), [1000, 400, 200, 300], [[1000, 100, 200, 0]]),
    ("several shares may be of one GPU", PodDemand(0, 3, 300), [0, 1000], [[0, 100]]),
    ("shares fill up the fullest GPU first", PodDemand(0, 3, 300), [1000, 700, 200], [[700, 100, 200]]),
    ("no option for more shares than fit", PodDemand(0, 4, 300), [700, 500], []),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "demand", "free", "options"), OPTIONS, ids=[case[0] for case in OPTIONS])
def test_placement_options(sentence: str, demand: PodDemand, free: list[int], options: list[list[int]]) -> None:
    found = placement_options(capacity_rows(free), demand, np.array([True]))

    assert found.gpus.tolist() == options
    assert found.cpu.tolist() == [64_000 - demand.cpu_milli] * len(options)


def test_no_option_without_cpu_or_an_acceptable_model() -> None:
    assert not len(placement_options(capacity_rows([1000], cores=3), ONE, np.array([True])).nodes)
    assert not len(placement_options(capacity_rows([1000]), ONE, np.array([False])).nodes)


@given(pod_demands, st.lists(st.lists(st.integers(0, 100).map(lambda m: 10 * m), min_size=3, max_size=3), max_size=4))
def test_every_option_takes_exactly_the_demand(demand: PodDemand, free: list[list[int]]) -> None:
    before = CapacityRows(np.arange(len(free)), np.full(len(free), 9000), np.array(free, np.int64).reshape(-1, 3))

    after = placement_options(before, demand, np.ones(len(free), np.bool_))

    for node, gpus in zip(after.nodes, after.gpus, strict=True):
        taken = np.array(free[node]) - gpus
        assert taken.sum() == demand.total_milli
        assert not (taken % max(1, demand.gpu_milli)).any()
        assert (gpus >= 0).all()
    fits = [
        sum(each // max(1, demand.gpu_milli) for each in gpus) >= demand.gpus and demand.cpu_milli <= 9000
        for gpus in free
    ]
    assert sorted(set(after.nodes.tolist())) == [i for i, fit in enumerate(fits) if fit]


def test_kinds_models_and_accepting_nodes() -> None:
    mixed = cluster_capacity(empty_node("a"), empty_node("b", 2, 16, "T4"), empty_node("c"))

    assert mixed.kinds == [("A100", 8, 64_000), ("T4", 2, 16_000)]
    assert mixed.total_milli == 18_000
    assert mixed.nodes_accepting(PodDemand(0, 1, 1000, ("T4",))).tolist() == [False, True, False]
    assert mixed.nodes_accepting(ONE).all()
