"""TAB, the default strategy: free capacity is worth what future pods are expected to use of it, minus a scarcity price.

Scores are in thousandths of a GPU: how much value a node loses when a pod is placed, and the price of the GPUs that the
pod takes. If pods leave, used capacity becomes free again: fuller nodes are filled first, because a node with few pods
soon becomes empty, and the price is lower. All parameters are the same for every cluster; only the workload mix, the
nodes and the turnover differ.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from webhook.placement.capacity import (
    GPU_MILLI,
    CapacityRows,
    ClusterCapacity,
    FloatArray,
    FreeCapacityArrays,
    IntArray,
    PodDemand,
)
from webhook.placement.fragmentation.workload_mix import WorkloadMix

MAX_CORES = 48
"""Cores beyond which one GPU gains nothing."""

MILLI_STEP = 10
"""Thousandths of a GPU between two columns of the fill table."""

MILLI_LEVELS = GPU_MILLI // MILLI_STEP + 1

BASE_OFFERS = 27
MIN_OFFERS, MAX_OFFERS = 5, 200
"""Pods offered, where every pod is a share; the rarer shares are, the more pods must come by to fill a GPU."""


CLAIM, CLAIM_EXPONENT, MAX_CLAIM = 0.8, 4.0, 2.2
"""The claim factor if the mix requests exactly the CPU per GPU that exists, how it falls with more, and its maximum."""


IDLE_SET_SIZES = (2, 4, 8)
"""Sizes of the sets of idle GPUs that are kept whole."""

SET_RATE = 4.0
"""Rate at which a demand for sets makes idle GPUs worth keeping: a share q of all GPU pods counts 1 - exp(-4 q)."""

SCARCITY_PRICE = 800.0
"""Thousandths of a GPU that a GPU costs if demand equals capacity."""

CONSOLIDATION_BONUS = 300.0
"""Thousandths of a GPU by which a full node is better than an empty one, if as many pods leave as arrive."""

PRICE_RELIEF = 0.5
"""Part of the price that is taken off in that case."""

EMPTY_TABLE: FloatArray = np.zeros(0)
"""Fill table of a cluster without nodes."""

SCORE_STEPS = 8
"""Scores are rounded to eighths of a thousandth: powers of two, so that equal sums are equal numbers."""


class TabScorer:
    """TAB for one mix on one set of nodes."""

    prefers_full_gpus = False

    def __init__(self, capacity: ClusterCapacity, mix: WorkloadMix) -> None:
        shares = mix.gpu_demand_shares()
        rounds = count_offers(shares)
        self._claim = cpu_claim_factor(mix, capacity)
        self._price = SCARCITY_PRICE * scarcity_prices(mix, capacity)[capacity.kind_index]
        self._all = np.maximum(capacity.gpus.sum(1), 1)
        tables: dict[tuple[bool, ...], int] = {}
        flat: list[FloatArray] = []
        idle: list[FloatArray] = []
        places = []
        for model in capacity.models:
            key = tuple(demand.accepts_model(model) for demand in shares)
            if key not in tables:
                tables[key] = len(flat)
                flat.append(expected_fill_table(shares, model, rounds).ravel())
                idle.append(
                    idle_gpu_values({n: s for n, s in shares.items() if n.accepts_model(model)}, capacity.gpus.shape[1])
                )
            places.append(tables[key])
        self._fill = np.concatenate([EMPTY_TABLE, *flat])
        self._idle = np.array(idle).reshape(-1, capacity.gpus.shape[1] + 1, 2)
        self._table = np.array(places, np.int64)[capacity.model_index]

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """The value of GPUs in use and of idle GPUs, in thousandths of a GPU."""
        table = self._table[rows.nodes]
        cores = np.minimum(rows.cpu / 1000, MAX_CORES)
        each = self._claim * rows.cpu / (1000 * np.maximum(rows.gpus.sum(1), 1))
        row, gpu = np.nonzero((rows.gpus > 0) & (rows.gpus < GPU_MILLI))
        free = rows.gpus[row, gpu]
        parts = self._look_up(table[row], np.minimum(free * each[row], cores[row]), free)
        one = self._look_up(table, np.minimum(GPU_MILLI * each, cores), GPU_MILLI)
        line = self._idle[table, (rows.gpus == GPU_MILLI).sum(1)]
        worth: FloatArray = np.bincount(row, parts, len(table)) + line[:, 0] * one + line[:, 1]
        return worth

    def placement_scores(self, was: FloatArray, becomes: FloatArray, nodes: IntArray, demand: PodDemand) -> FloatArray:
        """The node's loss of value, and the price of the requested GPUs."""
        return _round_scores(becomes - was - self._price[nodes] * (demand.total_milli / GPU_MILLI))

    def node_adjustments(self, free: FreeCapacityArrays, demand: PodDemand, turnover: float) -> FloatArray | float:
        """The effect of turnover."""
        if not demand.total_milli or not turnover:
            return 0.0
        used = 1 - (free.gpus.sum(1) - demand.total_milli) / self._all
        return _round_scores(
            turnover * (CONSOLIDATION_BONUS * used + PRICE_RELIEF * self._price * (demand.total_milli / GPU_MILLI))
        )

    def _look_up(self, table: IntArray, cores: FloatArray, free: IntArray | int) -> FloatArray:
        """Return the expected fill of GPUs that claim some cores, interpolated between two rows of the table."""
        low = cores.astype(np.int64)
        place = (table * (MAX_CORES + 2) + low) * MILLI_LEVELS + free // MILLI_STEP
        below = self._fill[place]
        found: FloatArray = below + (cores - low) * (self._fill[place + MILLI_LEVELS] - below)
        return found


