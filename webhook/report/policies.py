"""Policies as a table: mode, rollout, sections and position."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.model.enums import PolicyMode
from webhook.policy.policy_set import SECTIONS, Policy
from webhook.report.tables import Column, Table


def policy_mode_text(each: Policy) -> str:
    """Return the mode of a policy, with the percentage of its rollout."""
    return f"{each.mode}:{each.rollout.percent}%" if each.rollout else str(each.mode)


def section_modes(each: Policy) -> Iterator[tuple[str, PolicyMode]]:
    """Yield the sections of a policy by their names in YAML, with their modes."""
    for name in SECTIONS:
        section = getattr(each, name)
        if section is not None:
            first, *rest = name.split("_")
            yield first + "".join(map(str.title, rest)), section.mode


def policy_sections_text(each: Policy) -> str:
    """Return the sections of a policy, each with its mode if that differs from the policy's."""
    cells = [name if mode is each.mode else f"{name}={mode}" for name, mode in section_modes(each)]
    return ",".join(cells) or "-"


POLICY_ROWS = Table[Policy](
    (
        Column("", lambda each: each.name, "Name"),
        Column("", policy_mode_text, "Mode"),
        Column("", lambda each: policy_sections_text(each), "Sections"),
        Column("", lambda each: each.location, "Location"),
        Column("", lambda each: each.description, "Description", terminal=False),
    )
)
