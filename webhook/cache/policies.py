"""Policies and exceptions that are objects of the cluster, as texts for the loader that reads files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from webhook.cache.store import Store, StoreWriter
from webhook.model.conditions import is_halted, is_ready

KEPT_METADATA = ("name", "namespace", "labels")

Written = Mapping[str, Any]


class PolicyObjects:
    """What readers have.

    Attributes:
        policies, exceptions: The writers, one for each watch.
        version: Grows with each change.
        wake: Set at each change.
        handed_on: Were they read once since they were synced?
    """

    def __init__(self) -> None:
        self._policies: Store[Written] = Store()
        self._exceptions: Store[Written] = Store()
        self.policies = StoreWriter(self._policies, _name, self._changed)
        self.exceptions = StoreWriter(self._exceptions, _name, self._changed)
        self.version = 0
        self.wake = asyncio.Event()
        self.handed_on = False

    def texts(self) -> list[tuple[str, str]]:
        """What to call each object in messages, and its text; by kind and name."""
        return sorted((name, policy_text(name.partition("/")[0], data)) for name, data in self.objects().items())

    def objects(self) -> dict[str, Written]:
        """The objects, by what they are called in messages: kind and name."""
        kinds = (("GPUPolicy", self._policies), ("GPUPolicyException", self._exceptions))
        return {f"{kind}/{name}": data for kind, store in kinds for name, data in store.items.items()}

    def halted(self) -> list[str]:
        """What the policies are called whose rollout was halted."""
        return [f"GPUPolicy/{name}" for name, data in self._policies.items.items() if is_halted(data)]

    def ready(self) -> list[str]:
        """What the objects are called of which a server says that it uses them."""
        return [name for name, data in self.objects().items() if is_ready(data)]

    def _changed(self, _key: str, before: Written | None, after: Written | None) -> None:
        if before is not None and after is not None and _used(before) == _used(after):
            return  # the rest of its status, or what a server notes about who wrote what
        self.version += 1
        self.wake.set()


def policy_text(kind: str, data: Written) -> str:
    """The part of an object that somebody wrote, as the text of a policy file. Items of a list say no kind."""
    metadata = data.get("metadata") or {}
    written = {
        "apiVersion": "rightslice.dev/v1alpha1",
        "kind": kind,
        "metadata": {key: metadata[key] for key in KEPT_METADATA if metadata.get(key)},
        "spec": data.get("spec"),
    }
    return orjson.dumps(written, option=orjson.OPT_INDENT_2).decode()


def _used(data: Written) -> tuple[str, bool]:
    """What of an object decides about pods."""
    return policy_text("", data), is_halted(data)


def _name(data: Written) -> str:
    metadata = data.get("metadata") or {}
    return "/".join(filter(None, (str(metadata.get("namespace") or ""), str(metadata.get("name", "")))))
