"""The best GPU set and the device plugin's choice, against brute force over every free set and size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from tests.cpu_timer import CpuTimer
from tests.placement.machines import reference_topologies, topologies_by_key
from webhook.model.node_masks import bit_positions
from webhook.placement.best_effort_policy import BestEffortPolicy, best_effort_policy
from webhook.placement.nvlink import KEPT_SET_SIZES, GpuSets, gpu_mask, gpu_sets
from webhook.placement.topology import GpuTopology, PciePath, assumed_topology, topology_without_links

KEYS = [
    "dgx1-p100", "dgx1-v100", "dgx2-v100", "dgx-a100-8", "hgx-a100-8-2socket", "hgx-a100-4", "a100-pcie-4-bridged",
    "h100-nvl-4-bridged", "dgx-h100-8", "hgx-h100-4", "hgx-b200-8", "hgx-b300-8", "gb200-tray", "gh200-quad",
    "a6000-4-bridged", "rtx8000-4", "l40s-4", "cloud-pcie-4-node", "pcie-8-sys", "geforce-2-phb",
]  # fmt: skip

Key = tuple[object, ...]


def by_force(topology: GpuTopology, keep: tuple[int, ...] = KEPT_SET_SIZES) -> Callable[[int, int], int]:
    """Return the best set by brute force over the documented criteria."""

    @cache
    def quality(chosen: int) -> tuple[int, int]:
        pairs = [topology.bandwidth(i, j) for i, j in combinations(bit_positions(chosen), 2)]
        return min(pairs, default=0), sum(pairs)

    @cache
    def remains(rest: int, size: int) -> tuple[int, int]:
        return max((quality(gpu_mask(some)) for some in combinations(bit_positions(rest), size)), default=(0, 0))

    def key(free: int, gpus: Sequence[int]) -> Key:
        chosen = gpu_mask(gpus)
        slowest, total = quality(chosen)
        rest = [topology.numa_nodes[gpu] for gpu in bit_positions(free & ~chosen)]
        return (
            -slowest,
            -total,
            *(tuple(-each for each in remains(free & ~chosen, size)) for size in keep),
            len({topology.numa_nodes[gpu] for gpu in gpus}),
            tuple(sorted(-rest.count(node) for node in set(topology.numa_nodes))),
            tuple(gpus),
        )

    return lambda free, count: gpu_mask(min(combinations(bit_positions(free), count), key=lambda gpus: key(free, gpus)))


def test_every_reference_machine_is_covered(shared: Path) -> None:
    assert list(topologies_by_key(shared)) == KEYS


@pytest.mark.parametrize("key", [key for key in KEYS if key != "dgx2-v100"])
def test_optimal_set_equals_brute_force(shared: Path, key: str) -> None:
    topology = topologies_by_key(shared)[key]
    sets, best = GpuSets(topology), by_force(topology)

    unlike = [
        (free, count)
        for free in range(1, 1 << topology.gpu_count)
        for count in range(1, free.bit_count() + 1)
        if sets.optimal_set(free, count) != best(free, count)
    ]

    assert unlike == []


def test_order_of_kept_sizes_matters(shared: Path) -> None:
    topology = topologies_by_key(shared)["dgx1-v100"]
    sets, best = GpuSets(topology, (4, 2)), by_force(topology, (4, 2))

    assert all(sets.optimal_set(free, 1) == best(free, 1) for free in range(1, 256))


@pytest.mark.parametrize("free_gpus", [6, 9, 12])
def test_samples_of_sixteen_gpus_equal_brute_force(free_gpus: int) -> None:
    random = Random(free_gpus)
    topology = uneven(16, random)
    sets, best = GpuSets(topology), by_force(topology)
    for _ in range(6):
        free = gpu_mask(random.sample(range(16), free_gpus))
        for count in (1, 2, 3, 4, free_gpus):
            assert sets.optimal_set(free, count) == best(free, count)


def uneven(gpus: int, random: Random) -> GpuTopology:
    """Links of all kinds, some down at one end."""
    links = [[random.choice([0, 0, 1, 2]) if i != j else 0 for j in range(gpus)] for i in range(gpus)]
    numa = tuple(i // 4 for i in range(gpus))
    return GpuTopology(tuple(map(tuple, links)), topology_without_links(gpus).pcie_paths, numa, nvlink_rate=25_000)


@pytest.mark.parametrize("seed", range(4))
def test_broken_and_one_sided_links(seed: int) -> None:
    topology = uneven(6, Random(seed))
    sets, best = GpuSets(topology), by_force(topology)

    assert all(
        sets.optimal_set(free, count) == best(free, count)
        for free in range(1, 64)
        for count in range(1, free.bit_count() + 1)
    )


@pytest.mark.parametrize(("key", "broken"), [("dgx1-v100", 54), ("dgx1-p100", 62)])
def test_single_gpu_never_costs_the_best_pair_unlike_the_plugin(shared: Path, key: str, broken: int) -> None:
    topology = topologies_by_key(shared)[key]
    sets, rule = gpu_sets(topology), best_effort_policy(topology)

    def pair(free: int) -> int:
        return max((rule.set_score(gpu_mask(two)) for two in combinations(bit_positions(free), 2)), default=0)

    def ruins(choose: Callable[[int], int | None]) -> int:
        best = {free: max(pair(free & ~(1 << gpu)) for gpu in bit_positions(free)) for free in range(1, 256)}
        return sum(pair(free & ~(choose(free) or 0)) < best[free] for free in range(1, 256))

    assert ruins(lambda free: sets.optimal_set(free, 1)) == 0
    assert ruins(lambda free: rule.predict_set(free, 1)) == broken


@pytest.mark.parametrize(
    ("sentence", "key", "free", "count", "chosen"),
    [
        ("one GPU is taken from a pair that is broken already", "a100-pcie-4-bridged", [0, 1, 2], 1, [2]),
        ("a bonded pair before any other", "a100-pcie-4-bridged", [0, 2, 3], 2, [2, 3]),
        ("bridges across sockets are seen", "rtx8000-4", [0, 1, 2, 3], 2, [0, 3]),
        ("behind a switch one socket is left whole", "dgx-h100-8", [0, 1, 2, 3, 4, 5], 1, [4]),
        ("behind a switch a pair lies on one socket", "dgx-h100-8", [0, 4, 5, 6], 2, [4, 5]),
        ("the plugin's split is not the best pair", "dgx1-v100", [0, 2, 4, 5], 2, [0, 4]),
    ],
)
def test_optimal_sets(shared: Path, sentence: str, key: str, free: list[int], count: int, chosen: list[int]) -> None:
    assert (
        list(bit_positions(gpu_sets(topologies_by_key(shared)[key]).optimal_set(gpu_mask(free), count) or 0)) == chosen
    )


def test_too_few_free_gpus() -> None:
    sets = gpu_sets(topology_without_links(4))

    assert sets.optimal_set(0b11, 3) is None
    assert sets.optimal_set(0, 1) is None
    assert sets.optimal_set(0b11, 0) is None


def test_largest_island_connects_every_pair(shared: Path) -> None:
    assert gpu_sets(topologies_by_key(shared)["dgx1-v100"]).largest_island(255) == 4
    assert gpu_sets(topologies_by_key(shared)["dgx1-v100"]).largest_island(gpu_mask([0, 5, 6])) == 2
    assert gpu_sets(topologies_by_key(shared)["a100-pcie-4-bridged"]).largest_island(gpu_mask([0, 2])) == 1
    assert gpu_sets(topologies_by_key(shared)["dgx-h100-8"]).largest_island(gpu_mask([0, 3, 7])) == 3
    assert gpu_sets(topologies_by_key(shared)["dgx2-v100"]).largest_island((1 << 16) - 1) == 16
    assert gpu_sets(topology_without_links(8)).largest_island(0) == 0


def test_equal_topologies_share_their_sets(shared: Path) -> None:
    assert gpu_sets(topologies_by_key(shared)["dgx-h100-8"]) is gpu_sets(topologies_by_key(shared)["dgx-h100-8"])


def cases(shared: Path, policy: str) -> list[dict[str, object]]:
    """The published cases of a rule."""
    return [
        case for case in reference_topologies(shared)["go_gpuallocator"]["upstream_cases"] if case["policy"] == policy
    ]


def test_plugin_answers_every_published_case(shared: Path) -> None:
    known = topologies_by_key(shared)
    wrong = [
        case
        for case in reference_topologies(shared)["go_gpuallocator"]["upstream_cases"]
        if case["policy"] == "best_effort"
        and best_effort_policy(known[case["node"]]).predict_set(
            gpu_mask(case["available"]), case["size"], gpu_mask(case["required"])
        )
        != (gpu_mask(case["expected"]) or None)
    ]

    assert wrong == []


def test_plugin_answers_every_published_sequence(shared: Path) -> None:
    for case in reference_topologies(shared)["go_gpuallocator"]["upstream_sequences"]:
        topology = topologies_by_key(shared)[case["node"]]
        free, given = (1 << topology.gpu_count) - 1, []
        for _ in case["results"]:
            chosen = best_effort_policy(topology).predict_set(free, case["size"]) or 0
            given.append(list(bit_positions(chosen)))
            free &= ~chosen
        assert given == case["results"], case


def test_plugin_answers_derived_cases(shared: Path) -> None:
    for case in reference_topologies(shared)["computed_cases"]:
        rule = best_effort_policy(topologies_by_key(shared)[case["node"]])
        chosen = rule.predict_set(gpu_mask(case["available"]), case["size"], gpu_mask(case["required"])) or 0
        assert list(bit_positions(chosen)) in case["any_of"], case
        assert rule.set_score(chosen) == case["set_score"], case


def test_plugin_scores_as_published(shared: Path) -> None:
    rule = best_effort_policy(topologies_by_key(shared)["dgx1-v100"])

    for case in reference_topologies(shared)["go_gpuallocator"]["set_scores_dgx1_v100"]:
        assert rule.set_score(gpu_mask(case["set"])) == case["score"], case


def splits(free: list[int], size: int) -> list[list[list[int]]]:
    """Every split of the free GPUs into sets, in the original's order; a hole is a number above all GPUs."""
    if not free:
        return [[]]
    found = []
    for some in combinations(free[1:], size - 1):
        first = [free[0], *some]
        holes = sum(gpu >= 100 for gpu in first)
        if holes in (0, sum(gpu >= 100 for gpu in free)):
            rest = [gpu for gpu in free if gpu not in first]
            found += [[first, *others] for others in splits(rest, size)]
    return found


