"""Plans MIG layouts where many nodes have pods of their own, which no other node may serve, beside pods that many may.

In one integer program each such node would have variables of its own, and hundreds of them take minutes. So first each
of these nodes is planned alone, equal ones once: that gives the fewest cards for its own pods, and the slices of these
cards that they use. Then all nodes together get layouts of these cards that leave what the other pods need. Last, the
rest of the slices and cards serves the other pods, by an exact plan in which equal nodes are counted together.

The plan serves the own pods of a node with the fewest cards. Another one could be better, so the lower bound is that of
a program without this: in it, own pods may use each node that the same other pods may use, and all nodes together have
at least as many cards for own pods as each needs alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from webhook.model.node_masks import bit_positions
from webhook.placement.integer_program import ObjectiveValue
from webhook.placement.layout_plan import (
    WHOLE_CARD,
    CardGroup,
    CardUnit,
    EqualNodes,
    LayoutPlan,
    LayoutProgram,
    UnitDemand,
    UnitLimit,
    is_shared,
    plan_together,
    share_of,
)
from webhook.placement.mig import MigLayout

NODE_SECONDS = 2.0
"""Time to plan one node alone."""

SHARE_ALONE = 1 / 2
"""Most of the time that all nodes alone may take: the programs are small, but there can be hundreds."""

SHARE_TO_CHOOSE = 1 / 4
"""Most of the time left for the layouts of the cards of own pods: the exact plan of the other pods follows."""

SHARE_OF_OTHERS = 2 / 3
"""Most of the time left then for the plan of the other pods; the rest is for the lower bounds."""


class CardLoad(NamedTuple):
    """The slices of a card that own pods use, on nodes of a class, and whether the card could be whole instead."""

    bit: int
    used: MigLayout
    or_whole: bool


class OwnCard(NamedTuple):
    """A card that serves own pods of a node.

    Attributes:
        used: The slices that they use; none of a whole card.
        layout: Its layout.
        single: The demand with its only request, by its place, if a whole card may serve this too.
    """

    used: MigLayout
    layout: MigLayout
    single: int | None = None

    def load(self, bit: int) -> CardLoad:
        """Return what it has to do on a node of a class."""
        return CardLoad(bit, self.used, self.single is not None)

    @property
    def rest(self) -> MigLayout:
        """The slices that they do not use."""
        left = Counter(dict(self.layout))
        left.subtract(dict(self.used))
        return tuple(sorted((+left).items()))


class OwnService(NamedTuple):
    """The units of the own pods of one node, and the cards that have them.

    Attributes:
        cards: Its cards.
        served: The units, by demand.
        unserved: Requests without a unit.
        least: The proved fewest cards of a plan with so few; 0 if more might be served.
    """

    cards: tuple[OwnCard, ...]
    served: tuple[Mapping[CardUnit, int], ...]
    unserved: int
    least: int

    def with_cards(self, product: str, cards: tuple[OwnCard, ...]) -> OwnService:
        """Return the service with other layouts of the cards, some whole instead of partitioned."""
        served = [Counter(each) for each in self.served]
        for old, new in zip(self.cards, cards, strict=True):
            if old.layout != WHOLE_CARD and new.layout == WHOLE_CARD and old.single is not None:
                served[old.single].subtract({CardUnit(product, profile): count for profile, count in old.used})
                served[old.single][CardUnit(product, "")] += 1
        return self._replace(cards=cards, served=tuple(dict(+each) for each in served))


def own_demands(
    groups: Sequence[EqualNodes], demands: Sequence[UnitDemand], limits: Iterable[UnitLimit]
) -> dict[int, list[int]]:
    """Return the demands of each node that only this one may serve, with one slice or card each."""
    places = defaultdict[tuple[str, int], list[int]](list)
    for number, group in enumerate(groups):
        places[group.product, group.bit].append(number)
    bits = Counter[str]()
    for product, bit in places:
        bits[product] |= 1 << bit
    limited = {number for limit in limits for number, _, _ in limit.amounts}
    found = defaultdict[int, list[int]](list)
    for number, each in enumerate(demands):
        if number in limited or each.together > 1 or any(share_of(unit.profile) for unit in each.units):
            continue
        products = {unit.product for unit in each.units}
        reached = [(product, bit) for product in products for bit in bit_positions(bits[product] & each.nodes)]
        members = [group for place in reached for group in places[place]]
        if len(members) == 1 and groups[members[0]].nodes == 1 and not any(map(is_shared, groups[members[0]].layouts)):
            found[members[0]].append(number)
    return dict(found)


def plan_with_own_demands(
    groups: Sequence[EqualNodes],
    demands: Sequence[UnitDemand],
    limits: Sequence[UnitLimit],
    own: Mapping[int, Sequence[int]],
    seconds: float,
) -> tuple[LayoutPlan, float]:
    """Return a plan in which the own pods of nodes get the fewest cards, and the time that this took."""
    services, spent = _serve_alone(groups, demands, own, seconds * SHARE_ALONE)
    common = common_demands(groups, demands, own)
    services, more = _choose_cards(common, services, limits, (seconds - spent) * SHARE_TO_CHOOSE)
    spent += more
    rest = RestOfNodes(common, {number: each.cards for number, each in services.items()})
    plan, more = plan_together(rest.groups, common.demands, common.limits(limits), (seconds - spent) * SHARE_OF_OTHERS)
    spent += more
    unserved = plan.unserved.value + sum(each.unserved for each in services.values())
    used, layouts = plan.used.value + rest.used, rest.layouts(plan)
    bounds, more = _lower_bounds(common, demands, services, own, limits, unserved, seconds - spent)
    found = LayoutPlan(
        cards=_card_groups(groups, layouts),
        served=_served_units(common, plan, services, own),
        unserved=ObjectiveValue(unserved, min(unserved, bounds[0])),
        used=ObjectiveValue(used, min(used, bounds[1])),
        changed=sum(_changed_cards(group, nodes) for group, nodes in zip(groups, layouts, strict=True)),
        layouts=layouts,
        used_nodes=tuple(rest.used_nodes(plan, layouts)),
    )
    return found, spent + more


class CommonDemands(NamedTuple):
    """The demands that are not of one node alone, and the nodes that the same of them may use.

    Attributes:
        groups: All nodes.
        numbers: The places of these demands among all.
        demands: They, for classes of nodes instead of nodes.
        classes: The class of each group.
    """

    groups: Sequence[EqualNodes]
    numbers: tuple[int, ...]
    demands: tuple[UnitDemand, ...]
    classes: tuple[int, ...]

    def limits(self, limits: Iterable[UnitLimit]) -> list[UnitLimit]:
        """Return limits with the places of the demands here."""
        places = {number: place for place, number in enumerate(self.numbers)}
        return [
            UnitLimit(each.most, tuple((places[number], unit, amount) for number, unit, amount in each.amounts))
            for each in limits
        ]

    def merged_groups(self) -> list[EqualNodes]:
        """Return the nodes by class, equal ones together."""
        found = Counter[EqualNodes]()
        for group, bit in zip(self.groups, self.classes, strict=True):
            found[group._replace(nodes=1, bit=bit)] += group.nodes
        return [group._replace(nodes=count) for group, count in found.items()]


def common_demands(
    groups: Sequence[EqualNodes], demands: Sequence[UnitDemand], own: Mapping[int, Sequence[int]]
) -> CommonDemands:
    """Return the demands that are not of one node alone."""
    owned = {number for some in own.values() for number in some}
    numbers = tuple(number for number in range(len(demands)) if number not in owned)
    products = {number: {unit.product for unit in demands[number].units} for number in numbers}
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    classes, masks = list[int](), Counter[int]()
    for group in groups:
        usable = (number for number in numbers if group.product in products[number])
        using = tuple(number for number in usable if demands[number].nodes >> group.bit & 1)
        classes.append(known.setdefault((group.product, using), len(known)))
    for (_, using), bit in known.items():
        masks.update(dict.fromkeys(using, 1 << bit))
    common = tuple(demands[number]._replace(nodes=masks[number]) for number in numbers)
    return CommonDemands(groups, numbers, common, tuple(classes))


def _serve_alone(
    groups: Sequence[EqualNodes], demands: Sequence[UnitDemand], own: Mapping[int, Sequence[int]], seconds: float
) -> tuple[dict[int, OwnService], float]:
    """Return what own pods get if each node is planned alone, and the time that this took."""
    known, left = dict[object, OwnService](), seconds
    found: dict[int, OwnService] = {}
    for number, some in own.items():
        wanted = tuple(demands[each]._replace(nodes=1) for each in some)
        key = (groups[number]._replace(bit=0), wanted)
        if key not in known:
            known[key], spent = _serve_node(key[0], wanted, min(NODE_SECONDS, left))
            left = max(0.0, left - spent)
        found[number] = known[key]
    return found, seconds - left


def _serve_node(group: EqualNodes, wanted: Sequence[UnitDemand], seconds: float) -> tuple[OwnService, float]:
    """Return what the pods of one node get with the fewest cards, in the smallest slices, and the time for this."""
    program = LayoutProgram([group], wanted)
    unserved, used, *_, smallest = program.objectives()
    solution = program.minimize([unserved, used, smallest], program.start, seconds)
    [[node]], served = program.new_layouts(solution.values), tuple(program.served_units(solution.values))
    missing, fewest = solution.objectives[:2]
    cards = tuple(_own_cards(node, served, wanted))
    least = fewest.bound if missing.value == missing.bound else 0
    return OwnService(cards, served, missing.value, least), solution.seconds


def _own_cards(
    node: Iterable[MigLayout], served: Sequence[Mapping[CardUnit, int]], wanted: Sequence[UnitDemand]
) -> Iterator[OwnCard]:
    """Yield the cards of a node that serve its pods."""
    left = {(place, unit.profile): count for place, each in enumerate(served) for unit, count in each.items()}
    for layout in node:
        taken = list(_take_units(layout or (("", 1),), left))
        used = Counter(profile for _, profile in taken if profile)
        single = taken[0][0] if layout and len(taken) == 1 else None
        may_be_whole = single is not None and any(not unit.profile for unit in wanted[single].units)
        if taken:
            yield OwnCard(tuple(sorted(used.items())), layout, single if may_be_whole else None)


def _take_units(layout: MigLayout, left: dict[tuple[int, str], int]) -> Iterator[tuple[int, str]]:
    """Yield the units of a card that requests use, by the place of the demand, and subtract them."""
    for profile, room in layout:
        for key in [key for key, requests in left.items() if key[1] == profile and requests]:
            taken = min(room, left[key])
            room -= taken
            left[key] -= taken
            yield from [key] * taken


def _choose_cards(
    common: CommonDemands, services: Mapping[int, OwnService], limits: Sequence[UnitLimit], seconds: float
) -> tuple[dict[int, OwnService], float]:
    """Return own pods with layouts of their cards that suit the other pods, and the time that this took.

    A card with a single own pod stays whole where its other slices would serve none.
    """
    free = {number: each for number, each in services.items() if not common.groups[number].fixed}
    pinned, loads = _count_own_units(common, services), _count_loads(common, free)
    program, placed = _card_program(common, pinned, loads, limits)
    first = dict.fromkeys(program.unserved[len(common.demands) :], 1) | dict.fromkeys(placed.values(), -1)
    solution = program.minimize([first, *islice(program.objectives(), 3)], program.start, seconds)
    left = defaultdict[CardLoad, Counter[MigLayout]](Counter)
    for (load, layout), index in placed.items():
        left[load][layout] += solution.values[index]
    return dict(services) | _distribute_layouts(common, free, left), solution.seconds


def _count_own_units(common: CommonDemands, services: Mapping[int, OwnService]) -> Counter[tuple[int, CardUnit]]:
    """Return the units of own pods, by the class of their nodes."""
    found = Counter[tuple[int, CardUnit]]()
    for number, each in services.items():
        for units in each.served:
            found.update({(common.classes[number], unit): count for unit, count in units.items()})
    return found


def _count_loads(common: CommonDemands, services: Mapping[int, OwnService]) -> Counter[CardLoad]:
    """Return the partitioned cards that serve own pods, by what they have to do."""
    return Counter(
        card.load(common.classes[number]) for number, each in services.items() for card in each.cards if card.used
    )


def _card_program(
    common: CommonDemands,
    pinned: Mapping[tuple[int, CardUnit], int],
    loads: Mapping[CardLoad, int],
    limits: Sequence[UnitLimit],
) -> tuple[LayoutProgram, dict[tuple[CardLoad, MigLayout], int]]:
    """Return the program of all pods, and its variables of the cards of own pods by what they do and layout."""
    own = [
        UnitDemand(count, tuple(dict.fromkeys((unit, unit._replace(profile="")))), 1, 1 << bit)
        for (bit, unit), count in pinned.items()
    ]
    groups = common.merged_groups()
    program = LayoutProgram(groups, [*common.demands, *own], common.limits(limits))
    placed = _add_own_cards(program, groups, loads)
    for number, (bit, unit) in enumerate(pinned, len(common.demands)):
        _require_whole(program, placed, number, bit, unit.profile)
    return program, placed


def _distribute_layouts(
    common: CommonDemands, services: Mapping[int, OwnService], left: defaultdict[CardLoad, Counter[MigLayout]]
) -> dict[int, OwnService]:
    """Return own pods with the layouts that are left for cards with the same to do."""
    found = dict[int, OwnService]()
    for number, each in services.items():
        group, bit = common.groups[number], common.classes[number]
        today = Counter(group.layouts)
        cards = tuple(_take_layout(card, left[card.load(bit)], today) for card in each.cards)
        found[number] = each.with_cards(group.product, cards)
    return found


def _add_own_cards(
    program: LayoutProgram, groups: Sequence[EqualNodes], loads: Mapping[CardLoad, int]
) -> dict[tuple[CardLoad, MigLayout], int]:
    """Add the cards that serve own pods, by the slices that these use, and layout."""
    pools = {group.bit: each.pool for group, each in zip(groups, program.groups, strict=True)}
    placed: dict[tuple[CardLoad, MigLayout], int] = {}
    by_card = defaultdict[int, list[int]](list)
    for load, count in loads.items():
        for (pool, layout), index in program.cards.items():
            if pool == pools[load.bit] and Counter(dict(load.used)) <= Counter(dict(layout)):
                placed[load, layout] = program.add_variable(count)
                by_card[index].append(placed[load, layout])
        if load.or_whole:
            placed[load, WHOLE_CARD] = program.add_variable(count)
        program.require_sum({index: 1 for (each, _), index in placed.items() if each == load}, upper=count)
    for index, some in by_card.items():
        program.require_sum({**dict.fromkeys(some, 1), index: -1}, upper=0)
    return placed


def _require_whole(
    program: LayoutProgram, placed: Mapping[tuple[CardLoad, MigLayout], int], number: int, bit: int, profile: str
) -> None:
    """Serve as many own pods with a whole card instead of a slice as cards stay whole for them."""
    whole = {
        index: -1
        for (load, layout), index in placed.items()
        if load.bit == bit and layout == WHOLE_CARD and load.used == ((profile, 1),)
    }
    served = {index: 1 for (_, name), index in program.served[number].items() if not name}
    if profile:
        program.require_sum(served | whole, 0, 0)


def _take_layout(card: OwnCard, left: Counter[MigLayout], today: Counter[MigLayout]) -> OwnCard:
    """Return a card with one of the layouts that are left, if possible one that the node has today."""
    possible = [(today[layout] > 0, count, layout) for layout, count in left.items() if count > 0]
    layout = max(possible)[2] if possible and card.used else card.layout
    left[layout] -= 1
    today[layout] -= 1
    return card._replace(layout=layout)


class RestOfNodes:
    """The cards and slices of each node that its own pods leave.

    Attributes:
        groups: The cards that serve no own pod, and then the slices that own pods leave of the others.
        used: Used cards that are not among these.
    """

    def __init__(self, common: CommonDemands, cards: Mapping[int, Sequence[OwnCard]]) -> None:
        self._common, self._cards = common, cards
        self._members: defaultdict[EqualNodes, list[int]] = defaultdict(list)
        slices = Counter[EqualNodes]()
        self.used = 0
        for number, (group, bit) in enumerate(zip(common.groups, common.classes, strict=True)):
            self._members[self._free_cards(number)._replace(nodes=1, bit=bit)] += [number] * group.nodes
            for card in cards.get(number, ()):
                rest = EqualNodes(group.product, (card.rest,), 1, bit, fixed=True)
                slices[rest] += bool(card.rest)
                self.used += not card.rest
        free = [group._replace(nodes=len(some)) for group, some in self._members.items()]
        self.groups = (*free, *(group._replace(nodes=count) for group, count in (+slices).items()))

    def _free_cards(self, number: int) -> EqualNodes:
        """Return a node without the cards that serve own pods; if these change, it is drained anyway."""
        group, today = self._common.groups[number], Counter(self._common.groups[number].layouts)
        wanted = Counter(card.layout for card in self._cards.get(number, ()))
        changed = wanted - today
        left = today - wanted
        for layout in sorted(left.elements())[: changed.total()]:
            left[layout] -= 1
        drain = 0 if changed else group.drain
        layouts = tuple(sorted((+left).elements()))
        return group._replace(layouts=layouts, kept_whole=group.kept_whole + wanted[WHOLE_CARD], drain=drain)

    def layouts(self, plan: LayoutPlan) -> tuple[tuple[tuple[MigLayout, ...], ...], ...]:
        """Return for each group the layouts of the cards of each node, with those for own pods."""
        found: list[list[tuple[MigLayout, ...]]] = [[] for _ in self._common.groups]
        for numbers, nodes in zip(self._members.values(), plan.layouts[: len(self._members)], strict=True):
            for number, node in zip(numbers, nodes, strict=True):
                own = (card.layout for card in self._cards.get(number, ()))
                found[number].append((*own, *node))
        return tuple(map(tuple, found))

    def used_nodes(self, plan: LayoutPlan, layouts: Sequence[Sequence[tuple[MigLayout, ...]]]) -> Iterator[EqualNodes]:
        """Yield groups with the cards that are used: of the whole ones, those of the nodes that have the most."""
        left, found = Counter[tuple[str, int]](), Counter[EqualNodes]()
        for used in plan.used_nodes:
            left[used.product, used.bit] += used.nodes * used.layouts.count(WHOLE_CARD)
        nodes = [(number, node) for number, some in enumerate(layouts) for node in some]
        for number, node in sorted(nodes, key=lambda each: -each[1].count(WHOLE_CARD)):
            group = self._common.groups[number]
            own = sum(card.layout == WHOLE_CARD for card in self._cards.get(number, ()))
            place = (group.product, self._common.classes[number])
            more = min(left[place], node.count(WHOLE_CARD) - own)
            left[place] -= more
            cards = (*(layout for layout in node if layout != WHOLE_CARD), *(WHOLE_CARD,) * (own + more))
            found[EqualNodes(group.product, tuple(sorted(cards)), 1, group.bit, fixed=True)] += 1
        return (group._replace(nodes=count) for group, count in found.items() if group.layouts)


def _lower_bounds(
    common: CommonDemands,
    demands: Sequence[UnitDemand],
    services: Mapping[int, OwnService],
    own: Mapping[int, Sequence[int]],
    limits: Sequence[UnitLimit],
    unserved: int,
    seconds: float,
) -> tuple[tuple[int, int], float]:
    """Return bounds of the unserved requests, and of the used cards with at most so many, and the time for this."""
    pooled = Counter[UnitDemand]()
    for number, some in own.items():
        for each in some:
            pooled[demands[each]._replace(requests=0, nodes=1 << common.classes[number])] += demands[each].requests
    wanted = [*common.demands, *(each._replace(requests=count) for each, count in pooled.items())]
    groups = common.merged_groups()
    program = LayoutProgram(groups, wanted, common.limits(limits))
    _require_own_cards(program, common, groups, wanted, services)
    terms, cards = islice(program.objectives(), 2)
    first = program.minimize([terms], program.start, seconds / 2)
    program.require_sum(terms, upper=unserved)
    second = program.minimize([cards], dict(enumerate(first.values)), seconds - first.seconds)
    return (first.objectives[0].bound, second.objectives[0].bound), first.seconds + second.seconds


def _require_own_cards(
    program: LayoutProgram,
    common: CommonDemands,
    groups: Sequence[EqualNodes],
    wanted: Sequence[UnitDemand],
    services: Mapping[int, OwnService],
) -> None:
    """Use as many cards as all nodes need alone for own pods. One that is not served saves at most one card."""
    least = Counter[int]()
    for number, each in services.items():
        least[common.classes[number]] += each.least + each.unserved
    pools = {group.bit: each.pool for group, each in zip(groups, program.groups, strict=True)}
    for bit, cards in least.items():
        terms = {index: 1 for (pool, _), index in program.cards.items() if pool == pools[bit]}
        for number in range(len(common.demands), len(wanted)):
            if wanted[number].nodes == 1 << bit:
                terms[program.unserved[number]] = 1
                terms |= {index: 1 for (_, profile), index in program.served[number].items() if not profile}
        program.require_sum(terms, lower=cards)


def _served_units(
    common: CommonDemands,
    plan: LayoutPlan,
    services: Mapping[int, OwnService],
    own: Mapping[int, Sequence[int]],
) -> tuple[Mapping[CardUnit, int], ...]:
    """Return the units of each demand."""
    found = dict(zip(common.numbers, plan.served, strict=True))
    for number, some in own.items():
        found |= zip(some, services[number].served, strict=True)
    return tuple(found[number] for number in range(len(found)))


def _card_groups(
    groups: Sequence[EqualNodes], layouts: Sequence[Sequence[tuple[MigLayout, ...]]]
) -> tuple[CardGroup, ...]:
    cards = Counter[tuple[str, MigLayout]]()
    for group, nodes in zip(groups, layouts, strict=True):
        cards.update((group.product, layout) for node in nodes for layout in node)
    return tuple(CardGroup(*key, count) for key, count in sorted(cards.items()))


def _changed_cards(group: EqualNodes, nodes: Iterable[tuple[MigLayout, ...]]) -> int:
    return sum((Counter(group.layouts) - Counter(node)).total() for node in nodes)
