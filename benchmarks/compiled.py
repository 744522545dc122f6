"""Churn simulated by a compiled copy of the rules (churn.cpp): a whole cluster in a second instead of a minute.

To check the copy, `differences` also runs a part of a list with the product's own code, with ties broken in a fixed
order; every pod must start at the same time in both.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from webhook.placement.capacity import ClusterCapacity, FloatArray, PodDemand
from webhook.placement.fragmentation.strategies import ScoringStrategy, typical_demands
from webhook.placement.fragmentation.tab import (
    CONSOLIDATION_BONUS,
    MAX_CORES,
    MILLI_LEVELS,
    MILLI_STEP,
    PRICE_RELIEF,
    SCARCITY_PRICE,
    SCORE_STEPS,
    count_offers,
    cpu_claim_factor,
    expected_fill_table,
    idle_gpu_values,
    scarcity_prices,
)
from webhook.placement.fragmentation.workload_mix import HALF_LIFE, WorkloadMix, mix_from_demands

SOURCE = Path(__file__).with_name("churn.cpp")
COMPILE = ("c++", "-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")

NUMBERS = ("policy", "nodes", "gpus", "shapes", "needs", "fixed", "cores", "levels", "step", "sizes", "limits")
NODES = ("cpu", "memory", "free", "model")
SHAPES = ("shape_cpu", "shape_count", "shape_milli", "shape_models", "need_shape", "need_memory")
FACTORS = ("claim", "emptying", "relief", "grain", "half_life")


class _World(ctypes.Structure):
    """Fields of the World struct in churn.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in NUMBERS),
        *((name, ctypes.c_void_p) for name in (*NODES, *SHAPES, "table", "fill", "idle", "price")),
        *((name, ctypes.c_double) for name in FACTORS),
        *((name, ctypes.c_void_p) for name in ("size", "limit", "runs")),
    )


class World:
    """One list on one cluster under one strategy, ready to run."""

    def __init__(
        self, capacity: ClusterCapacity, needs: Sequence[PodDemand], policy: ScoringStrategy, *, fixed: bool = False
    ) -> None:
        mix = mix_from_demands(needs)
        self._needs = {need: place for place, need in enumerate(dict.fromkeys(needs))}
        held = {
            **_nodes(capacity),
            **_shapes(capacity, list(self._needs)),
            **_tab(capacity, mix),
            **_fgd(capacity, mix),
        }
        self._held = {name: np.ascontiguousarray(each) for name, each in held.items()}
        self._world = _World(
            policy=list(ScoringStrategy).index(policy),
            nodes=len(capacity.nodes),
            gpus=capacity.gpus.shape[1],
            shapes=len(self._held["shape_cpu"]),
            needs=len(self._needs),
            fixed=fixed,
            cores=MAX_CORES,
            levels=MILLI_LEVELS,
            step=MILLI_STEP,
            sizes=len(self._held["size"]),
            limits=len(self._held["limit"]),
            claim=cpu_claim_factor(mix, capacity),
            emptying=CONSOLIDATION_BONUS,
            relief=PRICE_RELIEF,
            grain=SCORE_STEPS,
            half_life=HALF_LIFE,
            **{name: each.ctypes.data for name, each in self._held.items()},
        )

    def play(
        self, needs: Sequence[PodDemand], times: FloatArray, warm: float, enough: int, seed: int
    ) -> tuple[FloatArray, float]:
        """Play pods in the order of their arrival.

        Args:
            needs: Demand of each pod; all are in the list.
            times: When each comes and how long it runs, in mean lifetimes, shape (pods, 2).
            warm: From when on is measured.
            enough: Pods in the queue at which the run ends.
            seed: Chooses among equals.

        Returns:
            When each began, -1 where it never did, shape (pods,); and the GPUs that stand idle while a pod waits,
            times the time, infinite where the run was ended.
        """
        places = np.array([self._needs[need] for need in needs], np.int64)
        arrives, lifetime = (np.ascontiguousarray(column) for column in times.T)
        started, idle = np.zeros(len(needs)), ctypes.c_double()
        ended = _library().churn(
            ctypes.byref(self._world),
            ctypes.c_uint64(seed),
            ctypes.c_int64(len(needs)),
            *(ctypes.c_void_p(each.ctypes.data) for each in (arrives, lifetime, places)),
            ctypes.c_double(warm),
            ctypes.c_int64(enough),
            ctypes.c_void_p(started.ctypes.data),
            ctypes.byref(idle),
        )
        return started, float("inf") if ended else idle.value / 1000


@cache
def _library() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "churn.so")
        subprocess.run([*COMPILE, "-o", str(built), str(SOURCE)], check=True, timeout=600)
        return ctypes.CDLL(str(built))


def _nodes(capacity: ClusterCapacity) -> dict[str, np.ndarray]:
    return {"cpu": capacity.cpu, "memory": capacity.memory, "free": capacity.gpus, "model": capacity.model_index}


def _shapes(capacity: ClusterCapacity, needs: Sequence[PodDemand]) -> dict[str, np.ndarray]:
    shapes = list(dict.fromkeys(need.shape for need in needs))
    models = [
        sum(1 << place for place, model in enumerate(capacity.models) if each.accepts_model(model)) for each in shapes
    ]
    return {
        "shape_cpu": np.array([each.cpu_milli for each in shapes], np.int64),
        "shape_count": np.array([each.gpus for each in shapes], np.int64),
        "shape_milli": np.array([each.gpu_milli for each in shapes], np.int64),
        "shape_models": np.array(models, np.int64),
        "need_shape": np.array([shapes.index(need.shape) for need in needs], np.int64),
        "need_memory": np.array([need.memory for need in needs], np.int64),
    }


def _tab(capacity: ClusterCapacity, mix: WorkloadMix) -> dict[str, np.ndarray]:
    shares = mix.gpu_demand_shares()
    takes = [tuple(need.accepts_model(model) for need in shares) for model in capacity.models]
    kinds = list(dict.fromkeys(takes))
    first = [capacity.models[takes.index(kind)] for kind in kinds]
    most = capacity.gpus.shape[1]
    eligible = [{need: share for need, share in shares.items() if need.accepts_model(model)} for model in first]
    return {
        "table": np.array([kinds.index(each) for each in takes], np.int64)[capacity.model_index],
        "fill": np.concatenate([expected_fill_table(shares, model, count_offers(shares)).ravel() for model in first]),
        "idle": np.array([idle_gpu_values(each, most) for each in eligible]),
        "price": SCARCITY_PRICE * scarcity_prices(mix, capacity)[capacity.kind_index],
    }


def _fgd(capacity: ClusterCapacity, mix: WorkloadMix) -> dict[str, np.ndarray]:
    """Return, by model, size, GPUs with capacity and CPU limit, the part of typical pods that can run."""
    shares = {need: share for need, share in typical_demands(mix).items() if need.gpus}
    sizes, limits = sorted({need.gpu_milli for need in shares}), sorted({need.cpu_milli for need in shares})
    runs = np.zeros((len(capacity.models), len(sizes), capacity.gpus.shape[1] + 1, len(limits) + 1))
    for need, share in shares.items():
        takes = [place for place, model in enumerate(capacity.models) if need.accepts_model(model)]
        runs[takes, sizes.index(need.gpu_milli), need.gpus :, limits.index(need.cpu_milli) + 1 :] += share
    return {"size": np.array(sizes, np.int64), "limit": np.array(limits, np.int64), "runs": runs}
