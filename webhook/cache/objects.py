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

from webhook.errors import Place, QuantityError, SnapshotError, shorten
from webhook.model.claims import DeviceClass, ResourceClaimTemplate
from webhook.model.gpunodes import GPUNode
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.paths import Path, dotted
from webhook.model.pods import DEFAULT_NAMESPACE, Amount, Metadata, Pod, without_nulls
from webhook.model.quantity import nano, whole
from webhook.model.resources import gpu_resource


class StoredMetadata(Metadata, frozen=True):
    """Metadata with the moment of creation as it is written; what is no text says nothing."""

    creation_timestamp: Any = None


class StoredPod(Pod, frozen=True):
    """A pod of a cluster. Admission asks of none when it was created: pods that are alike are answered alike."""

    metadata: StoredMetadata


def came(pod: Pod) -> tuple[str, str, str]:
    """What pods are ordered by where it counts who came first: their creation, and their names where that is equal."""
    metadata = pod.metadata
    moment = metadata.creation_timestamp if isinstance(metadata, StoredMetadata) else None
    return moment if isinstance(moment, str) else "", metadata.namespace or DEFAULT_NAMESPACE, metadata.name


def made_at(pod: Pod) -> float:
    """When a pod was created, seconds since the epoch; infinite where nothing tells."""
    try:
        return datetime.fromisoformat(came(pod)[0]).timestamp()
    except (ValueError, OverflowError):
        return math.inf


Kept = Node | Namespace | LimitRange | ResourceQuota | Pod | GPUNode | ResourceClaimTemplate | DeviceClass
"""What a snapshot is made of."""

_KEPT: tuple[type[Kept], ...] = (
    Node, Namespace, LimitRange, ResourceQuota, Pod, GPUNode, ResourceClaimTemplate, DeviceClass,
)  # fmt: skip
_TYPES: dict[str, type[Kept]] = {kept.__name__: kept for kept in _KEPT} | {"Pod": StoredPod}
_VERSIONS = {
    "GPUNode": "rightslice.dev/v1alpha1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "DeviceClass": "resource.k8s.io/v1",
}
"""The apiVersion of a kind, where it is not that of the core."""

_STEP = re.compile(r"\.([A-Za-z0-9_]+)|\[(\d+|\.\.\.)\]", re.ASCII)
_GOT = re.compile(r"Expected `([^`]*)`, got `([^`]*)`\Z")
_NAMES = {"int": int, "float": float, "bool": bool, "str": str, "array": list, "object": dict}
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a map",
}


class Found(NamedTuple):
    """Plain data, and where a path in it stands."""

    data: Any
    at: Callable[[Path], Place]


def members(found: Found) -> Iterator[Found]:
    """The objects that data stands for: itself, or the items of a List of any kind."""
    data = found.data
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(data.get("items"), list):
        yield found
        return
    typed = {"apiVersion": data.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    for place, item in enumerate(data["items"]):
        whole_item = {**typed, **item} if isinstance(item, dict) else item
        yield from members(Found(whole_item, _inside(found, place)))


def _inside(found: Found, place: int) -> Callable[[Path], Place]:
    return lambda path: found.at(("items", place, *path))


def kind_of(found: Found) -> str:
    """What to call data that is skipped; "" for what is kept or ignored without a word."""
    data = found.data
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        return "(no kind)"
    kind, version = data["kind"], data.get("apiVersion", "v1")
    if kind in _TYPES and version == _VERSIONS.get(kind, "v1"):
        return ""
    return str(kind) if version == "v1" else f"{kind} ({shorten(str(version))})"


def read_object(found: Found) -> Kept:
    """Read one object of a kind that is kept.

    Raises:
        SnapshotError: the object is not what its kind says.
    """
    kind = found.data["kind"]
    try:
        kept = msgspec.convert(without_nulls(found.data), _TYPES[kind])
    except msgspec.ValidationError as error:
        raise _misshapen(found, str(error)) from error
    except RecursionError as error:
        raise SnapshotError(found.at(()), f"{kind}: must be less deep. Write it flatter") from error
    if not kept.metadata.name and not (isinstance(kept, Pod) and kept.metadata.generate_name):
        place = found.at(("metadata",))
        raise SnapshotError(place, f"{kind}: metadata.name must be given, found none. Write metadata: {{name: ...}}")
    for path, amounts in _amounts(kept):
        _check(found, path, amounts)
    return kept


def _amounts(kept: Kept) -> Iterator[tuple[Path, Mapping[str, Amount]]]:
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
                yield ("spec", "limits", place, field), getattr(item, _snake(field))


def _snake(field: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", field).lower()


def _check(found: Found, path: Path, amounts: Mapping[str, Amount]) -> None:
    for name, amount in amounts.items():
        at = (*path, name)
        wrong = _fault(name, amount, counted=path[0] == "status" and path[1] != "used")
        if wrong:
            raise SnapshotError(found.at(at), f"{_called(found)}: {dotted(at)}: {wrong}")


def _fault(name: str, amount: Amount, *, counted: bool) -> str:
    """What is wrong with an amount; "" if nothing is."""
    try:
        value = nano(amount)
    except QuantityError as error:
        return f'{error}. Write a quantity such as "8" or 512Gi'
    if value < 0:
        return f'must be zero or more, found {shorten(str(amount))}. Write "0" or more'
    if counted and gpu_resource(name) and whole(amount) is None:
        return f'must be a whole number of GPUs, found {shorten(str(amount))}. Write "{value // 1_000_000_000}"'
    return ""


def _misshapen(found: Found, message: str) -> SnapshotError:
    """A shape error with its place: the decoder's sentence ends in the path, "- at `$.spec.taints[0]`"."""
    sentence, _, where = message.partition(" - at `$")
    path = _walk(found.data, where.rstrip("`"), sentence)
    return SnapshotError(found.at(path), f"{_called(found)}: {dotted(path) or 'object'}: {_in_words(sentence)}")


def _in_words(sentence: str) -> str:
    """The decoder's "Expected `str`, got `int`" in the words of people who write YAML."""
    match = _GOT.match(sentence)
    if match is None:
        return f"{sentence}. Write what kubectl get -o yaml prints"
    expected, got = match.groups()
    wanted = _WORDS.get(expected, "text or a number")  # an amount is the one field of several types
    fix = 'it in quotes, as in "8"' if expected == "str" else wanted
    return f"must be {wanted}, found {_WORDS.get(got, got)}. Write {fix}"


def _walk(data: Any, where: str, sentence: str) -> Path:
    """The path that the decoder means; for a map it says only "[...]", so the first value of the wrong type."""
    path: Path = ()
    wrong = _NAMES.get(sentence.rpartition("got `")[2].rstrip("`"))
    for name, position in _STEP.findall(where):
        step = name or (int(position) if position.isdigit() else _wrong_key(data, wrong))
        data = _child(data, step)
        if data is None:
            break
        path = (*path, step)
    return path


def _wrong_key(data: Any, wrong: type | None) -> str:
    values = data.items() if isinstance(data, dict) else ()
    return next((key for key, value in values if type(value) is wrong), "")


def _child(data: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return data[step] if isinstance(data, list) and step < len(data) else None
    return data.get(step) if isinstance(data, dict) else None


def _called(found: Found) -> str:
    metadata = found.data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{found.data['kind']} {shorten(name)}" if isinstance(name, str) and name else str(found.data["kind"])
