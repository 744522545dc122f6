"""Cards that MIG layouts need on two published traces: ours, fixed layouts, whole GPUs, and the bound.

openb: all pods of a list request their share of a GPU at the same time, as memory and as compute, on cards of one
product. Pods with several GPUs, and those that no slice covers, have whole cards.

GenTD26: each pod needs the largest memory and the 95th percentile of the duty that it ever had, while it runs. The
layouts are for what is enough in 95 % of the time. Others, for the first two thirds of the time, serve the rest.

Every layout is used as well as possible.

    python -m benchmarks.layout --traces ../shared/traces/openb --trace ../shared/traces/gentd26

Exit code 1 if our cards are more than 2 % above the bound, or above those of any fixed layout, or if they serve less
than 98 % of the requests of the time that was not used to plan.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gentd26 import Pod, history_of, read_duty, read_trace, synthetic_trace
from benchmarks.openb import traces
from webhook.audit.recorded_demand import PLANNED_PART, DemandSeries, build_series, serve_series
from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.mig_catalog import mig_card_spec
from webhook.placement.capacity import PodDemand
from webhook.placement.integer_program import IntegerProgram
from webhook.placement.layout_parts import plan_layouts
from webhook.placement.layout_plan import WHOLE_CARD, CardUnit, EqualNodes, UnitDemand
from webhook.placement.mig import MigLayout, mig_geometry
from webhook.report.layout_demand import RequestOrigin, UnitNeed
from webhook.usage.container_samples import multiprocessor_share
from webhook.usage.history import UsageHistory

PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A30")
BALANCED: dict[str, MigLayout] = {
    "NVIDIA-H100-80GB-HBM3": (("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)),
    "NVIDIA-A100-SXM4-80GB": (("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)),
    "NVIDIA-A30": (("1g.6gb", 2), ("2g.12gb", 1)),
}
"""NVIDIA's fixed formula `all-balanced`."""

SERVING_PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB")
QUANTILE = 0.95
MOST_GAP_PERCENT = 2.0
LEAST_SERVED = 0.98
SECONDS = 60.0


class LayoutFigures(NamedTuple):
    """What one choice of layouts needs for a list.

    Attributes:
        cards: To serve every request.
        served: Requests that are served with as many cards as ours needs.
    """

    name: str
    cards: int
    served: int


def main() -> int:
    """Measure and print; return 1 if a mark is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of openb lists; default: a small made list")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="folder of GenTD26; default: a few made pods")
    options = parser.parse_args()
    lists = traces(options.traces).lists.items()
    served = served_pods_in(options.trace) if options.trace else made_pods()
    missed = [_print_list(product, name, pods) for product in PRODUCTS for name, pods in lists]
    missed += [_print_day(product, served) for product in SERVING_PRODUCTS]
    return int(any(missed))


def _print_list(product: str, name: str, pods: Sequence[PodDemand]) -> bool:
    """Print the figures of one list; return whether a mark is missed."""
    return _print_comparison(f"{product}, {name}", unit_demands(pods, product), product)


def _print_comparison(title: str, demands: Sequence[UnitDemand], product: str) -> bool:
    start, requests = time.process_time(), sum(each.requests for each in demands)
    bound, figures = compare_layouts(demands, product)
    ours, *fixed = figures
    print(f"{title}: {requests} requests, {time.process_time() - start:.1f} s")
    print(f"  {'bound':<14}{bound:>7} cards")
    for each in figures:
        share = 100 * each.served / requests
        print(f"  {each.name:<14}{each.cards:>7} cards {share:6.1f} % served with {ours.cards} cards")
    above_bound = 100 * (ours.cards - bound) > MOST_GAP_PERCENT * bound
    return above_bound or any(ours.cards > each.cards for each in fixed)


class ServedPod(NamedTuple):
    """A pod with its record, the memory in MiB that it needs, and the compute in thousandths of a card."""

    history: UsageHistory
    memory_mib: int
    compute_milli: int


def served_pods_in(folder: Path) -> list[ServedPod]:
    """Return the pods of GenTD26."""
    duty = {pod.name: pod.used for pod in read_duty(folder)}
    pods = [pod for pod in read_trace(folder) if pod.name in duty]
    return [_served_pod(pod, ceil(10 * float(np.quantile(duty[pod.name], 0.95)))) for pod in pods]


def made_pods() -> list[ServedPod]:
    """Return a few made pods with a fifth of a card's compute."""
    return [_served_pod(pod, 200) for pod in synthetic_trace()]


