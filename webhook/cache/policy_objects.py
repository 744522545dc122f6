"""Store of the GPUPolicy and GPUPolicyException objects, which are loaded as texts like policy files.

Status conditions count for the current generation only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from webhook.cache.store import ObjectStore
from webhook.well_known import API_VERSION

TEXT_METADATA = ("name", "namespace", "labels")

ObjectData = Mapping[str, Any]

READY, HALTED = "Ready", "RolloutHalted"


class PolicyObjects:
    """The policies and exceptions of a cluster.

    Attributes:
        policies, exceptions: The stores, one per reflector.
        version: Incremented with each change.
        wake: Set at each change.
        delivered: True once they were loaded after the first list.
    """

    def __init__(self) -> None:
        self.policies: ObjectStore[ObjectData] = ObjectStore(_policy_object_key, self._on_change)
        self.exceptions: ObjectStore[ObjectData] = ObjectStore(_policy_object_key, self._on_change)
        self.version = 0
        self.wake = asyncio.Event()
        self.delivered = False

    def texts(self) -> list[tuple[str, str]]:
        """Return the display name and the text of each object, the oldest first: of two that conflict, it stays."""
        objects = sorted(self.objects().items(), key=_age_order)
        return [(name, policy_text(name.partition("/")[0], data)) for name, data in objects]

    def objects(self) -> dict[str, ObjectData]:
        """Return the objects by display name (kind and name)."""
        kinds = (("GPUPolicy", self.policies), ("GPUPolicyException", self.exceptions))
        return {f"{kind}/{name}": data for kind, store in kinds for name, data in store.items.items()}

    def halted_names(self) -> list[str]:
        """Return the display names of policies whose rollout is halted."""
        return [f"GPUPolicy/{name}" for name, data in self.policies.items.items() if is_rollout_halted(data)]

    def ready_names(self) -> list[str]:
        """Return the display names of objects whose Ready condition is true."""
        return [name for name, data in self.objects().items() if _is_condition_true(data, READY)]

    def _on_change(self, _key: str, before: ObjectData | None, after: ObjectData | None) -> None:
        if before is not None and after is not None and _evaluated_part(before) == _evaluated_part(after):
            return  # only its status or managedFields changed
        self.version += 1
        self.wake.set()


def policy_text(kind: str, data: ObjectData) -> str:
    """Return the written part of an object as the text of a policy file. Items of a list have no kind."""
    metadata = data.get("metadata") or {}
    written = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {key: metadata[key] for key in TEXT_METADATA if metadata.get(key)},
        "spec": data.get("spec"),
    }
    return orjson.dumps(written, option=orjson.OPT_INDENT_2).decode()


def find_condition(data: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the condition of a type for the current generation; None if there is none."""
    generation = (data.get("metadata") or {}).get("generation", 0)
    conditions = (data.get("status") or {}).get("conditions") or []
    current = (one for one in conditions if one.get("type") == kind and one.get("observedGeneration") == generation)
    return next(current, None)


def is_rollout_halted(data: Mapping[str, Any]) -> bool:
    """Return whether the rollout of the current generation was halted."""
    return _is_condition_true(data, HALTED)


def _is_condition_true(data: Mapping[str, Any], kind: str) -> bool:
    condition = find_condition(data, kind)
    return condition is not None and condition.get("status") == "True"


def _evaluated_part(data: ObjectData) -> tuple[str, bool]:
    return policy_text("", data), is_rollout_halted(data)


def _age_order(item: tuple[str, ObjectData]) -> tuple[str, str]:
    name, data = item
    return str((data.get("metadata") or {}).get("creationTimestamp") or ""), name


def _policy_object_key(data: ObjectData) -> str:
    metadata = data.get("metadata") or {}
    return "/".join(filter(None, (str(metadata.get("namespace") or ""), str(metadata.get("name", "")))))
