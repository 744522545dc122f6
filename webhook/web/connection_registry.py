"""The open connections of a server, with the routes and limits that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from webhook.web.http_messages import HttpRoute
from webhook.web.limits import ServerLimits, ServerLoad
from webhook.web.tls import ClientCertificateRules, PeerCertificate

if TYPE_CHECKING:
    from webhook.web.connection import HttpConnection


class ConnectionRegistry:
    """The connections of one event loop.

    Attributes:
        on_rejected: Called with a reason for each rejected request or connection; the reasons are a closed set.
        client_rules: Which clients may call routes with JSON; None for all.
        draining: True once the process shuts down: every response then closes its connection.
    """

    def __init__(
        self,
        routes: Mapping[str, HttpRoute],
        limits: ServerLimits,
        on_rejected: Callable[[str], None],
        client_rules: ClientCertificateRules | None = None,
    ) -> None:
        self.routes = routes
        self.limits = limits
        self.on_rejected = on_rejected
        self.client_rules = client_rules
        self.load = ServerLoad(limits)
        self.draining = False
        self.connections: set[HttpConnection] = set()

    def add(self, connection: HttpConnection) -> bool:
        """Add a connection; False if there are too many."""
        if len(self.connections) >= self.limits.connections:
            self.on_rejected("too_many_connections")
            return False
        self.connections.add(connection)
        return True

    def remove(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)

    def allows_client(self, certificate: PeerCertificate | None) -> bool:
        """Return whether a client with this verified certificate, or none, may call routes with JSON."""
        return self.client_rules is None or self.client_rules.allows(certificate)

    def close_expired(self, now: float) -> None:
        """Close connections whose deadline has passed. Checking all of them is cheaper than a timer for each."""
        for connection in [each for each in self.connections if each.expires < now]:
            connection.expire()

    @property
    def busy(self) -> bool:
        """True while any connection receives a request or sends a response."""
        return any(connection.busy for connection in self.connections)

    def abort_all(self) -> None:
        """Close all connections immediately."""
        for connection in list(self.connections):
            connection.abort()

    def close_all(self) -> None:
        """Close all connections after pending data was sent."""
        for connection in list(self.connections):
            connection.close_after_write()
