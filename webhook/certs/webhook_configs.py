"""Our mutating and validating webhook configurations: selecting, reading and patching their `caBundle`."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from webhook.certs.rotation import WebhookConfig
from webhook.certs.secret_state import decode_base64
from webhook.kube.api import find_object
from webhook.kube.leader_election import LeaseApi
from webhook.kube.reflector import WatchedResource

ADMISSION_API = "/apis/admissionregistration.k8s.io/v1"
CONFIG_PATHS = (f"{ADMISSION_API}/mutatingwebhookconfigurations", f"{ADMISSION_API}/validatingwebhookconfigurations")


class CertificateApi(LeaseApi, Protocol):
    """The methods of `webhook.kube.api.KubeClient` that are used."""

    @property
    def server_time(self) -> datetime | None:
        """The server's clock at its last response."""

    async def get(self, path: str, params: Mapping[str, str] = ...) -> dict[str, Any]:
        """Read an object or a list."""

    async def patch(self, path: str, body: Any, kind: Literal["merge"]) -> dict[str, Any]:
        """Patch an object."""


@dataclass(frozen=True, slots=True)
class WebhookConfigSelector:
    """Selects our configurations, of both kinds, by name or by label."""

    names: tuple[str, ...] = ()
    selector: str = ""

    @classmethod
    def parse(cls, text: str) -> WebhookConfigSelector:
        """Parse a label selector, which contains "=", or names separated by commas."""
        if "=" in text:
            return cls(selector=text)
        return cls(names=tuple(name.strip() for name in text.split(",") if name.strip()))

    async def read(self, api: CertificateApi) -> dict[str, dict[str, Any]]:
        """Return the existing configurations by path."""
        if self.selector:
            lists = [(prefix, await api.get(prefix, {"labelSelector": self.selector})) for prefix in CONFIG_PATHS]
            return {f"{prefix}/{each['metadata']['name']}": each for prefix, data in lists for each in data["items"]}
        paths = [f"{prefix}/{name}" for prefix in CONFIG_PATHS for name in self.names]
        return {path: found for path in paths if (found := await find_object(api, path)) is not None}

    def watched_resources(self) -> list[WatchedResource[dict[str, Any]]]:
        """Return what to watch: by name, because RBAC grants rights on single objects."""
        named = [{"fieldSelector": f"metadata.name={name}"} for name in self.names]
        params = [{"labelSelector": self.selector}] if self.selector else named
        return [
            WatchedResource(path.rpartition("/")[2], path, dict[str, Any], each)
            for path in CONFIG_PATHS
            for each in params
        ]

    def __str__(self) -> str:
        return self.selector or ", ".join(self.names)


@dataclass(slots=True)
class CaBundleWatch:
    """Notices a `caBundle` that differs from the expected one; the store of reflectors, which keeps no objects.

    Attributes:
        expected: What every `caBundle` must hold; None until that is known.
        changed: Set when a configuration holds another one.
    """

    expected: bytes | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        """Begin a list."""

    def upsert(self, item: Mapping[str, Any]) -> None:
        """Compare the bundles of a configuration that was created or changed."""
        if self.expected is not None and set(webhook_config_of("", item).bundles) - {self.expected}:
            self.changed.set()

    def remove(self, item: Mapping[str, Any]) -> None:
        """Ignore a configuration that was deleted."""

    def swap(self) -> None:
        """End a list."""


def webhook_config_of(path: str, configuration: Mapping[str, Any]) -> WebhookConfig:
    """Return path, version and bundles of a configuration."""
    clients = [webhook.get("clientConfig") or {} for webhook in configuration.get("webhooks") or ()]
    bundles = tuple(decode_base64(client.get("caBundle") or "") for client in clients)
    return WebhookConfig(path, str(configuration["metadata"].get("resourceVersion", "")), bundles)


def ca_bundle_patch(configuration: Mapping[str, Any], bundle: bytes) -> dict[str, Any]:
    """Return a merge patch that sets every `caBundle`, conditional on the configuration's `resourceVersion`."""
    text = b64encode(bundle).decode()
    webhooks = [
        {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": text}}
        for webhook in configuration["webhooks"]
    ]
    return {"metadata": {"resourceVersion": configuration["metadata"]["resourceVersion"]}, "webhooks": webhooks}
