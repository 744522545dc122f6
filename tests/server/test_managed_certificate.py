"""A server whose certificate is in a Secret of all replicas: it waits for it, serves it, and reloads it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.certs.cluster import CONFIGS, SECRET, SPEC, Client, Cluster, Replica
from tests.kube.test_leader_election import LEASE
from tests.server.managed_site import managed_server, read_readyz, served_certificate
from tests.server.site import PAIR, PATIENCE, Site, TlsConnection, encoded, post, review
from webhook.certs.reconciler import CertificateReconciler
from webhook.certs.rotation import BUNDLE_SETTLE_TIME
from webhook.errors import ApiError, ApiUnreachable
from webhook.kube.leader_election import LeaderElector
from webhook.server import managed_certificate
from webhook.server.managed_certificate import ManagedCertificate
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.web.tls import PemPair, ServerTls

NAME = "rightslice.rightslice.svc"
REVIEW = post("/validate", encoded(review()))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster with the current time, and a server that reconciles often."""
    monkeypatch.setattr(managed_certificate, "RECONCILE_SECONDS", 0.05)
    one = Cluster()
    one.moment = datetime.now(UTC)
    return one


@contextmanager
def managed_server_in(cluster: Cluster, client: Client | None = None) -> Iterator[Site]:
    """A server with a managed certificate, and its API client."""
    with managed_server(client or Client(cluster), SPEC, LEASE, lambda: cluster.seconds) as site:
        yield site


def events(site: Site) -> list[dict[str, object]]:
    return [json.loads(line) for line in site.log.getvalue().splitlines()]


def test_the_server_is_ready_once_it_has_a_trusted_certificate(cluster: Cluster) -> None:
    with managed_server_in(cluster) as site:
        site.until(lambda: read_readyz(site.port)[0] == 200)
        (bundle,) = set(cluster.bundles())

        assert served_certificate(site.port, bundle, NAME) == cluster.leaf.certificate
        ends = f"{cluster.leaf.not_after:%Y-%m-%dT%H:%M:%SZ}"
        assert f"[+]certificate from Secret rightslice/rightslice-tls, expires {ends}" in read_readyz(site.port)[1]
        assert "[+]leader this replica" in read_readyz(site.port)[1]
        metrics = site.server.telemetry.metrics
        assert site.server.telemetry.certificate_expiry == cluster.leaf.not_after.timestamp()
        assert metrics.is_leader == 1
        assert metrics.rotation_steps == {"create_authority": 1, "update_bundles": 1, "issue_certificate": 1}
        assert "PRIVATE KEY" not in site.log.getvalue()
        assert [event["step"] for event in events(site) if event["event"] == "certificate rotation step"] == [
            "create_authority",
            "update_bundles",
            "issue_certificate",
        ]


def test_a_new_certificate_is_served_and_open_connections_stay(cluster: Cluster) -> None:
    cluster.moment -= timedelta(days=61)
    Replica(cluster, leads=True).settle()
    before = cluster.leaf
    cluster.moment += timedelta(days=61)
    with managed_server_in(cluster) as site:
        site.until(lambda: read_readyz(site.port)[0] == 200)
        connection = TlsConnection(site.port, authority=cluster.bundles()[0], name=NAME)
        assert served_certificate(site.port, cluster.bundles()[0], NAME) == before.certificate
        site.until(lambda: "management waiting for API servers to load the bundles" in read_readyz(site.port)[1])
        assert cluster.leaf == before

        cluster.seconds += BUNDLE_SETTLE_TIME.total_seconds()
        site.until(
            lambda: (
                served_certificate(site.port, cluster.bundles()[0], NAME)
                == cluster.leaf.certificate
                != before.certificate
            )
        )
        connection.send(REVIEW)
        answer = connection.read()
        assert answer is not None
        assert answer.status == 200


