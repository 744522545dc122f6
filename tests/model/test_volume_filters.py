"""The volume plugins of kube-scheduler: which nodes they allow a pod, and what other pods may take before."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

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
from webhook.model.cluster_view import ClusterView
from webhook.model.filters.volume_rejections import VolumeProblem
from webhook.model.filters.volumes import VolumeFit, filter_volumes, fit_volumes
from webhook.model.node_masks import bit_positions
from webhook.model.pod_volumes import pod_volumes
from webhook.model.pods import parse_pod

NODES = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}
EVERYWHERE = set(NODES)
NOWHERE: set[str] = set()


def zoned_nodes(**labels: str) -> list[Json]:
    """Return the nodes, each with its zone and one GPU."""
    marks = {name: {"kubernetes.io/hostname": name, ZONE: zone} | labels for name, zone in NODES.items()}
    return [make_node(name, found, **{"nvidia.com/gpu": 1}) for name, found in marks.items()]


def pod_with(*volumes: Json, name: str = "pod", **spec: Any) -> Json:
    """Return a pod with volumes."""
    return make_pod(name).spec(volumes=list(volumes), **spec).build()


def pod_of_stateful_set(name: str, claim: str) -> Json:
    """Return the first pod of a StatefulSet."""
    pod = pod_with(claim_volume(claim), name=f"{name}-0")
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "controller": True}
    return pod | {"metadata": pod["metadata"] | {"ownerReferences": [owner]}}


def on_node(node: str, *claims: str) -> Json:
    """Return a pod on a node that uses claims."""
    return pod_with(*map(claim_volume, claims), name=f"on-{node}-{'-'.join(claims)}", nodeName=node)


def names_of(mask: int, view: ClusterView) -> set[str]:
    """Return the names of the nodes of a mask."""
    return {view.fleet.nodes[position].name for position in bit_positions(mask & view.fleet.all_nodes)}


def allowed_now(view: ClusterView, pod: Json) -> tuple[set[str], set[str]]:
    """Return the nodes that the scheduler's plugins allow now, and their messages about the others."""
    rejections = filter_volumes("team", pod_volumes(parse_pod(pod)), view.storage)
    allowed = view.fleet.all_nodes
    for each in rejections:
        allowed &= ~each.nodes
    return names_of(allowed, view), {each.message for each in rejections}


def fit_of(view: ClusterView, pod: Json) -> VolumeFit:
    """Return the nodes that remain for a pod whatever other pods take."""
    return view.fit_volumes("team", pod_volumes(parse_pod(pod)))


class Case(NamedTuple):
    objects: tuple[Json, ...]
    pod: Json
    nodes: set[str]
    message: str = ""


ONE = pod_with(claim_volume("data"))
AFFINITY = "node(s) didn't match PersistentVolume's node affinity"
BINDING = "node(s) didn't find available persistent volumes to bind"
SPACE = "node(s) did not have enough free storage"
ZONES = "node(s) had no available volume zone"
COUNT = "node(s) exceed max volume count"
IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"
DELETED = {"name": "data", "namespace": "team", "deletionTimestamp": "2026-06-01T00:00:00Z"}
SELECTED = {"volume.kubernetes.io/selected-node": "b1"}
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
EBS: dict[str, Any] = {"awsElasticBlockStore": {"volumeID": "aws://a/vol-1"}, "csi": None}
MIGRATED: dict[str, Any] = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}

