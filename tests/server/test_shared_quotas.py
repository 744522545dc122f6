"""Quotas that namespaces share, with one replica and with several: what they let in, and by how much too much.

Replicas are the real thing from the watch to the reservation: each has its own live view, which hears of every pod
late, and counts what it admitted itself. Only the API server is played: it stores what was admitted, or does not.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, make_namespace, make_node, make_pod
from tests.example_cluster import A100, NO_USAGE, NOW, policies_of, policy, request_of
from webhook.cache.informers import empty_view
from webhook.cache.live_view import ViewPublisher
from webhook.engine.decision_cache import DecisionCache
from webhook.model.objects import Namespace, Node
from webhook.model.pods import Pod
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus, admits_object

CEILING = 5000
POLICY = policies_of(policy(f"mode: enforce\nquotas: {{shared: [{{name: lab, gpuMilli: {CEILING}}}]}}"))
NODES = [make_node(name, A100, **{"nvidia.com/gpu": 8}) for name in "ab"]
SPACES = ("red", "blue")


class Event(NamedTuple):
    """The events of every watch."""

    at: int
    gone: bool
    pod: Json


class Replica:
    """One replica: a delayed view, its reservations and its decision cache."""

    def __init__(self) -> None:
        self.world = AdmissionState(POLICY, empty_view(), NO_USAGE, PolicyLoadStatus(NOW))
        self.live = ViewPublisher(self.world, fleet_seconds=0.0)
        self.memory = DecisionCache()
        self.heard = 0

    async def start(self) -> None:
        """Take in a cluster without pods."""
        for node in NODES:
            self.live.nodes.upsert(msgspec.convert(node, Node))
        for space in SPACES:
            self.live.namespaces.upsert(msgspec.convert(make_namespace(space), Namespace))
        await self.live.publish()

    async def hear(self, events: list[Event], until: int) -> None:
        """Apply the events up to this one."""
        for event in events[self.heard : until]:
            (self.live.pods.remove if event.gone else self.live.pods.upsert)(msgspec.convert(event.pod, Pod))
        self.heard = max(self.heard, until)
        await self.live.publish()

    def admits(self, pod: Json) -> bool:
        """Evaluate as /validate does."""
        request = request_of(pod)
        decision = self.memory.decide(request, POLICY, self.world.view, NO_USAGE, NOW)
        self.world.reserve_quota(request, decision, 0.0)
        return admits_object(decision)


class Cluster:
    """The stored pods, the events, and the admissions by replica."""

    def __init__(self, replicas: list[Replica], most_late: int) -> None:
        self.replicas, self.most_late = replicas, most_late
        self.events: list[Event] = []
        self.there: dict[str, Json] = {}
        self.by: dict[str, tuple[Replica, int, int]] = {}
        self.now = 0

    def milli(self, among: Any = lambda _uid: True) -> int:
        """The sum of the stored pods."""
        return sum(self.by[uid][2] for uid in self.there if among(uid))

    async def tick(self) -> None:
        """Time passes: no replica hears of anything later than it may."""
        self.now += 1
        due = sum(event.at <= self.now - self.most_late for event in self.events)
        for replica in self.replicas:
            if replica.heard < due:
                await replica.hear(self.events, due)

    def create(self, replica: Replica, number: int, space: str, gpus: int, *, stored: bool, again: bool) -> None:
        """Admit one pod; others may deny it afterwards, and a response may be requested twice."""
        pod = make_pod(f"p{number}").gpus(gpus).namespace(space).build()
        uid = pod["metadata"]["uid"] = f"u{number}"
        admitted = replica.admits(pod)
        if admitted and again:
            assert replica.admits(pod), "the same answer twice"
        if not (admitted and stored):
            return
        self.there[uid], self.by[uid] = pod, (replica, self.now, 1000 * gpus)
        self.events.append(Event(self.now, False, pod))
        self.check(replica)

    def check(self, replica: Replica) -> None:
        """The two bounds of docs/limits.md at an admission."""
        heard = {event.pod["metadata"]["uid"] for event in self.events[: replica.heard]}
        unseen = self.milli(lambda uid: self.by[uid][0] is not replica and uid not in heard)
        assert self.milli() <= CEILING + unseen
        lasting = self.milli(lambda uid: self.by[uid][1] < self.now - 2 * self.most_late)
        assert self.milli() <= CEILING + (len(self.replicas) - 1) * (CEILING - lasting)

    def delete(self, number: int) -> None:
        """A stored pod goes."""
        if self.there:
            uid = sorted(self.there)[number % len(self.there)]
            self.events.append(Event(self.now, True, self.there.pop(uid)))


CREATE = st.tuples(
    st.just("create"),
    st.integers(0, 3),
    st.sampled_from(SPACES),
    st.integers(1, 3),
    st.sampled_from([True, True, True, False]),
    st.booleans(),
)
DELETE = st.tuples(st.just("delete"), st.integers(0, 9))
HEAR = st.tuples(st.just("hear"), st.integers(0, 3), st.integers(0, 4))
STEPS = st.lists(st.one_of(CREATE, CREATE, CREATE, DELETE, HEAR), min_size=4, max_size=40)


async def play(count: int, most_late: int, steps: list[tuple[Any, ...]]) -> Cluster:
    """Run the steps on a cluster."""
    replicas = [Replica() for _ in range(count)]
    for replica in replicas:
        await replica.start()
    cluster = Cluster(replicas, most_late)
    for number, (action, *given_) in enumerate(steps):
        await cluster.tick()
        if action == "create":
            which, space, gpus, stored, again = given_
            cluster.create(replicas[which % count], number, space, gpus, stored=stored, again=again)
        elif action == "delete":
            cluster.delete(*given_)
        else:
            which, more = given_
            replica = replicas[which % count]
            await replica.hear(cluster.events, min(len(cluster.events), replica.heard + more))
    return cluster


@settings(max_examples=100)
@given(st.integers(1, 50), STEPS)
def test_one_replica_never_exceeds_a_shared_quota_even_with_an_old_view(
    most_late: int, steps: list[tuple[Any, ...]]
) -> None:
    cluster = asyncio.run(play(1, most_late, steps))
    assert cluster.milli() <= CEILING


@settings(max_examples=100)
@given(st.integers(2, 4), st.integers(1, 8), STEPS)
def test_several_replicas_exceed_a_quota_at_most_by_unseen_pods(
    count: int, most_late: int, steps: list[tuple[Any, ...]]
) -> None:
    asyncio.run(play(count, most_late, steps))


async def test_the_bound_is_reached() -> None:
    """Two replicas that hear of nothing each let in as much as there is: the bound says no more than it must."""
    steps = [("create", which, "red", 1, True, False) for which in (0, 1) for _ in range(7)]
    cluster = await play(2, 100, steps)
    assert cluster.milli() == 2 * CEILING


async def test_a_reservation_of_a_pod_that_others_deny_is_released() -> None:
    replica = Replica()
    await replica.start()
    cluster = Cluster([replica], 1)
    for number in range(6):
        cluster.create(replica, number, "red", 1, stored=False, again=False)
    pod = make_pod("late").gpus(1).namespace("blue").build()
    pod["metadata"]["uid"] = "late"
    assert not replica.admits(pod)
    replica.world.view = replica.world.view.without_reservations_before(0.0)
    assert replica.admits(pod)


async def test_a_dry_run_reserves_nothing() -> None:
    replica = Replica()
    await replica.start()
    for number in range(9):
        pod = make_pod(f"p{number}").gpus(1).namespace("red").build()
        pod["metadata"]["uid"] = f"u{number}"
        request = request_of(pod, dry_run=True)
        decision = replica.memory.decide(request, POLICY, replica.world.view, NO_USAGE, NOW)
        replica.world.reserve_quota(request, decision, 0.0)
        assert admits_object(decision)
