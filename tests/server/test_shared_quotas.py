"""Quotas that namespaces share, without escrows: what one server admits, and by how much several exceed the quota.

Replicas use the real code from the watch to the reservation: each has its own live view, which receives every pod with
a delay, and counts what it admitted itself. Only the API server is simulated: it stores what was admitted, or does not.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, make_namespace, make_node, make_pod
from tests.device_builders import allocated, device_class, partitionable_gpus, resource_claim
from tests.example_cluster import A100, NO_USAGE, NOW, policies_of, policy, request_of
from webhook.cache.informers import empty_view
from webhook.cache.live_view import ViewPublisher
from webhook.engine.decision_cache import DecisionCache
from webhook.model.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.objects import Namespace, Node
from webhook.model.pods import Pod
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus

CEILING = 5000
POLICY = policies_of(policy(f"mode: enforce\nquotas: {{shared: [{{name: lab, gpuMilli: {CEILING}}}]}}"))
NODES = [make_node(name, A100, **{"nvidia.com/gpu": 8}) for name in "ab"]
SPACES = ("red", "blue")


class Event(NamedTuple):
    """One event of every watch."""

    at: int
    gone: bool
    pod: Json


class Replica:
    """One replica: a delayed view, its reservations and its decision cache."""

    def __init__(self) -> None:
        self.state = AdmissionState(POLICY, empty_view(), NO_USAGE, PolicyLoadStatus(NOW))
        self.live = ViewPublisher(self.state, fleet_seconds=0.0)
        self.cache = DecisionCache()
        self.applied = 0

    async def start(self) -> None:
        """Load a cluster without pods."""
        for node in NODES:
            self.live.nodes.upsert(msgspec.convert(node, Node))
        for space in SPACES:
            self.live.namespaces.upsert(msgspec.convert(make_namespace(space), Namespace))
        await self.live.publish()

    async def apply_events(self, events: list[Event], until: int) -> None:
        """Apply the events up to this one."""
        for event in events[self.applied : until]:
            (self.live.pods.remove if event.gone else self.live.pods.upsert)(msgspec.convert(event.pod, Pod))
        self.applied = max(self.applied, until)
        await self.live.publish()

    def admits(self, pod: Json) -> bool:
        """Evaluate as /validate does."""
        request = request_of(pod)
        decision = self.cache.decide(request, POLICY, self.state.view, NO_USAGE, NOW)
        self.state.reserve_quota(request, decision, 0.0)
        return not decision.denials


class Cluster:
    """The stored pods, the events, and the admissions by replica."""

    def __init__(self, replicas: list[Replica], max_delay: int) -> None:
        self.replicas, self.max_delay = replicas, max_delay
        self.events: list[Event] = []
        self.stored_pods: dict[str, Json] = {}
        self.admissions: dict[str, tuple[Replica, int, int]] = {}
        self.now = 0

    def milli(self, among: Any = lambda _uid: True) -> int:
        """Return the sum over the stored pods."""
        return sum(self.admissions[uid][2] for uid in self.stored_pods if among(uid))

    async def tick(self) -> None:
        """Advance the clock; each replica receives the events that reach the maximum delay."""
        self.now += 1
        due = sum(event.at <= self.now - self.max_delay for event in self.events)
        for replica in self.replicas:
            if replica.applied < due:
                await replica.apply_events(self.events, due)

    def create(self, replica: Replica, number: int, space: str, gpus: int, *, stored: bool, again: bool) -> None:
        """Admit one pod; others may deny it afterwards, and a response may be requested twice."""
        pod = make_pod(f"p{number}").gpus(gpus).namespace(space).build()
        uid = pod["metadata"]["uid"] = f"u{number}"
        admitted = replica.admits(pod)
        if admitted and again:
            assert replica.admits(pod), "the same response twice"
        if not (admitted and stored):
            return
        self.stored_pods[uid], self.admissions[uid] = pod, (replica, self.now, 1000 * gpus)
        self.events.append(Event(self.now, False, pod))
        self.check(replica)

    def check(self, replica: Replica) -> None:
        """Check at an admission what servers that share no Lease exceed a quota by, at most."""
        applied = {event.pod["metadata"]["uid"] for event in self.events[: replica.applied]}
        unseen = self.milli(lambda uid: self.admissions[uid][0] is not replica and uid not in applied)
        assert self.milli() <= CEILING + unseen
        lasting = self.milli(lambda uid: self.admissions[uid][1] < self.now - 2 * self.max_delay)
        assert self.milli() <= CEILING + (len(self.replicas) - 1) * (CEILING - lasting)

    def delete(self, number: int) -> None:
        """Delete a stored pod."""
        if self.stored_pods:
            uid = sorted(self.stored_pods)[number % len(self.stored_pods)]
            self.events.append(Event(self.now, True, self.stored_pods.pop(uid)))


CREATE = st.tuples(
    st.just("create"),
    st.integers(0, 3),
    st.sampled_from(SPACES),
    st.integers(1, 3),
    st.sampled_from([True, True, True, False]),
    st.booleans(),
)
DELETE = st.tuples(st.just("delete"), st.integers(0, 9))
APPLY = st.tuples(st.just("events"), st.integers(0, 3), st.integers(0, 4))
STEPS = st.lists(st.one_of(CREATE, CREATE, CREATE, DELETE, APPLY), min_size=4, max_size=40)


async def run_steps(count: int, max_delay: int, steps: list[tuple[Any, ...]]) -> Cluster:
    """Run the steps on a cluster."""
    replicas = [Replica() for _ in range(count)]
    for replica in replicas:
        await replica.start()
    cluster = Cluster(replicas, max_delay)
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
            await replica.apply_events(cluster.events, min(len(cluster.events), replica.applied + more))
    return cluster


@settings(max_examples=100)
@given(st.integers(1, 50), STEPS)
def test_one_replica_never_exceeds_a_shared_quota_even_with_an_old_view(
    max_delay: int, steps: list[tuple[Any, ...]]
) -> None:
    cluster = asyncio.run(run_steps(1, max_delay, steps))
    assert cluster.milli() <= CEILING


@settings(max_examples=100)
@given(st.integers(2, 4), st.integers(1, 8), STEPS)
def test_several_replicas_exceed_a_quota_at_most_by_unseen_pods(
    count: int, max_delay: int, steps: list[tuple[Any, ...]]
) -> None:
    asyncio.run(run_steps(count, max_delay, steps))


async def test_the_bound_is_reached() -> None:
    """Two replicas that receive no events each admit up to the quota, so the bound is tight."""
    steps = [("create", which, "red", 1, True, False) for which in (0, 1) for _ in range(7)]
    cluster = await run_steps(2, 100, steps)
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
    replica.state.view = replica.state.view.without_reservations_before(0.0)
    assert replica.admits(pod)


async def test_a_dry_run_reserves_nothing() -> None:
    replica = Replica()
    await replica.start()
    for number in range(9):
        pod = make_pod(f"p{number}").gpus(1).namespace("red").build()
        pod["metadata"]["uid"] = f"u{number}"
        request = request_of(pod, dry_run=True)
        decision = replica.cache.decide(request, POLICY, replica.state.view, NO_USAGE, NOW)
        replica.state.reserve_quota(request, decision, 0.0)
        assert not decision.denials


GPU_CLASS = device_class(
    "gpu", "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
)
TEMPLATE = resource_claim("two", namespace="red") | {"kind": "ResourceClaimTemplate"}
TEMPLATE["spec"] = {
    "spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu", "count": 2}}]}}
}
OWN, SHARED = {"name": "o", "resourceClaimTemplateName": "two"}, {"name": "s", "resourceClaimName": "shared"}
SHARED_CLAIM = resource_claim("shared", namespace="red")


def claiming(number: int, *claims: Json, made: str = "") -> Json:
    """Return a pod with claims; the name of one that was made from a template may be known."""
    pod = make_pod(f"p{number}").namespace("red").spec(resourceClaims=list(claims)).build()
    pod["metadata"]["uid"] = f"u{number}"
    return pod | {"status": {"resourceClaimStatuses": [{"name": "o", "resourceClaimName": made}] if made else []}}


async def test_claims_count_from_the_admission_of_a_pod_until_their_devices_are_free() -> None:
    replica = Replica()
    await replica.start()
    live = replica.live
    live.device_classes.upsert(msgspec.convert(GPU_CLASS, DeviceClass))
    for one in partitionable_gpus("a", 8):
        live.devices.slices.upsert(msgspec.convert(one, ResourceSlice))
    assert await admits(replica, claiming(1, OWN)) is False, "the template is not known yet"
    live.claim_templates.upsert(msgspec.convert(TEMPLATE, ResourceClaimTemplate))
    live.devices.claims.upsert(msgspec.convert(SHARED_CLAIM, ResourceClaim))

    assert await admits(replica, claiming(1, OWN, SHARED)), "3 of 5 GPUs"
    assert await admits(replica, claiming(2, SHARED)), "nothing more"
    assert not await admits(replica, claiming(3, OWN, OWN | {"name": "p"})), "4 more"
    assert await admits(replica, claiming(4, OWN)), "all 5 GPUs"

    devices = allocated("a", "gpu-0-mig-1g10gb-1-0"), allocated("a", "gpu-1-mig-1g10gb-1-0")
    live.devices.claims.upsert(msgspec.convert(resource_claim("p1-o", *devices, namespace="red"), ResourceClaim))
    for pod in (claiming(1, OWN, SHARED, made="p1-o"), claiming(2, SHARED), claiming(4, OWN)):
        live.pods.upsert(msgspec.convert(pod, Pod))
    assert await admits(replica, claiming(5, SHARED)), "286 instead of 2000 for the first pod"
    assert not await admits(replica, claiming(6, OWN)), "3.3 GPUs are in use"
    live.pods.remove(msgspec.convert(claiming(4, OWN), Pod))
    assert await admits(replica, claiming(6, OWN))


async def admits(replica: Replica, pod: Json) -> bool:
    """Return whether a replica that has seen everything admits a pod."""
    await replica.live.publish()
    return replica.admits(pod)
