"""One pod of each workload of a cluster, for trials of policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.pod_audit import is_active_pod
from webhook.console.compact_documents import compress_object, restore_object
from webhook.model.field_paths import list_at, map_at
from webhook.well_known import Json

MAX_SAMPLES = 50_000
"""Workloads of which a pod is kept."""


OwnerKey = tuple[str, str]
"""Namespace, and uid or name of the owner of pods; a pod without an owner is its own."""


class PodSample(NamedTuple):
    """A pod of a workload, compressed."""

    namespace: str
    name: str
    compressed: bytes

    def restore(self) -> SourceObject:
        """Return the pod."""
        return restore_object(self.compressed, "cluster")


class PodSamples:
    """Keeps the first active pod of each owner.

    Attributes:
        omitted: Pods whose owners were not kept; when it is full, pods that request devices replace others.
    """

    def __init__(self, most: int = MAX_SAMPLES) -> None:
        self._most, self.omitted = most, 0
        self._samples: dict[OwnerKey, PodSample] = {}
        self._without_devices: list[OwnerKey] = []

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[PodSample]:
        return iter(self._samples.values())

    def observe(self, documents: Iterable[SourceObject | SkippedDocument]) -> Iterator[SourceObject | SkippedDocument]:
        """Yield documents, and keep the pods."""
        for each in documents:
            if isinstance(each, SourceObject) and is_active_pod(each.data):
                self._observe_pod(each.data)
            yield each

    def _observe_pod(self, pod: Json) -> None:
        metadata = map_at(pod, "metadata")
        namespace, name = (str(metadata.get(field, "")) for field in ("namespace", "name"))
        owner = map_at(next(iter(list_at(metadata, "ownerReferences")), metadata))
        key = namespace, str(owner.get("uid") or owner.get("name"))
        if key in self._samples:
            return
        has_devices = _requests_devices(pod)
        if len(self._samples) >= self._most:
            self.omitted += 1
            if not has_devices or not self._without_devices:
                return
            del self._samples[self._without_devices.pop()]
        self._samples[key] = PodSample(namespace, name, compress_object(pod))
        if not has_devices:
            self._without_devices.append(key)


def _requests_devices(pod: Json) -> bool:
    """Return whether a pod requests extended resources, such as GPUs, or resource claims."""
    spec = map_at(pod, "spec")
    containers = [*list_at(spec, "containers"), *list_at(spec, "initContainers")]
    names = (name for each in containers for name in map_at(each, "resources", "limits"))
    return bool(spec.get("resourceClaims")) or any("/" in str(name) for name in names)