def _round_scores(scores: FloatArray) -> FloatArray:
    grained: FloatArray = np.rint(SCORE_STEPS * scores) / SCORE_STEPS
    return grained


def idle_gpu_values(shares: dict[PodDemand, float], most: int) -> FloatArray:
    """Return the value of k idle GPUs of one node, as a factor on the value of one and an amount.

    With the probability that a pod of the mix wants a set of 2, 4 or 8, the set is filled whole and the rest stays
    idle; otherwise each GPU is worth what single GPUs are. It stays linear because the value of one GPU changes with
    the free cores.

    Args:
        shares: Demands that these GPUs can run, and their share of all GPU pods.
        most: Largest GPU count of a node.

    Returns:
        Shape (most + 1, 2).
    """
    requested = dict.fromkeys(IDLE_SET_SIZES, 0.0)
    for demand, share in shares.items():
        if demand.gpus > 1:
            requested[max(size for size in IDLE_SET_SIZES if size <= demand.gpus)] += share
    chance = {size: 1.0 - float(np.exp(-SET_RATE * part)) for size, part in requested.items()}
    worth = np.zeros((most + 1, 2))
    for idle in range(1, most + 1):
        worth[idle] = (idle, 0.0)
        for size in IDLE_SET_SIZES:
            if size <= idle:
                filled = worth[idle - size] + (0.0, GPU_MILLI * size)
                worth[idle] = chance[size] * filled + (1.0 - chance[size]) * worth[idle]
    return worth


def count_offers(shares: Mapping[PodDemand, float]) -> int:
    """Return how many pods are offered to a piece of GPU; `shares` is the share of each demand with GPUs."""
    shared = sum(share for demand, share in shares.items() if demand.gpu_milli < GPU_MILLI)
    offers = MAX_OFFERS if not shared else int(BASE_OFFERS / shared)
    return max(MIN_OFFERS, min(MAX_OFFERS, offers))


def expected_fill_table(shares: Mapping[PodDemand, float], model: str, rounds: int) -> FloatArray:
    """Return the expected fill of one GPU: the thousandths of r free ones, beside c free cores, that a random sequence
    of pods uses.

    Each offered pod is taken if it fits.

    Args:
        shares: Demands with GPUs and their share of all of them.

    Returns:
        Expected thousandths, shape (MAX_CORES + 2, MILLI_LEVELS): by whole cores (the last row twice, for
        interpolation) and by free thousandths in steps of MILLI_STEP, rounded down.
    """
    steps: defaultdict[tuple[int, int], float] = defaultdict(float)  # by cores and levels of one GPU, rounded up
    for demand, share in shares.items():
        cores, levels = -(-demand.cpu_milli // 1000), -(-demand.gpu_milli // MILLI_STEP)
        if demand.gpus == 1 and demand.accepts_model(model) and cores <= MAX_CORES:
            steps[cores, levels] += share
    table = np.zeros((MAX_CORES + 1, MILLI_LEVELS))
    for _ in range(rounds):
        following = table.copy()
        for (cores, levels), share in steps.items():
            taken = table[: MAX_CORES + 1 - cores, : MILLI_LEVELS - levels] + levels * MILLI_STEP
            following[cores:, levels:] += share * (taken - table[cores:, levels:])
        table = following
    return np.vstack([table, table[-1]])


def cpu_claim_factor(mix: WorkloadMix, capacity: ClusterCapacity) -> float:
    """Return how many times its even share of the free cores one piece of GPU may count on.

    The more cores pods request compared to the cores per GPU of the cluster, the less.
    """
    cores = sum(count * demand.cpu_milli for demand, count in mix.counts.items())
    milli = sum(count * demand.total_milli for demand, count in mix.counts.items())
    cores_per_gpu = int(capacity.cpu.sum()) / max(1, capacity.total_milli)
    if not milli or not cores or not cores_per_gpu:
        return MAX_CLAIM
    return min(MAX_CLAIM, CLAIM * math.pow(cores / milli / cores_per_gpu, -CLAIM_EXPONENT))


def scarcity_prices(mix: WorkloadMix, cluster: ClusterCapacity) -> FloatArray:
    """Return how much demand competes for each GPU of a kind of node, shape (kinds,).

    The mix is scaled to request exactly the cluster's GPUs. Each demand spreads evenly over the GPUs of the kinds of
    node that could run it when empty.
    """
    gpus = np.bincount(cluster.kind_index, cluster.gpus.sum(1), len(cluster.kinds)) / GPU_MILLI
    requested = {demand: count * demand.total_milli for demand, count in mix.counts.items() if demand.gpus}
    scale = gpus.sum() / max(1.0, sum(requested.values()))
    prices = np.zeros(len(cluster.kinds))
    for demand, milli in requested.items():
        fitting = [
            demand.accepts_model(model) and demand.total_milli <= count * GPU_MILLI and demand.cpu_milli <= cpu
            for model, count, cpu in cluster.kinds
        ]
        fits = np.array(fitting, np.bool_)
        if fits.any():
            prices[fits] += milli * scale / gpus[fits].sum()
    return prices
