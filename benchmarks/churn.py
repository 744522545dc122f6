"""Churn: pods come, stay for a while and go, at a load that the cluster can just bear; who finds no place waits.

    python -m benchmarks.churn --traces ../shared/traces/openb

No paper on these lists reports this. Pods are drawn from a list with replacement and arrive as a Poisson process;
lifetimes are exponential, and their mean is the unit of time. The offered load is the part of the cluster's GPUs
that would be in use if nobody ever waited. The cluster begins with as many pods as there are on average, then one
lifetime passes unmeasured and ten are measured. Who waits is tried again whenever a pod goes, the longest waiting
first, others past those that still do not fit, as the scheduler's queue does. Every rule gets the same pods at the
same times with the same lifetimes.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from benchmarks.openb import WHERE, Traces, traces
from webhook.placement.fragmentation.mixes import mix_of
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.needs import WHOLE, Need
from webhook.placement.nodes.board import Place
from webhook.placement.nodes.playing import Player
from webhook.placement.rooms import Site

SEEDS = range(42, 47)
LOADS = (80, 90, 95)
WARM, LENGTH = 1.0, 10.0
"""Mean lifetimes before anything is measured, and measured."""

ENOUGH = 20_000
"""Pods in the queue at which a run ends: the cluster cannot bear this load under this rule."""


class Pod(NamedTuple):
    """One pod: when it comes, how long it runs, what it needs."""

    arrives: float
    lifetime: float
    need: Need


class Churn(NamedTuple):
    """What a run came to.

    Attributes:
        waited: Percent of the pods that had to wait.
        idle: GPUs that stand idle while a pod waits, mean over time.
        queue: Pods that wait, mean over time.
        asked: GPUs that those who wait ask for, mean over time.
    """

    waited: float
    idle: float
    queue: float
    asked: float


def stream(needs: list[Need], capacity: int, load: int, rng: np.random.Generator) -> list[Pod]:
    """The pods of one run, those that are there at the beginning first."""
    present = load / 100 * capacity / fmean(need.milli for need in needs)
    first = int(rng.poisson(present))
    times = np.cumsum(rng.exponential(1 / present, int(present * (WARM + LENGTH))))
    arrives = np.concatenate([np.zeros(first), times])
    lifetimes = rng.exponential(1.0, len(arrives))
    drawn = rng.integers(len(needs), size=len(arrives))
    return [Pod(float(t), float(d), needs[int(i)]) for t, d, i in zip(arrives, lifetimes, drawn, strict=True)]


class Cluster:
    """The cluster as time goes by."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._ends: list[tuple[float, int, Place, Need]] = []
        self._waiting: dict[Need, deque[tuple[int, Pod]]] = {}
        self._number = 0
        self._now = 0.0
        self._free = player.site.milli
        self.waiting = self._asked = 0
        self.idle = self.queued = self.asked = 0.0
        self.measured = self.waited = 0

    def arrive(self, pod: Pod) -> None:
        """Go on to the moment a pod comes, and place it or let it wait."""
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
        self._player.learn(pod.need)

    def finish(self) -> None:
        """Let everybody end who can."""
        while self._ends:
            self._end()

    def _start(self, pod: Pod) -> bool:
        place = self._player.place(pod.need)
        if place is None:
            return False
        self._free -= pod.need.milli
        heapq.heappush(self._ends, (self._now + pod.lifetime, self._number, place, pod.need))
        self._number += 1
        return True

    def _end(self) -> None:
        when, _, place, need = heapq.heappop(self._ends)
        self._pass(when)
        self._player.leave(place, need)
        self._free += need.milli
        while (longest := self._next(place.node)) is not None:
            _, pod = self._waiting[longest].popleft()
            if not self._waiting[longest]:
                del self._waiting[longest]
            self._queue(pod, -1)
            self._start(pod)

    def _queue(self, pod: Pod, change: int) -> None:
        self.waiting += change
        self._asked += change * pod.need.milli

    def _next(self, node: int) -> Need | None:
        """The need of the pod that has waited longest of those that fit on a node where room has appeared."""
        if not self._waiting:
            return None
        rooms, model = self._player.board.rooms, self._player.site.machines[node].model
        cpu, memory, gpus = int(rooms.cpu[node]), int(rooms.memory[node]), rooms.gpus[node].tolist()
        fitting = (
            need
            for need in self._waiting
            if need.cpu_milli <= cpu
            and need.memory_mib <= memory
            and (not need.gpus or (need.takes(model) and sum(free >= need.gpu_milli for free in gpus) >= need.gpus))
        )
        return min(fitting, key=lambda need: self._waiting[need][0][0], default=None)

    def _pass(self, now: float) -> None:
        length = max(0.0, now - max(self._now, WARM))
        if self.waiting:
            self.idle += length * self._free
            self.queued += length * self.waiting
            self.asked += length * self._asked
        self._now = now