def by_splits(rule: BestEffortPolicy, gpus: list[int], size: int, required: Sequence[int] = ()) -> int:
    """Return the original's answer: of the best split with the required GPUs in one full set, the best full set."""

    def points(some: Sequence[int]) -> int:
        return rule.set_score(gpu_mask([gpu for gpu in some if gpu < 100]))

    def full(split: list[list[int]]) -> list[list[int]]:
        return [each for each in split if max(each) < 100 and set(required) <= set(each)]

    padded = [*gpus, *range(100, 100 + -len(gpus) % size)]
    best = max(filter(full, splits(padded, size)), key=lambda split: sum(map(points, split)))
    return gpu_mask(max(full(best), key=points))


@pytest.mark.parametrize("key", ["dgx1-v100", "a100-pcie-4-bridged", "l40s-4"])
def test_plugin_equals_the_search_through_all_splits(shared: Path, key: str) -> None:
    topology = topologies_by_key(shared)[key]
    rule = BestEffortPolicy(topology)
    random = Random(1)
    frees = random.sample(range(1, 1 << topology.gpu_count), min(60, (1 << topology.gpu_count) - 1))

    for free in frees:
        gpus = list(bit_positions(free))
        for size in range(2, len(gpus) + 1):
            assert rule.predict_set(free, size) == by_splits(rule, gpus, size), (gpus, size)
            must = random.sample(gpus, random.randint(1, size))
            assert rule.predict_set(free, size, gpu_mask(must)) == by_splits(rule, gpus, size, must), (gpus, size, must)


