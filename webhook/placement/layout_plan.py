"""Plans MIG layouts: which cards to partition, and how, for a demand of slices and of whole cards.

Exact, by an integer program over the maximal layouts of each product, and today's. Of all plans, in this order:
those that serve the most demand; of these, those that use the fewest cards (a card is used if it is partitioned, or
allocated as a whole); then those that change the fewest cards; then those that drain the fewest nodes; then those that
leave the most pairs of whole cards on one node, which NVLink may connect; then those that change the fewest nodes; then
those whose unused slices serve the most further pods of the demand; then those that give each pod the smallest slice.

Equal nodes are counted together: nodes of one product that have equal cards, and that the same pods may use. So the
size of the program depends on kinds of nodes and of demand, not on their number. A group of equal nodes has patterns:
how many cards of a node are not partitioned, and whether these are whole or shared. The device plugin shares equally
all cards of a node that are not partitioned, so a pattern has one kind of share, or whole cards. The partitioned cards
of all groups that the same pods may use are counted together. In addition, the cards that keep their layout are counted
for each group.

For each product and form of shares (time-slicing, MPS), only the most replicas that a need allows are tried: a card
with others can have the next of these, and serves as many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import CARD_MILLI
from webhook.placement.integer_program import IntegerProgram, ObjectiveValue
from webhook.placement.mig import MigLayout, maximal_layouts, mig_geometry

WHOLE_CARD: MigLayout = ()
"""The layout of a card that is not partitioned."""

SHARE_FORMS = (GpuForm.MPS, GpuForm.TIME_SLICING)

SOLVER_SECONDS = 20.0
"""Time for a plan; most clusters need less than a second."""

STEP_SECONDS = 2.0
"""Time for what the nodes serve that have changed so far: their layouts are fixed, which is soon computed."""

EVERY_NODE = -1
"""The mask of all nodes."""

MAX_JOINT_LAYOUTS = 4
"""Most layouts of one node's partitioned cards for which every combination of layouts is limited by its cards."""


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
    """Cards of one product with the same layout."""

    product: str
    layout: MigLayout
    cards: int


class EqualNodes(NamedTuple):
    """Equal nodes: of one product, with equal cards, which the same pods may use.

    Attributes:
        layouts: Today's layout of each card of one of them, without those that pods keep.
        nodes: Their number.
        bit: That which stands for them in the masks of nodes of a demand.
        kept_whole: Further cards of each, which pods keep whole.
        fixed: True if none of their cards may change.
        drain: The cost of a change of one of them: 0 if no pod with GPUs runs there.
        link_value: The value of two whole cards on one node.
    """

    product: str
    layouts: tuple[MigLayout, ...]
    nodes: int = 1
    bit: int = 0
    kept_whole: int = 0
    fixed: bool = False
    drain: int = 0
    link_value: int = 1

    @property
    def unpartitioned(self) -> tuple[MigLayout, int]:
        """The layout of its cards that are not partitioned, and their number."""
        found = [layout for layout in self.layouts if layout == WHOLE_CARD or is_shared(layout)]
        return (found[0] if found else WHOLE_CARD), len(found)

    @property
    def partitioned(self) -> Counter[MigLayout]:
        """Its partitioned cards by layout."""
        return Counter(layout for layout in self.layouts if layout != WHOLE_CARD and not is_shared(layout))


class UnitDemand(NamedTuple):
    """Requests that each need one unit, any of some. Shares are listed with the most replicas first.

    Attributes:
        together: The requests of one pod, which all get whole cards of one node, or none; a divisor of their number.
        nodes: Mask of the nodes that its pods may use.
    """

    requests: int
    units: tuple[CardUnit, ...]
    together: int = 1
    nodes: int = EVERY_NODE


class UnitLimit(NamedTuple):
    """The most that some demands may get together, as a quota limits it.

    Attributes:
        most: The largest sum of amounts.
        amounts: For the number of a demand, and a unit: what one such unit of this demand counts.
    """

    most: int
    amounts: tuple[tuple[int, CardUnit, int], ...]


