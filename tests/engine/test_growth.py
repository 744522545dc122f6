"""Right-sizing under autoscalers: a slice that is not free counts only if a node group grows by a node with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.device_builders import NVIDIA, device_class, mig_device, resource_slice
from tests.engine.test_workload_review import workload
from tests.example_cluster import A100, GPU_TAINT, MIXED, apply_patch, review, tainted, view_of, whole_node
from tests.storage_builders import ZONE, make_claim, make_class, make_csi_node, make_volume
from webhook.model.decisions import KeepReason, KeepRequest, OfferChoice

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
GROW, KEEP = "mode: enforce\nrightSizing: {whenFull: grow}", "mode: enforce\nrightSizing: {}"
EKS, GKE, AKS = "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool", "kubernetes.azure.com/agentpool"
KARPENTER = "karpenter.sh/nodepool"


def slices(label: str = EKS, name: str = "mig", more: dict[str, str] | None = None) -> Json:
    """Return a node of a group whose GPUs are all slices."""
    group = {label: "slices"} if label else {}
    return make_node(name, MIXED | group | {"kubernetes.io/hostname": name} | (more or {}), **{SMALL: 7})


def users(node: str = "mig", count: int = 7) -> tuple[Json, ...]:
    """Return pods that hold all slices of a node."""
    return tuple(make_pod(f"user-{node}-{i}").requests(SMALL, "1").spec(nodeName=node).build() for i in range(count))


def waiting(count: int) -> tuple[Json, ...]:
    """Return pods that request a slice and have no node yet."""
    return tuple(make_pod(f"waiting-{i}").requests(SMALL, "1").build() for i in range(count))


def small() -> PodMaker:
    """Return a pod that requests one GPU and needs 8Gi."""
    return make_pod().gpus(1).needs("8Gi")


def overlay(**spec: Any) -> Json:
    """Return a NodeOverlay that adds slices to the nodes of a pool."""
    requirements = [{"key": KARPENTER, "operator": "In", "values": ["slices"]}]
    spec = {"requirements": requirements, "capacity": {SMALL: "7"}} | spec
    return {"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": "mig"}, "spec": spec}


def pool(used: Json | None = None, **spec: Any) -> Json:
    """Return the NodePool of the slices, with the capacity of its nodes."""
    api = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "slices"}}
    return {**api, "spec": spec, "status": {"resources": used or {}}}


def settings(**group: Any) -> Json:
    """Return the settings of one node group, which has no node."""
    resources = {"cpu": "32", "memory": "128Gi", SMALL: "7"}
    group = {"name": "slices", "agentLabels": MIXED, "resources": resources} | group
    return {
        "apiVersion": "rightslice.dev/v1alpha1",
        "kind": "NodeGroups",
        "metadata": {"name": "groups"},
        "nodeGroups": [group],
    }


def labels_without(part: str) -> dict[str, str]:
    """Return the labels that agents add to a node with slices, but for those that contain a part."""
    return {key: value for key, value in MIXED.items() if part not in key}


def machines(kind: str = "MachineDeployment", **annotations: str) -> Json:
    """Return a scaled group of machines of Cluster API without a machine."""
    capacity = "capacity.cluster-autoscaler.kubernetes.io/"
    labels = ",".join(f"{key}={value}" for key, value in MIXED.items())
    written = {"cpu": "32", "memory": "128Gi", "gpu-type": SMALL, "gpu-count": "7", "labels": labels} | annotations
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {
            "name": "slices",
            "namespace": "default",
            "annotations": {f"{capacity}{key}": value for key, value in written.items()}
            | {"cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "3"},
        },
        "spec": {"replicas": 0},
    }


UNREADY = {"conditions": [{"type": "Ready", "status": "False"}]}


def another_overlay(**spec: Any) -> Json:
    """Return a NodeOverlay that yields to the other of equal weight by its name."""
    return overlay(**spec) | {"metadata": {"name": "a"}}


def paused_machines() -> Json:
    """Return machines that their controller leaves as they are."""
    made = machines()
    made["metadata"]["annotations"]["cluster.x-k8s.io/paused"] = ""
    return made


ACCOUNTED = GROW + "\nlimits: {accounting: native, accountingScheduler: configured}"
MILLI = "rightslice.dev/gpu-milli"


class Case(NamedTuple):
    want: str | KeepReason
    objects: tuple[Json, ...]
    pod: PodMaker = small()
    policy: str = GROW


FULL = (whole_node(), slices(), *users())
KARPENTER_FULL = (whole_node(), slices(KARPENTER), *users())
EMPTY = (whole_node(),)

UNGUARDED = (
    resource_slice("d", NVIDIA, "whole", nodeName="whole", devices=[mig_device("mig-0", "1g.10gb", "GPU-0")]),
    device_class("small", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"),
)

CASES = {
    "settings offer it, and a device class that no pod can get covers the need": Case(
        SMALL, (*EMPTY, settings(), *UNGUARDED)
    ),
    "settings offer it, by the product and without the compute capability": Case(
        SMALL, (*EMPTY, settings(agentLabels=labels_without("gpu.compute")))
    ),
    "settings offer it with an unknown driver": Case(
        KeepReason.DRIVER, (*EMPTY, settings(agentLabels=labels_without("cuda.driver")))
    ),
    "no group offers it, and a device class that no pod can get covers the need": Case(
        KeepReason.KUBERNETES_TOO_OLD, (*EMPTY, *UNGUARDED)
    ),
    "a free slice needs no group": Case(SMALL, (whole_node(), slices(""))),
    "a live sibling on EKS offers it": Case(SMALL, FULL),
    "a live sibling on GKE offers it": Case(SMALL, (whole_node(), slices(GKE), *users())),
    "a live sibling on AKS offers it": Case(SMALL, (whole_node(), slices(AKS), *users())),
    "a node without a group does not grow": Case(KeepReason.NO_GROWTH, (whole_node(), slices(""), *users())),
    "a pod in a queue may need the node much later": Case(
        KeepReason.NO_FREE_CAPACITY,
        FULL,
        small().label("kai.scheduler/queue", "q"),
        "mode: enforce\nrightSizing: {whenFull: grow, templates: enforce}",
    ),
    "by default nothing is known to grow": Case(KeepReason.NO_FREE_CAPACITY, FULL, policy=KEEP),
    "Karpenter knows no slices": Case(KeepReason.NO_GROWTH, KARPENTER_FULL),
    "but those of a NodeOverlay": Case(SMALL, (*KARPENTER_FULL, overlay())),
    "a NodeOverlay for other nodes": Case(
        KeepReason.NO_GROWTH,
        (*KARPENTER_FULL, overlay(requirements=[{"key": KARPENTER, "operator": "In", "values": ["other"]}])),
    ),
    "a NodeOverlay of another slice": Case(
        KeepReason.NO_GROWTH, (*KARPENTER_FULL, overlay(capacity={"nvidia.com/mig-2g.20gb": "3"}))
    ),
    "a NodePool with the last node that its limit allows, before its status says so": Case(
        KeepReason.NO_GROWTH, (*KARPENTER_FULL, overlay(), pool(limits={"nodes": "1"}))
    ),
    "a NodePool without limits": Case(SMALL, (*KARPENTER_FULL, overlay(), pool())),
    "a NodePool whose limit leaves a node": Case(
        SMALL, (*KARPENTER_FULL, overlay(), pool({"cpu": "64"}, limits={"cpu": "200"}))
    ),
    "a NodePool whose limit leaves less than a node": Case(
        KeepReason.NO_GROWTH, (*KARPENTER_FULL, overlay(), pool({"cpu": "64"}, limits={"cpu": "100"}))
    ),
    "a NodePool with a limit of whole cards, which its nodes count for": Case(
        KeepReason.NO_GROWTH, (*KARPENTER_FULL, overlay(), pool({GPU: "8"}, limits={GPU: "8"}))
    ),
    "a NodePool with enough of each limit but one": Case(
        KeepReason.NO_GROWTH,
        (*KARPENTER_FULL, overlay(), pool({"nodes": "1", "cpu": "64"}, limits={"nodes": "1", "cpu": "1000"})),
    ),
    "a NodePool with a limit of what its nodes lack": Case(
        SMALL, (*KARPENTER_FULL, overlay(), pool(limits={"example.com/fpga": "0"}))
    ),
    "a NodePool with a fixed number of nodes": Case(
        KeepReason.NO_GROWTH, (*KARPENTER_FULL, overlay(), pool(replicas=1))
    ),
    "another NodePool that has reached its limit": Case(
        SMALL,
        (*KARPENTER_FULL, overlay(), pool(), pool({"nodes": "1"}, limits={"nodes": "1"}) | {"metadata": {"name": "b"}}),
    ),
    "a NodePool that is being deleted": Case(
        KeepReason.NO_GROWTH,
        (
            *KARPENTER_FULL,
            overlay(),
            pool() | {"metadata": {"name": "slices", "deletionTimestamp": "2026-11-28T00:00:00Z"}},
        ),
    ),
    "a NodePool that is not ready": Case(
        KeepReason.NO_GROWTH, (*KARPENTER_FULL, overlay(), pool() | {"status": UNREADY})
    ),
    "a NodePool that does not exist any more": Case(
        KeepReason.NO_GROWTH, (*KARPENTER_FULL, overlay(), pool() | {"metadata": {"name": "other"}})
    ),
    "a NodePool whose template has a taint that its nodes lack": Case(
        KeepReason.NO_GROWTH,
        (*KARPENTER_FULL, overlay(), pool(template={"spec": {"taints": [{"key": "team", "effect": "NoSchedule"}]}})),
    ),
    "a NodePool whose template has a taint that the pod tolerates": Case(
        SMALL,
        (*KARPENTER_FULL, overlay(), pool(template={"spec": {"taints": [{"key": "team", "effect": "NoSchedule"}]}})),
        small().spec(tolerations=[{"key": "team", "operator": "Exists"}]),
    ),
    "a NodeOverlay that is not ready": Case(KeepReason.NO_GROWTH, (*KARPENTER_FULL, overlay() | {"status": UNREADY})),
    "a NodeOverlay of higher weight that sets none": Case(
        KeepReason.NO_GROWTH, (*KARPENTER_FULL, overlay(), another_overlay(capacity={SMALL: "0"}, weight=2))
    ),
    "a NodeOverlay of lower weight that sets none": Case(
        SMALL, (*KARPENTER_FULL, overlay(weight=2), another_overlay(capacity={SMALL: "0"}))
    ),
    "a NodeOverlay of equal weight that is in conflict with the other": Case(
        SMALL, (*KARPENTER_FULL, overlay(), another_overlay(capacity={SMALL: "0"}))
    ),
    "a NodeOverlay of higher weight that sets none on one node of the pool": Case(
        KeepReason.NO_GROWTH,
        (
            *KARPENTER_FULL,
            slices(KARPENTER, "mig-2", {"type": "x"}),
            *users("mig-2"),
            overlay(),
            another_overlay(
                capacity={SMALL: "0"}, weight=2, requirements=[{"key": "type", "operator": "In", "values": ["x"]}]
            ),
        ),
    ),
    "pods that wait for the only node that a limit leaves": Case(
        KeepReason.NO_GROWTH,
        (*KARPENTER_FULL, overlay(), pool({"nodes": "1"}, limits={"nodes": "2"}), *waiting(7)),
    ),
    "pods that leave a slice of the only node that a limit leaves": Case(
        SMALL, (*KARPENTER_FULL, overlay(), pool({"nodes": "1"}, limits={"nodes": "2"}), *waiting(6))
    ),
    "pods that wait where no limit is known": Case(SMALL, (*KARPENTER_FULL, overlay(), *waiting(30))),
    "a sibling with other slices": Case(
        KeepReason.NO_GROWTH, (*FULL, make_node("whole-2", A100 | {EKS: "slices"}, **{GPU: 8}))
    ),
    "a ready sibling without GPUs, which may be copied": Case(
        KeepReason.NO_GROWTH, (*FULL, make_node("cpu", {EKS: "slices"}))
    ),
    "a sibling without GPUs that is not ready": Case(
        SMALL,
        (
            *FULL,
            tainted(make_node("cpu", {EKS: "slices"}), {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}),
        ),
    ),
    "no sibling of the group is ready": Case(
        KeepReason.NO_GROWTH,
        (whole_node(), slices() | {"spec": {"unschedulable": True}}, *users()),
        small().spec(tolerations=[{"operator": "Exists"}]),
    ),
    "a pod that selects by the zone of one sibling": Case(
        KeepReason.NO_GROWTH,
        (
            make_node("whole", A100 | {"topology.kubernetes.io/zone": "a"}, **{GPU: 8}),
            slices(more={"topology.kubernetes.io/zone": "a"}),
            slices(name="mig-2", more={"topology.kubernetes.io/zone": "b"}),
            *users(),
            *users("mig-2"),
        ),
        small().spec(nodeSelector={"topology.kubernetes.io/zone": "a"}),
    ),
    "more CPU than a new node has left": Case(
        KeepReason.NO_GROWTH, (whole_node(), slices(), *users()), small().requests("cpu", "63")
    ),
    "a taint that the pod does not tolerate": Case(
        KeepReason.UNREACHABLE, (whole_node(), tainted(slices(), {"key": "team", "effect": "NoSchedule"}), *users())
    ),
    "cluster-autoscaler counts the group's nodes as not ready": Case(
        KeepReason.NO_GROWTH, (whole_node(), slices(more={"k8s.amazonaws.com/accelerator": "a100"}), *users())
    ),
    "a group of the settings without a node": Case(SMALL, (*EMPTY, settings())),
    "a group of the settings that does not grow": Case(KeepReason.NO_GROWTH, (*EMPTY, settings(grows=False))),
    "settings about a live group that does not grow": Case(KeepReason.NO_GROWTH, (*FULL, settings(grows=False))),
    "a pod that selects by a label that a template lacks": Case(
        KeepReason.NO_GROWTH,
        (*EMPTY, settings()),
        small().spec(nodeSelector={"nvidia.com/gpu.product": A100["nvidia.com/gpu.product"]}),
    ),
    "a pod that selects by a label of the template": Case(
        SMALL,
        (*EMPTY, settings(labels={"nvidia.com/gpu.product": A100["nvidia.com/gpu.product"]})),
        small().spec(nodeSelector={"nvidia.com/gpu.product": A100["nvidia.com/gpu.product"]}),
    ),
    "accounting that new nodes do not offer": Case(KeepReason.NO_GROWTH, (*EMPTY, settings()), policy=ACCOUNTED),
    "accounting that new nodes offer": Case(
        SMALL,
        (*EMPTY, settings(resources={"cpu": "32", "memory": "128Gi", SMALL: "7", MILLI: "7000"})),
        policy=ACCOUNTED,
    ),
    "a scaled MachineDeployment": Case(SMALL, (*EMPTY, machines())),
    "a scaled MachineSet": Case(SMALL, (*EMPTY, machines("MachineSet"))),
    "a MachineDeployment of its maximum size": Case(
        KeepReason.NO_GROWTH, (*EMPTY, machines() | {"spec": {"replicas": 3}})
    ),
    "a MachineDeployment that is paused": Case(
        KeepReason.NO_GROWTH, (*EMPTY, machines() | {"spec": {"replicas": 0, "paused": True}})
    ),
    "a MachineDeployment that an annotation pauses": Case(KeepReason.NO_GROWTH, (*EMPTY, paused_machines())),
    "a MachineDeployment with a taint": Case(KeepReason.NO_GROWTH, (*EMPTY, machines(taints="team=a:NoSchedule"))),
}


def mounting(claim: str) -> PodMaker:
    """Return a small pod that uses a claim."""
    return small().spec(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": claim}}])


def with_own_claim(storage_class: str = "fast") -> PodMaker:
    """Return a small pod for which a claim is created."""
    size = {"requests": {"storage": "10Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class, "resources": size}
    return small().spec(volumes=[{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}])


ZONED = (
    make_node("whole", A100 | {ZONE: "a"}, **{GPU: 8}),
    slices(more={ZONE: "a"}),
    *users(),
    make_class(),
)


def volume(**reach: Any) -> tuple[Json, Json]:
    """Return a claim, and its volume."""
    return make_claim("data", volume="v"), make_volume("v", claim="data", **reach)


VOLUMES = {
    "a volume that every node reaches": Case(SMALL, (*ZONED, *volume()), mounting("data")),
    "a volume in the zone of the group": Case(SMALL, (*ZONED, *volume(zones=("a",))), mounting("data")),
    "a volume in another zone": Case(KeepReason.VOLUME_UNREACHABLE, (*ZONED, *volume(zones=("b",))), mounting("data")),
    "a volume with the label of a zone, in a group of that zone": Case(
        SMALL, (*ZONED, *volume(labels={ZONE: "a"})), mounting("data")
    ),
    "a volume with the label of a zone, in a group of two zones": Case(
        KeepReason.NO_GROWTH,
        (*ZONED, slices(name="mig-2", more={ZONE: "b"}), *users("mig-2"), *volume(labels={ZONE: "a"})), mounting("data")
    ),
    "a volume with the label of a zone, and settings without a zone": Case(
        KeepReason.NO_GROWTH, (ZONED[0], settings(), *volume(labels={ZONE: "a"})), mounting("data")
    ),
    "a volume with the label of a zone, in a cluster whose nodes have none": Case(
        SMALL, (*FULL, *volume(labels={ZONE: "a"})), mounting("data")
    ),
    "a volume on one node, which has no slice free": Case(
        KeepReason.NO_GROWTH, (*ZONED, *volume(nodes=("mig",))), mounting("data")
    ),
    "a group in the zone of the volume, and free slices elsewhere": Case(
        SMALL, (*ZONED, make_node("far", MIXED | {ZONE: "b"}, **{SMALL: 7}), *volume(zones=("a",))), mounting("data")
    ),
    "a claim of its own that is bound where it runs": Case(SMALL, ZONED, with_own_claim()),
    "a claim of its own whose class has other zones": Case(
        KeepReason.VOLUME_UNREACHABLE, (*ZONED[:-1], make_class(zones=("b",))), with_own_claim()
    ),
    "a claim of its own whose class provisions nothing": Case(
        KeepReason.VOLUME_UNREACHABLE,
        (*ZONED[:-1], make_class(provisioner="kubernetes.io/no-provisioner")),
        with_own_claim(),
    ),
    "a claim that others may use, and is bound where its first pod runs": Case(
        KeepReason.VOLUME_SHARED, (*ZONED, make_node("far", A100 | {ZONE: "b"}, **{GPU: 8}), make_claim("data")),
        mounting("data"),
    ),
    "a claim that others may use, in a cluster of one zone": Case(
        KeepReason.NO_GROWTH, (slices(more={ZONE: "a"}), *users(), make_class(), make_claim("data")), mounting("data")
    ),
    "a node of the cluster attaches fewer volumes than the pod has": Case(
        KeepReason.NO_GROWTH, (*ZONED, make_csi_node("whole", limit=0)), with_own_claim()
    ),
    "a claim that does not exist": Case(KeepReason.VOLUME_UNKNOWN, ZONED, mounting("data")),
}  # fmt: skip


@pytest.mark.parametrize("case", VOLUMES.values(), ids=VOLUMES)
def test_a_pod_with_volumes_gets_a_new_node_that_reaches_them(case: Case) -> None:
    assert outcome(case) == case.want


def apart(pod: PodMaker, key: str = "kubernetes.io/hostname", **labels: str) -> PodMaker:
    """Return a replica of a pod that runs with no pod with these labels in one domain; they are its own."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    for name, value in labels.items():
        pod.label(name, value)
    return pod.spec(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})


