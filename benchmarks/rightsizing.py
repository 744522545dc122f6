"""Limits of GPU memory on a day of real pods: how often they are exceeded, and how much of them is unused.

    python -m benchmarks.rightsizing --trace ../shared/traces/gentd26       the published day
    python -m benchmarks.rightsizing                                        twelve generated pods, to try it

Exit code 1 if a baseline differs from its published figure in any digit, or if no target lets the estimator with its
own prices stay at 2 % of pod-hours and 38.5 % slack, or none at 0.5 % and 46 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import baselines
from benchmarks.gentd26 import (
    CARD_MIB,
    WHERE,
    Decision,
    Pod,
    Score,
    archive_in,
    decisions,
    read_trace,
    score,
    synthetic_trace,
)
from benchmarks.hourly_limits import Chosen, chosen, pool_of
from webhook.usage.history import Floats

TARGETS = (0.04, 0.03, 0.025, 0.02, 0.015, 0.01, 0.005, 0.0025)
MULTIPLES = np.arange(1.0, 2.5, 0.01)
CONSTANTS_MIB = 1024 * np.arange(24, 48.01, 0.25)
RESAMPLES = 1000

PUBLISHED = {
    "pod max x 1.15 (KRR)": ("4.18", "60.2", "40.8", "42.3"),
    "peak bucket x 1.15 (VPA-like)": ("3.73", "56.2", "41.6", "43.4"),
    "constant 40 GiB": ("2.28", "", "40.0", "42.2"),
    "constant 44 GiB": ("0.83", "", "44.0", "47.5"),
    "constant 46 GiB": ("0.41", "", "46.0", "49.8"),
    "constant 47 GiB": ("0.12", "", "47.0", "50.8"),
    "fleet max": ("0.25", "", "", "50.6"),
    "fleet max x 1.02": ("0.12", "", "", "51.4"),
    "oracle": ("0.00", "", "", "14.1"),
}
"""Percent of pod-hours overrun, percent of pods, mean limit in GiB and slack in percent, where they are given."""

AIMS = ((2.0, 38.5), (0.5, 46.0))
"""Percent of pod-hours overrun, and slack in percent, that some target must keep together."""


def baseline_limits(cases: list[Decision], pods: list[Pod]) -> dict[str, Floats]:
    """Return every rule with published figures."""
    peaks, fleet = baselines.history_peaks(cases), baselines.fleet_max(cases, pods)
    constants = {f"constant {gib} GiB": baselines.constant(cases, gib) for gib in (40, 44, 46, 47)}
    return {
        "pod max x 1.15 (KRR)": peaks * baselines.MARGIN,
        "peak bucket x 1.15 (VPA-like)": baselines.vpa_bucket(peaks) * baselines.MARGIN,
        **constants,
        "fleet max": fleet,
        "fleet max x 1.02": fleet * 1.02,
        "oracle": baselines.oracle(cases),
    }


def format_score(found: Score) -> tuple[str, str, str, str]:
    """Format a score to the published digits."""
    return f"{found.overrun:.2f}", f"{found.pods:.1f}", f"{found.limit:.1f}", f"{found.slack:.1f}"


class Knobs(NamedTuple):
    """A rule with one parameter: a column for each setting. Exceeded hours and slack, summed by pod (rows)."""

    overruns: Floats
    slack: Floats
    hours: Floats


def knobs(cases: list[Decision], limits: Floats) -> Knobs:
    """Evaluate every setting; `limits` has a row per decision."""
    names = [each.pod.name for each in cases]
    pods = np.array(sorted(set(names)))
    mine = (pods[:, None] == np.array(names)).astype(float)
    capped = np.minimum(limits, CARD_MIB)
    peaks, means = (np.array([[each[field]] for each in cases], dtype=float) for field in (2, 3))
    return Knobs(mine @ (peaks > capped), mine @ (1 - means / capped), mine.sum(axis=1))


def resampled(pods: int, seed: int = 1) -> Floats:
    """Return how often each pod is drawn, a row per resample; the first row is every pod once."""
    draws = np.random.default_rng(seed).multinomial(pods, np.full(pods, 1 / pods), size=RESAMPLES)
    return np.vstack((np.ones(pods), draws))


def rates(rule: Knobs, draws: Floats) -> tuple[Floats, Floats]:
    """Return percent of hours exceeded and slack in percent, a row per resample and a column per setting."""
    hours = (draws @ rule.hours)[:, None]
    return 100 * (draws @ rule.overruns) / hours, 100 * (draws @ rule.slack) / hours


def frontier(rule: Knobs, draws: Floats, level: float) -> Floats:
    """Return the least slack with exceeded hours at or below a level (a share), the setting chosen in each resample."""
    overrun, slack = rates(rule, draws)
    return np.asarray(np.where(overrun <= 100 * level, slack, np.inf).min(axis=1))


def between(values: Floats, digits: int) -> str:
    """Return the first value, and the middle 95 % of the others."""
    low, high = np.percentile(values[1:], (2.5, 97.5))
    return f"{values[0]:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"


def knobs_of_all(cases: list[Decision], found: Chosen, on_rungs: Chosen) -> dict[str, Knobs]:
    """Return the rules of the frontier."""
    peaks = baselines.history_peaks(cases)[:, None]
    every = np.ones_like(peaks)
    return {
        "pod max x m (KRR)": knobs(cases, peaks * MULTIPLES),
        "peak bucket x m (VPA-like)": knobs(cases, baselines.vpa_bucket(peaks) * MULTIPLES),
        "constant": knobs(cases, every * CONSTANTS_MIB),
        "the estimator": knobs(cases, found.at_prices),
        "the estimator on 4-GiB rungs": knobs(cases, on_rungs.at_prices),
    }


def faults(scores: dict[str, Score], own: dict[float, Score]) -> list[str]:
    """Return the failed checks."""
    wrong = [
        f"{name}: {', '.join(format_score(scores[name]))}, published as {', '.join(want)}"
        for name, want in PUBLISHED.items()
        if any(said and said != is_ for said, is_ in zip(want, format_score(scores[name]), strict=True))
    ]
    for overrun, slack in AIMS:
        if not any(one.overrun <= overrun and one.slack <= slack for one in own.values()):
            wrong.append(f"no target keeps {overrun:g} % of pod-hours at {slack:g} % slack")
    return wrong


def report_baselines(scores: dict[str, Score]) -> None:
    """Print the rules without a parameter."""
    print("| rule | overrun, % of pod-hours | pods ever hit, % | mean limit, GiB | slack, % |\n" + "|---" * 5 + "|")
    for name, found in scores.items():
        print(f"| {name} | {' | '.join(format_score(found))} |")


def report_own(cases: list[Decision], ways: dict[str, Chosen], draws: Floats) -> None:
    """Print the estimator with the current price, by target."""
    print("\n| estimator, own prices | target, % | overrun, % | slack, % | pods ever hit, % | stated risk, % |")
    print("|---" * 6 + "|")
    for name, way in ways.items():
        for target in TARGETS:
            overrun, slack = rates(knobs(cases, way.priced[target][:, None]), draws)
            hit, stated = score(cases, way.priced[target]).pods, 100 * way.stated[target].mean()
            cells = (f"{100 * target:g}", between(overrun[:, 0], 2), between(slack[:, 0], 1))
            print(f"| {name} | {' | '.join(cells)} | {hit:.1f} | {stated:.2f} |")


def report_frontier(rules: dict[str, Knobs], draws: Floats) -> None:
    """Print the least slack at each level of exceeded hours, one setting per rule, in hindsight."""
    heads = " | ".join(f"{100 * level:g} %" for level in TARGETS)
    print(f"\n| least slack (%) with overruns at most | {heads} |\n" + "|---" * (1 + len(TARGETS)) + "|")
    for name, rule in rules.items():
        cells = [between(frontier(rule, draws, level), 1) for level in TARGETS]
        print(f"| {name} | {' | '.join(cells)} |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the three tables; return 1 if a check fails on the real trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help=f"folder of the trace, published at {WHERE}")
    folder = parser.parse_args(arguments).trace
    if folder and not archive_in(folder).is_file():
        parser.error(f"--trace: must be a folder of the trace, found no {archive_in(folder)}. It is at {WHERE}")
    pods = read_trace(folder) if folder else synthetic_trace()
    cases = decisions(pods)
    if folder is None:
        print(f"No --trace: {len(pods)} synthetic pods. The real ones: {WHERE}.\n")
    scores = {name: score(cases, limits) for name, limits in baseline_limits(cases, pods).items()}
    pool = pool_of(pods)
    ways = {"any size": chosen(cases, pool, TARGETS), "4-GiB rungs": chosen(cases, pool, TARGETS, rungs=True)}
    draws = resampled(len({each.pod.name for each in cases}))
    report_baselines(scores)
    report_own(cases, ways, draws)
    report_frontier(knobs_of_all(cases, *ways.values()), draws)
    own = {target: score(cases, ways["any size"].priced[target]) for target in TARGETS}
    wrong = faults(scores, own) if folder else []
    print("\n".join(["", *wrong]) if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
