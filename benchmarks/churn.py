"""Churn: pods arrive, run for a while and leave, near the load that the cluster can sustain; unschedulable pods wait.

    python -m benchmarks.churn --traces ../shared/traces/openb --compiled

No paper on these lists reports this. Pods are drawn from a list with replacement and arrive as a Poisson process;
lifetimes are exponential, and their mean is the unit of time. The offered load is the part of the cluster's GPUs that
would be in use if no pod ever waited. The cluster starts with the average number of pods, then one lifetime is warm-up
and ten are measured. Waiting pods are retried whenever a pod leaves, the longest waiting first; pods that still do not
fit are passed, as in the scheduler's queue. Every strategy gets the same pods at the same times with the same
lifetimes.

`--compiled` runs a copy of the strategies in C++ (benchmarks/churn.cpp; needs a compiler), after checking on a small
part of the cluster that it gives the product's results. Without it the product's own code runs: a minute per run on the
whole cluster, so choose a part with `--part`.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby, product
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from benchmarks.compiled import World
from benchmarks.openb import WHERE, Traces, traces
from webhook.placement.capacity import GPU_MILLI, ClusterCapacity, PodDemand
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.fragmentation.workload_mix import HALF_LIFE, mix_from_demands
from webhook.placement.nodes.score_table import GpuPlacement
from webhook.placement.nodes.simulator import Simulator

SEEDS = range(42, 47)
LOADS = (80, 90, 95)
WARM, LENGTH = 1.0, 10.0
"""Mean lifetimes before anything is measured, and measured."""

MAX_QUEUE = 20_000
"""Queue length at which a run ends: the cluster cannot sustain this load."""


SMALL = 64
"""The compiled copy is compared with the product on every 64th node."""


class Pod(NamedTuple):
    """One pod: arrival, lifetime and demand."""

    arrives: float
    lifetime: float
    need: PodDemand


class Churn(NamedTuple):
    """Result of a run.

    Attributes:
        waited: Percent of the pods that had to wait.
        idle: Idle GPUs while a pod waits, mean over time.
        queue: Waiting pods, mean over time.
        requested: GPUs that the waiting pods request, mean over time.
    """

    waited: float
    idle: float
    queue: float
    requested: float


OVERLOADED = Churn(100.0, float("nan"), float("inf"), float("inf"))


def stream(needs: list[PodDemand], capacity: int, load: int, rng: np.random.Generator) -> list[Pod]:
    """Return the pods of one run, the initial ones first."""
    present = load / 100 * capacity / fmean(need.total_milli for need in needs)
    first = int(rng.poisson(present))
    times = np.cumsum(rng.exponential(1 / present, int(present * (WARM + LENGTH))))
    arrives = np.concatenate([np.zeros(first), times])
    lifetimes = rng.exponential(1.0, len(arrives))
    drawn = rng.integers(len(needs), size=len(arrives))
    return [Pod(float(t), float(d), needs[int(i)]) for t, d, i in zip(arrives, lifetimes, drawn, strict=True)]


class TurnoverEstimator:
    """Learns how many pods leave for each that arrives; older ones count less, as in the mix."""

    def __init__(self) -> None:
        self._came = self._left = 0.0

    def record_arrival(self) -> None:
        """Count an arrival, placed or not."""
        kept = 2 ** (-1 / HALF_LIFE)
        self._came, self._left = kept * self._came + 1.0, kept * self._left

    def record_departure(self) -> None:
        """Count a pod that left."""
        self._left += 1.0

    @property
    def ratio(self) -> float:
        """From 0 (no pod leaves) to 1 (at least as many leave as arrive)."""
        return min(1.0, self._left / self._came) if self._came else 0.0


class Cluster:
    """A cluster over time. Its score table knows the turnover."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator, self._turnover = simulator, TurnoverEstimator()
        self._ends: list[tuple[float, int, GpuPlacement, PodDemand]] = []
        self._waiting: dict[PodDemand, deque[tuple[int, Pod]]] = {}
        self._number = 0
        self._now = 0.0
        self._free = simulator.capacity.total_milli
        self.waiting = self._requested = 0
        self.idle = self.queued = self.requested = 0.0
        self.measured = self.waited = 0

    def arrive(self, pod: Pod) -> None:
        """Advance to the arrival of a pod, and place or queue it."""
        while self._ends and self._ends[0][0] <= pod.arrives:
            self._end()
        self._pass(pod.arrives)
        self._number += 1
        counts = pod.arrives > WARM
        self.measured += counts
        if not self._start(pod):
            self.waited += counts
            self._queue(pod, 1)
            self._waiting.setdefault(pod.need, deque()).append((self._number, pod))
        self._turnover.record_arrival()
        self._simulator.score_table.turnover = self._turnover.ratio
        self._simulator.record_arrival(pod.need)

    def finish(self) -> None:
        """Advance until no pod is running."""
        while self._ends:
            self._end()

    def _start(self, pod: Pod) -> bool:
        place = self._simulator.schedule_pod(pod.need)
        if place is None:
            return False
        self._free -= pod.need.total_milli
        heapq.heappush(self._ends, (self._now + pod.lifetime, self._number, place, pod.need))
        self._number += 1
        return True

    def _end(self) -> None:
        when, _, place, need = heapq.heappop(self._ends)
        self._pass(when)
        self._simulator.score_table.release(place, need)
        self._turnover.record_departure()
        self._simulator.score_table.turnover = self._turnover.ratio
        self._free += need.total_milli
        while (longest := self._next(place.node)) is not None:
            _, pod = self._waiting[longest].popleft()
            if not self._waiting[longest]:
                del self._waiting[longest]
            self._queue(pod, -1)
            self._start(pod)

    def _queue(self, pod: Pod, change: int) -> None:
        self.waiting += change
        self._requested += change * pod.need.total_milli

    def _next(self, node: int) -> PodDemand | None:
        """Return the demand of the longest-waiting pod that fits on a node with new free capacity."""
        if not self._waiting:
            return None
        free, model = self._simulator.score_table.free, self._simulator.capacity.nodes[node].model
        cpu, memory, gpus = int(free.cpu[node]), int(free.memory[node]), free.gpus[node].tolist()
        fitting = (
            need
            for need in self._waiting
            if need.cpu_milli <= cpu
            and need.memory <= memory
            and (
                not need.gpus
                or (need.accepts_model(model) and sum(free >= need.gpu_milli for free in gpus) >= need.gpus)
            )
        )
        return min(fitting, key=lambda need: self._waiting[need][0][0], default=None)

    def _pass(self, now: float) -> None:
        length = max(0.0, now - max(self._now, WARM))
        if self.waiting:
            self.idle += length * self._free
            self.queued += length * self.waiting
            self.requested += length * self._requested
        self._now = now


