"""Several servers behind a TCP proxy, as behind a Service."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.installation import Installation, is_ready
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.proxy import TcpProxy, serve_proxy

DRAIN_SECONDS = 6
"""Less than the default of 10; on a busy machine the proxy takes some seconds to send nothing more to a server."""


class Replicas:
    """Servers behind a proxy, in start order."""

    def __init__(self, site: Installation, proxy: TcpProxy) -> None:
        self._site, self.proxy = site, proxy
        self.running: list[tuple[int, Process]] = []
        self.all: list[Process] = []

    def add(self) -> None:
        """Start a server; the proxy uses it once it is ready."""
        port = free_port()
        server = self._site.start_server(
            f"replica-{len(self.all)}", port, f"--drain-seconds={DRAIN_SECONDS}", "--replicas=2"
        )
        self.all.append(server)
        server.start()
        self.running.append((port, server))
        self.proxy.backends = [port for port, _ in self.running]

    def kill_oldest(self) -> None:
        """Kill the oldest server in the middle of its work. Its connections break, and the proxy opens no new ones."""
        server = self.running.pop(0)[1]
        self.proxy.backends = [port for port, _ in self.running]
        server.kill()

    def remove_oldest(self) -> None:
        """Stop the oldest server, and do not wait for its end, as a Deployment does not.

        Like an endpoint, it is removed from the proxy once it is no longer ready.
        """
        port, server = self.running.pop(0)
        server.send(signal.SIGTERM)
        eventually(lambda: not serves(port))
        self.proxy.backends = [port for port, _ in self.running]

    def wait_for_removed(self) -> None:
        """Wait until the servers that were stopped have ended."""
        kept = [server for _, server in self.running]
        eventually(lambda: not any(server.running for server in self.all if server not in kept))


def serves(port: int) -> bool:
    """Return whether the server at this port is ready."""
    try:
        return is_ready(port)
    except OSError:
        return False


@contextmanager
def two_replicas(site: Installation) -> Iterator[Replicas]:
    """Replace the one server by two within the block."""
    with serve_replicas(site, 2) as replicas:
        yield replicas


@contextmanager
def serve_replicas(site: Installation, count: int) -> Iterator[Replicas]:
    """Replace the one server by several within the block."""
    site.replica.stop()
    with serve_proxy(site.port, []) as proxy:
        replicas = Replicas(site, proxy)
        try:
            for _ in range(count):
                replicas.add()
            eventually(site.webhooks_answer)
            yield replicas
        finally:
            for server in replicas.all:
                server.kill()
    site.replica.start()
    eventually(site.webhooks_answer)
