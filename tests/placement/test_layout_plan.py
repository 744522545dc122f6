"""Plans of MIG layouts against brute force over every choice of legal layouts."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, product
from math import comb
from typing import NamedTuple, TypeVar

import pytest

from tests.cpu_timer import CpuTimer
from webhook.placement.integer_program import IntegerProgram
from webhook.placement.layout_parts import independent_parts, plan_layouts
from webhook.placement.layout_plan import (
    WHOLE_CARD,
    CardUnit,
    EqualNodes,
    LayoutPlan,
    UnitDemand,
    UnitLimit,
    is_shared,
)
from webhook.placement.mig import MigLayout, legal_layouts, maximal_layouts, mig_geometry
from webhook.placement.node_layouts import NodeLayout, assign_layouts, group_nodes

A30, A100, H100 = "NVIDIA-A30", "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3"
RTX = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"
BALANCED: MigLayout = (("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1))
SEVEN: MigLayout = (("1g.10gb", 7),)

BUSY_MACHINE_SECONDS = 600.0
"""The solver stops by the clock, whatever the machine does besides."""


def layouts_of(name: str) -> frozenset[MigLayout]:
    """Every legal layout of a product."""
    geometry = mig_geometry(name)
    assert geometry is not None
    return legal_layouts(geometry)


def units_of(name: str) -> list[CardUnit]:
    """The whole card of a product, and all of its slices."""
    return [CardUnit(name, profile) for profile in sorted({name for each in layouts_of(name) for name, _ in each})]


SeatT = TypeVar("SeatT")


def matching_size(requests: Sequence[tuple[SeatT, ...]], units: Counter[SeatT]) -> int:
    """The most requests that get a unit each, by augmenting paths."""
    seats = [unit for unit, count in units.items() for _ in range(min(count, len(requests)))]
    holder: dict[int, int] = {}

    def seated(request: int, tried: set[int]) -> bool:
        for seat, unit in enumerate(seats):
            if unit in requests[request] and seat not in tried:
                tried.add(seat)
                if seat not in holder or seated(holder[seat], tried):
                    holder[seat] = request
                    return True
        return False

    return sum(seated(request, set()) for request in range(len(requests)))


Card = tuple[str, MigLayout]


def choices(groups: Sequence[EqualNodes]) -> Iterator[list[Card]]:
    """Every choice of a maximal layout, one of today's, or none for every card of nodes with one card."""
    names = sorted({group.product for group in groups})
    options = []
    for name in names:
        geometry = mig_geometry(name)
        assert geometry is not None
        today = [group.layouts[0] for group in groups if group.product == name]
        layouts = sorted({WHOLE_CARD, *today, *maximal_layouts(geometry)})
        total = sum(group.nodes for group in groups if group.product == name)
        options.append([[(name, layout) for layout in some] for some in combinations_with_replacement(layouts, total)])
    for some in product(*options):
        yield [card for each in some for card in each]


def best_by_brute_force(groups: Sequence[EqualNodes], demands: Sequence[UnitDemand]) -> tuple[int, int, int]:
    """The fewest unserved requests, used cards and changed cards, in this order, of all choices of layouts."""
    requests = [each.units for each in demands for _ in range(each.requests)]
    today, fixed = Counter[Card](), Counter[Card]()
    for group in groups:
        today[group.product, group.layouts[0]] += group.nodes
        fixed[group.product, group.layouts[0]] += group.nodes * group.fixed
    scores = []
    for chosen in choices(groups):
        if not fixed <= Counter(chosen):
            continue
        units, slices = Counter[CardUnit](), Counter[CardUnit]()
        for name, layout in chosen:
            slices.update({CardUnit(name, profile): count for profile, count in layout})
            units[CardUnit(name, "")] += layout == WHOLE_CARD
        served, by_slice = matching_size(requests, units + slices), matching_size(requests, slices)
        partitioned = sum(layout != WHOLE_CARD for _, layout in chosen)
        changed = sum((today - Counter(chosen)).values())
        scores.append((len(requests) - served, partitioned + served - by_slice, changed))
    return min(scores)


def figures(plan: LayoutPlan) -> tuple[int, int, int]:
    """What brute force computes, of a plan."""
    return plan.unserved.value, plan.used.value, plan.changed