class RunOptions(NamedTuple):
    """Options of a run.

    Attributes:
        learned: The mix is learned from arrivals instead of given.
        fixed: Ties are broken in the order of the nodes instead of at random.
        compiled: With the compiled copy of the strategies, which cannot learn.
    """

    learned: bool = False
    fixed: bool = False
    compiled: bool = False


DEFAULT_OPTIONS = RunOptions()


def run(
    known: Traces, pods: str, load: int, strategy: ScoringStrategy, seed: int, options: RunOptions = DEFAULT_OPTIONS
) -> Churn:
    """Run one list at one load under one strategy."""
    rng = np.random.default_rng(seed)
    needs = known.lists[pods]
    pods_in_order = stream(needs, known.capacity.total_milli, load, rng)
    if options.compiled:
        return compiled(World(known.capacity, needs, strategy, fixed=options.fixed), pods_in_order, seed)
    order = np.arange(len(known.capacity.nodes)) if options.fixed else None
    cluster = Cluster(
        Simulator(known.capacity, strategy, rng, None if options.learned else mix_from_demands(needs), order=order)
    )
    for pod in pods_in_order:
        cluster.arrive(pod)
        if cluster.waiting > MAX_QUEUE:
            return OVERLOADED
    length = pods_in_order[-1].arrives - WARM
    idle, requested = cluster.idle / GPU_MILLI / length, cluster.requested / GPU_MILLI / length
    return Churn(100 * cluster.waited / cluster.measured, idle, cluster.queued / length, requested)


