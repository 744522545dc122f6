"""Leader election: at most one leader, and a new one soon after the last one stops, with any clocks."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.certs.cluster import Client, Cluster
from webhook.errors import ApiError, ApiUnreachable
from webhook.kube.leader_election import LEASE_SECONDS, RENEW_SECONDS, LeaderElector, LeaseName

LEASE = LeaseName("rightslice", "rightslice")
REPLICAS = st.integers(0, 2)


class Candidate:
    """One replica; the test continues its calls one at a time, and its monotonic clock starts at any value."""

    def __init__(self, cluster: Cluster, name: str, began: float = 0.0) -> None:
        self.client = Client(cluster)
        self.elector = LeaderElector(self.client, LEASE, name, monotonic=lambda: cluster.seconds + began)
        self._trying: Coroutine[Any, Any, None] | None = None

    def advance(self) -> bool:
        """Do one more call; return True once the attempt is over."""
        self._trying = self._trying or self.elector.try_acquire_or_renew()
        try:
            self._trying.send(None)
        except StopIteration:
            self._trying = None
            return True
        return False

    def attempt(self) -> bool:
        """Make one complete attempt; return whether it leads now."""
        while not self.advance():
            pass
        return self.elector.is_leader


def release(candidate: Candidate) -> None:
    leaving = candidate.elector.release()
    try:
        while True:
            leaving.send(None)
    except StopIteration:
        return


class ElectionMachine(RuleBasedStateMachine):
    """Three candidates whose calls interleave in any order, while time passes between them."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(configs=())
        self.candidates = [Candidate(self.cluster, f"pod-{n}", began=1000.0 * n) for n in range(3)]

    @rule(who=REPLICAS)
    def advance(self, who: int) -> None:
        self.candidates[who].advance()

    @rule(who=REPLICAS)
    def attempt(self, who: int) -> None:
        self.candidates[who].attempt()

    @rule(seconds=st.sampled_from([0.5, 2.0, 9.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.cluster.seconds += seconds

    @rule(who=REPLICAS)
    def leave(self, who: int) -> None:
        release(self.candidates[who])

    @rule()
    def delete(self) -> None:
        """Delete the Lease, but not while there is a leader."""
        if not any(candidate.elector.is_leader for candidate in self.candidates):
            self.cluster.objects.pop(LEASE.path, None)

    @invariant()
    def at_most_one_candidate_leads(self) -> None:
        assert sum(candidate.elector.is_leader for candidate in self.candidates) <= 1


TestElection = ElectionMachine.TestCase
TestElection.settings = settings(max_examples=150, stateful_step_count=40)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(configs=())


def test_the_first_candidate_leads_and_the_next_waits(cluster: Cluster) -> None:
    first, second = Candidate(cluster, "a"), Candidate(cluster, "b")

    assert first.attempt()
    assert not second.attempt()
    assert second.elector.holder == "a"
    assert cluster.objects[LEASE.path]["spec"]["leaseDurationSeconds"] == LEASE_SECONDS


def test_a_leader_that_renews_keeps_leading(cluster: Cluster) -> None:
    first, second = Candidate(cluster, "a"), Candidate(cluster, "b")
    for _ in range(20):
        assert first.attempt()
        assert not second.attempt()
        cluster.seconds += 5
    spec = cluster.objects[LEASE.path]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("a", 0)


def test_a_leader_that_does_not_renew_stops_before_the_next_starts(cluster: Cluster) -> None:
    first, second = Candidate(cluster, "a"), Candidate(cluster, "b")
    first.attempt()
    second.attempt()
    cluster.seconds += RENEW_SECONDS
    assert not first.elector.is_leader
    assert not second.attempt()
    cluster.seconds += LEASE_SECONDS - RENEW_SECONDS
    assert second.attempt()
    assert cluster.objects[LEASE.path]["spec"]["leaseTransitions"] == 1


def test_a_released_lease_is_acquired_at_once(cluster: Cluster) -> None:
    first, second = Candidate(cluster, "a"), Candidate(cluster, "b")
    first.attempt()
    second.attempt()
    release(first)

    assert not first.elector.is_leader
    assert second.attempt()


def test_a_lease_of_another_holder_is_not_released(cluster: Cluster) -> None:
    first, second = Candidate(cluster, "a"), Candidate(cluster, "b")
    first.attempt()
    release(second)

    assert cluster.objects[LEASE.path]["spec"]["holderIdentity"] == "a"


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": ""}], ids=["none", "empty", "released"])
def test_a_lease_without_holder_is_acquired_at_once(cluster: Cluster, spec: dict[str, Any] | None) -> None:
    cluster.store(LEASE.path, {"metadata": {"name": LEASE.name}, "spec": spec})

    assert Candidate(cluster, "a").attempt()


@pytest.mark.parametrize(
    "error", [ApiUnreachable("GET /", "https://x", "refused"), ApiError("GET /", 403, "Forbidden", "not allowed")]
)
def test_a_rejected_call_is_recorded_and_retried(cluster: Cluster, error: ApiError) -> None:
    candidate = Candidate(cluster, "a")
    assert candidate.attempt()
    no_error, candidate.client.error = candidate.client.error, error
    assert candidate.attempt(), "it leads for as long as no other candidate can"
    assert candidate.elector.last_error == error
    cluster.seconds += RENEW_SECONDS
    assert not candidate.attempt()
    candidate.client.error = no_error
    assert candidate.attempt()
    assert candidate.elector.last_error is None