def random_instance(rng: random.Random) -> tuple[list[EqualNodes], list[UnitDemand]]:
    """A few cards of one or two products with legal layouts today, and a few kinds of demand."""
    names = rng.choice([[A30], [A30, RTX], [A100], [H100], [A30, H100]])
    most = 5 if names == [A30] else 2
    cards, units = [], []
    for name in names:
        layouts = sorted(layouts_of(name))
        today = [rng.choice([WHOLE_CARD, rng.choice(layouts)]) for _ in range(rng.randint(1, most))]
        fixed = rng.choice([0, 0, 1])
        cards += [
            EqualNodes(name, (layout,), fixed=bool(fixed and rng.randint(0, 1)))
            for layout in today[: most if len(names) == 1 else 1]
        ]
        units += [CardUnit(name, ""), *units_of(name)]
    some = [rng.sample(units, rng.randint(1, min(4, len(units)))) for _ in range(rng.randint(0, 4))]
    return cards, [UnitDemand(rng.randint(0, 6), tuple(each)) for each in some]


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(6))
def test_plans_equal_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    for case in range(100):
        cards, demands = random_instance(rng)
        plan = plan_layouts(cards, demands)

        assert figures(plan) == best_by_brute_force(cards, demands), (seed, case, cards, demands)
        assert plan.is_optimal
        assert sum(len(group.layouts) * group.nodes for group in plan.used_nodes) == plan.used.value
        assert_is_consistent(cards, demands, plan)


T4 = "Tesla-T4"
FORMS = ("mps", "timeSlicing")


def shared_in(form: str, replicas: int) -> MigLayout:
    """Return the layout of a shared card."""
    return ((f"{form}/{replicas}", replicas),)


def share_need(name: str, form: str, replicas: int) -> tuple[CardUnit, ...]:
    """Return the units of a pod that needs at most one part of a card in some, which may be shared in one form."""
    return (*(CardUnit(name, f"{form}/{count}") for count in range(replicas, 1, -1)), CardUnit(name, ""))


def random_nodes(rng: random.Random) -> tuple[list[NodeLayout], list[UnitDemand]]:
    """Return a few nodes of one product with one or two cards, some shared, and needs on some of them."""
    name = rng.choice([T4, A30])
    slices = [(("1g.6gb", 4),), (("2g.12gb", 2),)] if name == A30 else []
    nodes = []
    for index in range(rng.randint(1, 2 if name == A30 else 3)):
        cards = rng.randint(1, 2 if name == T4 or not index else 1)
        whole = rng.choice([WHOLE_CARD, WHOLE_CARD, *(shared_in(*each) for each in product(FORMS, (2, 4)))])
        layouts = [rng.choice([whole, whole, *slices]) for _ in range(cards)]
        kept = min(rng.choice([0, 0, 1]) if whole == WHOLE_CARD else 0, layouts.count(WHOLE_CARD))
        pods, fixed = rng.choice([0, 0, 1, 2]), rng.random() < 0.2
        nodes.append(NodeLayout(f"n{index}", name, tuple(layouts), kept, pods, fixed, index))
    forms = rng.choice([FORMS, FORMS[:1] * 2, FORMS[1:] * 2])
    units = [share_need(name, form, rng.choice((2, 3, 4))) for form in forms]
    units += [(CardUnit(name, ""),), (CardUnit(name, rng.choice(("1g.6gb", "2g.12gb"))), CardUnit(name, ""))]
    some = rng.sample(units, rng.randint(1, 4))
    return nodes, [UnitDemand(rng.randint(0, 5), each, nodes=rng.choice((-1, -1, 1, 2, 6))) for each in some]


def layouts_of_node(node: NodeLayout) -> Iterator[tuple[MigLayout, ...]]:
    """Yield every choice of layouts of a node's cards, without those that pods keep."""
    if node.fixed:
        yield tuple(node.planned_layouts().elements())
        return
    cards = node.planned_layouts().total()
    geometry = mig_geometry(node.product)
    slices = list(maximal_layouts(geometry)) if geometry else []
    yield from combinations_with_replacement([WHOLE_CARD, *slices], cards)
    for form, replicas in () if node.kept_whole else product(FORMS, (2, 3, 4)):
        yield from combinations_with_replacement([shared_in(form, replicas), *slices], cards)


class NodeSeat(NamedTuple):
    """One unit of a node."""

    node: int
    unit: CardUnit


def served_by(demands: Sequence[UnitDemand], seats: Counter[NodeSeat]) -> int:
    """Return the most requests that get a unit of a node that they may use."""
    requests = [
        tuple(seat for seat in seats if seat.unit in each.units and each.nodes >> seat.node & 1)
        for each in demands
        for _ in range(each.requests)
    ]
    return matching_size(requests, seats)


