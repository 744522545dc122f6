"""The texts, tables and JSON of `layout`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from webhook.errors import abbreviate_names
from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import CARD_MILLI
from webhook.placement.layout_plan import CardUnit, share_of
from webhook.placement.mig import MigLayout
from webhook.placement.node_layouts import NodeChange
from webhook.report.code_pages import REASON_TEXTS
from webhook.report.costs import NO_PRICE, GpuCost, money_text
from webhook.report.layout import (
    ChangeStep,
    ClusterLayout,
    HostShortage,
    LayoutRow,
    NeedRow,
    ProductUse,
    RecordedService,
)
from webhook.report.layout_demand import DemandRecord, UnitNeed
from webhook.report.tables import Column, Table
from webhook.report.text import Paint, format_percent, pluralize, sanitize, without_style
from webhook.well_known import Json

RowT = TypeVar("RowT")

WHOLE_TEXT = "whole"

NO_CARDS = "No node has cards whose layouts can be planned."
UNKNOWN_BUDGETS = "PodDisruptionBudgets may not be listed, and might allow no eviction"


def layout_text(layout: MigLayout) -> str:
    """Format a layout.

    >>> layout_text((("1g.10gb", 4), ("3g.40gb", 1))), layout_text((("mps/4", 4),))
    ('4 x 1g.10gb + 1 x 3g.40gb', '4 x MPS')
    """
    return " + ".join(f"{count} x {_profile_text(profile)}" for profile, count in layout) or WHOLE_TEXT


SHARE_WORDS = {GpuForm.MPS: "MPS", GpuForm.TIME_SLICING: "time-sliced"}


def _profile_text(profile: str) -> str:
    share = share_of(profile)
    return SHARE_WORDS[share[0]] if share else profile


def node_layouts_text(layouts: Sequence[MigLayout]) -> str:
    """Format the layouts of a node's cards.

    >>> node_layouts_text([(), (("1g.10gb", 7),), ()])
    '2 cards whole, 1 card 7 x 1g.10gb'
    """
    counts = sorted(Counter(layouts).items())
    return ", ".join(f"{pluralize(cards, 'card')} {layout_text(layout)}" for layout, cards in counts)


def unit_text(unit: CardUnit) -> str:
    """Format a unit.

    >>> unit_text(CardUnit("NVIDIA-A30", "1g.6gb")), unit_text(CardUnit("NVIDIA-A30", ""))
    ('1g.6gb of NVIDIA-A30', 'NVIDIA-A30 whole')
    """
    if share := share_of(unit.profile):
        return f"1/{share[1]} of {unit.product} ({SHARE_WORDS[share[0]]})"
    return f"{unit.profile} of {unit.product}" if unit.profile else f"{unit.product} {WHOLE_TEXT}"


def _need_text(need: UnitNeed) -> str:
    by_product: dict[str, list[CardUnit]] = {}
    for unit in need.units:
        by_product.setdefault(unit.product, []).append(unit)
    smallest = (unit_text(units[0]) + (" (or larger)" if len(units) > 1 else "") for units in by_product.values())
    units = (" or ".join(smallest) or "none that fits") + (f" ({need.together} together)" if need.together > 1 else "")
    return f"{units} in {need.namespace}" if need.namespace else units


def _nodes_text(nodes: Sequence[str]) -> str:
    """Format the only nodes of a need.

    >>> _nodes_text(["n1", "n2"]), _nodes_text([])
    (' on n1, n2 only', '')
    """
    return f" on {abbreviate_names(list(map(sanitize, nodes)))} only" if nodes else ""


def _served_text(row: NeedRow) -> str:
    return ", ".join(f"{requests} by {unit_text(unit)}" for unit, requests in sorted(row.served.items()))


def _change_text(change: int) -> str:
    """Format a difference.

    >>> _change_text(3), _change_text(-1), _change_text(0)
    ('+3', '-1', '0')
    """
    return f"{change:+d}" if change else "0"


LAYOUTS = Table[LayoutRow](
    (
        Column("product", lambda row: row.product, "Product"),
        Column("layout", lambda row: dict(row.layout), "Layout", lambda row: layout_text(row.layout)),
        Column("today", lambda row: row.today, "Today", numeric=True),
        Column("planned", lambda row: row.planned, "Planned", numeric=True),
        Column("", lambda row: row.planned - row.today, "Change", lambda row: _change_text(row.planned - row.today)),
    )
)


def _freed_columns(freed: Callable[[RowT], GpuCost]) -> tuple[Column[RowT], Column[RowT]]:
    """Return the columns of freed GPUs, and of their price."""
    return (
        Column("freed", lambda row: freed(row).milli // CARD_MILLI, "Freed", numeric=True),
        Column(
            "freedMicroPerHour",
            lambda row: freed(row).micro if freed(row).micro or not freed(row).unpriced_milli else None,
            "Freed per hour",
            lambda row: _price_text(freed(row)),
            numeric=True,
        ),
    )


def _price_text(freed: GpuCost, unit: str = "") -> str:
    """Format the price of freed GPUs, and how many of them have none.

    >>> _price_text(GpuCost(3000, 2_500_000, 1000)), _price_text(GpuCost(1000, 0, 1000)), _price_text(GpuCost())
    ('2.50, 1 card without price', 'no price', '0.00')
    """
    if not freed.unpriced_milli:
        return f"{money_text(freed.micro)}{unit}"
    unpriced = pluralize(freed.unpriced_milli // CARD_MILLI, "card")
    return f"{money_text(freed.micro)}{unit}, {unpriced} without price" if freed.micro else NO_PRICE


PRODUCTS = Table[ProductUse](
    (
        Column("product", lambda row: row.product, "Product"),
        Column("cards", lambda row: row.cards, "Cards", numeric=True),
        Column("usedToday", lambda row: row.today, "Used today", numeric=True),
        Column("usedPlanned", lambda row: row.planned, "Used as planned", numeric=True),
        *_freed_columns(lambda row: row.freed),
    )
)

STEPS = Table[ChangeStep](
    (
        Column("step", lambda row: row.number, "Step", numeric=True),
        Column(
            "nodes",
            lambda row: list(row.nodes),
            "Nodes",
            lambda row: abbreviate_names(row.nodes) or "none: the demand with today's layouts",
        ),
        Column("pods", lambda row: row.pods, "Evicts", numeric=True),
        *_freed_columns(lambda row: row.freed),
        Column("unserved", lambda row: row.unserved, "Unserved", numeric=True),
    )
)

NEEDS = Table[NeedRow](
    (
        Column("requests", lambda row: row.requests, "Units", numeric=True),
        Column("now", lambda row: row.now),
        Column("namespace", lambda row: row.need.namespace or None),
        Column("origin", lambda row: row.need.origin.value, "Origin"),
        Column("together", lambda row: row.need.together),
        Column("nodes", lambda row: list(row.nodes) or None),
        Column("quotas", lambda row: list(dict.fromkeys(quota.name for quota in row.need.quotas)) or None),
        Column(
            "units",
            lambda row: [unit._asdict() for unit in row.need.units],
            "Need",
            lambda row: _need_text(row.need) + _nodes_text(row.nodes),
        ),
        Column(
            "served",
            lambda row: [{**unit._asdict(), "requests": count} for unit, count in sorted(row.served.items())],
            "Served",
            _served_text,
        ),
        Column("unserved", lambda row: row.unserved, "Unserved", numeric=True),
        Column("reason", lambda row: row.reason, "Reason"),
    )
)

CHANGES = Table[NodeChange](
    (
        Column("node", lambda row: row.node.node, "Node"),
        Column("product", lambda row: row.node.product),
        Column("pods", lambda row: row.node.pods, "Pods", numeric=True),
        Column(
            "today",
            lambda row: [dict(layout) for layout in row.node.layouts],
            "Today",
            lambda row: node_layouts_text(row.node.layouts),
        ),
        Column(
            "planned",
            lambda row: [dict(layout) for layout in row.layouts],
            "Planned",
            lambda row: node_layouts_text(row.layouts),
        ),
    )
)


def layout_lines(layout: ClusterLayout, changes: Sequence[str], paint: Paint = without_style) -> Iterator[str]:
    """Yield the plan for a terminal: the figures, the layouts, the demand, and lines on the nodes that change."""
    if not layout.demand.nodes:
        yield NO_CARDS
        yield from _unplanned_lines(layout)
        return
    yield from _summary_lines(layout)
    yield ""
    yield from PRODUCTS.to_lines(layout.product_uses(), paint)
    yield ""
    yield from LAYOUTS.to_lines(layout.layout_rows(), paint)
    if rows := layout.shown_needs():
        yield ""
        yield from NEEDS.to_lines(rows, paint)
    if layout.steps:
        yield ""
        yield from STEPS.to_lines(layout.steps, paint)
    if changes:
        yield ""
        yield from changes


def _summary_lines(layout: ClusterLayout) -> Iterator[str]:
    yield f"Cards used             {used_text(layout)}"
    yield f"Lower bound            {layout.lower_bound}: {proof_text(layout)}"
    yield f"Changes                {changes_text(layout)}"
    yield from drain_lines(layout)
    units = pluralize(sum(layout.demand.needs.values()), "unit")
    yield f"Unserved               {layout.plan.unserved.value} of {units}: slices, shares and whole cards"
    yield from note_lines(layout)


def used_text(layout: ClusterLayout) -> str:
    """Return the cards that are used, and what that frees."""
    return f"{layout.used_planned} of {layout.cards}, {layout.used_today} today: {freed_text(layout)}"


def drain_lines(layout: ClusterLayout) -> Iterator[str]:
    """Yield the plan in which nodes that run pods with GPUs keep their layouts, if this one is better."""
    if layout.without_drains is not None:
        yield f"Without drains         {_without_drains_text(layout, layout.without_drains)}"


def _without_drains_text(layout: ClusterLayout, idle: ClusterLayout) -> str:
    """Return what changes without drains, the cards that are used then, and the requests that are not served."""
    more = idle.plan.unserved.value - layout.plan.unserved.value
    unserved = f"; {pluralize(more, 'more unit')} unserved, if all pods are created again" if more else ""
    if idle.changes:
        return f"{used_text(idle)}; changes {changes_text(idle)}{unserved}"
    used = idle.used_planned
    cards = f"; the demand then uses {used} cards, {idle.used_today} today" if used != idle.used_today else ""
    return f"no layout changes{cards}{unserved}"


def note_lines(layout: ClusterLayout) -> Iterator[str]:
    """Yield further facts about the plan."""
    if layout.demand.record:
        yield from _record_lines(layout.demand.record)
    if layout.recorded:
        yield f"Recorded demand        {_recorded_text(layout.recorded)}"
    if layout.demand.headroom:
        yield f"Headroom               {layout.demand.headroom}% more units of each need, rounded up"
    if layout.demand.waiting_pods:
        yield f"Waiting pods           {layout.demand.waiting_pods}: {_waiting_text(layout)}"
    if layout.demand.waiting_whole:
        yield f"Wait for whole cards   {_reasons_text(layout.demand.waiting_whole)}, for waiting pods"
    if layout.demand.kept_whole:
        yield f"Whole cards that stay  {_reasons_text(layout.demand.kept_whole)}, with running pods"
    if layout.demand.resized_pods:
        pods = pluralize(layout.demand.resized_pods, "running pod")
        yield f"To be recreated        {pods}: only new pods get a smaller GPU"
    for each in layout.host_shortages():
        yield f"Too little {each.resource:<12}{_shortage_text(each)}"
    yield from _blocked_lines(layout)
    yield from _unplanned_lines(layout)
    freed = [*(use.freed for use in layout.product_uses()), *(step.freed for step in layout.steps)]
    if any(each.milli < 0 for each in freed):
        yield "Freed below zero       so many more cards are used than today"
    if layout.policies:
        names = abbreviate_names([policy["metadata"]["name"] for policy in layout.policies])
        yield f"Not enforced           {names}: pods keep whole cards until rightSizing.mode is enforce"
    if layout.prices:
        yield f"Prices                 {sanitize(layout.prices.source)}"


def _shortage_text(each: HostShortage) -> str:
    """Format a shortage.

    >>> _shortage_text(HostShortage("NVIDIA-A30", "CPU", 2, 112.0, 96.0))
    'pods on 2 nodes with NVIDIA-A30 request 112 CPUs, and these have 96: some may wait'
    """
    unit = "CPUs" if each.resource == "CPU" else "GiB"
    nodes = f"{pluralize(each.nodes, 'node')} with {sanitize(each.product)}"
    return f"pods on {nodes} request {each.requested:g} {unit}, and these have {each.available:g}: some may wait"


def _waiting_text(layout: ClusterLayout) -> str:
    if layout.unserved_waiting_pods is None:
        return "they count in the last part of the recorded time only"
    served = layout.demand.waiting_pods - layout.unserved_waiting_pods
    return f"the plan serves {served} of them, which use no cards today"


def _recorded_text(recorded: RecordedService) -> str:
    served, pods = _share_text(recorded.served, recorded.requests), pluralize(recorded.pods, "recorded pod")
    period = f"from {_time_text(recorded.start)} to {_time_text(recorded.end)}"
    advice = "rightslice layout --quantile plans for them"
    return f"the planned cards would serve {served} of what {pods} needed {period}; {advice}"


def reason_meanings(layout: ClusterLayout) -> list[str]:
    """Return what the reasons mean for which pods keep whole cards, or wait for them."""
    words = {*layout.demand.kept_whole, *layout.demand.waiting_whole}
    return [f"{word}: {REASON_TEXTS[word][0]}" for word in sorted(words)]


def _reasons_text(cards: Mapping[str, int]) -> str:
    """Format a number of cards by reason, the most first.

    >>> _reasons_text({"NoEvidence": 1, "MultipleGPUs": 4})
    '5 (4 MultipleGPUs, 1 NoEvidence)'
    """
    ordered = sorted(cards.items(), key=lambda each: (-each[1], each))
    return f"{sum(cards.values())} ({', '.join(f'{count} {reason}' for reason, count in ordered)})"


def _blocked_lines(layout: ClusterLayout) -> Iterator[str]:
    """Yield the nodes that no plan drains, by the reason."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for node in layout.demand.nodes:
        if node.is_blocked:
            by_reason[node.drain.forbidden].append(sanitize(node.node))
    for reason, names in sorted(by_reason.items()):
        nodes = f"{pluralize(len(names), 'node')} ({abbreviate_names(names)})"
        yield f"Not drained            {nodes}: {sanitize(reason) or UNKNOWN_BUDGETS}"


