"""Facts about objects as the API server stores them: namespace, creation time, and whether a pod has finished."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from webhook.model.claims import ResourceClaim, ResourceClaimTemplate
from webhook.model.filters.pod_topology_spread import Service, StatefulSet
from webhook.model.node_groups import MachineDeployment
from webhook.model.objects import LimitRange, ResourceQuota
from webhook.model.pods import DEFAULT_NAMESPACE, NamedVolume, ObjectMeta, Pod, PodSpec
from webhook.model.queues import LocalQueue
from webhook.model.storage_objects import CSIStorageCapacity, PersistentVolumeClaim

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases of pods that no longer hold resources."""


class StoredMetadata(ObjectMeta, frozen=True):
    """Metadata with creation time and version as they are written; anything but text counts as missing."""

    creation_timestamp: Any = None
    resource_version: Any = None


class StoredPodSpec(PodSpec, frozen=True):
    """The specification of a pod of a cluster."""

    volumes: tuple[NamedVolume, ...] = ()


class StoredPod(Pod, frozen=True):
    """A pod of a cluster. Admission does not read creation times, so that equal pods get equal decisions."""

    metadata: StoredMetadata
    spec: StoredPodSpec


NamespacedObject = (
    LimitRange
    | ResourceQuota
    | Pod
    | ResourceClaim
    | ResourceClaimTemplate
    | PersistentVolumeClaim
    | CSIStorageCapacity
    | LocalQueue
    | MachineDeployment
    | Service
    | StatefulSet
)


def object_namespace(item: NamespacedObject) -> str:
    """Return the namespace of an object; files leave "default" out."""
    return item.metadata.namespace or DEFAULT_NAMESPACE


def version_of(pod: Pod) -> int:
    """Return the resource version of a pod; 0 if it is unknown."""
    metadata = pod.metadata
    return parse_resource_version(metadata.resource_version) if isinstance(metadata, StoredMetadata) else 0


def parse_resource_version(text: object) -> int:
    """Return a resource version as an integer; 0 if it is none. Kubernetes orders the versions of one resource so."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20 else 0


def creation_order(pod: Pod) -> tuple[str, str, str]:
    """Return the sort key for pods in order of creation, then of name."""
    metadata = pod.metadata
    moment = metadata.creation_timestamp if isinstance(metadata, StoredMetadata) else None
    return moment if isinstance(moment, str) else "", object_namespace(pod), metadata.name


def created_at(pod: Pod) -> float:
    """Return the creation time of a pod in Unix seconds; infinity if it is unknown."""
    try:
        return datetime.fromisoformat(creation_order(pod)[0]).timestamp()
    except (ValueError, OverflowError):
        return math.inf
