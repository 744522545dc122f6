"""TAB: room is worth what pods to come are expected to fill of it, less a price for scarce kinds of node.

A score is in thousandths of a GPU: how much less a node is worth after a pod has come, and the price of the
GPUs that it takes there. Where pods leave, room comes back, and two things change: a node that few pods hold is soon
whole again, so the fuller ones are filled first; and a price for what is not taken for good is lower. The parameters
are the same for every cluster; only the mix, the nodes and how many pods leave for each that comes differ.
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
"""Cores beyond which one GPU sees no more."""

MILLI_STEP = 10
"""Thousandths of a GPU between two columns of the table."""

MILLI_LEVELS = GPU_MILLI // MILLI_STEP + 1

BASE_OFFERS = 27
FEWEST_OFFERS, MOST_OFFERS = 5, 200
"""Pods offered, where every pod is a share; the rarer shares are, the more pods must come by to fill a GPU."""


CLAIM, CLAIM_EXPONENT, MOST_CLAIM = 0.8, 4.0, 2.2
"""The claim where the mix asks for just the CPU there is for each GPU, how it falls with more, and its bound."""


IDLE_SET_SIZES = (2, 4, 8)
"""Sizes of the sets of idle GPUs that are kept whole."""

SET_RATE = 4.0
"""How quickly a need for sets makes idle ones worth keeping: a part q of all GPU pods counts 1 - exp(-4 q)."""

SCARCITY_PRICE = 800.0
"""Thousandths of a GPU that a GPU costs where demand equals what there is."""

CONSOLIDATION_BONUS = 300.0
"""Thousandths of a GPU that a node in full use is better than an empty one, where as many pods leave as come."""

PRICE_RELIEF = 0.5
"""The part of the price that is taken off there."""

EMPTY_TABLE: FloatArray = np.zeros(0)
"""What the table of a site without nodes holds."""

SCORE_STEPS = 8
"""Scores are told apart down to an eighth of a thousandth: parts of two, so that equal sums are equal numbers."""


class TabScorer:
    """The rule for one mix on one site."""

    prefers_full_gpus = False

    def __init__(self, site: ClusterCapacity, mix: WorkloadMix) -> None:
        shares = mix.gpu_demand_shares()
        rounds = count_offers(shares)
        self._claim = cpu_claim_factor(mix, site)
        self._price = SCARCITY_PRICE * scarcity_prices(mix, site)[site.kind_index]
        self._all = np.maximum(site.gpus.sum(1), 1)
        tables: dict[tuple[bool, ...], int] = {}
        flat: list[FloatArray] = []
        idle: list[FloatArray] = []
        places = []
        for model in site.models:
            key = tuple(need.accepts_model(model) for need in shares)
            if key not in tables:
                tables[key] = len(flat)
                flat.append(expected_fill_table(shares, model, rounds).ravel())
                idle.append(
                    idle_gpu_values({n: s for n, s in shares.items() if n.accepts_model(model)}, site.gpus.shape[1])
                )
            places.append(tables[key])
        self._fill = np.concatenate([EMPTY_TABLE, *flat])
        self._idle = np.array(idle).reshape(-1, site.gpus.shape[1] + 1, 2)
        self._table = np.array(places, np.int64)[site.model_index]

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """What free room is worth, in thousandths of a GPU: that of GPUs in use, and that of the idle ones."""
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

    def placement_scores(self, was: FloatArray, becomes: FloatArray, nodes: IntArray, need: PodDemand) -> FloatArray:
        """What is lost of the node's worth, and the price of the GPUs asked for."""
        return _round_scores(becomes - was - self._price[nodes] * (need.total_milli / GPU_MILLI))

    def node_adjustments(self, rooms: FreeCapacityArrays, need: PodDemand, turnover: float) -> FloatArray | float:
        """What is different where pods leave."""
        if not need.total_milli or not turnover:
            return 0.0
        used = 1 - (rooms.gpus.sum(1) - need.total_milli) / self._all
        return _round_scores(
            turnover * (CONSOLIDATION_BONUS * used + PRICE_RELIEF * self._price * (need.total_milli / GPU_MILLI))
        )

    def _look_up(self, table: IntArray, cores: FloatArray, free: IntArray | int) -> FloatArray:
        """U of GPUs that claim some cores, between two rows of the table."""
        low = cores.astype(np.int64)
        place = (table * (MAX_CORES + 2) + low) * MILLI_LEVELS + free // MILLI_STEP
        below = self._fill[place]
        found: FloatArray = below + (cores - low) * (self._fill[place + MILLI_LEVELS] - below)
        return found


def _round_scores(scores: FloatArray) -> FloatArray:
    grained: FloatArray = np.rint(SCORE_STEPS * scores) / SCORE_STEPS
    return grained


