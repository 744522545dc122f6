"""The page of a plan: each card as it is placed, equal nodes once, and the cards that are freed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.driver import BrowserProcess
from tests.report.audit_samples import NOW
from tests.report.layout_samples import A30, H100, planned_layout
from webhook.model.mig_catalog import _CARD_SPECS as CARDS
from webhook.placement.layout_plan import WHOLE_CARD
from webhook.placement.mig import maximal_layouts, mig_geometry
from webhook.placement.node_layouts import AdvertisedGpus, NodeChange, NodeLayout, UnplannedNode
from webhook.report.layout_html import MAX_CARDS, MAX_GROUPS, draw_card, layout_page


@pytest.fixture(scope="module")
def text() -> str:
    return layout_page(planned_layout(), NOW, "0.1.0")


DRAWN = """
const box = (each) => { const at = each.getBoundingClientRect(); return [Math.round(at.left), Math.round(at.right)]; };
return [...document.querySelectorAll(".card")].map((card) => ({
  label: card.getAttribute("aria-label"),
  compute: [...card.querySelectorAll(".compute")].map(box),
  free: card.querySelectorAll("b.empty").length,
  blocks: [...card.querySelectorAll("b:not(.empty)")].map((each) => [each.textContent, ...box(each)]),
}));
"""


@pytest.fixture(scope="module")
def cards(browser: BrowserProcess, text: str) -> Any:
    """Return the drawn cards in their order."""
    return browser.evaluate(text, DRAWN)


def test_cards_are_drawn_today_and_as_planned(cards: Any) -> None:
    assert [card["label"] for card in cards] == [
        *("whole card", "4 x 1g.10gb + 1 x 3g.40gb"),
        *("whole card", "7 x 1g.10gb"),
        "whole card",
        *("whole card", "1 x 2g.12gb"),
        *("1g.12gb, shared by 48", "card, shared by 4", "whole card"),
    ]


def test_an_instance_is_over_its_compute_slices_and_memory_slots(cards: Any) -> None:
    mixed = next(card for card in cards if card["label"].startswith("4 x 1g"))
    names = [name for name, *_ in mixed["blocks"]]
    assert names == ["1g.10gb"] * 4 + ["3g.40gb"]
    *small, (_, left, right) = mixed["blocks"]
    assert [[each[1], each[2]] for each in small] == mixed["compute"][:4]
    assert (len(mixed["compute"]), mixed["compute"][4][0], mixed["free"]) == (7, left, 0)
    assert mixed["compute"][6][1] < right, "the eighth memory slot has no compute slice"


def test_slots_without_an_instance_are_shown(cards: Any) -> None:
    half = next(card for card in cards if card["label"] == "1 x 2g.12gb")
    assert (len(half["compute"]), half["free"], [name for name, *_ in half["blocks"]]) == (2, 2, ["2g.12gb"])


def test_shares_of_a_card_are_shown(cards: Any) -> None:
    shared = next(card for card in cards if card["label"] == "card, shared by 4")
    assert [name for name, *_ in shared["blocks"]] == ["1/4"] * 4


def test_equal_nodes_are_drawn_once_and_those_that_change_first(browser: BrowserProcess, text: str) -> None:
    heads = """
    const texts = (each) => [...each.children].slice(0, 2).map((line) => line.textContent);
    return [...document.querySelectorAll(".node")].map(texts);
    """
    nodes = browser.evaluate(text, heads)
    assert nodes == [
        [H100, "1 node: h1; 3 pods with GPUs, to be drained; 1 whole card kept"],
        [A30, "3 nodes: a0, a1, a2"],
        ["NVIDIA-H20", "1 node: s; shared"],
        ["NVIDIA-L4", "1 node: l4; its GPUs are shared"],
        ["Tesla-T4", "1 node: t4; no profiles"],
    ]


def test_the_waterfall_ends_at_the_cards_of_the_plan(browser: BrowserProcess, text: str) -> None:
    rows = (
        "return [...document.querySelectorAll('.chart div')].map((row) => [...row.children].map((e) => e.textContent))"
    )
    assert browser.evaluate(text, rows) == [
        ["used today", "", "7 cards"],
        [f"{H100}, allocated as a whole", "", "-3"],
        [f"{H100}, partitioned", "", "+2"],
        ["used as planned", "", "6 cards"],
        ["lower bound", "", "6 cards"],
    ]


def test_the_plan_without_drains_is_said() -> None:
    sample = planned_layout()
    idle = sample._replace(changes=[])

    assert '<p class="faint">Without drains: no layout changes' in layout_page(
        sample._replace(without_drains=idle), NOW, ""
    )
    assert "Without drains" not in layout_page(sample, NOW, "")


def test_freed_cards_below_zero_are_said_to_be_used_in_addition() -> None:
    sample = planned_layout()
    more = sample._replace(demand=sample.demand._replace(allocated_cards={}))
    sentence = "Freed below zero: so many more cards are used than today"

    assert more.freed().milli < 0
    assert sentence in layout_page(more, NOW, "")
    assert sentence not in layout_page(sample, NOW, "")


def test_the_reasons_for_whole_cards_are_explained() -> None:
    sample = planned_layout()
    denied = sample._replace(demand=sample.demand._replace(waiting_whole={"Denied": 1}))
    text = layout_page(denied, NOW, "")

    assert "Reasons for whole cards: Denied: its policies would deny it now; MultipleGPUs: MIG instances and" in text


def test_a_large_cluster_of_different_nodes_stays_small() -> None:
    """Each of 5,000 nodes has cards that no other has, and a card count that no server has."""
    sample = planned_layout()
    layouts = sorted(maximal_layouts(geometry)) if (geometry := mig_geometry(H100)) else []
    nodes = tuple(
        NodeLayout(f"n{i}", H100, tuple(layouts[(i + j) % len(layouts)] for j in range(i % 97 + 1)), pods=i)
        for i in range(5000)
    )
    changes = [NodeChange(node, (WHOLE_CARD,) * len(node.layouts)) for node in nodes]
    others = [UnplannedNode(f"o{i}", "x", (AdvertisedGpus("nvidia.com/gpu", i + 1, "", 2),), "r") for i in range(5000)]
    page = layout_page(
        sample._replace(demand=sample.demand._replace(nodes=nodes), changes=changes, unplanned=others), NOW, "0.1.0"
    )
    assert page.count('class="node"') == 2 * MAX_GROUPS
    assert page.count('class="card"') <= MAX_GROUPS * (2 * MAX_CARDS + 1)
    assert len(page) < 3_000_000


def test_no_name_of_a_profile_is_cut_on_a_phone(browser: BrowserProcess) -> None:
    drawn = [
        draw_card(product, layout)
        for product in CARDS
        if (geometry := mig_geometry(product))
        for layout in maximal_layouts(geometry)
    ]
    page = layout_page(planned_layout(), NOW, "0.1.0").replace("<footer>", f"{''.join(drawn)}<footer>")
    number, cut = browser.evaluate(
        page,
        """
        const blocks = [...document.querySelectorAll(".card b")];
        const cut = (each) => each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight;
        return [blocks.length, blocks.filter(cut).map((each) => each.textContent)];
        """,
        width=390,
    )
    assert number > 1000
    assert cut == []


def test_a_card_that_is_shared_has_equal_parts() -> None:
    few, many = (draw_card("NVIDIA-L4", ((f"mps/{count}", count),)) for count in (3, 48))

    assert few.count(">1/3</b>") == 3
    assert 'aria-label="3 x MPS"' in few
    assert many.count("</b>") == 1
    assert "48 x MPS" in many