def run(known: Traces, pods: str, load: int, policy: Policy, seed: int, learnt: bool) -> Churn:
    """One list at one load under one rule."""
    rng = np.random.default_rng(seed)
    needs = known.lists[pods]
    coming = stream(needs, known.site.milli, load, rng)
    cluster = Cluster(Player(known.site, policy, rng, None if learnt else mix_of(needs)))
    for pod in coming:
        cluster.arrive(pod)
        if cluster.waiting > ENOUGH:
            return Churn(100.0, float("nan"), float("inf"), float("inf"))
    length = coming[-1].arrives - WARM
    idle, asked = cluster.idle / WHOLE / length, cluster.asked / WHOLE / length
    return Churn(100 * cluster.waited / cluster.measured, idle, cluster.queued / length, asked)


def part_of(known: Traces, part: int) -> Traces:
    """Every so manieth node."""
    return Traces(Site(known.site.machines[::part]), known.lists)


def table(found: dict[tuple[str, int, str], list[Churn]]) -> list[str]:
    """A row a list, load and rule."""
    lines = [
        "| list | load % | rule | waited % | sd | GPUs idle while one waits | sd | pods waiting | GPUs they ask for |",
        "|---" * 9 + "|",
    ]
    for (pods, load, rule), runs in found.items():
        waited, idle = [each.waited for each in runs], [each.idle for each in runs]
        spread = [stdev(each) if len(each) > 1 else 0.0 for each in (waited, idle)]
        cells = [f"{fmean(waited):.2f}", f"{spread[0]:.2f}", f"{fmean(idle):.1f}", f"{spread[1]:.1f}"]
        cells += [f"{fmean(each.queue for each in runs):.1f}", f"{fmean(each.asked for each in runs):.1f}"]
        lines.append(f"| {pods} | {load} | {rule} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help=f"folder of the openb lists ({WHERE})")
    parser.add_argument("--lists", nargs="*", help="only these")
    parser.add_argument("--loads", nargs="*", type=int, default=LOADS, help="percent (default: 80 90 95)")
    parser.add_argument("--rules", nargs="*", choices=list(Policy), default=list(Policy), help="only these")
    parser.add_argument("--learnt", action="store_true", help="the mix is learnt from arrivals instead of given")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many, from 42 on (default: 5)")
    parser.add_argument("--part", type=int, default=1, help="play on every so manieth node (default: 1, all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    flags = parser.parse_args()
    known = part_of(traces(flags.traces), flags.part)
    names = [name for name in known.lists if not flags.lists or name in flags.lists]
    work = [
        (name, load, Policy(rule), seed)
        for name in names
        for load in flags.loads
        for rule in flags.rules
        for seed in SEEDS[: flags.seeds if flags.traces else 2]
    ]
    found = []
    with ProcessPoolExecutor(flags.jobs) as pool:
        jobs = [(key, pool.submit(run, known, *key, flags.learnt)) for key in work]
        for key, job in jobs:
            found.append((key[:3], job.result()))
            print(f"\r{len(found)} of {len(work)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    groups = groupby(found, key=lambda each: each[0])
    print("\n".join(table({key: [churn for _, churn in runs] for key, runs in groups})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
