"""The field set of a created object, as the API server stores it in `metadata.managedFields`.

Source: kubernetes, `FieldsV1`: "f:" before a field, "k:" before the keys of a list's member, "v:" before a value of a
set, and "." for the member itself. Lists without keys, and values that are only replaced whole, have no inner fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

NAMED = ("containers", "initContainers", "volumes", "env", "imagePullSecrets", "resourceClaims", "claims")
KEYS: dict[str, Sequence[str]] = {
    **dict.fromkeys(NAMED, ("name",)),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ownerReferences": ("uid",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""Lists whose members are known by some of their fields."""

SETS = ("finalizers",)
REPLACED_WHOLE = {
    *("nodeSelector", "fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "labelSelector"),
    *("selector", "imagePullSecrets[]", "ownerReferences[]", "secretRef", "configMapRef"),
    "requiredDuringSchedulingIgnoredDuringExecution",
}
ALWAYS_THERE = ("containers", "template", "metadata", "spec")
"""Fields that every object has; they are not recorded as added."""

LEFT_OUT = ("name", "namespace", "uid", "creationTimestamp", "managedFields")
"""Metadata without an owner."""


def managed_fields(data: Json, manager: str) -> Json:
    """Return the entry of the object's creator.

    Args:
        data: The object with its defaults, before admission changes it.
        manager: Who that was.
    """
    metadata = {key: value for key, value in data["metadata"].items() if key not in LEFT_OUT}
    fields = {"f:metadata": _inside(metadata), "f:spec": _inside(data["spec"])}
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": data["apiVersion"],
        "time": "2026-06-01T09:12:43Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {name: inside for name, inside in fields.items() if inside},
    }


def _inside(value: Json) -> Json:
    return {f"f:{key}": _fields(key, inner) for key, inner in sorted(value.items())}


def _fields(name: str, value: Any) -> Json:
    """Return the field set of a value."""
    if name in REPLACED_WHOLE or not value or not isinstance(value, dict | list):
        return {}
    noted = _inside(value) if isinstance(value, dict) else _members(name, value)
    return noted if not noted or name in ALWAYS_THERE else {".": {}} | noted


def _members(name: str, value: list[Any]) -> Json:
    if name in SETS:
        return {f"v:{json.dumps(member)}": {} for member in sorted(value)}
    keys = KEYS.get(name, ())
    if not keys or not all(isinstance(member, dict) and set(keys) <= set(member) for member in value):
        return {}
    found = {_key({key: member[key] for key in keys}): member for member in value}
    return {key: _fields(f"{name}[]", member) for key, member in sorted(found.items())}


def _key(keys: Json) -> str:
    return f"k:{json.dumps(keys, separators=(',', ':'), sort_keys=True)}"
