"""Builders for the objects about storage that tests are about."""

from __future__ import annotations

from typing import Any

from tests.builders import Json

STORAGE_API = "storage.k8s.io/v1"
ZONE = "topology.kubernetes.io/zone"
LATER = "WaitForFirstConsumer"
BOUND_ANNOTATION = {"pv.kubernetes.io/bind-completed": "yes"}


def make_claim(
    name: str,
    storage_class: str | None = "fast",
    *,
    volume: str = "",
    size: str = "10Gi",
    modes: tuple[str, ...] = ("ReadWriteOnce",),
    annotations: Json | None = None,
    **spec: Any,
) -> Json:
    """Return a claim; completely bound if it names a volume."""
    marks = (BOUND_ANNOTATION if volume else {}) | (annotations or {})
    named = {"storageClassName": storage_class} if storage_class is not None else {}
    bound = {"volumeName": volume} if volume else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": marks},
        "spec": {"accessModes": list(modes), "resources": {"requests": {"storage": size}}} | named | bound | spec,
        "status": {"phase": "Bound" if volume else "Pending"},
    }


def make_volume(
    name: str,
    storage_class: str = "fast",
    *,
    size: str = "10Gi",
    nodes: tuple[str, ...] = (),
    zones: tuple[str, ...] = (),
    claim: str = "",
    phase: str = "Available",
    labels: Json | None = None,
    **spec: Any,
) -> Json:
    """Return a volume that these nodes, by hostname, or zones reach; all nodes without any."""
    expressions = [
        {"key": key, "operator": "In", "values": list(values)}
        for key, values in (("kubernetes.io/hostname", nodes), (ZONE, zones))
        if values
    ]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    reference = {"claimRef": {"namespace": "team", "name": claim}} if claim else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "storageClassName": storage_class,
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
        }
        | ({"nodeAffinity": affinity} if expressions else {})
        | reference
        | ({"csi": {"driver": "disk.example.com", "volumeHandle": name}} | spec),
        "status": {"phase": "Bound" if claim and phase == "Available" else phase},
    }


def make_class(
    name: str = "fast",
    provisioner: str = "disk.example.com",
    *,
    mode: str = LATER,
    zones: tuple[str, ...] = (),
    default: bool = False,
) -> Json:
    """Return a StorageClass, for some zones or for all."""
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}]
    marks = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {
        "apiVersion": STORAGE_API,
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": marks},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
    } | ({"allowedTopologies": topologies} if zones else {})


def make_csi_node(
    node: str,
    driver: str = "disk.example.com",
    *,
    limit: int | None = None,
    keys: tuple[str, ...] = (),
    **marks: str,
) -> Json:
    """Return what the drivers of a node report."""
    allocatable = {"allocatable": {"count": limit}} if limit is not None else {}
    each = {"name": driver, "nodeID": node, "topologyKeys": list(keys)} | allocatable
    return {
        "apiVersion": STORAGE_API,
        "kind": "CSINode",
        "metadata": {"name": node, "annotations": marks},
        "spec": {"drivers": [each]},
    }


def make_driver(name: str = "disk.example.com", *, capacity: bool = True) -> Json:
    """Return a CSI driver that publishes its capacity."""
    return {
        "apiVersion": STORAGE_API,
        "kind": "CSIDriver",
        "metadata": {"name": name},
        "spec": {"storageCapacity": capacity},
    }


def make_capacity(name: str, amount: str, *, storage_class: str = "fast", most: str = "", **labels: str) -> Json:
    """Return what is free for a class on the nodes with some labels."""
    return {
        "apiVersion": STORAGE_API,
        "kind": "CSIStorageCapacity",
        "metadata": {"name": name, "namespace": "kube-system"},
        "storageClassName": storage_class,
        "nodeTopology": {"matchLabels": {key.replace("zone", ZONE): value for key, value in labels.items()}},
        "capacity": amount,
    } | ({"maximumVolumeSize": most} if most else {})


def make_attachment(name: str, node: str, volume: str, driver: str = "disk.example.com") -> Json:
    """Return an attachment of a volume to a node."""
    source = {"persistentVolumeName": volume}
    return {
        "apiVersion": STORAGE_API,
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {"attacher": driver, "nodeName": node, "source": source},
    }


def claim_volume(name: str) -> Json:
    """Return a pod's volume of a claim."""
    return {"name": name, "persistentVolumeClaim": {"claimName": name}}


def ephemeral_volume(name: str, storage_class: str | None = "fast", size: str = "10Gi") -> Json:
    """Return a generic ephemeral volume of a pod."""
    return {
        "name": name,
        "ephemeral": {"volumeClaimTemplate": {"spec": make_claim(name, storage_class, size=size)["spec"]}},
    }
