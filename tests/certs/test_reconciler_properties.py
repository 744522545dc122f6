"""Properties of certificates in any order of events: racing replicas, crashes, lost Secrets, wrong clocks."""

from __future__ import annotations

from base64 import b64encode
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.certs.cluster import CONFIGS, NAMES, SECRET, Cluster, Replica
from webhook.certs.rotation import AUTHORITY_OVERLAP, BUNDLE_SETTLE_TIME, MAX_AUTHORITIES, is_within_validity

REPLICAS = st.integers(0, 2)
KEYS = st.sampled_from(["ca.crt", "ca.key", "tls.crt", "tls.key"])
JUNK = b64encode(b"junk").decode()
ROUNDS = 12
JUMPS = st.sampled_from([timedelta(hours=-2), timedelta(days=-400), timedelta(days=70), timedelta(days=4000)])


class RotationMachine(RuleBasedStateMachine):
    """Three replicas that may each believe that they lead; the webhook configurations are not edited."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.replicas = [Replica(self.cluster) for _ in range(3)]

    @rule(who=REPLICAS, leads=st.booleans())
    def elect(self, who: int, leads: bool) -> None:
        self.replicas[who].leads = leads

    @rule(who=REPLICAS, calls=st.integers(1, 12))
    def advance(self, who: int, calls: int) -> None:
        for _ in range(calls):
            self.replicas[who].advance()

    @rule(who=REPLICAS)
    def crash(self, who: int) -> None:
        self.replicas[who].crash()

    @rule(
        frozen=st.none() | REPLICAS, time=st.sampled_from([BUNDLE_SETTLE_TIME, AUTHORITY_OVERLAP, timedelta(days=31)])
    )
    def wait(self, frozen: int | None, time: timedelta) -> None:
        """Running replicas reconcile every few seconds; a frozen one stays in the middle of a call, serving no one.

        So each running replica has read every write before the time is over: they reconcile until none of them writes.
        """
        if frozen is not None:
            self.replicas[frozen].served = None
        running = [replica for number, replica in enumerate(self.replicas) if number != frozen]
        for _ in range(ROUNDS):
            wrote = [replica.reconcile().changed for replica in running]
            if not any(wrote):
                break
        else:
            raise AssertionError("there is still something to do")
        self.cluster.pass_time(time)

    @rule(by=JUMPS)
    def jump(self, by: timedelta) -> None:
        """Set the API server's clock."""
        self.cluster.moment += by

    @rule()
    def delete(self) -> None:
        self.cluster.objects.pop(SECRET.path, None)

    @rule(key=KEYS)
    def damage(self, key: str) -> None:
        self.cluster.damage(key, JUNK)

    @invariant()
    def every_served_certificate_is_trusted_by_every_webhook(self) -> None:
        for replica in self.replicas:
            leaf = replica.served
            if leaf is not None and is_within_validity(leaf, self.cluster.moment):
                assert self.cluster.trusted_everywhere(leaf.signed_by)

    @invariant()
    def there_are_never_many_authorities(self) -> None:
        state = self.cluster.state
        assert state is None or len(state.authorities) <= MAX_AUTHORITIES

    def teardown(self) -> None:
        """After any history, one leader repairs everything within a minute."""
        heal(self.cluster, self.replicas)


class EditedBundlesMachine(RotationMachine):
    """Three replicas, and edits of the webhook configurations."""

    @rule(path=st.sampled_from(CONFIGS), bundle=st.sampled_from(["", JUNK]))
    def edit(self, path: str, bundle: str) -> None:
        self.cluster.set_bundles(bundle, path)

    @invariant()
    def every_served_certificate_is_trusted_by_every_webhook(self) -> None:
        """Do not check it while bundles are edited."""


def heal(cluster: Cluster, replicas: list[Replica]) -> None:
    """Let one replica lead, and check the state a minute later."""
    for replica in replicas:
        replica.crash()
        replica.leads = False
    leader = replicas[0]
    leader.leads = True
    for _ in range(2):
        leader.settle()
        cluster.pass_time(BUNDLE_SETTLE_TIME)
    leader.settle()
    assert cluster.leaf.not_after - cluster.moment > timedelta(days=7)
    assert is_within_validity(cluster.leaf, cluster.moment)
    assert frozenset(NAMES) <= cluster.leaf.dns_names
    assert cluster.trusted_everywhere(cluster.leaf.signed_by)
    for replica in replicas:
        assert replica.settle().serving == cluster.leaf


TestRotation = RotationMachine.TestCase
TestEditedBundles = EditedBundlesMachine.TestCase
TestRotation.settings = TestEditedBundles.settings = settings(max_examples=60, stateful_step_count=40)


@settings(max_examples=8)
@given(st.data())
def test_a_week_is_always_left_with_one_reconciliation_a_day(data: st.DataObject) -> None:
    """Although every process lives for a day, and the previous one ends in the middle of a call."""
    cluster = Cluster()
    Replica(cluster, leads=True).settle()
    for _ in range(400):
        crashing = Replica(cluster, leads=True)
        for _ in range(data.draw(st.integers(0, 8), label="calls before it ends")):
            crashing.advance()
        crashing.crash()
        Replica(cluster, leads=True).settle()
        assert cluster.leaf.not_after - cluster.moment > timedelta(days=8)
        assert cluster.trusted_everywhere(cluster.leaf.signed_by)
        cluster.pass_time(timedelta(days=1))
