"""From plain data to the objects of a snapshot, with the place of every fault.

A snapshot is judged against, so a fault in it is an error and not a guess: an amount below zero, a label
that is a number, a node without a name. What is no part of a snapshot is left out and counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from webhook.errors import QuantityError, SnapshotError, SourceLocation, shorten_text
from webhook.model.claims import DeviceClass, ResourceClaimTemplate
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.gpu_node import GPUNode
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pods import DEFAULT_NAMESPACE, ObjectMeta, Pod, QuantityText, without_nulls
from webhook.model.quantity import parse_nano, parse_whole_number
from webhook.well_known import API_VERSION


class StoredMetadata(ObjectMeta, frozen=True):
    """Metadata with the moment of creation as it is written; what is no text says nothing."""

    creation_timestamp: Any = None


class StoredPod(Pod, frozen=True):
    """A pod of a cluster. Admission asks of none when it was created: pods that are alike are answered alike."""

    metadata: StoredMetadata


def creation_order(pod: Pod) -> tuple[str, str, str]:
    """What pods are ordered by where it counts who came first: their creation, and their names where that is equal."""
    metadata = pod.metadata
    moment = metadata.creation_timestamp if isinstance(metadata, StoredMetadata) else None
    return moment if isinstance(moment, str) else "", metadata.namespace or DEFAULT_NAMESPACE, metadata.name


def created_at(pod: Pod) -> float:
    """When a pod was created, seconds since the epoch; infinite where nothing tells."""
    try:
        return datetime.fromisoformat(creation_order(pod)[0]).timestamp()
    except (ValueError, OverflowError):
        return math.inf


SnapshotObject = Node | Namespace | LimitRange | ResourceQuota | Pod | GPUNode | ResourceClaimTemplate | DeviceClass
"""What a snapshot is made of."""

_SNAPSHOT_TYPES: tuple[type[SnapshotObject], ...] = (
    Node, Namespace, LimitRange, ResourceQuota, Pod, GPUNode, ResourceClaimTemplate, DeviceClass,
)  # fmt: skip
_TYPE_BY_KIND: dict[str, type[SnapshotObject]] = {kept.__name__: kept for kept in _SNAPSHOT_TYPES} | {"Pod": StoredPod}
_API_VERSIONS = {
    "GPUNode": API_VERSION,
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "DeviceClass": "resource.k8s.io/v1",
}
"""The apiVersion of a kind, where it is not that of the core."""

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
    """Plain data, and where a path in it stands."""

    data: Any
    place_at: Callable[[FieldPath], SourceLocation]


def expand_lists(found: RawObject) -> Iterator[RawObject]:
    """The objects that data stands for: itself, or the items of a List of any kind."""
    data = found.data
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(data.get("items"), list):
        yield found
        return
    typed = {"apiVersion": data.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    for place, item in enumerate(data["items"]):
        whole_item = {**typed, **item} if isinstance(item, dict) else item
        yield from expand_lists(RawObject(whole_item, _list_item_place(found, place)))


def _list_item_place(found: RawObject, place: int) -> Callable[[FieldPath], SourceLocation]:
    return lambda path: found.place_at(("items", place, *path))


def skipped_kind(found: RawObject) -> str:
    """What to call data that is skipped; "" for what is kept or ignored without a word."""
    data = found.data
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        return "(no kind)"
    kind, version = data["kind"], data.get("apiVersion", "v1")
    if kind in _TYPE_BY_KIND and version == _API_VERSIONS.get(kind, "v1"):
        return ""
    return str(kind) if version == "v1" else f"{kind} ({shorten_text(str(version))})"


def read_snapshot_object(found: RawObject) -> SnapshotObject:
    """Read one object of a kind that is kept.

    Raises:
        SnapshotError: the object is not what its kind says.
    """
    kind = found.data["kind"]
    try:
        kept = msgspec.convert(without_nulls(found.data), _TYPE_BY_KIND[kind])
    except msgspec.ValidationError as error:
        raise _shape_error(found, str(error)) from error
    except RecursionError as error:
        raise SnapshotError(found.place_at(()), f"{kind}: must be less deep. Write it flatter") from error
    if not kept.metadata.name and not (isinstance(kept, Pod) and kept.metadata.generate_name):
        place = found.place_at(("metadata",))
        raise SnapshotError(place, f"{kind}: metadata.name must be given, found none. Write metadata: {{name: ...}}")
    for path, amounts in _amounts_to_check(kept):
        _check_amounts(found, path, amounts)
    return kept


def _amounts_to_check(kept: SnapshotObject) -> Iterator[tuple[FieldPath, Mapping[str, QuantityText]]]:
    """The amounts that a snapshot is judged by. Those of pods are for whoever judges the pods."""
    if isinstance(kept, Node):
        yield ("status", "allocatable"), kept.status.allocatable
        yield ("status", "capacity"), kept.status.capacity
    elif isinstance(kept, ResourceQuota):
        yield ("spec", "hard"), kept.spec.hard
        yield ("status", "hard"), kept.status.hard
        yield ("status", "used"), kept.status.used
    elif isinstance(kept, LimitRange):
        for place, item in enumerate(kept.spec.limits):
            for field in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
                yield ("spec", "limits", place, field), getattr(item, _to_snake_case(field))


def _to_snake_case(field: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", field).lower()


def _check_amounts(found: RawObject, path: FieldPath, amounts: Mapping[str, QuantityText]) -> None:
    for name, amount in amounts.items():
        at = (*path, name)
        wrong = _snapshot_amount_error(name, amount, counted=path[0] == "status" and path[1] != "used")
        if wrong:
            raise SnapshotError(found.place_at(at), f"{_object_title(found)}: {format_path(at)}: {wrong}")


def _snapshot_amount_error(name: str, amount: QuantityText, *, counted: bool) -> str:
    """What is wrong with an amount; "" if nothing is."""
    try:
        value = parse_nano(amount)
    except QuantityError as error:
        return f'{error}. Write a quantity such as "8" or 512Gi'
    if value < 0:
        return f'must be zero or more, found {shorten_text(str(amount))}. Write "0" or more'
    if counted and parse_gpu_resource(name) and parse_whole_number(amount) is None:
        return f'must be a whole number of GPUs, found {shorten_text(str(amount))}. Write "{value // 1_000_000_000}"'
    return ""


def _shape_error(found: RawObject, message: str) -> SnapshotError:
    """A shape error with its place: the decoder's sentence ends in the path, "- at `$.spec.taints[0]`"."""
    sentence, _, where = message.partition(" - at `$")
    path = _decoder_path(found.data, where.rstrip("`"), sentence)
    return SnapshotError(
        found.place_at(path), f"{_object_title(found)}: {format_path(path) or 'object'}: {_mismatch_in_words(sentence)}"
    )