def _unplanned_lines(layout: ClusterLayout) -> Iterator[str]:
    """Yield the nodes that are not planned by the reason, and the pods on them."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for node in layout.unplanned:
        by_reason[node.reason].append(sanitize(node.node))
    for reason, names in sorted(by_reason.items()):
        yield f"Not planned            {pluralize(len(names), 'node')} ({abbreviate_names(names)}): {reason}"
    yield from _unplanned_pods(layout)


def _unplanned_pods(layout: ClusterLayout) -> Iterator[str]:
    if layout.demand.pods_elsewhere:
        pods = pluralize(layout.demand.pods_elsewhere, "pod")
        yield f"Not planned            {pods} with GPUs on nodes that are not planned, or waiting for such nodes"
    if layout.unplanned_pods:
        pods, names = pluralize(len(layout.unplanned_pods), "pod"), sanitize(abbreviate_names(layout.unplanned_pods))
        yield f"Not planned            {pods} ({names}): with GPUs of ResourceClaims, or of unknown resource names"


def _record_lines(record: DemandRecord) -> Iterator[str]:
    period = f"{_time_text(record.start)} to {_time_text(record.end)}"
    pods = pluralize(record.pods, "recorded pod")
    yield f"Demand                 enough for {100 * record.quantile:g}% of the time from {period}, of {pods}"
    if record.unrecorded_pods:
        yield f"Not recorded           {pluralize(record.unrecorded_pods, 'running pod')}, which count at any time"
    held = record.held_out
    if held is None:
        yield "Not used to plan       -: the record is too short to plan with one part and test with the other"
        return
    later, earlier = _share_text(held.served, held.requests), _share_text(held.earlier_served, held.earlier_requests)
    yield f"Not used to plan       {later} served from {_time_text(held.start)} on by a plan from the time before"
    yield f"Used to plan           {earlier} served before"


def _time_text(seconds: int) -> str:
    """Format a time.

    >>> _time_text(1780272000)
    '2026-06-01T00:00Z'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%MZ}"