class LayoutPlan(NamedTuple):
    """New layouts of cards, and the demand that they serve.

    Attributes:
        cards: All cards, by product and new layout.
        served: For each demand, how many requests get which unit.
        unserved: Requests without a unit, with the proved least of any plan.
        used: Cards that are partitioned or allocated as a whole, with the proved least of any plan with so few
            unserved requests.
        changed: Cards whose layout changes.
        layouts: For each group of nodes, the new layouts of the cards of each node.
        used_nodes: Groups that have only the cards that are used.
    """

    cards: tuple[CardGroup, ...]
    served: tuple[Mapping[CardUnit, int], ...]
    unserved: ObjectiveValue
    used: ObjectiveValue
    changed: int
    layouts: tuple[tuple[tuple[MigLayout, ...], ...], ...] = ()
    used_nodes: tuple[EqualNodes, ...] = ()

    @property
    def is_optimal(self) -> bool:
        """Whether no other plan serves more, or as much with fewer cards."""
        return all(each.value == each.bound for each in (self.unserved, self.used))


def plan_together(
    groups: Sequence[EqualNodes], demands: Sequence[UnitDemand], limits: Sequence[UnitLimit], seconds: float
) -> tuple[LayoutPlan, float]:
    """Return the best layouts of some nodes, and the time that this took."""
    program = LayoutProgram(groups, demands, limits)
    solution = program.minimize(program.objectives(), program.start, seconds)
    values = solution.values
    unserved, used, kept = solution.objectives[:3]
    layouts = program.new_layouts(values)
    cards = Counter[tuple[str, MigLayout]]()
    for group, nodes in zip(groups, layouts, strict=True):
        cards.update((group.product, layout) for node in nodes for layout in node)
    plan = LayoutPlan(
        tuple(CardGroup(*key, count) for key, count in sorted(cards.items())),
        tuple(program.served_units(values)),
        unserved,
        used,
        cards.total() + kept.value,
        layouts,
        tuple(program.used_nodes(values, layouts)),
    )
    return plan, solution.seconds


def most_served(
    groups: Iterable[EqualNodes],
    demands: Sequence[UnitDemand],
    seconds: float = SOLVER_SECONDS,
    *,
    limits: Sequence[UnitLimit] = (),
) -> int:
    """Return the most requests that nodes serve with their layouts of today.

    Raises:
        SolverError: The solver is not installed.
    """
    program = LayoutProgram([group._replace(fixed=True) for group in groups], demands, limits)
    unserved = program.minimize([program.unserved_requests()], program.start, seconds).objectives[0].value
    return sum(each.requests for each in demands) - unserved


class _ReachablePool(NamedTuple):
    """The nodes of one product that the same demands may use, by the numbers of these."""

    product: str
    demands: tuple[int, ...]


Pattern = tuple[MigLayout, int]
"""The layout of the cards of a node that are not partitioned, and their number."""


class _GroupVariables(NamedTuple):
    """The variables of one group of nodes.

    Attributes:
        patterns: Nodes by pattern.
        kept: Partitioned cards that keep their layout, by this.
        unchanged: Nodes without a change.
    """

    pool: _ReachablePool
    patterns: dict[Pattern, int]
    kept: dict[MigLayout, int]
    unchanged: int