def test_required_gpus_are_never_in_the_smaller_set(shared: Path) -> None:
    """The best split of 0, 1 and 5 into pairs is 0 alone, and 1 with 5; the original leaves it out."""
    rule = best_effort_policy(topologies_by_key(shared)["dgx1-v100"])

    assert rule.predict_set(gpu_mask([0, 1, 5]), 2) == gpu_mask([1, 5])
    assert rule.predict_set(gpu_mask([0, 1, 5]), 2, gpu_mask([0])) == gpu_mask([0, 1])


def mixed(gpus: int, random: Random) -> GpuTopology:
    """Links of all kinds, equal at both ends."""
    links, buses = [[0] * gpus for _ in range(gpus)], [[PciePath.SYS] * gpus for _ in range(gpus)]
    for one, other in combinations(range(gpus), 2):
        links[one][other] = links[other][one] = random.choice([0, 0, 1, 2])
        buses[one][other] = buses[other][one] = random.choice(list(PciePath))
    return GpuTopology(tuple(map(tuple, links)), tuple(map(tuple, buses)), (0,) * gpus, nvlink_rate=25_000)


@pytest.mark.parametrize(
    ("free_gpus", "size"), [(16, 8), (12, 4), (12, 10), (12, 5), (11, 7), (11, 3), (10, 2), (9, 6)]
)
def test_plugin_equals_the_search_on_samples_of_sixteen_gpus(free_gpus: int, size: int) -> None:
    random = Random(size)
    rule = BestEffortPolicy(mixed(16, random))
    for _ in range(2):
        gpus = sorted(random.sample(range(16), free_gpus))
        must = random.sample(gpus, 2)
        assert rule.predict_set(gpu_mask(gpus), size) == by_splits(rule, gpus, size)
        assert rule.predict_set(gpu_mask(gpus), size, gpu_mask(must)) == by_splits(rule, gpus, size, must)


