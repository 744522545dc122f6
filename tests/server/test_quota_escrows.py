"""Escrows of shared quotas: replicas with delayed views, lost writes, deaths and returns never exceed a ceiling.

Replicas use the real code from the watch to the record; only the API server is simulated, and time.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, make_namespace, make_node, make_pod
from tests.example_cluster import A100, NO_USAGE, NOW, policies_of, policy, request_of
from tests.server.site import review, serve_site
from webhook.cache.informers import UNSEEN_POD_SECONDS, empty_view
from webhook.cache.live_view import ViewPublisher
from webhook.cache.stored_objects import StoredPod
from webhook.engine.decide import decide
from webhook.engine.decision_cache import DecisionCache
from webhook.errors import ApiError
from webhook.kube.leader_election import LeaseName
from webhook.model.objects import Namespace, Node
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.server.escrow_keeper import (
    FORBIDDEN_SECONDS,
    QUOTA_LEASE,
    RENEW_SECONDS,
    TAKE_BACK_SECONDS,
    VALID_SECONDS,
    EscrowKeeper,
)

CEILING = 6000
POLICY = policies_of(policy(f"mode: enforce\nquotas: {{shared: [{{name: lab, gpuMilli: {CEILING}}}]}}"))
NODE = make_node("a", A100, **{"nvidia.com/gpu": 8})
STORED_WITHIN = 34
"""Seconds after an admission in which the API server may store the pod."""


class StoredLease:
    """The API server's Lease.

    Attributes:
        lose_answer: True if the next write is stored and its answer lost.
        forbidden: True if RBAC allows nothing.
    """

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.version, self.lose_answer, self.writes, self.forbidden = 0, False, 0, False

    async def get(self, path: str) -> Json:
        if self.forbidden:
            raise ApiError(f"GET {path}", 403, "Forbidden", "RBAC")
        if self.lease is None:
            raise ApiError(f"GET {path}", 404, "NotFound", "not found")
        return copy.deepcopy(self.lease)

    async def create(self, _path: str, body: Mapping[str, Any]) -> Json:
        return self._store(body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        if self.lease is None or body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(f"PUT {path}", 409, "Conflict", "changed")
        return self._store(body)

    def _store(self, body: Mapping[str, Any]) -> Json:
        self.version, self.writes = self.version + 1, self.writes + 1
        self.lease = copy.deepcopy({**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}})
        if self.lose_answer:
            self.lose_answer = False
            raise ApiError("PUT", 500, "InternalError", "lost")
        return copy.deepcopy(self.lease)


class PodHistory:
    """The API server's pods: every change, with its version and time; and pods that it will store or reject."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[tuple[bool, Json]] = []
        self.stored: dict[str, Json] = {}
        self.pending: list[tuple[float, Json]] = []

    def add(self, pod: Json, *, gone: bool = False) -> None:
        version = str(len(self.events) + 1)
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": version}}
        self.events.append((gone, pod))
        if gone:
            self.stored.pop(pod["metadata"]["name"], None)
        else:
            self.stored[pod["metadata"]["name"]] = pod

    def milli(self) -> int:
        return sum(
            1000 * int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
            for pod in self.stored.values()
        )

    def advance(self, seconds: float) -> None:
        """Store what was admitted at the latest moment that the API server has."""
        self.now += seconds
        due = [pod for at, pod in self.pending if at <= self.now]
        self.pending = [(at, pod) for at, pod in self.pending if at > self.now]
        for pod in due:
            self.add(pod)


class Replica:
    """One replica: a delayed view, a decision cache, and its escrows."""

    def __init__(self, name: str, lease: StoredLease, pods: PodHistory) -> None:
        self.pods, self.applied, self.confirmed = pods, 0, pods.now
        self.state = AdmissionState(POLICY, empty_view(), NO_USAGE, PolicyLoadStatus(NOW))
        self.live = ViewPublisher(self.state, fleet_seconds=0.0)
        self.cache = DecisionCache()
        name_of_lease = LeaseName("ours", QUOTA_LEASE)
        self.lease = lease
        self.keeper = EscrowKeeper(
            lease, name_of_lease, name, self.state, lambda: self.confirmed, monotonic=lambda: pods.now
        )

        self.watch = self.keeper.store()

    def observe_lease(self) -> None:
        """Receive the event of the Lease."""
        if self.lease.lease is not None:
            self.watch.upsert(copy.deepcopy(self.lease.lease))

    async def start(self) -> None:
        """List the cluster."""
        self.live.nodes.upsert(msgspec.convert(NODE, Node))
        self.live.namespaces.upsert(msgspec.convert(make_namespace("team"), Namespace))
        await self.observe(len(self.pods.events))
        await self.keeper.step()
        await self.keeper.step()

    async def observe(self, count: int) -> None:
        """Receive more events; all of them confirm the view."""
        for gone, pod in self.pods.events[self.applied : self.applied + count]:
            stored = msgspec.convert(pod, StoredPod)
            (self.live.pods.remove if gone else self.live.pods.upsert)(stored)
            self.applied += 1
        if self.applied == len(self.pods.events):
            self.confirmed = self.pods.now
        await self.live.publish()
        self.state.view = self.state.view.without_reservations_before(self.confirmed - UNSEEN_POD_SECONDS)

    def review(self, number: int, gpus: int) -> tuple[Json, list[str]]:
        """Evaluate a pod as /validate does; return it with the codes of its denials."""
        pod = make_pod(f"p{number}").gpus(gpus).namespace("team").build()
        pod["metadata"]["uid"] = f"u{number}"
        request = request_of(pod)
        view = self.state.view_with_escrows(request, self.pods.now)
        decision = self.cache.decide(request, POLICY, view, NO_USAGE, NOW)
        self.state.reserve_quota(request, decision, self.pods.now)
        return pod, [finding.code for finding in decision.denials]


