"""What all connections of a server share: the routes, the bounds, and who is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from webhook.web.http_messages import HttpRoute
from webhook.web.limits import ServerLimits, ServerLoad
from webhook.web.tls import ClientCertificateRules, PeerCertificate


class OpenConnection(Protocol):
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

    def close_after_write(self) -> None:
        """Close it once what was written is out."""


class ConnectionRegistry:
    """Shared by the connections of one event loop.

    Attributes:
        refused: Told the reason, one of a few words, whenever a request or connection is turned away.
        clients: Who may ask for a verdict; None: anyone.
        draining: True once the process was told to end: every answer then closes its connection.
    """

    def __init__(
        self,
        routes: Mapping[str, HttpRoute],
        limits: ServerLimits,
        refused: Callable[[str], None],
        clients: ClientCertificateRules | None = None,
    ) -> None:
        self.routes = routes
        self.limits = limits
        self.on_rejected = refused
        self.client_rules = clients
        self.load = ServerLoad(limits)
        self.draining = False
        self.connections: set[OpenConnection] = set()

    def add(self, guest: OpenConnection) -> bool:
        """Let a connection in, unless there are too many."""
        if len(self.connections) >= self.limits.connections:
            self.on_rejected("connections")
            return False
        self.connections.add(guest)
        return True

    def allows_client(self, certificate: PeerCertificate | None) -> bool:
        """May a client with this verified certificate, or none, ask for a verdict?"""
        return self.client_rules is None or self.client_rules.allows(certificate)

    def remove(self, guest: OpenConnection) -> None:
        """A connection is gone."""
        self.connections.discard(guest)

    def close_expired(self, now: float) -> None:
        """Close every connection whose time is up. One look at all of them costs less than a timer for each."""
        for guest in [guest for guest in self.connections if guest.expires < now]:
            guest.expire()

    @property
    def busy(self) -> bool:
        """Is any request on its way in, or any answer on its way out?"""
        return any(guest.busy for guest in self.connections)

    def abort_all(self) -> None:
        """Drop every connection now."""
        for guest in list(self.connections):
            guest.abort()

    def close_all(self) -> None:
        """Close every connection once what was written is out."""
        for guest in list(self.connections):
            guest.close_after_write()
