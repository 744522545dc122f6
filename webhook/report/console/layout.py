"""The page Layout: today's and the planned MIG layouts, card by card, with the values of `rightslice layout`."""

from __future__ import annotations

from typing import NamedTuple

from webhook.report.console.page import LAYOUT_ENTRY, render_console_page
from webhook.report.console.rows import table_markup
from webhook.report.console.state import ConsoleState
from webhook.report.layout import ClusterLayout
from webhook.report.layout_html import layout_context


class LayoutOutcome(NamedTuple):
    """A plan, or why there is none.

    Attributes:
        moment: The time of the reading that it was planned after.
        problem: Why there is none; "" if there is one.
    """

    moment: str
    layout: ClusterLayout | None = None
    problem: str = ""


def layout_plan_page(
    state: ConsoleState, outcome: LayoutOutcome | None, *, is_planning: bool, problem: str = ""
) -> str:
    """Return the page as HTML.

    Args:
        outcome: The newest plan; None before the first.
        is_planning: Whether a plan is being computed.
    """
    layout = outcome.layout if outcome is not None else None
    context = {
        "layout": layout,
        "is_planning": is_planning,
        "planned_at": outcome.moment if outcome is not None else "",
        "failure": outcome.problem if outcome is not None else "",
    }
    plan = layout_context(layout, table_markup) if layout is not None else {}
    return render_console_page("layout.html", state, LAYOUT_ENTRY, context | plan, problem=problem)
