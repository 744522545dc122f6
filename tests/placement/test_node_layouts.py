"""Layouts by node: inferred from slices, and assigned so that few nodes change."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from webhook.placement.layout_parts import plan_layouts
from webhook.placement.layout_plan import WHOLE_CARD, CardUnit, UnitDemand
from webhook.placement.mig import MigLayout, legal_layouts, mig_geometry
from webhook.placement.node_layouts import NodeLayout, assign_layouts, group_nodes, split_slices

A100 = "NVIDIA-A100-SXM4-80GB"
BALANCED: MigLayout = (("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1))
SEVEN: MigLayout = (("1g.10gb", 7),)
HALVES: MigLayout = (("3g.40gb", 2),)
GEOMETRY = mig_geometry(A100)
assert GEOMETRY is not None


def slices_of(*layouts: MigLayout) -> MigLayout:
    """The slices of some cards together."""
    total = Counter[str]()
    for layout in layouts:
        total.update(dict(layout))
    return tuple(sorted(total.items()))


SPLITS: dict[str, tuple[MigLayout, int, list[MigLayout]]] = {
    "no slices": ((), 0, []),
    "eight balanced cards": (slices_of(*[BALANCED] * 8), 8, [BALANCED] * 8),
    "as many equal cards as are needed, without a label": (slices_of(*[BALANCED] * 8), 0, [BALANCED] * 8),
    "fewer slices than fit, on as many cards as the label says": ((("1g.10gb", 6),), 3, [(("1g.10gb", 2),)] * 3),
    "fewer cards before more that are equal": ((("3g.40gb", 3),), 0, [HALVES, (("3g.40gb", 1),)]),
    "unequal cards, if equal ones cannot be as many as the label says": (
        (("3g.40gb", 3),),
        2,
        [HALVES, (("3g.40gb", 1),)],
    ),
    "unequal cards": (slices_of(SEVEN, HALVES), 0, [SEVEN, HALVES]),
}


@pytest.mark.parametrize(("slices", "cards", "expected"), SPLITS.values(), ids=SPLITS.keys())
def test_layouts_are_inferred_from_slices(slices: MigLayout, cards: int, expected: list[MigLayout]) -> None:
    assert GEOMETRY is not None

    assert Counter(split_slices(GEOMETRY, slices, cards)) == Counter(expected)


def test_inferred_layouts_are_legal_and_have_the_same_slices() -> None:
    assert GEOMETRY is not None
    rng, legal = random.Random(5), sorted(legal_layouts(GEOMETRY) - {WHOLE_CARD})
    for _ in range(40):
        layouts = rng.choices(legal, k=rng.randint(1, 8))
        found = split_slices(GEOMETRY, slices_of(*layouts), 0)

        assert slices_of(*found) == slices_of(*layouts)
        assert len(found) <= len(layouts)
        assert set(found) <= set(legal)


def node(name: str, *layouts: MigLayout, pods: int = 0, kept: int = 0) -> NodeLayout:
    """A node with cards."""
    return NodeLayout(name, A100, layouts, kept, pods)


def slices(count: int, *profiles: str) -> UnitDemand:
    """Requests that any of some slices serves."""
    return UnitDemand(count, tuple(CardUnit(A100, profile) for profile in profiles))


def whole(count: int, together: int = 1) -> UnitDemand:
    """Requests of whole cards."""
    return UnitDemand(count, (CardUnit(A100, ""),), together)


WHOLE_2 = (WHOLE_CARD, WHOLE_CARD)
ASSIGNMENTS: dict[str, tuple[list[NodeLayout], list[UnitDemand], dict[str, list[MigLayout]]]] = {
    "nothing changes": ([node("a", SEVEN, WHOLE_CARD)], [slices(7, "1g.10gb")], {}),
    "the idle node changes": (
        [node("a", *WHOLE_2, pods=1), node("b", *WHOLE_2)],
        [slices(14, "1g.10gb")],
        {"b": [SEVEN, SEVEN]},
    ),
    "a node that is partitioned already changes before one with whole cards": (
        [node("a", *WHOLE_2), node("b", SEVEN, WHOLE_CARD)],
        [slices(14, "1g.10gb")],
        {"b": [SEVEN, SEVEN]},
    ),
    "nodes with one card change before one with eight": (
        [node("a", *WHOLE_2 * 4), node("b", WHOLE_CARD), node("c", WHOLE_CARD)],
        [slices(14, "1g.10gb")],
        {"b": [SEVEN], "c": [SEVEN]},
    ),
    "one of two nodes with eight cards changes, not both": (
        [node("a", *WHOLE_2 * 4), node("b", *WHOLE_2 * 4)],
        [slices(14, "1g.10gb")],
        {"b": [SEVEN, SEVEN, *WHOLE_2 * 3]},
    ),
    "cards that pods keep do not change": (
        [node("a", *WHOLE_2, kept=1), node("b", *WHOLE_2, kept=1)],
        [slices(14, "1g.10gb")],
        {"a": [SEVEN, WHOLE_CARD], "b": [SEVEN, WHOLE_CARD]},
    ),
    "a node whose cards are fixed does not change": (
        [node("a", *WHOLE_2)._replace(fixed=True), node("b", *WHOLE_2, pods=1)],
        [slices(7, "1g.10gb")],
        {"b": [SEVEN, WHOLE_CARD]},
    ),
    "an unused card becomes whole": (
        [node("a", BALANCED, SEVEN)],
        [slices(7, "1g.10gb")],
        {"a": [WHOLE_CARD, SEVEN]},
    ),
    "a pod of two cards gets both of one node": (
        [node("a", SEVEN, WHOLE_CARD), node("b", SEVEN, WHOLE_CARD)],
        [whole(2, together=2)],
        {"a": [*WHOLE_2], "b": [*WHOLE_2]},
    ),
}


@pytest.mark.parametrize(("nodes", "demands", "expected"), ASSIGNMENTS.values(), ids=ASSIGNMENTS.keys())
def test_assigned_layouts(
    nodes: list[NodeLayout], demands: list[UnitDemand], expected: dict[str, list[MigLayout]]
) -> None:
    groups = group_nodes(nodes, demands)

    changes = assign_layouts(groups, plan_layouts([group for group, _ in groups], demands))

    assert {change.node.node: sorted(change.layouts) for change in changes} == {
        name: sorted(layouts) for name, layouts in expected.items()
    }


def test_whole_cards_stay_together_where_agents_report_links() -> None:
    """Without reports, both nodes of the product count alike, and the first one changes."""
    linked, a30 = {"a": 12, "b": 0}, "NVIDIA-A30"
    nodes = [NodeLayout(name, a30, (WHOLE_CARD,) * 2, bit=bit) for bit, name in enumerate("ab")]
    demands = [UnitDemand(4, (CardUnit(a30, "1g.6gb"),))]

    def changed(nodes: list[NodeLayout]) -> list[str]:
        groups = group_nodes(nodes, demands)
        plan = plan_layouts([group for group, _ in groups], demands)
        return [change.node.node for change in assign_layouts(groups, plan)]

    assert changed([node._replace(nvlinks=linked[node.node]) for node in nodes]) == ["b"]
    assert changed([node._replace(nvlinks=12 - linked[node.node]) for node in nodes]) == ["a"]


def test_assigned_layouts_are_those_of_the_plan() -> None:
    rng = random.Random(7)
    layouts: list[MigLayout] = [WHOLE_CARD, BALANCED, SEVEN, HALVES]
    for _ in range(30):
        nodes = []
        for index in range(rng.randint(1, 6)):
            cards = rng.choices(layouts, k=rng.randint(1, 4))
            nodes.append(
                node(f"n{index}", *cards, pods=rng.randint(0, 2), kept=rng.randint(0, cards.count(WHOLE_CARD)))
            )
        demands = [slices(rng.randint(0, 9), profile) for profile in ("1g.10gb", "2g.20gb", "3g.40gb")]
        demands.append(whole(rng.randint(0, 3)))
        groups = group_nodes(nodes, demands)
        plan = plan_layouts([group for group, _ in groups], demands)
        changes = {change.node.node: change.layouts for change in assign_layouts(groups, plan)}
        after = Counter(layout for each in nodes for layout in changes.get(each.node, each.layouts))
        after[WHOLE_CARD] -= sum(each.kept_whole for each in nodes)

        assert +after == Counter({group.layout: group.cards for group in plan.cards})
        changed = [Counter(changes[each.node]) - Counter(each.layouts) for each in nodes if each.node in changes]
        assert sum(each.total() for each in changed) == plan.changed
        for each in nodes:
            assert Counter(changes.get(each.node, each.layouts))[WHOLE_CARD] >= each.kept_whole
            assert len(changes.get(each.node, each.layouts)) == len(each.layouts)
