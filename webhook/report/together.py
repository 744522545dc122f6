"""The gang of a pod, as `place` tells of it: the domain it goes to, how many find a place there, why no other one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from webhook.report.words import pluralize, sanitize


class GangPlacement(NamedTuple):
    """Pods that run together, and the domains where they find room.

    Attributes:
        name: What they have in common; "" for the pods of one workload.
        size: How many they are; 0 where nobody says.
        rest: How many of them need a place, the pod itself too, as far as anybody knows.
        label: The node label whose values name domains.
        rooms: How many such pods the nodes of each domain take now; "" for nodes without the label.
        seated: How many of the others each domain has already.
        best: The domain of the node it goes to; "" where that has none.
    """

    name: str
    size: int
    pending: int
    label: str
    capacity_by_domain: Mapping[str, int]
    placed_by_domain: Mapping[str, int]
    best_domain: str

    @property
    def best_capacity(self) -> int:
        """How many such pods the chosen domain takes."""
        return self.capacity_by_domain.get(self.best_domain, 0) if self.best_domain else 0


def gang_line(gang: GangPlacement) -> str:
    """Who runs together, and how many of them find a place in the domain that the pod goes to."""
    who = f"Gang {sanitize(gang.name)}" if gang.name else "Its workload"
    size = f" of {pluralize(gang.size, 'pod')}" if gang.size else ", of how many pods nobody says"
    placed = sum(gang.placed_by_domain.values())
    there = f", {placed} of them placed" if placed else ""
    return f"{who}{size}{there}, in one domain by {sanitize(gang.label)}: {_gang_domain_text(gang)}"


def _gang_domain_text(gang: GangPlacement) -> str:
    if not gang.best_domain:
        return "no node that takes it carries that label"
    best = sanitize(gang.best_domain)
    if not gang.size:
        return f"{best} takes {gang.best_capacity} such pods"
    if gang.best_capacity >= gang.pending:
        return f"{best} takes {_gang_members_text(gang.pending)}"
    missing = gang.pending - gang.best_capacity
    return f"no domain takes {_gang_members_text(gang.pending)}. {best} comes nearest, with room for {gang.best_capacity}: {missing} too few"


def _gang_members_text(rest: int) -> str:
    return f"it and {pluralize(rest - 1, 'other')}" if rest > 1 else "it"


def other_domain_reason(gang: GangPlacement, domain: str) -> str:
    """Why the domain of another node comes after the chosen one; "" where it is that one, or as good."""
    if not gang.best_domain or domain == gang.best_domain:
        return ""
    if not domain:
        return f"has no label {sanitize(gang.label)}"
    name, best = sanitize(domain), sanitize(gang.best_domain)
    room, there = gang.capacity_by_domain.get(domain, 0), gang.placed_by_domain.get(domain, 0)
    if room < gang.pending <= gang.best_capacity:
        return f"{name} has room for {room} of the {gang.pending} that need a place"
    if there < gang.placed_by_domain.get(gang.best_domain, 0):
        return f"{name} has {there} of the gang, {best} {gang.placed_by_domain[gang.best_domain]}"
    if room < gang.best_capacity and (not gang.size or gang.best_capacity < gang.pending):
        return f"{name} has room for {room}, {best} for {gang.best_capacity}"
    if room > gang.best_capacity >= gang.pending and gang.size:
        return f"{name} has room for {room}: {best} is the smallest that takes all"
    return ""


def gang_document(gang: GangPlacement) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "name": gang.name,
        "size": gang.size,
        "placed": sum(gang.placed_by_domain.values()),
        "label": gang.label,
        "domain": gang.best_domain,
        "rest": gang.pending,
        "room": gang.best_capacity,
        "domains": {name: room for name, room in gang.capacity_by_domain.items() if name},
    }
