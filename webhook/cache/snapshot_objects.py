"""Decode and validate the objects of a snapshot; every error names file, line and field.

Pods are evaluated against a snapshot, so invalid objects are errors: a negative amount, a label that is a number, a
node without a name. Other kinds of objects are skipped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from webhook.cache.scheduler_fields import find_field_error
from webhook.cache.stored_objects import NamespacedObject, StoredPod
from webhook.errors import QuantityError, SnapshotError, SourceLocation, quote_text, shorten_text
from webhook.model.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate, claim_amounts
from webhook.model.dra.device_taint_rules import DeviceTaintRule
from webhook.model.dra.resource_slices import ResourceSlice, slice_amounts
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.filters.pod_topology_spread import PeerSelectors, Service, StatefulSet
from webhook.model.gpu_node import GPUNode
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.node_groups import (
    MACHINE_API_VERSION,
    NODE_OVERLAY_API_VERSION,
    NODE_POOL_API_VERSION,
    GroupSources,
    KarpenterPool,
    MachineDeployment,
    MachineSet,
    NodeGroups,
    NodeGroupSpec,
    NodeOverlay,
)
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pod_classes import PriorityClass, RuntimeClass
from webhook.model.pods import Pod, QuantityText, without_nulls
from webhook.model.quantity import parse_nano, parse_whole_number
from webhook.model.queue_quotas import ClusterQueue, Cohort
from webhook.model.queue_topologies import NodeTopology
from webhook.model.queues import (
    KUEUE_API_VERSION,
    OLDER_KUEUE_API_VERSION,
    AdmissionCheck,
    KueueConfiguration,
    LocalQueue,
    QueueCharging,
    ResourceFlavor,
    ResourceTransformation,
)
from webhook.model.schedulers import (
    SCHEDULER_API_VERSION,
    KubeSchedulerConfiguration,
    Schedulers,
    collect_schedulers,
)
from webhook.model.storage_objects import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from webhook.model.volcano_queues import VOLCANO_API_VERSION, VolcanoQueue
from webhook.well_known import API_VERSION

ClusterScoped = (
    Node
    | Namespace
    | GPUNode
    | DeviceClass
    | ResourceSlice
    | DeviceTaintRule
    | RuntimeClass
    | PriorityClass
    | PersistentVolume
    | StorageClass
    | CSINode
    | CSIDriver
    | VolumeAttachment
    | ClusterQueue
    | Cohort
    | ResourceFlavor
    | NodeTopology
    | AdmissionCheck
    | VolcanoQueue
    | KueueConfiguration
    | NodeOverlay
    | KarpenterPool
    | NodeGroups
    | KubeSchedulerConfiguration
)
"""The objects of a snapshot that have no namespace."""

SnapshotObject = ClusterScoped | NamespacedObject
"""The objects of a snapshot."""

_SNAPSHOT_TYPES: tuple[type[SnapshotObject], ...] = (
    Node, Namespace, LimitRange, ResourceQuota, Pod, GPUNode, ResourceSlice, ResourceClaim, ResourceClaimTemplate,
    DeviceTaintRule, DeviceClass, RuntimeClass, PriorityClass, PersistentVolumeClaim, PersistentVolume, StorageClass,
    CSINode, CSIDriver, CSIStorageCapacity, VolumeAttachment, LocalQueue, ClusterQueue, ResourceFlavor, VolcanoQueue,
    NodeOverlay, KarpenterPool, MachineDeployment, MachineSet, NodeGroups, KubeSchedulerConfiguration,
    AdmissionCheck, Service, StatefulSet, Cohort,
)  # fmt: skip
_TYPE_BY_KIND: dict[str, type[SnapshotObject]] = {each.__name__: each for each in _SNAPSHOT_TYPES} | {
    "Pod": StoredPod,
    "Configuration": KueueConfiguration,
    "Queue": VolcanoQueue,
    "NodePool": KarpenterPool,
    "Topology": NodeTopology,
}
_KUEUE_KINDS = ("LocalQueue", "ClusterQueue", "Cohort", "ResourceFlavor", "Topology", "AdmissionCheck")
"""The kinds of Kueue's objects."""