def idle_gpu_values(shares: dict[PodDemand, float], most: int) -> FloatArray:
    """What k idle GPUs of one node are worth: a factor on the worth of one, and an amount.

    With the chance that a pod of the mix wants a set of 2, 4 or 8, the set is filled whole and the rest stays
    idle; else each is worth what single GPUs are. Kept as a line because the worth of one changes with the cores.

    Args:
        shares: Needs that these GPUs can serve, and their part of all GPU pods.
        most: Most GPUs of a node.

    Returns:
        Shape (most + 1, 2).
    """
    asked = dict.fromkeys(IDLE_SET_SIZES, 0.0)
    for need, share in shares.items():
        if need.gpus > 1:
            asked[max(size for size in IDLE_SET_SIZES if size <= need.gpus)] += share
    chance = {size: 1.0 - float(np.exp(-SET_RATE * part)) for size, part in asked.items()}
    worth = np.zeros((most + 1, 2))
    for idle in range(1, most + 1):
        worth[idle] = (idle, 0.0)
        for size in IDLE_SET_SIZES:
            if size <= idle:
                filled = worth[idle - size] + (0.0, GPU_MILLI * size)
                worth[idle] = chance[size] * filled + (1.0 - chance[size]) * worth[idle]
    return worth


def count_offers(shares: Mapping[PodDemand, float]) -> int:
    """How many pods are offered to a piece of GPU.

    Args:
        shares: Needs with GPUs and their part of all of them.
    """
    parts = sum(share for need, share in shares.items() if need.gpu_milli < GPU_MILLI)
    wanted = MOST_OFFERS if not parts else int(BASE_OFFERS / parts)
    return max(FEWEST_OFFERS, min(MOST_OFFERS, wanted))


def expected_fill_table(shares: Mapping[PodDemand, float], model: str, rounds: int) -> FloatArray:
    """U for GPUs of one model.

    Args:
        shares: Needs with GPUs and their part of all of them.
        model: The model.
        rounds: Pods offered.

    Returns:
        Expected thousandths, shape (CORES + 2, LEVELS): by whole cores, the last row twice so that a look-up
        may interpolate towards the next, and by free thousandths in steps of STEP, rounded down.
    """
    steps = _single_gpu_demands(shares, model)
    table = np.zeros((MAX_CORES + 1, MILLI_LEVELS))
    for _ in range(rounds):
        following = table.copy()
        for (cores, levels), share in steps.items():
            taken = table[: MAX_CORES + 1 - cores, : MILLI_LEVELS - levels] + levels * MILLI_STEP
            following[cores:, levels:] += share * (taken - table[cores:, levels:])
        table = following
    return np.vstack([table, table[-1]])


def _single_gpu_demands(shares: Mapping[PodDemand, float], model: str) -> dict[tuple[int, int], float]:
    """What single GPUs are asked for: (cores, levels), both rounded up, with the part of all GPU pods."""
    steps: defaultdict[tuple[int, int], float] = defaultdict(float)
    for need, share in shares.items():
        cores, levels = -(-need.cpu_milli // 1000), -(-need.gpu_milli // MILLI_STEP)
        if need.gpus == 1 and need.accepts_model(model) and cores <= MAX_CORES:
            steps[cores, levels] += share
    return steps


def cpu_claim_factor(mix: WorkloadMix, site: ClusterCapacity) -> float:
    """How many times its even share of the free cores one piece of GPU may count on.

    The more cores pods ask for against what the cluster has for each GPU, the less.
    """
    cores = sum(count * need.cpu_milli for need, count in mix.counts.items())
    milli = sum(count * need.total_milli for need, count in mix.counts.items())
    there = int(site.cpu.sum()) / max(1, site.total_milli)
    if not milli or not cores or not there:
        return MOST_CLAIM
    return min(MOST_CLAIM, CLAIM * math.pow(cores / milli / there, -CLAIM_EXPONENT))


def scarcity_prices(mix: WorkloadMix, site: ClusterCapacity) -> FloatArray:
    """How much demand competes for each GPU of a kind of node, shape (kinds,).

    The mix is scaled so that it asks for exactly the cluster's GPUs. Each need spreads its part evenly over
    the GPUs of the kinds of node that could take it when empty.
    """
    capacity = np.bincount(site.kind_index, site.gpus.sum(1), len(site.kinds)) / GPU_MILLI
    asked = {need: count * need.total_milli for need, count in mix.counts.items() if need.gpus}
    scale = capacity.sum() / max(1.0, sum(asked.values()))
    price = np.zeros(len(site.kinds))
    for need, milli in asked.items():
        fits = np.array([_fits_node_kind(need, *kind) for kind in site.kinds], np.bool_)
        if fits.any():
            price[fits] += milli * scale / capacity[fits].sum()
    return price


def _fits_node_kind(need: PodDemand, model: str, gpus: int, cpu_milli: int) -> bool:
    return need.accepts_model(model) and need.total_milli <= gpus * GPU_MILLI and need.cpu_milli <= cpu_milli
