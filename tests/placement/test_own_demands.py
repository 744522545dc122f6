"""Plans of layouts where many nodes have pods of their own, beside pods that may use all nodes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.placement.test_layout_plan import A30, H100, NodeSeat, figures, served_by
from webhook.placement import layout_parts
from webhook.placement.layout_parts import plan_layouts
from webhook.placement.layout_plan import WHOLE_CARD, CardUnit, EqualNodes, LayoutPlan, UnitDemand, UnitLimit
from webhook.placement.mig import legal_layouts, mig_geometry
from webhook.placement.own_demands import own_demands

PROFILES = {A30: ("1g.6gb", "2g.12gb"), H100: ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")}
MIXED = (("1g.6gb", 2), ("2g.12gb", 1))


def slices(product: str, requests: int, first: int, *, whole: bool = True, nodes: int = -1) -> UnitDemand:
    """Return a demand of a slice or a larger one, or also of a whole card."""
    units = [CardUnit(product, profile) for profile in (*PROFILES[product][first:], *([""] if whole else []))]
    return UnitDemand(requests, tuple(units), 1, nodes)


def random_instance(rng: random.Random) -> tuple[list[EqualNodes], list[UnitDemand]]:
    """Return a few nodes with pods of their own, and pods that may use each of them."""
    groups, demands = [], []
    for bit in range(rng.randint(2, 3)):
        layouts = tuple(sorted(rng.choice([WHOLE_CARD, WHOLE_CARD, MIXED]) for _ in range(rng.randint(1, 2))))
        groups.append(EqualNodes(A30, layouts, 1, bit, fixed=rng.random() < 0.2, drain=rng.randint(0, 1)))
        own = range(rng.randint(0, 2))
        demands += [slices(A30, rng.randint(1, 3), rng.randint(0, 2), nodes=1 << bit) for _ in own]
    demands += [slices(A30, rng.randint(0, 4), first, whole=rng.random() < 0.5) for first in range(2)]
    return groups, demands


def assert_serves(groups: list[EqualNodes], demands: list[UnitDemand], plan: LayoutPlan) -> None:
    """The layouts are legal, fixed ones stay, and each node serves its own pods, as many as the plan says."""
    seats = Counter[NodeSeat]()
    legal = {group.product: legal_layouts(geometry) for group in groups if (geometry := mig_geometry(group.product))}
    for group, nodes in zip(groups, plan.layouts, strict=True):
        [cards] = nodes
        assert len(cards) == len(group.layouts)
        assert not group.fixed or Counter(cards) == Counter(group.layouts)
        for card in cards:
            assert card in legal[group.product]
            seats.update({NodeSeat(group.bit, CardUnit(group.product, name)): n for name, n in card or (("", 1),)})
    counted = sum(sum(each.values()) for each in plan.served)
    assert counted == sum(each.requests for each in demands) - plan.unserved.value
    assert all(set(units) <= set(each.units) for each, units in zip(demands, plan.served, strict=True))
    assert served_by(demands, seats) >= counted
    whole = sum(count for units in plan.served for unit, count in units.items() if not unit.profile)
    partitioned = sum(card != WHOLE_CARD for nodes in plan.layouts for cards in nodes for card in cards)
    assert plan.used.value == partitioned + whole
    assert sum(len(group.layouts) * group.nodes for group in plan.used_nodes) == plan.used.value


def test_plans_are_near_the_best_and_their_bound_is_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, best_cards, cards = random.Random(3), 0, 0
    for case in range(60):
        groups, demands = random_instance(rng)
        best = plan_layouts(groups, demands)
        with monkeypatch.context() as few:
            few.setattr(layout_parts, "MOST_OWN_NODES", 0)
            found = plan_layouts(groups, demands)

        assert_serves(groups, demands, found)
        assert figures(found)[:2] >= figures(best)[:2], (case, groups, demands)
        assert found.unserved.bound <= best.unserved.value, (case, groups, demands)
        assert found.used.bound <= best.used.value or found.unserved.value > best.unserved.value
        if found.unserved.value == best.unserved.value:
            best_cards, cards = best_cards + best.used.value, cards + found.used.value
    assert best_cards <= cards <= 1.03 * best_cards


def test_hundreds_of_nodes_with_pods_of_their_own_are_planned_near_the_bound() -> None:
    rng = random.Random(1)
    kinds = [[(rng.randint(1, 4), rng.randint(0, 4)) for _ in range(2)] for _ in range(8)]
    groups = [EqualNodes(H100, (WHOLE_CARD,) * 8, 1, bit) for bit in range(200)]
    demands = [slices(H100, *each, nodes=1 << bit) for bit in range(200) for each in rng.choice(kinds)]
    demands += [slices(H100, 160, first) for first in range(5)]
    plan = plan_layouts(groups, demands, 120)

    assert plan.unserved.value == 0
    assert plan.used.bound <= plan.used.value <= 1.02 * plan.used.bound


def test_a_card_with_one_own_pod_stays_whole_if_that_frees_nothing() -> None:
    groups = [EqualNodes(H100, (WHOLE_CARD,) * 2, 1, bit) for bit in range(30)]
    demands = [slices(H100, 1, 0, nodes=1 << bit) for bit in range(30)]
    demands.append(UnitDemand(3, (CardUnit(H100, ""),)))
    plan = plan_layouts(groups, demands)

    assert figures(plan) == (0, 33, 0)
    assert plan.is_optimal


def test_slices_beside_own_pods_serve_others() -> None:
    groups = [EqualNodes(H100, (WHOLE_CARD,) * 2, 1, bit) for bit in range(30)]
    demands = [slices(H100, 1, 0, nodes=1 << bit) for bit in range(30)]
    plan = plan_layouts(groups, [*demands, slices(H100, 180, 0, whole=False)])

    assert figures(plan)[:2] == (0, 30)
    assert plan.is_optimal


def test_demands_of_one_node_are_its_own_unless_a_limit_or_other_nodes_concern_them() -> None:
    groups = [EqualNodes(H100, (WHOLE_CARD,), 1, 0), EqualNodes(H100, (WHOLE_CARD,), 2, 1)]
    demands = [
        slices(H100, 1, 0, nodes=1),
        slices(H100, 1, 0, nodes=2),
        slices(H100, 1, 0),
        slices(H100, 1, 1, nodes=1),
        UnitDemand(2, (CardUnit(H100, ""),), 2, 1),
        UnitDemand(2, (CardUnit(H100, "mps/4"),), 1, 1),
    ]
    limit = UnitLimit(1, ((3, CardUnit(H100, "1g.20gb"), 1),))

    assert own_demands(groups, demands, []) == {0: [0, 3]}
    assert own_demands(groups, demands, [limit]) == {0: [0]}