WHICH = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), WHICH, st.integers(1, 3), st.sampled_from([0, 0, 0, 5, STORED_WITHIN, None])),
        st.tuples(st.just("create"), WHICH, st.integers(1, 3), st.sampled_from([0, 0, 1])),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("observe"), WHICH, st.integers(1, 9)),
        st.tuples(st.just("keep"), WHICH, st.booleans()),
        st.tuples(st.just("keep"), WHICH, st.just(value=False)),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1, RENEW_SECONDS, VALID_SECONDS, TAKE_BACK_SECONDS / 2])),
        st.tuples(st.just("kill"), WHICH),
        st.tuples(st.just("stop"), WHICH),
        st.tuples(st.just("start")),
    ),
    min_size=10,
    max_size=80,
)


class Trial:
    """Replicas that share one quota, and the steps of a trial."""

    def __init__(self) -> None:
        self.lease, self.pods = StoredLease(), PodHistory()
        self.replicas: list[Replica] = []
        self.started = self.created = 0

    async def start(self) -> None:
        if len(self.replicas) < 4:
            self.started += 1
            replica = Replica(f"r{self.started}", self.lease, self.pods)
            self.replicas.append(replica)
            await replica.start()

    async def run(self, steps: list[tuple[Any, ...]]) -> None:
        for action, *arguments in steps:
            await getattr(self, action)(*arguments)
            assert self.pods.milli() <= CEILING

    def _one(self, which: int) -> Replica:
        return self.replicas[which % len(self.replicas)]

    async def create(self, which: int, gpus: int, delay: float | None) -> None:
        """Send a pod; it is stored after a delay, or rejected by others (None)."""
        if self.replicas:
            self.created += 1
            pod, denials = self._one(which).review(self.created, gpus)
            if not denials and delay is not None:
                self.pods.pending.append((self.pods.now + delay, pod))
                self.pods.advance(0)

    async def delete(self, which: int) -> None:
        if names := sorted(self.pods.stored):
            self.pods.add(self.pods.stored[names[which % len(names)]], gone=True)

    async def observe(self, which: int, count: int) -> None:
        if self.replicas:
            await self._one(which).observe(count)

    async def keep(self, which: int, lost: bool) -> None:
        if self.replicas:
            if self.created % 2:
                self._one(which).observe_lease()
            self.lease.lose_answer = lost
            await self._one(which).keeper.step()
            self.lease.lose_answer = False

    async def wait(self, seconds: float) -> None:
        self.pods.advance(seconds)

    async def kill(self, which: int) -> None:
        if self.replicas:
            self.replicas.remove(self._one(which))

    async def stop(self, which: int) -> None:
        if self.replicas:
            replica = self._one(which)
            self.replicas.remove(replica)
            await replica.keeper.release()


