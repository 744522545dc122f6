"""Pods that our filters once allowed on other nodes than the scheduler does."""

from __future__ import annotations

import json

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.controlplane.build import is_minor_or_newer
from tests.filters.comparison import MODELS_TESTED_VERSION, our_nodes
from tests.filters.random_clusters import RandomCluster
from tests.filters.scheduler import SchedulerFilters
from webhook.model.filters.pod_ties import ties_of
from webhook.model.pods import parse_pod


def node_with(name: str, **allocatable: str) -> Json:
    """Return a node with other amounts; a resource is written with an underscore for each hyphen."""
    node = make_node(name)
    node["status"]["allocatable"] |= {key.replace("_", "-"): amount for key, amount in allocatable.items()}
    return node


def running_pod(pod: PodMaker, node: str) -> Json:
    """Return a pod on a node; the scheduler tells pods apart by their uids."""
    built = pod.spec(nodeName=node).build()
    built["metadata"]["uid"] = f"uid-{built['metadata']['name']}"
    return built


def nominated(pod: PodMaker, node: str = "a") -> Json:
    """Return a pod that waits for a node, for which it is nominated."""
    built = pod.spec(priority=0).build() | {"status": {"phase": "Pending", "nominatedNodeName": node}}
    built["metadata"] |= {"name": "nominated", "uid": "uid-nominated"}
    return built


