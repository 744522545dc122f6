"""Plans MIG layouts part by part: nodes and demands that have nothing to do with each other are planned separately.

The best plan of all consists of the best of each part. Of parts that differ only in which nodes they are, one is
planned. A part in which many nodes have pods of their own is planned by `own_demands`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from webhook.model.node_masks import bit_positions, union_masks
from webhook.placement.integer_program import ObjectiveValue
from webhook.placement.layout_plan import (
    SOLVER_SECONDS,
    CardGroup,
    CardUnit,
    EqualNodes,
    LayoutPlan,
    UnitDemand,
    UnitLimit,
    plan_together,
)
from webhook.placement.mig import MigLayout
from webhook.placement.own_demands import own_demands, plan_with_own_demands

MOST_OWN_NODES = 20
"""Most nodes with pods of their own that one integer program plans; of more, the own pods are planned first."""


def plan_layouts(
    groups: Sequence[EqualNodes],
    demands: Sequence[UnitDemand],
    seconds: float = SOLVER_SECONDS,
    *,
    limits: Sequence[UnitLimit] = (),
) -> LayoutPlan:
    """Return the best layouts of the cards of some nodes.

    Args:
        groups: The nodes, with their layouts today.
        limits: What the demands may get together.
        seconds: Time for the plan; when it ends, the plan is the best found so far.

    Raises:
        SolverError: The solver is not installed.
    """
    plans = _plan_parts(independent_parts(groups, demands, limits), seconds)
    layouts, served = dict[int, tuple[tuple[MigLayout, ...], ...]](), dict[int, Mapping[CardUnit, int]]()
    cards = Counter[tuple[str, MigLayout]]()
    for part, plan in plans:
        layouts |= zip(part.group_numbers, plan.layouts, strict=True)
        served |= zip(part.demand_numbers, plan.served, strict=True)
        cards.update({(each.product, each.layout): each.cards for each in plan.cards})
    return LayoutPlan(
        tuple(CardGroup(*key, count) for key, count in sorted(cards.items())),
        tuple(served[number] for number in range(len(demands))),
        _sum_of_objectives(plan.unserved for _, plan in plans),
        _sum_of_objectives(plan.used for _, plan in plans),
        sum(plan.changed for _, plan in plans),
        tuple(layouts[number] for number in range(len(groups))),
        tuple(each._replace(bit=part.bits[each.bit]) for part, plan in plans for each in plan.used_nodes),
    )


class PlanPart(NamedTuple):
    """Nodes and demands that no other nodes and demands have to do with.

    Attributes:
        group_numbers, demand_numbers: Their places among all.
        groups, demands, limits: They, with bits and masks from 0 on, so that parts which are alike are equal.
        bits: The bits that these stand for.
    """

    group_numbers: tuple[int, ...]
    demand_numbers: tuple[int, ...]
    groups: tuple[EqualNodes, ...]
    demands: tuple[UnitDemand, ...]
    limits: tuple[UnitLimit, ...]
    bits: tuple[int, ...]

    @property
    def content(self) -> tuple[tuple[EqualNodes, ...], tuple[UnitDemand, ...], tuple[UnitLimit, ...]]:
        """The values that equal parts share."""
        return self.groups, self.demands, self.limits


class JoinedGroups:
    """Sets of groups of nodes, by the number of one of each set: a union-find structure."""

    def __init__(self, groups: int) -> None:
        """Start with each group alone."""
        self._parents = list(range(groups))

    def root(self, number: int) -> int:
        """Return the number that stands for the set of a group."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    def join(self, number: int, other: int) -> None:
        """Make one set of those of two groups."""
        self._parents[self.root(number)] = self.root(other)


def independent_parts(
    groups: Sequence[EqualNodes], demands: Sequence[UnitDemand], limits: Sequence[UnitLimit] = ()
) -> list[PlanPart]:
    """Return the parts of a plan of which no node may serve a demand of another, the smallest first.

    Demands with a common limit are of one part.

    Nodes without demands are one part, and so are demands without nodes.
    """
    places, bits = defaultdict[tuple[str, int], list[int]](list), Counter[str]()
    for number, group in enumerate(groups):
        places[group.product, group.bit].append(number)
        bits[group.product] |= 1 << group.bit
    joined = JoinedGroups(len(groups))
    first = dict[int, int]()
    for number, each in enumerate(demands):
        products = {unit.product for unit in each.units}
        reached = [(product, bit) for product in products for bit in bit_positions(bits[product] & each.nodes)]
        for place in reached:
            for group_number in places[place]:
                joined.join(group_number, first.setdefault(number, group_number))
    for limit in limits:
        limited = [first[number] for number, _, _ in limit.amounts if number in first]
        for group_number in limited:
            joined.join(group_number, limited[0])
    members, wanted = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for number in range(len(demands)):
        wanted[joined.root(first[number]) if number in first else -1].append(number)
    for number in range(len(groups)):
        root = joined.root(number)
        members[root if root in wanted else -1].append(number)
    parts = [_plan_part(groups, demands, limits, members[root], wanted[root]) for root in {**members, **wanted}]
    return sorted(parts, key=lambda part: len(part.groups) * len(part.demands))


def _plan_part(
    groups: Sequence[EqualNodes],
    demands: Sequence[UnitDemand],
    limits: Sequence[UnitLimit],
    members: Sequence[int],
    wanted: Sequence[int],
) -> PlanPart:
    bits = list(dict.fromkeys(groups[number].bit for number in members))
    own = {bit: index for index, bit in enumerate(bits)}
    numbers = {number: place for place, number in enumerate(wanted)}
    every = union_masks(1 << bit for bit in own)
    amounts = [[(numbers[each[0]], *each[1:]) for each in limit.amounts if each[0] in numbers] for limit in limits]
    return PlanPart(
        tuple(members),
        tuple(wanted),
        tuple(groups[number]._replace(bit=own[groups[number].bit]) for number in members),
        tuple(demands[number]._replace(nodes=_own_mask(demands[number].nodes & every, own)) for number in wanted),
        tuple(UnitLimit(limit.most, tuple(some)) for limit, some in zip(limits, amounts, strict=True) if some),
        tuple(bits),
    )


def _own_mask(nodes: int, own: Mapping[int, int]) -> int:
    return union_masks(1 << own[bit] for bit in bit_positions(nodes))


def _plan_parts(parts: Sequence[PlanPart], seconds: float) -> list[tuple[PlanPart, LayoutPlan]]:
    """Return the plan of each part. Each but the largest may use half of the time that those before have left."""
    known, left = dict[tuple[object, ...], LayoutPlan](), seconds
    for part in parts:
        if part.content not in known:
            most = left if part is parts[-1] else left / 2
            known[part.content], used = _plan_content(*part.content, most)
            left = max(0.0, left - used)
    return [(part, known[part.content]) for part in parts]


def _plan_content(
    groups: Sequence[EqualNodes], demands: Sequence[UnitDemand], limits: Sequence[UnitLimit], seconds: float
) -> tuple[LayoutPlan, float]:
    """Return the plan of one part, and the time that it took."""
    own = own_demands(groups, demands, limits)
    if len(own) > MOST_OWN_NODES:
        return plan_with_own_demands(groups, demands, limits, own, seconds)
    return plan_together(groups, demands, limits, seconds)


def _sum_of_objectives(values: Iterable[ObjectiveValue]) -> ObjectiveValue:
    found = list(values)
    return ObjectiveValue(sum(each.value for each in found), sum(each.bound for each in found))
