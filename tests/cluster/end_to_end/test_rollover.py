"""Two replicas behind a plain TCP proxy, one after the other replaced while pods are created: nobody notices."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tests.cluster.creating import create_all
from tests.cluster.end_to_end.test_outages import DECISION, waiting
from tests.cluster.end_to_end.test_pods import SLICE
from tests.cluster.installed import Installed, is_ready
from tests.cluster.processes import Process, free_port
from tests.cluster.proxy import Proxy, proxying
from tests.cluster.waiting import eventually

RATE = 200
MOST = 6000


class Replicas:
    """Servers behind a proxy, in the order they were started in."""

    def __init__(self, site: Installed, proxy: Proxy) -> None:
        self._site, self._proxy = site, proxy
        self.running: list[tuple[int, Process]] = []
        self.all: list[Process] = []

    def add(self) -> None:
        """Start one; connections go there once it is ready."""
        port = free_port()
        server = self._site.another(f"replica-{len(self.all)}", port, "--drain-seconds=2")
        self.all.append(server)
        server.start()
        self.running.append((port, server))
        self._proxy.backends = [port for port, _ in self.running]

    def remove_oldest(self) -> None:
        """End one in order. As endpoints do, the proxy hears of it when it is not ready any more, and not before."""
        port, server = self.running.pop(0)
        server.send(signal.SIGTERM)
        eventually(lambda: not serves(port))
        self._proxy.backends = [port for port, _ in self.running]
        eventually(lambda: not server.running)


def serves(port: int) -> bool:
    """Is the server there ready?"""
    try:
        return is_ready(port)
    except OSError:
        return False


@pytest.fixture
def replicas(site: Installed) -> Iterator[Replicas]:
    """Two of them where the one server was, which is there again afterwards."""
    site.replica.stop()
    with proxying(site.port, []) as proxy:
        found = Replicas(site, proxy)
        try:
            found.add()
            found.add()
            eventually(site.answers)
            yield found
        finally:
            for server in found.all:
                server.kill()
    site.replica.start()
    eventually(site.answers)


def test_replicas_are_rolled_over_without_one_failed_create(site: Installed, team: str, replicas: Replicas) -> None:
    def roll() -> None:
        for _ in range(2):
            replicas.add()
            replicas.remove_oldest()

    rolling = threading.Thread(target=roll)

    def answered(count: int) -> None:
        if count == RATE:
            rolling.start()

    def pods() -> Iterator[dict[str, object]]:
        """Until everything is rolled over, and a second longer."""
        after = 0
        for index in range(MOST):
            after += index > RATE and not rolling.is_alive()
            if after > RATE:
                return
            yield waiting(f"slice-{index}", team).asks(SLICE, "1").build()

    answers = create_all(site.plane, pods(), rate=RATE, answered=answered)
    rolling.join()

    assert len(replicas.all) == 4
    assert [server.running for server in replicas.all] == [False, False, True, True]
    assert [answer for answer in answers if not answer.created] == []
    stored = site.plane.api.get(f"/api/v1/namespaces/{team}/pods")["items"]
    assert [pod["metadata"]["name"] for pod in stored if DECISION not in pod["metadata"].get("annotations", {})] == []
