"""Random volumes: storage classes, volumes, claims and what CSI drivers report of nodes; and the volumes of pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.builders import Json

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
CLASSES = ("fast", "zonal", "tracked", "local", "now")
"""Names of the storage classes."""

DISKS, SPACE = "disks.example.com", "space.example.com"
"""CSI drivers: that of most classes, and that of the class "tracked", which reports free capacity."""

CLAIMS_OF_NAMESPACE = 8
FIRST_VOLUME_GIB = 3


def random_volumes(random: Random, namespaces: Sequence[str], nodes: Sequence[str]) -> list[Json]:
    """Return everything about volumes but the pods that use them."""
    return [
        *_storage_classes(random),
        *_csi_objects(random, nodes),
        *_claims_and_volumes(random, namespaces, nodes),
        *_local_volumes(random, nodes),
    ]


def _storage_classes(random: Random) -> Iterator[Json]:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": random.sample("abc", k=random.choice((1, 2)))}]}]
    yield _storage_class("fast")
    yield _storage_class("zonal") | {"allowedTopologies": topologies}
    yield _storage_class("tracked", SPACE)
    yield _storage_class("local", "kubernetes.io/no-provisioner")
    yield _storage_class("now") | {"volumeBindingMode": "Immediate"}


def _storage_class(name: str, provisioner: str = DISKS) -> Json:
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    return kind | {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}


def _csi_objects(random: Random, nodes: Sequence[str]) -> Iterator[Json]:
    for name, capacity in ((DISKS, False), (SPACE, True)):
        yield {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}} | {
            "spec": {"storageCapacity": capacity}
        }
    for node in nodes:
        if random.random() < 0.9:
            yield _csi_node(random, node)
    for number in range(random.choice((1, 2, 3))):
        yield _storage_capacity(random, f"capacity-{number}", nodes)


def _csi_node(random: Random, node: str) -> Json:
    limits = {driver: random.choice((None, 0, 1, 2, 3)) for driver in (DISKS, SPACE) if random.random() < 0.9}
    drivers = [
        {"name": name, "nodeID": node} | ({"allocatable": {"count": count}} if count is not None else {})
        for name, count in limits.items()
    ]
    metadata = {"name": node}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata, "spec": {"drivers": drivers}}


def _storage_capacity(random: Random, name: str, nodes: Sequence[str]) -> Json:
    metadata = {"name": name, "namespace": "kube-system"}
    topology = random.choice(
        ({"matchLabels": {ZONE: random.choice("abc")}}, {"matchLabels": {HOSTNAME: random.choice(nodes)}}, {})
    )
    found: Json = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity", "metadata": metadata}
    found |= {
        "storageClassName": "tracked",
        "nodeTopology": topology,
        "capacity": random.choice(("1Gi", "5Gi", "20Gi")),
    }
    return found | random.choice(({}, {}, {"maximumVolumeSize": random.choice(("1Gi", "10Gi"))}))


def _claims_and_volumes(random: Random, namespaces: Sequence[str], nodes: Sequence[str]) -> Iterator[Json]:
    for namespace in namespaces:
        for number in range(CLAIMS_OF_NAMESPACE):
            yield from _claim(random, f"claim-{number}", namespace, nodes)


def _claim(random: Random, name: str, namespace: str, nodes: Sequence[str]) -> Iterator[Json]:
    """Yield a claim, and its volume if it is bound to one that exists."""
    claim: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "annotations": {}},
        "spec": claim_spec(random),
        "status": {"phase": "Pending"},
    }
    kind = random.random()
    if kind < 0.55:
        volume = _bound_volume(random, claim, nodes)
        claim["spec"]["volumeName"] = volume["metadata"]["name"]
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes"
        claim["status"]["phase"] = "Bound"
        if random.random() < 0.95:
            yield volume
        elif random.random() < 0.5:
            claim["status"]["phase"] = "Lost"
    elif kind < 0.6:
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = random.choice(nodes)
    elif kind < 0.65:
        claim["spec"]["volumeName"] = "not-bound-yet"
    if random.random() < 0.03:
        claim["metadata"] |= {
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["kubernetes.io/pvc-protection"],
        }
    yield claim


def claim_spec(random: Random) -> Json:
    """Return the spec of a claim."""
    modes = random.choice((["ReadWriteOnce"],) * 4 + (["ReadWriteMany"], ["ReadWriteOncePod"]))
    size = random.choice(("1Gi", "4Gi", "6Gi", "10Gi"))
    return {
        "accessModes": modes,
        "volumeMode": "Filesystem",
        "storageClassName": random.choice((*CLASSES, "fast", "missing")) if random.random() < 0.95 else "",
        "resources": {"requests": {"storage": size}},
    }


def _bound_volume(random: Random, claim: Json, nodes: Sequence[str]) -> Json:
    metadata, spec = claim["metadata"], claim["spec"]
    name = f"pv-{metadata['namespace']}-{metadata['name']}"
    labels = random.choice(
        ({}, {}, {}, {ZONE: random.choice("abc")}, {ZONE: "a__b"}, {"failure-domain.beta.kubernetes.io/zone": "a"})
    )
    volume: Json = _volume(name, "20Gi", spec["storageClassName"], spec["accessModes"])
    volume["metadata"]["labels"] = labels
    volume["spec"] |= {"csi": {"driver": random.choice((DISKS, DISKS, SPACE)), "volumeHandle": name}}
    volume["spec"]["claimRef"] = {
        "kind": "PersistentVolumeClaim",
        **{key: metadata[key] for key in ("name", "namespace", "uid")},
    }
    volume["status"] = {"phase": "Bound"}
    if random.random() < 0.5:
        volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [_volume_term(random, nodes)]}}
    return volume


def _volume_term(random: Random, nodes: Sequence[str]) -> Json:
    key, values = random.choice(((ZONE, list("abc")), (HOSTNAME, list(nodes))))
    return {
        "matchExpressions": [{"key": key, "operator": "In", "values": random.sample(values, k=random.choice((1, 2)))}]
    }


def _volume(name: str, size: str, storage_class: str, modes: Sequence[str]) -> Json:
    spec = {"capacity": {"storage": size}, "accessModes": list(modes), "storageClassName": storage_class}
    spec |= {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def _local_volumes(random: Random, nodes: Sequence[str]) -> Iterator[Json]:
    """Yield volumes that exist on one node and are not bound; each has another size, so that no choice is arbitrary."""
    for number in range(random.choice((2, 4, 6))):
        node = random.choice(nodes)
        volume = _volume(f"local-{number}", f"{FIRST_VOLUME_GIB + number}Gi", "local", ["ReadWriteOnce"])
        volume["spec"]["local"] = {"path": "/mnt/disk"}
        expression = {"key": HOSTNAME, "operator": "In", "values": [node]}
        volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        volume["status"] = {"phase": random.choice(("Available",) * 4 + ("Released",))}
        yield volume


def pod_volumes(random: Random) -> list[Json]:
    """Return volumes of a pod: claims, generic ephemeral ones, and some that tie it to nothing."""
    return [{"name": f"v{number}"} | _pod_volume(random) for number in range(random.choice((1, 1, 2, 3)))]


def _pod_volume(random: Random) -> Json:
    kind = random.random()
    if kind < 0.1:
        return {"emptyDir": {}}
    if kind < 0.2:
        spec = claim_spec(random) | {"accessModes": ["ReadWriteOnce"]}
        return {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    if kind < 0.25:
        return {"persistentVolumeClaim": {"claimName": "missing"}}
    return {"persistentVolumeClaim": {"claimName": f"claim-{random.randrange(CLAIMS_OF_NAMESPACE)}"}}
