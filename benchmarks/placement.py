"""GPU allocation by strategy: the published protocol on the openb lists, ties broken at random.

    python -m benchmarks.placement --traces ../shared/traces/openb        ten seeds, every list of the folder

Exit code 1 if TAB's mean gap to the bound over the five reference lists is above 0.95 points with the mix given, or
above 1.05 with the mix learned, or if it is not above published FGD by more than two standard deviations on each list.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from benchmarks.arrivals import arrivals, fill
from benchmarks.openb import WHERE, Traces, traces
from benchmarks.openb_results import KNOWN
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.fragmentation.workload_mix import mix_from_demands
from webhook.placement.nodes.simulator import Simulator

SEEDS = range(42, 52)
FIVE = ("default", "cpu100", "gpushare60", "gpuspec20", "multigpu30")
MOST_GAP = {"tab": 0.95, "tab, mix learnt": 1.05}
"""Points, mean over the five lists."""

AT = (95, 100, 130)
"""Percent requested at which the allocation is reported."""


class Way(NamedTuple):
    """A strategy with its options."""

    strategy: ScoringStrategy
    learnt: bool = False
    fixed: bool = False


WAYS = {
    "tab": Way(ScoringStrategy.TAB),
    "tab, mix learnt": Way(ScoringStrategy.TAB, learnt=True),
    "fgd, fixed ties": Way(ScoringStrategy.FGD, fixed=True),
    "fgd": Way(ScoringStrategy.FGD),
    "most-allocated": Way(ScoringStrategy.MOST_ALLOCATED),
    "default": Way(ScoringStrategy.DEFAULT),
}


class Run(NamedTuple):
    """One run of one list."""

    pods: str
    way: str
    seed: int
    at: dict[int, float]
    milliseconds: float


def play(known: Traces, pods: str, way: str, seed: int) -> Run:
    """Run one list. Equal seeds give every strategy the same arrivals."""
    how, needs, rng = WAYS[way], known.lists[pods], np.random.default_rng(seed)
    order = arrivals(needs, known.site.total_milli, rng)
    ranks = rng.permutation(len(known.site.nodes)) if how.fixed else None
    player = Simulator(known.site, how.strategy, rng, None if how.learnt else mix_from_demands(needs), order=ranks)
    start = time.thread_time()
    at = fill(player, order)
    return Run(pods, way, seed, at, 1000 * (time.thread_time() - start) / len(order))


def played(known: Traces, seeds: Sequence[int], ways: Iterable[str], jobs: int) -> list[Run]:
    """Run everything and report progress."""
    work = [(known, pods, way, seed) for pods in known.lists for way in ways for seed in seeds]
    runs = []
    with ProcessPoolExecutor(jobs) as pool:
        for run in pool.map(play, *zip(*work, strict=True)):
            runs.append(run)
            print(f"\r{len(runs)} of {len(work)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return runs


class Figure(NamedTuple):
    """Mean of the seeds of one list and strategy: percent allocated, and CPU milliseconds per pod."""

    mean: float
    sd: float
    later: float
    milliseconds: float


def figures(runs: Iterable[Run]) -> dict[tuple[str, str], Figure]:
    """Group the runs by list and strategy."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.pods, run.way), []).append(run)
    return {key: _figure(group) for key, group in groups.items()}


def _figure(group: Sequence[Run]) -> Figure:
    full = [run.at[100] for run in group]
    later = fmean(run.at[max(run.at)] for run in group)
    sd = stdev(full) if len(full) > 1 else 0.0
    return Figure(fmean(full), sd, later, fmean(run.milliseconds for run in group))


def report(found: dict[tuple[str, str], Figure], ways: Sequence[str]) -> list[str]:
    """Return a table with a row per list and strategy."""
    lines = ["| list | rule | at 100 % | sd | at 130 % | FGD published | bound | gap | ms a pod |", "|---" * 9 + "|"]
    for pods in sorted({pods for pods, _ in found}):
        known = KNOWN.get(pods)
        for way in ways:
            figure = found[pods, way]
            said = (f"{known.fgd:.2f} ± {known.fgd_sd:.2f}", f"{known.bound:.2f}") if known else ("-", "-")
            gap = f"{known.bound - figure.mean:.2f}" if known else "-"
            cells = (pods, way, f"{figure.mean:.2f}", f"{figure.sd:.2f}", f"{figure.later:.2f}", *said, gap)
            lines.append(f"| {' | '.join(cells)} | {figure.milliseconds:.2f} |")
    return lines


def gaps(found: dict[tuple[str, str], Figure], way: str) -> list[float]:
    """Return the points to the bound, only of the five reference lists if all are present."""
    lists = [pods for pods, of in found if of == way and pods in KNOWN]
    measured = FIVE if set(FIVE) <= set(lists) else lists
    return [KNOWN[pods].bound - found[pods, way].mean for pods in measured]


def faults(found: dict[tuple[str, str], Figure], ways: Sequence[str]) -> list[str]:
    """Return the limits that are exceeded."""
    wrong = [
        f"{way}: mean gap {fmean(each):.2f}, must be at most {most}"
        for way, most in MOST_GAP.items()
        if way in ways and (each := gaps(found, way)) and fmean(each) > most
    ]
    for (pods, way), figure in found.items():
        if way != "tab" or pods not in KNOWN:
            continue
        least = 2 * float(np.hypot(figure.sd, KNOWN[pods].fgd_sd))
        above = figure.mean - KNOWN[pods].fgd
        if above <= least:
            wrong.append(f"{pods}: {above:.2f} points above published FGD, must be more than {least:.2f}")
    return wrong


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help=f"folder of the openb lists ({WHERE})")
    parser.add_argument("--lists", nargs="*", help="only these, for example default cpu100")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS), help="only these rules")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many, from 42 on (default: 10)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    flags = parser.parse_args()
    known = traces(flags.traces)
    lists = {name: needs for name, needs in known.lists.items() if not flags.lists or name in flags.lists}
    seeds = SEEDS[: flags.seeds] if flags.traces else SEEDS[:3]
    if not flags.traces:
        print(f"A small made trace; name the real one with --traces. It is published at {WHERE}")
    found = figures(played(known._replace(lists=lists), seeds, flags.ways, flags.jobs))
    print("\n".join(report(found, flags.ways)))
    for way in flags.ways:
        if each := gaps(found, way):
            print(f"{way}: mean gap to the bound {fmean(each):.2f} points over {len(each)} lists")
    wrong = faults(found, flags.ways) if len(seeds) > 1 else []
    for fault in wrong:
        print(fault)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
