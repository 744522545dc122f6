"""The gang of a pod, as `place` tells of it: the domain it goes to, how many find a place there, why no other one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from webhook.report.words import count, shown


class Together(NamedTuple):
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
    rest: int
    label: str
    rooms: Mapping[str, int]
    seated: Mapping[str, int]
    best: str

    @property
    def room(self) -> int:
        """How many such pods the chosen domain takes."""
        return self.rooms.get(self.best, 0) if self.best else 0


def together_line(gang: Together) -> str:
    """Who runs together, and how many of them find a place in the domain that the pod goes to."""
    who = f"Gang {shown(gang.name)}" if gang.name else "Its workload"
    size = f" of {count(gang.size, 'pod')}" if gang.size else ", of how many pods nobody says"
    placed = sum(gang.seated.values())
    there = f", {placed} of them placed" if placed else ""
    return f"{who}{size}{there}, in one domain by {shown(gang.label)}: {_where(gang)}"


def _where(gang: Together) -> str:
    if not gang.best:
        return "no node that takes it carries that label"
    best = shown(gang.best)
    if not gang.size:
        return f"{best} takes {gang.room} such pods"
    if gang.room >= gang.rest:
        return f"{best} takes {_all(gang.rest)}"
    missing = gang.rest - gang.room
    return f"no domain takes {_all(gang.rest)}. {best} comes nearest, with room for {gang.room}: {missing} too few"


def _all(rest: int) -> str:
    return f"it and {count(rest - 1, 'other')}" if rest > 1 else "it"


def why_not(gang: Together, domain: str) -> str:
    """Why the domain of another node comes after the chosen one; "" where it is that one, or as good."""
    if not gang.best or domain == gang.best:
        return ""
    if not domain:
        return f"has no label {shown(gang.label)}"
    name, best = shown(domain), shown(gang.best)
    room, there = gang.rooms.get(domain, 0), gang.seated.get(domain, 0)
    if room < gang.rest <= gang.room:
        return f"{name} has room for {room} of the {gang.rest} that need a place"
    if there < gang.seated.get(gang.best, 0):
        return f"{name} has {there} of the gang, {best} {gang.seated[gang.best]}"
    if room < gang.room and (not gang.size or gang.room < gang.rest):
        return f"{name} has room for {room}, {best} for {gang.room}"
    if room > gang.room >= gang.rest and gang.size:
        return f"{name} has room for {room}: {best} is the smallest that takes all"
    return ""


def together_data(gang: Together) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "name": gang.name,
        "size": gang.size,
        "placed": sum(gang.seated.values()),
        "label": gang.label,
        "domain": gang.best,
        "rest": gang.rest,
        "room": gang.room,
        "domains": {name: room for name, room in gang.rooms.items() if name},
    }