def spread(pod: PodMaker, key: str = "kubernetes.io/hostname") -> PodMaker:
    """Return a replica of a pod that is spread over domains."""
    selector = {"matchLabels": {"app": "a"}}
    constraint = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return pod.label("app", "a").spec(topologySpreadConstraints=[constraint])


def other(**labels: str) -> PodMaker:
    """Return a pod that runs on the node of the slices."""
    pod = make_pod("other").spec(nodeName="mig")
    for name, value in labels.items():
        pod.label(name, value)
    return pod


PARTLY_FULL = (whole_node(), slices(), *users(count=6))
DAEMON = {"app": "a", "pod-template-generation": "1"}
TIES = {
    "a replica runs on the only node with a free slice": Case(
        SMALL, (*PARTLY_FULL, apart(other(), app="a").build()), apart(small(), app="a")
    ),
    "all slices are taken, and a replica runs there": Case(
        SMALL, (*FULL, apart(other(), app="a").build()), apart(small(), app="a")
    ),
    "replicas may not share a zone": Case(
        KeepReason.ANTI_AFFINITY,
        (make_node("whole", A100 | {ZONE: "b"}, **{GPU: 8}), slices(more={ZONE: "a"}),
         apart(other(), ZONE, app="a").build()),
        apart(small(), ZONE, app="a"),
    ),
    "a pod of a DaemonSet, which a new node has too": Case(
        KeepReason.ANTI_AFFINITY, (*PARTLY_FULL, other(**DAEMON).build()), apart(small(), app="a")
    ),
    "a pod of another workload excludes it, which may be on a new node": Case(
        KeepReason.ANTI_AFFINITY, (*PARTLY_FULL, apart(other(), app="a").build()), small().label("app", "a")
    ),
    "another pod that it avoids": Case(SMALL, (*PARTLY_FULL, other(app="a").build()), apart(small(), app="a")),
    "replicas that are spread over nodes": Case(
        SMALL, (*PARTLY_FULL, other(app="a").build()), spread(small())
    ),
    "replicas that are spread over zones": Case(
        KeepReason.TOPOLOGY_SPREAD,
        (make_node("whole", A100 | {ZONE: "b"}, **{GPU: 8}), slices(more={ZONE: "a"}), other(app="a").build()),
        spread(small(), ZONE),
    ),
    "a pod that needs another one near it": Case(
        KeepReason.NO_GROWTH,
        (*FULL, other(app="a").build()),
        small().spec(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}]}}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TIES.values(), ids=TIES)
