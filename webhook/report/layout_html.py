"""The HTML page of a plan of MIG layouts: each card today and as planned, and the cards that the plan frees.

A card is drawn as in NVIDIA's MIG guide: its compute slices above its memory slots, and each instance over those that
it has. Equal cards of a node, and equal nodes, are drawn once, with their number.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from webhook.model.mig_catalog import mig_card_spec
from webhook.placement.layout_plan import WHOLE_CARD, is_shared
from webhook.placement.mig import MigLayout, MigPlacement, arrange_instances, mig_geometry
from webhook.placement.node_layouts import AdvertisedGpus, NodeChange, NodeLayout, UnplannedNode
from webhook.report.charts import Bar, WaterfallStep, waterfall_chart
from webhook.report.html import render_page
from webhook.report.layout import CardUse, ClusterLayout
from webhook.report.layout_text import (
    CHANGES,
    LAYOUTS,
    NEEDS,
    PRODUCTS,
    STEPS,
    changes_text,
    drain_lines,
    freed_text,
    layout_text,
    note_lines,
    proof_text,
    reason_meanings,
)
from webhook.report.tables import Table
from webhook.report.text import pluralize, sanitize

RenderTable = Callable[[Table[Any], Sequence[Any], str], Markup]
"""Returns rows of a table as HTML; the text names a row."""

MAX_GROUPS = 50
"""Groups of equal nodes that are drawn, and of nodes that are not planned."""

MAX_CARDS = 16
"""Different cards of one node that are drawn."""

MAX_NAMES = 8
"""Names of equal nodes that are shown."""

MAX_STEPS = 16
"""Steps of the waterfall."""

MAX_ROWS = 1000
"""Rows of a table."""

MAX_SHARES = 10
"""Shares of a card that are drawn each."""


class DrawnCards(NamedTuple):
    """Equal cards of one node."""

    number: str
    today: Markup
    planned: Markup | None


class DrawnNodes(NamedTuple):
    """Nodes that are drawn once, with the first of their names."""

    product: str
    nodes: int
    names: list[str]
    notes: tuple[str, ...]
    cards: tuple[DrawnCards, ...]
    hidden: int


def layout_page(layout: ClusterLayout, moment: datetime, version: str) -> str:
    """Return the plan as HTML."""
    context = layout_context(layout, lambda table, rows, _: table.to_html(rows))
    return render_page("layout.html", context | {"moment": moment.isoformat(timespec="seconds"), "version": version})


def layout_context(layout: ClusterLayout, render: RenderTable) -> dict[str, object]:
    """Return what the template of a plan shows."""
    groups = sorted(_groups(layout), key=lambda group: all(card.planned is None for card in group.cards))
    unplanned = list(_unplanned_groups(layout.unplanned))
    return {
        "layout": layout,
        "freed": freed_text(layout),
        "proof": proof_text(layout),
        "changes": changes_text(layout),
        "requests": sum(layout.demand.needs.values()),
        "notes": [re.sub(" {2,}", ": ", line, count=1) for line in (*drain_lines(layout), *note_lines(layout))],
        "reasons": reason_meanings(layout),
        "waterfall": _freed_waterfall(layout),
        "groups": groups[:MAX_GROUPS],
        "all_groups": len(groups),
        "unplanned": unplanned[:MAX_GROUPS],
        "all_unplanned": len(unplanned),
        "max_groups": MAX_GROUPS,
        "products": render(PRODUCTS, layout.product_uses()[:MAX_ROWS], "product"),
        "layouts": render(LAYOUTS, layout.layout_rows()[:MAX_ROWS], "layout"),
        "needs": render(NEEDS, layout.shown_needs()[:MAX_ROWS], "need"),
        "steps": render(STEPS, layout.steps, "step"),
        "changed": render(CHANGES, layout.changes[:MAX_ROWS], "node"),
        "max_rows": MAX_ROWS,
    }


def _freed_waterfall(layout: ClusterLayout) -> Markup:
    """Return a waterfall from the cards that are used today to those of the plan."""
    left = layout.used_today
    steps = [WaterfallStep("used today", 0, Bar("all", left, pluralize(left, "card")))]
    changed = sorted((use for use in layout.card_uses() if use.change), key=lambda use: (use.change, use.product))
    for use in changed[:MAX_STEPS]:
        kind = "recommended" if use.change < 0 else "over"
        start, left = min(left, left + use.change), left + use.change
        steps.append(WaterfallStep(_use_text(use), start, Bar(kind, abs(use.change), f"{use.change:+d}")))
    planned = layout.used_planned
    if left != planned:
        start, change = min(left, planned), planned - left
        steps.append(WaterfallStep("others", start, Bar("free", abs(change), f"{change:+d}")))
    steps.append(WaterfallStep("used as planned", 0, Bar("used", planned, pluralize(planned, "card"))))
    steps.append(
        WaterfallStep("lower bound", 0, Bar("free", layout.lower_bound, pluralize(layout.lower_bound, "card")))
    )
    return waterfall_chart("From the cards that are used today to those of the plan", steps)


def _use_text(use: CardUse) -> str:
    divided = "partitioned" if mig_geometry(use.product) else "shared"
    return f"{use.product}, {divided if use.partitioned else 'allocated as a whole'}"


def _groups(layout: ClusterLayout) -> Iterator[DrawnNodes]:
    """Yield the nodes of the plan by product and cards, the most equal ones first."""
    changes = {change.node.node: change for change in layout.changes}
    members: defaultdict[tuple[object, ...], list[NodeLayout]] = defaultdict(list)
    for node in layout.demand.nodes:
        members[node.product, tuple(sorted(_card_changes(node, changes.get(node.node)).items()))].append(node)
    for nodes in sorted(members.values(), key=lambda nodes: (-len(nodes), nodes[0].product, nodes[0].node)):
        yield _node_group(nodes, changes.get(nodes[0].node))


def _card_changes(node: NodeLayout, change: NodeChange | None) -> Counter[tuple[MigLayout, MigLayout]]:
    """Return how many cards of a node have a layout today and another as planned."""
    return Counter(zip(node.layouts, change.layouts if change else node.layouts, strict=True))


def _node_group(nodes: list[NodeLayout], change: NodeChange | None) -> DrawnNodes:
    cards, product = _card_changes(nodes[0], change), nodes[0].product
    drawn = sorted(cards.items(), key=lambda each: (each[0][0] == each[0][1], -each[1], each[0]))
    return DrawnNodes(
        product,
        len(nodes),
        sorted(node.node for node in nodes)[:MAX_NAMES],
        tuple(_node_notes(nodes, is_changed=change is not None)),
        tuple(
            DrawnCards(
                pluralize(number, "card"),
                draw_card(product, today),
                draw_card(product, planned) if planned != today else None,
            )
            for (today, planned), number in drawn[:MAX_CARDS]
        ),
        sum(number for _, number in drawn[MAX_CARDS:]),
    )


def _node_notes(nodes: Iterable[NodeLayout], *, is_changed: bool) -> Iterator[str]:
    pods, kept = sum(node.pods for node in nodes), sum(node.kept_whole for node in nodes)
    if pods:
        yield f"{pluralize(pods, 'pod')} with GPUs{', to be drained' if is_changed else ''}"
    if kept:
        yield f"{pluralize(kept, 'whole card')} kept"


def _unplanned_groups(nodes: Iterable[UnplannedNode]) -> Iterator[DrawnNodes]:
    """Yield the nodes that are not planned by what they advertise, the most equal ones first."""
    members: defaultdict[tuple[object, ...], list[UnplannedNode]] = defaultdict(list)
    for node in nodes:
        members[node.product, node.gpus, node.reason].append(node)
    for equal in sorted(members.values(), key=lambda equal: (-len(equal), equal[0].product, equal[0].node)):
        first = equal[0]
        cards = tuple(map(_advertised_group, first.gpus[:MAX_CARDS]))
        names = sorted(node.node for node in equal)[:MAX_NAMES]
        product = first.product or "product not labeled"
        hidden = sum(gpus.units for gpus in first.gpus[MAX_CARDS:])
        yield DrawnNodes(product, len(equal), names, (first.reason,), cards, hidden)


def _advertised_group(gpus: AdvertisedGpus) -> DrawnCards:
    """Return the drawing of what a node advertises. The cards of slices are unknown: they are a text."""
    shared = f", shared by {gpus.replicas}" if gpus.replicas > 1 else ""
    number = pluralize(max(1, gpus.units // gpus.replicas), "slice" if gpus.profile else "card")
    if not gpus.profile and gpus.replicas > 1:
        return DrawnCards(number, draw_shared_card(gpus.replicas, f"card{shared}"), None)
    kind = "shared" if shared else "instance" if gpus.profile else "whole"
    text = f"{gpus.profile or 'whole card'}{shared}"
    return DrawnCards(number, _card(1, [_block(0, 1, text, kind)], text), None)


def draw_card(product: str, layout: MigLayout) -> Markup:
    """Draw one card: its shares, or its compute slices, and below them its memory slots with the instances."""
    if is_shared(layout):
        return draw_shared_card(layout[0][1], layout_text(layout))
    geometry = mig_geometry(product)
    placed = arrange_instances(geometry, layout) if geometry is not None and layout != WHOLE_CARD else ()
    if not placed:
        return draw_whole_card("whole card")
    return draw_instances(product, [(each, "instance") for each in placed], layout_text(layout))


def draw_whole_card(text: str, css: str = "whole") -> Markup:
    """Draw a card that is not partitioned, with a CSS class."""
    return _card(1, [_block(0, 1, text, css)], text)


def draw_instances(product: str, placed: Sequence[tuple[MigPlacement, str]], label: str) -> Markup:
    """Draw the compute slices of a card, and below them its memory slots with instances, each with its CSS class."""
    geometry, spec = mig_geometry(product), mig_card_spec(product)
    if geometry is None or spec is None:
        return draw_whole_card(label)
    instances = [(each.start, profile, css) for each, css in placed if (profile := geometry.profile(each.profile))]
    computing = {start + i for start, profile, _ in instances for i in range(profile.slices)}
    filled = {start + i for start, profile, _ in instances for i in range(profile.memory_units)}
    slices = [_cell(i, "compute" if i in computing else "empty") for i in range(spec.compute_slices)]
    blocks = [_block(start, profile.memory_units, profile.name, css) for start, profile, css in instances]
    free = [_block(i, 1, "", "empty") for i in range(spec.memory_units) if i not in filled]
    return _card(spec.memory_units, [*slices, *blocks, *free], label)


def draw_shared_card(replicas: int, label: str) -> Markup:
    """Draw the shares of a card, or its label if they are many."""
    if replicas > MAX_SHARES:
        return _card(1, [_block(0, 1, label, "shared")], label)
    return _card(replicas, [_block(i, 1, f"1/{replicas}", "shared") for i in range(replicas)], label)


def _card(columns: int, cells: Iterable[str], label: str) -> Markup:
    head = f'<div class="card" style="--columns:{columns}" role="img" aria-label="{escape(sanitize(label))}">'
    return Markup(f"{head}{''.join(cells)}</div>")  # noqa: S704 - every text in it is escaped


def _cell(start: int, kind: str) -> str:
    return f'<i class="{kind}" style="grid-column:{start + 1}"></i>'


def _block(start: int, columns: int, text: str, kind: str) -> str:
    """Return the part of a card that one instance or share has; a long name is set in two lines."""
    name = escape(sanitize(text)).replace(".", Markup(".<wbr>"))
    return f'<b class="{kind}" style="grid-column:{start + 1}/span {columns}">{name}</b>'