def test_missing_permissions_are_reported_and_the_server_is_not_ready(cluster: Cluster) -> None:
    sentence = 'secrets "rightslice-tls" is forbidden: User "x" cannot get resource "secrets"'
    client = Client(cluster, ApiError(f"GET {SECRET.path}", 403, "Forbidden", sentence))
    with managed_server_in(cluster, client) as site:
        site.until(lambda: "is forbidden" in read_readyz(site.port)[1])
        status, lines = read_readyz(site.port)

        assert status == 503
        assert "[-]certificate waiting for Secret rightslice/rightslice-tls" in lines
        assert "Required are get, create and update on Secret rightslice/rightslice-tls and Lease" in lines
        failures = [event for event in events(site) if event["event"] == "certificate management failed"]
        assert len(failures) == 1, "logged once, not at every reconciliation"

        client.error = None
        site.until(lambda: read_readyz(site.port)[0] == 200)
        assert "certificate management recovered" in site.log.getvalue()


@pytest.mark.parametrize("about", ["GET /apis/admission", "PATCH"])
def test_a_leader_without_access_to_configurations_serves_the_certificate(cluster: Cluster, about: str) -> None:
    Replica(cluster, leads=True).settle()
    cluster.set_bundles("")
    with managed_server_in(cluster, Client(cluster, ApiError("", 403, "Forbidden", "not yours"), about)) as site:
        site.until(lambda: "not yours. Required are" in read_readyz(site.port)[1])

        site.until(lambda: read_readyz(site.port)[0] == 200)


def test_an_unreachable_api_server_changes_nothing(cluster: Cluster) -> None:
    client = Client(cluster)
    with managed_server_in(cluster, client) as site:
        site.until(lambda: read_readyz(site.port)[0] == 200)
        client.error = ApiError("GET /", 500, "InternalError", "etcd is gone")
        site.until(lambda: site.server.telemetry.metrics.rotation_failing == 1)

        assert read_readyz(site.port)[0] == 200
        assert served_certificate(site.port, cluster.bundles()[0], NAME) == cluster.leaf.certificate


def test_serving_continues_after_an_unexpected_exception(cluster: Cluster) -> None:
    with managed_server_in(cluster) as site:
        site.until(lambda: read_readyz(site.port)[0] == 200)
        metadata = cluster.objects[CONFIGS[0]].pop("metadata")
        site.until(lambda: site.server.telemetry.internal_errors["certificate"] > 0)
        assert read_readyz(site.port)[0] == 200

        cluster.objects[CONFIGS[0]]["metadata"] = metadata
        site.until(lambda: site.server.telemetry.metrics.rotation_failing == 0)


def test_a_foreign_secret_is_reported(cluster: Cluster) -> None:
    cluster.store(SECRET.path, {"metadata": {"name": SECRET.name}, "data": {"tls.crt": "eA=="}})
    with managed_server_in(cluster) as site:
        site.until(lambda: "another application" in read_readyz(site.port)[1])
        assert read_readyz(site.port)[0] == 503


def test_a_missing_configuration_is_reported(cluster: Cluster) -> None:
    for path in CONFIGS:
        del cluster.objects[path]
    with managed_server_in(cluster) as site:
        site.until(lambda: "there is no webhook configuration rightslice, so" in read_readyz(site.port)[1])
        site.until(lambda: read_readyz(site.port)[0] == 200)


def test_a_wrong_clock_is_reported(cluster: Cluster) -> None:
    cluster.moment -= timedelta(hours=1)
    with managed_server_in(cluster) as site:
        site.until(lambda: "the clocks of this machine" in read_readyz(site.port)[1])
        site.until(lambda: read_readyz(site.port)[0] == 200)