_API_VERSIONS = {
    "GPUNode": API_VERSION,
    "ResourceSlice": "resource.k8s.io/v1",
    "DeviceTaintRule": "resource.k8s.io/v1",
    "ResourceClaim": "resource.k8s.io/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "DeviceClass": "resource.k8s.io/v1",
    "RuntimeClass": "node.k8s.io/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
    "CSINode": "storage.k8s.io/v1",
    "CSIDriver": "storage.k8s.io/v1",
    "CSIStorageCapacity": "storage.k8s.io/v1",
    "VolumeAttachment": "storage.k8s.io/v1",
    **dict.fromkeys(_KUEUE_KINDS, KUEUE_API_VERSION),
    "Queue": VOLCANO_API_VERSION,
    "StatefulSet": "apps/v1",
    "KubeSchedulerConfiguration": SCHEDULER_API_VERSION,
    "Configuration": f"config.{KUEUE_API_VERSION}",
    "NodeOverlay": NODE_OVERLAY_API_VERSION,
    "NodePool": NODE_POOL_API_VERSION,
    "MachineDeployment": MACHINE_API_VERSION,
    "MachineSet": MACHINE_API_VERSION,
    "NodeGroups": API_VERSION,
}
"""apiVersion of the kinds outside the core group."""

_OLDER_API_VERSIONS = dict.fromkeys(_KUEUE_KINDS, (OLDER_KUEUE_API_VERSION,)) | {
    "Configuration": (f"config.{OLDER_KUEUE_API_VERSION}",),
    "DeviceTaintRule": ("resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3"),
}
"""Older apiVersions in which what is read has the same names."""

_PATH_STEP = re.compile(r"\.([A-Za-z0-9_]+)|\[(\d+|\.\.\.)\]", re.ASCII)
_TYPE_MISMATCH = re.compile(r"Expected `([^`]*)`, got `([^`]*)`\Z")
_JSON_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "array": list, "object": dict}
_YAML_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a map",
}


class RawObject(NamedTuple):
    """Decoded YAML or JSON, and a function from a path in it to its file and line."""

    data: Any
    place_at: Callable[[FieldPath], SourceLocation]