@pytest.mark.parametrize("size", range(1, 17))
def test_plugin_handles_sixteen_gpus(shared: Path, size: int) -> None:
    """Trying all splits takes 43 s for fifteen GPUs."""
    for topology in (topologies_by_key(shared)["dgx2-v100"], mixed(16, Random(1))):
        rule, every = BestEffortPolicy(topology), (1 << 16) - 1
        with CpuTimer() as timer:
            chosen = [rule.predict_set(every, size) or 0, rule.predict_set(every, size, every >> 16 - size) or 0]
        assert [each.bit_count() for each in chosen] == [size, size]
        assert timer.seconds < 1


def test_plugin_ignores_links_to_a_switch(shared: Path) -> None:
    plain = topologies_by_key(shared)["dgx-h100-8"]
    switched = GpuTopology(plain.nvlinks, plain.pcie_paths, plain.numa_nodes, plain.nvlink_rate, nvswitch=True)

    assert best_effort_policy(switched).set_score(0b11) == 0


def test_plugin_fails_on_one_sided_links() -> None:
    rule = best_effort_policy(uneven(6, Random(1)))

    assert rule.predict_set(0b111, 2) is None
    assert rule.predict_set(0b110, 1) == 0b10


def test_plugin_counts_the_links_of_the_lower_index() -> None:
    links = ((0, 1, 4), (3, 0, 2), (2, 2, 0))
    rule = best_effort_policy(GpuTopology(links, topology_without_links(3).pcie_paths, (0, 0, 0), nvlink_rate=25_000))

    assert [rule.set_score(0b011), rule.set_score(0b101), rule.set_score(0b110)] == [100, 400, 200]
    assert rule.predict_set(0b111, 2) == 0b101


@pytest.mark.parametrize("free", range(9))
def test_guaranteed_island_is_in_every_choice_of_free_gpus(free: int) -> None:
    sets = gpu_sets(assumed_topology("Tesla-V100-SXM2-32GB", 8))

    assert sets.guaranteed_island(free) == min(
        sets.largest_island(gpu_mask(some)) for some in combinations(range(8), free)
    )
