"""Facts about objects as the API server stores them: namespace, creation time, and whether a pod has finished."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from webhook.model.claims import ResourceClaimTemplate
from webhook.model.objects import LimitRange, ResourceQuota
from webhook.model.pods import DEFAULT_NAMESPACE, ObjectMeta, Pod

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases of pods that no longer hold resources."""


class StoredMetadata(ObjectMeta, frozen=True):
    """Metadata with the creation time as it is written; anything but text counts as missing."""

    creation_timestamp: Any = None


class StoredPod(Pod, frozen=True):
    """A pod of a cluster. Admission does not read creation times, so that equal pods get equal decisions."""

    metadata: StoredMetadata


def object_namespace(item: LimitRange | ResourceQuota | Pod | ResourceClaimTemplate) -> str:
    """Return the namespace of an object; files leave "default" out."""
    return item.metadata.namespace or DEFAULT_NAMESPACE


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