@pytest.mark.no_cover
@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3), STEPS)
def test_replicas_never_exceed_a_shared_quota(count: int, steps: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        trial = Trial()
        for _ in range(count):
            await trial.start()
        await trial.run(steps)

    asyncio.run(run())


async def trial_of(count: int) -> Trial:
    """Return a trial after the replicas have divided the quota."""
    trial = Trial()
    for _ in range(count):
        await trial.start()
    await settle(trial)
    return trial


async def settle(trial: Trial) -> None:
    """Let every replica observe everything and agree with the others, some times."""
    for _ in range(6):
        trial.pods.advance(0.1)
        for replica in trial.replicas:
            await replica.observe(100)
            replica.observe_lease()
            await replica.keeper.step()


async def fill(trial: Trial, which: int, gpus: int = 1, retries: int = 10) -> list[str]:
    """Create pods at one replica, each repeated like client-go does, until one is rejected for good."""
    while True:
        trial.created += 1
        pod, denials = trial.replicas[which].review(trial.created, gpus)
        for _ in range(retries):
            if denials != ["GPU-Q307"]:
                break
            await settle(trial)
            trial.pods.advance(0.4)
            pod, denials = trial.replicas[which].review(trial.created, gpus)
        if denials:
            return denials
        trial.pods.add(pod)
        await settle(trial)


async def test_any_replica_can_fill_the_quota_alone() -> None:
    for count in (1, 2, 3):
        trial = await trial_of(count)
        assert await fill(trial, count - 1) == ["GPU-Q303"]
        assert trial.pods.milli() == CEILING


async def test_a_pod_of_more_than_a_share_is_admitted_after_a_retry() -> None:
    trial = await trial_of(3)
    assert await fill(trial, 1, gpus=6) == ["GPU-Q303"]
    assert trial.pods.milli() == CEILING


async def test_replicas_that_wait_for_the_same_gpus_are_served_in_turn() -> None:
    trial = await trial_of(2)
    assert [replica.review(900 + n, 6)[1] for n, replica in enumerate(trial.replicas)] == [["GPU-Q307"]] * 2
    await settle(trial)
    trial.pods.advance(0.4)
    assert [replica.review(910 + n, 6)[1] for n, replica in enumerate(trial.replicas)] == [[], ["GPU-Q307"]]


async def test_one_replica_never_asks_a_client_to_retry() -> None:
    trial = await trial_of(1)
    for number in range(6):
        assert trial.replicas[0].review(number, 1)[1] == []
    assert trial.replicas[0].review(7, 1)[1] == ["GPU-Q303"]
    writes = trial.lease.writes
    trial.pods.advance(RENEW_SECONDS - 2)
    await trial.replicas[0].keeper.step()
    assert trial.lease.writes == writes, "nothing to tell others"


async def test_the_escrow_of_a_killed_replica_is_divided_once_its_last_pod_must_have_appeared() -> None:
    trial = await trial_of(2)
    del trial.replicas[0]
    free_at_once = sum(not trial.replicas[0].review(number, 1)[1] for number in range(6))
    assert 0 < free_at_once < 6
    for _ in range(int(TAKE_BACK_SECONDS)):
        trial.pods.advance(1.0)
        await settle(trial)
    assert await fill(trial, 0) == ["GPU-Q303"]
    assert trial.pods.milli() == CEILING


async def test_a_replica_that_stops_gives_its_escrow_back_at_once() -> None:
    trial = await trial_of(2)
    await trial.stop(0)
    await settle(trial)
    assert [trial.replicas[0].review(number, 1)[1] for number in range(6)] == [[]] * 6


async def test_a_replica_that_cannot_renew_stops_to_admit_before_others_take_over() -> None:
    trial = await trial_of(2)
    trial.pods.advance(VALID_SECONDS)
    assert trial.replicas[0].review(1, 1)[1] == ["GPU-Q304"]
    await settle(trial)
    assert trial.replicas[0].review(1, 1)[1] == []


async def test_a_replica_without_permission_for_the_record_compares_with_its_own_view_after_a_minute() -> None:
    trial = Trial()
    trial.lease.forbidden = True
    await trial.start()
    (replica,) = trial.replicas
    assert replica.review(1, 1)[1] == ["GPU-Q304"]
    trial.pods.advance(FORBIDDEN_SECONDS - 1)
    await settle(trial)
    assert replica.review(1, 1)[1] == ["GPU-Q304"], "an API server that starts forbids everything"

    trial.pods.advance(1)
    await settle(trial)
    assert [replica.review(number, 1)[1] for number in range(7)] == [[]] * 6 + [["GPU-Q303"]]
    assert "not divided among the replicas" in replica.keeper.checks()[0].message

    trial.lease.forbidden = False
    await settle(trial)
    await trial.start()
    await settle(trial)
    assert trial.replicas[1].review(8, 1)[1] == ["GPU-Q307"], "the six count"
    assert [check.ok for check in replica.keeper.checks()] == [True]


async def test_a_deleted_record_is_written_again() -> None:
    trial = await trial_of(2)
    trial.lease.lease = None
    await settle(trial)
    assert await fill(trial, 0) == ["GPU-Q303"]
    assert trial.pods.milli() == CEILING


async def test_a_stopped_replica_leaves_the_record() -> None:
    trial = await trial_of(1)
    for _ in range(20):
        await trial.start()
        await settle(trial)
        await trial.stop(0)
        trial.pods.advance(TAKE_BACK_SECONDS)
        await settle(trial)
    assert trial.lease.lease is not None
    assert len(str(trial.lease.lease)) < 1000


def answer_of(state: AdmissionState, **changes: Any) -> Json:
    """Return the response of a server to a pod, whose replica holds no escrow yet."""
    state.policy_load, state.escrows.shared, state.escrows.valid_until = PolicyLoadStatus(NOW), True, float("inf")
    pod = make_pod("p").gpus(1).namespace("team").build()
    pod["metadata"]["uid"] = "u"
    with serve_site(decide, state=state) as site:
        answer: Json = site.evaluate(review(pod, **changes)).response
        retried = site.metric(
            "rightslice_admission_requests_total", route="validate", operation="CREATE", result="retried"
        )
        assert retried == (not answer["allowed"])
    return answer


async def test_the_api_server_is_told_to_let_the_client_retry() -> None:
    replica = Replica("r", StoredLease(), PodHistory())
    await replica.start()
    replica.state.escrows.clear()
    status = answer_of(replica.state)["status"]
    assert (status["code"], status["reason"], status["details"]) == (429, "TooManyRequests", {"retryAfterSeconds": 1})
    assert answer_of(replica.state, dryRun=True)["allowed"], "a dry run is judged by the usage"
