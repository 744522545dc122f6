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
MOST_GAP = {"tab": 0.95, "tab, mix learned": 1.05}
"""Points, mean over the five lists."""

AT = (95, 100, 130)
"""Percent requested at which the allocation is reported."""


class StrategyOptions(NamedTuple):
    """A strategy with its options."""

    strategy: ScoringStrategy
    learned: bool = False
    fixed: bool = False


STRATEGIES = {
    "tab": StrategyOptions(ScoringStrategy.TAB),
    "tab, mix learned": StrategyOptions(ScoringStrategy.TAB, learned=True),
    "fgd, fixed ties": StrategyOptions(ScoringStrategy.FGD, fixed=True),
    "fgd": StrategyOptions(ScoringStrategy.FGD),
    "most-allocated": StrategyOptions(ScoringStrategy.MOST_ALLOCATED),
    "default": StrategyOptions(ScoringStrategy.DEFAULT),
}


class Run(NamedTuple):
    """One run of one list."""

    pods: str
    strategy_name: str
    seed: int
    at: dict[int, float]
    milliseconds: float


def play(known: Traces, pods: str, strategy_name: str, seed: int) -> Run:
    """Run one list. Equal seeds give every strategy the same arrivals."""
    options, needs, rng = STRATEGIES[strategy_name], known.lists[pods], np.random.default_rng(seed)
    order = arrivals(needs, known.capacity.total_milli, rng)
    ranks = rng.permutation(len(known.capacity.nodes)) if options.fixed else None
    simulator = Simulator(
        known.capacity, options.strategy, rng, None if options.learned else mix_from_demands(needs), order=ranks
    )
    start = time.thread_time()
    at = fill(simulator, order)
    return Run(pods, strategy_name, seed, at, 1000 * (time.thread_time() - start) / len(order))


def run_all(known: Traces, seeds: Sequence[int], strategies: Iterable[str], jobs: int) -> list[Run]:
    """Run everything and report progress."""
    work = [
        (known, pods, strategy_name, seed) for pods in known.lists for strategy_name in strategies for seed in seeds
    ]
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
        groups.setdefault((run.pods, run.strategy_name), []).append(run)
    return {key: _figure(group) for key, group in groups.items()}


def _figure(group: Sequence[Run]) -> Figure:
    full = [run.at[100] for run in group]
    later = fmean(run.at[max(run.at)] for run in group)
    sd = stdev(full) if len(full) > 1 else 0.0
    return Figure(fmean(full), sd, later, fmean(run.milliseconds for run in group))


def report(found: dict[tuple[str, str], Figure], strategies: Sequence[str]) -> list[str]:
    """Return a table with a row per list and strategy."""
    lines = [
        "| list | strategy | at 100 % | sd | at 130 % | FGD published | bound | gap | ms a pod |",
        "|---" * 9 + "|",
    ]
    for pods in sorted({pods for pods, _ in found}):
        known = KNOWN.get(pods)
        for strategy_name in strategies:
            figure = found[pods, strategy_name]
            published = (f"{known.fgd:.2f} ± {known.fgd_sd:.2f}", f"{known.bound:.2f}") if known else ("-", "-")
            gap = f"{known.bound - figure.mean:.2f}" if known else "-"
            cells = (
                pods,
                strategy_name,
                f"{figure.mean:.2f}",
                f"{figure.sd:.2f}",
                f"{figure.later:.2f}",
                *published,
                gap,
            )
            lines.append(f"| {' | '.join(cells)} | {figure.milliseconds:.2f} |")
    return lines


def gaps(found: dict[tuple[str, str], Figure], strategy_name: str) -> list[float]:
    """Return the points to the bound, only of the five reference lists if all are present."""
    lists = [pods for pods, of in found if of == strategy_name and pods in KNOWN]
    measured = FIVE if set(FIVE) <= set(lists) else lists
    return [KNOWN[pods].bound - found[pods, strategy_name].mean for pods in measured]


def exceeded_limits(found: dict[tuple[str, str], Figure], strategies: Sequence[str]) -> list[str]:
    """Return the limits that are exceeded."""
    wrong = [
        f"{strategy_name}: mean gap {fmean(each):.2f}, must be at most {most}"
        for strategy_name, most in MOST_GAP.items()
        if strategy_name in strategies and (each := gaps(found, strategy_name)) and fmean(each) > most
    ]
    for (pods, strategy_name), figure in found.items():
        if strategy_name != "tab" or pods not in KNOWN:
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
    parser.add_argument(
        "--strategies", nargs="*", choices=list(STRATEGIES), default=list(STRATEGIES), help="only these strategies"
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many, from 42 on (default: 10)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    flags = parser.parse_args()
    known = traces(flags.traces)
    lists = {name: needs for name, needs in known.lists.items() if not flags.lists or name in flags.lists}
    seeds = SEEDS[: flags.seeds] if flags.traces else SEEDS[:3]
    if not flags.traces:
        print(f"Synthetic trace; pass the real one with --traces. It is published at {WHERE}")
    found = figures(run_all(known._replace(lists=lists), seeds, flags.strategies, flags.jobs))
    print("\n".join(report(found, flags.strategies)))
    for strategy_name in flags.strategies:
        if each := gaps(found, strategy_name):
            print(f"{strategy_name}: mean gap to the bound {fmean(each):.2f} points over {len(each)} lists")
    wrong = exceeded_limits(found, flags.strategies) if len(seeds) > 1 else []
    for exceeded in wrong:
        print(exceeded)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