def compiled(world: World, pods_in_order: list[Pod], seed: int) -> Churn:
    """Run with the compiled copy."""
    needs = [pod.need for pod in pods_in_order]
    times = np.array([(pod.arrives, pod.lifetime) for pod in pods_in_order])
    started, idle = world.play(needs, times, WARM, MAX_QUEUE, seed)
    if np.isinf(idle):
        return OVERLOADED
    arrives, end = times[:, 0], float(times[-1, 0])
    begun = np.where(started < 0, end, started)
    waiting = np.maximum(0.0, begun - np.maximum(arrives, WARM))
    requested = float(waiting @ np.array([need.total_milli for need in needs])) / GPU_MILLI
    waited = 100 * float((started != arrives)[arrives > WARM].mean())
    length = end - WARM
    return Churn(waited, idle / length, float(waiting.sum()) / length, requested / length)


def differences(known: Traces, load: int, seed: int) -> list[str]:
    """Return where the compiled copy differs from the product on a small part of the cluster.

    FGD is excluded: its whole hundredths depend on the last bit of a sum, and so on the order of addition.
    """
    small = part_of(known, SMALL)
    found = []
    for pods, strategy in product(known.lists, set(ScoringStrategy) - {ScoringStrategy.FGD}):
        ours, copied = (
            run(small, pods, load, strategy, seed, RunOptions(fixed=True, compiled=each)) for each in (False, True)
        )
        if not np.allclose(ours, copied, rtol=1e-6):
            found.append(f"{pods}, {strategy}: the product gives {ours}, its compiled copy {copied}")
    return found


def part_of(known: Traces, part: int) -> Traces:
    """Return every `part`-th node."""
    return Traces(ClusterCapacity(known.capacity.nodes[::part]), known.lists)


def table(found: dict[tuple[str, int, str], list[Churn]]) -> list[str]:
    """Return a table with a row per list, load and strategy."""
    lines = [
        "| list | load % | strategy | waited % | sd | idle GPUs meanwhile | sd | waiting pods | GPUs they request |",
        "|---" * 9 + "|",
    ]
    for (pods, load, rule), runs in found.items():
        waited, idle = [each.waited for each in runs], [each.idle for each in runs]
        spread = [stdev(each) if len(each) > 1 else 0.0 for each in (waited, idle)]
        cells = [f"{fmean(waited):.2f}", f"{spread[0]:.2f}", f"{fmean(idle):.1f}", f"{spread[1]:.1f}"]
        cells += [f"{fmean(each.queue for each in runs):.1f}", f"{fmean(each.requested for each in runs):.1f}"]
        lines.append(f"| {pods} | {load} | {rule} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help=f"folder of the openb lists ({WHERE})")
    parser.add_argument("--lists", nargs="*", help="only these")
    parser.add_argument("--loads", nargs="*", type=int, default=LOADS, help="percent (default: 80 90 95)")
    parser.add_argument(
        "--rules", nargs="*", choices=list(ScoringStrategy), default=list(ScoringStrategy), help="only these"
    )
    parser.add_argument(
        "--learned", action="store_true", help="learn the mix from arrivals instead of using the list's"
    )
    parser.add_argument("--compiled", action="store_true", help="run a compiled copy of the strategies")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many, from 42 on (default: 5)")
    parser.add_argument("--part", type=int, default=1, help="use every Nth node (default: 1, all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    flags = parser.parse_args()
    known = part_of(traces(flags.traces), flags.part)
    if flags.compiled and flags.learned:
        parser.error("--compiled and --learned cannot be combined")
    names = [name for name in known.lists if not flags.lists or name in flags.lists]
    work = [
        (name, load, ScoringStrategy(rule), seed)
        for name in names
        for load in flags.loads
        for rule in flags.rules
        for seed in SEEDS[: flags.seeds if flags.traces else 2]
    ]
    if flags.compiled and (wrong := differences(known._replace(lists={n: known.lists[n] for n in names}), 90, 7)):
        print("\n".join(wrong))
        return 1
    options = RunOptions(flags.learned, compiled=flags.compiled)
    found = []
    with ProcessPoolExecutor(flags.jobs) as pool:
        jobs = [(key, pool.submit(run, known, *key, options)) for key in work]
        for key, job in jobs:
            found.append((key[:3], job.result()))
            print(f"\r{len(found)} of {len(work)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    groups = groupby(found, key=lambda each: each[0])
    print("\n".join(table({key: [churn for _, churn in runs] for key, runs in groups})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