def score_of_nodes(
    nodes: Sequence[NodeLayout], demands: Sequence[UnitDemand], chosen: Sequence[Sequence[MigLayout]]
) -> tuple[int, ...]:
    """Return what a plan minimizes, the most important first, for layouts of the cards that pods do not keep."""
    slices, whole = Counter[NodeSeat](), Counter[NodeSeat]()
    for node, cards in zip(nodes, chosen, strict=True):
        for card in cards:
            slices.update({NodeSeat(node.bit, CardUnit(node.product, profile)): count for profile, count in card})
        whole[NodeSeat(node.bit, CardUnit(node.product, ""))] += list(cards).count(WHOLE_CARD)
    served, by_slice = served_by(demands, slices + whole), served_by(demands, slices)
    partitioned = sum(card != WHOLE_CARD for cards in chosen for card in cards)
    changes = [(Counter(cards) - node.planned_layouts()).total() for node, cards in zip(nodes, chosen, strict=True)]
    drained = sum(bool(node.pods and changed) for node, changed in zip(nodes, changes, strict=True))
    pairs = sum(comb(node.kept_whole + list(each).count(()), 2) for node, each in zip(nodes, chosen, strict=True))
    unserved = sum(each.requests for each in demands) - served
    return unserved, partitioned + served - by_slice, sum(changes), drained, -pairs, sum(map(bool, changes))


@pytest.mark.parametrize("seed", range(4))
def test_plans_of_nodes_equal_brute_force(seed: int) -> None:
    """Of all plans that serve as much with as few cards, the one is chosen that is nearest to today's layouts."""
    rng = random.Random(seed)
    for case in range(25):
        nodes, demands = random_nodes(rng)
        groups = group_nodes(nodes, demands)
        plan = plan_layouts([group for group, _ in groups], demands)
        changes = {change.node.node: change.layouts for change in assign_layouts(groups, plan)}
        after = [Counter(changes.get(node.node, node.layouts)) for node in nodes]
        for node, cards in zip(nodes, after, strict=True):
            cards[WHOLE_CARD] -= node.kept_whole
        score = score_of_nodes(nodes, demands, [tuple(cards.elements()) for cards in after])

        assert score == min(
            score_of_nodes(nodes, demands, choice) for choice in product(*(layouts_of_node(node) for node in nodes))
        ), (seed, case, nodes, demands)
        assert score[:3] == figures(plan)
        assert plan.is_optimal
        assert_nodes_are_legal(nodes, changes)


def test_fewest_cards_change_where_presolve_loses_the_optimum() -> None:
    shared, busy = shared_in("mps", 4), NodeLayout("n0", T4, (WHOLE_CARD,) * 2, pods=1)
    nodes = [busy, *(NodeLayout(f"n{bit}", T4, (shared,), bit=bit) for bit in (1, 2))]
    demands = [UnitDemand(5, share_need(T4, "mps", 4)[:-1]), UnitDemand(4, share_need(T4, "mps", 3))]

    assert figures(plan_layouts([group for group, _ in group_nodes(nodes, demands)], demands)) == (0, 3, 3)


def assert_nodes_are_legal(nodes: Sequence[NodeLayout], changes: Mapping[str, Sequence[MigLayout]]) -> None:
    """No node has both shared and whole cards, or fewer whole ones than pods keep, and those that are fixed stay."""
    for node in nodes:
        layouts = changes.get(node.node, node.layouts)
        assert len(layouts) == len(node.layouts)
        assert len({layout for layout in layouts if layout == WHOLE_CARD or is_shared(layout)}) < 2
        assert layouts.count(WHOLE_CARD) >= node.kept_whole
        assert not node.fixed or layouts == node.layouts


def assert_is_consistent(groups: Sequence[EqualNodes], demands: Sequence[UnitDemand], plan: LayoutPlan) -> None:
    """Every card has one legal layout, and no unit serves two requests."""
    before, after, units = Counter[str](), Counter[str](), Counter[CardUnit]()
    for group in groups:
        before[group.product] += group.nodes
    for cards in plan.cards:
        assert cards.layout in layouts_of(cards.product)
        after[cards.product] += cards.cards
        whole = {"": 1} if cards.layout == WHOLE_CARD else {}
        for profile, count in {**whole, **dict(cards.layout)}.items():
            units[CardUnit(cards.product, profile)] += count * cards.cards
    assert before == after
    for demand, served in zip(demands, plan.served, strict=True):
        assert set(served) <= set(demand.units)
        assert sum(served.values()) <= demand.requests
        units.subtract(served)
    assert min(units.values(), default=0) >= 0
    served_requests = sum(sum(served.values()) for served in plan.served)
    assert plan.unserved.value == sum(each.requests for each in demands) - served_requests


