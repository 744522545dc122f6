"""Policies and exceptions that are objects of the cluster, as texts for the loader that reads files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from webhook.cache.store import StoreReader, StoreWriter
from webhook.model.conditions import is_ready_condition_true, is_rollout_halted
from webhook.well_known import API_VERSION

TEXT_METADATA = ("name", "namespace", "labels")

ObjectData = Mapping[str, Any]


class PolicyObjects:
    """What readers have.

    Attributes:
        policies, exceptions: The writers, one for each watch.
        version: Grows with each change.
        wake: Set at each change.
        handed_on: Were they read once since they were synced?
    """

    def __init__(self) -> None:
        self._policies: StoreReader[ObjectData] = StoreReader()
        self._exceptions: StoreReader[ObjectData] = StoreReader()
        self.policies = StoreWriter(self._policies, _policy_object_key, self._on_change)
        self.exceptions = StoreWriter(self._exceptions, _policy_object_key, self._on_change)
        self.version = 0
        self.wake = asyncio.Event()
        self.delivered = False

    def texts(self) -> list[tuple[str, str]]:
        """What to call each object in messages, and its text; by kind and name."""
        return sorted((name, policy_text(name.partition("/")[0], data)) for name, data in self.objects().items())

    def objects(self) -> dict[str, ObjectData]:
        """The objects, by what they are called in messages: kind and name."""
        kinds = (("GPUPolicy", self._policies), ("GPUPolicyException", self._exceptions))
        return {f"{kind}/{name}": data for kind, store in kinds for name, data in store.items.items()}

    def halted_names(self) -> list[str]:
        """What the policies are called whose rollout was halted."""
        return [f"GPUPolicy/{name}" for name, data in self._policies.items.items() if is_rollout_halted(data)]

    def ready_names(self) -> list[str]:
        """What the objects are called of which a server says that it uses them."""
        return [name for name, data in self.objects().items() if is_ready_condition_true(data)]

    def _on_change(self, _key: str, before: ObjectData | None, after: ObjectData | None) -> None:
        if before is not None and after is not None and _evaluated_part(before) == _evaluated_part(after):
            return  # the rest of its status, or what a server notes about who wrote what
        self.version += 1
        self.wake.set()


def policy_text(kind: str, data: ObjectData) -> str:
    """The part of an object that somebody wrote, as the text of a policy file. Items of a list say no kind."""
    metadata = data.get("metadata") or {}
    written = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {key: metadata[key] for key in TEXT_METADATA if metadata.get(key)},
        "spec": data.get("spec"),
    }
    return orjson.dumps(written, option=orjson.OPT_INDENT_2).decode()


def _evaluated_part(data: ObjectData) -> tuple[str, bool]:
    """What of an object decides about pods."""
    return policy_text("", data), is_rollout_halted(data)


def _policy_object_key(data: ObjectData) -> str:
    metadata = data.get("metadata") or {}
    return "/".join(filter(None, (str(metadata.get("namespace") or ""), str(metadata.get("name", "")))))
