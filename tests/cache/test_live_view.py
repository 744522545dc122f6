"""The live view equals the view of the remaining objects, whatever the order of events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, make_node, make_pod
from tests.device_builders import NVIDIA, allocated, card, resource_claim, resource_slice
from webhook.cache.build_view import build_view
from webhook.cache.informers import empty_view
from webhook.cache.live_view import ViewPublisher
from webhook.cache.node_usage import NodeUsage
from webhook.cache.stored_objects import StoredPod
from webhook.kube.reflector import WatchStatus
from webhook.model import node_groups
from webhook.model.claims import EXTENDED_RESOURCE_CLAIM, DeviceClass, ResourceClaim, ResourceClaimTemplate
from webhook.model.cluster_view import AssumedPod, ClusterView
from webhook.model.dra.device_view import DeviceKind
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.filters.node_ports import ALL_INTERFACES, HostPort
from webhook.model.filters.pod_ties import ties_of
from webhook.model.node_groups import NodeOverlay
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pod_classes import PriorityClass, RuntimeClass
from webhook.model.pods import Pod, parse_pod
from webhook.model.pools import QuotaPool, QuotaReservation
from webhook.model.quantity import NANO
from webhook.model.quota_matching import CountedResource
from webhook.model.schedulers import SchedulerRules

HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
COUNTS = [CountedResource(GPU, "requests"), CountedResource("cpu", "requests"), CountedResource("memory", "limits")]
DEVICES = "gpus.deviceclass.resource.k8s.io/devices"
POOLS = [
    QuotaPool(lambda _name, _labels: True),
    QuotaPool(lambda _name, labels: labels.get("tier") == "x"),
    QuotaPool(lambda name, _labels: name == "team", lambda product: "A100" in product),
]
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
KINDS: dict[str, Any] = {
    "nodes": Node,
    "namespaces": Namespace,
    "limit_ranges": LimitRange,
    "quotas": ResourceQuota,
    "pods": StoredPod,
    "claim_templates": ResourceClaimTemplate,
    "device_classes": DeviceClass,
    "runtime_classes": RuntimeClass,
    "priority_classes": PriorityClass,
    "overlays": NodeOverlay,
    "resource_slices": ResourceSlice,
    "resource_claims": ResourceClaim,
}


def node(name: str, gpus: int = 4, **fields: Any) -> Json:
    """Return a node with whole GPUs, or without GPUs."""
    labels = fields.pop("labels", {}) | (A100 if gpus else {})
    return make_node(name, labels, **({GPU: gpus} if gpus else {})) | fields


def pod(
    name: str,
    on: str = "",
    gpus: int = 1,
    phase: str = "Running",
    resource: str = GPU,
    avoids: str = "",
    port: int = 0,
    app: str = "",
    nominated: str = "",
    named: str = "",
    made: str = "",
    *,
    terminating: bool = False,
    owner: str = "Job",
) -> Json:
    """Return a pod, on a node unless `on` is ""; it may exclude others from nodes by a label, or by a host port.

    It may use a claim by name, and the name of a claim that was made from a template may be known.
    """
    maker = make_pod(name).requests("cpu", "2").requests("memory", "8Gi")
    if gpus:
        maker.requests(resource, str(gpus))
    claims = [{"name": template, "resourceClaimTemplateName": template} for template in ("t", "u")[: 2 - gpus]]
    claims += [{"name": "n", "resourceClaimName": named}] if named else []
    statuses = [{"name": "t", "resourceClaimName": made}] if made else []
    if avoids:
        key, _, value = avoids.partition("=")
        term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {key: value}}}
        maker.spec(affinity={"podAntiAffinity": {REQUIRED: [term]}})
    if port:
        maker.container("web", ports=[{"hostPort": port}])
    if app:
        maker.label("app", app)
    if terminating:
        maker.data["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return maker.owned_by(owner, "owner").spec(nodeName=on, resourceClaims=claims).build() | {
        "status": {"phase": phase, "nominatedNodeName": nominated, "resourceClaimStatuses": statuses}
    }


def namespace(name: str, tier: str) -> Json:
    return {"metadata": {"name": name, "labels": {"tier": tier}}}


def limit_range(name: str, most: str) -> Json:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"limits": [{"type": "Pod", "max": {GPU: most}}]}}


def quota(name: str, used: str) -> Json:
    amounts = {"hard": {f"requests.{GPU}": "8"}, "used": {f"requests.{GPU}": used}}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"hard": amounts["hard"]}, "status": amounts}


def claim_template(name: str, count: int) -> Json:
    requests = [{"exactly": {"deviceClassName": "gpus", "count": count}}]
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"spec": {"devices": {"requests": requests}}}}


def device_class(name: str, extended: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"extendedResourceName": extended}}


def runtime_class(name: str, cpu: str) -> Json:
    return {"metadata": {"name": name}, "overhead": {"podFixed": {"cpu": cpu} if cpu else {}}}


def priority_class(name: str, default: bool) -> Json:
    return {"metadata": {"name": name}, "globalDefault": default}


def devices(name: str, on: str, cards: int) -> Json:
    """Return one of two slices of a pool; without cards it has the counters."""
    spec: Json = {"devices": [card(f"{name}-{number}") for number in range(cards)]}
    if not cards:
        spec = {"sharedCounters": [{"name": f"set-{name}", "counters": {"memory": {"value": "1"}}}]}
    return resource_slice(name, NVIDIA, "pool", 2, nodeName=on, **spec)


def claim(name: str, *held: tuple[str, int], by_scheduler: bool = False) -> Json:
    """Return a claim with devices; the scheduler may have made it for an extended resource."""
    found = resource_claim(name, *[allocated("pool", f"{slice_name}-{number}") for slice_name, number in held])
    found["metadata"]["annotations"] = {EXTENDED_RESOURCE_CLAIM: "true"} if by_scheduler else {}
    return found


class ViewHarness(NamedTuple):
    """A view publisher and its holder."""

    publisher: ViewPublisher
    holder: Any

    @property
    def view(self) -> ClusterView:
        view: ClusterView = self.holder.view
        return view

    def write(self, kind: str, action: str, *objects: Json) -> None:
        """Write as a reflector does: "upsert", "remove", or "list" of all objects."""
        devices: dict[str, Any] = {
            "resource_slices": self.publisher.devices.slices,
            "resource_claims": self.publisher.devices.claims,
        }
        writer = devices[kind] if kind in devices else getattr(self.publisher, kind)
        if action == "list":
            writer.begin()
        for data in objects:
            item = msgspec.convert(data, KINDS[kind])
            (writer.remove if action == "remove" else writer.upsert)(item)
        if action == "list":
            writer.swap()


def make_harness() -> ViewHarness:
    holder = SimpleNamespace(view=empty_view())
    return ViewHarness(ViewPublisher(holder, fleet_seconds=0.0), holder)


def view_facts(view: ClusterView, namespaces: Iterable[str] = ("team", "other")) -> dict[str, Any]:
    """Return the contents of a view by name, independent of the order of nodes."""
    fleet = view.fleet
    places = {each.name: 1 << i for i, each in enumerate(fleet.nodes)}
    sizes = [(0, 0), (63_000, 0), (61_000, 0), (1, 505 << 30), (1, 500 << 30)]
    return {
        "nodes": {each.name: each for each in fleet.nodes},
        "free": {
            (name, offer.resource, offer.product): view.free_units(offer, mask)
            for name, mask in places.items()
            for offer in fleet.offers
        },
        "room": {
            (name, resource, count, size): view.has_free_node(resource, count, mask, cpu_milli=size[0], memory=size[1])
            for name, mask in places.items()
            for resource in fleet.resources()
            for count in range(1, 6)
            for size in sizes
        },
        "together": {offer.resource: view.free_units(offer, fleet.all_nodes) for offer in fleet.offers},
        "namespaces": {name: view.namespace(name) for name in namespaces},
        "limits": {name: (view.limit_ranges(name), view.limited_resources(name)) for name in namespaces},
        "quotas": {name: view.quotas(name) for name in namespaces},
        "claims": {name: (view.claim_context(name), view.claim_users(name, DEVICES)) for name in namespaces},
        "held": {
            (name, quota.metadata.name, what): view.quota_users(quota, name, what)
            for name in namespaces
            for quota in view.quotas(name)
            for what in COUNTS
        },
        "units": {
            (name, quota.metadata.name, resource, most): view.holds_at_most(name, resource, quota, most)
            for name in namespaces
            for quota in view.quotas(name)
            for resource in (GPU, SMALL)
            for most in range(5)
        },
        "excluded": {
            (name, label): {each.name for i, each in enumerate(fleet.nodes) if excluded >> i & 1}
            for name in namespaces
            for label in (("app", "a"), ("app", "b"))
            for excluded in [view.exclusion_by_pods(name, (label,)).nodes]
        },
        "waiting": {label: view.exclusion_by_pods("team", (("app", label),)).waiting for label in "ab"},
        "tied": {(label, kind): _tied_nodes(view, label, kind) for label in "ab" for kind in ("near", "spread")},
        "ports": {
            number: {each.name for i, each in enumerate(fleet.nodes) if in_use >> i & 1}
            for number in (80, 81)
            for in_use in [view.nodes_with_ports_in_use((HostPort(number, "TCP", ALL_INTERFACES),))]
        },
        "pod_classes": view.pod_classes,
        "beside_lasting": view.free_beside_lasting,
        "beside_devices": {fleet.nodes[i].name: free for i, free in view.free_beside_devices.items()},
        "pending_devices": view.devices.pending,
        "pools_of_nodes": {
            name: view.devices.pools.pools_of_node(bit.bit_length() - 1) for name, bit in places.items()
        },
        "allocated": view.devices.allocated,
        "device_classes": (view.devices.classes, view.devices.class_by_resource),
        "resource_claims": {
            (name, claim.metadata.name): (claim.spec, claim.status)
            for name in namespaces
            for claim in view.namespace_claims(name).claims.values()
        },
        "pools": [(view.pool_usage(pool), view.pool_holders(pool)) for pool in POOLS],
    }


def _tied_nodes(view: ClusterView, label: str, kind: str) -> Any:
    """Return the nodes that affinity to pods with a label, or spread of them, leaves a new pod, by name."""
    selected = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": label}}}
    near, even = {"podAffinity": {REQUIRED: [selected]}, "podAntiAffinity": {REQUIRED: [selected]}}, []
    if kind == "spread":
        near, even = {}, [{**selected, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    probe = parse_pod(make_pod().label("app", "a").spec(affinity=near, topologySpreadConstraints=even).build())
    [found] = view.find_tied_nodes(ties_of(probe), (), (view.fleet.all_nodes,), view.fleet.all_nodes)
    assert found is not None
    masks = (found.matching, found.excluded, found.allowed)
    names = [{node.name for i, node in enumerate(view.fleet.nodes) if mask >> i & 1} for mask in masks]
    return names, found.is_first, found.on_nodes, found.blocked


def snapshot_view(objects: dict[str, dict[str, Json]]) -> ClusterView:
    """Return the view of a snapshot with these objects."""
    found = {kind: [msgspec.convert(data, KINDS[kind]) for data in objects[kind].values()] for kind in KINDS}
    slices, claims = found.pop("resource_slices"), found.pop("resource_claims")
    view = build_view(*found.values(), resource_slices=slices, resource_claims=claims)
    complete = view._copy_with(complete=True)
    assert isinstance(complete, ClusterView)
    return complete


NODES = st.builds(node, st.sampled_from("abc"), st.sampled_from([4, 2, 0]))
PODS = st.builds(
    pod,
    st.sampled_from(["p1", "p2", "p3", "p4"]),
    st.sampled_from(["a", "b", "c", "a", "b", "gone", ""]),
    st.integers(0, 2),
    st.sampled_from(["Running", "Running", "Pending", "Succeeded", "Failed"]),
    st.sampled_from([GPU, GPU, SMALL]),
    st.sampled_from(["", "", "app=a", "app=b"]),
    st.sampled_from([0, 0, 80, 81]),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "", "a", "b", "gone"]),
    st.sampled_from(["", "", "x", "y"]),
    st.sampled_from(["", "", "x", "y"]),
    terminating=st.booleans(),
    owner=st.sampled_from(["Job", "Job", "DaemonSet"]),
)
OBJECTS = {
    "nodes": NODES,
    "pods": PODS,
    "namespaces": st.builds(namespace, st.sampled_from(["team", "other"]), st.sampled_from(["x", "y"])),
    "limit_ranges": st.builds(limit_range, st.sampled_from("mn"), st.sampled_from(["1", "2"])),
    "quotas": st.builds(quota, st.sampled_from("qr"), st.sampled_from(["0", "3"])),
    "claim_templates": st.builds(claim_template, st.sampled_from("tu"), st.integers(1, 2)),
    "device_classes": st.builds(device_class, st.sampled_from(["gpus", "more"]), st.sampled_from(["", "x.com/gpu"])),
    "runtime_classes": st.builds(runtime_class, st.sampled_from(["kata", "runc"]), st.sampled_from(["", "1", "2"])),
    "priority_classes": st.builds(priority_class, st.sampled_from(["low", "high"]), st.booleans()),
    "resource_slices": st.builds(devices, st.sampled_from("st"), st.sampled_from("ab"), st.integers(0, 2)),
    "resource_claims": st.builds(
        lambda name, held, made: claim(name, *held, by_scheduler=made),
        st.sampled_from("xyz"),
        st.lists(st.tuples(st.sampled_from("st"), st.integers(0, 2)), max_size=2),
        st.booleans(),
    ),
}
PUBLISH = st.just(("publish",))
PUTS = {
    kind: st.tuples(st.just(kind), st.sampled_from(["upsert", "upsert", "remove"]), OBJECTS[kind]) for kind in OBJECTS
}
LISTS = {kind: st.tuples(st.just(kind), st.just("list"), st.lists(OBJECTS[kind], max_size=4)) for kind in OBJECTS}
OFTEN = [PUBLISH] * 4 + [PUTS["pods"]] * 12
"""Pods change far more often than anything else; views are published in between."""
STEPS = st.lists(st.one_of(*OFTEN, *PUTS.values(), *LISTS.values()), max_size=25)
START = st.lists(NODES, min_size=1, max_size=4)


@settings(max_examples=150)
@given(START, STEPS)
def test_any_events_lead_to_the_view_of_the_remaining_objects(start: list[Json], steps: list[tuple[Any, ...]]) -> None:
    objects: dict[str, dict[str, Json]] = {kind: {} for kind in KINDS}

    async def apply_steps() -> ClusterView:
        harness = make_harness()
        harness.write("nodes", "list", *start)
        _apply_to_objects(objects["nodes"], "list", start)
        await harness.publisher.publish()
        for step in steps:
            if step == ("publish",):
                await harness.publisher.publish()
                continue
            kind, action, what = step
            _apply_to_objects(objects[kind], action, what)
            harness.write(kind, action, *(what if action == "list" else [what]))
        await harness.publisher.publish()
        return harness.view

    assert view_facts(asyncio.run(apply_steps())) == view_facts(snapshot_view(objects))


def _apply_to_objects(objects_of_kind: dict[str, Json], action: str, what: Any) -> None:
    """Apply an event to the objects of the API server."""
    if action == "list":
        objects_of_kind.clear()
        objects_of_kind.update({each["metadata"]["name"]: each for each in what})
    elif action == "upsert":
        objects_of_kind[what["metadata"]["name"]] = what
    else:
        objects_of_kind.pop(what["metadata"]["name"], None)


async def test_pod_arrival_and_deletion_change_free_resources_of_its_node() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"), node("b"))
    await harness.publisher.publish()
    (offer,) = harness.view.fleet.offers
    before = harness.view
    harness.write("pods", "upsert", pod("p", on="a", gpus=3))
    await harness.publisher.publish()
    assert (
        before.free_units(offer, 0b01),
        harness.view.free_units(offer, 0b01),
        harness.view.free_units(offer, 0b10),
    ) == (
        4,
        1,
        4,
    )
    assert harness.view.fleet is before.fleet, "the nodes were not indexed again"
    harness.write("pods", "upsert", pod("p", on="a", gpus=3, phase="Succeeded"))
    await harness.publisher.publish()
    assert harness.view.free_units(offer, 0b01) == 4


async def test_the_rules_of_schedulers_remain_in_every_view() -> None:
    rules = {"default-scheduler": SchedulerRules(unmodeled="plugin Capacity")}
    holder = SimpleNamespace(view=empty_view().with_schedulers(rules))
    harness = ViewHarness(ViewPublisher(holder, fleet_seconds=0.0), holder)
    for change in (node("a"), node("b")):
        harness.write("nodes", "upsert", change)
        await harness.publisher.publish()
        assert harness.view.schedulers is rules


async def test_node_groups_are_found_before_a_review_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make_harness()
    group = {"eks.amazonaws.com/nodegroup": "g"}
    overlay = {"metadata": {"name": "slices"}, "spec": {"capacity": {"nvidia.com/mig-1g.10gb": "7"}}}
    for kind, change in (
        ("nodes", node("a", labels=group)),
        ("nodes", node("b", labels=group)),
        ("overlays", overlay),
    ):
        harness.write(kind, "upsert", change)
        await harness.publisher.publish()
        with monkeypatch.context() as patches:
            patches.setattr(node_groups, "find_node_groups", None)
            assert [each.name for each in harness.view.view_new_nodes().fleet.nodes] == ["new node of g"]
            assert harness.view.view_new_nodes(stopped=True).fleet.nodes == ()


async def test_a_new_node_of_a_group_has_what_daemon_sets_leave() -> None:
    harness = make_harness()
    harness.write("nodes", "upsert", node("a", labels={"eks.amazonaws.com/nodegroup": "g"}))
    await harness.publisher.publish()
    daemon = make_pod("d").owned_by("DaemonSet", "d").requests("cpu", "32").spec(nodeName="a").build()
    fits = []
    for operation in ("remove", "upsert", "remove"):
        harness.write("pods", operation, daemon)
        await harness.publisher.publish()
        fits.append(harness.view.view_new_nodes().has_free_node(GPU, 1, 1, 40_000, 0))
    assert fits == [True, False, True]


async def test_what_is_written_about_groups_stays_the_same_object_while_only_nodes_change() -> None:
    """Cached decisions are valid for one such object."""
    harness = make_harness()
    harness.write("overlays", "upsert", {"metadata": {"name": "slices"}, "spec": {}})
    harness.write("nodes", "upsert", node("a"))
    await harness.publisher.publish()
    before = harness.view.group_sources
    assert len(before.overlays) == 1
    harness.write("nodes", "upsert", node("b"))
    await harness.publisher.publish()
    assert harness.view.group_sources is before


async def test_a_nominated_pod_takes_its_node_until_it_is_bound_to_another_one() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"), node("b"))
    await harness.publisher.publish()
    for change, free in (
        (pod("p", gpus=0, phase="Pending", nominated="a"), (False, True)),
        (pod("p", gpus=0, phase="Pending", nominated="b"), (True, False)),
        (pod("p", on="a", gpus=0, nominated="b"), (False, True)),
        (pod("p", on="a", gpus=0, phase="Failed", nominated="b"), (True, True)),
    ):
        harness.write("pods", "upsert", change)
        await harness.publisher.publish()
        assert tuple(harness.view.has_free_node(GPU, 1, 1 << i, 63_000, 0) for i in range(2)) == free


async def test_a_node_takes_as_many_pods_as_its_limit_leaves_whatever_they_request() -> None:
    harness = make_harness()
    harness.write("nodes", "list", make_node("a", {}, **{GPU: 8, "pods": 3}))
    harness.write("namespaces", "list")
    harness.write("pods", "list", *(pod(f"cpu-{number}", "a", gpus=0) for number in range(2)))
    await harness.publisher.publish()
    taken = AssumedPod("uid", GPU, 1, 1, 10.0)
    assert harness.view.has_free_node(GPU, 1, 1, 0, 0)
    assert not harness.view.with_assumed(taken, 0.0).has_free_node(GPU, 1, 1, 0, 0), "seven GPUs, but no third pod"

    harness.write("pods", "remove", pod("cpu-1", "a", gpus=0))
    await harness.publisher.publish()
    assert harness.view.with_assumed(taken, 0.0).has_free_node(GPU, 1, 1, 0, 0)


def test_resource_names_of_deleted_pods_are_forgotten_while_other_pods_are_on_the_node() -> None:
    harness, before = make_harness(), {"pods": 1, "cpu": 2 * NANO, "memory": (8 << 30) * NANO}
    harness.write("pods", "upsert", pod("stays", "a", gpus=0))
    for number in range(20):
        stranger = make_pod("s").requests(f"example.com/r{number}", "1").spec(nodeName="a").build()
        harness.write("pods", "upsert", stranger)
        assert harness.publisher.pods.on_node("a")[f"example.com/r{number}"] == NANO
        harness.write("pods", "remove", stranger)
    assert harness.publisher.pods.on_node("a") == before


async def test_waiting_pod_counts_until_it_goes_or_its_gate_is_known() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"))
    await harness.publisher.publish()
    (offer,) = harness.view.fleet.offers
    free = []
    for step in (pod("p", gpus=2), pod("q", gpus=2) | gated(), pod("q", gpus=2), pod("q", gpus=2, phase="Failed")):
        harness.write("pods", "upsert", step)
        await harness.publisher.publish()
        free.append(harness.view.free_units(offer, 0b1))
    harness.write("nodes", "upsert", node("a", labels={"changed": "yes"}))
    await harness.publisher.publish()
    free.append(harness.view.free_units(offer, 0b1))
    harness.write("pods", "list")
    await harness.publisher.publish()
    assert [*free, harness.view.free_units(offer, 0b1)] == [2, 2, 0, 2, 2, 4]


def gated() -> Json:
    return {"spec": pod("q", gpus=2)["spec"] | {"schedulingGates": [{"name": "wait"}]}}


async def test_replicas_are_the_webhooks_pods_and_no_fewer_than_configured() -> None:
    holder = SimpleNamespace(view=empty_view().with_replicas(2))
    harness = ViewHarness(ViewPublisher(holder, "system", fleet_seconds=0.0), holder)
    harness.write("nodes", "list", node("a"))
    counts = []
    own = [replica(f"rightslice-{number}") for number in range(4)]
    for action, pods in (
        ("list", own),
        ("upsert", [replica("forged", "team")]),
        ("remove", own[:1]),
        ("list", own[:1]),
    ):
        harness.write("pods", action, *pods)
        await harness.publisher.publish()
        counts.append(harness.view.replicas)
    assert counts == [4, 4, 3, 2]


def replica(name: str, namespace: str = "system") -> Json:
    maker = make_pod(name).namespace(namespace).label("app.kubernetes.io/name", "rightslice")
    return maker.label("app.kubernetes.io/component", "webhook").build()


async def test_incomplete_list_is_not_visible() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"))
    harness.write("pods", "list", pod("p", on="a", gpus=3))
    await harness.publisher.publish()
    harness.publisher.pods.begin()
    harness.publisher.nodes.begin()
    await harness.publisher.publish()
    (offer,) = harness.view.fleet.offers
    assert harness.view.free_units(offer, 0b1) == 1
    harness.publisher.nodes.upsert(msgspec.convert(node("a"), Node))
    harness.publisher.nodes.swap()
    harness.publisher.pods.swap()
    await harness.publisher.publish()
    assert harness.view.free_units(offer, 0b1) == 4


async def test_node_update_without_relevant_change_does_not_rebuild_the_view() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"))
    await harness.publisher.publish()
    fleet = harness.view.fleet
    harness.write("nodes", "upsert", node("a"))
    harness.write("nodes", "list", node("a"))
    harness.write("nodes", "upsert", annotated(node("a"), "csi.volume.kubernetes.io/nodeid", "updated at 12:00"))
    await harness.publisher.publish()
    assert harness.view.fleet is fleet


def assumed(uid: str, pod_name: str, count: int = 1) -> AssumedPod:
    return AssumedPod(uid, GPU, 0b11, count, 1e12, ("team", pod_name))


def annotated(data: Json, key: str, value: str) -> Json:
    return data | {"metadata": data["metadata"] | {"annotations": {key: value}, "resourceVersion": "2"}}


def generated(name: str, prefix: str, on: str) -> Json:
    data = pod(name, on=on)
    return data | {"metadata": data["metadata"] | {"generateName": prefix}}


async def test_assumed_pod_counts_once_when_it_appears() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"), node("b"))
    await harness.publisher.publish()
    (offer,) = harness.view.fleet.offers
    for each in (assumed("1", "named"), assumed("2", "train-*"), assumed("3", "train-*")):
        harness.holder.view = harness.view.with_assumed(each, 0.0)
    assert harness.view.free_units(offer, 0b11) == 8 - 3
    harness.write("pods", "upsert", pod("named", on=""), generated("train-x1", "train-", on=""))
    await harness.publisher.publish()
    assert harness.view.free_units(offer, 0b11) == 8 - 3, "two wait for a node, one is assumed"
    assert [each.key for each in harness.view.assumed_pods] == ["3"]
    harness.write("pods", "upsert", pod("named", on="a"), generated("train-x1", "train-", on="b"))
    await harness.publisher.publish()
    assert harness.view.free_units(offer, 0b11) == 8 - 3, "two are bound, one is assumed"
    assert [each.key for each in harness.view.assumed_pods] == ["3"]
    harness.write("pods", "list", pod("named", on="a"), generated("train-x1", "train-", on="b"))
    await harness.publisher.publish()
    assert [each.key for each in harness.view.assumed_pods] == ["3"], (
        "a list does not release pods that were bound before"
    )


@pytest.mark.parametrize(("made", "left"), [("2026-11-22T10:00:00Z", ["2"]), ("2026-11-22T12:00:01Z", [])])
async def test_older_pending_sibling_does_not_release_a_newly_assumed_pod(made: str, left: list[str]) -> None:
    harness, admitted = make_harness(), datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
    harness.write("nodes", "list", node("a"), node("b"))
    await harness.publisher.publish()
    harness.holder.view = harness.view.with_assumed(
        msgspec.structs.replace(assumed("2", "train-*"), admitted_at=admitted), 0.0
    )
    sibling = generated("train-x1", "train-", on="a")
    sibling["metadata"]["creationTimestamp"] = made
    harness.write("pods", "upsert", sibling)
    await harness.publisher.publish()
    assert [each.key for each in harness.view.assumed_pods] == left


async def test_admitted_pod_counts_once_from_admission_to_deletion() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"))
    harness.write("namespaces", "list", namespace("team", "x"))
    await harness.publisher.publish()
    (whole_cluster, *_) = POOLS
    harness.holder.view = harness.view.with_reservation(QuotaReservation("u-1", "team", (((), 2000),), 0.0))
    assert harness.view.pool_usage(whole_cluster) == 2000
    waiting = pod("p", gpus=2)
    waiting["metadata"]["uid"] = "u-1"
    harness.write("pods", "upsert", waiting)
    await harness.publisher.publish()
    assert (harness.view.pool_usage(whole_cluster), harness.view.has_reserved("u-1")) == (2000, False), (
        "known, without a node yet"
    )
    harness.write("pods", "upsert", waiting | {"spec": waiting["spec"] | {"nodeName": "a"}})
    await harness.publisher.publish()
    assert harness.view.pool_usage(whole_cluster) == 2000
    harness.write("pods", "remove", waiting)
    await harness.publisher.publish()
    assert harness.view.pool_usage(whole_cluster) == 0


async def test_a_name_that_is_created_and_deleted_1000_times_leaves_nothing_behind() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"))
    harness.write("namespaces", "list", namespace("team", "x"))
    await harness.publisher.publish()
    (offer,), (whole_cluster, *_) = harness.view.fleet.offers, POOLS
    for number in range(1000):
        uid = f"u-{number}"
        reservation = QuotaReservation(uid, "team", (((), 1000),), 0.0)
        harness.holder.view = harness.view.with_assumed(assumed(uid, "p"), 0.0).with_reservation(reservation)
        created = pod("p", on="a")
        created["metadata"]["uid"] = uid
        harness.write("pods", "upsert", created)
        if number % 3:
            await harness.publisher.publish()
        harness.write("pods", "remove", created)
        await harness.publisher.publish()

    assert harness.view.assumed_pods == ()
    assert harness.view.free_units(offer, 0b1) == 4
    assert harness.view.pool_usage(whole_cluster) == 0


async def test_published_view_does_not_change() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"))
    harness.write("pods", "upsert", pod("p", on="a"))
    await harness.publisher.publish()
    before, (whole_cluster, *_) = harness.view, POOLS
    harness.write("pods", "upsert", pod("q", on="a"))
    assert before.pool_usage(whole_cluster) == 1000
    await harness.publisher.publish()
    assert (before.pool_usage(whole_cluster), harness.view.pool_usage(whole_cluster)) == (1000, 2000)


async def test_complete_list_releases_assumed_pods_once() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"), node("b"))
    await harness.publisher.publish()
    for uid in "12":
        harness.holder.view = harness.view.with_assumed(assumed(uid, "train-*"), 0.0)
    bound_pod = msgspec.convert(generated("train-x1", "train-", on="a"), Pod)
    for _ in range(3):  # incomplete lists, and one that is complete
        harness.publisher.pods.begin()
        harness.publisher.pods.upsert(bound_pod)
        harness.publisher.pods.upsert(bound_pod)
        harness.write("namespaces", "upsert", namespace("team", "x"))
        await harness.publisher.publish()
        assert [each.key for each in harness.view.assumed_pods] == ["1", "2"]
    harness.publisher.pods.swap()
    await harness.publisher.publish()
    (offer,) = harness.view.fleet.offers
    assert [each.key for each in harness.view.assumed_pods] == ["2"]
    assert harness.view.free_units(offer, 0b11) == 8 - 2, "one is bound, one is assumed"


async def test_pod_of_a_list_that_ends_while_a_view_is_built_stays_reserved_until_the_next() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"))
    harness.write("namespaces", "list", namespace("team", "x"))
    await harness.publisher.publish()
    (whole_cluster, *_) = POOLS
    harness.holder.view = harness.view.with_reservation(QuotaReservation("u-1", "team", (((), 1000),), 0.0))
    listed = pod("p", on="a")
    listed["metadata"]["uid"] = "u-1"
    harness.write("nodes", "upsert", node("b"))
    building = asyncio.create_task(harness.publisher.publish())
    await asyncio.sleep(0)
    harness.write("pods", "list", listed)
    await building
    assert harness.view.pool_usage(whole_cluster) == 1000
    await harness.publisher.publish()
    assert (harness.view.pool_usage(whole_cluster), harness.view.has_reserved("u-1")) == (1000, False)


async def test_view_that_failed_to_build_is_built_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"))
    await harness.publisher.publish()
    with monkeypatch.context() as patched:
        patched.setattr("webhook.cache.live_view.build_live_view", lambda *_: 1 // 0)
        harness.write("nodes", "upsert", node("b"))
        harness.write("pods", "list", pod("p", on="a", gpus=3))
        harness.write("namespaces", "upsert", namespace("team", "x"))
        with pytest.raises(ZeroDivisionError):
            await harness.publisher.publish()
    await harness.publisher.publish()
    assert {each.name for each in harness.view.fleet.nodes} == {"a", "b"}
    (offer,) = harness.view.fleet.offers
    assert harness.view.free_units(offer, harness.view.fleet.all_nodes) == 8 - 3
    assert harness.view.namespace("team")


async def test_node_that_changes_while_a_view_fails_to_build_is_in_the_next_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"))
    await harness.publisher.publish()
    with monkeypatch.context() as patched:
        patched.setattr("webhook.cache.live_view.build_live_view", lambda *_: 1 // 0)
        harness.write("pods", "list")
        began = asyncio.create_task(harness.publisher.publish())
        await asyncio.sleep(0)
        harness.write("nodes", "upsert", node("b"))
        with pytest.raises(ZeroDivisionError):
            await began
    await harness.publisher.publish()
    assert {each.name for each in harness.view.fleet.nodes} == {"a", "b"}


@pytest.mark.parametrize("step", ["unreserved_on_node", "with_quota_status"])
@pytest.mark.parametrize("during", ["the first view", "an index", "neither"])
async def test_changes_that_failed_to_apply_are_applied_next_time(
    monkeypatch: pytest.MonkeyPatch, step: str, during: str
) -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("a"), node("b"))
    if during != "the first view":
        await harness.publisher.publish()
        harness.holder.view = harness.view.with_assumed(assumed("1", "p"), 0.0)
    if during == "an index":
        harness.write("nodes", "upsert", node("c"))
    with monkeypatch.context() as patched:
        patched.setattr(f"webhook.cache.live_view.{step}", lambda *_: 1 // 0)
        began = asyncio.create_task(harness.publisher.publish())
        await asyncio.sleep(0)
        harness.write("pods", "upsert", pod("p", on="a"))
        harness.write("namespaces", "upsert", namespace("team", "x"))
        harness.write("quotas", "upsert", quota("q", "0"))
        with pytest.raises(ZeroDivisionError):
            await (harness.publisher.publish() if began.done() else began)
    await harness.publisher.publish()
    (offer,) = harness.view.fleet.offers
    assert (harness.view.is_stale, len(harness.view.fleet.nodes)) == (False, 3 if during == "an index" else 2)
    assert (harness.view.free_units(offer, 0b11), harness.view.assumed_pods) == (8 - 1, ())
    assert harness.view.namespace("team")
    assert harness.view.quotas("team")


async def test_assumed_pods_keep_their_nodes_when_nodes_change() -> None:
    harness = make_harness()
    harness.write("nodes", "list", node("b"), node("d"))
    await harness.publisher.publish()
    (offer,) = harness.view.fleet.offers
    harness.holder.view = harness.view.with_assumed(AssumedPod("1", GPU, offer.nodes & 0b10, 2, 1e12), 0.0)
    harness.write("nodes", "list", node("a"), node("c"), node("d"))
    await harness.publisher.publish()
    (offer,) = harness.view.fleet.offers
    assert [harness.view.free_units(offer, 1 << i) for i in range(3)] == [4, 4, 2]


async def test_stale_view_stays_stale_in_new_views() -> None:
    harness = make_harness()
    await harness.publisher.publish()
    assert not harness.view.is_stale
    harness.holder.view = harness.view.with_staleness(stale=True)
    harness.write("nodes", "list", node("a"))
    await harness.publisher.publish()
    assert harness.view.is_stale
    assert len(harness.view.fleet.nodes) == 1


async def test_views_are_published_after_sync() -> None:
    harness = make_harness()
    synced = asyncio.Event()
    task = asyncio.create_task(harness.publisher.run(synced.is_set))
    try:
        harness.write("nodes", "list", node("a"))
        assert not harness.publisher.has_view
        synced.set()
        async with asyncio.timeout(60):
            while not harness.view.fleet.nodes:
                await asyncio.sleep(0.01)
            harness.write("nodes", "upsert", node("b"))
            while len(harness.view.fleet.nodes) < 2:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_namespaces_without_pods_are_forgotten() -> None:
    """They are removed without a new list of all pods, which may never happen."""
    usage = NodeUsage()
    for number in range(5):
        one = msgspec.convert({"metadata": {"name": "p", "namespace": f"ci-{number}"}, "spec": {}}, Pod)
        usage.upsert(one)
        usage.summaries([f"ci-{number}"])
        usage.remove(one)
        usage.summaries([f"ci-{number}"])

    assert (usage.totals.summaries, usage.totals.shared_namespaces) == ({}, set())


def test_devices_whose_claims_may_not_be_read_are_not_known_to_be_free() -> None:
    harness = make_harness()
    templates = WatchStatus("resourceclaimtemplates", synced=True)
    harness.publisher.devices.watches += [templates, WatchStatus("resourceclaims", synced=True, forbidden=True)]
    harness.write("nodes", "list", node("a", 0))
    harness.write("resource_slices", "list", devices("s", "a", 1))
    asyncio.run(harness.publisher.publish())
    assert harness.view.devices.pools
    assert not harness.view.devices.knows_claims
    assert harness.view.devices.unlisted == {DeviceKind.CLAIM}
    templates.forbidden = True
    harness.write("nodes", "upsert", node("b", 0))
    asyncio.run(harness.publisher.publish())
    assert harness.view.devices.unlisted == {DeviceKind.CLAIM, DeviceKind.TEMPLATE}
