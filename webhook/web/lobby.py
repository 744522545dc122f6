"""What all connections of a server share: the routes, the bounds, and who is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from webhook.web.clients import Certificate, Clients
from webhook.web.limits import Limits, Load
from webhook.web.replies import Route


class Guest(Protocol):
    """One open connection."""

    @property
    def expires(self) -> float:
        """The loop's time at which it has to be gone."""

    @property
    def busy(self) -> bool:
        """Is a request on its way in, or an answer on its way out?"""

    def expire(self) -> None:
        """Its time is up."""

    def abort(self) -> None:
        """Drop it at once."""

    def hang_up(self) -> None:
        """Close it once what was written is out."""


class Lobby:
    """Shared by the connections of one event loop.

    Attributes:
        refused: Told the reason, one of a few words, whenever a request or connection is turned away.
        clients: Who may ask for a verdict; None: anyone.
        draining: True once the process was told to end: every answer then closes its connection.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        limits: Limits,
        refused: Callable[[str], None],
        clients: Clients | None = None,
    ) -> None:
        self.routes = routes
        self.limits = limits
        self.refused = refused
        self.clients = clients
        self.load = Load(limits)
        self.draining = False
        self.guests: set[Guest] = set()

    def enter(self, guest: Guest) -> bool:
        """Let a connection in, unless there are too many."""
        if len(self.guests) >= self.limits.connections:
            self.refused("connections")
            return False
        self.guests.add(guest)
        return True

    def admits(self, certificate: Certificate | None) -> bool:
        """May a client with this verified certificate, or none, ask for a verdict?"""
        return self.clients is None or self.clients.admit(certificate)

    def leave(self, guest: Guest) -> None:
        """A connection is gone."""
        self.guests.discard(guest)

    def sweep(self, now: float) -> None:
        """Close every connection whose time is up. One look at all of them costs less than a timer for each."""
        for guest in [guest for guest in self.guests if guest.expires < now]:
            guest.expire()

    @property
    def busy(self) -> bool:
        """Is any request on its way in, or any answer on its way out?"""
        return any(guest.busy for guest in self.guests)

    def abort_all(self) -> None:
        """Drop every connection now."""
        for guest in list(self.guests):
            guest.abort()

    def close_all(self) -> None:
        """Close every connection once what was written is out."""
        for guest in list(self.guests):
            guest.hang_up()