def slices(name: str, count: int, *profiles: str) -> UnitDemand:
    """Requests that any of some slices, or a whole card, serves."""
    return UnitDemand(count, tuple(CardUnit(name, profile) for profile in (*profiles, "")))


CASES: dict[str, tuple[list[EqualNodes], list[UnitDemand], tuple[int, int, int]]] = {
    "seven small pods need one card": ([EqualNodes(H100, ((),) * 8)], [slices(H100, 7, "1g.10gb")], (0, 1, 1)),
    "one small pod keeps its whole card, since partitioning would free nothing": (
        [EqualNodes(H100, ((),) * 8)],
        [slices(H100, 1, "1g.10gb")],
        (0, 1, 0),
    ),
    "a larger slice serves a small pod where that saves a card": (
        [EqualNodes(H100, ((),) * 8)],
        [slices(H100, 2, "3g.40gb"), slices(H100, 1, "1g.10gb", "2g.20gb", "3g.40gb")],
        (0, 2, 1),
    ),
    "today's layout stays if it serves the demand with as few cards": (
        [EqualNodes(H100, (BALANCED,)), EqualNodes(H100, ((),) * 7)],
        [slices(H100, 2, "1g.10gb"), slices(H100, 1, "3g.40gb")],
        (0, 1, 0),
    ),
    "a partitioned card that no demand uses becomes whole": (
        [EqualNodes(H100, (BALANCED,) * 2)],
        [slices(H100, 2, "1g.10gb")],
        (0, 1, 1),
    ),
    "demand of whole cards leaves no card to partition": (
        [EqualNodes(H100, ((),) * 2)],
        [UnitDemand(2, (CardUnit(H100, ""),)), UnitDemand(1, (CardUnit(H100, "1g.10gb"),))],
        (1, 2, 0),
    ),
    "a slice that is requested by name is served by that slice only": (
        [EqualNodes(H100, (SEVEN,))],
        [UnitDemand(1, (CardUnit(H100, "2g.20gb"),))],
        (0, 1, 1),
    ),
    "a demand without any possible unit is unserved": ([EqualNodes(H100, ((),))], [UnitDemand(3, ())], (3, 0, 0)),
    "a card that keeps its layout serves what it can, and another one the rest": (
        [EqualNodes(H100, (BALANCED,), fixed=True), EqualNodes(H100, ((),))],
        [slices(H100, 4, "1g.10gb")],
        (0, 2, 1),
    ),
    "a pod of four cards gets all of them, and two need more than there are": (
        [EqualNodes(H100, ((),) * 6)],
        [UnitDemand(8, (CardUnit(H100, ""),), together=4)],
        (4, 4, 0),
    ),
    "a pod of four cards takes none from others where there are three": (
        [EqualNodes(H100, ((),) * 3)],
        [UnitDemand(4, (CardUnit(H100, ""),), together=4), UnitDemand(2, (CardUnit(H100, ""),))],
        (4, 2, 0),
    ),
    "a pod of two cards has both of one product": (
        [EqualNodes(H100, ((),)), EqualNodes(A100, ((),))],
        [UnitDemand(2, (CardUnit(H100, ""), CardUnit(A100, "")), together=2)],
        (2, 0, 0),
    ),
    "no cards": ([], [slices(H100, 2, "1g.10gb")], (2, 0, 0)),
}


@pytest.mark.parametrize(("cards", "demands", "expected"), CASES.values(), ids=CASES.keys())
def test_plan(cards: list[EqualNodes], demands: list[UnitDemand], expected: tuple[int, int, int]) -> None:
    assert figures(plan_layouts(cards, demands)) == expected


def test_pods_get_the_smallest_slice_that_the_layout_has() -> None:
    cards = [EqualNodes(H100, ((("1g.10gb", 4), ("3g.40gb", 1)),))]

    plan = plan_layouts(cards, [slices(H100, 2, "1g.10gb", "3g.40gb")])

    assert plan.served == ({CardUnit(H100, "1g.10gb"): 2},)


RESTS: dict[str, tuple[list[str], MigLayout]] = {
    "small slices and a large one": (["1g.10gb", "3g.40gb"], (("1g.10gb", 4), ("3g.40gb", 1))),
    "slices of two": (["2g.20gb", "3g.40gb"], (("2g.20gb", 2), ("3g.40gb", 1))),
}


