"""Our mutating and validating webhook configurations: selecting, reading and patching their `caBundle`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from webhook.certs.rotation import WebhookConfig
from webhook.certs.secret_state import decode_base64
from webhook.errors import ApiError
from webhook.kube.leader_election import LeaseApi

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
        configurations = {}
        for path in (f"{prefix}/{name}" for prefix in CONFIG_PATHS for name in self.names):
            try:
                configurations[path] = await api.get(path)
            except ApiError as error:
                if error.status != 404:
                    raise
        return configurations

    def __str__(self) -> str:
        return self.selector or ", ".join(self.names)


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