def affinity_to(app: str, kind: str = "podAntiAffinity") -> Json:
    """Return required affinity to pods of an app on the same node, or anti-affinity."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def spread(selector: Json) -> Json:
    """Return a required spread over nodes."""
    constraint = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": selector}]}


FOR_ONE_POD = {
    "accessModes": ["ReadWriteOncePod"],
    "storageClassName": "later",
    "resources": {"requests": {"storage": "1Gi"}},
}
STORAGE = [
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "later"},
        "provisioner": "disks.example.com",
        "volumeBindingMode": "WaitForFirstConsumer",
    },
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": "a"},
        "spec": {"drivers": [{"name": "disks.example.com", "nodeID": "a", "allocatable": {"count": 1}}]},
    },
    {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "team", "uid": "data"},
        "spec": FOR_ONE_POD,
        "status": {"phase": "Pending"},
    },
]
DATA = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
OWN = {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": FOR_ONE_POD | {"accessModes": ["ReadWriteOnce"]}}}}
TWO_NODES = [make_node("a", {"kubernetes.io/hostname": "a"}), make_node("b", {"kubernetes.io/hostname": "b"})]

OF_NO_TENANT = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": {"app": "a"}},
    "namespaceSelector": {"matchExpressions": [{"key": "tenant", "operator": "DoesNotExist"}]},
}
CASES: dict[str, tuple[list[Json], PodMaker, list[str]]] = {
    "free memory counts to the byte": (
        [node_with("just", memory="123456789"), node_with("less", memory="123456788")],
        make_pod().requests("memory", "123456789"),
        ["just"],
    ),
    "a container's request of zero keeps the limit of the pod from being its request": (
        [node_with("small", cpu="4")],
        make_pod().spec(resources={"limits": {"cpu": "8"}}).container("more", resources={"requests": {"cpu": "0"}}),
        ["small"],
    ),
    "the anti-affinity of a nominated pod keeps no pod without affinity off": (
        [*TWO_NODES, nominated(make_pod().spec(affinity=affinity_to("a")))],
        make_pod().label("app", "a"),
        ["a", "b"],
    ),
    "the anti-affinity of a nominated pod keeps a pod off that has any of its own": (
        [*TWO_NODES, nominated(make_pod().spec(affinity=affinity_to("a")))],
        make_pod().label("app", "a").spec(affinity=affinity_to("other")),
        ["b"],
    ),
    "a spread of all pods by an empty selector counts nominated ones only": (
        [*TWO_NODES, running_pod(make_pod("running"), "b"), nominated(make_pod())],
        make_pod().spec(**spread({})),
        ["b"],
    ),
    "a claim for one pod is not in use by a nominated pod": (
        [*TWO_NODES, *STORAGE, nominated(make_pod().spec(volumes=[DATA]))],
        make_pod().spec(volumes=[DATA]),
        ["a", "b"],
    ),
    "no volume of a nominated pod is attached whose claim does not exist": (
        [*TWO_NODES, *STORAGE, nominated(make_pod().spec(volumes=[OWN]))],
        make_pod().spec(volumes=[DATA]),
        ["a", "b"],
    ),
}


AWS, GCE, AZURE = "ebs.csi.aws.com", "pd.csi.storage.gke.io", "disk.csi.azure.com"
AZURE_URI = "/subscriptions/s/resourcegroups/g/providers/microsoft.compute/disks/d"
CINDER, PORTWORX = "cinder.csi.openstack.org", "pxd.portworx.com"


def storage_of(driver: str, limit: int = 1) -> list[Json]:
    """Return the claim "data" of a class of a driver, which attaches so many volumes to node a."""
    storage = json.loads(json.dumps(STORAGE).replace("disks.example.com", driver))
    storage[1]["spec"]["drivers"][0]["allocatable"]["count"] = limit
    return list(storage)


def pod_with_disk(name: str, **source: Json) -> Json:
    """Return a pod on node a with a disk that it names without a claim."""
    return running_pod(make_pod(name).spec(volumes=[{"name": "disk", **source}]), "a")


EBS_ONE = {"awsElasticBlockStore": {"volumeID": "vol-1"}}
INLINE: dict[str, tuple[list[Json], list[str]]] = {
    "an EBS disk": ([*storage_of(AWS), pod_with_disk("r", **EBS_ONE)], ["b"]),
    "an EBS disk, and a driver that attaches two": ([*storage_of(AWS, 2), pod_with_disk("r", **EBS_ONE)], ["a", "b"]),
    "two EBS disks": (
        [
            *storage_of(AWS, 2),
            pod_with_disk("r", **EBS_ONE),
            pod_with_disk("s", awsElasticBlockStore={"volumeID": "aws://zone/vol-2"}),
        ],
        ["b"],
    ),
    "the same EBS disk of two pods, written in two ways": (
        [
            *storage_of(AWS, 2),
            pod_with_disk("r", **EBS_ONE),
            pod_with_disk("s", awsElasticBlockStore={"volumeID": "aws://zone/vol-1"}),
        ],
        ["a", "b"],
    ),
    "a GCE disk": ([*storage_of(GCE), pod_with_disk("r", gcePersistentDisk={"pdName": "d"})], ["b"]),
    "a managed Azure disk": (
        [*storage_of(AZURE), pod_with_disk("r", azureDisk={"diskName": "d", "diskURI": AZURE_URI, "kind": "Managed"})],
        ["b"],
    ),
    "a Cinder disk": ([*storage_of(CINDER), pod_with_disk("r", cinder={"volumeID": "v"})], ["b"]),
    "a Portworx disk": ([*storage_of(PORTWORX), pod_with_disk("r", portworxVolume={"volumeID": "v"})], ["b"]),
    "a disk of another driver": ([*storage_of(GCE), pod_with_disk("r", **EBS_ONE)], ["a", "b"]),
    "an ephemeral volume of a CSI driver": (
        [*storage_of("disks.example.com"), pod_with_disk("r", csi={"driver": "disks.example.com"})],
        ["a", "b"],
    ),
    "the disk of a pod that has ended": (
        [*storage_of(AWS), pod_with_disk("r", **EBS_ONE) | {"status": {"phase": "Succeeded"}}],
        ["a", "b"],
    ),
}


COUNTED_SINCE_36 = [INLINE["a Portworx disk"][0]]
"""Disks that an older scheduler does not count, because it does not migrate their plugin by default."""


@pytest.mark.parametrize(("objects", "nodes"), INLINE.values(), ids=INLINE)
def test_disks_that_running_pods_name_without_a_claim_are_attached_too(
    scheduler_filters: SchedulerFilters, objects: list[Json], nodes: list[str]
) -> None:
    cluster = RandomCluster([make_namespace("team"), *TWO_NODES, *objects], [make_pod().spec(volumes=[DATA]).build()])
    (rejections,) = scheduler_filters.rejections([cluster])

    allowed = [name for name in "ab" if name not in rejections["pod"]]
    assert allowed == nodes or (objects in COUNTED_SINCE_36 and not is_minor_or_newer(36))
    assert our_nodes(cluster)["pod"] == nodes


@pytest.mark.parametrize(("objects", "pod", "nodes"), CASES.values(), ids=CASES)
def test_a_pod_is_allowed_where_the_scheduler_allows_it(
    scheduler_filters: SchedulerFilters, objects: list[Json], pod: PodMaker, nodes: list[str]
) -> None:
    cluster = RandomCluster([make_namespace("team"), *objects], [pod.build()])
    (rejections,) = scheduler_filters.rejections([cluster])
    names = [node["metadata"]["name"] for node in cluster.of_kind("Node")]

    assert [name for name in names if name not in rejections["pod"]] == nodes
    assert our_nodes(cluster)["pod"] == nodes


def test_schedulers_disagree_about_a_selector_of_namespaces_that_no_labels_satisfy(
    scheduler_filters: SchedulerFilters,
) -> None:
    """1.36 selects the pods of every namespace by it, 1.37 those of the namespaces without the label."""
    other = running_pod(make_pod("running").namespace("other").label("app", "a"), "node")
    objects = [make_namespace("team"), make_namespace("other", tenant="y"), make_node("node"), other]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [OF_NO_TENANT]}
    cluster = RandomCluster(objects, [make_pod().spec(affinity={"podAffinity": required}).build()])

    (rejections,) = scheduler_filters.rejections([cluster])

    assert ("node" in rejections["pod"]) is not MODELS_TESTED_VERSION
    assert our_nodes(cluster)["pod"] == ["node"]
    assert ties_of(parse_pod(cluster.pods[0])).depends_on_version  # so that right-sizing relies on neither