def _served_pod(pod: Pod, compute_milli: int) -> ServedPod:
    return ServedPod(history_of(pod), ceil(float(pod.used.max())), compute_milli)


def _print_day(product: str, pods: Sequence[ServedPod]) -> bool:
    """Print the figures of one day; return whether a mark is missed."""
    series = need_series(pods, product)
    demands = [UnitDemand(requests, need.units) for need, requests in series.quantile(QUANTILE).items()]
    missed = _print_comparison(f"{product}, gentd26, enough in {100 * QUANTILE:g} % of the time", demands, product)
    earlier, later = served_when_planned_before(series, product)
    print(f"  planned with the first {100 * PLANNED_PART:.0f} % of the time: {100 * earlier:.2f} % served in it,")
    print(f"  {100 * later:.2f} % in the time that was not used to plan")
    return missed or later < LEAST_SERVED * earlier


def need_series(pods: Sequence[ServedPod], product: str) -> DemandSeries:
    """Return the concurrent needs of pods, on cards of one product."""
    card = mig_card_spec(product)
    assert card is not None
    lives = []
    for pod in pods:
        covering = [
            CardUnit(product, name)
            for name, profile in card.profiles.items()
            if (profile.memory_mib or 0) >= pod.memory_mib
            and compute_of_slices(product, name) >= pod.compute_milli
            and compute_of_slices(product, name) < CARD_MILLI
        ]
        need = UnitNeed((*covering, CardUnit(product, "")), RequestOrigin.RIGHT_SIZED)
        lives.append(([pod.history], {need: 1}))
    end = max(pod.history.observed_until for pod in pods)
    series = build_series(lives, [], {}, {}, end)
    return series.part(0, series.bins - 1)


def compute_of_slices(product: str, profile: str) -> int:
    """Return the thousandths of a card's compute that a profile has."""
    share = multiprocessor_share(product, profile)
    assert share is not None
    return int(CARD_MILLI * share)


def served_when_planned_before(series: DemandSeries, product: str) -> tuple[float, float]:
    """Return the share of requests that cards serve in the time that they were planned for, and after it."""
    split = round(PLANNED_PART * series.bins)
    earlier, later = series.part(0, split), series.part(split, series.bins)
    demands = [UnitDemand(requests, need.units) for need, requests in earlier.quantile(QUANTILE).items()]
    cards = EqualNodes(product, (WHOLE_CARD,), sum(each.requests for each in demands))
    used = plan_layouts([cards], demands, SECONDS).used_nodes
    (all_before, before), (all_after, after) = serve_series(used, earlier), serve_series(used, later)
    return before / all_before, after / all_after


def unit_demands(pods: Sequence[PodDemand], product: str) -> list[UnitDemand]:
    """Return the requests of pods by the units that cover them: slices of at least their share, or a whole card."""
    capable = slice_milli(product)
    counts = Counter[tuple[CardUnit, ...]]()
    for pod in pods:
        slices = [CardUnit(product, name) for name, milli in capable.items() if milli >= pod.gpu_milli]
        shared = pod.gpus == 1 and pod.gpu_milli < CARD_MILLI
        counts[(*(slices if shared else ()), CardUnit(product, ""))] += pod.gpus
    return [UnitDemand(requests, units) for units, requests in sorted(counts.items()) if requests]


