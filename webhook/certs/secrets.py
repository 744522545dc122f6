"""The Secret as an object of the API: whose it is, what of it we read, and what we write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webhook.certs.held import Held, read_held
from webhook.kube.naming import Namespaced

MARK = {"app.kubernetes.io/managed-by": "rightslice"}
"""The label of a Secret that is ours to write."""


class SecretName(Namespaced):
    """Where the Secret is."""

    __slots__ = ()
    API = "/api/v1"
    RESOURCE = "secrets"


def held_in(secret: Mapping[str, Any] | None) -> Held | None:
    """What a Secret holds; None: it is not there, or empty."""
    data = {key: value for key, value in ((secret or {}).get("data") or {}).items() if value}
    if secret is None or not data:
        return None
    labels = secret["metadata"].get("labels") or {}
    return read_held(data, foreign=not MARK.items() <= labels.items())


def secret_with(held: Held, name: SecretName, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """The Secret to write: a new one, or the one that was read with other data."""
    if before is None:
        metadata: dict[str, Any] = {"namespace": name.namespace, "name": name.name, "labels": dict(MARK)}
        return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": held.data()}
    labels = {**(before["metadata"].get("labels") or {}), **MARK}
    return {**before, "metadata": {**before["metadata"], "labels": labels}, "data": held.data()}