def _share_text(served: int, requests: int) -> str:
    """Format a part of requests, rounded down.

    >>> _share_text(9999, 10000), _share_text(0, 0)
    ('99.9%', '100.0%')
    """
    return format_percent(1000 * served // requests if requests else 1000)


def changes_text(layout: ClusterLayout) -> str:
    """Return the number of changes, and what must be drained for them."""
    if not layout.changes:
        return "none"
    cards, nodes = pluralize(layout.changed_cards, "card"), pluralize(len(layout.changes), "node")
    busy = sum(bool(change.node.pods) for change in layout.changes)
    drained = f"; {pluralize(busy, 'node')} must be drained" if busy else " without GPU pods"
    return f"{cards} on {nodes}{drained}"


def freed_text(layout: ClusterLayout) -> str:
    """Return the GPUs that the plan frees, with their price if there are prices."""
    freed = layout.freed()
    gpus = pluralize(abs(freed.milli) // CARD_MILLI, "card")
    text = f"{gpus} {'freed' if freed.milli >= 0 else 'more'}"
    if not layout.prices or not freed.milli:
        return text
    unit = f" {layout.prices.currency}/h"
    if freed.micro >= 0:
        return f"{text}, {_price_text(freed, unit)}"
    return f"{text}, costs {_price_text(GpuCost(-freed.milli, -freed.micro, -freed.unpriced_milli), f'{unit} more')}"


def proof_text(layout: ClusterLayout) -> str:
    """Return the meaning of the lower bound: that the plan is proved best, or what another could save."""
    if layout.plan.is_optimal:
        return "no layouts serve as much with fewer cards"
    unserved, used = layout.plan.unserved, layout.plan.used
    if unserved.value > unserved.bound:
        return f"time ended; other layouts may serve {unserved.value - unserved.bound} more units"
    return f"time ended; other layouts may use {used.value - used.bound} fewer cards"


def layout_document(layout: ClusterLayout, changes: Sequence[NodeChange]) -> Json:
    """Return the plan as plain data, with these of its changes."""
    freed = layout.freed()
    return {
        "cardsUsed": {
            "today": layout.used_today,
            "planned": layout.used_planned,
            "lowerBound": layout.lower_bound,
        },
        "optimal": layout.plan.is_optimal,
        "cardsChanged": layout.changed_cards,
        "withoutDrains": layout.without_drains and _without_drains_document(layout.without_drains),
        "unserved": {"requests": layout.plan.unserved.value, "lowerBound": layout.plan.unserved.bound},
        "freed": {
            "gpus": freed.milli // CARD_MILLI,
            "microPerHour": freed.micro if layout.prices else None,
            "currency": layout.prices.currency if layout.prices else None,
            "unpricedGpus": freed.unpriced_milli // CARD_MILLI if layout.prices else None,
        },
        "waitingPods": layout.demand.waiting_pods,
        "waitingPodsUnserved": layout.unserved_waiting_pods,
        "waitingWhole": dict(layout.demand.waiting_whole),
        "keptWhole": dict(layout.demand.kept_whole),
        "podsToCreateAgain": layout.demand.resized_pods,
        "podsElsewhere": layout.demand.pods_elsewhere,
        "notDrained": {node.node: node.drain.forbidden or None for node in layout.demand.nodes if node.is_blocked},
        "hostShortages": [each._asdict() for each in layout.host_shortages()],
        "podsNotPlanned": list(layout.unplanned_pods),
        "nodesNotPlanned": [{"node": each.node, "reason": each.reason} for each in layout.unplanned],
        "unenforcedPolicies": [policy["metadata"]["name"] for policy in layout.policies],
        "record": _record_document(layout.demand.record) if layout.demand.record else None,
        "products": list(map(PRODUCTS.to_document, layout.product_uses())),
        "recorded": layout.recorded and _recorded_document(layout.recorded),
        "steps": list(map(STEPS.to_document, layout.steps)),
        "layouts": list(map(LAYOUTS.to_document, layout.layout_rows())),
        "demand": list(map(NEEDS.to_document, layout.shown_needs())),
        "nodes": list(map(CHANGES.to_document, changes)),
    }


def _without_drains_document(layout: ClusterLayout) -> Json:
    return {
        "cardsUsed": layout.used_planned,
        "cardsChanged": layout.changed_cards,
        "unserved": layout.plan.unserved.value,
        "nodes": [change.node.node for change in layout.changes],
    }


def _recorded_document(recorded: RecordedService) -> Json:
    return {
        "start": _time_text(recorded.start),
        "end": _time_text(recorded.end),
        "pods": recorded.pods,
        "servedShare": recorded.served / recorded.requests if recorded.requests else 1.0,
    }


def _record_document(record: DemandRecord) -> Json:
    held = record.held_out
    return {
        "quantile": record.quantile,
        "start": _time_text(record.start),
        "end": _time_text(record.end),
        "bins": record.bins,
        "pods": record.pods,
        "unrecordedPods": record.unrecorded_pods,
        "heldOut": held
        and {
            "start": _time_text(held.start),
            "servedShare": held.served / held.requests if held.requests else 1.0,
            "earlierServedShare": held.earlier_served / held.earlier_requests if held.earlier_requests else 1.0,
        },
    }
