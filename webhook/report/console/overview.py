"""The page Overview: the figures of the cluster, the waterfall, and what to do next."""

from __future__ import annotations

from webhook.report.console.layout import LayoutOutcome
from webhook.report.console.next_steps import next_steps
from webhook.report.console.page import OVERVIEW, WORKLOADS_ENTRY, render_console_page
from webhook.report.console.query import page_address
from webhook.report.console.state import ConsoleState
from webhook.report.html import utilization_waterfall
from webhook.report.utilization import utilization_caveats


def overview_page(state: ConsoleState, plan: LayoutOutcome | None = None, problem: str = "") -> str:
    """Return the page as HTML.

    Args:
        plan: The newest plan of MIG layouts; None before the first.
    """
    figures = state.utilization
    context = {
        "figures": figures,
        "waterfall": utilization_waterfall(figures) if figures else "",
        "caveats": list(utilization_caveats(figures)) if figures else [],
        "admission": state.admission,
        "saved": sum(row.gpu_milli_saved for row in state.workloads),
        "audit_saved": sum(row.gpu_milli_audit_saved for row in state.workloads),
        "steps": next_steps(state, plan),
        "most_wasteful": page_address(
            WORKLOADS_ENTRY.path, show="wasted", sort="-wasted/h" if state.prices else "-wasted"
        ),
    }
    return render_console_page("overview.html", state, OVERVIEW, context, problem=problem)