CASES = {
    "a bound volume is used where its node affinity allows": Case(
        (make_claim("data", volume="v"), make_volume("v", zones=("a",))), ONE, {"a1", "a2"}, AFFINITY
    ),
    "a bound volume without node affinity is used everywhere": Case(
        (make_claim("data", volume="v"), make_volume("v")), ONE, EVERYWHERE
    ),
    "a node is named by its label, never by its name": Case(
        (
            make_claim("data", volume="v"),
            make_volume(
                "v",
                nodeAffinity={
                    "required": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a1"]}]}
                        ]
                    }
                },
            ),
        ),
        ONE,
        NOWHERE,
        AFFINITY,
    ),
    "the labels of a volume name its zones": Case(
        (make_claim("data", volume="v"), make_volume("v", labels={ZONE: "a__ b"})), ONE, {"a1", "a2", "b1"}, ZONES
    ),
    "a label of zones with an empty one does not count": Case(
        (make_claim("data", volume="v"), make_volume("v", labels={ZONE: "a__"})), ONE, EVERYWHERE
    ),
    "the old label of a volume is compared with the new one of nodes": Case(
        (
            make_claim("data", volume="v"),
            make_volume("v", labels={"failure-domain.beta.kubernetes.io/zone": "b"}),
        ),
        ONE,
        {"b1"},
        ZONES,
    ),
    "a claim that does not exist": Case((make_class(),), ONE, NOWHERE, 'persistentvolumeclaim "data" not found'),
    "a claim that is being deleted": Case(
        (
            make_claim("data", volume="v") | {"metadata": DELETED},
            make_volume("v"),
        ),
        ONE,
        NOWHERE,
        'persistentvolumeclaim "data" is being deleted',
    ),
    "a volume that does not exist": Case(
        (make_claim("data", volume="v"),),
        ONE,
        NOWHERE,
        "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
    ),
    "a claim of a class that binds immediately is not bound yet": Case(
        (make_claim("data"), make_class(mode="Immediate")), ONE, NOWHERE, IMMEDIATE
    ),
    "a claim whose binding is not complete": Case(
        (
            make_claim("data") | {"spec": {"volumeName": "v", "storageClassName": "fast"}},
            make_volume("v"),
            make_class(),
        ),
        ONE,
        NOWHERE,
        IMMEDIATE,
    ),
    "a claim without class is not bound yet": Case((make_claim("data", None),), ONE, NOWHERE, IMMEDIATE),
    "a volume is provisioned in the topologies of its class": Case(
        (make_claim("data"), make_class(zones=("b", "c"))), ONE, {"b1", "c1"}, BINDING
    ),
    "a volume is provisioned everywhere": Case((make_claim("data"), make_class()), ONE, EVERYWHERE),
    "a volume is provisioned on the node that was selected": Case(
        (make_claim("data", annotations=SELECTED), make_class()),
        ONE,
        {"b1"},
        BINDING,
    ),
    "a class without provisioner has no volume": Case(
        (make_claim("data"), make_class(provisioner="kubernetes.io/no-provisioner")), ONE, NOWHERE, BINDING
    ),
    "a class without provisioner has volumes on some nodes": Case(
        (
            make_claim("data"),
            make_class(provisioner="kubernetes.io/no-provisioner"),
            make_volume("v1", nodes=("a1",)),
            make_volume("v2", nodes=("b1",), size="5Gi"),
            make_volume("v3", nodes=("c1",), phase="Released"),
            make_volume("v4", "slow", nodes=("a2",)),
        ),
        ONE,
        {"a1"},
        BINDING,
    ),
    "a volume that is reserved for the claim is the only one": Case(
        (
            make_claim("data"),
            make_class(provisioner="kubernetes.io/no-provisioner"),
            make_volume("v1", nodes=("a1",)),
            make_volume("v2", nodes=("b1",), claim="data", phase="Available"),
        ),
        ONE,
        {"b1"},
        BINDING,
    ),
    "a volume that is reserved for another claim": Case(
        (
            make_claim("data"),
            make_class(provisioner="kubernetes.io/no-provisioner"),
            make_volume("v1", nodes=("a1",), claim="other", phase="Available"),
        ),
        ONE,
        NOWHERE,
        BINDING,
    ),
    "a volume without the access mode, with another mode, or that is not selected": Case(
        (
            make_claim("data", selector={"matchLabels": {"tier": "gold"}}),
            make_class(provisioner="kubernetes.io/no-provisioner"),
            make_volume("v1", nodes=("a1",), accessModes=["ReadOnlyMany"], labels={"tier": "gold"}),
            make_volume("v2", nodes=("a2",), volumeMode="Block", labels={"tier": "gold"}),
            make_volume("v3", nodes=("b1",)),
            make_volume("v4", nodes=("c1",), labels={"tier": "gold"}),
        ),
        ONE,
        {"c1"},
        BINDING,
    ),
    "two claims need two volumes": Case(
        (
            make_claim("data"),
            make_claim("more", size="100Gi"),
            make_class(provisioner="kubernetes.io/no-provisioner"),
            make_volume("v1", nodes=("a1",), size="100Gi"),
            make_volume("v2", nodes=("b1",), size="100Gi"),
            make_volume("v3", nodes=("b1",), size="20Gi"),
        ),
        pod_with(claim_volume("data"), claim_volume("more")),
        {"b1"},
        BINDING,
    ),
    "an unbound claim that is mounted twice needs two volumes": Case(
        (
            make_claim("data"),
            make_class(provisioner="kubernetes.io/no-provisioner"),
            make_volume("v1", nodes=("a1",)),
            make_volume("v2", nodes=("b1",)),
            make_volume("v3", nodes=("b1",)),
        ),
        pod_with(claim_volume("data"), claim_volume("data") | {"name": "again"}),
        {"b1"},
        BINDING,
    ),
    "a driver publishes where it has room": Case(
        (
            make_claim("data", size="50Gi"),
            make_class(),
            make_driver(),
            make_capacity("one", "100Gi", zone="a"),
            make_capacity("two", "10Gi", zone="b"),
            make_capacity("three", "100Gi", zone="c", most="20Gi"),
        ),
        ONE,
        {"a1", "a2"},
        SPACE,
    ),
    "the capacity of a driver that does not publish it does not count": Case(
        (make_claim("data"), make_class(), make_driver(capacity=False)), ONE, EVERYWHERE
    ),
    "an ephemeral volume is provisioned in the topologies of its class": Case(
        (make_class(zones=("a",)),), pod_with(ephemeral_volume("tmp")), {"a1", "a2"}, BINDING
    ),
    "an ephemeral volume gets the default class": Case(
        (make_class(zones=("b",), default=True), make_class("other", zones=("a",))),
        pod_with(ephemeral_volume("tmp", None)),
        {"b1"},
        BINDING,
    ),
    "an ephemeral volume of a class that binds immediately": Case(
        (make_class(mode="Immediate"),), pod_with(ephemeral_volume("tmp")), NOWHERE, IMMEDIATE
    ),
    "a claim for one pod is in use": Case(
        (make_claim("data", volume="v", modes=("ReadWriteOncePod",)), make_volume("v"), on_node("a1", "data")),
        ONE,
        NOWHERE,
        IN_USE,
    ),
    "a claim for several pods is in use": Case(
        (make_claim("data", volume="v"), make_volume("v"), on_node("a1", "data")), ONE, EVERYWHERE
    ),
    "a node has attached as many volumes as it can": Case(
        (
            *(make_claim("data", volume="v"), make_volume("v"), make_claim("more", volume="w"), make_volume("w")),
            *(make_csi_node("a1", limit=1), make_csi_node("a2", limit=2), make_csi_node("b1")),
            *(on_node("a1", "more"), on_node("a2", "more"), on_node("b1", "more")),
        ),
        ONE,
        {"a2", "b1", "c1"},
        COUNT,
    ),
    "a volume that a pod of the node uses is attached once": Case(
        (
            *(make_claim("data", volume="v"), make_volume("v"), make_csi_node("a1", limit=1)),
            on_node("a1", "data"),
        ),
        ONE,
        EVERYWHERE,
    ),
    "a volume stays attached after its pod has ended": Case(
        (
            *(make_claim("data", volume="v"), make_volume("v"), make_volume("old"), make_csi_node("a1", limit=1)),
            make_attachment("one", "a1", "old"),
        ),
        ONE,
        {"a2", "b1", "c1"},
        COUNT,
    ),
    "a claim that is provisioned counts on the node": Case(
        (make_claim("data"), make_class(), make_csi_node("a1", limit=0)), ONE, {"a2", "b1", "c1"}, COUNT
    ),
    "a driver that serves an in-tree volume names zones by its own label": Case(
        (
            make_claim("data", volume="v"),
            make_volume("v", zones=("a",), **EBS),
            make_csi_node("b1", "ebs.csi.aws.com", **MIGRATED),
        ),
        ONE,
        {"a1", "a2", "b1"},
        AFFINITY,
    ),
    "an in-tree volume counts for the driver that serves it": Case(
        (
            *(make_claim("data", volume="v"), make_volume("v", **EBS)),
            make_csi_node("a1", "ebs.csi.aws.com", limit=0, **MIGRATED),
        ),
        ONE,
        {"a2", "b1", "c1"},
        COUNT,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pod_is_allowed_on_nodes_by_its_volumes(case: Case) -> None:
    nodes = zoned_nodes()
    nodes[2]["metadata"]["labels"]["topology.ebs.csi.aws.com/zone"] = "a"
    allowed, messages = allowed_now(view_of(*nodes, *case.objects), case.pod)
    assert (allowed, messages) == (case.nodes, {case.message} - {""})


def test_nodes_without_any_zone_are_in_every_zone() -> None:
    nodes = [make_node("plain"), *zoned_nodes()]
    objects = (make_claim("data", volume="v"), make_volume("v", labels={ZONE: "a"}))
    assert allowed_now(view_of(*nodes, *objects), ONE)[0] == {"plain", "a1", "a2"}


def test_a_snapshot_without_objects_about_storage_tells_nothing() -> None:
    blocker = fit_of(view_of(*zoned_nodes()), ONE).blocker
    assert blocker is not None
    assert blocker.problem is VolumeProblem.UNKNOWN


LOCAL = make_class(provisioner="kubernetes.io/no-provisioner")


class PendingCase(NamedTuple):
    objects: tuple[Json, ...]
    pod: Json
    nodes: set[str]
    problem: VolumeProblem | None = None
    takers: int = 0


WAITING = pod_with(claim_volume("other"), name="waiting")
OWN = pod_with(ephemeral_volume("tmp"))
PENDING = {
    "a waiting pod may take the only volume that several nodes reach": PendingCase(
        (make_claim("other"), LOCAL, make_volume("v", nodes=("a1", "a2")), WAITING), OWN, NOWHERE
    ),
    "a waiting pod may take the volumes of one node": PendingCase(
        (make_claim("other"), LOCAL, make_volume("v", nodes=("a1",)), make_volume("w", nodes=("b1",)), WAITING),
        OWN,
        {"a1", "b1"},
        takers=1,
    ),
    "a waiting pod leaves one of two volumes": PendingCase(
        (make_claim("other"), LOCAL, make_volume("v", zones=("a",)), make_volume("w", zones=("a",)), WAITING),
        OWN,
        {"a1", "a2"},
    ),
    "a waiting pod takes no volume of another class": PendingCase(
        (
            *(make_claim("other"), LOCAL, make_class("slow", provisioner="kubernetes.io/no-provisioner"), WAITING),
            *(make_volume("v", zones=("a",)), make_volume("w", zones=("a",))),
            make_volume("s", storage_class="slow", zones=("a",)),
        ),
        pod_with(ephemeral_volume("first", "slow"), ephemeral_volume("second")),
        {"a1", "a2"},
    ),
    "a waiting pod may fill the storage": PendingCase(
        (
            *(make_claim("other", size="60Gi"), make_class(), make_driver(), WAITING),
            *(make_capacity("one", "65Gi", zone="a"), make_capacity("two", "70Gi", zone="b")),
        ),
        OWN,
        {"b1"},
    ),
    "a waiting pod may attach the last volume": PendingCase(
        (make_claim("other"), make_class(), make_csi_node("a1", limit=1), make_csi_node("b1", limit=2), WAITING),
        OWN,
        {"a2", "b1", "c1"},
    ),
    "a gated pod takes nothing": PendingCase(
        (
            *(make_claim("other"), make_class(), make_csi_node("a1", limit=1)),
            pod_with(claim_volume("other"), name="gated", schedulingGates=[{"name": "wait"}]),
        ),
        OWN,
        EVERYWHERE,
    ),
    "a waiting pod may use a claim for one pod": PendingCase(
        (make_claim("other", modes=("ReadWriteOncePod",), volume="v"), make_volume("v"), WAITING),
        pod_with(claim_volume("other")),
        NOWHERE,
        VolumeProblem.IN_USE,
    ),
    "an unbound claim binds to the zone of its first pod": PendingCase(
        (make_claim("data"), make_class()), ONE, NOWHERE, VolumeProblem.SHARED
    ),
    "an unbound claim binds to the only zone": PendingCase(
        (make_claim("data"), make_class(zones=("a",)), *(make_csi_node(name, keys=(ZONE,)) for name in NODES)),
        ONE,
        {"a1", "a2"},
    ),
    "a driver without zones reaches its volumes from everywhere": PendingCase(
        (make_claim("data"), make_class(), *map(make_csi_node, NODES)), ONE, EVERYWHERE
    ),
    "an unbound claim for one pod binds anywhere": PendingCase(
        (make_claim("data", modes=("ReadWriteOncePod",)), make_class()), ONE, EVERYWHERE
    ),
    "an unbound claim of a StatefulSet is for one pod": PendingCase(
        (make_claim("data-web-0"), make_class()),
        pod_of_stateful_set("web", "data-web-0"),
        EVERYWHERE,
    ),
    "an ephemeral volume is for one pod": PendingCase((make_class(),), OWN, EVERYWHERE),
}


@pytest.mark.parametrize("case", PENDING.values(), ids=PENDING)
def test_nodes_remain_whatever_other_pods_take(case: PendingCase) -> None:
    view = view_of(*zoned_nodes(), *case.objects)
    fit = fit_of(view, case.pod)
    takers = fit.takers if fit.exclusive else 0
    assert (names_of(fit.nodes, view), fit.blocker and fit.blocker.problem, takers) == case[2:]


class SiblingCase(NamedTuple):
    """Templates, pods of each, claims of each pod, and the volumes that all of them together need on a node."""

    templates: int
    pods: int
    claims: int
    volumes: int


SIBLINGS = {
    "a pod alone": SiblingCase(1, 1, 1, 1),
    "a pod alone, with two claims": SiblingCase(1, 1, 2, 2),
    "the pods of a template": SiblingCase(1, 3, 1, 3),
    "the pods of a template, each with two claims": SiblingCase(1, 3, 2, 6),
    "pods that others admit at the same time": SiblingCase(4, 1, 1, 4),
    "templates that others admit at the same time, each with its pods": SiblingCase(2, 3, 1, 6),
    "templates that others admit at the same time, each with pods with two claims": SiblingCase(2, 3, 2, 12),
}


@pytest.mark.parametrize("case", SIBLINGS.values(), ids=SIBLINGS)
@pytest.mark.parametrize("spare", [0, -1])
def test_a_zone_needs_volumes_for_all_pods_of_all_templates(case: SiblingCase, spare: int) -> None:
    volumes = [make_volume(f"v{number}", zones=("a",)) for number in range(case.volumes + spare)]

    assert nodes_of_siblings(case, LOCAL, *volumes) == (NOWHERE if spare else {"a1", "a2"})


@pytest.mark.parametrize("case", SIBLINGS.values(), ids=SIBLINGS)
@pytest.mark.parametrize("spare", [0, -1])
def test_a_node_can_attach_the_volumes_of_all_pods_of_all_templates(case: SiblingCase, spare: int) -> None:
    limits = [make_csi_node(name, limit=case.volumes + spare if name == "a1" else 0) for name in NODES]

    assert nodes_of_siblings(case, make_class(), *limits) == (NOWHERE if spare else {"a1"})


@pytest.mark.parametrize("case", SIBLINGS.values(), ids=SIBLINGS)
@pytest.mark.parametrize("spare", [0, -1])
def test_a_zone_has_capacity_for_the_volumes_of_all_pods_of_all_templates(case: SiblingCase, spare: int) -> None:
    capacity = make_capacity("one", f"{10 * case.volumes + spare}Gi", zone="a")

    assert nodes_of_siblings(case, make_class(), make_driver(), capacity) == (NOWHERE if spare else {"a1", "a2"})


def nodes_of_siblings(case: SiblingCase, *objects: Json) -> set[str]:
    """Return the nodes that remain for a pod of a template, whatever all other pods of the case take."""
    view = view_of(*zoned_nodes(), *objects)
    uses = pod_volumes(parse_pod(pod_with(*(ephemeral_volume(f"v{number}") for number in range(case.claims)))))
    fit = fit_volumes("team", uses, view.storage, unseen=case.templates - 1, siblings=case.pods - 1)
    return names_of(fit.nodes, view)
