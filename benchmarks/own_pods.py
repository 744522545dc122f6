"""MIG layouts where each of thousands of nodes has pods of its own, beside pods that may use all nodes.

    python -m benchmarks.own_pods --nodes 5000

The own pods are of 20 kinds of nodes, and four common pods for each node need slices of every size. Exit code 1 if a
pod is not served, if the cards are more than 5 % above the bound, or after more than 10 seconds of CPU or 512 MiB.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time

from webhook.placement.layout_parts import plan_layouts
from webhook.placement.layout_plan import WHOLE_CARD, CardUnit, EqualNodes, UnitDemand

PRODUCT = "NVIDIA-H100-80GB-HBM3"
PROFILES = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")
LAYOUTS = ((("1g.10gb", 7),), (("3g.40gb", 2),), WHOLE_CARD, WHOLE_CARD)
KINDS, CARDS = 20, 8
SECONDS_TO_PLAN = 600.0
"""Wall time, which another program on the machine may take."""

MOST_GAP_PERCENT, MOST_SECONDS, MOST_MEBIBYTES = 5.0, 10.0, 512


def main() -> int:
    """Plan, print the figures, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    nodes = parser.parse_args().nodes
    groups, demands = random_cluster(nodes, random.Random(1))
    start = time.process_time()
    plan = plan_layouts(groups, demands, SECONDS_TO_PLAN)
    seconds = time.process_time() - start
    gap = 100 * (plan.used.value - plan.used.bound) / plan.used.bound
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{nodes} nodes: {plan.used.value} cards, {gap:.1f} % above the bound, {plan.unserved.value} pods unserved")
    print(f"{seconds:.1f} s of CPU, {memory} MiB")
    missed = gap > MOST_GAP_PERCENT or seconds > MOST_SECONDS or memory > MOST_MEBIBYTES
    return int(missed or plan.unserved.value > 0)


def random_cluster(nodes: int, rng: random.Random) -> tuple[list[EqualNodes], list[UnitDemand]]:
    """Return nodes of three kinds, and the demand of their own pods and of common ones."""
    today = [(WHOLE_CARD,) * CARDS, *(tuple(sorted(rng.choices(LAYOUTS, k=CARDS))) for _ in range(2))]
    kinds = [[(rng.randint(1, 4), rng.randint(0, 4)) for _ in range(rng.randint(1, 2))] for _ in range(KINDS)]
    groups = [EqualNodes(PRODUCT, rng.choice(today), 1, bit, drain=rng.randint(0, 1)) for bit in range(nodes)]
    own = [_demand(*each, 1 << bit) for bit in range(nodes) for each in rng.choice(kinds)]
    common = [_demand(4 * nodes // len(PROFILES), first, -1) for first in range(len(PROFILES))]
    return groups, [*own, *common]


def _demand(requests: int, first: int, nodes: int) -> UnitDemand:
    units = [CardUnit(PRODUCT, profile) for profile in (*PROFILES[first:], "")]
    return UnitDemand(requests, tuple(units), 1, nodes)


if __name__ == "__main__":
    sys.exit(main())
