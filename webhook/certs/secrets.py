"""The Secret as an object of the API: whose it is, what of it we read, and what we write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webhook.certs.held import SecretState, parse_secret_data
from webhook.kube.naming import NamespacedName

MANAGED_BY_LABEL = {"app.kubernetes.io/managed-by": "rightslice"}
"""The label of a Secret that is ours to write."""


class SecretName(NamespacedName):
    """Where the Secret is."""

    __slots__ = ()
    API = "/api/v1"
    RESOURCE = "secrets"


def secret_state_of(secret: Mapping[str, Any] | None) -> SecretState | None:
    """What a Secret holds; None: it is not there, or empty."""
    data = {key: value for key, value in ((secret or {}).get("data") or {}).items() if value}
    if secret is None or not data:
        return None
    labels = secret["metadata"].get("labels") or {}
    return parse_secret_data(data, foreign=not MANAGED_BY_LABEL.items() <= labels.items())


def build_secret(held: SecretState, name: SecretName, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """The Secret to write: a new one, or the one that was read with other data."""
    if before is None:
        metadata: dict[str, Any] = {"namespace": name.namespace, "name": name.name, "labels": dict(MANAGED_BY_LABEL)}
        return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": held.data()}
    labels = {**(before["metadata"].get("labels") or {}), **MANAGED_BY_LABEL}
    return {**before, "metadata": {**before["metadata"], "labels": labels}, "data": held.data()}