def slice_milli(product: str) -> dict[str, int]:
    """Return the share of a card that each profile surely has: the smaller of memory and compute."""
    card = mig_card_spec(product)
    assert card is not None
    return {
        name: min(
            CARD_MILLI * profile.memory_units // card.memory_units,
            CARD_MILLI * int(name.partition("g")[0]) // card.compute_slices,
        )
        for name, profile in card.profiles.items()
    }


def compare_layouts(demands: Sequence[UnitDemand], product: str) -> tuple[int, list[LayoutFigures]]:
    """Return the bound, and the figures of our layouts and of fixed ones, ours first."""
    requests = sum(each.requests for each in demands)
    plan = plan_layouts([EqualNodes(product, (WHOLE_CARD,), requests)], demands, SECONDS)
    figures = [LayoutFigures("ours", plan.used.value, requests)]
    for name, layout in fixed_layouts(demands, product).items():
        cards = _cards_of_fixed(demands, layout)
        figures.append(LayoutFigures(name, cards, _served_by_fixed(demands, layout, plan.used.value)))
    return plan.used.bound, figures


def fixed_layouts(demands: Sequence[UnitDemand], product: str) -> dict[str, MigLayout]:
    """Return the layouts that are not computed from the demand, and the one of the majority of the requests."""
    geometry = mig_geometry(product)
    assert geometry is not None
    instances = {profile.name: len(profile.starts) for profile in geometry.profiles}
    smallest = Counter[str]()
    for each in demands:
        smallest[min(each.units, key=lambda unit: unit.milli).profile] += each.requests
    del smallest[""]
    majority = max(smallest, key=lambda name: smallest[name], default=geometry.profiles[0].name)
    first = geometry.profiles[0].name
    return {
        "all-balanced": BALANCED[product],
        "all-1g": ((first, instances[first]),),
        "majority": ((majority, instances[majority]),),
        "whole GPUs": WHOLE_CARD,
    }


class _FixedProgram(IntegerProgram):
    """Cards of one layout, whole cards, and the requests that they serve."""

    def __init__(self, demands: Sequence[UnitDemand], layout: MigLayout) -> None:
        super().__init__()
        requests = sum(each.requests for each in demands)
        counts: Mapping[str, int] = dict(layout)
        self.partitioned, self.whole = self.add_variable(requests if layout else 0), self.add_variable(requests)
        self.unserved = [self.add_variable(each.requests) for each in demands]
        by_profile: dict[str, dict[int, int]] = {"": {self.whole: -1}}
        by_profile |= {profile: {self.partitioned: -count} for profile, count in counts.items()}
        for each, unserved in zip(demands, self.unserved, strict=True):
            served = {unserved: 1}
            for unit in each.units:
                if unit.profile in by_profile:
                    index = self.add_variable(each.requests)
                    served[index] = by_profile[unit.profile][index] = 1
            self.require_sum(served, each.requests, each.requests)
        for terms in by_profile.values():
            self.require_sum(terms, upper=0)
        self.start = {index: each.requests for index, each in zip(self.unserved, demands, strict=True)}


def _cards_of_fixed(demands: Sequence[UnitDemand], layout: MigLayout) -> int:
    """Return the fewest cards that serve every request."""
    program = _FixedProgram(demands, layout)
    all_served, cards = dict.fromkeys(program.unserved, 1), {program.partitioned: 1, program.whole: 1}
    return program.minimize([all_served, cards], program.start, SECONDS).objectives[1].value


def _served_by_fixed(demands: Sequence[UnitDemand], layout: MigLayout, cards: int) -> int:
    """Return the most requests that some cards serve."""
    program = _FixedProgram(demands, layout)
    program.require_sum({program.partitioned: 1, program.whole: 1}, upper=cards)
    unserved = program.minimize([dict.fromkeys(program.unserved, 1)], program.start, SECONDS).objectives[0].value
    return sum(each.requests for each in demands) - unserved


if __name__ == "__main__":
    sys.exit(main())