def test_a_pod_that_avoids_others_on_its_node_gets_a_new_one(case: Case) -> None:
    assert outcome(case) == case.want


def daemon(
    node: str = "mig",
    name: str = "ds",
    owner: str = "DaemonSet",
    selector: dict[str, str] | None = None,
    **requests: str,
) -> Json:
    """Return a pod of the DaemonSet `ds`, or a static pod, which new nodes run too."""
    pod = make_pod(f"{name}-{node}").owned_by(owner, node if owner == "Node" else "ds")
    if owner == "Node":
        pod.annotate("kubernetes.io/config.mirror", "x")
    for resource, amount in requests.items():
        pod.requests(resource, amount)
    return pod.spec(nodeName=node, nodeSelector=selector or {}).build()


DAEMONS = {
    "a DaemonSet leaves enough of a copied node": Case(SMALL, (*FULL, daemon(cpu="2")), small().requests("cpu", "57")),
    "a DaemonSet on a copied node takes more than the rest": Case(
        KeepReason.NO_GROWTH, (*FULL, daemon(cpu="8")), small().requests("cpu", "57")
    ),
    "a DaemonSet of other nodes": Case(
        SMALL, (*FULL, daemon("whole", cpu="8")), small().requests("cpu", "57")
    ),
    "a DaemonSet in two versions during a rollout counts once": Case(
        SMALL, (*FULL, daemon(cpu="5"), daemon(name="ds-2", cpu="4")), small().requests("cpu", "57")
    ),
    "a static pod on a copied node": Case(
        KeepReason.NO_GROWTH, (*FULL, daemon(owner="Node", cpu="8")), small().requests("cpu", "57")
    ),
    "any other pod there": Case(
        SMALL, (*FULL, daemon(owner="ReplicaSet", cpu="8")), small().requests("cpu", "57")
    ),
    "a DaemonSet that a node of the settings has too": Case(
        KeepReason.NO_GROWTH, (*EMPTY, settings(), daemon("whole", cpu="8")), small().requests("cpu", "25")
    ),
    "a DaemonSet leaves enough of a node of the settings": Case(
        SMALL, (*EMPTY, settings(), daemon("whole", cpu="8")), small().requests("cpu", "24")
    ),
    "a DaemonSet that does not tolerate the taint of the settings": Case(
        SMALL, (*EMPTY, settings(taints=[{"key": "a", "effect": "NoSchedule"}]), daemon("whole", cpu="8")),
        small().requests("cpu", "25").spec(tolerations=[{"operator": "Exists"}]),
    ),
    "a DaemonSet that selects a label of the kubelet": Case(
        KeepReason.NO_GROWTH,
        (*EMPTY, settings(), daemon("whole", selector={"kubernetes.io/os": "linux"}, cpu="8")),
        small().requests("cpu", "25"),
    ),
    "a DaemonSet that selects a label which the settings lack": Case(
        SMALL,
        (*EMPTY, settings(), daemon("whole", selector={"pool": "cards"}, cpu="8")),
        small().requests("cpu", "25"),
    ),
    "a static pod of some nodes": Case(
        SMALL,
        (*EMPTY, make_node("b"), settings(), daemon("whole", owner="Node", cpu="8")), small().requests("cpu", "25"),
    ),
    "DaemonSets take all pods of a new node": Case(
        KeepReason.NO_GROWTH,
        (*EMPTY, settings(resources={"cpu": "32", "memory": "128Gi", "pods": "1", SMALL: "7"}), daemon("whole")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAEMONS.values(), ids=DAEMONS)
def test_a_pod_gets_what_daemon_sets_leave_of_a_new_node(case: Case) -> None:
    assert outcome(case) == case.want


def outcome(case: Case) -> str | KeepReason:
    """Return the resource that a pod gets, or why it keeps its request."""
    decision = review(case.pod, case.policy, view=view_of(make_namespace("team"), *case.objects))
    return decision.outcome.reason if isinstance(decision.outcome, KeepRequest) else decision.outcome.resource


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_slice_counts_if_it_is_free_or_a_group_grows_by_it(case: Case) -> None:
    assert outcome(case) == case.want


PRODUCT = {"nvidia.com/gpu.product": A100["nvidia.com/gpu.product"]}
LATER = "gets the label nvidia.com/gpu.product, by which the pod or a policy selects nodes, only later"
BY_PRODUCT = f"{{key: nvidia.com/gpu.product, operator: In, values: [{PRODUCT['nvidia.com/gpu.product']}]}}"
ON_PRODUCT = f"{GROW}\ninjection: {{nodeAffinity: {{required: [{BY_PRODUCT}]}}}}"

LACKS = {
    "a taint": (
        settings(taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}]), small(),
        "has the taint team=a:NoSchedule",
    ),
    "less CPU": (settings(), small().requests("cpu", "40"), "has 32 cpu in all, the pod requests 40"),
    "another host": (
        settings(), small().spec(nodeSelector={"kubernetes.io/hostname": "x"}),
        "lacks the label kubernetes.io/hostname=x, which the pod selects",
    ),
    "a label that agents add": (
        settings(), small().spec(nodeSelector=PRODUCT), LATER,
    ),
    "a label that agents add, beside one of the template": (
        settings(labels={"pool": "a"}), small().spec(nodeSelector={"pool": "a"} | PRODUCT), LATER,
    ),
    "no label of its product": (
        settings(agentLabels={}), small(), "lacks nvidia.com/gpu.product, so the memory of a slice is unknown"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("group", "pod", "lack"), LACKS.values(), ids=LACKS)
def test_a_group_that_offers_the_slice_but_not_to_this_pod_is_named(group: Json, pod: PodMaker, lack: str) -> None:
    outcome = review(pod, GROW, view=view_of(make_namespace("team"), *EMPTY, group)).outcome
    assert outcome == KeepRequest(KeepReason.NO_GROWTH, f"{SMALL}: new node of slices {lack}")


BY_POLICY = {
    "a policy selects by a label that agents add": (ON_PRODUCT, LATER),
    "accounting that the group does not state": (ACCOUNTED, "has no rightslice.dev/gpu-milli"),
}


@pytest.mark.parametrize(("rules", "lack"), BY_POLICY.values(), ids=BY_POLICY)
def test_what_a_policy_needs_of_a_group_is_named(rules: str, lack: str) -> None:
    outcome = review(small(), rules, view=view_of(make_namespace("team"), *EMPTY, settings())).outcome
    assert outcome == KeepRequest(KeepReason.NO_GROWTH, f"{SMALL}: new node of slices {lack}")


FULL_MACHINES = machines() | {"spec": {"replicas": 3}}
OTHER_POOL = settings(name="other", taints=[{"key": "team", "effect": "NoSchedule"}])
STOPPED: dict[str, tuple[tuple[Json, ...], PodMaker, str]] = {
    "machines at their maximum, without a live node": (
        (*EMPTY, FULL_MACHINES), small(), "node group slices cannot grow: it has its maximum of 3 nodes"
    ),
    "machines at their maximum, whose slices are taken": (
        (*FULL, FULL_MACHINES), small(), "node group slices cannot grow: it has its maximum of 3 nodes"
    ),
    "machines at their maximum, and another group with a taint": (
        (*EMPTY, FULL_MACHINES, OTHER_POOL), small(), "node group slices cannot grow: it has its maximum of 3 nodes"
    ),
    "settings": (
        (*EMPTY, settings(grows=False)), small(), "node group slices cannot grow: the settings file says grows: false"
    ),
    "a NodePool at its limit": (
        (*KARPENTER_FULL, overlay(), pool(limits={"nodes": "1"})), small(),
        "node group slices cannot grow: the limit of nodes of its NodePool leaves no node (1)",
    ),
    "a NodePool of a fixed size": (
        (*KARPENTER_FULL, overlay(), pool(replicas=1)), small(),
        "node group slices cannot grow: its NodePool has a fixed number of 1 nodes",
    ),
    "several groups": (
        (*EMPTY, FULL_MACHINES, settings(name="a", grows=False)), small(),
        "node group a cannot grow: the settings file says grows: false (and 1 more)",
    ),
    "a name and a limit of any length": (
        (*EMPTY, settings(name="n" * 1000, grows=False)), small(),
        f"node group {'n' * 252}… cannot grow: the settings file says grows: false",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "pod", "why"), STOPPED.values(), ids=STOPPED)
def test_a_group_that_would_serve_the_pod_and_cannot_grow_is_named(
    objects: tuple[Json, ...], pod: PodMaker, why: str
) -> None:
    outcome = review(pod, GROW, view=view_of(make_namespace("team"), *objects)).outcome
    assert outcome == KeepRequest(KeepReason.NO_GROWTH, f"{SMALL}: {why}")


NOT_SERVED: dict[str, tuple[tuple[Json, ...], PodMaker]] = {
    "a taint that the pod does not tolerate": (
        (settings(grows=False, taints=[{"key": "team", "effect": "NoSchedule"}]),), small()
    ),
    "another node selector": ((settings(grows=False),), small().spec(nodeSelector={"pool": "other"})),
    "a label that agents add later": (
        (settings(grows=False),), small().spec(nodeSelector={"nvidia.com/gpu.product": A100["nvidia.com/gpu.product"]})
    ),
    "more CPU than a new node has": ((settings(grows=False),), small().requests("cpu", "40")),
    "slices that are too small": ((settings(grows=False),), make_pod().gpus(1).needs("30Gi")),
    "no slices": ((settings(grows=False, resources={"cpu": "32", "memory": "128Gi"}),), small()),
    "a volume out of its reach": (
        (settings(grows=False, labels={ZONE: "b"}), *volume(labels={ZONE: "a"})), mounting("data")
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "pod"), NOT_SERVED.values(), ids=NOT_SERVED)
def test_a_group_that_would_not_serve_the_pod_is_not_named(objects: tuple[Json, ...], pod: PodMaker) -> None:
    outcome = review(pod, GROW, view=view_of(make_namespace("team"), ZONED[0], *objects)).outcome
    assert isinstance(outcome, KeepRequest)
    assert outcome.reason is KeepReason.NO_OFFER


def test_a_group_whose_daemon_pods_leave_too_little_is_not_named() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    node, daemon = slices(KARPENTER), make_pod("d").requests("cpu", "7").spec(nodeName="mig").build()
    node["status"]["allocatable"]["cpu"], daemon["metadata"]["ownerReferences"] = "8", [owner]
    view = view_of(make_namespace("team"), node, daemon, whole_node(), pool(limits={SMALL: "7"}))
    outcome = review(small().requests("cpu", "4"), GROW, view=view).outcome
    assert outcome == KeepRequest(KeepReason.NO_GROWTH, f"{SMALL}: node mig has 1 cpu free, the pod requests 4")


def test_waiting_pods_that_take_the_last_nodes_of_a_group_are_the_reason() -> None:
    last = pool({"nodes": "1"}, limits={"nodes": "2"})
    view = view_of(make_namespace("team"), *KARPENTER_FULL, overlay(), last, *waiting(7))
    assert review(small(), GROW, view=view).outcome == KeepRequest(
        KeepReason.NO_GROWTH, f"{SMALL}: waiting pods take all nodes that node group slices may add"
    )


def test_a_pod_for_a_new_node_gets_no_affinity_on_labels_that_the_template_lacks() -> None:
    decision = review(small(), GROW, view=view_of(make_namespace("team"), *EMPTY, settings()))
    assert isinstance(decision.outcome, OfferChoice)
    assert decision.outcome.group == "slices"
    assert "affinity" not in apply_patch(small(), decision)["spec"]


def test_a_pod_on_a_free_slice_gets_no_needless_affinity_where_groups_grow() -> None:
    nodes = (whole_node(), slices())
    assert "affinity" in apply_patch(small(), review(small(), KEEP, nodes=nodes))["spec"]
    assert "affinity" not in apply_patch(small(), review(small(), GROW, nodes=nodes))["spec"]


def test_a_pod_for_a_new_node_gets_the_tolerations_of_its_taints() -> None:
    policy = GROW + "\ninjection: {tolerations: auto}"
    decision = review(small(), policy, view=view_of(make_namespace("team"), *EMPTY, settings(taints=[GPU_TAINT])))
    assert apply_patch(small(), decision)["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_the_request_of_a_pod_for_a_new_node_is_no_mistake() -> None:
    view = view_of(make_namespace("team"), *EMPTY, settings())
    pod = make_pod().requests(SMALL, "1")
    assert "GPU-T201" in {finding.code for finding in review(pod, GROW, nodes=EMPTY).findings}
    assert "GPU-T201" not in {finding.code for finding in review(pod, GROW, view=view).findings}


def test_no_new_node_is_computed_unless_a_policy_says_that_groups_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(make_namespace("team"), *FULL)
    monkeypatch.setattr(type(view), "view_new_nodes", lambda _view: pytest.fail("computed"))
    assert isinstance(review(small(), KEEP, view=view).outcome, KeepRequest)


WHOLE = {"cpu": "96", "memory": "1000Gi", GPU: "16"}
LARGE = settings(name="large", resources=WHOLE, agentLabels={}, labels={"pool": "large"})
"""A group without nodes, whose new nodes have 16 cards."""
ON_LARGE = {"nodeSelector": {"pool": "large"}}
PLAIN = "mode: enforce"
CARDS = make_node("cards", A100 | {EKS: "cards", "kubernetes.io/hostname": "cards"}, **{GPU: 8})


class Served(NamedTuple):
    pod: PodMaker
    objects: tuple[Json, ...]
    want: list[str]
    policy: str = PLAIN


SERVED = {
    "more GPUs than any node has": Served(make_pod().gpus(16), (whole_node(),), ["GPU-T202"]),
    "as many as a new node has": Served(make_pod().gpus(16), (whole_node(), LARGE), []),
    "more than a new node has": Served(make_pod().gpus(17), (whole_node(), LARGE), ["GPU-T202"]),
    "a group that does not grow": Served(
        make_pod().gpus(16), (whole_node(), settings(resources=WHOLE, agentLabels={}, grows=False)), ["GPU-T202"]
    ),
    "a label of new nodes only": Served(make_pod().gpus(1).spec(**ON_LARGE), (whole_node(), LARGE), []),
    "a label of no node": Served(
        make_pod().gpus(1).spec(nodeSelector={"pool": "other"}), (whole_node(), LARGE), ["GPU-T204"]
    ),
    "a product that only agents write on new nodes": Served(
        make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"}),
        (whole_node(), settings(resources=WHOLE, agentLabels={"nvidia.com/gpu.product": "NVIDIA-L4"})),
        ["GPU-T203"],
    ),
    "a product that the template has": Served(
        make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"}),
        (whole_node(), settings(resources=WHOLE, agentLabels={}, labels={"nvidia.com/gpu.product": "NVIDIA-L4"})),
        [],
    ),
    "a taint of all live nodes": Served(make_pod().gpus(1), (tainted(whole_node(), GPU_TAINT), LARGE), []),
    "a taint of new nodes too": Served(
        make_pod().gpus(1),
        (tainted(whole_node(), GPU_TAINT), settings(resources=WHOLE, agentLabels={}, taints=[GPU_TAINT])),
        ["GPU-T205"],
    ),
    "a network card of new nodes": Served(
        make_pod().gpus(1).requests("rdma/hca", "1"),
        (whole_node(), settings(resources=WHOLE | {"rdma/hca": "1"}, agentLabels={})),
        [],
    ),
    "machines of Cluster API": Served(
        make_pod().gpus(16), (whole_node(), machines(**{"gpu-type": GPU, "gpu-count": "16"})), []
    ),
}


@pytest.mark.parametrize("case", SERVED.values(), ids=SERVED)
def test_a_pod_that_a_new_node_would_serve_is_not_told_that_none_can(case: Served) -> None:
    found = review(case.pod.build(), case.policy, view=view_of(make_namespace("team"), *case.objects)).findings
    assert [each.code for each in found if each.code.startswith("GPU-T20")] == case.want


def many(replicas: int, pod: PodMaker | None = None) -> Json:
    return workload("Deployment", pod or make_pod().gpus(1), replicas=replicas)


THREE_MACHINES = machines(**{"gpu-type": GPU, "gpu-count": "8"})
ADDED = "the nodes that they may use, and that node groups may add, have too few GPUs for more"
EXCLUDING = "they exclude each other by their anti-affinity"
REPLICAS: dict[str, tuple[Json, tuple[Json, ...], str, str]] = {
    "live nodes alone, and nothing says that they grow": (
        many(20),
        (CARDS,),
        PLAIN,
        "at most 8 of 20 pods would run at once: the nodes that they may use have too few GPUs for more",
    ),
    "live nodes, and a policy says that groups grow": (many(2000), (CARDS,), GROW, ""),
    "a group of the settings": (many(2000), (CARDS, LARGE), PLAIN, ""),
    "a group whose new nodes cannot run the pods": (
        many(20),
        (CARDS, settings(resources=WHOLE, agentLabels={}, taints=[GPU_TAINT])),
        PLAIN,
        "at most 8 of 20 pods would run at once: the nodes that they may use have too few GPUs for more",
    ),
    "as many as a limited group may add": (many(32), (CARDS, THREE_MACHINES), PLAIN, ""),
    "more than a limited group may add": (
        many(33),
        (CARDS, THREE_MACHINES),
        PLAIN,
        f"at most 32 of 33 pods would run at once, 8 of them now: {ADDED}",
    ),
    "a limited group alone": (
        many(25, make_pod().gpus(1).spec(nodeSelector={"nvidia.com/mig.strategy": "mixed"})),
        (CARDS, THREE_MACHINES),
        PLAIN,
        f"at most 24 of 25 pods would run at once, 0 of them now: {ADDED}",
    ),
    "one on each host": (many(50, apart(make_pod().gpus(1), app="a")), (CARDS, LARGE), PLAIN, ""),
    "one in each zone, and no further zone": (
        many(2, apart(make_pod().gpus(1), ZONE, app="a")),
        (make_node("cards", A100 | {ZONE: "a"}, **{GPU: 8}), settings(resources=WHOLE, labels={ZONE: "a"})),
        PLAIN,
        f"at most 1 of 2 pods would run at once: {EXCLUDING}",
    ),
    "one in each zone, and new nodes are in another": (
        many(2, apart(make_pod().gpus(1), ZONE, app="a")),
        (make_node("cards", A100 | {ZONE: "a"}, **{GPU: 8}), settings(resources=WHOLE, labels={ZONE: "b"})),
        PLAIN,
        "",
    ),
    "a NodePool without limits": (
        many(2000),
        (make_node("c", A100 | {KARPENTER: "slices"}, **{GPU: 8}), pool()),
        PLAIN,
        "",
    ),
    "a NodePool that its limit stops": (
        many(20),
        (make_node("c", A100 | {KARPENTER: "slices"}, **{GPU: 8}), pool(limits={GPU: "8"})),
        PLAIN,
        "at most 8 of 20 pods would run at once: the nodes that they may use have too few GPUs for more",
    ),
}


@pytest.mark.parametrize(("data", "objects", "policy", "message"), REPLICAS.values(), ids=REPLICAS)
def test_replicas_that_new_nodes_would_run_are_counted(
    data: Json, objects: tuple[Json, ...], policy: str, message: str
) -> None:
    found = review(data, policy, view=view_of(make_namespace("team"), *objects)).findings
    assert [each.message for each in found if each.code == "GPU-T206"] == [message] * bool(message)
