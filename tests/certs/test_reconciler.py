"""A replica and the API server over a complete history."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest

from tests.certs.cluster import CONFIGS, NAMES, SECRET, SPEC, START, Client, Cluster, Replica
from webhook.certs.reconciler import CertificateReconciler
from webhook.certs.rotation import AUTHORITY_OVERLAP, BUNDLE_SETTLE_TIME, CreateAuthority, NoAction
from webhook.certs.secret_state import MANAGED_BY_LABEL
from webhook.errors import ApiError

JUNK = b64encode(b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").decode()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def leader(cluster: Cluster) -> Replica:
    """A leader with no step due."""
    replica = Replica(cluster, leads=True)
    replica.settle()
    replica.settle()
    return replica


def settle_later(replica: Replica, time: timedelta = BUNDLE_SETTLE_TIME) -> None:
    """Advance the clocks, and take all due steps."""
    replica.cluster.pass_time(time)
    replica.settle()
    replica.settle()


def test_the_first_certificate_is_served_once_it_is_trusted(cluster: Cluster) -> None:
    replica = Replica(cluster, leads=True)
    while replica.served is None:
        replica.reconcile()

    assert frozenset(NAMES) == cluster.leaf.dns_names
    assert set(cluster.bundles()) == {cluster.state.bundle} if cluster.state else False
    assert cluster.objects[SECRET.path]["metadata"]["labels"] == MANAGED_BY_LABEL
    writes = [call.split()[0] for call in cluster.calls if not call.startswith("GET")]
    assert writes == ["POST", "PATCH", "PATCH", "PUT"]


def test_only_one_of_three_concurrent_replicas_creates_the_secret(cluster: Cluster) -> None:
    replicas = [Replica(cluster) for _ in range(3)]
    while any(replica.last is None for replica in replicas):
        for replica in replicas:
            if replica.last is None:
                replica.advance()

    assert sorted(replica.last.changed for replica in replicas if replica.last) == [False, False, True]


def test_a_rotation_never_serves_an_untrusted_certificate(leader: Replica) -> None:
    cluster = leader.cluster
    before = cluster.leaf
    settle_later(leader, timedelta(days=60, hours=1))
    assert cluster.leaf.not_before > before.not_before
    assert cluster.leaf.signed_by == before.signed_by

    for _ in range(4):
        settle_later(leader, timedelta(days=50))
        assert cluster.leaf.not_after - cluster.moment > timedelta(days=7)
    settle_later(leader)
    assert cluster.leaf.signed_by != before.signed_by
    assert cluster.trusted_everywhere(before.signed_by)

    settle_later(leader, AUTHORITY_OVERLAP)
    assert not cluster.trusted_everywhere(before.signed_by)
    assert leader.served == cluster.leaf


@pytest.mark.parametrize("bundle", ["", JUNK, "a", "é"], ids=["empty", "another authority", "truncated", "not base64"])
@pytest.mark.parametrize("path", CONFIGS)
def test_an_edited_bundle_is_restored(leader: Replica, path: str, bundle: str) -> None:
    cluster = leader.cluster
    cluster.set_bundles(bundle, path)
    leader.settle()

    assert cluster.state is not None
    assert set(cluster.bundles()) == {cluster.state.bundle}


def test_the_rest_of_a_configuration_is_unchanged(leader: Replica) -> None:
    webhook = leader.cluster.objects[CONFIGS[0]]["webhooks"][0]

    assert webhook["name"] == "a.rightslice.dev"
    assert webhook["clientConfig"].keys() == {"url", "caBundle"}


@pytest.mark.parametrize("leads", [True, False], ids=["by the leader", "by another"])
def test_a_deleted_secret_is_recreated_while_the_old_certificate_stays_trusted(leader: Replica, leads: bool) -> None:
    cluster, before = leader.cluster, leader.served
    assert before is not None
    finder = leader if leads else Replica(cluster)
    del cluster.objects[SECRET.path]
    finder.reconcile()
    leader.settle()

    assert leader.served == before
    assert cluster.trusted_everywhere(before.signed_by)
    settle_later(leader)
    assert leader.served == cluster.leaf != before


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
def test_a_damaged_secret_is_repaired_while_the_certificate_stays_trusted(leader: Replica, key: str) -> None:
    cluster, before = leader.cluster, leader.served
    assert before is not None
    cluster.damage(key, JUNK)
    result = leader.reconcile()

    assert [error for error in result.errors if key[:3] in error]
    leader.settle()
    assert cluster.trusted_everywhere(before.signed_by)
    assert leader.served is not None
    assert cluster.trusted_everywhere(leader.served.signed_by)
    settle_later(leader)
    settle_later(leader)
    assert leader.served == cluster.leaf
    assert leader.reconcile().errors == ()


def test_a_secret_that_a_stalled_replica_creates_again_keeps_the_old_certificate_trusted(cluster: Cluster) -> None:
    """The replica read the webhook configurations before they had bundles, and the Secret after it was deleted."""
    leader, stalled = Replica(cluster, leads=True), Replica(cluster)
    for _ in range(4):
        stalled.advance()
    leader.settle()
    served = leader.served
    assert served is not None
    cluster.objects.pop(SECRET.path)
    while not stalled.advance():
        pass
    assert cluster.state is not None, "the stalled replica has created it"
    assert served.signed_by not in cluster.state.authorities

    for _ in range(2):
        while not leader.advance():
            assert cluster.trusted_everywhere(served.signed_by)
    leader.settle()
    cluster.pass_time(BUNDLE_SETTLE_TIME)
    leader.settle()
    assert cluster.trusted_everywhere(served.signed_by)
    assert cluster.trusted_everywhere(cluster.leaf.signed_by)


def test_an_empty_secret_is_filled(cluster: Cluster) -> None:
    cluster.store(SECRET.path, {"metadata": {"name": SECRET.name, "annotations": {"own": "yes"}}, "type": "Opaque"})
    Replica(cluster, leads=True).settle()

    assert cluster.leaf.dns_names == frozenset(NAMES)
    assert cluster.objects[SECRET.path]["metadata"]["annotations"] == {"own": "yes"}


def test_a_foreign_secret_is_not_written(cluster: Cluster) -> None:
    cluster.store(SECRET.path, {"metadata": {"name": SECRET.name}, "data": {"tls.crt": JUNK}})
    result = Replica(cluster, leads=True).reconcile()

    assert isinstance(result.step, NoAction)
    assert result.step.needs_attention
    assert cluster.objects[SECRET.path]["data"] == {"tls.crt": JUNK}
    assert result.serving is None


def test_a_certificate_is_issued_without_webhook_configurations() -> None:
    cluster = Cluster(configs=())
    result = Replica(cluster, leads=True).settle()

    assert result.serving == cluster.leaf
    assert result.config_count == 0


@pytest.mark.parametrize("by", [timedelta(days=-1000), timedelta(days=1000)], ids=["behind", "ahead"])
def test_a_wrong_clock_and_its_correction_are_both_handled(leader: Replica, by: timedelta) -> None:
    cluster = leader.cluster
    cluster.moment += by
    leader.settle()
    settle_later(leader)
    assert leader.served == cluster.leaf
    assert cluster.leaf.not_before < cluster.moment < cluster.leaf.not_after

    cluster.moment -= by
    leader.settle()
    settle_later(leader)
    assert leader.served == cluster.leaf
    assert cluster.leaf.not_before < cluster.moment < cluster.leaf.not_after


async def test_the_api_servers_clock_is_used_not_the_local_one() -> None:
    class FixedClockClient(Client):
        async def _begin(self, call: str) -> None:
            self.server_time = START

    wrong = datetime(1999, 1, 1, tzinfo=UTC)
    cluster = Cluster()
    reconciler = CertificateReconciler(FixedClockClient(cluster), SPEC, lambda: True, lambda: wrong)
    for _ in range(4):
        await reconciler.reconcile()

    assert (await reconciler.reconcile()).now == START
    assert cluster.leaf.not_before == START - timedelta(hours=1)


async def test_a_forbidden_call_raises() -> None:
    client = Client(Cluster(), ApiError("GET /", 403, "Forbidden", "no"))
    with pytest.raises(ApiError, match="403 Forbidden"):
        await CertificateReconciler(client, SPEC, lambda: True, lambda: START).reconcile()


async def test_a_missing_namespace_is_an_error_not_a_conflict() -> None:
    class NoNamespaceClient(Client):
        async def _begin(self, call: str) -> None:
            if call.startswith("POST"):
                raise ApiError(call, 404, "NotFound", 'namespaces "rightslice" not found')

    reconciler = CertificateReconciler(NoNamespaceClient(Cluster()), SPEC, lambda: False, lambda: START)
    with pytest.raises(ApiError, match="namespaces"):
        await reconciler.reconcile()


def test_steps_are_returned(cluster: Cluster) -> None:
    result = Replica(cluster).reconcile()

    assert isinstance(result.step, CreateAuthority)
    assert result.changed
