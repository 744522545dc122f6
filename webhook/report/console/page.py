"""The frame of the console's pages: navigation, the time of the reading, style and script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from webhook import __version__
from webhook.report.console.state import ConsoleState
from webhook.report.html import jinja_environment, template_text

SECURITY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "style-src-attr 'unsafe-inline'",  # the lengths of bars
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The Content-Security-Policy: one script and one style, both of this server, and nothing else."""

STYLE_PATH, SCRIPT_PATH = "/console.css", "/console.js"


class NavigationEntry(NamedTuple):
    """An entry of the navigation."""

    path: str
    label: str


OVERVIEW = NavigationEntry("/", "Overview")
WORKLOADS_ENTRY = NavigationEntry("/workloads", "Workloads")
NODES_ENTRY = NavigationEntry("/nodes", "Nodes")
FINDINGS_ENTRY = NavigationEntry("/findings", "Findings")
POLICIES_ENTRY = NavigationEntry("/policies", "Policies")
TRIAL_ENTRY = NavigationEntry("/try", "Try one")
LAYOUT_ENTRY = NavigationEntry("/layout", "Layout")
QUOTAS_ENTRY = NavigationEntry("/quotas", "Quotas and ranges")
NAVIGATION = (
    *(OVERVIEW, WORKLOADS_ENTRY, NODES_ENTRY, LAYOUT_ENTRY, FINDINGS_ENTRY),
    *(POLICIES_ENTRY, TRIAL_ENTRY, QUOTAS_ENTRY),
)


def render_console_page(
    template: str,
    state: ConsoleState,
    entry: NavigationEntry | None,
    context: Mapping[str, object],
    *,
    problem: str = "",
) -> str:
    """Return a page as HTML.

    Args:
        entry: Where it is in the navigation.
        problem: Why the reading is not the newest; "" if it is.
    """
    common = {
        "state": state,
        "navigation": NAVIGATION,
        "entry": entry,
        "problem": problem,
        "style_path": STYLE_PATH,
        "script_path": SCRIPT_PATH,
        "app_version": __version__,
    }
    return jinja_environment().get_template(f"console/{template}").render(common, **context)


def console_style() -> str:
    """Return the style of all pages: that of the reports, and what only the console has."""
    return template_text("page.css") + template_text("console/console.css")


def console_script() -> str:
    """Return the script that shows a new reading without a reload; the pages work without it."""
    return template_text("console/console.js")