def _mismatch_in_words(sentence: str) -> str:
    """The decoder's "Expected `str`, got `int`" in the words of people who write YAML."""
    match = _TYPE_MISMATCH.match(sentence)
    if match is None:
        return f"{sentence}. Write what kubectl get -o yaml prints"
    expected, got = match.groups()
    wanted = _YAML_TYPES.get(expected, "text or a number")  # an amount is the one field of several types
    fix = 'it in quotes, as in "8"' if expected == "str" else wanted
    return f"must be {wanted}, found {_YAML_TYPES.get(got, got)}. Write {fix}"


def _decoder_path(data: Any, where: str, sentence: str) -> FieldPath:
    """The path that the decoder means; for a map it says only "[...]", so the first value of the wrong type."""
    path: FieldPath = ()
    wrong = _JSON_TYPES.get(sentence.rpartition("got `")[2].rstrip("`"))
    for name, position in _PATH_STEP.findall(where):
        step = name or (int(position) if position.isdigit() else _key_of_wrong_type(data, wrong))
        data = _value_at_step(data, step)
        if data is None:
            break
        path = (*path, step)
    return path


def _key_of_wrong_type(data: Any, wrong: type | None) -> str:
    values = data.items() if isinstance(data, dict) else ()
    return next((key for key, value in values if type(value) is wrong), "")


def _value_at_step(data: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return data[step] if isinstance(data, list) and step < len(data) else None
    return data.get(step) if isinstance(data, dict) else None


def _object_title(found: RawObject) -> str:
    metadata = found.data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{found.data['kind']} {shorten_text(name)}" if isinstance(name, str) and name else str(found.data["kind"])