@pytest.mark.parametrize(("profiles", "expected"), RESTS.values(), ids=RESTS.keys())
def test_the_rest_of_a_card_has_the_slices_that_the_demand_uses(profiles: list[str], expected: MigLayout) -> None:
    demands = [UnitDemand(1, (CardUnit(H100, profile),)) for profile in profiles]

    [cards] = plan_layouts([EqualNodes(H100, ((),))], demands).cards
    [again] = plan_layouts([EqualNodes(H100, ((),))], [each._replace(requests=1) for each in reversed(demands)]).cards

    assert (cards.layout, again.layout) == (expected, expected)


def test_a_plan_of_a_large_cluster_is_proved_optimal() -> None:
    profiles = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"]
    demands = [slices(H100, 997 + 311 * i, *profiles[i:]) for i in range(5)]

    nodes = [EqualNodes(H100, (BALANCED,) * 8, 1125), EqualNodes(H100, ((),) * 8, 3875)]
    plan = plan_layouts(nodes, demands, seconds=BUSY_MACHINE_SECONDS)

    assert plan.is_optimal
    # Three 3g or 4g slices of two cards, and no card has more than two: so many cards at least.
    large = sum(each.requests for each in demands[3:])
    assert plan.used.value >= -(-large // 2)


def pods_that_name_nodes(numbers: Sequence[int]) -> tuple[list[EqualNodes], list[UnitDemand]]:
    """Nodes with eight cards, each with so many pods that may use this one only."""
    groups = [EqualNodes(H100, ((),) * 8, bit=bit) for bit in range(len(numbers))]
    demands = [slices(H100, count, "1g.10gb")._replace(nodes=1 << bit) for bit, count in enumerate(numbers)]
    return groups, demands


def units_of_cards(cards: Iterable[Card]) -> Counter[CardUnit]:
    """Return the slices of cards, and the cards that are whole."""
    units = Counter[CardUnit]()
    for name, layout in cards:
        units.update({CardUnit(name, profile): count for profile, count in layout or (("", 1),)})
    return units


def best_within_limits(
    cards: Sequence[EqualNodes], demands: Sequence[UnitDemand], limits: Sequence[UnitLimit]
) -> tuple[int, int]:
    """Return the fewest unserved requests and used cards of all choices of layouts and of served units."""
    scores, wanted = [], sum(each.requests for each in demands)
    for chosen in choices(cards):
        units, partitioned = units_of_cards(chosen), sum(layout != WHOLE_CARD for _, layout in chosen)
        for served in product(*map(possible_services, demands)):
            total = sum(served, Counter[CardUnit]())
            if total <= units and all(amount_of(limit, served) <= limit.most for limit in limits):
                whole = sum(count for unit, count in total.items() if not unit.profile)
                scores.append((wanted - total.total(), partitioned + whole))
    return min(scores)


def possible_services(demand: UnitDemand) -> list[Counter[CardUnit]]:
    """Return every choice of units for some of the requests."""
    return [
        Counter(some)
        for count in range(demand.requests + 1)
        for some in combinations_with_replacement(demand.units, count)
    ]


def amount_of(limit: UnitLimit, served: Sequence[Counter[CardUnit]]) -> int:
    """Return what a limit counts of the units of each demand."""
    return sum(served[number][unit] * amount for number, unit, amount in limit.amounts)


def test_plans_within_limits_equal_brute_force() -> None:
    rng = random.Random(1)
    restricted = 0
    for case in range(60):
        cards = [EqualNodes(A30, (WHOLE_CARD,)) for _ in range(rng.randint(1, 3))]
        units = [CardUnit(A30, profile) for profile in ("1g.6gb", "2g.12gb", "")]
        demands = [UnitDemand(rng.randint(0, 4), tuple(units[rng.randint(0, 1) :])) for _ in range(2)]
        counted = [(number, unit, rng.choice((1, 1, 2))) for number in (0, 1) for unit in units if rng.random() < 0.7]
        limits = [UnitLimit(rng.randint(0, 4), tuple(each for each in counted if each[1] in demands[each[0]].units))]
        plan = plan_layouts(cards, demands, limits=limits)

        assert figures(plan)[:2] == best_within_limits(cards, demands, limits), (case, cards, demands, limits)
        assert plan.is_optimal
        restricted += figures(plan)[:2] != best_within_limits(cards, demands, [])
    assert restricted > 20


def test_demands_with_a_common_limit_are_planned_together() -> None:
    groups = [EqualNodes(H100, (WHOLE_CARD,), 1, bit) for bit in (0, 1)]
    demands = [slices(H100, 7, "1g.10gb")._replace(nodes=1 << bit) for bit in (0, 1)]
    limit = UnitLimit(9, tuple((number, CardUnit(H100, "1g.10gb"), 1) for number in (0, 1)))
    plan = plan_layouts(groups, demands, limits=[limit])

    assert figures(plan)[0] == 5
    assert len(independent_parts(groups, demands)) == 2
    assert len(independent_parts(groups, demands, [limit])) == 1


def test_nodes_that_share_no_demand_are_parts_and_equal_parts_are_planned_once() -> None:
    groups, demands = pods_that_name_nodes([3, 9, 3])
    other = EqualNodes(A30, ((),), bit=1)

    parts = independent_parts([*groups, other], [*demands, UnitDemand(1, ())])

    assert sorted((part.group_numbers, part.demand_numbers) for part in parts) == [
        ((0,), (0,)),
        ((1,), (1,)),
        ((2,), (2,)),
        ((3,), (3,)),
    ]
    assert len({(part.groups, part.demands) for part in parts}) == 3


def test_a_demand_joins_the_nodes_that_may_serve_it() -> None:
    groups, demands = pods_that_name_nodes([3, 9, 3])

    parts = independent_parts(groups, [*demands, slices(H100, 1, "1g.10gb")._replace(nodes=0b101)])

    assert [(part.group_numbers, part.demand_numbers) for part in parts] == [((1,), (1,)), ((0, 2), (0, 2, 3))]


@pytest.mark.parametrize("seed", range(20))
def test_parts_together_are_as_good_as_one_plan(seed: int) -> None:
    rng = random.Random(seed)
    today = [rng.choice([WHOLE_CARD, SEVEN, BALANCED]) for _ in range(4)]
    groups = [EqualNodes(H100, (layout, ()), bit=bit, drain=bit % 2) for bit, layout in enumerate(today)]
    some = [slices(H100, rng.randint(1, 9), *rng.sample(["1g.10gb", "2g.20gb", "3g.40gb"], 2)) for _ in range(5)]
    demands = [each._replace(nodes=rng.choice([0b1, 0b10, 0b100, 0b1100])) for each in some]
    joined = [*demands, UnitDemand(0, (CardUnit(H100, ""),))]  # nobody needs it, and every node may serve it

    apart, together = plan_layouts(groups, demands), plan_layouts(groups, joined)

    assert len(independent_parts(groups, demands)) > len(independent_parts(groups, joined)) == 1
    assert figures(apart) == figures(together)
    assert (apart.unserved, apart.used) == (together.unserved, together.used)


def test_hundreds_of_pods_that_each_name_a_node_are_proved_optimal() -> None:
    groups, demands = pods_that_name_nodes([1 + number % 20 for number in range(400)])

    with CpuTimer() as timer:
        plan = plan_layouts(groups, demands, seconds=BUSY_MACHINE_SECONDS)

    assert timer.seconds < 5
    assert plan.is_optimal
    assert plan.used.value == sum(-(-(1 + number % 20) // 7) for number in range(400))
    assert sum(sum(served.values()) for served in plan.served) == sum(each.requests for each in demands)
    assert {group.bit for group in plan.used_nodes} == set(range(400))


def test_a_plan_without_time_is_todays_layout_with_its_bound() -> None:
    demands = [slices(H100, 700, "1g.10gb", "2g.20gb"), slices(H100, 300, "2g.20gb", "3g.40gb")]

    plan = plan_layouts([EqualNodes(H100, ((),), 400)], demands, seconds=0)

    assert (plan.unserved.value, plan.changed) == (1000, 0)
    assert plan.unserved.bound <= 0
    assert not plan.is_optimal


def test_the_solver_prints_nothing() -> None:
    program = "from webhook.placement.layout_parts import *; plan_layouts([EqualNodes('NVIDIA-A30', ((),), 3)], [])"

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)

    assert (run.stdout, run.stderr) == ("", "")


def test_the_least_whole_number_that_satisfies_a_constraint() -> None:
    program = IntegerProgram()
    variable = program.add_variable(7)
    program.require_sum({variable: 2}, lower=5)

    assert program.minimize([{variable: 1}], {variable: 7}, 5).values == (3,)