def expand_lists(raw: RawObject) -> Iterator[RawObject]:
    """Yield the object itself, or the items of a List of any kind."""
    data = raw.data
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(data.get("items"), list):
        yield raw
        return
    typed = {"apiVersion": data.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    for place, item in enumerate(data["items"]):
        whole_item = {**typed, **item} if isinstance(item, dict) else item
        yield from expand_lists(RawObject(whole_item, _list_item_place(raw, place)))


def _list_item_place(raw: RawObject, place: int) -> Callable[[FieldPath], SourceLocation]:
    return lambda path: raw.place_at(("items", place, *path))


def skipped_kind(raw: RawObject) -> str:
    """Return the name of a kind that is skipped; "" for an object of a snapshot."""
    data = raw.data
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        return "(no kind)"
    kind, version = data["kind"], data.get("apiVersion", "v1")
    if kind in _TYPE_BY_KIND and version in (_API_VERSIONS.get(kind, "v1"), *_OLDER_API_VERSIONS.get(kind, ())):
        return ""
    return str(kind) if version == "v1" else f"{kind} ({shorten_text(str(version))})"


def read_snapshot_object(raw: RawObject) -> SnapshotObject:
    """Decode one object.

    Raises:
        SnapshotError: The object is invalid.
    """
    kind = raw.data["kind"]
    if kind == "KubeSchedulerConfiguration" and (wrong := find_field_error(raw.data)) is not None:
        raise _field_error(raw, wrong.path, wrong.sentence)
    try:
        item = msgspec.convert(without_nulls(raw.data), _TYPE_BY_KIND[kind])
    except msgspec.ValidationError as error:
        raise _shape_error(raw, str(error)) from error
    except RecursionError as error:
        raise SnapshotError(raw.place_at(()), f"{kind}: is nested too deeply. Reduce the nesting") from error
    if not item.metadata.name and not (isinstance(item, Pod) and item.metadata.generate_name):
        place = raw.place_at(("metadata",))
        raise SnapshotError(place, f"{kind}: metadata.name must be given, found none. Write metadata: {{name: ...}}")
    if isinstance(item, Node) and "/" in item.metadata.name:
        place, found = raw.place_at(("metadata", "name")), quote_text(item.metadata.name)
        raise SnapshotError(place, f"Node: metadata.name must not contain /, found {found}. Write the name of the node")
    for path, amounts in _amounts_to_check(item):
        _check_amounts(raw, path, amounts)
    if isinstance(item, KueueConfiguration):
        _check_charging(raw, item)
    return item


def _check_charging(raw: RawObject, item: KueueConfiguration) -> None:
    """Check how Kueue charges resources: it does not start with an unknown key or value."""
    section = raw.data.get("resources") or {}
    _check_keys(raw, ("resources",), section, (*QueueCharging.__struct_encode_fields__, "deviceClassMappings"))
    for place, transformation in enumerate(item.resources.transformations):
        path: FieldPath = ("resources", "transformations", place)
        _check_keys(raw, path, section["transformations"][place], ResourceTransformation.__struct_encode_fields__)
        _check_choice(raw, (*path, "strategy"), transformation.strategy, ("Replace", "Retain"))
    strategy = item.resources.quota_check_strategy
    _check_choice(raw, ("resources", "quotaCheckStrategy"), strategy, ("BlockUndeclared", "IgnoreUndeclared"))


def _check_keys(raw: RawObject, path: FieldPath, found: Iterable[str], known: Iterable[str]) -> None:
    unknown = next((key for key in found if key not in known), None)
    if unknown is not None:
        at, names = (*path, unknown), ", ".join(known)
        sentence = f"must be one of {names}, found {quote_text(unknown)}. Write one of them, or remove it"
        raise _field_error(raw, at, sentence)


def _check_choice(raw: RawObject, path: FieldPath, found: str, known: Iterable[str]) -> None:
    if found not in known:
        sentence = f"must be {' or '.join(known)}, found {quote_text(found)}. Write one of them"
        raise _field_error(raw, path, sentence)


def _amounts_to_check(item: SnapshotObject) -> Iterator[tuple[FieldPath, Mapping[str, QuantityText]]]:
    """Yield the amounts to validate. Those of pods are validated when the pods are evaluated."""
    if isinstance(item, Node):
        yield ("status", "allocatable"), item.status.allocatable
        yield ("status", "capacity"), item.status.capacity
    elif isinstance(item, ResourceQuota):
        yield ("spec", "hard"), item.spec.hard
        yield ("status", "hard"), item.status.hard
        yield ("status", "used"), item.status.used
    elif isinstance(item, ClusterQueue | Cohort | KueueConfiguration):
        yield from _amounts_of_queues(item)
    elif isinstance(item, NodeOverlay):
        yield ("spec", "capacity"), item.spec.capacity
    elif isinstance(item, NodeGroups):
        yield from _amounts_of_groups(item.node_groups)
    elif isinstance(item, ResourceSlice | ResourceClaim):
        yield from slice_amounts(item) if isinstance(item, ResourceSlice) else claim_amounts(item)
    elif isinstance(item, RuntimeClass):
        yield ("overhead", "podFixed"), item.overhead.pod_fixed
    elif isinstance(item, LimitRange):
        for place, limit in enumerate(item.spec.limits):
            for field in msgspec.structs.fields(limit):
                if field.name != "type":
                    yield ("spec", "limits", place, field.encode_name), getattr(limit, field.name)


def _amounts_of_queues(
    item: ClusterQueue | Cohort | KueueConfiguration,
) -> Iterator[tuple[FieldPath, Mapping[str, QuantityText]]]:
    if isinstance(item, KueueConfiguration):
        for place, transformation in enumerate(item.resources.transformations):
            yield ("resources", "transformations", place, "outputs"), transformation.outputs
        return
    for place, group in enumerate(item.spec.resource_groups):
        for number, flavor in enumerate(group.flavors):
            for index, each in enumerate(flavor.resources):
                at = ("spec", "resourceGroups", place, "flavors", number, "resources", index)
                limits = {"borrowingLimit": each.borrowing_limit, "lendingLimit": each.lending_limit}
                yield at, {"nominalQuota": each.nominal_quota} | {k: v for k, v in limits.items() if v is not None}


def _amounts_of_groups(
    groups: Iterable[NodeGroupSpec],
) -> Iterator[tuple[FieldPath, Mapping[str, QuantityText]]]:
    for place, group in enumerate(groups):
        yield ("nodeGroups", place, "resources"), group.resources
        for number, each in enumerate(group.resource_slices):
            of_slice: FieldPath = ("nodeGroups", place, "resourceSlices", number)
            yield from (((*of_slice, *path), amounts) for path, amounts in slice_amounts(each))


STORED_BELOW_ZERO = (("spec", "limits"), ("spec", "devices"), ("spec", "sharedCounters"))
"""Fields of which the API server stores any amount: those of LimitRanges, ResourceSlices and claims."""


def _check_amounts(raw: RawObject, path: FieldPath, amounts: Mapping[str, QuantityText]) -> None:
    for name, amount in amounts.items():
        at = (*path, name)
        wrong = _snapshot_amount_error(
            name,
            amount,
            counted=path[0] == "status" and path[1] != "used",
            signed=path[:2] in STORED_BELOW_ZERO,
        )
        if wrong:
            raise _field_error(raw, at, wrong)


def _snapshot_amount_error(name: str, amount: QuantityText, *, counted: bool, signed: bool) -> str:
    try:
        value = parse_nano(amount)
    except QuantityError as error:
        return f'{error}. Write a quantity such as "8" or 512Gi'
    if value < 0 and not signed:
        return f'must be zero or more, found {shorten_text(str(amount))}. Write "0" or more'
    if counted and parse_gpu_resource(name) and parse_whole_number(amount) is None:
        return f'must be a whole number of GPUs, found {shorten_text(str(amount))}. Write "{value // 1_000_000_000}"'
    return ""


def _shape_error(raw: RawObject, message: str) -> SnapshotError:
    """Return a decoding error with its place: the decoder's message ends in the path, "- at `$.spec.taints[0]`"."""
    sentence, _, where = message.partition(" - at `$")
    path = _decoder_path(raw.data, where.rstrip("`"), sentence)
    return _field_error(raw, path, _mismatch_in_words(sentence))


def _field_error(raw: RawObject, path: FieldPath, sentence: str) -> SnapshotError:
    """Return an error about a field, with its place."""
    return SnapshotError(raw.place_at(path), f"{_object_title(raw)}: {format_path(path) or 'object'}: {sentence}")


def _mismatch_in_words(sentence: str) -> str:
    """Translate the decoder's "Expected `str`, got `int`" into YAML terms."""
    match = _TYPE_MISMATCH.match(sentence)
    if match is None:
        return f"{sentence}. Write what kubectl get -o yaml prints"
    expected, got = match[1].removesuffix(" | null"), match[2]
    wanted = _YAML_TYPES.get(expected, "text or a number")  # an amount is the one field of several types
    fix = 'it in quotes, as in "8"' if expected == "str" else wanted
    return f"must be {wanted}, found {_YAML_TYPES.get(got, got)}. Write {fix}"


def _decoder_path(data: Any, where: str, sentence: str) -> FieldPath:
    """Return the decoder's path. For a map it says only "[...]": use the first value of the wrong type."""
    path: FieldPath = ()
    wrong = _JSON_TYPES.get(sentence.rpartition("got `")[2].rstrip("`"))
    for name, position in _PATH_STEP.findall(where):
        step: str | int = name
        if position.isdigit():
            step = place = int(position)
            data = data[place] if isinstance(data, list) and place < len(data) else None
        else:
            values = data if isinstance(data, dict) else {}
            step = name or next((key for key, value in values.items() if type(value) is wrong), "")
            data = values.get(step)
        if data is None:
            break
        path = (*path, step)
    return path


def _object_title(raw: RawObject) -> str:
    metadata = raw.data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{raw.data['kind']} {shorten_text(name)}" if isinstance(name, str) and name else str(raw.data["kind"])


def snapshot_schedulers(objects: Iterable[SnapshotObject]) -> Schedulers:
    """Return the rules of the schedulers whose configuration is among the objects of a snapshot."""
    return collect_schedulers(item for item in objects if isinstance(item, KubeSchedulerConfiguration))


def snapshot_peers(objects: Iterable[SnapshotObject]) -> PeerSelectors:
    """Return what selects the peers of pods. Every cluster has a Service: a snapshot without one has none of them."""
    services: list[Service] = []
    stateful_sets: list[StatefulSet] = []
    for item in objects:
        if isinstance(item, Service):
            services.append(item)
        elif isinstance(item, StatefulSet):
            stateful_sets.append(item)
    return PeerSelectors(services, stateful_sets, are_known=bool(services))


def snapshot_groups(objects: Collection[SnapshotObject]) -> GroupSources:
    """Return what a snapshot has about node groups."""
    return GroupSources(
        tuple([group for item in objects if isinstance(item, NodeGroups) for group in item.node_groups]),
        tuple([item for item in objects if isinstance(item, NodeOverlay)]),
        tuple([item for item in objects if isinstance(item, KarpenterPool)]),
        tuple([item for item in objects if isinstance(item, MachineDeployment)]),
    )