class LayoutProgram(IntegerProgram):
    """The variables and constraints of a plan.

    Attributes:
        cards: Variables: partitioned cards by pool and layout.
        groups: The variables of each group of nodes.
        served: Variables: for each demand, the pods by pool and profile.
        unserved: Variables: for each demand, the pods without units.
        further: Variables: as `served`, pods that unused slices and shares could serve in addition.
        start: Today's layouts, serving nothing.
    """

    def __init__(
        self, groups: Sequence[EqualNodes], demands: Sequence[UnitDemand], limits: Sequence[UnitLimit] = ()
    ) -> None:
        super().__init__()
        self._groups, self._demands = groups, demands
        self.start: dict[int, int] = {}
        self.cards: dict[tuple[_ReachablePool, MigLayout], int] = {}
        self.groups: list[_GroupVariables] = []
        pools = _pools_of_groups(groups, demands)
        self._members: defaultdict[_ReachablePool, list[int]] = defaultdict(list)
        for number, pool in enumerate(pools):
            self._members[pool].append(number)
        self._shares = {pool: _largest_shares(pool.product, map(demands.__getitem__, pool.demands)) for pool in pools}
        self.groups = [self._add_group(*each) for each in zip(groups, pools, strict=True)]
        for pool, members in self._members.items():
            self._add_cards(pool, members)
        self._supply = self._units_by_profile()
        self.served, self.further = self._add_requests(), list[dict[tuple[_ReachablePool, str], int]]()
        self.unserved = self._add_unserved()
        self.further = self._add_further()
        for unit, supply in self._supply.items():
            self._limit_unit(unit, supply)
        for pool in self._members:
            self._limit_sets(pool)
        for limit in limits:
            self._limit_demands(limit)

    def _add_group(self, group: EqualNodes, pool: _ReachablePool) -> _GroupVariables:
        """Add the patterns of some nodes, and their cards and nodes that do not change."""
        today = group.unpartitioned
        patterns = {pattern: self.add_variable(group.nodes) for pattern in self._possible_patterns(group, pool)}
        kept = {layout: self.add_variable(group.nodes * count) for layout, count in group.partitioned.items()}
        unchanged = self.add_variable(group.nodes)
        self.require_sum(dict.fromkeys(patterns.values(), 1), group.nodes, group.nodes)
        self.require_sum({unchanged: 1, patterns[today]: -1}, upper=0)
        if group.fixed:
            self.require_sum({unchanged: 1}, group.nodes, group.nodes)
        for layout, count in group.partitioned.items():
            self.require_sum({unchanged: count, kept[layout]: -1}, upper=0)
        for some in _joint_layouts(list(kept)):
            most = sum(group.partitioned[layout] for layout in some)
            room = {index: -min(most, len(group.layouts) - cards) for (_, cards), index in patterns.items()}
            self.require_sum({**{kept[layout]: 1 for layout in some}, **room}, upper=0)
        self.start |= {patterns[today]: group.nodes, unchanged: group.nodes}
        self.start |= {kept[layout]: group.nodes * count for layout, count in group.partitioned.items()}
        return _GroupVariables(pool, patterns, kept, unchanged)

    def _possible_patterns(self, group: EqualNodes, pool: _ReachablePool) -> Iterator[Pattern]:
        """Yield the patterns that a node may get, and that of today."""
        today, cards = group.unpartitioned, len(group.layouts)
        if group.fixed:
            yield today
            return
        least = 0 if mig_geometry(group.product) or group.partitioned else cards
        shares = [shared_layout(profile) for profile in self._shares[pool]] if not group.kept_whole else []
        layouts = dict.fromkeys((WHOLE_CARD, *shares, *([today[0]] if today[1] else [])))
        found = {(layout, count) for layout in layouts for count in range(max(1, least), cards + 1)}
        yield from sorted(found | {today} | ({(WHOLE_CARD, 0)} if least == 0 else set()))

    def _add_cards(self, pool: _ReachablePool, members: Sequence[int]) -> None:
        """Add the partitioned cards of a pool: as many as its patterns leave, and no fewer than keep their layout."""
        geometry, today = mig_geometry(pool.product), Counter[MigLayout]()
        for number in members:
            group = self._groups[number]
            today.update({layout: group.nodes * count for layout, count in group.partitioned.items()})
        total = sum(self._groups[number].nodes * len(self._groups[number].layouts) for number in members)
        layouts = dict.fromkeys((*today, *(maximal_layouts(geometry) if geometry else ())))
        for layout in layouts:
            cards = self.cards[pool, layout] = self.add_variable(total)
            self.start[cards] = today[layout]
            kept = [self.groups[number].kept[layout] for number in members if layout in self.groups[number].kept]
            if kept:
                self.require_sum({**dict.fromkeys(kept, 1), cards: -1}, upper=0)
        unpartitioned = {index: count for _, count, index in self._patterns(members) if count}
        partitioned = {self.cards[pool, layout]: 1 for layout in layouts}
        self.require_sum({**partitioned, **unpartitioned}, total, total)

    def _patterns(self, members: Iterable[int]) -> Iterator[tuple[MigLayout, int, int]]:
        """Yield the patterns of some groups: the layout, the number of cards, and the variable."""
        for number in members:
            for (layout, count), index in self.groups[number].patterns.items():
                yield layout, count, index

    def _units_by_profile(self) -> dict[tuple[_ReachablePool, str], dict[int, int]]:
        """Return the units that there are of each profile, "" for whole cards, as terms."""
        found: defaultdict[tuple[_ReachablePool, str], dict[int, int]] = defaultdict(dict)
        for (pool, layout), index in self.cards.items():
            for profile, count in layout:
                found[pool, profile][index] = count
        for pool, members in self._members.items():
            for layout, cards, index in self._patterns(members):
                for profile, count in layout or (("", 1),):
                    found[pool, profile] |= {index: cards * count} if cards else {}
        return found

    def _add_requests(self) -> list[dict[tuple[_ReachablePool, str], int]]:
        """Add for each demand the pods that units serve, by pool and profile."""
        served: list[dict[tuple[_ReachablePool, str], int]] = [{} for _ in self._demands]
        for pool in self._members:
            for number in pool.demands:
                each = self._demands[number]
                units = [(pool, unit.profile) for unit in each.units if unit.product == pool.product]
                pods = each.requests // each.together
                served[number] |= {unit: self.add_variable(pods) for unit in units if unit in self._supply}
        return served

    def _add_unserved(self) -> list[int]:
        numbers = [each.requests // each.together for each in self._demands]
        unserved = [self.add_variable(pods) for pods in numbers]
        for pods, served, index in zip(numbers, self.served, unserved, strict=True):
            self.require_sum(dict.fromkeys((*served.values(), index), 1), pods, pods)
            self.start[index] = pods
        return unserved

    def _add_further(self) -> list[dict[tuple[_ReachablePool, str], int]]:
        """Add for each demand as many pods again, which unused slices and shares serve."""
        found = []
        for each, served in zip(self._demands, self.served, strict=True):
            further = {unit: self.add_variable(each.requests) for unit in served if unit[1]}
            if further:
                self.require_sum(dict.fromkeys(further.values(), 1), upper=each.requests)
            found.append(further)
        return found

    def _limit_unit(self, unit: tuple[_ReachablePool, str], supply: Mapping[int, int]) -> None:
        """Serve no more requests with a unit than there are."""
        terms: dict[int, int] = {}
        for number in unit[0].demands:
            terms |= {self.served[number][unit]: self._demands[number].together} if unit in self.served[number] else {}
            terms |= {self.further[number][unit]: 1} if unit in self.further[number] else {}
        if terms:
            self.require_sum({**terms, **{index: -count for index, count in supply.items()}}, upper=0)

    def _limit_sets(self, pool: _ReachablePool) -> None:
        """Serve no more pods of several whole cards than nodes have so many.

        Exact if the sizes of the sets divide each other, as 2, 4 and 8 do.
        """
        unit, sizes = (pool, ""), {number: self._demands[number].together for number in pool.demands}
        for size in {size for size in sizes.values() if size > 1}:
            terms = {
                self.served[number][unit]: each // size
                for number, each in sizes.items()
                if each >= size and unit in self.served[number]
            }
            room = {
                index: -(cards // size)
                for layout, cards, index in self._patterns(self._members[pool])
                if layout == WHOLE_CARD and cards >= size
            }
            self.require_sum({**terms, **room}, upper=0)

    def _limit_demands(self, limit: UnitLimit) -> None:
        """Serve demands with no more than they may get together."""
        amounts = {(number, unit): amount for number, unit, amount in limit.amounts}
        terms = {
            index: amount * self._demands[number].together
            for number in dict.fromkeys(number for number, _, _ in limit.amounts)
            for (pool, profile), index in self.served[number].items()
            if (amount := amounts.get((number, CardUnit(pool.product, profile)), 0))
        }
        self.require_sum(terms, upper=limit.most)

    def unserved_requests(self) -> dict[int, int]:
        """Return the first objective."""
        return {index: each.together for index, each in zip(self.unserved, self._demands, strict=True)}

    def objectives(self) -> Iterator[dict[int, int]]:
        """Yield what is minimized, the most important first."""
        yield self.unserved_requests()
        served = [
            (CardUnit(pool.product, profile), index, each.together)
            for each, by_unit in zip(self._demands, self.served, strict=True)
            for (pool, profile), index in by_unit.items()
        ]
        yield self._used_cards() | {index: count for unit, index, count in served if not unit.profile}
        groups = list(zip(self._groups, self.groups, strict=True))
        yield {index: -count for each in groups for index, count in _kept_cards(*each)}
        yield {each.unchanged: -group.drain for group, each in groups if group.drain}
        yield {
            index: -group.link_value * pairs
            for group, each in groups
            for (layout, cards), index in each.patterns.items()
            if layout == WHOLE_CARD and (pairs := comb(group.kept_whole + cards, 2))
        }
        yield {each.unchanged: -1 for _, each in groups}
        yield {index: -1 for each in self.further for index in each.values()}
        # The least of each card; of equal shares those of MPS, which limits their memory.
        yield {index: (2 * unit.milli + _is_time_sliced(unit.profile)) * count for unit, index, count in served}

    def _used_cards(self) -> dict[int, int]:
        """Return the cards that are partitioned or shared."""
        shared = {index: cards for layout, cards, index in self._patterns(range(len(self.groups))) if layout}
        return dict.fromkeys(self.cards.values(), 1) | shared

    def served_units(self, values: Sequence[int]) -> Iterator[dict[CardUnit, int]]:
        """Yield for each demand how many requests get which unit."""
        for each, by_unit in zip(self._demands, self.served, strict=True):
            found = Counter[CardUnit]()
            for (pool, profile), index in by_unit.items():
                found[CardUnit(pool.product, profile)] += values[index] * each.together
            yield dict(+found)

    def new_layouts(self, values: Sequence[int]) -> tuple[tuple[tuple[MigLayout, ...], ...], ...]:
        """Return for each group the new layouts of the cards of each node."""
        new = {key: values[index] for key, index in self.cards.items()}
        for each in self.groups:
            for layout, index in each.kept.items():
                new[each.pool, layout] -= values[index]
        missing: defaultdict[_ReachablePool, Counter[MigLayout]] = defaultdict(Counter)
        for (pool, layout), count in new.items():
            missing[pool][layout] += count
        return tuple(
            tuple(_node_layouts(group, each, values, missing[each.pool]))
            for group, each in zip(self._groups, self.groups, strict=True)
        )

    def used_nodes(
        self, values: Sequence[int], layouts: Sequence[Sequence[tuple[MigLayout, ...]]]
    ) -> Iterator[EqualNodes]:
        """Yield groups with the cards that are used: of the whole ones, those of the nodes that have the most."""
        whole = Counter[_ReachablePool]()
        for each, by_unit in zip(self._demands, self.served, strict=True):
            for (pool, profile), index in by_unit.items():
                whole[pool] += 0 if profile else values[index] * each.together
        found = Counter[EqualNodes]()
        for number in sorted(range(len(layouts)), key=lambda number: -self._most_whole(layouts[number])):
            group, pool = self._groups[number], self.groups[number].pool
            for node in sorted(layouts[number], key=lambda node: -node.count(WHOLE_CARD)):
                used = min(whole[pool], node.count(WHOLE_CARD))
                whole[pool] -= used
                cards = (*(layout for layout in node if layout != WHOLE_CARD), *(WHOLE_CARD,) * used)
                found[EqualNodes(group.product, tuple(sorted(cards)), 1, group.bit, fixed=True)] += 1
        return (group._replace(nodes=count) for group, count in found.items() if group.layouts)

    def _most_whole(self, nodes: Iterable[tuple[MigLayout, ...]]) -> int:
        return max((node.count(WHOLE_CARD) for node in nodes), default=0)


def _is_time_sliced(profile: str) -> bool:
    share = share_of(profile)
    return share is not None and share[0] is GpuForm.TIME_SLICING


def _pools_of_groups(groups: Iterable[EqualNodes], demands: Sequence[UnitDemand]) -> list[_ReachablePool]:
    """Return the pool of each group."""
    using = [(number, each.nodes, {unit.product for unit in each.units}) for number, each in enumerate(demands)]
    known: dict[tuple[str, int], _ReachablePool] = {}
    for product, index in {(group.product, group.bit) for group in groups}:
        numbers = tuple(number for number, nodes, products in using if product in products and nodes >> index & 1)
        known[product, index] = _ReachablePool(product, numbers)
    return [known[group.product, group.bit] for group in groups]


def _joint_layouts(layouts: Sequence[MigLayout]) -> Iterator[tuple[MigLayout, ...]]:
    """Yield the combinations of layouts whose kept cards are limited together."""
    few = len(layouts) <= MAX_JOINT_LAYOUTS
    for size in range(1, len(layouts) + 1) if few else (1, len(layouts)):
        yield from combinations(layouts, size)


def _kept_cards(group: EqualNodes, variables: _GroupVariables) -> Iterator[tuple[int, int]]:
    """Yield the terms of the cards that keep their layout."""
    today, cards = group.unpartitioned
    for (layout, count), index in variables.patterns.items():
        if layout == today and min(count, cards):
            yield index, min(count, cards)
    for index in variables.kept.values():
        yield index, 1


def _node_layouts(
    group: EqualNodes, variables: _GroupVariables, values: Sequence[int], missing: Counter[MigLayout]
) -> Iterator[tuple[MigLayout, ...]]:
    """Yield the new layouts of each node of a group, first those that do not change.

    Args:
        missing: The new partitioned cards of the pool; those that the nodes get are subtracted.
    """
    unchanged, today = values[variables.unchanged], group.unpartitioned
    yield from [group.layouts] * unchanged
    patterns = Counter({pattern: values[index] for pattern, index in variables.patterns.items()})
    patterns[today] -= unchanged
    kept = Counter({layout: values[index] for layout, index in variables.kept.items()})
    kept.subtract({layout: count * unchanged for layout, count in group.partitioned.items()})
    for layout, count in sorted((+patterns).elements(), key=lambda pattern: (pattern[1], pattern[0])):
        slots = len(group.layouts) - count
        cards = _take_kept(kept, group.partitioned, slots)
        for source in (missing, kept):  # the second only if more were to be kept than could be
            cards += _take_most(source, slots - len(cards))
        yield (*(layout,) * count, *cards)
    missing.update(+kept)


def _take_kept(available: Counter[MigLayout], most: Mapping[MigLayout, int], cards: int) -> list[MigLayout]:
    """Take some cards, up to a limit for each layout; first those with the most left."""
    taken, left = list[MigLayout](), Counter(most)
    while len(taken) < cards:
        possible = [(available[layout], layout) for layout in left if left[layout] > 0 and available[layout] > 0]
        if not possible:
            break
        _, layout = max(possible)
        taken.append(layout)
        left[layout] -= 1
        available[layout] -= 1
    return taken


def _take_most(available: Counter[MigLayout], cards: int) -> list[MigLayout]:
    """Take some cards, as many as possible of one layout."""
    taken: list[MigLayout] = []
    for layout, count in available.most_common():
        taken += [layout] * min(max(0, count), cards - len(taken))
    available.subtract(taken)
    return taken


def _largest_shares(product: str, demands: Iterable[UnitDemand]) -> list[str]:
    """Return the profile of a product with the most replicas of each demand and form."""
    first: dict[tuple[int, GpuForm], str] = {}
    for number, each in enumerate(demands):
        for unit in each.units:
            if unit.product == product and (share := share_of(unit.profile)):
                first.setdefault((number, share[0]), unit.profile)
    return sorted(set(first.values()))
