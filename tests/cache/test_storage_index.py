"""Claims and volumes of a live view equal those of the remaining objects, whatever the order of events."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, make_node, make_pod
from tests.example_cluster import view_of
from tests.storage_builders import (
    ZONE,
    claim_volume,
    ephemeral_volume,
    make_attachment,
    make_capacity,
    make_claim,
    make_class,
    make_csi_node,
    make_driver,
    make_volume,
)
from webhook.cache.informers import empty_view
from webhook.cache.live_view import ViewPublisher
from webhook.cache.storage_index import STORAGE_KINDS
from webhook.cache.stored_objects import StoredPod
from webhook.model.cluster_view import ClusterView
from webhook.model.objects import Node
from webhook.model.pod_volumes import pod_volumes
from webhook.model.pods import parse_pod

NODES = [
    make_node(name, {"kubernetes.io/hostname": name, ZONE: zone}, **{"nvidia.com/gpu": 1})
    for name, zone in (("n0", "a"), ("n1", "b"))
]
MODELS = {kind.__name__: kind for kind in STORAGE_KINDS} | {"Pod": StoredPod}
CLAIMS, VOLUMES, ON = ("c0", "c1"), ("v0", "v1"), ("n0", "n1")
SELECTED = {"volume.kubernetes.io/selected-node": "n0"}


def pod(name: str, on: str, claim: str) -> Json:
    """Return a pod with a claim, or with an ephemeral volume."""
    made = make_pod(name).spec(nodeName=on, volumes=[claim_volume(claim) if claim else ephemeral_volume("tmp")])
    return made.build() | {"kind": "Pod"}


def pod_with_disk(name: str, on: str, disk: str) -> Json:
    """Return a pod with a disk that it names without a claim, of the driver that the nodes limit."""
    volume = {"name": "disk", "awsElasticBlockStore": {"volumeID": disk}}
    return make_pod(name).spec(nodeName=on, volumes=[volume]).build() | {"kind": "Pod"}


EVENTS = st.one_of(
    st.builds(make_claim, st.sampled_from(CLAIMS), volume=st.sampled_from(("", *VOLUMES))),
    st.builds(make_claim, st.sampled_from(CLAIMS), annotations=st.just(SELECTED)),
    st.builds(make_volume, st.sampled_from(VOLUMES), claim=st.sampled_from(("", *CLAIMS)), zones=st.just(("a",))),
    st.builds(make_class, mode=st.sampled_from(("Immediate", "WaitForFirstConsumer"))),
    st.builds(make_csi_node, st.sampled_from(ON), limit=st.sampled_from((None, 1, 2))),
    st.builds(make_csi_node, st.sampled_from(ON), st.just("ebs.csi.aws.com"), limit=st.sampled_from((None, 1, 2))),
    st.builds(make_driver, capacity=st.booleans()),
    st.builds(make_capacity, st.sampled_from(("x", "y")), st.sampled_from(("5Gi", "50Gi")), zone=st.sampled_from("ab")),
    st.builds(make_attachment, st.sampled_from(("s", "t")), st.sampled_from(ON), st.sampled_from(VOLUMES)),
    st.builds(pod, st.sampled_from(("p", "q")), st.sampled_from(("", *ON)), st.sampled_from(("", *CLAIMS))),
)
EVENTS |= st.builds(pod_with_disk, st.sampled_from(("p", "q")), st.sampled_from(("", *ON)), st.sampled_from("de"))
STEPS = st.lists(st.tuples(st.sampled_from(("upsert", "upsert", "remove", "list")), EVENTS, st.booleans()), max_size=14)


def storage_facts(view: ClusterView) -> dict[str, Any]:
    """Return what decides about pods with claims."""
    objects, users = view.storage.objects, view.storage.users
    known = objects._asdict() | {"missing": ()}
    for kind in ("capacities", "unbound_volumes"):
        known[kind] = {name: {each.metadata.name for each in found} for name, found in known[kind].items()}
    known["attached"] = {node: dict(counts) for node, counts in objects.attached.items() if counts}
    free = {
        name: (found.limited, found.by_keys, [found.free.nodes_with_at_least(count) for count in range(-2, 4)])
        for name, found in view.storage.driver_nodes.items()
    }
    pods = [pod_volumes(parse_pod(pod("new", "", claim))) for claim in ("", *CLAIMS)]
    fits = [view.fit_volumes("team", uses) for uses in pods]
    nodes = {key: set(found) for key, found in users.nodes.items()}
    return known | {"free": free, "nodes": nodes, "waiting": dict(users.waiting), "fits": [each[:3] for each in fits]}


def decoded(data: Json) -> Any:
    return msgspec.convert(data, MODELS[data["kind"]])


class StorageHarness:
    """A publisher, and the objects that remain."""

    def __init__(self) -> None:
        self.holder = SimpleNamespace(view=empty_view())
        self.publisher = ViewPublisher(self.holder, fleet_seconds=0.0)
        for node in NODES:
            self.publisher.nodes.upsert(msgspec.convert(node, Node))
        self.objects: dict[tuple[str, str], Json] = {}

    def store_of(self, kind: str) -> Any:
        """Return the store of a kind."""
        if kind == "Pod":
            return self.publisher.pods
        stores = zip(STORAGE_KINDS, self.publisher.storage.stores, strict=True)
        return next(store for each, store in stores if each.__name__ == kind)

    def apply(self, action: str, data: Json) -> None:
        """Write one event, or a list of all remaining objects of the kind with this one."""
        kind, key = data["kind"], (data["kind"], data["metadata"]["name"])
        store = self.store_of(kind)
        if action == "remove":
            self.objects.pop(key, None)
            store.remove(decoded(data))
            return
        self.objects[key] = data
        if action == "upsert":
            store.upsert(decoded(data))
            return
        store.begin()
        for (found, _), each in self.objects.items():
            if found == kind:
                store.upsert(decoded(each))
        store.swap()


@settings(deadline=None)
@given(STEPS)
def test_any_events_lead_to_the_storage_of_the_remaining_objects(steps: list[tuple[str, Json, bool]]) -> None:
    harness = StorageHarness()

    async def apply_steps() -> None:
        await harness.publisher.publish()
        for action, data, publish in steps:
            harness.apply(action, data)
            if publish:
                await harness.publisher.publish()
        await harness.publisher.publish()

    asyncio.run(apply_steps())
    rebuilt = view_of(*NODES, *harness.objects.values())
    if any(kind != "Pod" for kind, _ in harness.objects):
        assert storage_facts(harness.holder.view) == storage_facts(rebuilt)


def test_what_was_removed_is_forgotten() -> None:
    harness = StorageHarness()
    claim, volume = make_claim("c0", volume="v0"), make_volume("v0", claim="c0")
    events = (claim, volume, make_capacity("x", "5Gi"), make_attachment("s", "n0", "v0"), pod("p", "n0", "c0"))
    for data in events:
        harness.apply("upsert", data)
    for data in events:
        harness.apply("remove", data)
    index, totals = harness.publisher.storage, harness.publisher.pods.totals
    held = (index._reserved, index._unbound, index._capacities, index._attachments, index._nodes_of_volume)
    assert not any((*held, totals.claims, totals.claims_on_node, totals.waiting_claims))


async def test_what_the_server_forbids_to_list_is_unknown_until_it_is_allowed() -> None:
    harness = StorageHarness()
    harness.apply("upsert", make_claim("c0", volume="v0"))
    status = SimpleNamespace(name="persistentvolumes", forbidden=True)
    harness.publisher.storage.watches.append(status)  # type: ignore[arg-type]  # only these two are read
    uses = pod_volumes(parse_pod(pod("new", "", "c0")))
    await harness.publisher.publish()
    blocker = harness.holder.view.fit_volumes("team", uses).blocker
    assert blocker is not None
    assert blocker.detail == "persistentvolumes cannot be read"
    status.forbidden = False
    harness.apply("upsert", make_volume("v0", claim="c0"))
    await harness.publisher.publish()
    assert harness.holder.view.fit_volumes("team", uses).blocker is None