async def test_conflicting_programs_are_slowed_down() -> None:
    cluster, log = Cluster(), io.StringIO()
    elector = LeaderElector(Client(cluster), LEASE, "pod-1")
    reconciler = CertificateReconciler(Client(cluster), SPEC, lambda: elector.is_leader, lambda: cluster.moment)
    tls = ServerTls(PemPair(PAIR.certificate, PAIR.key))
    managed = ManagedCertificate(reconciler, elector, tls, Telemetry(make_logger("info", log)), lambda: cluster.moment)
    await elector.try_acquire_or_renew()
    pauses = []
    for _ in range(20):
        pauses.append(await managed.reconcile())
        cluster.set_bundles("")

    assert managed.telemetry.metrics.rotation_steps["update_bundles"] >= 15
    assert sum(pauses) > len(pauses), "fewer than one write per second"


class SlowClient(Client):
    """An API client whose reads of the Secret take a while, or never end."""

    def __init__(self, cluster: Cluster, seconds: float, error: ApiError | None = None) -> None:
        super().__init__(cluster, error, "GET")
        self.seconds = seconds

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        if path == SECRET.path:
            await asyncio.sleep(self.seconds)
        return await super().get(path, params)


def test_a_restarted_server_never_presents_another_certificate_than_the_stored_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed_certificate, "LOAD_SECONDS", PATIENCE)
    Replica(cluster, leads=True).settle()
    for _ in range(3):
        with managed_server_in(cluster, SlowClient(cluster, 0.5)) as site:
            assert served_certificate(site.port, cluster.bundles()[0], NAME) == cluster.leaf.certificate


@pytest.mark.parametrize(
    "client",
    {
        "an API server that does not answer": lambda cluster: SlowClient(cluster, 1000),
        "an API server that is not reachable yet": lambda cluster: Client(
            cluster, ApiUnreachable(f"GET {SECRET.path}", "https://api", "refused")
        ),
        "a Secret that may not be read": lambda cluster: Client(
            cluster, ApiError(f"GET {SECRET.path}", 403, "Forbidden", "not yours")
        ),
        "no Secret": Client,
    }.items(),
    ids=lambda case: case[0],
)
def test_a_server_listens_without_a_certificate_after_a_while(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, client: tuple[str, Callable[[Cluster], Client]]
) -> None:
    monkeypatch.setattr(managed_certificate, "LOAD_SECONDS", 0.5)
    with managed_server_in(cluster, client[1](cluster)) as site:
        status, lines = read_readyz(site.port)

        assert (status == 503) == ("[-]certificate waiting for Secret rightslice/rightslice-tls" in lines)


async def test_a_changed_bundle_is_repaired_without_waiting_for_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, seconds = Cluster(), asyncio.get_running_loop().time
    monkeypatch.setattr(managed_certificate, "NEXT_STEP_SECONDS", 0.0)
    elector = LeaderElector(Client(cluster), LEASE, "pod-1")
    reconciler = CertificateReconciler(Client(cluster), SPEC, lambda: elector.is_leader, lambda: cluster.moment)
    tls = ServerTls(PemPair(PAIR.certificate, PAIR.key))
    managed = ManagedCertificate(
        reconciler, elector, tls, Telemetry(make_logger("info", io.StringIO())), lambda: cluster.moment
    )
    await elector.try_acquire_or_renew()
    running = asyncio.create_task(managed.run())
    await until(
        lambda: bool(cluster.state and cluster.state.serving and set(cluster.bundles()) == {cluster.state.bundle})
    )
    repairs, trusted = [0.0], cluster.bundles()
    while repairs[-1] < 2 and len(repairs) <= 10 * managed_certificate.MAX_WAKES:
        start = seconds()
        cluster.set_bundles("")
        managed.bundles.upsert(cluster.read(CONFIGS[0]))
        with suppress(TimeoutError):
            await asyncio.wait_for(until(lambda: cluster.bundles() == trusted), 2)
        repairs.append(seconds() - start)
    running.cancel()

    assert max(repairs[:5]) < 2, "long before the next interval"
    assert repairs[-1] >= 2, "a program that keeps changing bundles is answered at the interval only"


async def until(true: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    while not true():
        await asyncio.sleep(0.005)
