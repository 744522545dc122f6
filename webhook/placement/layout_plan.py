"""Plans MIG layouts: which cards to partition, and how, for a demand of slices and of whole cards.

Exact, by an integer program over the maximal layouts of each product, and today's. Of all plans, in this order:
those that serve the most demand; of these, those that use the fewest cards (a card is used if it is partitioned, or
allocated as a whole); then those that change the fewest cards; then those that give each pod the smallest slice.

Cards of one product and layout are interchangeable here, so the size of the program depends on products, layouts and
kinds of demand, not on the number of cards.

A shared card (time-slicing, MPS) is a layout of some replicas. The device plugin shares equally all cards of a node
that are not partitioned. So the program also counts the nodes that have shared cards, and lets no whole card be on
them. For each product, only the most replicas that a need allows are tried: a card with others can have the next of
these, and serves as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import CARD_MILLI
from webhook.placement.integer_program import IntegerProgram, ObjectiveValue
from webhook.placement.mig import MigLayout, maximal_layouts, mig_geometry

WHOLE_CARD: MigLayout = ()
"""The layout of a card that is not partitioned."""

SHARE_FORMS = (GpuForm.MPS, GpuForm.TIME_SLICING)

SOLVER_SECONDS = 20.0
"""Time for each of the four objectives of a plan; clusters need less than a second."""


def share_profile(form: GpuForm, replicas: int) -> str:
    """Return the profile of a share of a card.

    >>> share_profile(GpuForm.TIME_SLICING, 4)
    'timeSlicing/4'
    """
    return f"{form.value}/{replicas}"


def share_of(profile: str) -> tuple[GpuForm, int] | None:
    """Return the form of a share and the replicas of its card; None for a slice, or the whole card.

    >>> share_of("mps/8"), share_of("1g.10gb")
    ((<GpuForm.MPS: 'mps'>, 8), None)
    """
    form, _, replicas = profile.partition("/")
    return (GpuForm(form), int(replicas)) if form in SHARE_FORMS else None


def shared_layout(profile: str) -> MigLayout:
    """Return the layout of a card that has shares of a profile."""
    share = share_of(profile)
    return ((profile, share[1]),) if share else WHOLE_CARD


def is_shared(layout: MigLayout) -> bool:
    """Return whether a card is shared."""
    return any(share_of(profile) for profile, _ in layout)


class CardUnit(NamedTuple):
    """One slice of a product, a share of it, or a whole card with the profile ""."""

    product: str
    profile: str

    @property
    def milli(self) -> int:
        """Thousandths of the card."""
        if share := share_of(self.profile):
            return -(-CARD_MILLI // share[1])
        geometry = mig_geometry(self.product)
        profile = geometry.profile(self.profile) if geometry and self.profile else None
        return profile.milli if profile else CARD_MILLI


class CardGroup(NamedTuple):
    """Cards of one product with the same layout.

    Attributes:
        fixed: Those of them that keep it.
    """

    product: str
    layout: MigLayout
    cards: int
    fixed: int = 0


class EqualNodes(NamedTuple):
    """Nodes with equally many cards, all of which may change.

    Attributes:
        shared: The layout of their shared cards today; `WHOLE_CARD` if they have none.
    """

    product: str
    cards: int
    nodes: int
    shared: MigLayout = WHOLE_CARD


class UnitDemand(NamedTuple):
    """Requests that each need one unit, any of some. Shares are listed with the most replicas first.

    Attributes:
        together: The requests of one pod, which all get units of one product, or none; a divisor of their number.
    """

    requests: int
    units: tuple[CardUnit, ...]
    together: int = 1


class LayoutPlan(NamedTuple):
    """New layouts of cards, and the demand that they serve.

    Attributes:
        cards: All cards, by product and new layout.
        served: For each demand, how many requests get which unit.
        unserved: Requests without a unit, with the proved least of any plan.
        used: Cards that are partitioned or allocated as a whole, with the proved least of any plan with so few
            unserved requests.
        changed: Cards whose layout changes, if few nodes have to change for shares.
        sharing: Nodes that have shared cards, by group and layout of these.
    """

    cards: tuple[CardGroup, ...]
    served: tuple[Mapping[CardUnit, int], ...]
    unserved: ObjectiveValue
    used: ObjectiveValue
    changed: int
    sharing: Mapping[tuple[EqualNodes, MigLayout], int] = {}

    @property
    def is_optimal(self) -> bool:
        """Whether no other plan serves more, or as much with fewer cards."""
        return all(each.value == each.bound for each in (self.unserved, self.used))

    def used_cards(self) -> list[CardGroup]:
        """Return the cards that are partitioned, shared, or serve a request as a whole."""
        whole = Counter[str]()
        for served in self.served:
            whole.update({unit.product: requests for unit, requests in served.items() if not unit.profile})
        partitioned = [group for group in self.cards if group.layout != WHOLE_CARD]
        return [*partitioned, *(CardGroup(product, WHOLE_CARD, cards) for product, cards in sorted(whole.items()))]


def plan_layouts(
    cards: Sequence[CardGroup],
    demands: Sequence[UnitDemand],
    seconds: float = SOLVER_SECONDS,
    nodes: Sequence[EqualNodes] = (),
) -> LayoutPlan:
    """Return the best layouts of some cards.

    Args:
        cards: The cards, with their layouts today.
        nodes: Nodes with these cards that may be shared; none of the others is.
        seconds: Time for each objective; when it ends, the plan is the best found so far.

    Raises:
        SolverError: The solver is not installed.
    """
    program = _LayoutProgram(cards, demands, nodes)
    solution = program.minimize(program.objectives(), program.start, seconds)
    values = solution.values
    unserved, used, kept, _ = solution.objectives
    return LayoutPlan(
        tuple(CardGroup(*key, values[index]) for key, index in sorted(program.cards.items()) if values[index]),
        tuple(
            {unit: values[index] * each.together for unit, index in served.items() if values[index]}
            for each, served in zip(demands, program.served, strict=True)
        ),
        unserved,
        used,
        sum(group.cards for group in cards) + kept.value,
        {key: values[index] for key, index in program.sharing.items() if values[index]},
    )


def most_served(cards: Iterable[CardGroup], demands: Sequence[UnitDemand], seconds: float = SOLVER_SECONDS) -> int:
    """Return the most requests that cards serve as they are.

    Raises:
        SolverError: The solver is not installed.
    """
    fixed = [group._replace(fixed=group.cards) for group in cards]
    program = _LayoutProgram(fixed, demands)
    unserved = program.minimize([next(program.objectives())], program.start, seconds).objectives[0].value
    return sum(each.requests for each in demands) - unserved


class _LayoutProgram(IntegerProgram):
    """The variables and constraints of a plan.

    Attributes:
        cards: Variables: cards by product and layout.
        kept: Variables: those of them that have this layout today.
        served: Variables: for each demand, the pods by unit.
        unserved: Variables: for each demand, the pods without units.
        sharing: Variables: nodes with shared cards, by group and layout of these.
        start: Today's layouts, serving nothing.
    """

    def __init__(
        self, cards: Sequence[CardGroup], demands: Sequence[UnitDemand], nodes: Sequence[EqualNodes] = ()
    ) -> None:
        super().__init__()
        today, fixed = Counter[tuple[str, MigLayout]](), Counter[tuple[str, MigLayout]]()
        for group in cards:
            today[group.product, group.layout] += group.cards
            fixed[group.product, group.layout] += group.fixed
        self.cards: dict[tuple[str, MigLayout], int] = {}
        self.kept: list[int] = []
        self._totals = Counter[str]()
        for group in cards:
            self._totals[group.product] += group.cards
        self.start: dict[int, int] = {}
        self.sharing: dict[tuple[EqualNodes, MigLayout], int] = {}
        shares = _largest_shares(demands) if nodes else ()
        for product in sorted({product for product, _ in today}):
            of_product = {layout: number for (of, layout), number in today.items() if of == product}
            self._add_cards(
                product, of_product, [shared_layout(each.profile) for each in shares if each.product == product]
            )
            self._add_sharing([group for group in nodes if group.product == product], product, fixed)
        for key, number in fixed.items():
            self.require_sum({self.cards[key]: 1}, lower=number)
        known = {CardUnit(product, profile) for product, layout in self.cards for profile, _ in layout}
        numbers = [each.requests // each.together for each in demands]
        self.served = [
            {unit: self.add_variable(pods) for unit in each.units if unit in known or not unit.profile}
            for each, pods in zip(demands, numbers, strict=True)
        ]
        self.unserved = [self.add_variable(pods) for pods in numbers]
        self._together = [each.together for each in demands]
        for pods, served, unserved in zip(numbers, self.served, self.unserved, strict=True):
            self.require_sum(dict.fromkeys((*served.values(), unserved), 1), pods, pods)
            self.start[unserved] = pods
        for unit in dict.fromkeys(unit for each in demands for unit in each.units):
            self._limit_unit(unit)

    def _add_cards(self, product: str, today: Mapping[MigLayout, int], shares: Iterable[MigLayout]) -> None:
        total, geometry = sum(today.values()), mig_geometry(product)
        layouts = dict.fromkeys((WHOLE_CARD, *today, *(maximal_layouts(geometry) if geometry else ()), *shares))
        for layout in layouts:
            cards = self.cards[product, layout] = self.add_variable(total)
            if layout in today:
                kept = self.add_variable(today[layout])
                self.require_sum({kept: 1, cards: -1}, upper=0)
                self.kept.append(kept)
                self.start |= {cards: today[layout], kept: today[layout]}
        self.require_sum({self.cards[product, layout]: 1 for layout in layouts}, total, total)

    def _add_sharing(
        self, nodes: Sequence[EqualNodes], product: str, fixed: Mapping[tuple[str, MigLayout], int]
    ) -> None:
        """Let shared cards be on nodes that have no whole ones."""
        layouts = [layout for of, layout in self.cards if of == product and is_shared(layout)]
        sharing = {(group, layout): self.add_variable(group.nodes) for group in nodes for layout in layouts}
        for layout in layouts:
            room = {index: -group.cards for (group, of), index in sharing.items() if of == layout}
            self.require_sum({self.cards[product, layout]: 1, **room}, upper=fixed.get((product, layout), 0))
        for group in nodes:
            if layouts:
                self.require_sum({sharing[group, layout]: 1 for layout in layouts}, upper=group.nodes)
            if group.shared != WHOLE_CARD:
                self.start[sharing[group, group.shared]] = group.nodes
        whole = {self.cards[product, WHOLE_CARD]: 1, **{index: group.cards for (group, _), index in sharing.items()}}
        never_whole = sum(number for (of, layout), number in fixed.items() if of == product and layout != WHOLE_CARD)
        self.require_sum(whole, upper=self._totals[product] - never_whole)
        self.sharing |= sharing

    def _limit_unit(self, unit: CardUnit) -> None:
        """Serve no more requests with a unit than the cards have."""
        pairs = zip(self.served, self._together, strict=True)
        terms = {served[unit]: together for served, together in pairs if unit in served}
        for (product, layout), cards in self.cards.items():
            count = dict(layout).get(unit.profile, 0) if unit.profile else int(layout == WHOLE_CARD)
            if product == unit.product and count:
                terms[cards] = -count
        self.require_sum(terms, upper=0)

    def objectives(self) -> Iterator[dict[int, int]]:
        """Yield what is minimized, the most important first."""
        pairs = zip(self.served, self._together, strict=True)
        served = [(unit, index, together) for by_unit, together in pairs for unit, index in by_unit.items()]
        yield dict(zip(self.unserved, self._together, strict=True))
        partitioned = [cards for (_, layout), cards in self.cards.items() if layout != WHOLE_CARD]
        yield dict.fromkeys(partitioned, 1) | {index: count for unit, index, count in served if not unit.profile}
        yield dict.fromkeys(self.kept, -1)
        yield {index: unit.milli * count for unit, index, count in served}


def _largest_shares(demands: Iterable[UnitDemand]) -> set[CardUnit]:
    """Return for each demand and product the share with the most replicas."""
    first: dict[tuple[int, str], CardUnit] = {}
    for number, each in enumerate(demands):
        for unit in each.units:
            if share_of(unit.profile):
                first.setdefault((number, unit.product), unit)
    return set(first.values())
